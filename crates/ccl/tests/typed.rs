//! The typed front end: the order of arguments, and that every method makes the call of its name.

use crate::common::{all_well, jit, on_ranks, world_config};
use anabranch_ccl::{
    BitXor, Call, CclConfig, Communicator, Element, Error, Options, PointToPoint, PreMulSum, ReduceOp,
    ReduceOperator, Result, Sum, Tensor, TypedTensor, Work,
};
use anabranch_conformance::ccl::oracle::{self, Data, Expected};
use anabranch_hip::{DeviceBuffer, Stream};
use anabranch_ranks::GroupRank;
use anabranch_shmem::{SymmetricMemory, World};

type T<'a> = TypedTensor<'a, f32>;

/// Each line has the order of torch: output, input, arguments of the collective; then the options.
#[test]
#[expect(clippy::type_complexity, reason = "the types are what is shown")]
fn arguments_have_torch_order() {
    type C = Communicator;
    type G = GroupRank;
    type O<'a> = Options<'a>;
    let _: fn(&mut C, T<'_>, Sum, O<'_>) -> Result<Work> = C::all_reduce;
    let _: fn(&mut C, T<'_>, T<'_>, Sum, O<'_>) -> Result<Work> = C::all_reduce_into;
    let _: fn(&mut C, T<'_>, T<'_>, Sum, O<'_>) -> Result<Work> = C::reduce_scatter;
    let _: fn(&mut C, T<'_>, T<'_>, Sum, &[u64], O<'_>) -> Result<Work> = C::reduce_scatter_uneven;
    let _: fn(&mut C, T<'_>, T<'_>, O<'_>) -> Result<Work> = C::all_gather;
    let _: fn(&mut C, T<'_>, T<'_>, &[u64], O<'_>) -> Result<Work> = C::all_gather_uneven;
    let _: fn(&mut C, T<'_>, T<'_>, O<'_>) -> Result<Work> = C::all_to_all;
    let _: fn(&mut C, T<'_>, T<'_>, &[u64], &[u64], O<'_>) -> Result<Work> = C::all_to_all_single;
    let _: fn(&mut C, T<'_>, G, O<'_>) -> Result<Work> = C::broadcast;
    let _: fn(&mut C, T<'_>, G, Sum, O<'_>) -> Result<Work> = C::reduce;
    let _: fn(&mut C, T<'_>, T<'_>, G, Sum, O<'_>) -> Result<Work> = C::reduce_into;
    let _: fn(&mut C, T<'_>, Option<T<'_>>, G, O<'_>) -> Result<Work> = C::gather;
    let _: fn(&mut C, T<'_>, Option<T<'_>>, G, O<'_>) -> Result<Work> = C::scatter;
    let _: fn(&mut C, O<'_>) -> Result<Work> = C::barrier;
    let _: fn(&mut C, &[(Tensor<'_>, Tensor<'_>)], O<'_>) -> Result<Work> = C::all_gather_many;
    let _: fn(&mut C, T<'_>, G, O<'_>) -> Result<Work> = C::send;
    let _: fn(&mut C, T<'_>, G, O<'_>) -> Result<Work> = C::recv;
    let _: fn(&mut C, &[PointToPoint<'_>], O<'_>) -> Result<Work> = C::batch_isend_irecv;
}

const RANKS: u32 = 3;
const COUNT: u64 = 37;
/// Offset of outputs: after the longest input.
const OUTPUT: u64 = 4096;
const BYTES: u64 = 8192;
const ROOT: GroupRank = GroupRank::new(1);

struct Rig<'a> {
    world: &'a World,
    communicator: Communicator,
    memory: SymmetricMemory,
    inputs: Vec<Vec<u8>>,
    /// Offset of the output of the call.
    output: u64,
    seed: u64,
}

impl<'a> Rig<'a> {
    fn new(world: &'a World) -> Result<Self> {
        let communicator = Communicator::new(world, world.group(), CclConfig::default())?;
        let memory = world.allocate(world.group(), BYTES, 256, "tensors")?;
        Ok(Self { world, communicator, memory, inputs: Vec::new(), output: OUTPUT, seed: 0 })
    }

    /// New inputs of `lengths[rank]` elements: this rank's lies `element` elements into the memory.
    fn fill<E: Element>(&mut self, op: ReduceOp, lengths: [u64; 3], element: u64) -> Result<()> {
        self.seed += 1;
        self.output = OUTPUT;
        let data = Data::Exact.of(E::DATA_TYPE, op, RANKS, self.seed);
        let ranks = self.communicator.group().ranks();
        self.inputs = ranks.zip(lengths).map(|(rank, length)| data.bytes(rank, 0..length)).collect();
        let mut image = vec![0xa5; BYTES as usize];
        let mine = &self.inputs[self.communicator.rank().index()];
        let start = element as usize * size_of::<E>();
        image[start..start + mine.len()].copy_from_slice(mine);
        Ok(self.memory.write(0, &image)?)
    }

    /// Joins the work and compares this rank's output.
    fn expect(&self, work: &Work, expected: &Expected) -> Result<()> {
        work.join(self.world.operation_deadline())?;
        let rank = self.communicator.rank();
        let mut seen = vec![0; expected.output(rank).map_or(0, <[u8]>::len)];
        self.memory.read(self.output, &mut seen)?;
        expected.check(rank, &seen).unwrap();
        Ok(())
    }
}

/// The tensor of `count` elements at a byte of the rig's memory; a macro, as the memory alone is borrowed.
macro_rules! tensor {
    ($rig:ident, $byte:expr, $count:expr) => {
        TypedTensor::<E>::symmetric(&$rig.memory, $byte, $count)?
    };
}

fn reductions<E: Element>(
    rig: &mut Rig<'_>,
    stream: &Stream,
    operator: impl ReduceOperator<E>,
) -> Result<()> {
    let (data_type, op, n) = (E::DATA_TYPE, operator.reduce_op(), u64::from(RANKS));
    let (size, rank) = (u64::from(data_type.bytes()), rig.communicator.rank().index() as u64);
    let options = Options::on(stream);

    rig.fill::<E>(op, [COUNT; 3], 0)?;
    let expected = oracle::all_reduce(data_type, op, &rig.inputs).unwrap();
    let work = rig.communicator.all_reduce_into(
        tensor!(rig, OUTPUT, COUNT),
        tensor!(rig, 0, COUNT),
        operator,
        options,
    )?;
    rig.expect(&work, &expected)?;
    rig.output = 0;
    let work = rig.communicator.all_reduce(tensor!(rig, 0, COUNT), operator, options)?;
    rig.expect(&work, &expected)?;

    rig.fill::<E>(op, [COUNT; 3], 0)?;
    let expected = oracle::reduce_to_root(data_type, op, &rig.inputs, ROOT).unwrap();
    let (output, input) = (tensor!(rig, OUTPUT, COUNT), tensor!(rig, 0, COUNT));
    let work = rig.communicator.reduce_into(output, input, ROOT, operator, options)?;
    rig.expect(&work, &expected)?;
    rig.output = 0;
    let work = rig.communicator.reduce(tensor!(rig, 0, COUNT), ROOT, operator, options)?;
    rig.expect(&work, &expected)?;

    rig.fill::<E>(op, [n * COUNT; 3], 0)?;
    let expected = oracle::reduce_scatter(data_type, op, &rig.inputs).unwrap();
    let (output, input) = (tensor!(rig, OUTPUT, COUNT), tensor!(rig, 0, n * COUNT));
    let work = rig.communicator.reduce_scatter(output, input, operator, options)?;
    rig.expect(&work, &expected)?;
    rig.output = rank * COUNT * size;
    let input = tensor!(rig, 0, n * COUNT);
    let work =
        rig.communicator.reduce_scatter(input.narrow(rank * COUNT, COUNT)?, input, operator, options)?;
    rig.expect(&work, &expected)?;

    let counts = [5, 0, 41];
    rig.fill::<E>(op, [46; 3], 0)?;
    let expected = oracle::reduce_scatter_uneven(data_type, op, &rig.inputs, &counts).unwrap();
    let (output, input) = (tensor!(rig, OUTPUT, counts[rank as usize]), tensor!(rig, 0, 46));
    let work = rig.communicator.reduce_scatter_uneven(output, input, operator, &counts, options)?;
    rig.expect(&work, &expected)
}

fn moves<E: Element>(rig: &mut Rig<'_>, stream: &Stream) -> Result<()> {
    let (data_type, n) = (E::DATA_TYPE, u64::from(RANKS));
    let rank = rig.communicator.rank();
    let (me, is_root) = (rank.index() as u64, rank == ROOT);
    let options = Options::on(stream);
    let op = ReduceOp::Sum;

    rig.fill::<E>(op, [COUNT; 3], 0)?;
    let work =
        rig.communicator.all_gather(tensor!(rig, OUTPUT, n * COUNT), tensor!(rig, 0, COUNT), options)?;
    rig.expect(&work, &oracle::all_gather(data_type, &rig.inputs).unwrap())?;
    rig.fill::<E>(op, [COUNT; 3], me * COUNT)?;
    rig.output = 0;
    let output = tensor!(rig, 0, n * COUNT);
    let work = rig.communicator.all_gather(output, output.narrow(me * COUNT, COUNT)?, options)?;
    rig.expect(&work, &oracle::all_gather(data_type, &rig.inputs).unwrap())?;

    let counts = [5, 0, 41];
    rig.fill::<E>(op, counts, 0)?;
    let (output, input) = (tensor!(rig, OUTPUT, 46), tensor!(rig, 0, counts[rank.index()]));
    let work = rig.communicator.all_gather_uneven(output, input, &counts, options)?;
    rig.expect(&work, &oracle::all_gather_uneven(data_type, &rig.inputs, &counts).unwrap())?;

    rig.fill::<E>(op, [n * COUNT; 3], 0)?;
    let (output, input) = (tensor!(rig, OUTPUT, n * COUNT), tensor!(rig, 0, n * COUNT));
    let work = rig.communicator.all_to_all(output, input, options)?;
    rig.expect(&work, &oracle::all_to_all(data_type, &rig.inputs).unwrap())?;

    let splits = [[1, 2, 3], [0, 7, 4], [9, 0, 6]];
    let [sent, received] =
        [splits[rank.index()], std::array::from_fn(|from| splits[from][rank.index()])] as [[u64; 3]; 2];
    rig.fill::<E>(op, splits.map(|row| row.iter().sum()), 0)?;
    let (output, input) = (tensor!(rig, OUTPUT, received.iter().sum()), tensor!(rig, 0, sent.iter().sum()));
    let work = rig.communicator.all_to_all_single(output, input, &received, &sent, options)?;
    rig.expect(&work, &oracle::all_to_all_splits(data_type, &rig.inputs, &splits).unwrap())?;

    rig.fill::<E>(op, [COUNT; 3], 0)?;
    rig.output = 0;
    let work = rig.communicator.broadcast(tensor!(rig, 0, COUNT), ROOT, options)?;
    rig.expect(&work, &oracle::broadcast(data_type, &rig.inputs, ROOT).unwrap())?;

    rig.fill::<E>(op, [COUNT; 3], 0)?;
    let (tensor, output) = (tensor!(rig, 0, COUNT), tensor!(rig, OUTPUT, n * COUNT));
    let work = rig.communicator.gather(tensor, Some(output), ROOT, options)?;
    rig.expect(&work, &oracle::gather(data_type, &rig.inputs, ROOT).unwrap())?;

    rig.fill::<E>(op, [n * COUNT; 3], 0)?;
    let (tensor, input) = (tensor!(rig, OUTPUT, COUNT), tensor!(rig, 0, n * COUNT));
    let work = rig.communicator.scatter(tensor, is_root.then_some(input), ROOT, options)?;
    let expected = oracle::scatter(data_type, &rig.inputs[ROOT.index()], RANKS as usize, ROOT).unwrap();
    rig.expect(&work, &expected)?;

    rig.communicator.barrier(options)?.join(rig.world.operation_deadline())
}

/// Every rank sends to the next rank and receives from the previous one: one after the other, in alternating order, then in one batch, of
/// two types.
fn messages<E: Element>(rig: &mut Rig<'_>, stream: &Stream) -> Result<()> {
    let rank = rig.communicator.rank();
    let [next, before] = [1, RANKS - 1].map(|step| GroupRank::new((rank.get() + step) % RANKS));
    let (options, op) = (Options::on(stream), ReduceOp::Sum);
    let size = size_of::<E>() as u64;
    let from_before = |rig: &Rig<'_>, work: &Work| -> Result<()> {
        work.join(rig.world.operation_deadline())?;
        let mut image = vec![0; BYTES as usize];
        rig.memory.read(0, &mut image)?;
        let (input, output) = (&rig.inputs[rank.index()], &rig.inputs[before.index()]);
        let mut expected = vec![0xa5; BYTES as usize];
        expected[..input.len()].copy_from_slice(input);
        expected[OUTPUT as usize..][..output.len()].copy_from_slice(output);
        assert_eq!(image, expected, "{rank}");
        Ok(())
    };

    rig.fill::<E>(op, [COUNT; 3], 0)?;
    let mut last = None;
    for is_receive in [rank.get() == 0, rank.get() != 0] {
        let (communicator, memory) = (&mut rig.communicator, &rig.memory);
        let input = TypedTensor::<E>::symmetric(memory, 0, COUNT)?;
        let output = TypedTensor::<E>::symmetric(memory, OUTPUT, COUNT)?;
        last = Some(if is_receive {
            communicator.recv(output, before, options)?
        } else {
            communicator.send(input, next, options)?
        });
    }
    from_before(rig, &last.unwrap())?;

    // The same elements once more, the last of them as bytes.
    rig.fill::<E>(op, [COUNT; 3], 0)?;
    let [input, output] = [0, OUTPUT].map(|byte| TypedTensor::<E>::symmetric(&rig.memory, byte, COUNT - 1));
    let rest = (COUNT - 1) * size;
    let [input_rest, output_rest] =
        [rest, OUTPUT + rest].map(|byte| TypedTensor::<u8>::symmetric(&rig.memory, byte, size));
    let batch = [
        PointToPoint::send(input?, next),
        PointToPoint::receive(output?, before),
        PointToPoint::receive(output_rest?, before),
        PointToPoint::send(input_rest?, next),
    ];
    let work = rig.communicator.batch_isend_irecv(&batch, options)?;
    from_before(rig, &work)
}

/// Gathers the same inputs twice in one call, as elements and as bytes.
fn gathers_many<E: Element>(rig: &mut Rig<'_>, stream: &Stream) -> Result<()> {
    rig.fill::<E>(ReduceOp::Sum, [COUNT; 3], 0)?;
    let (n, bytes) = (u64::from(RANKS), COUNT * size_of::<E>() as u64);
    let second = OUTPUT + (n * bytes).next_multiple_of(8) + 8;
    let elements = tensor!(rig, OUTPUT, n * COUNT).gathering(tensor!(rig, 0, COUNT));
    let as_bytes = TypedTensor::<u8>::symmetric(&rig.memory, second, n * bytes)?
        .gathering(TypedTensor::symmetric(&rig.memory, 0, bytes)?);
    let work = rig.communicator.all_gather_many(&[elements, as_bytes], Options::on(stream))?;
    let expected = oracle::all_gather(E::DATA_TYPE, &rig.inputs).unwrap();
    rig.expect(&work, &expected)?;
    rig.output = second;
    rig.expect(&work, &expected)
}

#[test]
fn methods_make_the_call_of_their_name() {
    let results = on_ranks(RANKS, 4, &world_config(), &jit(), |world| {
        let (mut rig, stream) = (Rig::new(world)?, world.device().create_stream()?);
        reductions::<f32>(&mut rig, &stream, Sum)?;
        reductions::<f32>(&mut rig, &stream, PreMulSum(0.5))?;
        reductions::<u8>(&mut rig, &stream, BitXor)?;
        moves::<u8>(&mut rig, &stream)?;
        moves::<f64>(&mut rig, &stream)?;
        messages::<u8>(&mut rig, &stream)?;
        messages::<f64>(&mut rig, &stream)?;
        gathers_many::<u8>(&mut rig, &stream)?;
        gathers_many::<f64>(&mut rig, &stream)
    });
    all_well(results);
}

#[test]
fn prepared_typed_call_is_relaunched() {
    let results = on_ranks(2, 4, &world_config(), &jit(), |world| {
        let mut communicator = Communicator::new(world, world.group(), CclConfig::default())?;
        let stream = world.device().create_stream()?;
        let mut buffer = world.device().allocate(64)?;
        let input: Vec<u8> = [1i64, 2, 3].iter().flat_map(|value| value.to_le_bytes()).collect();
        buffer.copy_from_host(8, &input)?;
        let prepared = {
            // SAFETY: the buffer outlives both launches, which are joined below, and has no other users meanwhile.
            let tensor = unsafe { TypedTensor::<i64>::of_buffer(&buffer, 8, 3) }?;
            communicator.prepare(&Call::all_reduce(tensor, Sum))?
        };
        drop(communicator.launch(&prepared, &stream)?);
        communicator.launch(&prepared, &stream)?.join(world.operation_deadline())?;
        Ok(contents(&buffer))
    });
    assert_eq!(all_well(results), [[4, 8, 12], [4, 8, 12]]);
}

fn contents(buffer: &DeviceBuffer) -> [i64; 3] {
    let mut bytes = [0; 24];
    buffer.copy_to_host(8, &mut bytes).unwrap();
    std::array::from_fn(|index| i64::from_le_bytes(*bytes[index * 8..].first_chunk().unwrap()))
}

#[test]
fn tensors_outside_their_memory_are_refused() {
    let results = on_ranks(1, 4, &world_config(), &jit(), |world| {
        let memory = world.allocate(world.group(), 1024, 256, "tensor")?;
        let buffer = world.device().allocate(100)?;
        // SAFETY: no call is made with any of them.
        let of_buffer = |offset, count| unsafe { TypedTensor::<f32>::of_buffer(&buffer, offset, count) };
        assert_eq!(of_buffer(4, 24)?.count(), 24);
        let refused = [of_buffer(4, 25).err(), of_buffer(2, 1).err()].map(|error| error.unwrap().to_string());
        assert_eq!(refused[0], "25 f32 elements from byte 4 on do not fit into 100 bytes");
        assert_eq!(refused[1], "a tensor of f32 starts at 0x2, which is no multiple of the element's size");
        let whole = TypedTensor::<f32>::symmetric(&memory, 256, 100)?;
        assert_eq!(whole.narrow(40, 60)?.narrow(60, 0)?.count(), 0);
        for (start, count) in [(41, 60), (101, 0), (u64::MAX, 1), (0, u64::MAX)] {
            let refused = whole.narrow(start, count);
            assert!(matches!(refused, Err(Error::Bounds { length: 400, .. })), "{start} {count}");
        }
        Ok(())
    });
    all_well(results);
}
