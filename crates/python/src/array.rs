//! Arguments that are tensors, of whatever library.

use std::sync::Arc;

use anabranch::ccl::{self, DataType, DeviceScalar, Tensor};
use anabranch::ep::DeviceSlice;
use anabranch::hip::DeviceAddress;
use anabranch::{RuntimeKind, shmem::SymmetricMemory};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::dlpack::{self, Described, DlDevice};
use crate::errors::usage;
use crate::memory::Memory;

/// A contiguous tensor that was given to a call, with what keeps its memory.
#[derive(Debug)]
pub(crate) struct Array {
    name: &'static str,
    address: u64,
    shape: Vec<u64>,
    /// Elements, and those of each entry of the first dimension.
    count: u64,
    row: u64,
    data_type: DataType,
    /// The allocation in the symmetric heap, with the byte at which the tensor starts.
    symmetric: Option<(Arc<SymmetricMemory>, u64)>,
    is_read_only: bool,
    object: Py<PyAny>,
    /// What owns the memory besides the object.
    owner: Option<Py<PyAny>>,
}

/// The device that tensors of a world have to be on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    pub(crate) runtime: RuntimeKind,
    pub(crate) ordinal: u32,
}

impl Home {
    /// DLPack's name of it.
    pub(crate) fn dl_device(self) -> DlDevice {
        let ordinal = self.ordinal as i32;
        match self.runtime {
            RuntimeKind::Host => DlDevice { kind: dlpack::CPU, ordinal: 0 },
            RuntimeKind::Nvidia => DlDevice { kind: dlpack::CUDA, ordinal },
            RuntimeKind::Amd => DlDevice { kind: dlpack::ROCM, ordinal },
        }
    }

    fn describe(device: DlDevice) -> String {
        match device.kind {
            dlpack::CPU => "the CPU".to_owned(),
            dlpack::CUDA => format!("CUDA device {}", device.ordinal),
            dlpack::ROCM => format!("ROCm device {}", device.ordinal),
            kind => format!("device {} of DLPack's type {kind}", device.ordinal),
        }
    }

    /// # Errors
    /// `UsageError` for a tensor elsewhere.
    fn check(self, name: &str, device: DlDevice) -> PyResult<()> {
        let own = self.dl_device();
        if device == own || device.kind == own.kind && own.kind == dlpack::CPU {
            return Ok(());
        }
        Err(usage(format!(
            "{name} is on {}; this rank's device is {} (runtime {})",
            Self::describe(device),
            Self::describe(own),
            self.runtime
        )))
    }
}

/// An element type by any of its names: `"bf16"`, `"bfloat16"`, `"torch.bfloat16"`, `torch.bfloat16`, `numpy.float32`.
pub(crate) fn data_type(given: &Bound<'_, PyAny>) -> PyResult<DataType> {
    if given.getattr("byteorder").is_ok_and(|order| order.extract::<String>().is_ok_and(|order| order == ">"))
    {
        return Err(usage(format!("{given} is big-endian; the library takes little-endian elements")));
    }
    let text = match given.extract::<String>() {
        Ok(text) => text,
        // numpy's types and dtypes have a name; those of torch print as `torch.bfloat16`.
        Err(_) => match given.getattr("__name__").or_else(|_| given.getattr("name")) {
            Ok(name) => name.extract()?,
            Err(_) => given.str()?.to_string(),
        },
    };
    let name = text.strip_prefix("torch.").unwrap_or(&text);
    name.parse().map_err(|error: ccl::UnsupportedDataType| usage(error.to_string()))
}

