//! Loading and launching on the host runtime.

use std::sync::Arc;

use crate::common::{SCALE, ScaleArgs, Scratch, UNIT, search, spec};
use anabranch_hip::types::{HipDeviceProperties, HipError};
use anabranch_hip::{Device, DeviceOrdinal, LaunchShape, Runtime, RuntimeKind};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::{
    ConstantsMode, DevicePointer, Error, Jit, Kernel, KernelSpec, KernelUnit, LoadedKernel, bytemuck,
    constants,
};

fn machine(devices: u32, wave_width: u32) -> Runtime {
    let host = HostConfig { devices, wave_width, memory_bytes: 64 << 20, ..HostConfig::default() };
    HostMachine::new(host).unwrap().runtime()
}

fn device(runtime: &Runtime, ordinal: u32) -> Device {
    runtime.device(DeviceOrdinal(ordinal)).unwrap()
}

/// Multiplies 1..=count by `factor` on the device.
fn scale(kernel: &LoadedKernel<ScaleArgs>, device: &Device, count: u32, factor: u32) -> Vec<u32> {
    let mut values: Vec<u32> = (1..=count).collect();
    let mut buffer = device.allocate(values.len() * 4).unwrap();
    buffer.copy_from_host(0, bytemuck::cast_slice(&values)).unwrap();
    let stream = device.create_stream().unwrap();
    let arguments = ScaleArgs { values: DevicePointer::new(buffer.address()), count, factor };
    let shape = LaunchShape { grid_blocks: count.div_ceil(64), block_threads: 64, local_bytes: 0 };
    // SAFETY: the buffer lives until the stream is idle, below.
    unsafe { kernel.launch(shape, &stream, &arguments) }.unwrap();
    stream.synchronize().unwrap();
    buffer.copy_to_host(0, bytemuck::cast_slice_mut(&mut values)).unwrap();
    values
}

#[test]
fn each_device_has_its_own_module() {
    let scratch = Scratch::new("launch");
    for width in [1, 64] {
        let runtime = machine(10, width);
        let jit = scratch.jit(search(None));
        let mut held = Vec::new();
        for ordinal in [0, 3, 9] {
            let device = device(&runtime, ordinal);
            let unit = jit.load(&device, &spec()).unwrap();
            let kernel = unit.get(SCALE).unwrap();
            let expected: Vec<_> = (1..=100).map(|value| value * (ordinal + 2)).collect();
            assert_eq!(scale(&kernel, &device, 100, ordinal + 2), expected);
            held.push(unit);
        }
        assert_eq!((jit.loaded_modules(), jit.stats().compiled), (3, 1));
        let again = jit.load(&device(&runtime, 3), &spec()).unwrap();
        assert!(again.shares_module(&held[1]));
        drop((again, held));
        assert_eq!(jit.loaded_modules(), 0);
    }
}

/// A host runtime whose device says it is a gfx942 without a name, and of its clock what `khz` says.
fn as_gfx942(khz: i32) -> Runtime {
    #[derive(Debug)]
    struct Under(Runtime);
    impl anabranch_hip::Binding for Under {
        fn bind(&self) {
            let _: &_ = self.0.api();
        }
    }
    unsafe extern "C" fn properties(of: *mut HipDeviceProperties, _: i32) -> HipError {
        let mut gfx942 = HipDeviceProperties::zeroed();
        gfx942.set_arch("gfx942:sramecc+:xnack-");
        gfx942.set_warp_size(64);
        // SAFETY: the caller's place.
        unsafe { of.write(gfx942) };
        HipError::SUCCESS
    }
    unsafe extern "C" fn unknown(value: *mut i32, _: i32, _: i32) -> HipError {
        // SAFETY: the caller's place.
        unsafe { value.write(0) };
        HipError::SUCCESS
    }
    unsafe extern "C" fn slow(value: *mut i32, _: i32, _: i32) -> HipError {
        // SAFETY: the caller's place.
        unsafe { value.write(27_000) };
        HipError::SUCCESS
    }
    let host = machine(1, 1);
    let mut api = *host.api();
    api.hipGetDevicePropertiesR0600 = properties;
    api.hipDeviceGetAttribute = if khz == 0 { unknown } else { slow };
    Runtime::new(RuntimeKind::Amd, api, Some(Arc::new(Under(host))), "altered".to_owned())
}

#[test]
fn unknown_device_clock_takes_the_rate_of_the_target() {
    let jit = Scratch::new("clock").jit(search(None));
    let unknown = as_gfx942(0);
    let device = device(&unknown, 0);
    assert_eq!(device.wall_clock_khz().unwrap(), 0);
    let target = jit.device_target(&device).unwrap();
    assert_eq!((target.base(), target.amd_clock_khz()), ("gfx942", Some(100_000)));
    // One that says another rate is refused: deadlines would be wrong.
    let wrong = as_gfx942(27_000);
    let refused = jit.device_target(&wrong.device(DeviceOrdinal(0)).unwrap()).unwrap_err();
    assert!(matches!(refused, Error::ClockRate { reported: 27_000, expected: 100_000, .. }), "{refused}");
    // Neither has a name.
    assert_eq!(device.name(), "gfx942:sramecc+:xnack-");
    assert_eq!(machine(1, 1).device(DeviceOrdinal(0)).unwrap().name(), device_name_of_host());
}

fn device_name_of_host() -> String {
    device(&machine(1, 1), 0).properties().name()
}

