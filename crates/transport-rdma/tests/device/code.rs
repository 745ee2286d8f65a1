//! What compilers for GPUs make of the headers. They are optional: without one, a test says so and passes.

use std::path::PathBuf;

use anabranch_hip_jit::{CodeObject, Error, KernelSpec, KernelUnit, PRELUDE, Target, ToolSearch};
use anabranch_hip_jit::{DevicePointer, DeviceStruct as _, control::WaitControl, device_struct};
use anabranch_testkit::isa::{check_disassembly, disassemble, is_in_loop};
use anabranch_testkit::lint::lint_source;
use anabranch_testkit::mutant;
use anabranch_transport_rdma::device::{self, DEVICE_HEADERS};
use anabranch_transport_rdma::{Atomics, PostedRequest, Provider, RdmaQueue, RdmaRange};

use crate::device::bench::{UNIT, jit_with, spec, tools};

device_struct! {
    pub struct OneArgs {
        pub queue: DevicePointer<RdmaQueue>,
        pub control: DevicePointer<WaitControl>,
        pub remote: u64,
        pub value: u64,
        pub old: DevicePointer<u64>,
    }
}

/// One request, so that the order of its stores is the order of the whole kernel.
static ONE: KernelUnit = KernelUnit {
    name: "rdma_one",
    source: "#include \"anabranch/prelude.h\"\n\
        #include \"rdma/rdma.h\"\n\
        ANABRANCH_KERNEL(rdma_one, OneArgs, 64) {\n\
            WaitContext wait = wait_context(grid, args.control, 1, 1, 0, 1);\n\
            rdma::Request request = {rdma::Opcode::WRITE_VALUE, 0, args.remote, 8, args.value, 0, 0, 0, 0};\n\
            u64 end = 0;\n\
            rdma::post(grid, wait, rdma::load_queue(grid, args.queue), request, end);\n\
        }\n",
    headers: &[PRELUDE, DEVICE_HEADERS],
    entries: &["rdma_one"],
    layouts: &[
        OneArgs::c_declaration,
        RdmaQueue::c_declaration,
        RdmaRange::c_declaration,
        PostedRequest::c_declaration,
    ],
};

/// Where NVRTC's Python wheel is unpacked, if it is.
fn all_tools() -> ToolSearch {
    #[expect(clippy::disallowed_methods, reason = "where the wheel lies differs by machine")]
    let named = std::env::var("ANABRANCH_TEST_PYTHON_SITE").unwrap_or_default();
    let python_site = std::env::split_paths(&named).filter(|path| path.is_absolute()).collect();
    ToolSearch { python_site, cuda: vec![PathBuf::from("/usr/local/cuda")], ..tools() }
}

fn compile(spec: &KernelSpec, target: &str) -> Option<CodeObject> {
    match jit_with(all_tools()).compile(spec, &target.parse::<Target>().unwrap()) {
        Ok(object) => Some(object),
        Err(error @ Error::NoCompiler { .. }) => {
            println!("skipped {target}: {error}");
            None
        }
        Err(error) => panic!("{} for {target}: {error}", spec.label()),
    }
}

fn disassembled(spec: &KernelSpec, target: &str) -> Option<String> {
    let text = disassemble(&tools(), &compile(spec, target)?).unwrap();
    if text.is_none() {
        println!("skipped {target}: no disassembler");
    }
    text
}

#[test]
#[ignore = "extended"]
fn every_provider_compiles_for_every_target() {
    for provider in Provider::ALL {
        for target in ["gfx942", "gfx1201", "sm_90"] {
            for (unit, atomics) in [(&UNIT, Atomics::Masked), (&ONE, Atomics::None)] {
                let spec = KernelSpec::new(unit)
                    .with("RDMA_PROVIDER", provider.number())
                    .with("RDMA_ATOMICS", atomics.number());
                compile(&spec, target);
            }
        }
        // And for the seeded host machine, in both its forms.
        for cumulative in [0, 1] {
            let spec = spec(provider, Atomics::Standard).with("HOST_INSTRUMENTED", 1);
            let spec = if cumulative == 1 { spec.with("HOST_CUMULATIVE", 1) } else { spec };
            assert!(compile(&spec, "host:wave4").is_some());
        }
    }
}

#[test]
#[ignore = "extended"]
fn kernels_for_amd_keep_the_ordering_rules() {
    for provider in Provider::ALL {
        for target in ["gfx942", "gfx950"] {
            let spec = spec(provider, Atomics::Masked);
            let Some(text) = disassembled(&spec, target) else { return };
            assert_eq!(check_disassembly(&text), [], "{} for {target}", spec.label());
        }
    }
}

