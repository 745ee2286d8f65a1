//! What is done and how it has to end. Both sides list the cases in the same order.

use core::time::Duration;

use anabranch_clock::{Moment, sleep};
use anabranch_transport_rdma::{PostedOpcode, PostedRequest};
use anyhow::{Context as _, Result, ensure};

use crate::kernel::{Failed, wait_for};
use crate::member::{ENTRIES, HEAP_BYTES, Member, PATIENCE};

/// Where what comes back is put: the second half of a member's memory.
const BACK: usize = HEAP_BYTES / 2;
/// Lengths of puts and gets: none, odd ones, a packet and one more, many packets.
const LENGTHS: [usize; 8] = [0, 1, 7, 1023, 1024, 1025, 65_536, (1 << 20) + 3];
/// Rounds of signals, laps of full rings.
const ROUNDS: u64 = 200;
const LAPS: u64 = 20;
/// Statuses of `ibv_wc_status`.
const LOCAL_PROTECTION: u32 = 4;
const LOCAL_OPERATION: u32 = 2;
const REMOTE_ACCESS: u32 = 10;
const RETRIES_EXCEEDED: u32 = 12;

type Case = fn(&mut Member) -> Result<()>;

/// Name, what the first does, what the second does.
const CASES: [(&str, Case, Case); 9] = [
    ("put", put, put_seen),
    ("get", get, get_given),
    ("values", values, values_seen),
    ("atomics", atomics, atomics_seen),
    ("signals behind data", signals, signals_seen),
    ("full rings", full_rings, full_rings_seen),
    ("a wrong remote key", wrong_remote_key, |_| Ok(())),
    ("a request that is not allowed", not_allowed, |_| Ok(())),
    ("after errors the rest works", put, put_seen),
];

pub(crate) fn run_active(member: &mut Member) -> Result<()> {
    for (name, first, _) in CASES {
        let begun = Moment::now();
        member.link.meet().context(name)?;
        first(member).context(name)?;
        member.link.meet().with_context(|| format!("{name}, on the other side"))?;
        println!("{name}: well, {:.1?}", begun.elapsed());
    }
    killed(member).context("a killed peer")
}

pub(crate) fn run_passive(member: &mut Member) -> Result<()> {
    for (name, _, second) in CASES {
        member.link.meet().context(name)?;
        second(member).with_context(|| format!("{name}, second process"))?;
        member.link.meet().context(name)?;
    }
    member.link.meet()?;
    // The other has requests on their way by then.
    sleep(Duration::from_millis(100));
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    anyhow::bail!("it was not killed")
}

/// Bytes that are different for each length and place.
fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 31 + seed * 7 + index / 251) as u8 | 1).collect()
}

/// Where the range of a length lies, with a byte before and one behind that stay zero.
fn places() -> Vec<(usize, usize)> {
    let mut next = 1;
    let place = |length: &usize| {
        let start = next;
        next += length + 2;
        (start, *length)
    };
    LENGTHS.iter().map(place).collect()
}

fn put(member: &mut Member) -> Result<()> {
    for (start, length) in places() {
        member.write(start, &pattern(length, length))?;
        let request = member.request(PostedOpcode::Write, start, start, length);
        member.queues[0].run(&request)?;
    }
    member.link.meet()
}

fn put_seen(member: &mut Member) -> Result<()> {
    member.link.meet()?;
    for (start, length) in places() {
        let found = member.read(start - 1, length + 2)?;
        ensure!(found[1..=length] == pattern(length, length), "{length} bytes differ");
        ensure!(found[0] == 0 && found[length + 1] == 0, "a byte beside {length} bytes was written");
    }
    member.heap.fill(0)?;
    Ok(())
}

fn get(member: &mut Member) -> Result<()> {
    member.heap.fill(0)?;
    member.link.meet()?;
    for (start, length) in places() {
        let request = member.request(PostedOpcode::Read, BACK + start, start, length);
        member.queues[1].run(&request)?;
        let found = member.read(BACK + start - 1, length + 2)?;
        ensure!(found[1..=length] == pattern(length + 1, length), "{length} bytes differ");
        ensure!(found[0] == 0 && found[length + 1] == 0, "a byte beside {length} bytes was written");
    }
    Ok(())
}