impl Array {
    /// Reads an argument. `name` is the parameter's.
    ///
    /// # Errors
    /// `UsageError`: no tensor, another device, not contiguous, an unsupported element type.
    pub(crate) fn new(name: &'static str, object: &Bound<'_, PyAny>, home: Home) -> PyResult<Self> {
        if let Ok(memory) = object.cast::<Memory>() {
            let memory = memory.get();
            if !memory.is_contiguous() {
                return Err(usage(format!("{name} is not contiguous")));
            }
            let described = Described {
                address: memory.address(),
                shape: Vec::new(),
                strides: None,
                data_type: memory.data_type(),
                device: home.dl_device(),
                is_read_only: false,
                owner: None,
            };
            return Self::checked(name, object, described, memory.dimensions().to_vec(), memory.symmetric());
        }
        let described = describe(name, object, home)?;
        home.check(name, described.device)?;
        let negative = described.shape.iter().any(|extent| *extent < 0);
        if negative || !is_contiguous(&described) {
            let Described { shape, strides, .. } = described;
            return Err(usage(format!(
                "{name} is not contiguous: shape {shape:?}, strides {:?}",
                strides.unwrap_or_default()
            )));
        }
        let shape = described.shape.iter().map(|extent| *extent as u64).collect();
        Self::checked(name, object, described, shape, None)
    }

    fn checked(
        name: &'static str,
        object: &Bound<'_, PyAny>,
        described: Described,
        shape: Vec<u64>,
        symmetric: Option<(Arc<SymmetricMemory>, u64)>,
    ) -> PyResult<Self> {
        let Described { address, data_type, is_read_only, owner, .. } = described;
        let product = |extents: &[u64]| extents.iter().try_fold(1u64, |all, extent| all.checked_mul(*extent));
        let row = product(shape.get(1..).unwrap_or_default());
        let count = product(&shape).filter(|count| count.checked_mul(u64::from(data_type.bits())).is_some());
        let (Some(row), Some(count)) = (row, count) else {
            return Err(usage(format!("{name} has shape {shape:?}: more elements than memory can hold")));
        };
        if address == 0 && count > 0 {
            return Err(usage(format!("{name} has {count} elements and no address")));
        }
        let object = object.clone().unbind();
        Ok(Self { name, address, shape, count, row, data_type, symmetric, is_read_only, object, owner })
    }

    /// The array, for a parameter that the call writes.
    ///
    /// # Errors
    /// `UsageError` for read-only memory.
    pub(crate) fn written(self) -> PyResult<Self> {
        if self.is_read_only {
            return Err(usage(format!("{} is read-only, and the call writes it", self.name)));
        }
        Ok(self)
    }

    /// The same for a parameter that may be `None`.
    pub(crate) fn optional(
        name: &'static str,
        object: Option<&Bound<'_, PyAny>>,
        home: Home,
    ) -> PyResult<Option<Self>> {
        object.filter(|object| !object.is_none()).map(|object| Self::new(name, object, home)).transpose()
    }

    pub(crate) const fn data_type(&self) -> DataType {
        self.data_type
    }

    pub(crate) fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Elements of each entry of the first dimension.
    pub(crate) const fn row(&self) -> u64 {
        self.row
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.data_type.bytes_of(self.count)
    }

    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    /// Elements.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// As the scalar of an operator.
    ///
    /// # Safety
    /// As [`Self::tensor`].
    pub(crate) unsafe fn scalar(&self) -> DeviceScalar {
        // SAFETY: the caller's promise; that it is memory is what the tensor's library said.
        unsafe { DeviceScalar::at(DeviceAddress(self.address), self.data_type) }
    }

