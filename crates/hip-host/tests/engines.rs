//! Memory as engines in software see it.

use std::sync::Arc;

use anabranch_hip::{Device, DeviceOrdinal, EngineMemory};
use anabranch_hip_host::{HostConfig, HostMachine};

fn memory_of(device: &Device) -> Arc<dyn EngineMemory> {
    device.runtime().engines(device.ordinal()).unwrap().memory
}

fn machine() -> Arc<HostMachine> {
    HostMachine::new(HostConfig { devices: 2, workers: 1.try_into().ok(), ..HostConfig::default() }).unwrap()
}

#[test]
fn bytes_go_to_and_from_the_engines_own_memory() {
    let machine = machine();
    let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
    let memory = memory_of(&device);
    let mut buffer = device.allocate(4096).unwrap();
    buffer.fill(0).unwrap();
    let base = buffer.address().0;
    // At words and off them, as long as words and not.
    for (offset, bytes) in [(0, 4), (4, 8), (8, 8), (1, 4), (3, 8), (17, 1), (100, 333), (4000, 96)] {
        let source: Vec<u8> = (0..bytes).map(|at| (at * 7 + offset) as u8 | 1).collect();
        memory.write(base + offset as u64, &source).unwrap();
        let mut found = vec![0; bytes];
        memory.read(base + offset as u64, &mut found).unwrap();
        assert_eq!(found, source, "{bytes} bytes at {offset}");
        buffer.copy_to_host(offset, &mut found).unwrap();
        assert_eq!(found, source, "{bytes} bytes at {offset} seen by the device");
    }
    memory.write(base, &[]).unwrap();
    memory.read(base, &mut []).unwrap();
    let mut word = [0; 8];
    memory.store_64(base + 8, 0x0102_0304_0506_0708).unwrap();
    memory.read(base + 8, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 0x0102_0304_0506_0708);
}

#[test]
fn words_are_exchanged_where_they_are_as_expected() {
    let machine = machine();
    let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
    let memory = memory_of(&device);
    let mut buffer = device.allocate(64).unwrap();
    buffer.fill(0).unwrap();
    let base = buffer.address().0;
    assert_eq!(memory.compare_swap_64(base, 0, 5), Ok(0));
    assert_eq!(memory.compare_swap_64(base, 0, 6), Ok(5));
    assert_eq!(memory.load_64(base), Ok(5));
    assert_eq!(memory.compare_swap_32(base + 12, 0, 7), Ok(0));
    assert_eq!(memory.compare_swap_32(base + 12, 1, 8), Ok(7));
    assert_eq!(memory.load_32(base + 12), Ok(7));
    assert_eq!(memory.load_32(base + 8), Ok(0));
    // Several agents count with it.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let mut old = memory.load_64(base + 16).unwrap();
                    loop {
                        match memory.compare_swap_64(base + 16, old, old + 1).unwrap() {
                            found if found == old => break,
                            found => old = found,
                        }
                    }
                }
            });
        }
    });
    assert_eq!(memory.load_64(base + 16), Ok(4000));
}

#[test]
fn what_is_not_the_engines_is_refused() {
    let machine = machine();
    let runtime = machine.runtime();
    let devices = [0, 1].map(|ordinal| runtime.device(DeviceOrdinal(ordinal)).unwrap());
    let memory = memory_of(&devices[0]);
    let mut bytes = [0; 16];
    let (own, foreign) = (devices[0].allocate(4096).unwrap(), devices[1].allocate(4096).unwrap());
    let end = own.address().0 + 4096;
    for address in [0, 8, u64::MAX - 7, foreign.address().0] {
        assert!(memory.read(address, &mut bytes).is_err(), "{address:#x}");
        assert!(memory.write(address, &bytes).is_err(), "{address:#x}");
        assert!(memory.compare_swap_64(address & !7, 0, 0).is_err(), "{address:#x}");
        assert!(memory.compare_swap_32(address & !7, 0, 0).is_err(), "{address:#x}");
    }
    // Off a word's boundary, and across the end.
    assert!(memory.compare_swap_64(own.address().0 + 4, 0, 0).is_err());
    assert!(memory.compare_swap_32(own.address().0 + 2, 0, 0).is_err());
    assert!(memory.read(end - 8, &mut bytes).is_err());
    // A device that may touch its peer's memory has engines that may.
    devices[0].enable_peer_access(&devices[1]).unwrap();
    memory.write(foreign.address().0, &bytes).unwrap();
    let gone = own.address().0;
    drop(own);
    assert!(memory.read(gone, &mut bytes).is_err());
}
