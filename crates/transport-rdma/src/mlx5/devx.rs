//! The seam between commands and the NIC.

use core::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use anabranch_transport::Region;

use super::path::{NextHop, PathRequest};
use crate::driver::Registered;
use crate::error::Result;

/// A NIC that takes commands. Each method's errors are [`NicError::Call`](crate::NicError::Call) with the NIC's answer, unless it says otherwise.
pub trait Devx: fmt::Debug + Send + Sync {
    /// The NIC and how it was reached, for people.
    fn nic(&self) -> String;

    /// Asks (`mlx5dv_devx_general_cmd`). `answer` has the size of the answer.
    ///
    /// # Errors
    /// As the trait states.
    fn query(&self, command: &[u8], answer: &mut [u8]) -> Result<()>;

    /// Makes an object (`mlx5dv_devx_obj_create`).
    ///
    /// # Errors
    /// As the trait states.
    fn create(&self, what: &'static str, command: &[u8], answer: &mut [u8]) -> Result<Box<dyn DevxObject>>;

    /// Lets the NIC use memory of the host for queues (`mlx5dv_devx_umem_reg`).
    ///
    /// # Safety
    /// `address` is the start of `bytes` bytes that stay mapped until the result is dropped.
    ///
    /// # Errors
    /// As the trait states.
    unsafe fn register_queue_memory(&self, address: *mut u8, bytes: usize) -> Result<Box<dyn DevxMemory>>;

    /// A page of the NIC's registers whose stores are not combined (`mlx5dv_devx_alloc_uar`, `MLX5DV_UAR_ALLOC_TYPE_NC`).
    ///
    /// # Errors
    /// As the trait states.
    fn allocate_doorbell(&self) -> Result<Box<dyn DevxDoorbell>>;

    /// The first event queue (`mlx5dv_devx_query_eqn`).
    ///
    /// # Errors
    /// As the trait states.
    fn event_queue(&self) -> Result<u32>;

    /// The number of the protection domain (`mlx5dv_init_obj`).
    ///
    /// # Errors
    /// As the trait states.
    fn protection_domain(&self) -> Result<u32>;

    /// Where packets to an address on Ethernet go first, by the system's tables (`ibv_create_ah`).
    ///
    /// # Errors
    /// As the trait states: no route, or a neighbour that does not answer.
    fn next_hop(&self, path: &PathRequest) -> Result<NextHop>;

    /// Registers memory of the rank, as [`NicDriver::register`](crate::NicDriver::register).
    ///
    /// # Errors
    /// As there.
    fn register(&self, region: Region) -> Result<Arc<dyn Registered>>;
}

/// An object of the NIC's; dropping it destroys it.
pub trait DevxObject: fmt::Debug + Send + Sync {
    /// Changes it (`mlx5dv_devx_obj_modify`).
    ///
    /// # Errors
    /// As [`Devx`] says.
    fn modify(&self, what: &'static str, command: &[u8], answer: &mut [u8]) -> Result<()>;

    /// Asks about it (`mlx5dv_devx_obj_query`).
    ///
    /// # Errors
    /// As [`Devx`] says.
    fn query(&self, what: &'static str, command: &[u8], answer: &mut [u8]) -> Result<()>;
}

/// Memory that the NIC may use for queues; dropping it ends that.
pub trait DevxMemory: fmt::Debug + Send + Sync {
    /// Its number in commands.
    fn number(&self) -> u32;
}

/// A page of the NIC's registers; dropping it frees it.
pub trait DevxDoorbell: fmt::Debug + Send + Sync {
    /// Its number in commands.
    fn page(&self) -> u32;

    /// The page's first byte, as the host has it mapped, and the register's.
    fn mapped(&self) -> (NonNull<u8>, NonNull<u8>);
}

/// A NIC that was opened by verbs, with what [`LibMlx5`](super::LibMlx5) needs of it.
///
/// # Safety
/// The pointers are to a live `ibv_context` of an mlx5 NIC and a live `ibv_pd` of it, as long as the value is there; address handles are
/// `ibv_ah` of that protection domain.
pub(crate) unsafe trait VerbsDevice: fmt::Debug + Send + Sync {
    /// Its name.
    fn name(&self) -> String;

    /// `ibv_context`.
    fn context(&self) -> NonNull<c_void>;

    /// `ibv_pd`.
    fn protection_domain(&self) -> NonNull<c_void>;

    /// `ibv_create_ah`. The caller destroys it.
    ///
    /// # Errors
    /// As [`Devx`] says.
    fn create_address_handle(&self, path: &PathRequest) -> Result<NonNull<c_void>>;

    /// `ibv_destroy_ah`, of a handle that this value made, once.
    fn destroy_address_handle(&self, handle: NonNull<c_void>);

    /// Registers memory of the rank, as [`NicDriver::register`](crate::NicDriver::register).
    ///
    /// # Errors
    /// As there.
    fn register(&self, region: Region) -> Result<Arc<dyn Registered>>;
}
