//! Looks at AMD machine code, which no emulator of the language can replace: the compiler may drop a wait.
//!
//! [`check_disassembly`] is a pure function of text, so its mutants can be tested; [`disassemble`] makes the text with
//! LLVM's tools where they are installed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anabranch_hip_jit::{CodeObject, ToolSearch};

/// What a kernel must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsaRule {
    /// Between a write-back of the cache and the wait for it stands a store, an atomic, a barrier or a branch: the flag
    /// may pass the data.
    WriteBackNotAwaited,
    /// An access through scratch memory: registers were spilled or an array was indexed at run time.
    Scratch,
    /// An access without an address space, which waits for local and global memory alike.
    Flat,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsaFinding {
    /// The rule.
    pub rule: IsaRule,
    /// The function it is in.
    pub function: String,
    /// The line of the text, from 1.
    pub line: u32,
    /// The instruction.
    pub instruction: String,
}

impl fmt::Display for IsaFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} at line {}: {}", self.function, self.rule, self.line, self.instruction)
    }
}

/// Checks what `llvm-objdump -d` prints for an AMD code object.
pub fn check_disassembly(text: &str) -> Vec<IsaFinding> {
    let mut findings = Vec::new();
    let mut function = String::new();
    let mut write_back_pending = false;
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = line.strip_suffix(">:").and_then(|line| line.split_once('<')) {
            name.1.clone_into(&mut function);
            write_back_pending = false;
            continue;
        }
        let code = line.split_once("//").map_or(line, |(code, _)| code).trim();
        let Some(mnemonic) = code.split_whitespace().next() else { continue };
        let mut found = |rule| {
            let instruction = code.to_owned();
            findings.push(IsaFinding {
                rule,
                function: function.clone(),
                line: index as u32 + 1,
                instruction,
            });
        };
        if mnemonic.starts_with("scratch_") {
            found(IsaRule::Scratch);
        }
        if mnemonic.starts_with("flat_") {
            found(IsaRule::Flat);
        }
        if mnemonic == "buffer_wbl2" || mnemonic == "global_wb" {
            write_back_pending = true;
        } else if awaits_stores(code, mnemonic) {
            write_back_pending = false;
        } else if write_back_pending && passes_write_back(mnemonic) {
            found(IsaRule::WriteBackNotAwaited);
            write_back_pending = false;
        }
    }
    findings
}

/// How often a kernel has the sequence by which every wave releases its own stores to the system before a block barrier, as
/// `publish.h` demands: a system-scope write-back, the wait for all stores, the barrier, and no branch in between (a branch
/// would mean that some waves go around it). A kernel that flags peers after stores of a whole block needs at least one.
///
/// gfx11 has no write-back instruction: there the wait alone counts.
pub fn wave_releases(text: &str, kernel: &str) -> usize {
    let has_write_back = text.contains("buffer_wbl2") || text.contains("global_wb");
    let mut count = 0;
    let (mut inside, mut written_back, mut waited) = (false, false, false);
    for line in text.lines() {
        if let Some((_, name)) = line.strip_suffix(">:").and_then(|line| line.split_once('<')) {
            inside = name == kernel;
            (written_back, waited) = (false, false);
            continue;
        }
        let code = line.split_once("//").map_or(line, |(code, _)| code).trim();
        let Some(mnemonic) = code.split_whitespace().next().filter(|_| inside) else { continue };
        let system = code.contains("sc0 sc1") || code.contains("SCOPE_SYS") || code == "buffer_wbl2";
        if (mnemonic == "buffer_wbl2" || mnemonic == "global_wb") && system {
            (written_back, waited) = (true, false);
        } else if awaits_stores(code, mnemonic) || (mnemonic == "s_waitcnt_vscnt" && code.ends_with("0x0")) {
            waited = written_back || !has_write_back;
        } else if mnemonic.starts_with("s_barrier") {
            count += usize::from(waited && (written_back || !has_write_back));
            (written_back, waited) = (false, false);
        } else if mnemonic.starts_with("s_cbranch") || mnemonic.starts_with("s_branch") || is_store(mnemonic)
        {
            (written_back, waited) = (false, false);
        }
    }
    count
}

