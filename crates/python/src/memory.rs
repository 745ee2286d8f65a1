//! Memory of the library that other libraries see as tensors.

use std::fmt;
use std::sync::Arc;

use anabranch::RuntimeKind;
use anabranch::ccl::DataType;
use anabranch::shmem::SymmetricMemory;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::array::{self, Home};
use crate::dlpack::{self, Described};
use crate::errors::usage;
use crate::unlocked::{Ends, Unlocked};

/// What keeps exported memory valid.
#[derive(Clone)]
pub(crate) enum Owner {
    /// An allocation in the symmetric heap.
    Symmetric(Arc<SymmetricMemory>),
    /// Anything else: a plan's slot.
    Other(Arc<dyn Send + Sync>),
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Symmetric(_) => "Symmetric",
            Self::Other(_) => "Other",
        })
    }
}

impl Ends for Owner {
    fn may_wait(&self) -> bool {
        match self {
            Self::Symmetric(memory) => memory.may_wait(),
            Self::Other(other) => Arc::strong_count(other) == 1,
        }
    }
}

/// Device memory of the library: an allocation of `World.empty`, or a window of a dispatch.
///
/// Other libraries take it without a copy: `torch.from_dlpack(memory)`, `numpy.from_dlpack(memory)`, `cupy.asarray(memory)`. Given to a
/// collective itself, memory of the heap counts as symmetric, which peers reach directly; a tensor made from it counts as local.
///
/// A window of a dispatch is overwritten by later dispatches once it was combined or released, in tensors made from it too.
#[pyclass(frozen, module = "anabranch", name = "Memory")]
#[derive(Debug)]
pub(crate) struct Memory {
    address: u64,
    shape: Vec<u64>,
    /// In elements; `None` for a contiguous tensor.
    strides: Option<Vec<u64>>,
    data_type: DataType,
    home: Home,
    owner: Unlocked<Owner>,
    /// Counts the tensors that were made from this object.
    exports: Arc<()>,
}

impl Memory {
    pub(crate) fn new(
        address: u64,
        shape: Vec<u64>,
        strides: Option<Vec<u64>>,
        data_type: DataType,
        home: Home,
        owner: Owner,
    ) -> Self {
        Self {
            address,
            shape,
            strides,
            data_type,
            home,
            owner: Unlocked::new(owner),
            exports: Arc::default(),
        }
    }

    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn dimensions(&self) -> &[u64] {
        &self.shape
    }

    pub(crate) const fn data_type(&self) -> DataType {
        self.data_type
    }

    pub(crate) const fn is_contiguous(&self) -> bool {
        self.strides.is_none()
    }

    pub(crate) fn symmetric(&self) -> Option<(Arc<SymmetricMemory>, u64)> {
        match &*self.owner {
            Owner::Symmetric(memory) => Some((Arc::clone(memory), self.address - memory.address().0)),
            Owner::Other(_) => None,
        }
    }

    fn described(&self) -> Described {
        let signed = |values: &Vec<u64>| values.iter().map(|value| *value as i64).collect();
        Described {
            address: self.address,
            shape: signed(&self.shape),
            strides: self.strides.as_ref().map(signed),
            data_type: self.data_type,
            device: self.home.dl_device(),
            is_read_only: false,
            owner: None,
        }
    }

    /// The dictionary of the array interfaces, which differ in the version alone.
    fn interface<'py>(&self, py: Python<'py>, version: u32) -> PyResult<Bound<'py, PyDict>> {
        let text = match self.data_type {
            DataType::F32 => "<f4",
            DataType::F64 => "<f8",
            DataType::F16 => "<f2",
            DataType::I8 => "|i1",
            DataType::U8 => "|u1",
            DataType::I16 => "<i2",
            DataType::U16 => "<u2",
            DataType::I32 => "<i4",
            DataType::U32 => "<u4",
            DataType::I64 => "<i8",
            DataType::U64 => "<u8",
            DataType::Bool => "|b1",
            other => {
                let text = format!("the array interface has no name for {other}; use DLPack");
                return Err(pyo3::exceptions::PyAttributeError::new_err(text));
            }
        };
        let result = PyDict::new(py);
        result.set_item("typestr", text)?;
        result.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        result.set_item("data", (self.address, false))?;
        result.set_item("version", version)?;
        if let Some(strides) = &self.strides {
            let size = u64::from(self.data_type.bytes());
            result.set_item("strides", PyTuple::new(py, strides.iter().map(|stride| stride * size))?)?;
        }
        Ok(result)
    }
}

