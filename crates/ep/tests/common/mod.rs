//! A group of ranks on the host runtime, and one dispatch-combine judged by the oracle.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::sync::Arc;
use std::time::Duration;

use anabranch_conformance::ep::oracle::{CastRows, Oracle, RankInput, Shape};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{
    CombineOutput, DataType, DeviceSlice, DispatchCast, Dispatched, EpConfig, EpShape, Error, ExpertOutput,
    ExpertParallel, ReceivedRows, Tokens,
};
use anabranch_hip::{Device, DeviceBuffer, DeviceOrdinal, RuntimeKind, Stream, with_causes};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::{ConstantsMode, Jit, JitConfig, ToolSearch, bytemuck};
use anabranch_ranks::GroupRank;
use anabranch_shmem::{RankError, RankSetup, World, WorldConfig, spawn_threads};

/// One cache for all tests of the workspace, so that a kernel is compiled once.
pub fn jit() -> Jit {
    jit_with(ConstantsMode::Auto)
}

fn jit_with(constants: ConstantsMode) -> Jit {
    let mut config = JitConfig::new(cache());
    config.compile_deadline = Duration::from_secs(600);
    config.constants = constants;
    Jit::new(config, tools())
}

pub fn cache() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")
}

pub fn tools() -> ToolSearch {
    #[expect(clippy::disallowed_methods, reason = "a test finds the compiler as a user's shell does")]
    let path = std::env::var_os("PATH").unwrap_or_default();
    ToolSearch { path: std::env::split_paths(&path).collect(), ..ToolSearch::default() }
}

pub fn machine(ranks: u32, wave_width: u32) -> Arc<HostMachine> {
    HostMachine::new(HostConfig { devices: ranks, wave_width, ..HostConfig::default() }).unwrap()
}

pub fn world_config() -> WorldConfig {
    WorldConfig {
        heap_bytes: 64 << 20,
        operation_deadline: Duration::from_secs(20),
        ..WorldConfig::default()
    }
}

/// Runs `work` on every rank of a world of threads, and fails with every rank's error.
pub fn on_ranks<T: Send>(
    ranks: u32,
    wave_width: u32,
    config: &WorldConfig,
    work: impl Fn(&World) -> Result<T, Error> + Sync,
) -> Vec<Result<T, RankError<Error>>> {
    on_ranks_with(&jit(), ranks, wave_width, config, work)
}

/// The same with kernels that are compiled so.
pub fn on_ranks_with<T: Send>(
    jit: &Jit,
    ranks: u32,
    wave_width: u32,
    config: &WorldConfig,
    work: impl Fn(&World) -> Result<T, Error> + Sync,
) -> Vec<Result<T, RankError<Error>>> {
    let machine = machine(ranks, wave_width);
    let runtime = machine.runtime();
    assert_eq!(runtime.kind(), RuntimeKind::Host);
    spawn_threads(
        ranks,
        |rank| {
            let device = runtime.device(DeviceOrdinal(rank.get()))?;
            Ok(RankSetup { config: config.clone(), device, jit: jit.clone() })
        },
        work,
    )
}

/// The values of ranks that all succeeded; fails with every rank's error.
pub fn all_well<T>(results: Vec<Result<T, RankError<Error>>>) -> Vec<T> {
    let failures: Vec<_> =
        results.iter().filter(|result| result.is_err()).map(|result| failure(result)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    results.into_iter().map(Result::unwrap).collect()
}

/// What one rank brings, on the host.
#[derive(Clone, Debug, Default)]
pub struct Input {
    pub tokens: Vec<u8>,
    pub ids: Vec<i32>,
    pub weights: Vec<f32>,
    pub scales: Vec<u8>,
}

impl Input {
    /// The ids in the plan's type. Ids of 64 bits that name no expert have the low bits of one that exists.
    pub fn id_bytes(&self, config: &EpConfig) -> Vec<u8> {
        if config.id_type == DataType::I32 {
            return bytes_of(&self.ids).to_vec();
        }
        let experts = i64::from(config.experts);
        let wide = |id: &i32| match i64::from(*id) {
            id if id >= experts => id - experts + (1 << 32),
            id if id < -1 => id - (1 << 40),
            id => id,
        };
        self.ids.iter().flat_map(|id| wide(id).to_ne_bytes()).collect()
    }
}

/// A small generator of numbers: the same on every rank for the same seed.
#[derive(Clone, Debug)]
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound.max(1))) as u32
    }
}

