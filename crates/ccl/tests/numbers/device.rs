//! One device of the host runtime, and the conformance kernels on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anabranch_ccl::{DataType, ReduceOp};
use anabranch_conformance::ccl::arithmetic::{
    self as conformance, ConformanceConvertArgs, ConformanceReduceArgs,
};
use anabranch_hip::{Device, DeviceBuffer, DeviceOrdinal, LaunchShape, Stream};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::{DevicePointer, Jit, JitConfig, LoadedUnit, ToolSearch};

/// No result has this value: outputs are filled with it before each launch.
const FILL: u8 = 0xa5;
/// Two blocks, so that the grid divides the work.
const SHAPE: LaunchShape = LaunchShape { grid_blocks: 2, block_threads: 64, local_bytes: 0 };
/// Bytes after each output that must stay as they are.
const CANARY_BYTES: usize = 64;

pub(crate) fn tools() -> ToolSearch {
    #[expect(clippy::disallowed_methods, reason = "a test finds the compilers as a user's shell does")]
    let folders = |name| std::env::split_paths(&std::env::var_os(name).unwrap_or_default()).collect();
    ToolSearch { path: folders("PATH"), python_site: folders("PYTHONPATH"), ..ToolSearch::default() }
}

/// A pipeline with one cache for all tests, so that each kernel is compiled once. Warnings are errors.
pub(crate) fn jit() -> Jit {
    let cache: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let mut config = JitConfig::new(cache);
    config.deny_warnings = true;
    Jit::new(config, tools())
}

/// The conformance kernels of one element type, loaded.
pub(crate) struct Numbers {
    pub(crate) data_type: DataType,
    device: Device,
    stream: Stream,
    unit: Arc<LoadedUnit>,
}

/// One launch of the reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) op: ReduceOp,
    /// Bytes that a thread handles at once.
    pub(crate) unit_bytes: u32,
    pub(crate) sum_only: bool,
}

/// Contributions on the device.
pub(crate) struct Contributions {
    buffer: DeviceBuffer,
    bytes: usize,
    stride: usize,
    size: u32,
}

impl Numbers {
    pub(crate) fn new(data_type: DataType, wave_width: u32) -> Self {
        let machine =
            HostMachine::new(HostConfig { devices: 1, wave_width, ..HostConfig::default() }).unwrap();
        let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
        let unit = jit().load(&device, &conformance::reduce(data_type)).unwrap();
        Self { data_type, stream: device.create_stream().unwrap(), device, unit }
    }

    /// Inputs of one length, a multiple of 16 bytes.
    pub(crate) fn upload(&self, inputs: &[Vec<u8>]) -> Contributions {
        let bytes = inputs[0].len();
        assert!(bytes.is_multiple_of(16));
        let stride = bytes + 16;
        let mut buffer = self.device.allocate(inputs.len() * stride).unwrap();
        for (rank, input) in inputs.iter().enumerate() {
            buffer.copy_from_host(rank * stride, input).unwrap();
        }
        Contributions { buffer, bytes, stride, size: inputs.len() as u32 }
    }

    pub(crate) fn reduce(&self, launch: Launch, inputs: &Contributions) -> Vec<u8> {
        let output = self.filled(inputs.bytes);
        let arguments = ConformanceReduceArgs {
            inputs: DevicePointer::new(inputs.buffer.address()),
            output: DevicePointer::new(output.address()),
            bytes: inputs.bytes as u64,
            stride: inputs.stride as u64,
            scalar: launch.op.scalar_bits(self.data_type),
            op: launch.op.torch_value(),
            size: inputs.size,
            unit_bytes: launch.unit_bytes,
            sum_only: launch.sum_only.into(),
        };
        let kernel = self.unit.get(conformance::REDUCE).unwrap();
        // SAFETY: both buffers outlive the synchronisation below.
        unsafe { kernel.launch(SHAPE, &self.stream, &arguments) }.unwrap();
        self.stream.synchronize().unwrap();
        read(&output, inputs.bytes)
    }

    /// Rounds values of the accumulation type to elements and widens them again; `value_bytes` each.
    pub(crate) fn convert(&self, values: &[u8], value_bytes: usize) -> (Vec<u8>, Vec<u8>) {
        let count = values.len() / value_bytes;
        let element_bytes = count * self.data_type.bytes() as usize;
        let mut buffer = self.device.allocate(values.len()).unwrap();
        buffer.copy_from_host(0, values).unwrap();
        let (elements, widened) = (self.filled(element_bytes), self.filled(values.len()));
        let arguments = ConformanceConvertArgs {
            values: DevicePointer::new(buffer.address()),
            elements: DevicePointer::new(elements.address()),
            widened: DevicePointer::new(widened.address()),
            count: count as u64,
        };
        let kernel = self.unit.get(conformance::CONVERT).unwrap();
        // SAFETY: the buffers outlive the synchronisation below.
        unsafe { kernel.launch(SHAPE, &self.stream, &arguments) }.unwrap();
        self.stream.synchronize().unwrap();
        (read(&elements, element_bytes), read(&widened, values.len()))
    }

    fn filled(&self, bytes: usize) -> DeviceBuffer {
        let mut buffer = self.device.allocate(bytes + CANARY_BYTES).unwrap();
        buffer.copy_from_host(0, &vec![FILL; bytes + CANARY_BYTES]).unwrap();
        buffer
    }
}

fn read(buffer: &DeviceBuffer, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes + CANARY_BYTES];
    buffer.copy_to_host(0, &mut all).unwrap();
    assert_eq!(all.split_off(bytes), [FILL; CANARY_BYTES], "something was written after the output");
    all
}
