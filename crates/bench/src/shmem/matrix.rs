//! Every operation at every scope between all ranks at once, with every byte of every rank's region compared.

use anabranch::{Error, GlobalRank, World};
use anabranch_conformance::shmem::{
    ATOMICS, AtomicCase, AtomicKind, AtomicRun, AtomicWays, COPY, Copies, CopyArgs, CopyCase, CopyKind,
    MESSAGE, MessageBuffers, MessageMode, MessageRun, draw,
};
use anabranch_transport::{Operation, Route, Scope, Support};

use super::super::link;
use super::region::{Grid, OPERATION, Region, words};

/// The scopes, in the order of the kernels' numbers.
const SCOPES: [Scope; 3] = [Scope::Thread, Scope::Wave, Scope::Block];
/// Rounds of messages, and bytes of each.
const ROUNDS: u32 = 20;
const MESSAGE_BYTES: u32 = 211;

/// What one cell of the matrix came to.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) op: &'static str,
    pub(crate) scope: &'static str,
    /// What the cell did, where the operation alone does not say it.
    pub(crate) what: String,
    /// Operations of this rank.
    pub(crate) operations: u64,
    /// Bytes of a message, or of an element.
    pub(crate) bytes: Option<u64>,
    /// Of the slowest rank.
    pub(crate) us: f64,
    /// At all ranks.
    pub(crate) verified: bool,
}

/// Operations that some route has not, and so were left out.
pub(crate) type Lacking = Vec<String>;

/// Runs all of it.
#[derive(Debug)]
pub(crate) struct Matrix<'w> {
    region: Region<'w>,
    /// What each rank's region holds before each cell, as every rank knows.
    initial: Vec<Vec<u8>>,
    /// Whether any rank is reached by NIC: then each is by some, as nodes are.
    by_nic: bool,
    /// Whether all ranks have signals that add.
    adds: bool,
    pub(crate) cells: Vec<Cell>,
    pub(crate) lacking: Lacking,
}

/// Bytes of the heap that it takes.
pub(crate) fn heap_bytes(ranks: u32) -> u64 {
    let copies = |kind| Copies::draw(kind, ranks, &mut 0).bytes;
    // Alignments that are drawn otherwise take a few bytes more or less a case.
    let copies = copies(CopyKind::PutSignal).max(copies(CopyKind::P)) + (64 << 10);
    copies.max(AtomicRun::new(ranks, 64).bytes()).max(messages(ranks).region_bytes())
}

fn messages(ranks: u32) -> MessageRun {
    MessageRun { ranks, bytes: MESSAGE_BYTES, rounds: ROUNDS }
}

/// What the cells of the matrix call it.
pub(crate) fn operation(kind: CopyKind) -> Operation {
    match kind {
        CopyKind::Put => Operation::Put,
        CopyKind::PutNbi => Operation::PutNbi,
        CopyKind::Get => Operation::Get,
        CopyKind::GetNbi => Operation::GetNbi,
        CopyKind::PutSignal => Operation::PutSignal,
        CopyKind::PutSignalNbi => Operation::PutSignalNbi,
        CopyKind::P => Operation::PutValue,
        CopyKind::G => Operation::GetValue,
    }
}

/// What the kernels of an atomic case call.
fn operations(kind: AtomicKind) -> &'static [Operation] {
    match kind {
        AtomicKind::Add => &[Operation::AtomicAdd],
        AtomicKind::FetchAdd => &[Operation::AtomicFetchAdd],
        AtomicKind::Or => &[Operation::AtomicOr],
        AtomicKind::And => &[Operation::AtomicAnd],
        AtomicKind::Xor => &[Operation::AtomicXor],
        AtomicKind::FetchBits => {
            &[Operation::AtomicFetchOr, Operation::AtomicFetchXor, Operation::AtomicFetchAnd]
        }
        AtomicKind::Swap | AtomicKind::SetFetch => &[Operation::AtomicSwap],
        AtomicKind::CompareSwap => &[Operation::AtomicCompareSwap],
        AtomicKind::SignalAdd => &[Operation::Signal],
    }
}