/// How tokens choose experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Any experts, repeats and masked ids among them.
    Random,
    /// All to the first rank.
    Hot,
    /// Every id masked.
    Nowhere,
    /// Some ids name no expert.
    Invalid,
    /// The first rank's first expert, and others, all distinct.
    SoftHot,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub ranks: u32,
    pub wave: u32,
    pub config: EpConfig,
    pub routing: Routing,
    /// Tokens of each rank, taken in turn.
    pub tokens: Vec<u32>,
    pub staged: bool,
    /// Whether kernels know the numbers of the plan.
    pub constants: ConstantsMode,
}

impl Case {
    /// Runs `work` on every rank, as [`on_ranks`] does.
    pub fn on_ranks<T: Send>(
        &self,
        config: &WorldConfig,
        work: impl Fn(&World) -> Result<T, Error> + Sync,
    ) -> Vec<Result<T, RankError<Error>>> {
        on_ranks_with(&jit_with(self.constants), self.ranks, self.wave, config, work)
    }

    pub fn new(ranks: u32, wave: u32) -> Self {
        let config = EpConfig::new(EpShape { hidden: 128, experts: 4 * ranks + 1, top_k: 3, max_tokens: 40 });
        Self {
            ranks,
            wave,
            config,
            routing: Routing::Random,
            tokens: vec![40, 0, 1, 17],
            staged: false,
            constants: ConstantsMode::Auto,
        }
    }

    pub fn tokens_of(&self, rank: u32) -> u32 {
        self.tokens[rank as usize % self.tokens.len()].min(self.config.max_tokens)
    }

    /// The case with another routing at every number; the tokens, which graphs fix, stay.
    pub fn varied(&self, number: u64) -> Self {
        let routing = match number % 5 {
            1 => Routing::Hot,
            3 => Routing::Nowhere,
            4 => Routing::Invalid,
            _ => Routing::Random,
        };
        Self { routing, ..self.clone() }
    }

    /// The input of any rank for round `round`.
    pub fn input(&self, rank: u32, round: u64) -> Input {
        let mut numbers = Numbers(round * 1_000_003 + u64::from(rank) * 7_919 + 17);
        let (experts, top_k) = (self.config.experts, self.config.top_k);
        let mut input = Input::default();
        for _ in 0..self.tokens_of(rank) {
            let element = self.config.token_type();
            if element.bits() <= 8 {
                let row = element.bytes_of(self.config.hidden.into());
                input.tokens.extend((0..row).map(|_| number_code(element, numbers.next() as u8)));
            }
            for _ in 0..if element.bits() <= 8 { 0 } else { self.config.hidden } {
                // Magnitudes far apart, so that the order of a sum shows.
                let value = f32::from_bits(
                    ((numbers.next() as u32) & 0x807f_ffff) | ((120 + numbers.below(12)) << 23),
                );
                match element {
                    DataType::Bf16 => {
                        input.tokens.extend(half::bf16::from_f32(value).to_bits().to_ne_bytes());
                    }
                    DataType::F16 => {
                        input.tokens.extend(half::f16::from_f32(value).to_bits().to_ne_bytes());
                    }
                    _ => input.tokens.extend(value.to_ne_bytes()),
                }
            }
            let beside = numbers.clone().below(experts);
            for k in 0..top_k {
                let id = match self.routing {
                    Routing::Random if numbers.below(7) == 0 => -1,
                    Routing::Random => numbers.below(experts) as i32,
                    Routing::Hot => numbers.below((experts / self.ranks).max(1)) as i32,
                    Routing::Nowhere => -1,
                    Routing::Invalid => numbers.below(experts + 5) as i32 - 2,
                    Routing::SoftHot if k == 0 => 0,
                    Routing::SoftHot => 1 + ((beside + k) % (experts - 1)) as i32,
                };
                input.ids.push(id);
                input.weights.push(0.01 + numbers.below(1000) as f32 / 1000.0);
            }
            for _ in 0..self.config.scale_bytes {
                input.scales.push(numbers.next() as u8);
            }
        }
        input
    }