/// Whether control may come back to the instruction at `line` (of what [`disassemble`] gives, from 1) on a way that passes none of the
/// lines `without`: whether it is in a loop. Lanes that wait for each other in a loop need that of what they wait for; after the loop
/// comes a lane when all of its wave do. False where there is no such instruction.
pub fn is_in_loop(text: &str, line: u32, without: &[u32]) -> bool {
    let code = Flow::read(text);
    let Some(start) = code.iter().position(|instruction| instruction.line == line) else { return false };
    let mut open: Vec<usize> = code[start].next.clone();
    let mut seen = vec![false; code.len()];
    while let Some(index) = open.pop() {
        if index == start {
            return true;
        }
        let Some(instruction) = code.get(index).filter(|other| !without.contains(&other.line)) else {
            continue;
        };
        if !std::mem::replace(&mut seen[index], true) {
            open.extend(&instruction.next);
        }
    }
    false
}

/// An instruction, and the indices of its possible successors.
struct Flow {
    line: u32,
    next: Vec<usize>,
}

impl Flow {
    fn read(text: &str) -> Vec<Self> {
        let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let mut found: Vec<(u32, u64, &str, Option<u64>)> = Vec::new();
        let mut base = 0;
        for (index, line) in text.lines().enumerate() {
            if let Some((address, _)) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) {
                base = number(address.trim()).unwrap_or_default();
            } else if let Some((code, comment)) = line.split_once("//")
                && let Some((address, rest)) = comment.trim().split_once(':')
                && let (Some(address), Some(mnemonic)) = (number(address), code.split_whitespace().next())
            {
                let target = rest.split_once('<').and_then(|(_, name)| name.strip_suffix('>'));
                let offset = target.map(|name| name.split_once("+0x").map_or(Some(0), |(_, at)| number(at)));
                let target = offset.flatten().map(|offset| base + offset);
                found.push((index as u32 + 1, address, mnemonic, target));
            }
        }
        let places: BTreeMap<u64, usize> =
            found.iter().enumerate().map(|(index, (_, address, ..))| (*address, index)).collect();
        let one = |(index, (line, _, mnemonic, target)): (usize, &(u32, u64, &str, Option<u64>))| {
            let ends = matches!(*mnemonic, "s_branch" | "s_endpgm" | "s_setpc_b64");
            let mut next: Vec<_> = if ends { Vec::new() } else { vec![index + 1] };
            if mnemonic.starts_with("s_branch") || mnemonic.starts_with("s_cbranch") {
                next.extend(target.and_then(|target| places.get(&target)));
            }
            Self { line: *line, next }
        };
        found.iter().enumerate().map(one).collect()
    }
}

fn is_store(mnemonic: &str) -> bool {
    ["global_", "flat_", "buffer_"].iter().any(|prefix| mnemonic.starts_with(prefix))
        && (mnemonic.contains("_store") || mnemonic.contains("_atomic"))
}

/// Whether nothing that was stored or written back is under way afterwards.
fn awaits_stores(code: &str, mnemonic: &str) -> bool {
    match mnemonic {
        "s_waitcnt" => code.contains("vmcnt(0)") || code == "s_waitcnt 0" || code == "s_waitcnt 0x0",
        "s_wait_storecnt" | "s_wait_storecnt_dscnt" => code.ends_with(" 0x0") || code.ends_with(" 0"),
        _ => false,
    }
}

