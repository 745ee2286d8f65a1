//! The device functions of the symmetric heap on the host runtime, compared byte by byte with what a CPU computes.

/// A unit with one kernel, `anabranch_test`, that is given a team and makes one call.
macro_rules! unit {
    ($name:literal, $call:literal) => {
        anabranch_hip_jit::KernelUnit {
            name: $name,
            source: concat!(
                "#include \"anabranch/prelude.h\"\n#include \"shmem/shmem.h\"\n",
                "ANABRANCH_KERNEL(anabranch_test, TeamView, 256) {\n",
                "    shmem::Context context = shmem::make_context(grid, args, 1, 1);\n",
                "    shmem::Symmetric<u32> word = {64};\n",
                $call,
                "\n}\n"
            ),
            headers: &[anabranch_hip_jit::PRELUDE, anabranch_shmem::device_api::DEVICE_HEADERS],
            entries: &["anabranch_test"],
            layouts: &[
                <anabranch_shmem::TeamView as anabranch_hip_jit::DeviceStruct>::c_declaration,
                <anabranch_shmem::device_api::BarrierWorkspace as anabranch_hip_jit::DeviceStruct>::c_declaration,
            ],
        }
    };
}
mod atomics;
mod barrier;
mod code;
mod copy;
mod engines;
mod message;
mod misuse;
mod nics;
mod ranks;
mod wait;
mod world;