    pub fn inputs(&self, round: u64) -> Vec<Input> {
        (0..self.ranks).map(|rank| self.input(rank, round)).collect()
    }

    /// The inputs as they travel: of a plan that casts, the rows and scales that it makes.
    pub fn sent(&self, inputs: &[Input]) -> Vec<Input> {
        let cast = self.config.dispatch_cast;
        let sent = |input: &Input| {
            if cast == DispatchCast::None {
                return input.clone();
            }
            let CastRows { tokens, scales } = CastRows::new(cast, self.config.cast_from, &input.tokens);
            Input { tokens, scales, ..input.clone() }
        };
        inputs.iter().map(sent).collect()
    }
}

/// This byte, unless it is a NaN of the type: a product with a NaN need not keep its bits.
fn number_code(element: DataType, byte: u8) -> u8 {
    match element {
        DataType::F8E4m3 if byte & 0x7f == 0x7f => byte ^ 1,
        DataType::F8E4m3Fnuz if byte == 0x80 => 1,
        _ => byte,
    }
}

/// Bytes in a buffer of their own.
pub fn upload(device: &Device, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = device.allocate(bytes.len().max(16)).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    buffer
}

pub fn bytes_of<T: bytemuck::Pod>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// One rank's tensors on its device.
pub struct Uploaded {
    pub rows: DeviceBuffer,
    pub ids: DeviceBuffer,
    pub weights: DeviceBuffer,
    pub scales: DeviceBuffer,
    pub output: DeviceBuffer,
    pub combined_weights: DeviceBuffer,
    pub count: usize,
}

impl Uploaded {
    pub fn new(device: &Device, config: &EpConfig, input: &Input) -> Self {
        let count = input.ids.len() / config.top_k as usize;
        let row = config.combine_type.bytes_of(config.hidden.into()) as usize;
        Self {
            rows: upload(device, &input.tokens),
            ids: upload(device, &input.id_bytes(config)),
            weights: upload(device, bytes_of(&input.weights)),
            scales: upload(device, &input.scales),
            output: upload(device, &vec![0xee; count * row]),
            combined_weights: upload(device, &vec![0xee; count * config.top_k as usize * 4]),
            count,
        }
    }

    /// Of a plan with ids of 32 bits.
    pub fn refill(&mut self, input: &Input) {
        self.rows.copy_from_host(0, &input.tokens).unwrap();
        self.ids.copy_from_host(0, bytes_of(&input.ids)).unwrap();
        self.weights.copy_from_host(0, bytes_of(&input.weights)).unwrap();
        self.scales.copy_from_host(0, &input.scales).unwrap();
    }

    pub fn tokens(&self, config: &EpConfig) -> Tokens {
        // SAFETY: the buffers outlive the stream's work in every test.
        unsafe {
            Tokens {
                count: self.count,
                data_type: config.token_type(),
                rows: DeviceSlice::of(&self.rows),
                ids: DeviceSlice::of(&self.ids),
                weights: Some(DeviceSlice::of(&self.weights)),
                scales: (config.scale_bytes > 0).then(|| DeviceSlice::of(&self.scales)),
                device_count: None,
            }
        }
    }

    pub fn output(&self) -> DeviceSlice {
        // SAFETY: as above.
        unsafe { DeviceSlice::of(&self.output) }
    }

