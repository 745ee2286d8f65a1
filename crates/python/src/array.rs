//! Arguments that are tensors, of whatever library.

use std::sync::Arc;

use anabranch::ccl::{DataType, Tensor};
use anabranch::ep::DeviceSlice;
use anabranch::hip::DeviceAddress;
use anabranch::{RuntimeKind, shmem::SymmetricMemory};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::dlpack::{self, Described, DlDevice};
use crate::errors::{raise, usage};
use crate::memory::Memory;

/// A contiguous tensor that was given to a call, with what keeps its memory.
#[derive(Debug)]
pub(crate) struct Array {
    name: &'static str,
    address: u64,
    shape: Vec<u64>,
    data_type: DataType,
    /// The allocation in the symmetric heap, with the byte at which the tensor starts.
    symmetric: Option<(Arc<SymmetricMemory>, u64)>,
    object: Py<PyAny>,
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
    let text = match given.extract::<String>() {
        Ok(text) => text,
        // numpy's types and dtypes have a name; those of torch print as `torch.bfloat16`.
        Err(_) => match given.getattr("__name__").or_else(|_| given.getattr("name")) {
            Ok(name) => name.extract()?,
            Err(_) => given.str()?.to_string(),
        },
    };
    let name = text.strip_prefix("torch.").unwrap_or(&text);
    name.parse().map_err(|error: anabranch::ccl::UnsupportedDataType| usage(error.to_string()))
}

impl Array {
    /// Reads an argument. `name` is the parameter's.
    ///
    /// # Errors
    /// `UsageError`: no tensor, another device, not contiguous, an element type that the library has not.
    pub(crate) fn new(name: &'static str, object: &Bound<'_, PyAny>, home: Home) -> PyResult<Self> {
        if let Ok(memory) = object.cast::<Memory>() {
            let memory = memory.get();
            let array = Self {
                name,
                address: memory.address(),
                shape: memory.dimensions().to_vec(),
                data_type: memory.data_type(),
                symmetric: memory.symmetric(),
                object: object.clone().unbind(),
            };
            if !memory.is_contiguous() {
                return Err(usage(format!("{name} is not contiguous")));
            }
            return Ok(array);
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
        let Described { address, data_type, .. } = described;
        Ok(Self { name, address, shape, data_type, symmetric: None, object: object.clone().unbind() })
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

    /// Elements.
    pub(crate) fn count(&self) -> u64 {
        self.shape.iter().product()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.data_type.bytes_of(self.count())
    }

    /// Elements of each entry of the first dimension.
    pub(crate) fn row(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }

    /// As collectives take it: symmetric where it is memory of the heap, else local.
    ///
    /// # Safety
    /// The memory stays valid until every launch of a call with it is over: see [`Self::into_object`].
    pub(crate) unsafe fn tensor(&self) -> PyResult<Tensor<'_>> {
        let (data_type, count) = (self.data_type, self.count());
        match &self.symmetric {
            Some((memory, offset)) => Tensor::symmetric(memory, *offset, data_type, count).map_err(raise),
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

    /// The Python object, which keeps the memory.
    pub(crate) fn into_object(self) -> Py<PyAny> {
        self.object
    }

    /// The stream on which the tensor's library works now.
    pub(crate) fn current_stream(&self, py: Python<'_>, home: Home) -> PyResult<Option<u64>> {
        let object = self.object.bind(py);
        if let Some(stream) = dlpack::current_stream(object, home.dl_device())? {
            return Ok(Some(stream));
        }
        // torch before 2.10 has no table of functions.
        let module = object.get_type().getattr("__module__")?.extract::<String>().unwrap_or_default();
        if module == "torch" || module.starts_with("torch.") {
            let current = py.import("torch.cuda")?.call_method1("current_stream", (home.ordinal,))?;
            return Ok(Some(current.getattr("cuda_stream")?.extract()?));
        }
        Ok(None)
    }
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
    let py = object.py();
    if let Some(described) = dlpack::by_exchange(object)? {
        return Ok(described);
    }
    for interface in ["__cuda_array_interface__", "__array_interface__"] {
        // torch raises for a tensor that has none.
        let Ok(found) = object.getattr(interface) else { continue };
        let found = found.cast_into::<PyDict>()?;
        let device = match interface {
            "__array_interface__" => DlDevice { kind: dlpack::CPU, ordinal: 0 },
            // The interface says no device: an address is of one, and the runtime reports a foreign one.
            _ => home.dl_device(),
        };
        // Types that the interface has no word for come by DLPack.
        if let Some(described) = by_interface(&found, device)? {
            return Ok(described);
        }
    }
    if object.hasattr("__dlpack__")? {
        return dlpack::by_capsule(object);
    }
    if let Ok(tuple) = object.cast::<PyTuple>()
        && let Ok((address, shape, of)) = tuple.extract::<(u64, Vec<i64>, Bound<'_, PyAny>)>()
    {
        let data_type = data_type(&of)?;
        return Ok(Described { address, shape, strides: None, data_type, device: home.dl_device() });
    }
    let kind = object.get_type().name()?;
    let _ = py;
    Err(usage(format!(
        "{name} is of type {kind}; a tensor is needed (DLPack, __cuda_array_interface__ or __array_interface__), or (address, \
         shape, dtype)"
    )))
}

/// The array interface, version 3: `typestr`, `shape`, `data`, `strides` in bytes.
fn by_interface(found: &Bound<'_, PyDict>, device: DlDevice) -> PyResult<Option<Described>> {
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
        _ => return Ok(None),
    };
    let (address, _read_only) = get("data")?.extract::<(u64, bool)>()?;
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
    Ok(Some(Described { address, shape, strides, data_type, device }))
}
