//! Opening cuBLAS at run time, and a product by it.
#![expect(
    unsafe_code,
    reason = "functions of a library that is opened at run time have the types that its header says"
)]

use core::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use anabranch::Environment;
use anabranch_hip::{Device, DeviceBuffer, Stream};
use anyhow::{Context as _, bail};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// The versions that are known, the newest first; the functions below have had these signatures since version 11 (`cublas_api.h`).
const VERSIONS: [u32; 3] = [13, 12, 11];
/// Where NVIDIA's wheels (`nvidia-cublas`, `nvidia-cublas-cu12`) put it, below a `site-packages` folder.
const IN_SITE_PACKAGES: [&str; 2] = ["nvidia/cu13/lib", "nvidia/cublas/lib"];

// Enumerators of `cublas_api.h` and `library_types.h`.
const SUCCESS: c_int = 0;
const OP_N: c_int = 0;
const OP_T: c_int = 1;
const R_32F: c_int = 0;
const R_16BF: c_int = 14;
const COMPUTE_32F: c_int = 68;
const GEMM_DEFAULT: c_int = -1;

/// Bytes of scratch memory: what cuBLAS's documentation advises for its largest GPUs. A captured call must not allocate its own.
const WORKSPACE_BYTES: usize = 32 << 20;

type Handle = *mut c_void;
type GemmEx = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// The functions that are called, by their C names.
#[derive(Clone, Copy, Debug)]
#[expect(non_snake_case, reason = "fields have the C names")]
struct Functions {
    cublasCreate_v2: unsafe extern "C" fn(*mut Handle) -> c_int,
    cublasDestroy_v2: unsafe extern "C" fn(Handle) -> c_int,
    cublasGetVersion_v2: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    cublasSetStream_v2: unsafe extern "C" fn(Handle, *mut c_void) -> c_int,
    cublasSetWorkspace_v2: unsafe extern "C" fn(Handle, *mut c_void, usize) -> c_int,
    cublasGemmEx: GemmEx,
}

impl Functions {
    /// The first missing one is the error.
    fn load(library: &Library) -> Result<Self, String> {
        macro_rules! function {
            ($name:ident) => {
                // SAFETY: the field has the type that the header gives for the name.
                *unsafe { library.get(stringify!($name)) }
                    .map_err(|_| format!("has no {}", stringify!($name)))?
            };
        }
        Ok(Self {
            cublasCreate_v2: function!(cublasCreate_v2),
            cublasDestroy_v2: function!(cublasDestroy_v2),
            cublasGetVersion_v2: function!(cublasGetVersion_v2),
            cublasSetStream_v2: function!(cublasSetStream_v2),
            cublasSetWorkspace_v2: function!(cublasSetWorkspace_v2),
            cublasGemmEx: function!(cublasGemmEx),
        })
    }
}

/// cuBLAS on one device. The library is never unloaded: it keeps state of its own.
#[derive(Debug)]
pub(super) struct Cublas {
    functions: Functions,
    handle: Handle,
    version: c_int,
    device: Device,
    workspace: DeviceBuffer,
}

impl Cublas {
    /// Opens the library that `named` names, or else the first that opens: by the loader's own search, then in Python's
    /// `site-packages`.
    ///
    /// # Errors
    /// Every candidate, and why it is none; cuBLAS's own.
    pub(super) fn open(
        device: &Device,
        named: Option<&Path>,
        environment: &Environment,
    ) -> anyhow::Result<Self> {
        let functions = functions(named, environment)?;
        let workspace = device.allocate(WORKSPACE_BYTES).context("cuBLAS's workspace")?;
        let mut handle = std::ptr::null_mut();
        let _current = device.guard()?;
        // SAFETY: the call writes one handle, for the device that is current.
        check("cublasCreate", unsafe { (functions.cublasCreate_v2)(&raw mut handle) })?;
        let mut opened = Self { functions, handle, version: 0, device: device.clone(), workspace };
        // SAFETY: the handle is live; the call writes one int.
        let code = unsafe { (functions.cublasGetVersion_v2)(handle, &raw mut opened.version) };
        check("cublasGetVersion", code)?;
        Ok(opened)
    }

    /// What it is called in reports.
    pub(super) fn describe(&self) -> String {
        // Major * 10000 + minor * 100 + patch, since version 11 of the header.
        format!("cuBLAS {}.{}", self.version / 10_000, self.version / 100 % 100)
    }

