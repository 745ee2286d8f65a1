//! Probing and completing a rank's queue pairs by kernels.

use anabranch_hip_jit::DevicePointer;
use anabranch_transport::{PeerInfo, TransportKind};
use anabranch_transport_rdma::{ROUTE_MAPPING, ROUTE_NIC, ReadOrder};

use crate::collective::group_id;
use crate::error::{Error, Result};
use crate::fault::names::OperationCode;
use crate::route::{NicDrainArgs, NicProbeArgs, Table, TeamView};
use crate::world::World;

impl World {
    pub(super) fn probe(&self, expected: impl Fn(&PeerInfo) -> u64) -> Result<()> {
        let (mut queues, each) = self.nic_queues(self.group());
        if queues.iter().all(|queue| queue.route != ROUTE_NIC) {
            return Ok(());
        }
        let Some(kernels) = self.team_kernels()?.nic else { return Ok(()) };
        let (device, service) = (self.device(), &self.inner.service);
        let order = self.inner.with_connections(|connections| connections.transports.rdma()?.read_order());
        let mut words = vec![0_u8; queues.len() * 8];
        let into_host = order == Some(ReadOrder::Unordered);
        let mut host = None;
        if into_host {
            // Completions lie in memory of the host, too: these words are there when the completions are.
            for queue in &mut queues {
                queue.read_order = ReadOrder::Ordered.number();
            }
            let buffer = device.allocate_host(words.len())?;
            buffer.write(0, &words)?;
            // SAFETY: the buffer is declared before the registration's use and dropped after it, as the fields of a tuple are; the kernel
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
        unsafe { kernels.probe.launch(self.one_wave(), service, &arguments) }?;
        self.synchronize(service)?;
        match &host {
            Some((_, buffer)) => buffer.read(0, &mut words)?,
            // SAFETY: the table holds as many words, and they are not written any more.
            None => unsafe { device.read_memory(seen.address(), &mut words) }?,
        }
        let peers = self.peers().iter().flat_map(|peer| std::iter::repeat_n(peer, each as usize));
        for ((queue, word), peer) in queues.iter().zip(words.as_chunks::<8>().0).zip(peers) {
            let read = u64::from_le_bytes(*word);
            let expected = expected(peer);
            if queue.route == ROUTE_NIC && read != expected {
                return Err(Error::Probe { peer: peer.rank, kind: TransportKind::Rdma, read, expected });
            }
        }
        Ok(())
    }

    /// Completes what this rank has put by NIC, after all its launches, and waits for it: when all ranks have done so, none waits for
    /// data that does not come. Not collective; no peer has left. What fails, or is not done within the operation deadline, is a fault of the
    /// world, unless it went to a rank that this one can do without.
    pub(crate) fn complete_nics(&self) -> Result<()> {
        let (mut queues, each) = self.nic_queues(self.group());
        let peers = self.peers().iter().flat_map(|peer| std::iter::repeat_n(peer.rank, each as usize));
        for (queue, peer) in queues.iter_mut().zip(peers) {
            if self.inner.state.tolerated(|tolerated| tolerated.names(peer)) {
                queue.route = ROUTE_MAPPING;
            }
        }
        if queues.iter().all(|queue| queue.route != ROUTE_NIC) {
            return Ok(());
        }
        let Some(kernels) = self.team_kernels()?.nic else { return Ok(()) };
        let table = self.inner.tables.write(bytemuck::cast_slice(&queues))?;
        let team = self.view_of_nics(&table, each);
        let arguments = NicDrainArgs { team, operation: OperationCode::NIC_DRAIN.0, reserved: 0 };
        // SAFETY: the kernel's struct; the table outlives the wait below. Where that ends first, the world is being left: nothing is
        // written into its tables any more, and they stay for good.
        unsafe { kernels.drain.launch(self.one_wave(), &self.inner.service, &arguments) }?;
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
