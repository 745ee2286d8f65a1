//! The kernels of the library.

use anabranch_hip_jit::KernelSpec;

/// Every kernel of the library in every variant: what a prebuild compiles, and the only list of them.
pub fn kernel_registry() -> Vec<KernelSpec> {
    let mut all = vec![
        KernelSpec::new(&anabranch_shmem::TEAM_BARRIER_UNIT),
        #[cfg(feature = "sdma")]
        anabranch_shmem::engine_copies_kernel(),
        #[cfg(feature = "rdma")]
        anabranch_shmem::nic_team_kernel(
            anabranch_transport_rdma::Provider::Mlx5,
            anabranch_transport_rdma::Atomics::Masked,
        ),
        #[cfg(feature = "rdma")]
        anabranch_shmem::nic_team_kernel(
            anabranch_transport_rdma::Provider::Posted,
            anabranch_transport_rdma::Atomics::Standard,
        ),
        KernelSpec::new(&anabranch_shmem::p2p::P2P_UNIT),
        KernelSpec::new(&anabranch_shmem::CLOCK_UNIT),
    ];
    all.extend(anabranch_ep::kernels());
    all.extend(anabranch_ccl::kernels());
    all
}