    /// `c = a * b^T` of square matrices in row-major order: bf16 in, f32 out. May be captured.
    ///
    /// # Errors
    /// cuBLAS's.
    pub(super) fn enqueue(
        &self,
        stream: &Stream,
        size: u32,
        (a, b, c): (&DeviceBuffer, &DeviceBuffer, &DeviceBuffer),
    ) -> anyhow::Result<()> {
        let n = c_int::try_from(size)?;
        let _current = self.device.guard()?;
        let functions = &self.functions;
        // SAFETY: handle and stream are live, and of one device.
        check("cublasSetStream", unsafe {
            (functions.cublasSetStream_v2)(self.handle, stream.raw().cast())
        })?;
        let workspace = self.workspace.address().as_ptr();
        // SAFETY: the workspace lives as long as the handle. It is set again because cublasSetStream resets it.
        let code = unsafe { (functions.cublasSetWorkspace_v2)(self.handle, workspace, WORKSPACE_BYTES) };
        check("cublasSetWorkspace", code)?;
        let (one, zero) = (1.0f32, 0.0f32);
        // What is row-major here is the transpose there, in columns: c^T = b * a^T.
        // SAFETY: the matrices have `size` rows and columns of these types (`Product::new`); the scalars are read in the call, which is
        // the handle's default.
        let code = unsafe {
            (functions.cublasGemmEx)(
                self.handle,
                OP_T,
                OP_N,
                n,
                n,
                n,
                (&raw const one).cast(),
                b.address().as_ptr(),
                R_16BF,
                n,
                a.address().as_ptr(),
                R_16BF,
                n,
                (&raw const zero).cast(),
                c.address().as_ptr(),
                R_32F,
                n,
                COMPUTE_32F,
                GEMM_DEFAULT,
            )
        };
        check("cublasGemmEx", code)
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        let Ok(_current) = self.device.guard() else { return };
        // SAFETY: the handle is live and ended once, here; callers have waited for their streams.
        let code = unsafe { (self.functions.cublasDestroy_v2)(self.handle) };
        if code != SUCCESS {
            tracing::warn!(code, "cublasDestroy failed");
        }
    }
}

fn check(call: &str, code: c_int) -> anyhow::Result<()> {
    if code == SUCCESS { Ok(()) } else { bail!("{call} returns {code}") }
}

fn functions(named: Option<&Path>, environment: &Environment) -> anyhow::Result<Functions> {
    let mut tried = Vec::new();
    for candidate in candidates(named, &environment.python_sites()) {
        match open_path(&candidate) {
            Ok(functions) => return Ok(functions),
            Err(why) => tried.push(format!("{}: {why}", candidate.display())),
        }
    }
    bail!("no cuBLAS, which the matrix product takes; tried {}", tried.join("; "))
}

fn open_path(path: &Path) -> Result<Functions, String> {
    if path.is_absolute() && !path.exists() {
        return Err("no such file".to_owned());
    }
    let open = |path: &Path| {
        // SAFETY: the library is NVIDIA's; its initialisers have no preconditions.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        library.map(ManuallyDrop::new).map_err(|error| anabranch_hip::with_distinct_causes(&error))
    };
    // It needs another library of the same folder, which the loader finds by name once it is open.
    if let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_absolute()) {
        let light = path.with_file_name(name.replacen("libcublas.", "libcublasLt.", 1));
        if light != *path && light.exists() {
            let _open = open(&light)?;
        }
    }
    Functions::load(&*open(path)?)
}

/// What is tried, in this order. A library that the user names is the only one.
fn candidates(named: Option<&Path>, python_sites: &[PathBuf]) -> Vec<PathBuf> {
    let names = || VERSIONS.into_iter().map(|version| format!("libcublas.so.{version}"));
    match named {
        Some(named) if named.is_dir() => names().map(|name| named.join(name)).collect(),
        Some(named) => vec![named.to_owned()],
        None => {
            let folders =
                python_sites.iter().flat_map(|site| IN_SITE_PACKAGES.map(|folder| site.join(folder)));
            let wheels = folders.flat_map(|folder| names().map(move |name| folder.join(name)));
            names().map(PathBuf::from).chain(wheels).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_comes_before_wheels_and_a_named_file_is_the_only_one() {
        let all = candidates(None, &[PathBuf::from("/site")]);
        assert_eq!(all[0], Path::new("libcublas.so.13"));
        assert_eq!(all.len(), 9);
        assert!(all[3..].iter().all(|path| path.starts_with("/site/nvidia")), "{all:?}");
        assert_eq!(candidates(Some(Path::new("/opt/libcublas.so")), &[]), [Path::new("/opt/libcublas.so")]);
    }

    #[test]
    fn invalid_cublas_library_is_named_with_the_reason() {
        let refused =
            |path: &str| functions(Some(Path::new(path)), &Environment::default()).unwrap_err().to_string();
        assert!(refused("/nonexistent/libcublas.so.12").contains("libcublas.so.12: no such file"));
        assert!(refused("libc.so.6").contains("libc.so.6: has no cublasCreate_v2"));
    }
}
