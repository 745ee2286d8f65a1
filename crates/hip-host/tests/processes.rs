//! Memory shared between processes. The test binary starts itself again as the other process.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests call the C table with locals of theirs, or with arguments that it must refuse"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::ptr::null_mut;
use std::time::Duration;

use crate::common::{Gpu, PingPong, config, ok, within};
use anabranch_hip::HipError;
use anabranch_hip::types::HipIpcMemHandle;
use anabranch_testkit::test_path;

const LIMIT: Duration = Duration::from_secs(120);
const WORDS: usize = 4096;
/// How a line that is meant for the parent starts; the test harness prints others.
const MARK: &str = "handle=";

fn hexadecimal(handle: &HipIpcMemHandle) -> String {
    handle.reserved.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn parsed(text: &str) -> HipIpcMemHandle {
    let mut reserved = [0; 64];
    for (index, byte) in reserved.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[index * 2..index * 2 + 2], 16).unwrap();
    }
    HipIpcMemHandle { reserved }
}

fn open(gpu: &Gpu, handle: HipIpcMemHandle) -> Result<*mut std::ffi::c_void, HipError> {
    let mut pointer = null_mut();
    let code = unsafe { (gpu.api().hipIpcOpenMemHandle)(&raw mut pointer, handle, 1) };
    if code == HipError::SUCCESS { Ok(pointer) } else { Err(code) }
}

fn handle_of(gpu: &Gpu, pointer: *mut std::ffi::c_void) -> HipIpcMemHandle {
    let mut handle = HipIpcMemHandle { reserved: [0; 64] };
    ok(unsafe { (gpu.api().hipIpcGetMemHandle)(&raw mut handle, pointer) });
    handle
}

/// The other process: opens the handle among its arguments (or exits if there is none), shares memory of its
/// own, plays ping-pong by kernel, then does what the lines of its input say.
#[test]
#[ignore = "the other process of the test below"]
fn other_process() {
    let Some(handle) = std::env::args().find_map(|argument| argument.strip_prefix(MARK).map(parsed)) else {
        return;
    };
    within(LIMIT, move || {
        let gpu = Gpu::new(config());
        let theirs = open(&gpu, handle).unwrap();
        assert_eq!(gpu.read::<u64>(theirs, WORDS), (0..WORDS as u64).collect::<Vec<_>>());
        gpu.set_device(1);
        let own = gpu.malloc(WORDS * 8);
        gpu.write(own, &vec![7_u64; WORDS]);
        println!("\n{MARK}{}", hexadecimal(&handle_of(&gpu, own)));
        let arguments = PingPong {
            mine: theirs.wrapping_byte_add(8),
            theirs: theirs.wrapping_byte_add(16),
            rounds: 1000,
        };
        gpu.launch(gpu.kernel("ping_pong"), (1, 1, 0), null_mut(), arguments);
        ok(gpu.sync(null_mut()));
        ok(unsafe { (gpu.api().hipIpcCloseMemHandle)(theirs) });
        for line in std::io::stdin().lines() {
            if line.unwrap() == "free" {
                gpu.free(own);
                println!("\n{MARK}freed");
            }
        }
    });
}

/// The child, killed if the test ends early.
struct Other {
    child: Child,
    input: ChildStdin,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Other {
    fn start(handle: &HipIpcMemHandle) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test_path!("other_process"), "--ignored", "--nocapture", "--test-threads=1"])
            .arg(format!("{MARK}{}", hexadecimal(handle)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, lines: BufReader::new(output).lines() }
    }

    fn line(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the other process goes on").unwrap();
            if let Some(rest) = line.strip_prefix(MARK) {
                return rest.to_owned();
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn processes_share_memory_and_kernels_meet_in_it() {
    within(LIMIT, || {
        let gpu = Gpu::new(config());
        let own = gpu.malloc(WORDS * 8);
        gpu.write(own, &(0..WORDS as u64).collect::<Vec<_>>());
        // An address inside names the whole allocation.
        let mut other = Other::start(&handle_of(&gpu, own.wrapping_byte_add(24)));
        let handle = parsed(&other.line());
        let theirs = open(&gpu, handle).unwrap();
        assert_eq!(gpu.read::<u64>(theirs, WORDS), vec![7; WORDS]);
        let (mut base, mut bytes) = (null_mut(), 0);
        let inside = theirs.wrapping_byte_add(100);
        ok(unsafe { (gpu.api().hipMemGetAddressRange)(&raw mut base, &raw mut bytes, inside) });
        assert_eq!((base, bytes), (theirs, WORDS * 8));
        assert_eq!(unsafe { (gpu.api().hipFree)(theirs) }, HipError::INVALID_VALUE);

        let stream = gpu.stream();
        let words =
            PingPong { mine: own.wrapping_byte_add(16), theirs: own.wrapping_byte_add(8), rounds: 1000 };
        gpu.launch(gpu.kernel("ping_pong"), (1, 1, 0), stream, words);
        ok(gpu.sync(stream));

        // A second opening is a mapping of its own.
        let again = open(&gpu, handle).unwrap();
        gpu.write(again, &[9_u64]);
        assert_eq!(gpu.read::<u64>(theirs, 1), [9]);
        ok(unsafe { (gpu.api().hipIpcCloseMemHandle)(again) });
        assert_eq!(unsafe { (gpu.api().hipIpcCloseMemHandle)(again) }, HipError::INVALID_VALUE);

        // Freed there: what is mapped stays, nothing new is opened.
        writeln!(other.input, "free").unwrap();
        assert_eq!(other.line(), "freed");
        assert_eq!(open(&gpu, handle), Err(HipError::MAP_FAILED));
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        assert_eq!(open(&gpu, handle), Err(HipError::MAP_FAILED));
        assert_eq!(gpu.read::<u64>(theirs, 2), [9, 7]);
        gpu.write(theirs, &[1_u64]);
        ok(unsafe { (gpu.api().hipIpcCloseMemHandle)(theirs) });
    });
}
