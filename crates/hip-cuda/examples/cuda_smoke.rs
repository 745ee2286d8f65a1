//! Tries every part of the CUDA runtime on the GPUs of this machine, through the safe handles, and checks what
//! comes back: `cargo run -p anabranch-hip-cuda --example cuda_smoke`. Ends with an error where something is
//! wrong; says so and ends well where there is no driver or no GPU.

#![expect(clippy::print_stdout, reason = "an example reports to its user")]

use std::error::Error;
use std::sync::Arc;

use anabranch_hip::types::{device_attribute, memory_type};
use anabranch_hip::{Device, DeviceOrdinal, LaunchShape, LoadError, Runtime, Stream};

type Checked = Result<(), Box<dyn Error>>;

/// `element[i] = value + i`, by way of the last words of `local_bytes` bytes of dynamic local memory. The
/// parameter is one struct: 16 bytes of launch header, the target's address, the value, `local_bytes`.
const KERNEL: &[u8] = b"
.version 7.0
.target sm_75
.address_size 64
.extern .shared .align 16 .b8 scratch[];
.visible .entry fill_numbers(.param .align 8 .b8 arguments[32])
{
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [arguments+16];
    ld.param.u32 %r1, [arguments+24];
    ld.param.u32 %r2, [arguments+28];
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %ntid.x;
    mad.lo.u32 %r6, %r4, %r5, %r3;
    add.u32 %r7, %r1, %r6;
    mov.u64 %rd2, scratch;
    cvt.u64.u32 %rd3, %r2;
    add.u64 %rd4, %rd2, %rd3;
    add.u32 %r8, %r3, 1;
    mul.wide.u32 %rd5, %r8, 4;
    sub.u64 %rd6, %rd4, %rd5;
    st.shared.u32 [%rd6], %r7;
    bar.sync 0;
    ld.shared.u32 %r8, [%rd6];
    cvta.to.global.u64 %rd7, %rd1;
    mul.wide.u32 %rd8, %r6, 4;
    add.u64 %rd8, %rd7, %rd8;
    st.global.u32 [%rd8], %r8;
    ret;
}
\0";

const MEBIBYTE: usize = 1 << 20;