#[test]
fn two_machines_of_one_process_have_their_own_modules() {
    let scratch = Scratch::new("machines");
    let jit = scratch.jit(search(None));
    let (first, second) = (machine(1, 1), machine(1, 1));
    let units = [&first, &second].map(|runtime| jit.load(&device(runtime, 0), &spec()).unwrap());
    assert!(!units[0].shares_module(&units[1]));
    assert_eq!(units[0].key(), units[1].key());
    for (runtime, unit) in [&first, &second].into_iter().zip(&units) {
        assert_eq!(scale(&unit.get(SCALE).unwrap(), &device(runtime, 0), 3, 5), [5, 10, 15]);
    }
}

#[test]
fn launches_of_one_kernel_do_not_share_arguments() {
    let scratch = Scratch::new("reentrant");
    let jit = scratch.jit(search(None));
    let runtime = machine(1, 1);
    let device = device(&runtime, 0);
    let unit = jit.load(&device, &spec()).unwrap();
    std::thread::scope(|scope| {
        for factor in 1..=4 {
            let (unit, device) = (&unit, &device);
            scope.spawn(move || {
                for count in 1..20 {
                    let expected: Vec<_> = (1..=count).map(|value| value * factor).collect();
                    assert_eq!(scale(&unit.get(SCALE).unwrap(), device, count, factor), expected);
                }
            });
        }
    });
}

#[test]
fn wrong_units_shapes_and_devices_are_refused() {
    static OTHER: KernelUnit = KernelUnit { name: "other", ..UNIT };
    let scratch = Scratch::new("refused");
    let jit = scratch.jit(search(None));
    let runtime = machine(1, 4);
    let device = device(&runtime, 0);
    let unit = jit.load(&device, &spec()).unwrap();
    let error = unit.get(Kernel::<ScaleArgs>::new(&OTHER, "test_scale")).unwrap_err().to_string();
    assert_eq!(error, "the loaded unit test_scale has no kernel other::test_scale; it has test_scale");
    let kernel = unit.get(SCALE).unwrap();
    let stream = device.create_stream().unwrap();
    let arguments = ScaleArgs { values: DevicePointer::NULL, count: 0, factor: 0 };
    for (grid_blocks, block_threads, local_bytes) in [(0, 64, 0), (1, 0, 0), (1, 6, 0), (1, 64, u32::MAX)] {
        let shape = LaunchShape { grid_blocks, block_threads, local_bytes };
        // SAFETY: a count of 0 touches no address.
        let error = unsafe { kernel.launch(shape, &stream, &arguments) }.unwrap_err();
        assert!(matches!(error, Error::Shape { .. }), "{error}");
    }
    let mut config = scratch.config();
    config.arch = Some("host:wave1".parse().unwrap());
    let error = Jit::new(config, search(None)).load(&device, &spec()).unwrap_err();
    assert!(matches!(error, Error::TargetMismatch { .. }), "{error}");
}

#[test]
fn launches_are_captured() {
    static OTHER: KernelUnit = UNIT;
    let scratch = Scratch::new("capture");
    let jit = scratch.jit(search(None));
    let runtime = machine(1, 1);
    let device = device(&runtime, 0);
    let unit = jit.load(&device, &KernelSpec::new(&OTHER).with("STEP", 1)).unwrap();
    let kernel = unit.get(Kernel::<ScaleArgs>::new(&OTHER, "test_scale")).unwrap();
    let mut buffer = device.allocate(4).unwrap();
    buffer.copy_from_host(0, &3u32.to_ne_bytes()).unwrap();
    let stream = device.create_stream().unwrap();
    stream.begin_capture().unwrap();
    let arguments = ScaleArgs { values: DevicePointer::new(buffer.address()), count: 1, factor: 2 };
    let shape = LaunchShape { grid_blocks: 1, block_threads: 1, local_bytes: 0 };
    // SAFETY: the buffer outlives the graph's launches.
    unsafe { kernel.launch(shape, &stream, &arguments) }.unwrap();
    let graph = stream.end_capture().unwrap().instantiate().unwrap();
    for _ in 0..3 {
        // SAFETY: the buffer outlives the launches.
        unsafe { graph.launch(&stream) }.unwrap();
    }
    stream.synchronize().unwrap();
    let mut bytes = [0; 4];
    buffer.copy_to_host(0, &mut bytes).unwrap();
    assert_eq!(u32::from_ne_bytes(bytes), 3 * 8);
}

#[test]
fn constants_are_compiled_where_they_are_wanted_and_compared_at_every_launch() {
    let scratch = Scratch::new("constants");
    let runtime = machine(1, 1);
    let device = device(&runtime, 0);
    let known = spec().knowing(constants!(ScaleArgs { factor: 7 }));
    for mode in [ConstantsMode::Auto, ConstantsMode::Never, ConstantsMode::Always] {
        let mut config = scratch.config();
        config.constants = mode;
        let unit = Jit::new(config, search(None)).load(&device, &known).unwrap();
        assert_eq!(unit.label().ends_with("with constants"), mode == ConstantsMode::Always);
        let kernel = unit.get(SCALE).unwrap();
        assert_eq!(scale(&kernel, &device, 3, 7), [7, 14, 21], "{mode:?}");
        let arguments = ScaleArgs { values: DevicePointer::NULL, count: 0, factor: 8 };
        let shape = LaunchShape { grid_blocks: 1, block_threads: 64, local_bytes: 0 };
        // SAFETY: nothing is launched; a kernel of no values would touch none.
        let refused =
            unsafe { kernel.launch(shape, &device.create_stream().unwrap(), &arguments) }.unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!("kernel {} was loaded for factor = 7, and the launch has 8", kernel.name())
        );
    }
}
