//! What a world does with all queue pairs of its rank: the first read of every peer's memory while it is joined, and their completion before
//! it is left.

use anabranch_bootstrap::Deadline;
use anabranch_hip_jit::DevicePointer;
use anabranch_transport::{PeerInfo, TransportKind};
use anabranch_transport_rdma::{MEANS_MAPPING, MEANS_NIC, ReadOrder};

use crate::collective::group_id;
use crate::error::{Error, Result};
use crate::fault::OperationCode;
use crate::nic_team::{NicDrainArgs, NicProbeArgs, load};
use crate::tables::Table;
use crate::team::TeamView;
use crate::world::World;

impl World {
    /// Reads the first word of each peer's heap by each queue pair to it, where some rank is reached by NIC: to memory of the host where
    /// nothing orders reads into memory of the device. Collective over all ranks then; others do nothing.
    ///
    /// # Errors
    /// [`Error::Probe`]; what made the world fail, with what the NIC says; [`Error::Elsewhere`].
    pub(crate) fn probe_nics(&self, expected: impl Fn(&PeerInfo) -> u64, deadline: Deadline) -> Result<()> {
        // Equal on all ranks: the order of transports is.
        if !self.config().transports.contains(&TransportKind::Rdma) {
            return Ok(());
        }
        // Both here: behind the last step in which all ranks agree, nothing fails on one of them alone.
        let probed = self.probe(expected).and_then(|()| self.watch_nics());
        let status = probed.as_ref().map_err(|error| anabranch_hip::with_causes(error)).copied();
        self.agree_status_by(self.group(), "read the peers' heaps by NIC", status, deadline)?;
        probed
    }

    fn probe(&self, expected: impl Fn(&PeerInfo) -> u64) -> Result<()> {
        let (mut queues, each) = self.nic_queues(self.group());
        if queues.iter().all(|queue| queue.means != MEANS_NIC) {
            return Ok(());
        }
        let Some(kernels) = load(self)? else { return Ok(()) };
        let (device, service) = (self.device(), &self.inner.service);
        let order = self.inner.with_connections(|connections| connections.transports.rdma()?.read_order());
        let mut words = vec![0_u8; queues.len() * 8];
        let into_host = order == Some(ReadOrder::Unordered);
        let mut host = None;
        if into_host {
            // Completions lie in memory of the host, too: these words are there when they say so.
            for queue in &mut queues {
                queue.read_order = ReadOrder::Ordered.number();
            }
            let buffer = device.allocate_host(words.len())?;
            buffer.write(0, &words)?;
            // SAFETY: the buffer is declared before the registration's use and dropped behind it, as the fields of a tuple are; the kernel
            // has ended then, or the queue pairs' memory is kept and the registration's end stops the NIC.
            let range = unsafe { self.register_local(buffer.device_address(), words.len() as u64) }?;
            host = Some((range, buffer));
        }
        let tables = &self.inner.tables;
        let table = tables.write(bytemuck::cast_slice(&queues))?;
        let seen = tables.write(&vec![0; queues.len()])?;
        let address = host.as_ref().map_or(seen.address(), |(_, buffer)| buffer.device_address());
        let arguments = NicProbeArgs {
            team: self.view_of_nics(&table, each),
            seen: DevicePointer::new(address),
            operation: OperationCode::NIC_PROBE.0,
            into_host: into_host.into(),
        };
        // SAFETY: the kernel's struct; the tables outlive the wait below, in which the kernel comes to its end: its waits have a deadline.
        unsafe { kernels.probe.launch(1, device.wave_size(), 0, service, &arguments) }?;
        self.synchronize(service)?;
        match &host {
            Some((_, buffer)) => buffer.read(0, &mut words)?,
            // SAFETY: the table holds as many words, and nobody writes them any more.
            None => unsafe { device.read_memory(seen.address(), &mut words) }?,
        }
        let peers = self.peers().iter().flat_map(|peer| std::iter::repeat_n(peer, each as usize));
        for ((queue, word), peer) in queues.iter().zip(words.chunks_exact(8)).zip(peers) {
            let read = word.try_into().map_or(0, u64::from_le_bytes);
            let expected = expected(peer);
            if queue.means == MEANS_NIC && read != expected {
                return Err(Error::Probe { peer: peer.rank, kind: TransportKind::Rdma, read, expected });
            }
        }
        Ok(())
    }

    /// Completes what this rank has put by NIC, behind all its launches, and waits for it: when all ranks have done so, nobody waits for
    /// what does not come. Not collective; no peer has left. What fails, or is not done within the operation deadline, is a fault of the
    /// world, unless it went to a rank that this one can do without.
    pub(crate) fn complete_nics(&self) -> Result<()> {
        let (mut queues, each) = self.nic_queues(self.group());
        let peers = self.peers().iter().flat_map(|peer| std::iter::repeat_n(peer.rank, each as usize));
        for (queue, peer) in queues.iter_mut().zip(peers) {
            if self.inner.alarm.tolerated(|tolerated| tolerated.names(peer)) {
                queue.means = MEANS_MAPPING;
            }
        }
        if queues.iter().all(|queue| queue.means != MEANS_NIC) {
            return Ok(());
        }
        let Some(kernels) = load(self)? else { return Ok(()) };
        let table = self.inner.tables.write(bytemuck::cast_slice(&queues))?;
        let team = self.view_of_nics(&table, each);
        let arguments = NicDrainArgs { team, operation: OperationCode::NIC_DRAIN.0, reserved: 0 };
        // SAFETY: the kernel's struct; the table outlives the wait below. Where that ends first, the world is being left: nothing is
        // written into its tables any more, and they stay for good.
        unsafe { kernels.drain.launch(1, self.device().wave_size(), 0, &self.inner.service, &arguments) }?;
        self.inner.drain()
    }

    /// All ranks, with queue pairs alone.
    fn view_of_nics(&self, table: &Table, each: u32) -> TeamView {
        TeamView {
            size: self.size(),
            rank: self.rank().get(),
            group: group_id(self.group()),
            peer_bases: DevicePointer::NULL,
            control: self.control(),
            queues: DevicePointer::NULL,
            nics: DevicePointer::new(table.address()),
            queues_per_peer: 0,
            nics_per_peer: each,
        }
    }
}