    /// As collectives take it: symmetric where it is memory of the heap, else local.
    ///
    /// # Safety
    /// The memory stays valid until every launch of a call with it is over: see [`Self::into_objects`].
    pub(crate) unsafe fn tensor(&self) -> Result<Tensor<'_>, ccl::Error> {
        let (data_type, count) = (self.data_type, self.count);
        match &self.symmetric {
            Some((memory, offset)) => Tensor::symmetric(memory, *offset, data_type, count),
            // SAFETY: the caller's promise; that the range is memory is what the tensor's library said.
            None => Ok(unsafe { Tensor::local(DeviceAddress(self.address), data_type, count) }),
        }
    }

    /// As expert parallelism takes it.
    ///
    /// # Safety
    /// As [`Self::tensor`].
    pub(crate) unsafe fn slice(&self) -> DeviceSlice {
        // SAFETY: the caller's promise.
        unsafe { DeviceSlice::from_raw(DeviceAddress(self.address), self.bytes() as usize) }
    }

    /// # Errors
    /// `UsageError` for another shape, where `None` in `wanted` is any extent.
    pub(crate) fn expect_shape(&self, wanted: &[Option<u64>], what: &str) -> PyResult<()> {
        let fits = self.shape.len() == wanted.len()
            && self
                .shape
                .iter()
                .zip(wanted)
                .all(|(given, wanted)| wanted.is_none_or(|wanted| *given == wanted));
        if fits {
            Ok(())
        } else {
            Err(usage(format!("{} has shape {:?}; {what} is needed", self.name, self.shape)))
        }
    }

    /// # Errors
    /// `UsageError` for another type.
    pub(crate) fn expect_type(&self, wanted: DataType) -> PyResult<()> {
        if self.data_type == wanted {
            return Ok(());
        }
        Err(usage(format!("{} has elements of {}; {wanted} is needed", self.name, self.data_type)))
    }

    /// The Python objects that keep the memory.
    pub(crate) fn into_objects(self) -> impl Iterator<Item = Py<PyAny>> {
        std::iter::once(self.object).chain(self.owner)
    }

    /// The stream on which the tensor's library works now.
    pub(crate) fn current_stream(&self, py: Python<'_>, home: Home) -> PyResult<Option<u64>> {
        let object = self.object.bind(py);
        if let Some(stream) = dlpack::current_stream(object, home.dl_device())? {
            return Ok(Some(stream));
        }
        let module = object.get_type().getattr("__module__")?.extract::<String>().unwrap_or_default();
        let library = module.split('.').next().unwrap_or_default();
        library_stream(py, library, home)
    }
}

/// The stream on which a library works now, where it says: torch (before 2.10 it has no table of functions) and cupy.
fn library_stream(py: Python<'_>, library: &str, home: Home) -> PyResult<Option<u64>> {
    match library {
        "torch" => {
            let current = py.import("torch.cuda")?.call_method1("current_stream", (home.ordinal,))?;
            Ok(Some(current.getattr("cuda_stream")?.extract()?))
        }
        "cupy" => {
            let current = py.import("cupy.cuda")?.call_method0("get_current_stream")?;
            Ok(Some(current.getattr("ptr")?.extract()?))
        }
        _ => Ok(None),
    }
}

/// The stream of a call without tensors: that of a library that the program has imported.
pub(crate) fn default_stream(py: Python<'_>, home: Home) -> PyResult<Option<u64>> {
    let modules = py.import("sys")?.getattr("modules")?;
    for library in ["torch", "cupy"] {
        if modules.contains(library)? {
            return library_stream(py, library, home);
        }
    }
    Ok(None)
}

fn is_contiguous(described: &Described) -> bool {
    let Some(strides) = &described.strides else { return true };
    if described.shape.contains(&0) {
        return true;
    }
    let expected = dlpack::contiguous(&described.shape);
    described
        .shape
        .iter()
        .zip(strides.iter().zip(&expected))
        .all(|(extent, (given, wanted))| *extent == 1 || given == wanted)
}

