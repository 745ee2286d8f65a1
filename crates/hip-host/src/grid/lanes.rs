//! The lanes of one block: coroutines on stacks of the machine, and the memory that they share.

use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;

use corosensei::{Coroutine, CoroutineResult};

use crate::fault::FaultKind;
use crate::grid::abi::{HostCalls, HostLane, KernelAbi};
use crate::grid::block_state::BlockState;
use crate::grid::lane::{Calls, Lane, LaneBody, LaneYielder, Memory, Table};
use crate::grid::local_memory::LocalMemory;
use crate::grid::plan::LaunchPlan;
use crate::grid::stack::{StackArena, StackSlot};

type LaneRoutine = Coroutine<(), (), (), StackSlot>;

/// A block that has begun, on the thread that runs it. Dropping it abandons lanes that have not ended.
pub struct BlockLanes<T> {
    plan: Arc<LaunchPlan>,
    // Boxed: lanes point to it.
    state: Box<BlockState>,
    lanes: Box<[Lane<T>]>,
    routines: Vec<Option<LaneRoutine>>,
    stacks: Vec<StackSlot>,
    // Lanes point to it.
    local: LocalMemory,
}

impl<T> fmt::Debug for BlockLanes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockLanes").field("kernel", &self.plan.kernel.name).finish_non_exhaustive()
    }
}

impl<T: Calls> BlockLanes<T> {
    /// Sets up block `index` of a launch of a kernel that was compiled to run free. `own` is asked for each thread.
    pub(crate) fn new(
        plan: &Arc<LaunchPlan>,
        index: u32,
        wave_width: u32,
        stacks: &Arc<StackArena>,
        own: impl Fn(u32) -> T,
    ) -> Self {
        assert_eq!(plan.kernel.abi, KernelAbi::Free, "modules hand out kernels of the machine's ABI alone");
        Self::with_calls(Table::<T>::FREE, plan, index, wave_width, stacks, own)
    }

    /// Sets up block `index` of a launch of an instrumented kernel, for waves of so many lanes. `own` is asked for each
    /// thread. Without stacks for all lanes the block has failed.
    ///
    /// # Panics
    /// If the kernel was compiled to run free.
    pub fn instrumented(
        plan: &Arc<LaunchPlan>,
        index: u32,
        wave_width: u32,
        stacks: &Arc<StackArena>,
        own: impl Fn(u32) -> T,
    ) -> Self
    where
        T: Memory,
    {
        assert_ne!(plan.kernel.abi, KernelAbi::Free, "the kernel is not instrumented");
        Self::with_calls(&Table::<T>::INSTRUMENTED.base, plan, index, wave_width, stacks, own)
    }

    fn with_calls(
        calls: &'static HostCalls,
        plan: &Arc<LaunchPlan>,
        index: u32,
        wave_width: u32,
        stacks: &Arc<StackArena>,
        own: impl Fn(u32) -> T,
    ) -> Self {
        let threads = plan.block_threads;
        let state = Box::new(BlockState::new(threads, wave_width, stacks.stack_bytes()));
        let local = LocalMemory::new(plan.local_bytes as usize);
        let view = |thread| HostLane {
            calls,
            local_memory: local.address(),
            local_bytes: plan.local_bytes,
            thread,
            block: index,
            block_threads: threads,
            grid_blocks: plan.grid_blocks,
            wave_width,
        };
        let lanes = (0..threads).map(|thread| Lane::new(view(thread), &state, own(thread))).collect();
        let stacks = stacks.take(threads as usize).unwrap_or_else(|| {
            state.fail(0, FaultKind::NoStacks);
            Vec::new()
        });
        let routines = (0..threads).map(|_| None).collect();
        Self { plan: Arc::clone(plan), state, lanes, routines, stacks, local }
    }

    /// Runs one lane until it suspends or ends; whether it has ended.
    pub fn run(&mut self, thread: u32) -> bool {
        let slot = thread as usize;
        let Some(mut routine) = self.routines[slot].take().or_else(|| self.start(slot)) else {
            self.state.fail(thread, FaultKind::NoStacks);
            return false;
        };
        match routine.resume(()) {
            CoroutineResult::Yield(()) => {
                self.routines[slot] = Some(routine);
                false
            }
            CoroutineResult::Return(()) => {
                let stack = routine.into_stack();
                if !stack.intact_at_end() {
                    self.state.fail_stack(thread);
                }
                // The next lane to start takes the stack that is warm in the cache.
                self.stacks.push(stack);
                self.state.exit(thread);
                true
            }
        }
    }

    fn start(&mut self, slot: usize) -> Option<LaneRoutine> {
        let stack = self.stacks.pop()?;
        let lane = &self.lanes[slot];
        lane.set_stack(stack.lowest());
        let body = LaneBody {
            lane: core::ptr::from_ref(lane),
            entry: self.plan.kernel.entry,
            arguments: self.plan.arguments.as_ptr().cast(),
        };
        // The closure owns nothing that needs dropping; `Drop` relies on it.
        Some(LaneRoutine::with_stack(stack, move |yielder: &LaneYielder, ()| body.run(yielder)))
    }
}

impl<T> BlockLanes<T> {
    pub(crate) fn state(&self) -> &BlockState {
        &self.state
    }

    /// The launch.
    pub fn plan(&self) -> &LaunchPlan {
        &self.plan
    }

    /// What the machine keeps of a thread.
    pub fn own(&self, thread: u32) -> &T {
        &self.lanes[thread as usize].own
    }

    /// Moves the threads that became able to go on since the last call out, in order; at first all of them.
    pub fn take_runnable(&self) -> VecDeque<u32> {
        self.state.take_runnable()
    }

    /// The thread and the cause that stopped the block first.
    pub fn fault(&self) -> Option<(u32, FaultKind)> {
        self.state.fault()
    }

    /// The addresses of the block's local memory.
    pub fn local_memory(&self) -> core::ops::Range<usize> {
        let start = self.local.address().addr();
        start..start + self.plan.local_bytes as usize
    }
}

impl<T> Drop for BlockLanes<T> {
    fn drop(&mut self) {
        for routine in &mut self.routines {
            if let Some(mut routine) = routine.take() {
                // SAFETY: `force_reset` is a longjmp to the routine's root and asks that nothing on its stack
                // needs dropping. On the stack are: the closure of `start` and `LaneBody::run`, which hold raw
                // pointers only; frames of the kernel, which by the ABI owns nothing (no locks, no allocations;
                // local memory is the block's); and one call of `Calls` or `Memory`, which by the contract of
                // `Lane::suspend` holds references and integers only.
                unsafe { routine.force_reset() };
                let stack = routine.into_stack();
                // An abandoned lane may have overflowed: this restores its red zone. The fault that ended the
                // block has been reported.
                let _ = stack.intact_at_end();
                self.stacks.push(stack);
            }
        }
    }
}