/// The first of the routes that has not the operation, for elements of so many bytes, in words.
pub(crate) fn lacking<'a>(
    world: &World,
    mut routes: impl Iterator<Item = &'a Route>,
    operation: Operation,
    scope: Scope,
    element_bytes: u32,
) -> Option<String> {
    let has = |support| match support {
        Support::Implemented | Support::SetOnly => true,
        Support::Words64 => element_bytes == 8,
        Support::Unsupported => false,
    };
    let route = routes.find(|route| !has(world.support(route.peer, operation, scope)))?;
    let narrow =
        if operation.is_atomic() { format!(" of {} bits", 8 * element_bytes) } else { String::new() };
    Some(format!("{operation}{narrow} at scope {scope}, over {}", route_and_limits(route)))
}

/// Signals that add, where a route has only those that set, in words.
pub(crate) fn lacking_adds<'a>(world: &World, mut routes: impl Iterator<Item = &'a Route>) -> Option<String> {
    let (operation, scope) = (Operation::Signal, Scope::Block);
    let route = routes.find(|route| world.support(route.peer, operation, scope) == Support::SetOnly)?;
    Some(format!("signals that add, alone and after copies, over {}", route_and_limits(route)))
}

/// A route, and what its reason says that it does not do.
fn route_and_limits(route: &Route) -> String {
    let limits: Vec<_> = route.reason.split("; ").filter(|clause| clause.starts_with("no ")).collect();
    let why = if limits.is_empty() { String::new() } else { format!(": {}", limits.join("; ")) };
    format!("{} ({}){why}", route.kind, route.peer)
}

impl<'w> Matrix<'w> {
    /// Collective over the world.
    ///
    /// # Errors
    /// More than the heap holds; what made the world fail.
    pub(crate) fn new(world: &'w World) -> Result<Self, Error> {
        let ranks = world.size();
        let bytes = heap_bytes(ranks);
        let mut state = 1;
        let initial = (0..ranks).map(|_| (0..bytes).map(|_| draw(&mut state) as u8).collect()).collect();
        let region = Region::new(world, world.group(), bytes)?;
        let by_nic = (0..ranks).any(|rank| world.is_by_nic(GlobalRank::new(rank)));
        Ok(Self { region, initial, by_nic, adds: true, cells: Vec::new(), lacking: Vec::new() })
    }

    /// Runs the whole matrix; calls `say` with the next step. Collective over the world.
    ///
    /// # Errors
    /// What made the world fail. Bytes that are wrong are in the cells.
    pub(crate) fn run(&mut self, say: impl Fn(&str)) -> anyhow::Result<()> {
        let mut state = 7;
        let world = self.region.world;
        self.adds = self.all_have(lacking_adds(world, world.routes().iter()))?;
        for kind in CopyKind::ALL {
            for (scope, number) in SCOPES.into_iter().zip(0..if kind.is_value() { 1 } else { 3 }) {
                say(&format!("{} at scope {scope}", operation(kind)));
                if self.has(&[operation(kind)], scope, 8)? {
                    self.copies(kind, scope, number, &mut state)?;
                }
            }
        }
        for (scope, number) in SCOPES.into_iter().zip(0..) {
            for mode in MessageMode::ALL {
                if mode != MessageMode::PutFenceSignal || scope == Scope::Thread {
                    say(&format!("messages at scope {scope}"));
                    if self.has(&[Operation::PutSignal, Operation::SignalWait], scope, 8)? {
                        self.messages(mode, scope, number, &mut state)?;
                    }
                }
            }
        }
        for case in AtomicCase::all() {
            say(&format!("{case:?}"));
            let scope = if case.kind == AtomicKind::SignalAdd { Scope::Block } else { Scope::Thread };
            let adds = self.adds || case.kind != AtomicKind::SignalAdd;
            if adds && self.has(operations(case.kind), scope, case.element_bytes)? {
                self.atomics(case, AtomicWays::Mapped)?;
                if self.by_nic {
                    self.atomics(case, AtomicWays::Nic)?;
                }
            }
        }
        Ok(())
    }

    /// Gives the region back. Collective over the world.
    pub(crate) fn free(self) -> Result<(), Error> {
        self.region.free()
    }

    /// Whether all ranks have it; what some rank has not is noted. Collective over the world.
    fn has(&mut self, operations: &[Operation], scope: Scope, element_bytes: u32) -> Result<bool, Error> {
        let world = self.region.world;
        let lacks = operations
            .iter()
            .find_map(|one| lacking(world, world.routes().iter(), *one, scope, element_bytes));
        self.all_have(lacks)
    }