fn get_given(member: &mut Member) -> Result<()> {
    for (start, length) in places() {
        member.write(start, &pattern(length + 1, length))?;
    }
    member.link.meet()
}

fn values(member: &mut Member) -> Result<()> {
    member.link.meet()?;
    for bytes in [1usize, 2, 4, 8] {
        let value = member.value(PostedOpcode::WriteValue, 0, bytes * 64, 0x8877_6655_4433_2211);
        member.queues[0].run(&PostedRequest { bytes: bytes as u32, local_key: 0, local: 0, ..value })?;
    }
    member.link.meet()
}

fn values_seen(member: &mut Member) -> Result<()> {
    member.heap.fill(0)?;
    member.link.meet()?;
    member.link.meet()?;
    for bytes in [1usize, 2, 4, 8] {
        let expected = 0x8877_6655_4433_2211_u64 & (u64::MAX >> (64 - 8 * bytes));
        let found = member.read(bytes * 64, 16)?;
        ensure!(found[..8] == expected.to_le_bytes() && found[8..] == [0; 8], "{bytes} bytes: {found:x?}");
    }
    Ok(())
}

fn atomics(member: &mut Member) -> Result<()> {
    let (sum, exchanged, back) = (0usize, 64usize, BACK);
    member.link.meet()?;
    let mut last = Vec::new();
    for index in 0..ROUNDS as usize {
        let request = member.value(PostedOpcode::FetchAdd, back + index * 8, sum, 3);
        let queue = &mut member.queues[index % 2];
        last.push((index % 2, queue.fill(&request)?));
        queue.ring();
    }
    for (queue, position) in last {
        member.queues[queue].wait(position)?;
    }
    let mut olds = member.words(back, ROUNDS as usize)?;
    olds.sort_unstable();
    ensure!(olds.iter().enumerate().all(|(index, old)| *old == index as u64 * 3), "old values: {olds:?}");

    let mut swap = |compare, value| -> Result<u64> {
        let request = member.value(PostedOpcode::CompareSwap, back, exchanged, value);
        member.queues[0].run(&PostedRequest { compare, ..request })?;
        Ok(member.words(back, 1)?[0])
    };
    ensure!(swap(0, u64::MAX - 1)? == 0, "the first swap sees zero");
    ensure!(swap(7, 9)? == u64::MAX - 1, "a swap that does not fit sees the value");
    ensure!(swap(u64::MAX - 1, 5)? == u64::MAX - 1, "and changes nothing");
    member.link.meet()
}

fn atomics_seen(member: &mut Member) -> Result<()> {
    member.heap.fill(0)?;
    member.link.meet()?;
    member.link.meet()?;
    let words = member.words(0, 9)?;
    ensure!((words[0], words[8]) == (ROUNDS * 3, 5), "{words:?}");
    Ok(())
}

/// A payload of 4 KiB, then the number of the round; the other checks and answers with the number.
fn signals(member: &mut Member) -> Result<()> {
    member.link.meet()?;
    for round in 1..=ROUNDS {
        member.write(4096, &pattern(round as usize, 4096))?;
        let payload = member.request(PostedOpcode::Write, 4096, 4096, 4096);
        let signal = member.value(PostedOpcode::WriteValue, 0, 0, round);
        member.queues[2].fill(&payload)?;
        member.queues[2].fill(&signal)?;
        member.queues[2].ring();
        wait_for(member.address(0), round)?;
    }
    Ok(())
}

fn signals_seen(member: &mut Member) -> Result<()> {
    member.heap.fill(0)?;
    member.link.meet()?;
    for round in 1..=ROUNDS {
        wait_for(member.address(0), round)?;
        let found = member.read(4096, 4096)?;
        ensure!(found == pattern(round as usize, 4096), "the signal of round {round} came before its data");
        let answer = member.value(PostedOpcode::WriteValue, 0, 0, round);
        member.queues[2].run(&answer)?;
    }
    Ok(())
}