#[test]
fn a_unit_names_its_provider_and_atomics() {
    let host: Target = "host".parse().unwrap();
    for (spec, wanted) in [
        (KernelSpec::new(&ONE).with("RDMA_ATOMICS", 1), "RDMA_PROVIDER: 1 mlx5"),
        (KernelSpec::new(&ONE).with("RDMA_PROVIDER", 1), "RDMA_ATOMICS: 0, 1 or 2"),
        (KernelSpec::new(&ONE).with("RDMA_PROVIDER", 1).with("RDMA_ATOMICS", 3), "RDMA_ATOMICS: 0, 1 or 2"),
        (KernelSpec::new(&ONE).with("RDMA_PROVIDER", 0).with("RDMA_ATOMICS", 0), "names no provider"),
        (KernelSpec::new(&ONE).with("RDMA_PROVIDER", 5).with("RDMA_ATOMICS", 0), "names no provider"),
    ] {
        let error = jit_with(tools()).compile(&spec, &host).unwrap_err().to_string();
        assert!(error.contains(wanted), "{}: {error}", spec.label());
    }
}

/// What matters of the code that makes an entry known, in its order: stores of 16 bytes (`E`, an entry's), of 4 (`R`, a doorbell
/// record's), of 8 (`F`, a doorbell, stamp or position), write-backs of caches at system scope (`W`), and waits for all stores
/// (`w`, once however many there are in a row). With the line of each.
fn order_of_stores(text: &str) -> (String, Vec<u32>) {
    let mut order = String::new();
    let mut lines = Vec::new();
    for (line, number) in text.lines().map(str::trim).zip(1..) {
        let event = match line.split_whitespace().next() {
            Some("global_store_dwordx4") => 'E',
            Some("global_store_dwordx2") => 'F',
            Some("global_store_dword") => 'R',
            Some("buffer_wbl2") if line.contains("sc0 sc1") => 'W',
            Some("s_waitcnt") if line.contains("vmcnt(0)") => 'w',
            _ => continue,
        };
        // Waits for loads are waits for stores, too.
        if event == 'w' && order.ends_with('w') {
            continue;
        }
        order.push(event);
        lines.push(number);
        // Several records may share the words that say that one is there: the second is the kernel's own, at an address that all lanes have.
        let is_told = order.ends_with("FF") && line.contains(", s[");
        if is_told || order.ends_with(RECORD) {
            order.truncate(order.len() - if is_told { 2 } else { RECORD.len() });
            lines.truncate(order.len());
        }
    }
    (order, lines)
}

/// A fault record and its release.
const RECORD: &str = "RRFRRFFFFWw";

fn one(provider: Provider, broken: Option<&str>) -> KernelSpec {
    with_mutant(
        KernelSpec::new(&ONE).with("RDMA_PROVIDER", provider.number()).with("RDMA_ATOMICS", 0),
        broken,
    )
}

fn fetch(provider: Provider, broken: Option<&str>) -> KernelSpec {
    with_mutant(
        KernelSpec::new(&FETCH).with("RDMA_PROVIDER", provider.number()).with("RDMA_ATOMICS", 1),
        broken,
    )
}

fn with_mutant(spec: KernelSpec, broken: Option<&str>) -> KernelSpec {
    match broken {
        Some(broken) => spec.edited(&mutant(broken)),
        None => spec,
    }
}

/// Whether the sequence is in the code of one request, once, for both targets; `None` without a compiler.
fn has(provider: Provider, broken: Option<&str>, sequence: &str) -> Option<bool> {
    let mut all = true;
    for target in ["gfx942", "gfx950"] {
        let text = disassembled(&one(provider, broken), target)?;
        let (order, _) = order_of_stores(&text);
        println!("{provider}, {broken:?}, {target}: {order}");
        all &= order.matches(sequence).count() == 1;
    }
    Some(all)
}

/// The code of one request from its first store on, whose last two are the doorbell and `committed`.
const SEQUENCES: [(Provider, &str); 4] = [
    // Entry, record, doorbell, `committed`.
    (Provider::Mlx5, "EEEWwRWwFWwF"),
    // Entry with its sequence numbers, doorbell, `committed`.
    (Provider::Bnxt, "FFFFFFFWwFWwF"),
    // Entry, the word with its colour, doorbell, `committed`.
    (Provider::Ionic, "FEEEWwFWwFWwF"),
    // Request, stamp, doorbell, `committed`.
    (Provider::Posted, "FFFFRRRRRRWwFWwFWwF"),
];