    /// With room for weights, where the plan combines them.
    pub fn combine_output(&self, config: &EpConfig) -> CombineOutput {
        // SAFETY: as above.
        let weights = unsafe { DeviceSlice::of(&self.combined_weights) };
        CombineOutput { rows: self.output(), weights: config.combine_weights.then_some(weights) }
    }

    pub fn read_weights(&self, config: &EpConfig) -> Vec<f32> {
        let mut bytes = vec![0; self.count * config.top_k as usize * 4];
        self.combined_weights.copy_to_host(0, &mut bytes).unwrap();
        bytes.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    pub fn read_output(&self, config: &EpConfig) -> Vec<u8> {
        let row = config.combine_type.bytes_of(config.hidden.into()) as usize;
        let mut bytes = vec![0; self.count * row];
        self.output.copy_to_host(0, &mut bytes).unwrap();
        bytes
    }
}

pub fn oracle<'a>(case: &Case, inputs: &'a [Input]) -> Oracle<'a> {
    let shape = Shape::new(&case.config, case.ranks);
    let ranks = inputs
        .iter()
        .map(|input| RankInput {
            tokens: &input.tokens,
            ids: &input.ids,
            weights: Some(&input.weights),
            scales: &input.scales,
        })
        .collect();
    Oracle::new(shape, ranks).unwrap()
}

/// Dispatch, the reference expert, combine: the handle's rows and the output are compared bit by bit.
pub fn round(
    ep: &ExpertParallel,
    expert: &ReferenceExpert,
    stream: &Stream,
    world: &World,
    case: &Case,
    number: u64,
) -> Result<(), Error> {
    let inputs = case.inputs(number);
    let me = ep.rank();
    let device = world.device();
    let uploaded = Uploaded::new(device, &case.config, &inputs[me.index()]);
    let dispatched = ep.dispatch(stream, &uploaded.tokens(&case.config))?;
    world.synchronize(stream)?;
    let sent = case.sent(&inputs);
    let oracle = oracle(case, &sent);
    judge_rows(&oracle, me, device, ep, &dispatched);
    judge_dropped(&oracle, device, ep, stream, &dispatched)?;
    let staging = device.allocate(window_bytes(ep))?;
    let experts = run_expert(expert, stream, &dispatched, case, &staging)?;
    ep.combine(stream, experts, dispatched, uploaded.combine_output(&case.config))?;
    world.synchronize(stream)?;
    judge_output(&oracle, me, &uploaded.read_output(&case.config));
    if case.config.combine_weights {
        judge_weights(&oracle, me, &uploaded.read_weights(&case.config));
    }
    Ok(())
}

pub fn window_bytes(ep: &ExpertParallel) -> usize {
    let plan = ep.plan();
    plan.rows() as usize * plan.combine_row_bytes() as usize
}

pub fn run_expert(
    expert: &ReferenceExpert,
    stream: &Stream,
    dispatched: &Dispatched,
    case: &Case,
    staging: &DeviceBuffer,
) -> Result<ExpertOutput, Error> {
    let target = if case.staged { staging.address() } else { dispatched.combine_rows() };
    // SAFETY: both have the window's shape and live until the stream was waited for.
    unsafe { expert.run(stream, dispatched, target)? };
    Ok(if case.staged {
        // SAFETY: as above.
        ExpertOutput::Staged(unsafe { DeviceSlice::of(staging) })
    } else {
        ExpertOutput::InWindow
    })
}

pub fn judge_rows(
    oracle: &Oracle<'_>,
    me: GroupRank,
    device: &Device,
    ep: &ExpertParallel,
    dispatched: &Dispatched,
) {
    let received = ReceivedRows::read(device, ep.plan(), dispatched).unwrap();
    if let Err(mismatch) = oracle.dispatch(me).unwrap().compare_rows(&received) {
        panic!("{me}: {mismatch}");
    }
}

