//! What compilers for AMD GPUs make of a turn in a queue. They are optional: without one, a test says so and passes.

use std::path::PathBuf;

use anabranch_hip_jit::{DevicePointer, DeviceStruct as _, control::WaitControl, device_struct};
use anabranch_hip_jit::{Error, Jit, JitConfig, KernelSpec, KernelUnit, PRELUDE, Target, ToolSearch};
use anabranch_testkit::isa::{check_disassembly, disassemble, is_in_loop};
use anabranch_testkit::mutant;
use anabranch_transport_sdma::{DEVICE_HEADERS, SdmaQueue};

device_struct! {
    pub struct OneArgs {
        pub queue: DevicePointer<SdmaQueue>,
        pub control: DevicePointer<WaitControl>,
        pub source: u64,
        pub target: u64,
    }
}

/// One piece of an operation, so that the last stores of the kernel are those of its turn.
static ONE: KernelUnit = KernelUnit {
    name: "sdma_one",
    source: "#include \"anabranch/prelude.h\"\n\
        #include \"sdma/queue.h\"\n\
        ANABRANCH_KERNEL(sdma_one, OneArgs, 64) {\n\
            WaitContext wait = wait_context(grid, args.control, 1, 1, 0, 1);\n\
            sdma::Operation copy = {args.source, args.target, 64, sdma::Tail::NOTHING, nullptr, 0, true};\n\
            u64 end = 0;\n\
            sdma::post_piece(grid, wait, sdma::load_queue(grid, args.queue), copy, end);\n\
        }\n",
    headers: &[PRELUDE, DEVICE_HEADERS],
    entries: &["sdma_one"],
    layouts: &[OneArgs::c_declaration, SdmaQueue::c_declaration],
};

fn disassembled(spec: &KernelSpec, target: &str) -> Option<String> {
    let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).into();
    let tools = ToolSearch { path, ..ToolSearch::default() };
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let jit = Jit::new(JitConfig::new(cache), tools.clone());
    let object = match jit.compile(spec, &target.parse::<Target>().unwrap()) {
        Ok(object) => object,
        Err(error @ Error::NoCompiler { .. }) => {
            println!("skipped {target}: {error}");
            return None;
        }
        Err(error) => panic!("{} for {target}: {error}", spec.label()),
    };
    let text = disassemble(&tools, &object).unwrap();
    if text.is_none() {
        println!("skipped {target}: no disassembler");
    }
    text
}

/// The line of the store of `committed`, the last of a turn: write pointer, doorbell and `committed`, a release between each.
fn committed(text: &str) -> Option<u32> {
    const TURN: &str = "FWFWF";
    let (mut order, mut lines) = (String::new(), Vec::new());
    for (line, number) in text.lines().map(str::trim).zip(1..) {
        order.push(match line.split_whitespace().next() {
            Some("buffer_wbl2") if line.contains("sc0 sc1") => 'W',
            Some("global_store_dwordx2") => 'F',
            Some(word) if word.starts_with("global_store") => 'x',
            _ => continue,
        });
        lines.push(number);
    }
    let at = order.find(TURN).filter(|_| order.matches(TURN).count() == 1)?;
    lines.get(at + TURN.len() - 1).copied()
}

/// A lane that waits for its turn must not keep another of its wave from ending its own: what it waits for is stored in the loop.
#[test]
fn a_turn_ends_in_the_loop_that_waits_for_it() {
    for target in ["gfx942", "gfx950"] {
        for (broken, is_inside) in [(None, true), (Some("DONE_BEHIND_THE_LOOP"), false)] {
            let spec = KernelSpec::new(&ONE).edited(&broken.map(mutant).unwrap_or_default());
            let Some(text) = disassembled(&spec, target) else { return };
            assert_eq!(check_disassembly(&text), []);
            let line = committed(&text).unwrap_or_else(|| panic!("{target}, {broken:?}: {text}"));
            assert_eq!(is_in_loop(&text, line, &[]), is_inside, "{target}, {broken:?}");
        }
    }
}
