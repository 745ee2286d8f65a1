//! Joining a world.

use std::sync::Mutex;

use anabranch::bootstrap::{JoinStop, TcpRoot, UniqueId};
use anabranch::{Config, Environment, JoinedRank};

use crate::config::{anabranch_config, settings};
use crate::handle::{Handle, Out, destroy, optional, put};
use crate::logs;
use crate::state::{State, locked};
use crate::status::{Failure, Result, anabranch_status, guard};
use crate::versioned::{self, Versioned};
use crate::world::anabranch_world;

/// Bytes of an `anabranch_unique_id`.
pub const ANABRANCH_UNIQUE_ID_BYTES: usize = 128;

/// Addresses and secret of a rendezvous. Rank 0 makes it, and the program brings it to the other ranks (by MPI, a file, a socket). Whoever
/// has it can join.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct anabranch_unique_id {
    /// The id.
    pub bytes: [u8; ANABRANCH_UNIQUE_ID_BYTES],
}

const _: () = assert!(ANABRANCH_UNIQUE_ID_BYTES == UniqueId::BYTES);

/// The sockets on which rank 0 waits for the others.
#[derive(Debug)]
pub struct anabranch_root {
    /// Until rank 0 joins.
    inner: Mutex<Option<TcpRoot>>,
}

impl Handle for anabranch_root {
    const NAME: &'static str = "root";
}

/// How a rank joins, where no launcher says it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct anabranch_join_options {
    /// `sizeof(anabranch_join_options)`.
    pub size: usize,
    /// This rank, below `world_size`.
    pub rank: u32,
    /// Ranks of the world. 0: the launcher's variables give rank and size, and no other field is set.
    pub world_size: u32,
    /// This rank among those of its machine.
    pub local_rank: u32,
    /// Ranks on this machine. 0, on all ranks: found out; allowed with `unique_id`.
    pub local_world_size: u32,
    /// The id that rank 0 made. NULL: the ranks meet at the setting `bootstrap.address`.
    pub unique_id: *const anabranch_unique_id,
    /// Rank 0: the root that the id is of. Other ranks: NULL.
    pub root: *const anabranch_root,
}

// SAFETY: pointers and numbers, the size first.
unsafe impl Versioned for anabranch_join_options {
    const NAME: &'static str = "anabranch_join_options";
    const LEAST: usize = std::mem::offset_of!(anabranch_join_options, local_rank);
}

/// Rank 0: opens the sockets that the others connect to, and makes their id. `config` as in `anabranch_join`. Not collective.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_root_create(
    config: *const anabranch_config,
    id: *mut anabranch_unique_id,
    root: *mut *mut anabranch_root,
) -> anabranch_status {
    guard(|| {
        logs::start();
        let out = Out::new(root)?;
        let inner = anabranch::bind_root(&settings(config)?)?;
        put(id, anabranch_unique_id { bytes: inner.unique_id()?.to_bytes() }, "id")?;
        out.give(anabranch_root { inner: Mutex::new(Some(inner)) });
        Ok(())
    })
}

/// Frees it: after rank 0 has joined, or to give up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_root_destroy(root: *mut anabranch_root) {
    destroy(root);
}

fn by_id(config: &Config, options: &anabranch_join_options) -> Result<JoinedRank> {
    let anabranch_join_options { rank, world_size, local_rank, local_world_size, .. } = *options;
    let root = match (rank, optional(options.root)) {
        (0, None) => return Err(Failure::usage("root is NULL; rank 0 gives the root that unique_id is of")),
        (1.., Some(_)) => return Err(Failure::usage(format!("rank {rank} gives a root; only rank 0 does"))),
        (_, root) => root,
    };
    // SAFETY: the caller's: an id.
    let id = unsafe { *options.unique_id };
    let id =
        UniqueId::from_bytes(&id.bytes).map_err(|error| Failure::usage(format!("unique_id: {error}")))?;
    let taken = |root: &anabranch_root| {
        let root = locked(&root.inner).take();
        root.ok_or_else(|| Failure::usage("a rank has joined with this root before; make one for each world"))
    };
    let root = root.map(taken).transpose()?;
    let local = (local_world_size > 0).then_some((local_rank, local_world_size));
    Ok(anabranch::rendezvous_by_id(config, &id, root, (rank, world_size), local, &JoinStop::default())?)
}

fn rendezvous(config: &Config, options: &anabranch_join_options) -> Result<JoinedRank> {
    let anabranch_join_options { rank, world_size, local_rank, local_world_size, .. } = *options;
    if world_size == 0 {
        let is_empty = rank == 0 && local_rank == 0 && local_world_size == 0;
        if is_empty && options.unique_id.is_null() && options.root.is_null() {
            return Ok(anabranch::rendezvous_from_launcher(config)?);
        }
        return Err(Failure::usage("world_size is 0, and other fields are set; give the number of ranks"));
    }
    if rank >= world_size {
        return Err(Failure::usage(format!(
            "rank is {rank}; world_size {world_size} allows 0 to {}",
            world_size - 1
        )));
    }
    if local_world_size > world_size || local_world_size > 0 && local_rank >= local_world_size {
        return Err(Failure::usage(format!(
            "local_rank {local_rank} of local_world_size {local_world_size}, with world_size {world_size}; local_rank is below \
             local_world_size, which is at most world_size"
        )));
    }
    if !options.unique_id.is_null() {
        return by_id(config, options);
    }
    if !options.root.is_null() {
        return Err(Failure::usage("root is given without the unique_id that was made with it"));
    }
    if config.bootstrap.address.is_none() {
        return Err(Failure::usage(
            "without unique_id the setting bootstrap.address is needed: where rank 0 listens, host:port",
        ));
    }
    if local_world_size == 0 {
        return Err(Failure::usage("local_world_size is 0; without unique_id it is needed"));
    }
    let own = [
        ("ANABRANCH_RANK", rank),
        ("ANABRANCH_WORLD_SIZE", world_size),
        ("ANABRANCH_LOCAL_RANK", local_rank),
        ("ANABRANCH_LOCAL_WORLD_SIZE", local_world_size),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_string()));
    let environment: Environment = Environment::of_process().to_vec().into_iter().chain(own).collect();
    Ok(anabranch::rendezvous_from(config, &environment)?)
}

/// Joins the world of all ranks. Collective: returns when all have joined, or with an error after the setting `deadline.rendezvous`.
///
/// `config` NULL is the process's variables on top of the defaults. `options` NULL is the launcher's variables: those of `anabranch run`,
/// torchrun, srun, mpirun, mpiexec, flux, or `ANABRANCH_RANK` and its likes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_join(
    config: *const anabranch_config,
    options: *const anabranch_join_options,
    world: *mut *mut anabranch_world,
) -> anabranch_status {
    guard(|| {
        logs::start();
        let out = Out::new(world)?;
        let options = versioned::read_or_zero(options)?;
        let config = settings(config)?;
        let joined = rendezvous(&config, &options)?;
        let world = anabranch::join(&config, &joined)?;
        out.give(anabranch_world { state: State::new(world, joined.local_rank) });
        Ok(())
    })
}
