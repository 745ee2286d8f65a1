//! all_gather of several tensors in one launch, compared with the inputs of all ranks, on the host runtime.

use crate::common::{all_well, jit, on_ranks, world_config};
use anabranch_ccl::{Algorithm, Call, CclConfig, Communicator, DataType, Error, LocationKind, Tensor};
use anabranch_hip::DeviceBuffer;
use anabranch_shmem::{Registration, SymmetricMemory, World};

const CANARY: u64 = 64;
const UNTOUCHED: u8 = 0xa5;

/// One tensor of each rank.
#[derive(Clone, Copy, Debug)]
struct Parameter {
    data_type: DataType,
    count: u64,
    in_place: bool,
}

impl Parameter {
    fn bytes(&self) -> u64 {
        self.count * u64::from(self.data_type.bytes())
    }

    fn of_rank(&self, index: usize, rank: u64) -> Vec<u8> {
        let byte = |at: u64| (at.wrapping_mul(31) ^ (index as u64 * 7 + rank * 101 + at / 251)) as u8;
        (0..self.bytes()).map(byte).collect()
    }
}

/// A buffer of each kind, with the same layout.
struct Buffers {
    symmetric: SymmetricMemory,
    registered: Registration,
    registered_memory: DeviceBuffer,
    local: DeviceBuffer,
}

impl Buffers {
    fn new(world: &World, bytes: u64) -> Result<Self, Error> {
        let symmetric = world.allocate(world.group(), bytes, 256, "test")?;
        let registered_memory = world.device().allocate(bytes as usize)?;
        // SAFETY: dropped after the registration.
        let registered =
            unsafe { world.register(world.group(), registered_memory.address(), bytes, "test") }?;
        let local = world.device().allocate(bytes as usize)?;
        Ok(Self { symmetric, registered, registered_memory, local })
    }

    fn tensor(&self, kind: LocationKind, at: u64, data_type: DataType, count: u64) -> Tensor<'_> {
        match kind {
            LocationKind::Symmetric => Tensor::symmetric(&self.symmetric, at, data_type, count).unwrap(),
            LocationKind::Registered => Tensor::registered(&self.registered, at, data_type, count).unwrap(),
            // SAFETY: inside the buffer (the registered tensor of the same size was checked), and the test waits for its calls.
            LocationKind::Local => unsafe {
                Tensor::local(self.local.address().offset(at), data_type, count)
            },
        }
    }

    fn write(&mut self, kind: LocationKind, image: &[u8]) -> Result<(), Error> {
        match kind {
            LocationKind::Symmetric => self.symmetric.write(0, image)?,
            LocationKind::Registered => self.registered_memory.copy_from_host(0, image)?,
            LocationKind::Local => self.local.copy_from_host(0, image)?,
        }
        Ok(())
    }

    fn read(&self, kind: LocationKind, image: &mut [u8]) -> Result<(), Error> {
        match kind {
            LocationKind::Symmetric => self.symmetric.read(0, image)?,
            LocationKind::Registered => self.registered_memory.copy_to_host(0, image)?,
            LocationKind::Local => self.local.copy_to_host(0, image)?,
        }
        Ok(())
    }
}

/// Offsets of a parameter: equal on all ranks.
#[derive(Clone, Copy)]
struct Places {
    output: u64,
    input: u64,
}

fn lay_out(parameters: &[Parameter], ranks: u64, me: u64, skew: u64) -> (Vec<Places>, usize) {
    let mut end = CANARY;
    let mut places = Vec::new();
    for parameter in parameters {
        let mut place = |bytes: u64| {
            let at = end.next_multiple_of(16) + skew * u64::from(parameter.data_type.bytes());
            end = at + bytes + CANARY;
            at
        };
        let output = place(ranks * parameter.bytes());
        let input =
            if parameter.in_place { output + me * parameter.bytes() } else { place(parameter.bytes()) };
        places.push(Places { output, input });
    }
    (places, end as usize)
}