fn main() -> Checked {
    let runtime = match anabranch_hip_cuda::open(&[]) {
        Ok(runtime) => runtime,
        Err(error @ LoadError::NotFound { .. }) => {
            println!("skipped: {error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    println!("{} ({:?})", runtime.origin(), runtime.versions()?);
    for (name, has) in runtime.api().optional() {
        if !has {
            println!("without {name}");
        }
    }
    let devices = (0..runtime.device_count()?)
        .map(|ordinal| runtime.device(DeviceOrdinal(ordinal)))
        .collect::<Result<Vec<_>, _>>()?;
    let Some(last) = devices.last() else {
        println!("skipped: the driver shows no device");
        return Ok(());
    };

    // The last device first: nothing of this may touch device 0, which is current by default.
    check("no context on device 0 from work on the last", || lazy(&runtime, last))?;
    for device in &devices {
        println!("{}: {:?} {}", device.ordinal(), device.properties(), device.pci_bus_id()?);
        check("properties", || properties(device))?;
        check("memory", || memory(device))?;
        check("streams and events", || streams(device))?;
        check("kernel with much local memory", || kernel(device))?;
        check("capture and replay", || graph(device))?;
        check("values in stream order", || values(device))?;
        check("virtual memory and file descriptors", || virtual_memory(device))?;
    }
    for from in &devices {
        for to in devices.iter().filter(|to| to.ordinal() != from.ordinal()) {
            check(&format!("peer {} to {}", from.ordinal(), to.ordinal()), || peer(from, to))?;
        }
    }
    println!("all well");
    Ok(())
}

fn check(what: &str, action: impl FnOnce() -> Checked) -> Checked {
    action().map_err(|error| format!("{what}: {error}"))?;
    println!("  {what}: ok");
    Ok(())
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Checked {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, expected {expected:?}").into()) }
}

fn lazy(runtime: &Runtime, last: &Device) -> Checked {
    drop(last.allocate(64)?);
    let mut current = -1;
    // SAFETY: the call writes one int.
    let code = unsafe { (runtime.api().hipGetDevice)(&raw mut current) };
    same("hipGetDevice", &(code.0, current), &(0, 0))
}

fn properties(device: &Device) -> Checked {
    same("wave size", &device.wave_size(), &32)?;
    let ordinal = device.ordinal().0 as i32;
    for (attribute, expected) in [
        (device_attribute::MULTIPROCESSOR_COUNT, device.multiprocessors() as i32),
        (device_attribute::WARP_SIZE, 32),
    ] {
        let mut value = 0;
        // SAFETY: the call writes one int.
        let code =
            unsafe { (device.runtime().api().hipDeviceGetAttribute)(&raw mut value, attribute, ordinal) };
        same("attribute", &(code.0, value), &(0, expected))?;
    }
    let (free, total) = device.memory_info()?;
    println!("  {} MiB free of {} MiB", free / MEBIBYTE, total / MEBIBYTE);
    Ok(())
}

fn memory(device: &Device) -> Checked {
    let pattern: Vec<u8> = (0..3 * MEBIBYTE + 5).map(|index| (index * 7 % 251) as u8).collect();
    let mut buffer = device.allocate_uncached(pattern.len())?;
    buffer.copy_from_host(0, &pattern)?;
    let mut back = vec![0; pattern.len()];
    buffer.copy_to_host(0, &mut back)?;
    same("round trip", &(back == pattern), &true)?;
    buffer.fill(0xa5)?;
    buffer.copy_to_host(0, &mut back)?;
    same("fill", &back.iter().all(|byte| *byte == 0xa5), &true)?;

    let inside = buffer.address().offset(4096);
    let (owner, base, bytes) = device.allocation_of(inside)?;
    same("the owner and base of an address", &(owner, base), &(device.ordinal().0, buffer.address()))?;
    same("the allocation's size", &(bytes >= buffer.len()), &true)?;
    let mut attributes = anabranch_hip::types::HipPointerAttributes::default();
    // SAFETY: the call writes one struct; any address may be asked for.
    let code = unsafe {
        (device.runtime().api().hipPointerGetAttributes)(&raw mut attributes, pattern.as_ptr().cast())
    };
    same("plain host memory", &(code.0, attributes.memory_type), &(0, memory_type::UNREGISTERED))?;

    let handle = buffer.ipc_handle()?;
    same("a handle is not empty", &handle.to_bytes().iter().any(|byte| *byte != 0), &true)?;
    same("a handle of the same process is refused", &device.open_ipc(&handle).is_err(), &true)?;

    let host = device.allocate_host(64)?;
    host.write(0, &[1, 2, 3, 4])?;
    let stream = device.create_stream()?;
    // SAFETY: both ranges live until the stream is synchronized below.
    unsafe { stream.copy_async(buffer.address(), host.device_address(), 4) }?;
    stream.synchronize()?;
    buffer.copy_to_host(0, &mut back[..4])?;
    same("copy from pinned memory", &&back[..4], &&[1, 2, 3, 4][..])
}

fn streams(device: &Device) -> Checked {
    let (stream, other) = (device.create_stream()?, device.create_priority_stream()?);
    let (start, end) = (device.create_timing_event()?, device.create_timing_event()?);
    let buffer = device.allocate(256 * MEBIBYTE)?;
    stream.record(&start)?;
    // SAFETY: the buffer lives until both streams are synchronized.
    unsafe { stream.fill_async(buffer.address(), 1, buffer.len()) }?;
    stream.record(&end)?;
    other.wait_event(&end)?;
    // SAFETY: as above; ordered behind the first fill by the event.
    unsafe { other.fill_async(buffer.address(), 2, 4) }?;
    other.synchronize()?;
    same("the first stream is done", &(stream.is_idle()?, end.is_done()?), &(true, true))?;
    let mut bytes = [0; 8];
    buffer.copy_to_host(0, &mut bytes)?;
    same("order of two streams", &bytes, &[2, 2, 2, 2, 1, 1, 1, 1])?;
    let took = start.microseconds_until(&end)?;
    println!("  256 MiB filled in {took:.1} us");
    same("a fill takes time", &(took > 1.0), &true)?;
    Ok(())
}

fn launch(device: &Device, stream: &Stream, value: u32) -> Result<Vec<u32>, Box<dyn Error>> {
    // SAFETY: the image is a zero-terminated text of PTX.
    let module = unsafe { device.load_module(KERNEL) }?;
    let kernel = module.kernel("fill_numbers")?;
    let local_bytes = device.properties().shared_memory_per_block() as u32;
    let shape = LaunchShape { grid_blocks: 5, block_threads: 96, local_bytes };
    let elements = (shape.grid_blocks * shape.block_threads) as usize;
    let buffer = device.allocate(4 * elements)?;
    let mut argument = [0; 32];
    argument[16..24].copy_from_slice(&buffer.address().0.to_ne_bytes());
    argument[24..28].copy_from_slice(&value.to_ne_bytes());
    argument[28..].copy_from_slice(&local_bytes.to_ne_bytes());
    // SAFETY: the argument has the kernel's layout; the buffer holds one word for each thread and lives until
    // the stream is synchronized.
    unsafe { kernel.launch(shape, stream, &argument) }?;
    stream.synchronize()?;
    same("blocks a multiprocessor", &kernel.blocks_per_multiprocessor(96, local_bytes)?, &1)?;
    let mut bytes = vec![0; buffer.len()];
    buffer.copy_to_host(0, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect())
}

fn kernel(device: &Device) -> Checked {
    let words = launch(device, &device.create_stream()?, 1000)?;
    same("what the kernel wrote", &words, &(1000..1480).collect())
}

fn graph(device: &Device) -> Checked {
    let stream = device.create_stream()?;
    let mut buffer = device.allocate(MEBIBYTE)?;
    buffer.fill(0)?;
    stream.begin_capture()?;
    same("capturing", &stream.is_capturing()?, &true)?;
    // SAFETY: the buffer outlives the graph's runs.
    unsafe { stream.fill_async(buffer.address(), 9, 16) }?;
    let graph = stream.end_capture()?.instantiate()?;
    let mut bytes = [1; 17];
    buffer.copy_to_host(0, &mut bytes)?;
    same("capture runs nothing", &bytes, &[0; 17])?;
    for _ in 0..2 {
        buffer.fill(0)?;
        // SAFETY: the buffer is live.
        unsafe { graph.launch(&stream) }?;
        stream.synchronize()?;
        buffer.copy_to_host(0, &mut bytes)?;
        same("replay", &(bytes[15], bytes[16]), &(9, 0))?;
    }
    Ok(())
}

fn values(device: &Device) -> Checked {
    if device.runtime().api().hipStreamWaitValue64.is_none() {
        println!("  (this driver has no value operations)");
        return Ok(());
    }
    let (writer, waiter) = (device.create_stream()?, device.create_stream()?);
    let mut buffer = device.allocate(64)?;
    buffer.fill(0)?;
    // SAFETY: both words live until both streams are synchronized.
    unsafe {
        waiter.wait_value64_at_least(buffer.address(), 5)?;
        waiter.write_value64(buffer.address().offset(8), 6)?;
    }
    same("the stream waits", &waiter.is_idle()?, &false)?;
    // SAFETY: as above.
    unsafe { writer.write_value64(buffer.address(), 5) }?;
    waiter.synchronize()?;
    writer.synchronize()?;
    let mut word = [0; 8];
    buffer.copy_to_host(8, &mut word)?;
    same("the word behind the wait", &u64::from_ne_bytes(word), &6)
}

fn virtual_memory(device: &Device) -> Checked {
    use std::os::fd::AsFd;

    let unit = device.physical_granularity()?;
    let physical = device.create_physical(unit)?;
    let descriptor = physical.export()?;
    // SAFETY: the size is the exported allocation's.
    let imported = Arc::new(unsafe { device.import_physical(descriptor.as_fd(), unit) }?);
    let physical = Arc::new(physical);
    let range = device.reserve(2 * unit, 0)?;
    let _first = range.map(0, &physical, std::slice::from_ref(device))?;
    let _second = range.map(unit, &imported, std::slice::from_ref(device))?;
    let stream = device.create_stream()?;
    // SAFETY: both halves are mapped to the same memory, which outlives the stream's work.
    unsafe { stream.fill_async(range.address(), 0x3c, 16) }?;
    stream.synchronize()?;
    let mut bytes = [0; 16];
    // SAFETY: the second half is mapped.
    unsafe { device.read_memory(range.address().offset(unit as u64), &mut bytes) }?;
    same("the imported mapping", &bytes, &[0x3c; 16])?;
    let mut handle = anabranch_hip::types::HipIpcMemHandle { reserved: [0; 64] };
    let _guard = device.guard()?;
    // SAFETY: the call writes 64 bytes and inspects a live address.
    let code =
        unsafe { (device.runtime().api().hipIpcGetMemHandle)(&raw mut handle, range.address().as_ptr()) };
    same("an IPC handle for virtual memory", &code, &anabranch_hip::HipError::NOT_SUPPORTED)
}

fn peer(from: &Device, to: &Device) -> Checked {
    if !from.can_access_peer(to)? {
        println!("  (no access)");
        return Ok(());
    }
    from.enable_peer_access(to)?;
    from.enable_peer_access(to)?;
    let mut source = from.allocate(64 * MEBIBYTE)?;
    let mut target = to.allocate(64 * MEBIBYTE)?;
    source.fill(0x11 + from.ordinal().0 as u8)?;
    target.fill(0)?;
    let stream = from.create_stream()?;
    let (start, end) = (from.create_timing_event()?, from.create_timing_event()?);
    stream.record(&start)?;
    // SAFETY: both buffers live until the stream is synchronized.
    unsafe { stream.copy_async(target.address(), source.address(), source.len()) }?;
    stream.record(&end)?;
    stream.synchronize()?;
    let mut bytes = vec![0; target.len()];
    target.copy_to_host(0, &mut bytes)?;
    same("copied bytes", &bytes.iter().all(|byte| *byte == 0x11 + from.ordinal().0 as u8), &true)?;
    println!("  {:.1} GB/s", source.len() as f64 / start.microseconds_until(&end)? / 1000.0);
    Ok(())
}
