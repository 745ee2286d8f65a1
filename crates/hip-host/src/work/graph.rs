//! Graphs: captured operations with their order, run any number of times.

use std::sync::Arc;

use crate::sync::lock;
use crate::work::event::{Mark, Recording};
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
    pub(crate) fn with_events_of_now(self: &Arc<Self>) -> Arc<Self> {
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
                *operation = match event.mark() {
                    Mark::Recorded(recording) => Operation::Await(recording),
                    Mark::Nothing | Mark::Captured(_) => Operation::Nothing,
                };
            }
        }
        for operation in &mut plan.operations {
            match operation {
                Operation::RecordEvent(event) => {
                    let recording = Arc::new(Recording::default());
                    *lock(&event.mark) = Mark::Recorded(Arc::clone(&recording));
                    *operation = Operation::Record(recording);
                }
                Operation::Graph(inner) => *inner = inner.with_events_of_now(),
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