/// Lanes of a wave may run in lock step, and wait for each other: what one waits for is stored in the loop that waits, else the other
/// does it when all have left the loop, and nobody does. And lanes with queues of their own ring in a loop of its own, one by one: their
/// queues have one register, of which the stores of one instruction are one.
#[test]
#[ignore = "extended"]
fn lanes_ring_one_by_one_and_commit_in_the_loop_that_waits_for_it() {
    // Whether `committed` is stored in a loop, and the doorbell in one that does not go on to that.
    let found = |provider, sequence: &str, broken, target| {
        let text = disassembled(&one(provider, broken), target)?;
        let (order, lines) = order_of_stores(&text);
        let at = order.find(sequence).unwrap_or_else(|| panic!("{provider}, {broken:?}: {order}"));
        let stores = &lines[at..][..sequence.len()];
        let (doorbell, committed) = (stores[sequence.len() - 4], stores[sequence.len() - 1]);
        Some((is_in_loop(&text, committed, &[]), is_in_loop(&text, doorbell, &[committed])))
    };
    for (provider, sequence) in SEQUENCES {
        for target in ["gfx942", "gfx950"] {
            for (broken, expected) in [
                (None, (true, true)),
                (Some("DONE_BEHIND_THE_LOOP"), (false, true)),
                (Some("RDMA_RUNG_TOGETHER"), (true, false)),
            ] {
                let Some(found) = found(provider, sequence, broken, target) else { return };
                assert_eq!(found, expected, "{provider} for {target}, {broken:?}");
            }
        }
    }
}

/// Each thing that a NIC must see before another is released before that is stored, for each provider; and the mutant that leaves a
/// release out is seen to.
#[test]
#[ignore = "extended"]
fn each_store_that_a_nic_waits_for_follows_a_release() {
    let mlx5 = ["RDMA_ENTRY_UNRELEASED", "RDMA_RECORD_UNRELEASED", "RDMA_DOORBELL_UNRELEASED"];
    let marked = ["RDMA_ENTRY_UNRELEASED", "RDMA_MARK_UNRELEASED", "RDMA_DOORBELL_UNRELEASED"];
    let plain = ["RDMA_ENTRY_UNRELEASED", "RDMA_DOORBELL_UNRELEASED"];
    for (provider, sequence) in SEQUENCES {
        let broken = match provider {
            Provider::Mlx5 => &mlx5[..],
            Provider::Bnxt => &plain[..],
            Provider::Ionic | Provider::Posted => &marked[..],
        };
        let Some(right) = has(provider, None, sequence) else { return };
        assert!(right, "{provider}");
        for broken in broken {
            assert_eq!(has(provider, Some(broken), sequence), Some(false), "{provider}, {broken}");
        }
    }
}

/// One operation on a word that is waited for.
static FETCH: KernelUnit = KernelUnit {
    name: "rdma_fetch",
    source: "#include \"anabranch/prelude.h\"\n\
        #include \"rdma/rdma.h\"\n\
        ANABRANCH_KERNEL(rdma_fetch, OneArgs, 64) {\n\
            WaitContext wait = wait_context(grid, args.control, 1, 1, 0, 1);\n\
            rdma::Request request = {rdma::Opcode::FETCH_ADD, 0, args.remote, 0, args.value, 0, 8, 0, 0};\n\
            u64 old = 0;\n\
            rdma::fetch(grid, wait, rdma::load_queue(grid, args.queue), request, old);\n\
            private_store(grid, args.old, old);\n\
        }\n",
    entries: &["rdma_fetch"],
    ..ONE
};

/// A lane that waits for a result slot waits for the lane that has it, which may be of the same wave: it, too, is given back in the loop. (No
/// mutant: clang 22 leaves the store there even without `stays_inside`, as part of what it makes of a fault's last one.)
#[test]
fn lanes_give_result_slots_back_in_the_loop_that_waits_for_them() {
    for provider in Provider::ALL {
        for target in ["gfx942", "gfx950"] {
            let Some(text) = disassembled(&fetch(provider, None), target) else { return };
            // The slot's second word, right behind a release: the last such store of all.
            let stores = text.lines().zip(1..).filter(|(line, _)| {
                line.contains("global_store_dword") || line.contains("buffer_wbl2 sc0 sc1")
            });
            let stores: Vec<(&str, u32)> = stores.collect();
            let given_back = stores.windows(2).rfind(|two| {
                let store = two[1].0;
                two[0].0.contains("buffer_wbl2") && store.contains("dwordx2 ") && store.contains("offset:8 ")
            });
            let Some([_, (_, line)]) = given_back else { panic!("{provider} for {target}: {stores:#?}") };
            assert!(is_in_loop(&text, *line, &[]), "{provider} for {target}");
        }
    }
}

