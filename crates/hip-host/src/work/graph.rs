//! Graphs: captured operations with their order, run any number of times.

use std::sync::Arc;

use crate::sync::lock;
use crate::work::event::{Event, Mark, Recording};
use crate::work::operation::{Advance, On, Operation, Running};

/// A captured operation and the nodes that it comes after.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) operation: Operation,
    pub(crate) after: Vec<usize>,
}

/// What a graph does. Never changes once made; a graph and its executables share it.
#[derive(Clone, Debug)]
pub(crate) struct GraphPlan {
    operations: Vec<Operation>,
    /// For each node, those that come after it.
    followers: Vec<Vec<usize>>,
    /// For each node, how many it comes after.
    predecessors: Vec<usize>,
}

impl GraphPlan {
    /// The plan of one launch: waits for the records that events have now, and new records.
    pub(crate) fn with_events_of_now(self: &Arc<Self>, records: &mut NewRecords) -> Arc<Self> {
        let is_external = |operation: &Operation| {
            matches!(operation, Operation::AwaitEvent(_) | Operation::RecordEvent(_) | Operation::Graph(_))
        };
        if !self.operations.iter().any(is_external) {
            return Arc::clone(self);
        }
        let mut plan = Self::clone(self);
        // Waits are for what came before the launch: they come first.
        for operation in &mut plan.operations {
            if let Operation::AwaitEvent(event) = operation {
                *operation = match records.mark(event) {
                    Mark::Recorded(recording) => Operation::Await(recording),
                    Mark::Nothing | Mark::Captured(_) => Operation::Nothing,
                };
            }
        }
        for operation in &mut plan.operations {
            match operation {
                Operation::RecordEvent(event) => {
                    *operation = Operation::Record(records.add(Arc::clone(event)));
                }
                Operation::Graph(inner) => *inner = inner.with_events_of_now(records),
                _ => {}
            }
        }
        Arc::new(plan)
    }

    pub(crate) fn new(nodes: Vec<Node>) -> Self {
        let mut followers = vec![Vec::new(); nodes.len()];
        let mut predecessors = Vec::with_capacity(nodes.len());
        let mut operations = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.into_iter().enumerate() {
            for before in &node.after {
                followers[*before].push(index);
            }
            predecessors.push(node.after.len());
            operations.push(node.operation);
        }
        Self { operations, followers, predecessors }
    }
}

/// The records of one launch. Events get them once the launch is accepted: after a refused one each stands for what it
/// did before.
#[derive(Debug)]
pub(crate) struct NewRecords {
    /// The device of the launch's stream.
    device: u32,
    records: Vec<(Arc<Event>, Arc<Recording>)>,
}

impl NewRecords {
    pub(crate) fn new(device: u32) -> Self {
        Self { device, records: Vec::new() }
    }

    fn add(&mut self, event: Arc<Event>) -> Arc<Recording> {
        let recording = Recording::new(self.device);
        self.records.push((event, Arc::clone(&recording)));
        recording
    }

    /// What a wait of the launch is for: a record of an earlier child graph comes before what the event stands for.
    fn mark(&self, event: &Arc<Event>) -> Mark {
        let own = self.records.iter().rev().find(|(recorded, _)| Arc::ptr_eq(recorded, event));
        own.map_or_else(|| event.mark(), |(_, recording)| Mark::Recorded(Arc::clone(recording)))
    }

    pub(crate) fn publish(self) {
        for (event, recording) in self.records {
            *lock(&event.mark) = Mark::Recorded(recording);
        }
    }
}

/// One run of a graph. Branches run side by side, as their kernels may wait for each other.
#[derive(Debug)]
pub(crate) struct GraphRun {
    plan: Arc<GraphPlan>,
    /// For each node, how many of those before it are not done.
    unmet: Vec<usize>,
    ready: Vec<usize>,
    running: Vec<(usize, Running)>,
}

impl GraphRun {
    pub(crate) fn new(plan: Arc<GraphPlan>) -> Self {
        let unmet = plan.predecessors.clone();
        let ready =
            unmet.iter().enumerate().filter(|(_, count)| **count == 0).map(|(index, _)| index).collect();
        Self { plan, unmet, ready, running: Vec::new() }
    }

    fn done(&mut self, node: usize) {
        for follower in &self.plan.followers[node] {
            self.unmet[*follower] -= 1;
            if self.unmet[*follower] == 0 {
                self.ready.push(*follower);
            }
        }
    }

    pub(crate) fn advance(&mut self, on: On<'_>) -> Advance {
        let mut moved = false;
        loop {
            while let Some(node) = self.ready.pop() {
                moved = true;
                match Running::begin(self.plan.operations[node].clone(), on) {
                    Some(running) => self.running.push((node, running)),
                    None => self.done(node),
                }
            }
            let mut finished = Vec::new();
            self.running.retain_mut(|(node, running)| match running.advance(on) {
                Advance::Done => {
                    finished.push(*node);
                    false
                }
                Advance::Moved => {
                    moved = true;
                    true
                }
                Advance::Waiting => true,
            });
            for node in finished {
                moved = true;
                self.done(node);
            }
            if self.ready.is_empty() {
                break;
            }
        }
        if self.running.is_empty() {
            Advance::Done
        } else if moved {
            Advance::Moved
        } else {
            Advance::Waiting
        }
    }
}