/// The dropped copies, listed and counted. The caller reports a fault of the world.
pub fn judge_dropped(
    oracle: &Oracle<'_>,
    device: &Device,
    ep: &ExpertParallel,
    stream: &Stream,
    dispatched: &Dispatched,
) -> Result<(), Error> {
    let me = ep.rank();
    let expected = oracle.dropped(me).unwrap();
    let listed = ep.dropped(stream, dispatched)?;
    let listed: Vec<_> = listed.iter().map(|copy| (copy.token, copy.destination)).collect();
    assert_eq!(listed, expected, "{me}: the dropped copies");
    let mut count = [0; 4];
    // SAFETY: the word belongs to the slot that the handle holds.
    unsafe { device.read_memory(dispatched.dropped_count(), &mut count).unwrap() };
    assert_eq!(u32::from_ne_bytes(count) as usize, expected.len(), "{me}: the count of dropped copies");
    Ok(())
}

pub fn judge_output(oracle: &Oracle<'_>, me: GroupRank, output: &[u8]) {
    let combination = oracle.combine(me).unwrap();
    if let Err(mismatch) = combination.compare_output(output, &oracle.reference_experts().unwrap()) {
        panic!("{me}: {mismatch}");
    }
}

/// The combined weights where no expert wrote others than were dispatched.
pub fn judge_weights(oracle: &Oracle<'_>, me: GroupRank, weights: &[f32]) {
    let combination = oracle.combine(me).unwrap();
    if let Err(mismatch) = combination.compare_weights(weights, |copy, k| copy.weights.unwrap()[k]) {
        panic!("{me}: {mismatch}");
    }
}

/// Makes the plan and runs some rounds on all ranks.
pub fn run(case: &Case, rounds: u64) {
    all_well(case.on_ranks(&world_config(), |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        for number in 0..rounds {
            round(&ep, &expert, &stream, world, case, number)?;
        }
        Ok(())
    }));
}

/// A dispatch that was launched, and what it was launched with. The buffers live as long as this.
pub struct Flight {
    pub case: Case,
    pub number: u64,
    pub uploaded: Uploaded,
    pub dispatched: Dispatched,
}

/// An operation whose combine was launched.
pub struct Landed {
    pub case: Case,
    pub number: u64,
    pub uploaded: Uploaded,
}

/// Launches the dispatch of round `number`; waits for nothing.
pub fn depart(ep: &ExpertParallel, stream: &Stream, case: &Case, number: u64) -> Result<Flight, Error> {
    let input = case.input(ep.rank().get(), number);
    let uploaded = Uploaded::new(stream.device(), &case.config, &input);
    let dispatched = ep.dispatch(stream, &uploaded.tokens(&case.config))?;
    Ok(Flight { case: case.clone(), number, uploaded, dispatched })
}

/// Launches the reference expert on its window.
pub fn work(expert: &ReferenceExpert, stream: &Stream, dispatched: &Dispatched) -> Result<(), Error> {
    // SAFETY: the window has the window's shape, and its slot is held by the handle.
    unsafe { expert.run(stream, dispatched, dispatched.combine_rows()) }
}

/// Launches the combine; waits for nothing.
pub fn land(ep: &ExpertParallel, stream: &Stream, flight: Flight) -> Result<Landed, Error> {
    let Flight { case, number, uploaded, dispatched } = flight;
    ep.combine(stream, ExpertOutput::InWindow, dispatched, uploaded.output())?;
    Ok(Landed { case, number, uploaded })
}

impl Landed {
    /// Compares the output bit by bit. The stream was waited for.
    pub fn judge(&self, me: GroupRank) {
        let inputs = self.case.sent(&self.case.inputs(self.number));
        judge_output(&oracle(&self.case, &inputs), me, &self.uploaded.read_output(&self.case.config));
    }
}

/// What fails on a rank of threads, in words.
pub fn failure<T>(result: &Result<T, RankError<Error>>) -> String {
    match result {
        Ok(_) => panic!("the rank succeeded"),
        Err(RankError::Work { rank, error }) => format!("{rank}: {}", with_causes(error)),
        Err(error) => with_causes(error),
    }
}
