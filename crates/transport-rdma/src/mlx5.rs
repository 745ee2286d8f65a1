//! NVIDIA ConnectX driven by the GPU: queue pairs made by DEVX, the way in which libmlx5 hands commands of the NIC's own interface
//! through the kernel. libmlx5's own queue pairs will not do: their completion queues cannot be collapsed to one entry, which kernels
//! read without keeping count.
//!
//! [`Mlx5Driver`] is the [`NicDriver`](crate::NicDriver), opened by [`MachineNics`](crate::MachineNics). It speaks to a NIC through [`Devx`], which
//! `LibMlx5` implements with `libmlx5.so.1`, opened at run time, on a context of verbs (`VerbsDevice`).
//!
//! Commands are written from tables of bit fields (`layout`) that were typed after the programmer's reference as Linux has it
//! (`include/linux/mlx5/mlx5_ifc.h`, whose names of reserved fields contain their offsets) and compared with the copies in UCX
//! (`ib_mlx5_ifc.h`) and DPDK (`mlx5_prm.h`). Which fields a connection needs follows NVSHMEM (`ibgda.cpp`) and UCX (`rc_mlx5_devx.c`).
//!
//! Ring, completion entry and doorbell record lie in pinned host memory: it needs no peer-memory module and no dma-buf, and the
//! host can read the completion entry of a queue pair that has stopped. The doorbell is a page of the NIC's registers, mapped to the
//! device as the runtime maps registers.
//!
//! Completions in memory of the GPU (a dma-buf, by `mlx5dv_devx_umem_reg_ex`) would save the DUMP after what fetches values
//! ([`ReadOrder::Dumped`](crate::ReadOrder::Dumped)). They are not there, as a registration that succeeds does not say that reads are in order:
//!
//! * A dma-buf that is registered so is pinned, and need not stay in memory of the GPU. Linux before 6.15 moves those of amdgpu to memory of
//!   the host (`amdgpu_dma_buf_pin`, until commit f5e7fabd1f5c), and so do later ones without `CONFIG_DMABUF_MOVE_NOTIFY` (05185812ae36).
//!   Values and completions would then be in two memories, and no interface reports it.
//! * NVIDIA's GPUs show a NIC's writes to kernels in order only where their driver says so
//!   (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`). NVSHMEM dumps by that attribute, wherever its queues are.
//! * What is read into memory of the host that was registered would need a DUMP of that memory.
//! * The host looks at the last completion of every queue pair each 20 ms, while others capture graphs, which copies by the runtime may end.
//!
//! With a DUMP none of this matters.
//!
//! There is no receive queue: a peer's write with an immediate value fails at the peer (syndrome 0x16).
//!
//! Both ends of a connection exchange the number of the queue pair, the packet sequence number that it begins with, the kind of
//! its address and how many reads it answers at a time (`endpoint.rs`, as the driver of verbs does).
//!
//! **Nothing here has run on hardware.** It is verified by a fake NIC that checks the order and the bytes of commands, by a ConnectX in
//! software below the real libmlx5 (`dev/softhca`), and by the layouts of libmlx5's own structures.

mod capabilities;
mod commands;
mod completion;
#[allow(unsafe_code, reason = "states what a vendor's library needs of pointers")]
mod devx;
mod doorbell;
mod driver;
mod field;
#[allow(dead_code, reason = "the tables are complete, and tests check each as a whole")]
mod layout;
#[allow(unsafe_code, reason = "calls functions of a vendor's library through pointers resolved at run time")]
mod library;
#[allow(unsafe_code, reason = "hands pointers of verbs to a vendor's library")]
mod opened;
mod path;
mod queue;
mod request;
#[cfg(test)]
mod tests;

pub use devx::{Devx, DevxDoorbell, DevxMemory, DevxObject};
pub use driver::Mlx5Driver;
pub(crate) use library::LibMlx5;
pub(crate) use opened::open_verbs;
pub use path::{NextHop, PathRequest, PortFacts};