fn passes_write_back(mnemonic: &str) -> bool {
    let memory =
        ["global_", "flat_", "buffer_", "scratch_"].iter().any(|prefix| mnemonic.starts_with(prefix));
    (memory && (mnemonic.contains("_store") || mnemonic.contains("_atomic")))
        || mnemonic.starts_with("s_barrier")
        || mnemonic.starts_with("s_branch")
        || mnemonic.starts_with("s_cbranch")
        || mnemonic.starts_with("s_setpc")
        || mnemonic.starts_with("s_swappc")
        || mnemonic == "s_endpgm"
}

/// One kernel in the metadata of an AMD code object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelResources {
    /// The kernel.
    pub name: String,
    /// Bytes of arguments, hidden ones included.
    pub argument_bytes: u64,
    /// Bytes of local memory that are fixed at compile time.
    pub local_bytes: u64,
    /// Bytes of scratch memory of a thread.
    pub scratch_bytes: u64,
    /// Vector registers of a thread.
    pub vector_registers: u64,
    /// Scalar registers of a wave.
    pub scalar_registers: u64,
    /// Registers that were spilled, of both kinds.
    pub spills: u64,
    /// The largest block.
    pub max_block_threads: u64,
    /// Lanes of a wave.
    pub wave_size: u64,
}

/// Reads what `llvm-readelf --notes` prints for an AMD code object.
pub fn read_resources(text: &str) -> Vec<KernelResources> {
    let mut kernels: Vec<KernelResources> = Vec::new();
    let mut current = KernelResources::default();
    let mut inside = false;
    // Each kernel is a list item four columns in; its arguments are items below it and deeper in.
    for line in text.lines() {
        let depth = line.len() - line.trim_start().len();
        let item = line.trim_start().starts_with("- ");
        let field = line.trim_start().trim_start_matches("- ");
        if field.starts_with("amdhsa.kernels:") {
            inside = true;
            continue;
        }
        if !inside {
            continue;
        }
        if depth < 2 {
            inside = field.starts_with('-');
        }
        if item && depth <= 2 && !current.name.is_empty() {
            kernels.push(std::mem::take(&mut current));
        }
        if depth > 4 || !inside {
            continue;
        }
        let Some((name, value)) = field.split_once(':') else { continue };
        let value = value.trim();
        let number = || value.parse().unwrap_or_default();
        match name {
            ".name" => value.clone_into(&mut current.name),
            ".kernarg_segment_size" => current.argument_bytes = number(),
            ".group_segment_fixed_size" => current.local_bytes = number(),
            ".private_segment_fixed_size" => current.scratch_bytes = number(),
            ".vgpr_count" => current.vector_registers = number(),
            ".sgpr_count" => current.scalar_registers = number(),
            ".vgpr_spill_count" | ".sgpr_spill_count" => current.spills += number(),
            ".max_flat_workgroup_size" => current.max_block_threads = number(),
            ".wavefront_size" => current.wave_size = number(),
            _ => {}
        }
    }
    if !current.name.is_empty() {
        kernels.push(current);
    }
    kernels
}

/// One of LLVM's tools failed on an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} on {}: {problem}", program.display(), object.display())]
pub struct DisassemblyError {
    pub program: PathBuf,
    pub object: PathBuf,
    pub problem: String,
}

/// Disassembles an AMD object that lies in the cache. `Ok(None)`: LLVM's disassembler is not installed.
///
/// # Errors
/// The disassembler failed.
pub fn disassemble(search: &ToolSearch, object: &CodeObject) -> Result<Option<String>, DisassemblyError> {
    run_llvm_tool(search, "llvm-objdump", "-d", &object.directory)
}

/// The metadata of an AMD object that lies in the cache. `Ok(None)`: LLVM's reader is not installed.
///
/// # Errors
/// The reader failed.
pub fn resources(
    search: &ToolSearch,
    object: &CodeObject,
) -> Result<Option<Vec<KernelResources>>, DisassemblyError> {
    let text = run_llvm_tool(search, "llvm-readelf", "--notes", &object.directory)?;
    Ok(text.map(|text| read_resources(&text)))
}

