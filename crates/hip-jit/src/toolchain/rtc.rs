//! Compilers that are libraries: NVRTC and hiprtc. They have the same interface under two prefixes.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use sha2::{Digest as _, Sha256};

use super::{
    CompileFailure, CompileJob, CompileOutput, CompilerIdentity, OptionChoices, Toolchain, why_failed,
};
use crate::error::FailureReason;
use crate::target::Target;

type Program = *mut c_void;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RtcKind {
    Nvrtc,
    Hiprtc,
}

impl RtcKind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Nvrtc => "nvrtc",
            Self::Hiprtc => "hiprtc",
        }
    }

    /// The part of the name of the functions that give the code.
    fn code(self) -> &'static str {
        match self {
            Self::Nvrtc => "CUBIN",
            Self::Hiprtc => "Code",
        }
    }
}

/// The functions, by their C names without the prefix.
#[derive(Clone, Copy, Debug)]
struct Api {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    code_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    code: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    supported_count: Option<unsafe extern "C" fn(*mut c_int) -> c_int>,
    supported: Option<unsafe extern "C" fn(*mut c_int) -> c_int>,
}

#[derive(Debug)]
pub(super) struct RtcLibrary {
    kind: RtcKind,
    api: Api,
    /// Never unloaded: both libraries keep threads and caches of their own.
    _library: ManuallyDrop<Library>,
    identity: CompilerIdentity,
}

impl RtcLibrary {
    /// Opens a library by path or by bare name (the loader's own search).
    pub(super) fn open(kind: RtcKind, library: &Path, target: &Target) -> Result<Self, String> {
        if library.is_absolute() && !library.exists() {
            return Err("no such file".to_owned());
        }
        if kind == RtcKind::Nvrtc && library.is_absolute() {
            preload_builtins(library)?;
        }
        // SAFETY: the library is a vendor's compiler; its initialisers have no preconditions.
        let handle = unsafe { Library::open(Some(library), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| anabranch_hip::with_causes(&error))?;
        let handle = ManuallyDrop::new(handle);
        let api = Api::load(&handle, kind)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: nvrtcVersion and hiprtcVersion write two ints.
        let code = unsafe { (api.version)(&raw mut major, &raw mut minor) };
        if code != 0 {
            return Err(format!("{}Version returns {code}", kind.prefix()));
        }
        check_architecture(&api, target)?;
        let (location, fingerprint) = fingerprint(&api, library)?;
        let version = format!("{major}.{minor}, {fingerprint}");
        let identity = CompilerIdentity { kind: kind.prefix(), version, location };
        Ok(Self { kind, api, _library: handle, identity })
    }

    fn words(&self, code: c_int) -> String {
        // SAFETY: both libraries return a static C string for any code.
        let text = unsafe { (self.api.error_string)(code) };
        if text.is_null() {
            return format!("code {code}");
        }
        // SAFETY: not null; a static C string as above.
        format!("{} ({code})", unsafe { CStr::from_ptr(text) }.to_string_lossy())
    }
}

impl Api {
    fn load(library: &Library, kind: RtcKind) -> Result<Self, String> {
        let prefix = kind.prefix();
        let code = kind.code();
        macro_rules! function {
            ($($name:tt)*) => {{
                let name = format!($($name)*);
                // SAFETY: the field that this goes to has the signature that the vendor documents for the name.
                unsafe { library.get(name.as_bytes()) }.map(|symbol| *symbol).map_err(|_| format!("has no {name}"))
            }};
        }
        Ok(Self {
            version: function!("{prefix}Version")?,
            error_string: function!("{prefix}GetErrorString")?,
            create: function!("{prefix}CreateProgram")?,
            compile: function!("{prefix}CompileProgram")?,
            destroy: function!("{prefix}DestroyProgram")?,
            log_size: function!("{prefix}GetProgramLogSize")?,
            log: function!("{prefix}GetProgramLog")?,
            code_size: function!("{prefix}Get{code}Size")?,
            code: function!("{prefix}Get{code}")?,
            supported_count: function!("{prefix}GetNumSupportedArchs").ok(),
            supported: function!("{prefix}GetSupportedArchs").ok(),
        })
    }
}

/// A wheel's NVRTC looks for its builtins by bare name; loaded before by path, the loader finds them.
fn preload_builtins(library: &Path) -> Result<(), String> {
    let folder = library.parent().unwrap_or(Path::new("/"));
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    let mut names: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    names.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libnvrtc-builtins.so") && !name.contains("alt")
    });
    names.sort();
    for path in names {
        // SAFETY: a data library of the same vendor; its initialisers have no preconditions.
        let opened = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| {
            format!("its {} does not load: {}", path.display(), anabranch_hip::with_causes(&error))
        })?;
        let _ = ManuallyDrop::new(opened);
    }
    Ok(())
}

fn check_architecture(api: &Api, target: &Target) -> Result<(), String> {
    let (Some(count), Some(list), Some(version)) =
        (api.supported_count, api.supported, target.base().strip_prefix("sm_"))
    else {
        return Ok(());
    };
    let wanted: c_int = version.trim_end_matches(['a', 'f']).parse().unwrap_or_default();
    let mut length = 0;
    // SAFETY: the call writes one int.
    if unsafe { count(&raw mut length) } != 0 {
        return Ok(());
    }
    let mut known: Vec<c_int> = vec![0; length.max(0) as usize];
    // SAFETY: the buffer holds as many ints as the library just asked for.
    if unsafe { list(known.as_mut_ptr()) } == 0 && !known.contains(&wanted) {
        return Err(format!("does not know {target}; it knows {known:?}"));
    }
    Ok(())
}