    /// Whether no rank lacks something; what some rank does is noted. Collective over the world.
    fn all_have(&mut self, lacks: Option<String>) -> Result<bool, Error> {
        let world = self.region.world;
        let said = lacks.unwrap_or_default();
        let all = world.exchange(world.group(), "bench shmem: support", said.as_bytes())?;
        let first = all.iter().find(|said| !said.is_empty());
        self.lacking.extend(first.map(|said| String::from_utf8_lossy(said).into_owned()));
        Ok(first.is_none())
    }

    fn grid(&self) -> Grid {
        Grid { blocks: 2, threads: (2 * self.region.world.device().wave_size()).max(8) }
    }

    /// Enters a cell; right where this rank found nothing wrong. Collective over the world.
    fn enter(&mut self, cell: Cell, wrong: Option<&str>) -> anyhow::Result<()> {
        let world = self.region.world;
        if let Some(wrong) = wrong {
            let Cell { op, scope, what, .. } = &cell;
            tracing::error!("{op} at scope {scope}, {what}: {} has {wrong}", world.rank());
        }
        let verified = link::all_agree(world, world.group(), "bench shmem: verified", wrong.is_none())?;
        let times = link::gather(world, world.group(), "bench shmem: times", &[cell.us])?;
        let us = times.iter().flatten().copied().fold(0.0, f64::max);
        self.cells.push(Cell { us, verified, ..cell });
        Ok(())
    }

    fn copies(&mut self, kind: CopyKind, scope: Scope, number: u32, state: &mut u64) -> anyhow::Result<()> {
        let mut copies = Copies::draw(kind, self.region.world.size(), state);
        if !self.adds {
            copies.of_rank.iter_mut().flatten().for_each(|case| case.signal_op = 0);
        }
        anyhow::ensure!(
            copies.bytes <= self.initial[0].len() as u64,
            "the cases lie in {} bytes, and the region has {}",
            copies.bytes,
            self.initial[0].len()
        );
        let me = self.region.rank() as usize;
        let base = self.region.offset();
        let moved = |case: &CopyCase| CopyCase {
            remote: case.remote + base,
            local: case.local + base,
            signal: case.signal + base,
            ..*case
        };
        let cases: Vec<CopyCase> = copies.of_rank[me].iter().map(moved).collect();
        self.region.fill(&self.initial[me])?;
        let buffer = self.region.buffer(bytemuck::cast_slice(&cases))?;
        let statuses = self.region.buffer(&vec![0xff; cases.len() * 4])?;
        let arguments = CopyArgs {
            team: self.region.team(),
            cases: buffer.pointer(),
            statuses: statuses.pointer(),
            case_count: cases.len() as u32,
            kind: kind as u32,
            scope: number,
            operation: OPERATION,
        };
        let us = self.region.run(COPY, self.grid(), 1, Some(&arguments))?;
        let found = self.region.contents(self.initial[me].len())?;
        let expected = copies.after(kind, &self.initial);
        let wrong = first_difference(&found, &expected[me]);
        let wrong = wrong.or((!statuses.is_zero()?).then(|| "an operation that was refused".to_owned()));
        let cell = Cell {
            op: operation(kind).word(),
            scope: scope.word(),
            what: "every size and alignment, from and to every rank".to_owned(),
            operations: cases.len() as u64,
            bytes: None,
            us,
            verified: false,
        };
        self.enter(cell, wrong.as_deref())
    }