/// Runs `name` or `name-<version>`, newest first, on the object in `directory`. `Ok(None)`: there is none.
fn run_llvm_tool(
    search: &ToolSearch,
    name: &str,
    option: &str,
    directory: &Path,
) -> Result<Option<String>, DisassemblyError> {
    let find = |name: &str, folders: &[PathBuf]| {
        folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
    };
    let rocm: Vec<_> = search.rocm.iter().map(|root| root.join("llvm/bin")).collect();
    let versioned = || (15..=32).rev().map(|version| format!("{name}-{version}"));
    // A bare name may be an old version that cannot read new objects.
    let found = find(name, &rocm)
        .or_else(|| versioned().find_map(|name| find(&name, &search.path)))
        .or_else(|| find(name, &search.path));
    let Some(program) = found else { return Ok(None) };
    let object = directory.join("kernel.co");
    let failed = |problem| DisassemblyError { program: program.clone(), object: object.clone(), problem };
    let output = Command::new(&program).arg(option).arg(&object).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))));
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
0000000000001900 <publish>:
	global_store_dwordx4 v[0:1], v[2:5], off                   // 000000001900: DC7C8000
	buffer_wbl2 sc0 sc1                                        // 000000001908: E0A08000
	s_waitcnt vmcnt(0) lgkmcnt(0)                              // 000000001910: BF8C0070
	s_barrier                                                  // 000000001914: BF8A0000
	global_store_dwordx2 v[0:1], v[2:3], off sc0 sc1           // 000000001918: DE748000
	s_endpgm                                                   // 000000001920: BF810000
