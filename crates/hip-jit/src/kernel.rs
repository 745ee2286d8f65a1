//! Kernels with the type of their arguments: declared by [`kernel_unit!`], launched as [`LoadedKernel`].
//!
//! [`kernel_unit!`]: crate::kernel_unit

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use anabranch_hip::{LaunchShape, Stream};

use crate::constants::{Constant, first_other};
use crate::error::{Error, Result};
use crate::layout::DeviceStruct;
use crate::load::LOCAL_RESERVED_BYTES;
use crate::source::KernelUnit;

/// The largest parameter that every runtime takes.
const MAX_PARAMETER_BYTES: usize = 4096;

/// An entry point of a unit, with the struct that it takes.
pub struct Kernel<A> {
    unit: &'static KernelUnit,
    entry: &'static str,
    arguments: PhantomData<fn(A)>,
}

impl<A> Clone for Kernel<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Kernel<A> {}

impl<A> fmt::Debug for Kernel<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.unit.name, self.entry)
    }
}

impl<A: DeviceStruct> Kernel<A> {
    /// The kernel of that C name. Make it a constant: the check is then done by the compiler.
    ///
    /// # Panics
    /// The unit's text has no `ANABRANCH_KERNEL(entry, A, ...)`.
    pub const fn new(unit: &'static KernelUnit, entry: &'static str) -> Self {
        assert!(
            declares(
                unit.source.as_bytes(),
                [b"ANABRANCH_KERNEL(", entry.as_bytes(), b", ", A::NAME.as_bytes(), b","]
            ),
            "the unit has no kernel of this name that takes this struct"
        );
        Self { unit, entry, arguments: PhantomData }
    }

    /// The unit that it is compiled with.
    pub const fn unit(self) -> &'static KernelUnit {
        self.unit
    }

    /// Its C name.
    pub const fn entry(self) -> &'static str {
        self.entry
    }
}

/// Whether the parts occur in the text, one right after the other.
const fn declares(text: &[u8], parts: [&[u8]; 5]) -> bool {
    let mut start = 0;
    while start < text.len() {
        let (mut part, mut at) = (0, start);
        while part < parts.len() {
            let mut byte = 0;
            while byte < parts[part].len() && at < text.len() && text[at] == parts[part][byte] {
                byte += 1;
                at += 1;
            }
            if byte < parts[part].len() {
                break;
            }
            part += 1;
        }
        if part == parts.len() {
            return true;
        }
        start += 1;
    }
    false
}

/// What stands before the arguments in a kernel's parameter (`LaunchHeader` of `anabranch/grid.h`).
#[repr(C)]
struct LaunchHeader {
    grid_blocks: u32,
    block_threads: u32,
    local_bytes: u32,
    reserved: u32,
}

/// A kernel's only parameter, as `ANABRANCH_KERNEL` declares it.
#[repr(C)]
struct Parameter<A> {
    header: LaunchHeader,
    arguments: A,
}

struct Loaded {
    kernel: anabranch_hip::Kernel,
    /// What the arguments of every launch have, whether the kernel was compiled with it or not.
    constants: Vec<Constant>,
}

/// A kernel on one device. Keeps its module loaded.
pub struct LoadedKernel<A> {
    loaded: Arc<Loaded>,
    arguments: PhantomData<fn(A)>,
}

impl<A> Clone for LoadedKernel<A> {
    fn clone(&self) -> Self {
        Self { loaded: self.loaded.clone(), arguments: PhantomData }
    }
}

impl<A> fmt::Debug for LoadedKernel<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl<A> LoadedKernel<A> {
    pub(crate) fn new(kernel: anabranch_hip::Kernel, constants: Vec<Constant>) -> Self {
        Self { loaded: Arc::new(Loaded { kernel, constants }), arguments: PhantomData }
    }

    /// Its C name.
    pub fn name(&self) -> &str {
        self.loaded.kernel.name()
    }

    /// The runtime's handle, for queries.
    pub fn raw(&self) -> &anabranch_hip::Kernel {
        &self.loaded.kernel
    }

    /// How many blocks of this shape one multiprocessor holds at once. `local_bytes` as in [`Self::launch`].
    ///
    /// # Errors
    /// [`Error::Launch`].
    pub fn blocks_per_multiprocessor(&self, block_threads: u32, local_bytes: u32) -> Result<u32> {
        let local_bytes = local_bytes.saturating_add(LOCAL_RESERVED_BYTES);
        self.loaded
            .kernel
            .blocks_per_multiprocessor(block_threads, local_bytes)
            .map_err(|error| self.failed(error))
    }

    fn failed(&self, error: anabranch_hip::Error) -> Error {
        Error::Launch { entry: self.name().to_owned(), cause: Arc::new(error) }
    }
}