    fn messages(
        &mut self,
        mode: MessageMode,
        scope: Scope,
        number: u32,
        state: &mut u64,
    ) -> anyhow::Result<()> {
        let region = &mut self.region;
        let run = messages(region.world.size());
        let me = region.rank();
        let mut before = self.initial[me as usize].clone();
        before[..run.slots() as usize].fill(0);
        let prepared = run.draw(state);
        region.fill(&before)?;
        let source = region.buffer(&prepared[me as usize])?;
        let staging = region.buffer(&vec![0; run.staging()])?;
        let log = region.buffer(&vec![0; run.length()])?;
        let statuses = region.buffer(&vec![0xff; (2 * run.ranks * 4) as usize])?;
        let buffers = MessageBuffers {
            prepared: source.pointer(),
            staging: staging.pointer(),
            log: log.pointer(),
            statuses: statuses.pointer(),
        };
        let how = (mode, number, if self.adds { mode as u32 % 2 } else { 0 });
        let arguments = run.arguments(how, region.team(), buffers, region.offset(), OPERATION);
        let wave = region.world.device().wave_size();
        let threads = if scope == Scope::Thread { wave } else { (2 * wave).max(8) };
        let grid = Grid { blocks: 2 * run.ranks, threads };
        let us = region.run(MESSAGE, grid, 1, Some(&arguments))?;
        let found = region.contents(before.len())?;
        let expected = run.after(me, &before, &prepared);
        let message = run.wrong(me, &prepared, &log.contents()?);
        let wrong = message.map(|(round, from)| format!("another message of round {round} from rank {from}"));
        let wrong = wrong.or_else(|| first_difference(&found, &expected));
        let wrong = wrong.or((!statuses.is_zero()?).then(|| "an operation that was refused".to_owned()));
        let op = match mode {
            MessageMode::PutQuietSignal => "put, quiet, signal",
            MessageMode::PutSignal => "put_signal",
            MessageMode::PutSignalNbi => "put_signal_nbi",
            MessageMode::PutFenceSignal => "put, fence, signal",
        };
        let cell = Cell {
            op,
            scope: scope.word(),
            what: "messages between all ranks, slots used again".to_owned(),
            operations: u64::from(run.ranks * run.rounds),
            bytes: Some(u64::from(run.bytes)),
            us,
            verified: false,
        };
        self.enter(cell, wrong.as_deref())
    }

    fn atomics(&mut self, case: AtomicCase, ways: AtomicWays) -> anyhow::Result<()> {
        let region = &mut self.region;
        let world = region.world;
        let run = AtomicRun::new(world.size(), world.device().wave_size());
        let me = region.rank();
        let mut before = self.initial[me as usize].clone();
        let (at, width) = (AtomicRun::WORDS as usize, case.element_bytes as usize);
        before[at..at + width].copy_from_slice(&run.first().to_le_bytes()[..width]);
        region.fill(&before)?;
        let log = region.buffer(&vec![0; run.log_words() * 8])?;
        let arguments = run.arguments((case, ways), region.team(), log.pointer(), region.offset(), OPERATION);
        let grid = Grid { blocks: 1, threads: run.threads() };
        let us = region.run(ATOMICS, grid, 1, Some(&arguments))?;
        let found = region.contents(before.len())?;
        let mine: Vec<u8> = log.words()?.iter().flat_map(|word| word.to_le_bytes()).collect();
        let logs = world.exchange(world.group(), "bench shmem: old values", &mine).map_err(Error::from)?;
        let logs: Vec<Vec<u64>> = logs.iter().map(|log| words(log)).collect();
        // Who is reached by NIC from here reaches this rank by NIC.
        let is_meant = |rank: &u32| world.is_by_nic(GlobalRank::new(*rank)) == (ways == AtomicWays::Nic);
        let sources: Vec<u32> = (0..run.ranks).filter(is_meant).collect();
        let wrong = match run.after(case, me, &sources, &before, &found, &logs) {
            Ok(expected) => first_difference(&found, &expected),
            Err(wrong) => Some(wrong.to_string()),
        };
        let calls = sources.len() as u64 * u64::from(run.rounds);
        let (op, scope, groups) = match case.kind {
            AtomicKind::SignalAdd => ("signal", "all", u64::from(run.threads())),
            AtomicKind::SetFetch => ("atomic_set, atomic_fetch", "thread", u64::from(run.participants)),
            AtomicKind::FetchBits => ("atomic_fetch_or, _xor, _and", "thread", u64::from(run.participants)),
            kind => (operations(kind)[0].word(), "thread", u64::from(run.participants)),
        };
        let way = if ways == AtomicWays::Nic { "by NIC" } else { "by mapped memory" };
        let signed = if case.is_signed { "i" } else { "u" };
        let cell = Cell {
            op,
            scope,
            what: format!("{signed}{}, all threads on the same words, {way}", 8 * width),
            operations: calls * groups,
            bytes: Some(width as u64),
            us,
            verified: false,
        };
        self.enter(cell, wrong.as_deref())
    }
}

/// The first byte that is not what it should be, in words.
fn first_difference(found: &[u8], expected: &[u8]) -> Option<String> {
    let at = found.iter().zip(expected).position(|(is, should)| is != should)?;
    Some(format!("{:#04x} at byte {at} of its region, where {:#04x} belongs", found[at], expected[at]))
}
