//! One kernel on each device, compiled or found, loaded, run, and its words compared on the host.

use std::time::{Duration, Instant};

use anabranch::{Config, Environment, kernel_pipeline};
use anabranch_hip::{Device, LaunchShape, with_distinct_causes};
use anabranch_hip_jit::{DevicePointer, Jit, KernelSpec, PRELUDE, Target, device_struct, kernel_unit};

use super::finding::Finding;

device_struct! {
    /// Arguments of the probe.
    pub(crate) struct ProbeArgs {
        pub(crate) words: DevicePointer<u32>,
        pub(crate) seed: u32,
        pub(crate) reserved: u32,
    }
}

kernel_unit! {
    static PROBE_UNIT: "doctor_probe", include_str!("../../../kernels/probe.hip"), &[PRELUDE];
    const PROBE: Kernel<ProbeArgs> = "anabranch_doctor_probe";
}

const BLOCKS: u32 = 4;
const THREADS: u32 = 64;
const SEED: u32 = 0x1357;

/// The doctor's kernel, for prebuilding.
pub(crate) fn kernels() -> [KernelSpec; 1] {
    [KernelSpec::new(&PROBE_UNIT)]
}

/// Runs the probe on each device; the devices of the configuration must succeed.
pub(super) fn probe(config: &Config, environment: &Environment, devices: &[(Device, bool)]) -> Vec<Finding> {
    // Settings that make no pipeline are complained about where compilers are looked for.
    let Ok(jit) = kernel_pipeline(&config.kernels, environment, None) else { return Vec::new() };
    let patience = config.deadline.operation.duration();
    let mut findings = Vec::new();
    for (device, wanted) in devices {
        let name = format!("{} {}", device.runtime().kind(), device.ordinal());
        findings.extend(clock(&name, device));
        let finding = match run(&jit, device, patience) {
            Ok(target) => Finding::ok("kernels", name, format!("a kernel for {target} was loaded and ran right")),
            Err(problem) => Finding::missing("kernels", name, *wanted, problem)
                .hint("no kernel works on this device: look at its compiler below, the driver, and `anabranch jit verify`"),
        };
        findings.push(
            finding
                .with("runtime", device.runtime().kind().to_string())
                .with("device", device.ordinal().0)
                .with("arch", device.arch()),
        );
    }
    findings
}

/// Says where a device does not report the rate of the clock by which kernels wait.
fn clock(name: &str, device: &Device) -> Option<Finding> {
    let target: Target = device.arch().parse().ok()?;
    let known = target.amd_clock_khz()?;
    let reported = device.wall_clock_khz().ok()?;
    (reported == 0).then(|| {
        let detail = format!("the device reports a clock of 0 kHz; kernels take the {known} kHz of {target}");
        Finding::warning("kernels", format!("{name} clock"), detail)
            .hint("deadlines of kernels are wrong if its clock runs at another rate")
            .with("clock_khz", known)
    })
}

#[expect(unsafe_code, reason = "launching a kernel is the caller's promise")]
#[expect(clippy::disallowed_methods, reason = "the doctor examines real devices, in real time")]
fn run(jit: &Jit, device: &Device, patience: Duration) -> Result<Target, String> {
    let unit =
        jit.load(device, &KernelSpec::new(&PROBE_UNIT)).map_err(|error| with_distinct_causes(&error))?;
    let kernel = unit.get(PROBE).map_err(|error| with_distinct_causes(&error))?;
    let hip = |error: anabranch_hip::Error| with_distinct_causes(&error);
    let bytes = (BLOCKS * THREADS * 4) as usize;
    let mut buffer = device.allocate(bytes).map_err(hip)?;
    buffer.fill(0xff).map_err(hip)?;
    let stream = device.create_stream().map_err(hip)?;
    let arguments = ProbeArgs { words: DevicePointer::new(buffer.address()), seed: SEED, reserved: 0 };
    let shape = LaunchShape { grid_blocks: BLOCKS, block_threads: THREADS, local_bytes: THREADS * 4 };
    // SAFETY: the buffer has a word for each thread, and lives until the stream is idle or, where it never
    // is, for ever.
    unsafe { kernel.launch(shape, &stream, &arguments) }.map_err(|error| with_distinct_causes(&error))?;
    let begun = Instant::now();
    let ended = loop {
        match stream.is_idle() {
            Ok(true) => break Ok(()),
            Ok(false) if begun.elapsed() > patience => {
                break Err(format!("the kernel did not end within {patience:?} (deadline.operation)"));
            }
            Ok(false) => std::thread::sleep(Duration::from_micros(200)),
            Err(error) => break Err(hip(error)),
        }
    };
    if let Err(problem) = ended {
        // The kernel may still write, and giving its things back would wait for it.
        let _kept = std::mem::ManuallyDrop::new((buffer, stream, unit));
        return Err(problem);
    }
    let mut words = vec![0; bytes];
    buffer.copy_to_host(0, &mut words).map_err(hip)?;
    let words = words.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    compare(words)?;
    Ok(unit.target().clone())
}

/// Each thread leaves three times what the thread opposite in its block brought.
fn compare(words: impl Iterator<Item = u32>) -> Result<(), String> {
    for (index, word) in (0..).zip(words) {
        let (block, thread) = (index / THREADS, index % THREADS);
        let expected = (block * THREADS + (THREADS - 1 - thread) + SEED) * 3;
        if word != expected {
            return Err(format!(
                "the kernel ran and computed wrong: word {index} is {word:#x}, and {expected:#x} is right"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_is_named() {
        let right = |index: u32| (index / 64 * 64 + (63 - index % 64) + SEED) * 3;
        assert_eq!(compare((0..256).map(right)), Ok(()));
        let wrong = compare((0..256).map(|index| if index == 130 { 0 } else { right(index) }));
        assert!(wrong.unwrap_err().contains("word 130 is 0x0, and "));
    }
}