fn describe(name: &str, object: &Bound<'_, PyAny>, home: Home) -> PyResult<Described> {
    if let Some(described) = dlpack::by_exchange(object)? {
        return Ok(described);
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        let (address, shape, of) = tuple.extract::<(u64, Vec<i64>, Bound<'_, PyAny>)>()?;
        let (data_type, device) = (data_type(&of)?, home.dl_device());
        return Ok(Described {
            address,
            shape,
            strides: None,
            data_type,
            device,
            is_read_only: false,
            owner: None,
        });
    }
    let by_dlpack = if object.hasattr("__dlpack__")? { Some(dlpack::by_capsule(object)) } else { None };
    if let Some(Ok(described)) = by_dlpack {
        return Ok(described);
    }
    // What has no DLPack, and types that numpy has no word of DLPack for: those of ml_dtypes.
    if let Some(described) = by_interfaces(name, object, home)? {
        return Ok(described);
    }
    Err(match by_dlpack {
        Some(Err(error)) => usage(format!("{name} cannot be shared: {error}")),
        _ => usage(format!(
            "{name} is of type {}; a tensor is needed (DLPack, __cuda_array_interface__ or __array_interface__), or \
             (address, shape, dtype)",
            object.get_type().name()?
        )),
    })
}

/// By the array interfaces. `None` for an object without.
fn by_interfaces(name: &str, object: &Bound<'_, PyAny>, home: Home) -> PyResult<Option<Described>> {
    if let Ok(found) = object.getattr("__cuda_array_interface__") {
        if home.runtime == RuntimeKind::Host {
            return Err(usage(format!("{name} is on a GPU; this rank's device is the CPU (runtime host)")));
        }
        // The interface does not say of which device the address is.
        let described = by_interface(object, &found.cast_into()?, home.dl_device())?;
        return Ok(Some(described));
    }
    let Ok(found) = object.getattr("__array_interface__") else { return Ok(None) };
    let modules = object.py().import("sys")?.getattr("modules")?;
    if modules.contains("numpy")? && object.is_instance(&modules.get_item("numpy")?.getattr("generic")?)? {
        return Err(usage(format!(
            "{name} is a scalar of numpy, which has no memory to share; give an array"
        )));
    }
    by_interface(object, &found.cast_into()?, DlDevice { kind: dlpack::CPU, ordinal: 0 }).map(Some)
}

/// The array interface, version 3: `typestr`, `shape`, `data`, `strides` in bytes.
fn by_interface(
    object: &Bound<'_, PyAny>,
    found: &Bound<'_, PyDict>,
    device: DlDevice,
) -> PyResult<Described> {
    let get =
        |key: &str| found.get_item(key)?.ok_or_else(|| usage(format!("the array interface has no {key}")));
    let text = get("typestr")?.extract::<String>()?;
    let data_type = match text.as_str() {
        "<f4" => DataType::F32,
        "<f8" => DataType::F64,
        "<f2" => DataType::F16,
        "|i1" | "<i1" => DataType::I8,
        "|u1" | "<u1" => DataType::U8,
        "<i2" => DataType::I16,
        "<u2" => DataType::U16,
        "<i4" => DataType::I32,
        "<u4" => DataType::U32,
        "<i8" => DataType::I64,
        "<u8" => DataType::U64,
        "|b1" => DataType::Bool,
        text if text.starts_with('>') => {
            return Err(usage(format!(
                "elements of {text} are big-endian; the library takes little-endian ones"
            )));
        }
        // Types of ml_dtypes are opaque to the interface, and have a name.
        _ => data_type(&object.getattr("dtype")?)?,
    };
    let (address, is_read_only) = get("data")?.extract::<(u64, bool)>()?;
    let shape = get("shape")?.extract::<Vec<i64>>()?;
    let strides = match found.get_item("strides")? {
        Some(strides) if !strides.is_none() => {
            let size = i64::from(data_type.bytes());
            let bytes = strides.extract::<Vec<i64>>()?;
            if bytes.iter().any(|stride| stride % size != 0) {
                return Err(usage(format!(
                    "strides of {bytes:?} bytes are no multiples of the element's {size}"
                )));
            }
            Some(bytes.iter().map(|stride| stride / size).collect())
        }
        _ => None,
    };
    Ok(Described { address, shape, strides, data_type, device, is_read_only, owner: None })
}