#[pymethods]
impl Memory {
    /// Extents of the dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// Strides in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let described = self.described();
        PyTuple::new(py, described.strides.unwrap_or_else(|| dlpack::contiguous(&described.shape)))
    }

    /// The element type's name.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.data_type.name()
    }

    /// The address of the first element.
    #[getter]
    fn data_ptr(&self) -> u64 {
        self.address
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.data_type.bytes_of(self.shape.iter().product())
    }

    /// Whether peers reach it at the same offset of their heaps: memory of `World.empty`.
    #[getter]
    fn is_symmetric(&self) -> bool {
        matches!(*self.owner, Owner::Symmetric(_))
    }

    /// The entries `start` to `stop` of the first dimension, as the same memory.
    fn part(&self, start: u64, stop: u64) -> PyResult<Self> {
        let Some((first, rest)) = self.shape.split_first() else {
            return Err(usage("memory without dimensions has no parts"));
        };
        if start > stop || stop > *first {
            return Err(usage(format!("{start} to {stop} is not within the first dimension, of {first}")));
        }
        let stride = self.strides.as_ref().map_or_else(|| rest.iter().product(), |strides| strides[0]);
        let shape = std::iter::once(stop - start).chain(rest.iter().copied()).collect();
        let address = self.address + self.data_type.bytes_of(start * stride);
        let (strides, owner) = (self.strides.clone(), self.owner.clone());
        Ok(Self::new(address, shape, strides, self.data_type, self.home, owner))
    }

    /// The same bytes as elements of another type, in one dimension.
    fn view(&self, dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        let data_type = array::data_type(dtype)?;
        let (bytes, size) = (self.nbytes(), u64::from(data_type.bytes()));
        let is_whole =
            data_type.bits() >= 8 && bytes.is_multiple_of(size) && self.address.is_multiple_of(size);
        if !is_whole || !self.is_contiguous() {
            return Err(usage(format!(
                "these {bytes} bytes at {:#x} are no array of {data_type}",
                self.address
            )));
        }
        Ok(Self::new(self.address, vec![bytes / size], None, data_type, self.home, self.owner.clone()))
    }

    /// Whether tensors that libraries made from this object, without a copy, are alive.
    #[getter]
    fn is_exported(&self) -> bool {
        Arc::strong_count(&self.exports) > 1
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Order is that of the stream that the user gave to the calls.
        drop(stream);
        let own = self.home.dl_device();
        if dl_device.is_some_and(|asked| asked != (own.kind, own.ordinal)) || copy == Some(true) {
            let text = "memory of the library is shared where it is; copy the tensor that is made from it";
            return Err(pyo3::exceptions::PyBufferError::new_err(text));
        }
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        dlpack::export(py, &self.described(), self.owner.clone(), Arc::clone(&self.exports), versioned)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        let device = self.home.dl_device();
        (device.kind, device.ordinal)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.home.runtime != RuntimeKind::Host {
            let text = "device memory has no __array_interface__; use __cuda_array_interface__ or DLPack";
            return Err(pyo3::exceptions::PyAttributeError::new_err(text));
        }
        self.interface(py, 3)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.home.runtime == RuntimeKind::Host {
            let text = "memory of the host runtime has no __cuda_array_interface__";
            return Err(pyo3::exceptions::PyAttributeError::new_err(text));
        }
        self.interface(py, 3)
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.shape.first().ok_or_else(|| usage("memory without dimensions has no length"))?;
        Ok(*first as usize)
    }

    fn __repr__(&self) -> String {
        let kind = if self.is_symmetric() { "symmetric" } else { "window" };
        format!("anabranch.Memory(shape={:?}, dtype={}, {kind})", self.shape, self.data_type)
    }
}
