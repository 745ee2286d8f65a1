//! What queue pairs and registered memory allow peers to do, as a fake library is told.

use core::cell::RefCell;
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::ptr::null_mut;
use core::time::Duration;
use std::sync::Arc;

use anabranch_hip::DeviceOrdinal;
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_transport::Region;

use super::library::Verbs;
use super::memory::MemoryRegion;
use super::nic::Nic;
use super::queue_pair::{Path, QueuePair};
use crate::bindings::{
    IBV_ATOMIC_GLOB, IBV_ATOMIC_HCA, IBV_QP_ACCESS_FLAGS, IbvContext, IbvCq, IbvMr, IbvPd, IbvQp, IbvQpAttr,
    IbvQpInitAttr,
};
use crate::endpoint::Endpoint;
use crate::nics::{GidKind, LinkLayer};

thread_local! {
    /// The access of the last queue pair and of the last registration of this thread.
    static ALLOWED: RefCell<(c_uint, c_uint)> = const { RefCell::new((0, 0)) };
}

fn zeroed<T>() -> *mut T {
    // SAFETY: the types are plain structs of numbers and pointers, of which all bits zero are a value.
    Box::into_raw(Box::new(unsafe { core::mem::zeroed() }))
}

/// Frees what [`zeroed`] made.
unsafe fn free<T>(object: *mut T) -> c_int {
    // SAFETY: by the caller, once.
    drop(unsafe { Box::from_raw(object) });
    0
}

unsafe extern "C" fn create_cq(
    _: *mut IbvContext,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: c_int,
) -> *mut IbvCq {
    zeroed()
}

unsafe extern "C" fn destroy_cq(queue: *mut IbvCq) -> c_int {
    // SAFETY: made by `create_cq`, and destroyed once.
    unsafe { free(queue) }
}

unsafe extern "C" fn create_qp(_: *mut IbvPd, _: *mut IbvQpInitAttr) -> *mut IbvQp {
    zeroed()
}

unsafe extern "C" fn destroy_qp(pair: *mut IbvQp) -> c_int {
    // SAFETY: made by `create_qp`, and destroyed once.
    unsafe { free(pair) }
}

unsafe extern "C" fn modify_qp(_: *mut IbvQp, attributes: *mut IbvQpAttr, mask: c_int) -> c_int {
    if mask & IBV_QP_ACCESS_FLAGS != 0 {
        // SAFETY: the caller gives attributes.
        ALLOWED.with_borrow_mut(|allowed| allowed.0 = unsafe { (*attributes).qp_access_flags });
    }
    0
}

unsafe extern "C" fn register(_: *mut IbvPd, _: *mut c_void, _: usize, access: c_int) -> *mut IbvMr {
    ALLOWED.with_borrow_mut(|allowed| allowed.1 = access as c_uint);
    zeroed()
}

unsafe extern "C" fn deregister(region: *mut IbvMr) -> c_int {
    // SAFETY: made by `register`, and given back once.
    unsafe { free(region) }
}

unsafe extern "C" fn close(_: *mut IbvContext) -> c_int {
    0
}

unsafe extern "C" fn nothing_else() {
    std::process::abort();
}

/// A NIC with these atomic operations (`atomic_cap`).
fn nic(atomic_cap: c_uint) -> Arc<Nic> {
    let function = |name: &'static CStr, _: &'static CStr| {
        Some(match name.to_bytes() {
            b"ibv_create_cq" => create_cq as *const c_void,
            b"ibv_destroy_cq" => destroy_cq as *const c_void,
            b"ibv_create_qp" => create_qp as *const c_void,
            b"ibv_destroy_qp" => destroy_qp as *const c_void,
            b"ibv_modify_qp" => modify_qp as *const c_void,
            b"ibv_reg_mr" => register as *const c_void,
            b"ibv_dereg_mr" => deregister as *const c_void,
            b"ibv_close_device" => close as *const c_void,
            _ => nothing_else as *const c_void,
        })
    };
    // SAFETY: the functions that are called have the types of their namesakes; any other ends the process.
    let verbs = Arc::new(unsafe { Verbs::from_lookup(function) }.unwrap());
    // SAFETY: all bits zero are a value of this plain struct.
    let mut attributes: crate::bindings::IbvDeviceAttr = unsafe { core::mem::zeroed() };
    attributes.atomic_cap = atomic_cap;
    Arc::new(Nic { verbs, name: "mlx5_7".to_owned(), context: null_mut(), pd: null_mut(), attributes })
}

#[test]
fn peers_may_do_atomic_operations_only_where_the_nic_has_them() {
    let machine = HostMachine::new(HostConfig::default()).unwrap();
    let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
    let memory = device.allocate(4096).unwrap();
    let end = Endpoint {
        driver: "verbs".to_owned(),
        number: 1,
        first_packet: 0,
        link_layer: LinkLayer::Ethernet,
        lid: 0,
        gid: [1; 16],
        gid_kind: GidKind::RoceV2,
        mtu: 4096,
        most_answered: 1,
    };
    // Remote write 2, remote read 4, remote atomic 8, local write 1.
    for (atomic_cap, of_pair, of_memory) in [(0, 6, 7), (IBV_ATOMIC_HCA, 14, 15), (IBV_ATOMIC_GLOB, 14, 15)] {
        let nic = nic(atomic_cap);
        let path = Path { port: 1, gid_index: 0, traffic_class: 0, service_level: 0 };
        let mut pair = QueuePair::new(&nic, path, 16).unwrap();
        pair.connect(&end, &end, Duration::from_secs(1)).unwrap();
        MemoryRegion::new(&nic, &device, Region { address: memory.address().0, bytes: 4096 }).unwrap();
        assert_eq!(ALLOWED.take(), (of_pair, of_memory), "atomic_cap {atomic_cap}");
    }
}