";

    fn rules(text: &str) -> Vec<IsaRule> {
        check_disassembly(text).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn waits_that_are_there_pass() {
        assert_eq!(rules(GOOD), []);
        assert_eq!(
            rules(&GOOD.replace("s_waitcnt vmcnt(0) lgkmcnt(0)", "s_waitcnt vmcnt(0) expcnt(0) lgkmcnt(0)")),
            []
        );
        let newer = GOOD.replace("buffer_wbl2 sc0 sc1", "global_wb scope:SCOPE_SYS");
        assert_eq!(rules(&newer.replace("s_waitcnt vmcnt(0) lgkmcnt(0)", "s_wait_storecnt 0x0")), []);
    }

    #[test]
    fn a_release_by_every_wave_is_seen_and_its_mutants_are_not() {
        assert_eq!(wave_releases(GOOD, "publish"), 1);
        assert_eq!(wave_releases(GOOD, "other"), 0);
        for (part, mutant) in [
            // The fence dropped, its scope too small, the wait removed.
            ("\tbuffer_wbl2 sc0 sc1                                        // 000000001908: E0A08000\n", ""),
            ("buffer_wbl2 sc0 sc1 ", "buffer_wbl2 sc1 "),
            ("s_waitcnt vmcnt(0) lgkmcnt(0)", "s_waitcnt lgkmcnt(0)"),
            // Thread 0 alone: the barrier comes first, then a branch around the fence.
            (
                "buffer_wbl2 sc0 sc1 ",
                "s_barrier\n\ts_cbranch_execz 3\n\tbuffer_wbl2 sc0 sc1\n\ts_cbranch_execz 3 ",
            ),
        ] {
            let text = GOOD.replace(part, mutant);
            assert_ne!(text, GOOD, "{part}");
            // A sole write-back elsewhere shows that the architecture has one.
            let text = format!("{text}<x>:\n\tbuffer_wbl2 sc0 sc1\n");
            assert_eq!(wave_releases(&text, "publish"), 0, "{mutant}");
        }
        // gfx11 has only the wait.
        let older = GOOD.replace("buffer_wbl2 sc0 sc1 ", "s_nop 0 ");
        assert_eq!(wave_releases(&older, "publish"), 1);
    }

    #[test]
    fn instructions_after_a_loop_are_not_in_it() {
        // A loop of lines 2 to 5, with a smaller one of line 3 and 4 inside.
        const LOOPS: &str = "\
0000000000001900 <turns>:
\tglobal_load_dwordx2 v[0:1], v[2:3], off                    // 000000001904: DC7C8000
\tglobal_store_dwordx2 v[0:1], v[2:3], off                   // 000000001908: DC7C8000
\ts_cbranch_execnz 65534                                     // 00000000190C: BF89FFFE <turns+0x8>
\ts_cbranch_vccz 65533                                       // 000000001910: BF86FFFD <turns+0x4>
\tglobal_store_dwordx2 v[4:5], v[2:3], off                   // 000000001914: DC7C8000
\ts_endpgm                                                   // 000000001918: BF810000
";
        let found: Vec<_> = (1..=8).map(|line| is_in_loop(LOOPS, line, &[])).collect();
        assert_eq!(found, [false, true, true, true, true, false, false, false]);
        assert!(is_in_loop(LOOPS, 3, &[2, 5]) && !is_in_loop(LOOPS, 2, &[3]));
        let ends =
            LOOPS.replace("s_cbranch_execnz 65534 ", "s_branch 3 ").replace("turns+0x8>", "turns+0x18>");
        assert!((1..=8).all(|line| !is_in_loop(&ends, line, &[])));
    }

    #[test]
    fn mutants_are_caught() {
        let bad = [IsaRule::WriteBackNotAwaited];
        for (from, to) in [
            ("	s_waitcnt vmcnt(0) lgkmcnt(0) ", "	s_nop 0 "),
            ("vmcnt(0) lgkmcnt(0)", "vmcnt(1) lgkmcnt(0)"),
            ("vmcnt(0) lgkmcnt(0)", "lgkmcnt(0)"),
            ("s_waitcnt vmcnt(0) lgkmcnt(0)", "s_cbranch_execz 4"),
            ("s_waitcnt vmcnt(0) lgkmcnt(0)", "global_atomic_add_x2 v0, v[1:2], s[0:1]"),
            ("s_waitcnt vmcnt(0) lgkmcnt(0)", "s_wait_loadcnt 0x0"),
        ] {
            let mutant = GOOD.replace(from, to);
            assert_ne!(mutant, GOOD);
            assert_eq!(rules(&mutant), bad, "{to}");
        }
        assert_eq!(rules(&GOOD.replace("global_store_dwordx4", "flat_store_dwordx4")), [IsaRule::Flat]);
        assert_eq!(rules(&GOOD.replace("global_store_dwordx4", "scratch_store_dwordx4")), [IsaRule::Scratch]);
        let finding = &check_disassembly(&GOOD.replace("vmcnt(0) ", ""))[0];
        assert_eq!(
            (finding.function.as_str(), finding.line, finding.instruction.as_str()),
            ("publish", 5, "s_barrier")
        );
    }

    #[test]
    fn metadata_is_read() {
        let text = "    AMDGPU Metadata:
        ---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .name:           parameter
        .offset:         0
        .size:           32
    .group_segment_fixed_size: 0
    .kernarg_segment_size: 32
    .max_flat_workgroup_size: 256
    .name:           first
    .private_segment_fixed_size: 16
    .sgpr_count:     14
    .sgpr_spill_count: 1
    .vgpr_count:     5
    .vgpr_spill_count: 2
    .wavefront_size: 64
  - .agpr_count:     0
    .name:           second
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
";
        let kernels = read_resources(text);
        assert_eq!(kernels.len(), 2);
        assert_eq!(
            kernels[0],
            KernelResources {
                name: "first".into(),
                argument_bytes: 32,
                local_bytes: 0,
                scratch_bytes: 16,
                vector_registers: 5,
                scalar_registers: 14,
                spills: 3,
                max_block_threads: 256,
                wave_size: 64,
            }
        );
        assert_eq!(kernels[1].name, "second");
    }
}
