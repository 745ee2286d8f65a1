//! The configuration of a world.

use std::time::Duration;

use anabranch_transport::limits::SharedSetting;
use anabranch_transport::{HostIdentity, TransportKind};
#[cfg(feature = "rdma")]
use anabranch_transport_rdma::{NicSource, RdmaConfig};
#[cfg(feature = "sdma")]
use anabranch_transport_sdma::SdmaConfig;

use crate::error::{Error, Result};

anabranch_ranks::word_enum! {
    /// How the heap's memory is obtained, and where peers find it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum HeapMode, word, "heap mode" {
        /// One allocation of the full size when the world is joined. Each peer's is mapped wherever the runtime puts it.
        #[default]
        Static = "static",
        /// Physical memory of the full size, mapped into one range of addresses: rank r's heap lies at `base + r * stride`, in
        /// the order of the world's ranks, and an address is arithmetic ([`crate::World::flat_heap`]). Takes virtual memory
        /// management (host and NVIDIA; AMD from ROCm 7.2 on, which has uncached physical memory) and the transport `p2p`.
        Flat = "flat",
    }
}

/// The configuration of one world, as a value. Equal on all ranks, but for the host identity and what opens the NIC, of which the name is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldConfig {
    /// Bytes of the symmetric heap of each rank (setting `heap.bytes`). 0: a 32nd of the memory of the smallest device, but at least 256 MiB
    /// and at most 4 GiB, and not more than half of what is free on any; [`crate::World::config`] has the size then.
    pub heap_bytes: u64,
    /// How its memory is obtained (`heap.mode`).
    pub heap_mode: HeapMode,
    /// Transports in order of preference; each peer gets the first that reaches it (`transport.order`).
    pub transports: Vec<TransportKind>,
    /// How long joining may take as a whole, and how long each later collective call of the host waits for the slowest rank
    /// (`deadline.rendezvous`).
    pub rendezvous_deadline: Duration,
    /// How long a kernel may run before its waits for peers fail (`deadline.operation`); [`crate::World::leave`] waits a second
    /// longer for work in flight.
    pub operation_deadline: Duration,
    /// After a kernel's deadline expired: how long to wait for the report that a peer was lost, which then is
    /// the cause that is reported.
    pub loss_grace: Duration,
    /// How copy engines are used where `transports` names them (`transport.sdma`). Equal on all ranks but for what engines in
    /// software do.
    #[cfg(feature = "sdma")]
    pub sdma: SdmaConfig,
    /// How the NIC is used where `transports` names it (`transport.rdma`). Equal on all ranks but for which NIC and address.
    #[cfg(feature = "rdma")]
    pub rdma: RdmaConfig,
    /// Who opens this rank's NIC then (`transport.rdma.driver`). Its name is equal on all ranks.
    #[cfg(feature = "rdma")]
    pub nic: NicSource,
    /// Whether ranks that are processes may use one GPU together, as `device.devices` says by listing it more than once. They divide its
    /// multiprocessors, so that all kernels that wait for each other fit. Under MPS (`nvidia-cuda-mps-control`) the kernels run at the
    /// same time; without it, in time slices of milliseconds. For tests on few GPUs. Equal on all ranks.
    pub share_devices: bool,
    /// Names this machine where the kernel's boot id does not (virtual machines restored from one image).
    pub host_identity: Option<HostIdentity>,
}

impl Default for WorldConfig {
    fn default() -> Self {
        Self {
            heap_bytes: 256 << 20,
            heap_mode: HeapMode::Static,
            transports: vec![TransportKind::P2p],
            rendezvous_deadline: Duration::from_secs(60),
            operation_deadline: Duration::from_secs(10),
            loss_grace: Duration::from_millis(200),
            #[cfg(feature = "sdma")]
            sdma: SdmaConfig::default(),
            #[cfg(feature = "rdma")]
            rdma: RdmaConfig::default(),
            #[cfg(feature = "rdma")]
            nic: NicSource::default(),
            share_devices: false,
            host_identity: None,
        }
    }
}

/// The smallest heap: 1 MiB, so that every runtime aligns it to a page.
pub(crate) const MIN_HEAP_BYTES: u64 = 1 << 20;

/// The heap for a device with these bytes free and in total, where `heap_bytes` is 0.
pub(crate) fn chosen_heap_bytes(free: u64, total: u64) -> u64 {
    let wanted = (total / 32).clamp(256 << 20, 4 << 30).min(free / 2);
    (wanted / MIN_HEAP_BYTES * MIN_HEAP_BYTES).max(MIN_HEAP_BYTES)
}