fn put(image: &mut [u8], at: u64, bytes: &[u8]) {
    image[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
}

fn gather(
    communicator: &mut Communicator,
    buffers: &mut Buffers,
    kind: LocationKind,
    parameters: &[Parameter],
    skew: u64,
) -> Result<(), Error> {
    let world = communicator.world().clone();
    let stream = world.device().create_stream()?;
    let (ranks, me) = (u64::from(communicator.size()), u64::from(communicator.rank().get()));
    let (places, bytes) = lay_out(parameters, ranks, me, skew);
    let mut image = vec![UNTOUCHED; bytes];
    for (index, (parameter, place)) in parameters.iter().zip(&places).enumerate() {
        put(&mut image, place.input, &parameter.of_rank(index, me));
    }
    buffers.write(kind, &image)?;
    let pairs: Vec<_> = parameters
        .iter()
        .zip(&places)
        .map(|(parameter, place)| {
            let Parameter { data_type, count, .. } = *parameter;
            let tensor = |at, count| buffers.tensor(kind, at, data_type, count);
            (tensor(place.output, count * ranks), tensor(place.input, count))
        })
        .collect();
    let prepared = communicator.prepare(&Call::AllGatherMany(&pairs))?;
    let work = communicator.launch(&prepared, &stream)?;
    // The launch keeps the list after the prepared call is dropped.
    drop(prepared);
    let what = work.describe().to_owned();
    work.join(world.operation_deadline())?;
    for (index, (parameter, place)) in parameters.iter().zip(&places).enumerate() {
        for rank in 0..ranks {
            let at = place.output + rank * parameter.bytes();
            put(&mut image, at, &parameter.of_rank(index, rank));
        }
    }
    let mut seen = vec![0; bytes];
    buffers.read(kind, &mut seen)?;
    let wrong = (0..bytes).find(|at| seen[*at] != image[*at]);
    assert!(
        wrong.is_none(),
        "{me}, {kind:?}, skew {skew}, {what}: byte {wrong:?} of {bytes}: {parameters:?}"
    );
    Ok(())
}

fn lists() -> Vec<Vec<Parameter>> {
    let types = [DataType::Bf16, DataType::F32, DataType::U8, DataType::F64];
    let counts = [5, 0, 1, 4096, 16, 7, 0, 333, 20_000, 2, 3, 64];
    let one = |index: usize, types: &[DataType]| Parameter {
        data_type: types[index % types.len()],
        count: counts[index % counts.len()],
        in_place: index % 5 == 3,
    };
    vec![
        vec![],
        vec![one(1, &types)],
        vec![one(3, &types[..1])],
        (0..12).map(|index| one(index, &types)).collect(),
        // All multiples of 8 bytes.
        (3..9).map(|index| one(index, &types[3..])).collect(),
        // More than the arguments hold.
        (0..150)
            .map(|index| Parameter { count: one(index, &types).count % 300, ..one(index, &types) })
            .collect(),
    ]
}

fn check(ranks: u32, wave: u32, config: &CclConfig) -> usize {
    let results = on_ranks(ranks, wave, &world_config(), &jit(), |world| {
        let mut done = 0;
        let mut buffers = Buffers::new(world, 4 << 20)?;
        for algorithm in [None, Some(Algorithm::Packets), Some(Algorithm::Staged), Some(Algorithm::Direct)] {
            let config = config.clone().algorithm(algorithm);
            let mut communicator = Communicator::new(world, world.group(), config)?;
            for kind in [LocationKind::Local, LocationKind::Symmetric, LocationKind::Registered] {
                for (index, list) in lists().iter().enumerate() {
                    for skew in [0, 1] {
                        match gather(&mut communicator, &mut buffers, kind, list, skew) {
                            Err(Error::Algorithm { .. }) => assert_eq!(
                                (algorithm, kind),
                                (Some(Algorithm::Direct), LocationKind::Local),
                                "list {index}"
                            ),
                            other => {
                                other?;
                                done += 1;
                            }
                        }
                    }
                }
            }
        }
        buffers.registered.release()?;
        Ok(done)
    });
    all_well(results)[0]
}

#[test]
fn many_tensors_on_three_ranks() {
    let done = check(3, 4, &CclConfig::default());
    assert_eq!(done, (4 * 3 - 1) * 6 * 2 + 2, "all but direct to local outputs, and that of nothing");
}

#[test]
fn many_tensors_over_small_staging() {
    let config = CclConfig { staging_bytes: 4096, max_blocks: 2, pipe_bytes: 0, ..CclConfig::default() };
    check(2, 1, &config);
    check(1, 4, &config);
}

#[test]
fn overlapping_tensors_are_refused() {
    let results = on_ranks(2, 4, &world_config(), &jit(), |world| {
        let mut communicator = Communicator::new(world, world.group(), CclConfig::default())?;
        let buffers = Buffers::new(world, 4096)?;
        let tensor = |at, count| buffers.tensor(LocationKind::Symmetric, at, DataType::F32, count);
        let mut refused = |pairs: &[(Tensor<'_>, Tensor<'_>)]| {
            communicator.prepare(&Call::AllGatherMany(pairs)).map(|_| ()).unwrap_err()
        };
        let first = (tensor(0, 20), tensor(1024, 10));
        for second in [
            (tensor(76, 2), tensor(2048, 1)),
            (tensor(512, 4), tensor(40, 2)),
            (tensor(1060, 2), tensor(2048, 1)),
        ] {
            let error = refused(&[first, second]);
            assert!(matches!(error, Error::Overlap { .. }), "{error}");
        }
        assert!(matches!(refused(&[(tensor(0, 21), tensor(1024, 10))]), Error::Count { given: 21, .. }));
        let bytes = buffers.tensor(LocationKind::Symmetric, 2048, DataType::U8, 10);
        assert!(matches!(refused(&[(tensor(0, 20), bytes)]), Error::Type { .. }));
        // One input may occur twice, because it is only read.
        drop(communicator.prepare(&Call::AllGatherMany(&[first, (tensor(256, 20), first.1)]))?);
        buffers.registered.release()?;
        Ok(())
    });
    all_well(results);
}