impl<A: DeviceStruct> LoadedKernel<A> {
    /// Puts one launch on the stream; the runtime copies the arguments before the call returns. Never compiles, allocates, or
    /// touches a file; may be captured. Re-entrant: no launch changes the kernel.
    ///
    /// `shape.local_bytes` is what the kernel itself uses; the prelude's own bytes are added here.
    ///
    /// # Errors
    /// [`Error::Shape`] for an empty grid or a block that is no multiple of the wave; [`Error::Constant`]; [`Error::Launch`].
    ///
    /// # Safety
    /// Every address in `arguments` must stay valid, for the accesses that the kernel makes, until the kernel is done.
    pub unsafe fn launch(&self, shape: LaunchShape, stream: &Stream, arguments: &A) -> Result<()> {
        const {
            assert!(
                size_of::<Parameter<A>>() == size_of::<LaunchHeader>() + size_of::<A>(),
                "the size of the argument struct is a multiple of 4 bytes"
            );
            assert!(align_of::<A>() <= 8, "the argument struct is aligned to at most 8 bytes");
            assert!(size_of::<Parameter<A>>() <= MAX_PARAMETER_BYTES, "the argument struct is too large");
        }
        let LaunchShape { grid_blocks, block_threads, local_bytes } = shape;
        let refuse = |problem| Err(Error::Shape { entry: self.name().to_owned(), problem });
        if grid_blocks == 0 || block_threads == 0 {
            return refuse("a launch has at least one block and one thread");
        }
        if !block_threads.is_multiple_of(self.loaded.kernel.device().wave_size()) {
            return refuse("the threads of a block are a multiple of the wave size");
        }
        let Some(all_local) = local_bytes.checked_add(LOCAL_RESERVED_BYTES) else {
            return refuse("local memory is larger than 4 GiB");
        };
        if let Some(constant) = first_other(&self.loaded.constants, arguments) {
            let entry = self.name().to_owned();
            let (constant, given) = (format!("{constant:?}"), constant.value_in(arguments));
            return Err(Error::Constant { entry, constant, given });
        }
        let parameter = Parameter {
            header: LaunchHeader { grid_blocks, block_threads, local_bytes, reserved: 0 },
            arguments: *arguments,
        };
        let size = size_of::<Parameter<A>>();
        // SAFETY: a repr(C) struct of plain data without padding: its size is that of its fields (checked above).
        let bytes = unsafe { std::slice::from_raw_parts((&raw const parameter).cast::<u8>(), size) };
        // SAFETY: the bytes are laid out as ANABRANCH_KERNEL declares the parameter: the kernel takes `A` (`Kernel::new` checks
        // it); the caller vouches for the addresses; the device compiler asserts the layout of `A`.
        unsafe { self.loaded.kernel.launch(LaunchShape { local_bytes: all_local, ..shape }, stream, bytes) }
            .map_err(|error| self.failed(error))
    }
}

/// Declares a `.hip` file's [`KernelUnit`] and its kernels as [`Kernel`] constants.
///
/// The unit's entry points are the constants', and its layouts those of their argument structs with all structs that these name. The
/// compiler checks that the file has `ANABRANCH_KERNEL(entry, Struct, ...)` for each constant.
///
/// ```
/// use anabranch_hip_jit::{DevicePointer, device_struct, kernel_unit};
///
/// device_struct! {
///     /// Arguments of the scale kernel.
///     pub struct ScaleArgs {
///         /// `count` values.
///         pub values: DevicePointer<f32>,
///         pub count: u32,
///         pub factor: f32,
///     }
/// }
///
/// kernel_unit! {
///     /// Scales values in place.
///     pub static SCALE_UNIT: "scale", concat!(
///         "#include \"anabranch/prelude.h\"\n",
///         "ANABRANCH_KERNEL(scale, ScaleArgs, 256) {\n",
///         "    if (grid.thread < args.count) args.values[grid.thread] *= args.factor;\n",
///         "}\n",
///     );
///     pub const SCALE: Kernel<ScaleArgs> = "scale";
/// }
/// assert_eq!(SCALE.unit().entries, ["scale"]);
/// ```
///
/// Headers other than the prelude's come after the text: `include_str!("../kernels/scale.hip"), &[HEADERS, OTHERS]`; structs that
/// headers name and no argument struct does, after those: `layouts [Header, Item]`.
///
/// A constant of another struct than the kernel's does not compile:
///
/// ```compile_fail,E0080
/// # use anabranch_hip_jit::{device_struct, kernel_unit};
/// device_struct! { pub struct Right { pub count: u64 } }
/// device_struct! { pub struct Wrong { pub count: u64 } }
/// kernel_unit! {
///     static UNIT: "unit", "ANABRANCH_KERNEL(kernel, Right, 64) {}";
///     const KERNEL: Kernel<Wrong> = "kernel";
/// }
/// # let _ = KERNEL;
/// ```
#[macro_export]
macro_rules! kernel_unit {
    (@headers) => { &[] };
    (@headers $headers:expr) => { $headers };
    (
        $(#[$meta:meta])*
        $visibility:vis static $unit:ident: $name:literal, $source:expr $(, $headers:expr $(, layouts [$($layout:ty),+ $(,)?])?)?;
        $( $(#[$kernel_meta:meta])* $kernel_visibility:vis const $kernel:ident: Kernel<$arguments:ty> = $entry:expr; )+
    ) => {
        $(#[$meta])*
        $visibility static $unit: $crate::KernelUnit = $crate::KernelUnit {
            name: $name,
            source: $source,
            headers: $crate::kernel_unit!(@headers $($headers)?),
            entries: &[$($entry),+],
            layouts: &[
                $($($(<$layout as $crate::DeviceStruct>::c_declaration,)+)?)?
                $(<$arguments as $crate::DeviceStruct>::c_declaration,)+
            ],
        };
        $(
            $(#[$kernel_meta])*
            $kernel_visibility const $kernel: $crate::Kernel<$arguments> = $crate::Kernel::new(&$unit, $entry);
        )+
    };
}

/// The crate's device headers, as its build script lists them (crate `anabranch-device-headers`): a `&'static [Header]`.
#[macro_export]
macro_rules! device_headers {
    () => {
        include!(concat!(env!("OUT_DIR"), "/device_headers.rs"))
    };
}