impl WorldConfig {
    /// Everything that has to be equal on all ranks, as setting and value.
    pub fn fields(&self) -> Vec<(String, String)> {
        let order: Vec<_> = self.transports.iter().map(|kind| kind.word()).collect();
        let all = [
            (
                "heap.bytes",
                match self.heap_bytes {
                    0 => "chosen from the devices".to_owned(),
                    bytes => bytes.to_string(),
                },
            ),
            ("heap.mode", self.heap_mode.to_string()),
            ("transport.order", order.join(", ")),
            ("deadline.rendezvous", format!("{:?}", self.rendezvous_deadline)),
            ("deadline.operation", format!("{:?}", self.operation_deadline)),
            ("deadline.loss_grace", format!("{:?}", self.loss_grace)),
            ("device.devices with a device listed twice", self.share_devices.to_string()),
        ];
        let of_transports = self.of_transports().into_iter().map(|(name, value, _)| (name, value));
        let fields = all.into_iter().chain(of_transports);
        fields.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The settings of transports that are equal on all ranks.
    fn of_transports(&self) -> Vec<SharedSetting> {
        let all: &[&[SharedSetting]] = &[
            #[cfg(feature = "sdma")]
            &self.sdma.shared(),
            #[cfg(feature = "rdma")]
            &[("transport.rdma.driver", self.nic.name().to_owned(), None)],
            #[cfg(feature = "rdma")]
            &self.rdma.shared(),
        ];
        all.concat()
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Config`] with the setting, what was given, and what is allowed.
    pub fn check(&self) -> Result<()> {
        let refuse = |field, given: String, expected: &'static str| {
            Err(Error::Config { field, given, expected: expected.into() })
        };
        if self.heap_bytes != 0 && self.heap_bytes < MIN_HEAP_BYTES {
            return refuse(
                "heap.bytes",
                self.heap_bytes.to_string(),
                "0 (chosen), or at least 1048576 (1 MiB)",
            );
        }
        if self.transports.is_empty() {
            return refuse("transport.order", "nothing".to_owned(), "at least one of p2p, sdma, rdma");
        }
        if self.heap_mode == HeapMode::Flat && !self.transports.contains(&TransportKind::P2p) {
            return refuse("heap.mode", "flat".to_owned(), "static, or p2p in transport.order");
        }
        if self.heap_mode == HeapMode::Flat && self.transports.contains(&TransportKind::Rdma) {
            let expected =
                "static, as memory of other machines cannot be mapped, or no rdma in transport.order";
            return refuse("heap.mode", "flat".to_owned(), expected);
        }
        for (field, given, allowed) in self.of_transports() {
            if let Some(allowed) = allowed {
                return Err(Error::Config { field, given, expected: allowed.into() });
            }
        }
        for (index, kind) in self.transports.iter().enumerate() {
            if self.transports.iter().take(index).any(|earlier| earlier == kind) {
                return refuse("transport.order", format!("{kind} twice"), "every transport at most once");
            }
        }
        for (field, duration) in [
            ("deadline.rendezvous", self.rendezvous_deadline),
            ("deadline.operation", self.operation_deadline),
        ] {
            if duration < Duration::from_millis(1) || duration > Duration::from_secs(24 * 3600) {
                return refuse(field, format!("{duration:?}"), "between 1 ms and 24 h");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_heap_fits_the_device() {
        const GIB: u64 = 1 << 30;
        let of = |free, total| chosen_heap_bytes(free, total);
        assert_eq!(of(140 * GIB, 141 * GIB), 4 * GIB);
        assert_eq!(of(79 * GIB, 80 * GIB), 80 * GIB / 32);
        assert_eq!(of(4 * GIB, 4 * GIB), 256 << 20);
        assert_eq!(of(GIB, 80 * GIB), GIB / 2, "a device in use");
        assert_eq!(of((101 << 20) + 5, 80 * GIB), 50 << 20, "whole MiB");
        assert_eq!(of(0, 80 * GIB), MIN_HEAP_BYTES, "the allocation fails, and reports what is free");
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let base = WorldConfig::default();
        base.check().unwrap();
        for (config, words) in [
            (WorldConfig { heap_bytes: 4096, ..base.clone() }, ["heap.bytes", "4096"]),
            (WorldConfig { transports: vec![], ..base.clone() }, ["transport.order", "at least one"]),
            (
                WorldConfig { transports: vec![TransportKind::P2p, TransportKind::P2p], ..base.clone() },
                ["transport.order", "p2p twice"],
            ),
            (
                WorldConfig {
                    heap_mode: HeapMode::Flat,
                    transports: vec![TransportKind::Rdma],
                    ..base.clone()
                },
                ["heap.mode = flat", "p2p in transport.order"],
            ),
            (
                WorldConfig {
                    heap_mode: HeapMode::Flat,
                    transports: vec![TransportKind::P2p, TransportKind::Rdma],
                    ..base.clone()
                },
                ["heap.mode = flat", "no rdma in transport.order"],
            ),
            #[cfg(feature = "rdma")]
            (
                WorldConfig { rdma: RdmaConfig { queues: 0, ..RdmaConfig::default() }, ..base.clone() },
                ["transport.rdma.queues = 0", "1 to 64"],
            ),
            #[cfg(feature = "rdma")]
            (
                WorldConfig { rdma: RdmaConfig { entries: 48, ..RdmaConfig::default() }, ..base.clone() },
                ["transport.rdma.entries = 48", "a power of two from 16 to 32768"],
            ),
            #[cfg(feature = "rdma")]
            (
                WorldConfig {
                    rdma: RdmaConfig { patience: Duration::ZERO, ..RdmaConfig::default() },
                    ..base.clone()
                },
                ["transport.rdma.patience", "0ns"],
            ),
            (
                WorldConfig { operation_deadline: Duration::ZERO, ..base.clone() },
                ["deadline.operation", "0ns"],
            ),
        ] {
            let message = config.check().unwrap_err().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }

    #[test]
    fn every_field_but_what_is_the_ranks_own_is_compared() {
        // A new field has to be put into `fields` or excepted here.
        let WorldConfig {
            heap_bytes: _,
            heap_mode: _,
            transports: _,
            rendezvous_deadline: _,
            operation_deadline: _,
            loss_grace: _,
            #[cfg(feature = "sdma")]
                sdma: _,
            #[cfg(feature = "rdma")]
                rdma: _,
            #[cfg(feature = "rdma")]
                nic: _,
            share_devices: _,
            host_identity: _,
        } = WorldConfig::default();
        let of_features = 3 * usize::from(cfg!(feature = "sdma")) + 6 * usize::from(cfg!(feature = "rdma"));
        assert_eq!(WorldConfig::default().fields().len(), 7 + of_features);
    }
}
