//! What the tests share: a unit without the prelude, folders, compilers that are scripts.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anabranch_hip_jit::{
    DevicePointer, Header, Jit, JitConfig, KernelSpec, Target, ToolSearch, device_struct, kernel_unit,
};

device_struct! {
    /// Arguments of the test kernel.
    pub struct ScaleArgs {
        pub values: DevicePointer<u32>,
        pub count: u32,
        pub factor: u32,
    }
}

/// A kernel for the host in the raw form of the kernel ABI.
pub const SOURCE: &str = r#"
#include "test/scale.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
struct Parameter { unsigned launch[4]; ScaleArgs arguments; };  // of ANABRANCH_KERNEL(test_scale, ScaleArgs, 256)
EXPORT void test_scale(AnabranchHostLane* lane, const void* pointer) {
    const Parameter* parameter = static_cast<const Parameter*>(pointer);
    unsigned index = lane->block * lane->block_threads + lane->thread;
    if (index < parameter->arguments.count) scale(parameter->arguments.values + index, parameter->arguments.factor);
}
extern "C" __attribute__((visibility("default"))) const AnabranchHostKernel test_scale_host_kernel;
const AnabranchHostKernel test_scale_host_kernel =
    {ANABRANCH_HOST_ABI, ANABRANCH_WAVE_SIZE, sizeof(Parameter), 256, test_scale};
"#;

pub const HEADERS: &[Header] = &[
    Header {
        name: "test/scale.h",
        text: "#pragma once\n#include \"test/host_abi.h\"\n\
               static inline void scale(unsigned* value, unsigned factor) { *value *= factor * STEP; }\n",
    },
    Header { name: "test/host_abi.h", text: include_str!("../../device/anabranch/host_abi.h") },
];

kernel_unit! {
    pub static UNIT: "test_scale", SOURCE, &[HEADERS];
    pub const SCALE: Kernel<ScaleArgs> = "test_scale";
}

pub fn spec() -> KernelSpec {
    KernelSpec::new(&UNIT).with("STEP", 1)
}

pub fn host() -> Target {
    "host".parse().unwrap()
}

/// A folder that goes with the value.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("anabranch-jit-test-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A compiler that is a shell script; `body` runs for a compilation. Every compilation adds a line to `runs`.
    pub fn compiler(&self, version: &str, body: &str) -> ToolSearch {
        let runs = self.path("runs");
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n*--version) echo '{version}'; exit 0;;\n*-dumpmachine) echo test; exit 0;;\nesac\n\
             echo run >> {}\n{body}\n",
            runs.display()
        );
        let program = self.program(&format!("c++-{}", version.len()), &script);
        search(Some(program.to_str().unwrap()))
    }

    /// A program of this text.
    pub fn program(&self, name: &str, text: &str) -> PathBuf {
        let program = self.path(name);
        // A process of its own writes it: a test beside that forks would keep this process's descriptor open for writing,
        // and a file that is open for writing cannot run (ETXTBSY).
        let written = Command::new("sh")
            .args(["-c", r#"printf %s "$1" > "$0" && chmod 755 "$0""#])
            .args([program.as_os_str(), text.as_ref()])
            .status();
        assert!(written.unwrap().success());
        program
    }

    /// How often compilers of this folder ran.
    pub fn runs(&self) -> usize {
        fs::read_to_string(self.path("runs")).map_or(0, |text| text.lines().count())
    }

    pub fn jit(&self, search: ToolSearch) -> Jit {
        Jit::new(self.config(), search)
    }

    pub fn config(&self) -> JitConfig {
        let mut config = JitConfig::new(self.path("cache"));
        config.compile_deadline = Duration::from_secs(30);
        config
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The real compiler, behind the script's counting.
pub const REAL: &str = "exec c++ \"$@\"";

pub fn search(cxx: Option<&str>) -> ToolSearch {
    ToolSearch {
        cxx: cxx.map(str::to_owned),
        path: vec!["/usr/local/bin".into(), "/usr/bin".into(), "/bin".into()],
        ..ToolSearch::default()
    }
}

/// Folders of entries in a cache.
pub fn entries(root: &Path) -> Vec<PathBuf> {
    let list = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).map_or(Vec::new(), |all| all.map(|entry| entry.unwrap().path()).collect())
    };
    let hidden = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with('.');
    let targets =
        list(root).iter().flat_map(|schema| list(schema)).filter(|path| !hidden(path)).collect::<Vec<_>>();
    targets.iter().flat_map(|target| list(target)).collect()
}

/// Copies a folder and what is in it.
pub fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut all| all.next().is_none())
}