/// The version function knows no patch level, so the library's bytes (ends and length) stand in for it.
fn fingerprint(api: &Api, library: &Path) -> Result<(String, String), String> {
    let path = if library.is_absolute() { library.to_owned() } else { mapped_file(api)? };
    let describe = || -> std::io::Result<String> {
        const SAMPLE: u64 = 1 << 20;
        let mut file = File::open(&path)?;
        let length = file.metadata()?.len();
        let mut hash = Sha256::new();
        for start in [0, length.saturating_sub(SAMPLE)] {
            let mut sample = Vec::new();
            file.seek(SeekFrom::Start(start))?;
            (&mut file).take(SAMPLE).read_to_end(&mut sample)?;
            hash.update(&sample);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let first = digest.iter().take(8).fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        Ok(format!("{length} bytes, {first:016x}"))
    };
    let text = describe().map_err(|error| format!("cannot be identified: {}: {error}", path.display()))?;
    Ok((path.display().to_string(), text))
}

/// The file in which the version function lies.
fn mapped_file(api: &Api) -> Result<PathBuf, String> {
    let address = api.version as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
    maps.lines()
        .find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            let inside = (number(start)?..number(end)?).contains(&address);
            let path = &rest[rest.find('/')?..];
            inside.then(|| PathBuf::from(path))
        })
        .ok_or_else(|| "cannot be identified: its file is not known".to_owned())
}

impl Toolchain for RtcLibrary {
    fn identity(&self) -> &CompilerIdentity {
        &self.identity
    }

    fn options(&self, target: &Target, choices: OptionChoices) -> Vec<String> {
        match self.kind {
            RtcKind::Nvrtc => {
                let mut options = vec![format!("--gpu-architecture={target}")];
                options.extend(["--std=c++17", "--fmad=false"].map(str::to_owned));
                if choices.debug_info {
                    options.push("--generate-line-info".to_owned());
                }
                options
            }
            RtcKind::Hiprtc => {
                let mut options = vec![format!("--offload-arch={target}")];
                options
                    .extend(["-std=c++17", "-O3", "-ffp-contract=off", "-Werror=undef"].map(str::to_owned));
                if let Some(version) = choices.code_object_version {
                    options.push(format!("-mcode-object-version={version}"));
                }
                if choices.debug_info {
                    options.push("-g".to_owned());
                }
                options
            }
        }
    }

    fn compile(&self, job: &CompileJob<'_>) -> Result<CompileOutput, CompileFailure> {
        let command = format!("{} {}", self.identity.location, job.options.join(" "));
        let mut open = OpenProgram { library: self, raw: std::ptr::null_mut() };
        open.compile(job)
            .map(|(object, log)| CompileOutput { object, log, command: command.clone() })
            .map_err(|(reason, log)| CompileFailure { reason, log, command })
    }
}

struct OpenProgram<'a> {
    library: &'a RtcLibrary,
    raw: Program,
}

impl Drop for OpenProgram<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the program was made by create and is destroyed once, here.
            unsafe { (self.library.api.destroy)(&raw mut self.raw) };
        }
    }
}

impl OpenProgram<'_> {
    fn compile(&mut self, job: &CompileJob<'_>) -> Result<(Vec<u8>, String), (FailureReason, String)> {
        let not_run = |problem: String| (FailureReason::NotRun { problem }, String::new());
        let strings = |texts: Vec<&str>| -> Result<Vec<CString>, (FailureReason, String)> {
            texts
                .into_iter()
                .map(|text| CString::new(text).map_err(|error| not_run(error.to_string())))
                .collect()
        };
        let pointers =
            |texts: &[CString]| -> Vec<*const c_char> { texts.iter().map(|text| text.as_ptr()).collect() };
        let main = strings(vec![&job.rendered.text, &job.rendered.file])?;
        let names = strings(job.rendered.headers.keys().map(String::as_str).collect())?;
        let texts = strings(job.rendered.headers.values().map(String::as_str).collect())?;
        let options = strings(job.options.iter().map(String::as_str).collect())?;
        let api = &self.library.api;
        // SAFETY: C strings and arrays of them that live across the call, which copies them; two arrays of
        // the stated length.
        let code = unsafe {
            (api.create)(
                &raw mut self.raw,
                main[0].as_ptr(),
                main[1].as_ptr(),
                names.len() as c_int,
                pointers(&texts).as_ptr(),
                pointers(&names).as_ptr(),
            )
        };
        if code != 0 {
            return Err(not_run(self.library.words(code)));
        }
        // SAFETY: the program is live; an array of C strings of the stated length that lives across the call.
        let code = unsafe { (api.compile)(self.raw, options.len() as c_int, pointers(&options).as_ptr()) };
        let log = self.bytes(api.log_size, api.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        if code != 0 {
            let said = if log.trim().is_empty() { self.library.words(code) } else { log };
            return Err((why_failed(code, &said), said));
        }
        match self.bytes(api.code_size, api.code) {
            Ok(object) => Ok((object, log)),
            Err(code) => Err((FailureReason::BadObject { problem: self.library.words(code) }, log)),
        }
    }

    fn bytes(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, c_int> {
        let mut length = 0usize;
        // SAFETY: the program is live; the call writes one size.
        let code = unsafe { size(self.raw, &raw mut length) };
        if code != 0 {
            return Err(code);
        }
        let mut bytes = vec![0u8; length];
        // SAFETY: the buffer has the size that the library asked for.
        let code = unsafe { get(self.raw, bytes.as_mut_ptr().cast()) };
        if code != 0 { Err(code) } else { Ok(bytes) }
    }
}
