//! Sizes, alignments and fields of the structs.

use std::mem::offset_of;

use anabranch_hip::types::{
    HipDeviceProperties, HipIpcMemHandle, HipMemAccessDescriptor, HipMemAllocationProperties, HipMemLocation,
    HipPointerAttributes,
};

use crate::abi::{new, old};

/// Where a field is, and its bytes.
type Place = (usize, usize);

/// One struct of ours beside the witness's.
struct Layout {
    name: &'static str,
    /// Size and alignment.
    ours: (usize, usize),
    theirs: (usize, usize),
    fields: Vec<(&'static str, Place, Place)>,
}

impl Layout {
    fn differences(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.ours != self.theirs {
            found.push(format!(
                "{}: size and alignment {:?} here, {:?} there",
                self.name, self.ours, self.theirs
            ));
        }
        for (field, ours, theirs) in &self.fields {
            if ours != theirs {
                found.push(format!("{}.{field}: {ours:?} here, {theirs:?} there", self.name));
            }
        }
        found
    }
}

/// The size of a field, from a function that is never called.
fn size_of_field<S, F>(_field: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! place {
    ($type:path, $($field:ident).+) => {
        (offset_of!($type, $($field).+), size_of_field(|whole: &$type| &whole.$($field).+))
    };
}

macro_rules! layout {
    ($ours:ident is $theirs:path { $($field:ident = $($their:ident).+),* $(,)? }) => {{
        // Fails to compile when a field of ours is not compared.
        let _every_field = |whole: $ours| { let $ours { $($field: _),* } = whole; };
        Layout {
            name: stringify!($ours),
            ours: (size_of::<$ours>(), align_of::<$ours>()),
            theirs: (size_of::<$theirs>(), align_of::<$theirs>()),
            fields: vec![
                $((stringify!($field), place!($ours, $field), place!($theirs, $($their).+))),*
            ],
        }
    }};
}

/// The structs in both witnesses. The old one has other names for two fields, and the same places.
fn layouts() -> Vec<Layout> {
    vec![
        layout!(HipIpcMemHandle is new::hipIpcMemHandle_t { reserved = reserved }),
        layout!(HipIpcMemHandle is old::hipIpcMemHandle_t { reserved = reserved }),
        layout!(HipPointerAttributes is new::hipPointerAttribute_t {
            memory_type = type_,
            device = device,
            device_pointer = devicePointer,
            host_pointer = hostPointer,
            is_managed = isManaged,
            allocation_flags = allocationFlags,
        }),
        layout!(HipPointerAttributes is old::hipPointerAttribute_t {
            memory_type = memoryType,
            device = device,
            device_pointer = devicePointer,
            host_pointer = hostPointer,
            is_managed = isManaged,
            allocation_flags = allocationFlags,
        }),
        layout!(HipMemLocation is new::hipMemLocation { kind = type_, id = id }),
        layout!(HipMemLocation is old::hipMemLocation { kind = type_, id = id }),
        // The union's members are two spellings of one enum.
        layout!(HipMemAllocationProperties is new::hipMemAllocationProp {
            kind = type_,
            requested_handle_type = __bindgen_anon_1,
            location = location,
            win32_handle_meta_data = win32HandleMetaData,
            compression_type = allocFlags.compressionType,
            gpu_direct_rdma_capable = allocFlags.gpuDirectRDMACapable,
            usage = allocFlags.usage,
        }),
        layout!(HipMemAllocationProperties is old::hipMemAllocationProp {
            kind = type_,
            requested_handle_type = requestedHandleType,
            location = location,
            win32_handle_meta_data = win32HandleMetaData,
            compression_type = allocFlags.compressionType,
            gpu_direct_rdma_capable = allocFlags.gpuDirectRDMACapable,
            usage = allocFlags.usage,
        }),
        layout!(HipMemAccessDescriptor is new::hipMemAccessDesc { location = location, flags = flags }),
        layout!(HipMemAccessDescriptor is old::hipMemAccessDesc { location = location, flags = flags }),
    ]
}

#[test]
fn structs_are_laid_out_as_in_both_witnesses() {
    let found: Vec<_> = layouts().iter().flat_map(Layout::differences).collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn an_ipc_handle_is_64_bytes_of_alignment_1() {
    assert_eq!((size_of::<HipIpcMemHandle>(), align_of::<HipIpcMemHandle>()), (64, 1));
}

#[test]
fn a_wrong_layout_is_found() {
    let mut wrong = layout!(HipMemLocation is new::hipMemAccessDesc { kind = location, id = flags });
    assert_eq!(
        wrong.differences(),
        [
            "HipMemLocation: size and alignment (8, 4) here, (12, 4) there",
            "HipMemLocation.kind: (0, 4) here, (0, 8) there",
            "HipMemLocation.id: (4, 4) here, (8, 4) there",
        ]
    );
    wrong.theirs = wrong.ours;
    wrong.fields.clear();
    assert!(wrong.differences().is_empty());
}

macro_rules! properties {
    ($($accessor:ident = $field:ident),* $(,)?) => {
        [$({
            let (offset, size) = place!(new::hipDeviceProp_tR0600, $field);
            (stringify!($accessor), offset, size)
        }),*]
    };
}

#[test]
fn device_properties_are_read_where_the_struct_has_them() {
    let expected = properties!(
        total_global_memory = totalGlobalMem,
        shared_memory_per_block = sharedMemPerBlock,
        warp_size = warpSize,
        max_threads_per_block = maxThreadsPerBlock,
        clock_rate_khz = clockRate,
        major = major,
        minor = minor,
        multiprocessor_count = multiProcessorCount,
    );
    assert_eq!(HipDeviceProperties::FIELDS, expected);
    assert_eq!((HipDeviceProperties::NAME_OFFSET, 256), place!(new::hipDeviceProp_tR0600, name));
    assert_eq!((HipDeviceProperties::ARCH_OFFSET, 256), place!(new::hipDeviceProp_tR0600, gcnArchName));
}

#[test]
fn the_properties_buffer_holds_the_struct() {
    assert_eq!(HipDeviceProperties::C_SIZE, size_of::<new::hipDeviceProp_tR0600>());
    assert_eq!(HipDeviceProperties::BUFFER, size_of::<HipDeviceProperties>());
    const { assert!(HipDeviceProperties::BUFFER >= HipDeviceProperties::C_SIZE) };
    assert_eq!(align_of::<HipDeviceProperties>(), align_of::<new::hipDeviceProp_tR0600>());
}

/// What the unversioned symbol fills, and why the versioned one is bound.
#[test]
fn the_properties_of_5_4_are_another_struct() {
    assert_eq!(size_of::<old::hipDeviceProp_t>(), 792);
    assert_eq!(place!(old::hipDeviceProp_t, gcnArchName), (396, 256));
    assert_eq!(place!(old::hipDeviceProp_t, totalGlobalMem), (256, 8));
}

#[test]
fn what_is_set_is_what_is_read() {
    let mut properties = HipDeviceProperties::zeroed();
    properties.set_name("a name");
    properties.set_arch("gfx942:sramecc+:xnack-");
    properties.set_total_global_memory(1 << 37);
    properties.set_warp_size(64);
    properties.set_multiprocessor_count(304);
    assert_eq!(properties.name(), "a name");
    assert_eq!(properties.arch(), "gfx942:sramecc+:xnack-");
    assert_eq!(properties.total_global_memory(), 1 << 37);
    assert_eq!((properties.warp_size(), properties.multiprocessor_count()), (64, 304));
}