/// Every entry of every ring on its way at once.
fn full_rings(member: &mut Member) -> Result<()> {
    let (entries, queues) = (ENTRIES as usize, 2);
    for lap in 0..LAPS {
        member.write(0, &pattern(lap as usize, queues * entries * 64))?;
        for queue in 0..queues {
            for entry in 0..entries {
                let place = (queue * entries + entry) * 64;
                let request = member.request(PostedOpcode::Write, place, place, 64);
                member.queues[queue].fill(&request)?;
            }
        }
        for queue in 0..queues {
            member.queues[queue].ring();
        }
        for queue in 0..queues {
            member.queues[queue].wait(member.queues[queue].last())?;
        }
        member.link.meet()?;
        member.link.meet()?;
    }
    Ok(())
}

fn full_rings_seen(member: &mut Member) -> Result<()> {
    for lap in 0..LAPS {
        member.link.meet()?;
        let bytes = 2 * ENTRIES as usize * 64;
        ensure!(member.read(0, bytes)? == pattern(lap as usize, bytes), "lap {lap} differs");
        member.link.meet()?;
    }
    member.heap.fill(0)?;
    Ok(())
}

/// A queue ends as expected, in time, and says why.
fn ends(
    member: &mut Member,
    queue: usize,
    request: &PostedRequest,
    status: u32,
    words: &[&str],
) -> Result<()> {
    let producer = &mut member.queues[queue];
    let position = producer.fill(request)?;
    producer.ring();
    let begun = Moment::now();
    let outcome = producer.outcome(position)?;
    ensure!(outcome == Some(Failed { position, status }), "{outcome:?} in place of status {status}");
    // The NIC's retries, the driver's deadline, and what a busy machine adds.
    ensure!(begun.elapsed() < PATIENCE * 4, "it took {:?}", begun.elapsed());
    let text = producer.queue.stopped().context("the queue does not say why it stopped")?;
    println!("  after {:.1?}: {text}", begun.elapsed());
    for word in words {
        ensure!(text.contains(word), "{word:?} is not in {text:?}");
    }
    Ok(())
}

fn wrong_remote_key(member: &mut Member) -> Result<()> {
    let request = member.request(PostedOpcode::Write, 0, 0, 64);
    let request = PostedRequest { remote_key: request.remote_key ^ 0x00ff_ff00, ..request };
    ends(
        member,
        3,
        &request,
        REMOTE_ACCESS,
        &["rank 1", "channel 3", "access refused by the peer's NIC", "vendor syndrome"],
    )
}

fn not_allowed(member: &mut Member) -> Result<()> {
    let request = member.request(PostedOpcode::WriteImmediate, 0, 0, 64);
    ends(member, 1, &request, LOCAL_OPERATION, &["rank 1", "channel 1", "unsupported"])?;
    let request = member.request(PostedOpcode::Read, 0, 0, 64);
    let request = PostedRequest { local_key: request.local_key ^ 0x00ff_ff00, ..request };
    ends(member, 2, &request, LOCAL_PROTECTION, &["rank 1", "channel 2", "local protection error"])
}

/// The last: the other process is killed while requests are on their way. They end in time, and so does what is asked for later of a
/// queue that was quiet.
fn killed(member: &mut Member) -> Result<()> {
    let payload = member.request(PostedOpcode::Write, 0, 0, 4096);
    member.link.meet()?;
    let begun = Moment::now();
    let mut asked: u64 = 0;
    let failed = loop {
        // Until a queue has failed there is room in time.
        let producer = &mut member.queues[0];
        match producer.next_with_room()? {
            Ok(()) => producer.fill(&payload)?,
            Err(failed) => break failed,
        };
        producer.ring();
        asked += 1;
    };
    ensure!(failed.status == RETRIES_EXCEEDED, "{failed:?}");
    ensure!(begun.elapsed() < PATIENCE * 5, "it took {:?}", begun.elapsed());
    let text = member.queues[0].queue.stopped().context("the queue does not say why it stopped")?;
    println!("  after {:.1?} and {asked} requests: {text}", begun.elapsed());
    member.link.wait_for_the_end()?;
    ends(member, 4, &payload, RETRIES_EXCEEDED, &["rank 1", "channel 4", "does not answer"])?;
    println!("a killed peer: well");
    Ok(())
}