/// A kernel that fetches has one acquire more than its mutant, and has it between the wait for the completion and the value.
#[test]
#[ignore = "extended"]
fn a_fetch_acquires_after_its_completion() {
    for provider in Provider::ALL {
        let (spec, broken) = (fetch(provider, None), fetch(provider, Some("RDMA_FETCHED_UNACQUIRED")));
        for target in ["gfx942", "gfx950"] {
            let Some(texts) = disassembled(&spec, target).zip(disassembled(&broken, target)) else { return };
            let acquires = |text: &str| text.matches("buffer_inv sc0 sc1").count();
            assert_eq!(check_disassembly(&texts.0), []);
            assert_eq!(acquires(&texts.0), acquires(&texts.1) + 1, "{provider} for {target}");
        }
    }
}

/// A key is that of a place whose address and bytes are the same behind an acquire; the mutant takes it at once. No run on threads of a CPU
/// comes between loads that lie so close.
#[test]
#[ignore = "extended"]
fn a_key_is_taken_of_a_place_that_is_looked_at_again() {
    static KEY: KernelUnit = KernelUnit {
        name: "rdma_key",
        source: "#include \"anabranch/prelude.h\"\n\
            #include \"rdma/rdma.h\"\n\
            ANABRANCH_KERNEL(rdma_key, OneArgs, 64) {\n\
                u32 key = 0;\n\
                RdmaQueue queue = rdma::load_queue(grid, args.queue);\n\
                bool found = rdma::find_key(grid, queue, args.remote, args.value, key);\n\
                private_store(grid, args.old, found ? static_cast<u64>(key) : 0ull);\n\
            }\n",
        entries: &["rdma_key"],
        ..ONE
    };
    // Bytes that are loaded, in all, and at most behind an acquire of the system.
    let loaded = |text: &str| {
        let (mut all, mut behind) = (0, None);
        for line in text.lines().map(str::trim) {
            let bytes = match line.split_whitespace().next() {
                Some("global_load_dword") => 4,
                Some("global_load_dwordx2") => 8,
                Some("global_load_dwordx3") => 12,
                Some("global_load_dwordx4") => 16,
                Some("buffer_inv") if line.contains("sc0 sc1") => {
                    behind = Some(0);
                    continue;
                }
                _ => continue,
            };
            all += bytes;
            behind = behind.map(|behind| behind + bytes);
        }
        (all, behind)
    };
    for provider in Provider::ALL {
        let spec = KernelSpec::new(&KEY).with("RDMA_PROVIDER", provider.number()).with("RDMA_ATOMICS", 0);
        let broken = with_mutant(spec.clone(), Some("RDMA_KEY_UNCHECKED"));
        for target in ["gfx942", "gfx950"] {
            let Some(texts) = disassembled(&spec, target).zip(disassembled(&broken, target)) else { return };
            let (right, broken) = (loaded(&texts.0), loaded(&texts.1));
            assert_eq!(check_disassembly(&texts.0), []);
            // Address and bytes, once more.
            assert_eq!(right.0, broken.0 + 16, "{provider} for {target}");
            assert_eq!(broken.1, None, "{provider} for {target}");
            assert!(right.1.is_some_and(|behind| behind >= 16), "{provider} for {target}: {right:?}");
        }
    }
}

#[test]
fn sources_pass_the_lints_and_are_all_listed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/device/rdma");
    let files = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        files.map(|entry| format!("rdma/{}", entry.unwrap().file_name().into_string().unwrap())).collect();
    names.sort();
    assert_eq!(names, DEVICE_HEADERS.iter().map(|header| header.name).collect::<Vec<_>>());
    for header in DEVICE_HEADERS {
        // `is_atomic` is a word about operations; the primitives are the prelude's.
        let text = header.text.replace("atomic", "word");
        assert_eq!(lint_source(header.name, &text), [], "{}", header.name);
    }
    assert_eq!(lint_source("requests.hip", UNIT.source), []);
}

#[test]
fn phases_are_those_of_the_header() {
    let view = DEVICE_HEADERS.iter().find(|header| header.name == "rdma/view.h").unwrap().text;
    let phases: Vec<u32> =
        (0..=u32::from(u16::MAX)).filter(|phase| device::phase_name(*phase).is_some()).collect();
    assert_eq!(phases.len(), view.matches("\n    PHASE_NIC_").count());
    for (name, phase) in [
        ("POST", device::PHASE_NIC_POST),
        ("DONE", device::PHASE_NIC_DONE),
        ("ERROR", device::PHASE_NIC_ERROR),
        ("UNREGISTERED", device::PHASE_NIC_UNREGISTERED),
        ("UNSUPPORTED", device::PHASE_NIC_UNSUPPORTED),
        ("OUT_OF_RANGE", device::PHASE_NIC_OUT_OF_RANGE),
    ] {
        assert!(phases.contains(&phase));
        assert!(view.contains(&format!("PHASE_NIC_{name} = {phase:#06x},")), "{name}");
    }
}
