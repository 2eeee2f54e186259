//! The plan of one collective call: the algorithm, how the buffer is cut, and how many steps are in flight.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::registry::{self, Algorithm, Shape};
use allfold_collectives::schedule::{Lanes, Schedule, Segments, over_nics};
use allfold_collectives::{Collective, Communicator, DType, Geometry, ReduceOp, World};
use allfold_report::records::CollectiveCall;
use std::sync::Arc;

/// The user's choices for a collective call, which hold for every message size.
#[derive(Clone)]
pub struct Choice {
    /// The collective to run.
    pub collective: Collective,
    /// The algorithm; with `None` the message size decides.
    pub algorithm: Option<&'static Algorithm>,
    /// The number of ranks and the root rank.
    pub shape: Shape,
    /// The element type.
    pub dtype: DType,
    /// The reduction operator, if the collective reduces.
    pub op: ReduceOp,
    /// Bytes of the largest segment; `None` takes the algorithm's default.
    pub segment: Option<u64>,
    /// Steps that a rank may have in flight; `None` takes the algorithm's default.
    pub window: Option<u32>,
    /// Parallel lanes, each with its own share of the data; for simulations only.
    pub lanes: u32,
}

/// The nodes of a machine: lanes are rotated over the NICs of a node, as NCCL's channels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// Ranks of a node.
    pub devices: u32,
    /// NICs of a node.
    pub nics: u32,
}

/// The plan of a collective call for one message size.
pub struct CallPlan {
    /// The algorithm that the user or the registry chose.
    pub algorithm: &'static Algorithm,
    /// The schedule, cut into segments.
    pub schedule: Arc<dyn Schedule>,
    /// How the schedule cuts the buffer into chunks.
    pub geometry: Geometry,
    /// Elements that a rank contributes: the whole buffer's, or one block's if the buffer has a block per rank.
    pub count: u64,
    /// Bytes of the whole buffer, after rounding down to whole elements and blocks.
    pub bytes: u64,
    /// Steps that a rank may have in flight.
    pub window: u32,
    /// Bytes of the largest segment; `None` if chunks are not cut.
    pub segment: Option<u64>,
}

impl Choice {
    /// A sum of f32 on one lane; `None` leaves the algorithm to the registry. Segments and window are the algorithm's own.
    pub fn new(collective: Collective, algorithm: Option<&'static Algorithm>, shape: Shape) -> Choice {
        let (dtype, op) = (DType::F32, ReduceOp::Sum);
        Choice { collective, algorithm, shape, dtype, op, segment: None, window: None, lanes: 1 }
    }

    /// The elements that a rank contributes to a buffer of `size` bytes, and the buffer's bytes after rounding down.
    pub fn count(&self, size: u64) -> (u64, u64) {
        let element = self.dtype.size() as u64;
        let shares = if self.collective.blocked() { u64::from(self.shape.ranks()) } else { 1 };
        let count = size / (element * shares);
        (count, count * element * shares)
    }

    /// The algorithm for a buffer of `size` bytes.
    pub fn algorithm(&self, size: u64) -> &'static Algorithm {
        self.algorithm.unwrap_or_else(|| registry::auto(self.collective, self.shape, self.count(size).1))
    }

    /// Plans the call for a buffer of `size` bytes.
    ///
    /// # Errors
    /// Segments so small that there are more than 2^32.
    pub fn at(&self, size: u64) -> CommandResult<CallPlan> {
        self.on_nodes(size, None)
    }

    /// Whether the lanes of this call are rotated over the NICs of these nodes: only for all-reduce, all-gather and reduce-scatter
    /// (a root keeps its role in every lane), and only on several nodes that are all full.
    pub fn rotates(&self, nodes: Nodes) -> bool {
        let ranks = self.shape.ranks();
        let full = nodes.devices > 0 && ranks > nodes.devices && ranks.is_multiple_of(nodes.devices);
        self.lanes > 1
            && nodes.nics > 1
            && full
            && matches!(
                self.collective,
                Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter
            )
    }

    /// As [`Choice::at`], on a machine with these nodes.
    ///
    /// # Errors
    /// As [`Choice::at`].
    pub fn on_nodes(&self, size: u64, nodes: Option<Nodes>) -> CommandResult<CallPlan> {
        let (count, bytes) = self.count(size);
        let algorithm = self.algorithm(size);
        let whole = algorithm.build(self.shape).map_err(CommandError::usage)?;
        // A communicator cuts chunks by the same rule: no segment is smaller than one element.
        let element = self.dtype.size() as u64;
        let lanes = u64::from(self.lanes.max(1));
        let chunk = (bytes / element).div_ceil(u64::from(whole.chunks()) * lanes);
        let wanted = match self.segment {
            None => u64::from(algorithm.segments(bytes / lanes)),
            Some(piece) => (chunk * element).div_ceil(piece),
        };
        let segments = u32::try_from(wanted.min(chunk).max(1)).map_err(|_| {
            CommandError::usage(format!(
                "{wanted} segments are more than 2^32; take a larger --segment than {} bytes",
                self.segment.unwrap_or_default()
            ))
        })?;
        let cut = |whole| Segments::new(whole, segments);
        let schedule: Arc<dyn Schedule> = match (nodes.filter(|nodes| self.rotates(*nodes)), lanes, segments)
        {
            (_, 1, 1) => whole,
            (_, 1, _) => Arc::new(cut(whole)),
            (Some(Nodes { devices, nics }), ..) => over_nics(cut(whole), self.lanes, devices, nics),
            (None, lanes, _) => Arc::new(Lanes::split(cut(whole), lanes as usize)),
        };
        let geometry = match self.collective.blocked() {
            true => Geometry::blocked(&*schedule, count),
            false => Geometry::whole(&*schedule, count),
        };
        let window = self.window.unwrap_or_else(|| algorithm.window()).saturating_mul(self.lanes.max(1));
        let segment = (segments > 1).then(|| chunk.div_ceil(u64::from(segments)) * element);
        Ok(CallPlan { algorithm, schedule, geometry, count, bytes, window, segment })
    }

    /// Gives `world` the algorithm, the segment size and the window that the user chose.
    pub fn on(&self, world: impl Into<World>) -> World {
        let mut world = world.into();
        if let Some(algorithm) = self.algorithm {
            world = world.algorithm(self.collective, algorithm.name);
        }
        if let Some(bytes) = self.segment {
            world = world.segment(bytes);
        }
        match self.window {
            Some(steps) => world.window(steps),
            None => world,
        }
    }

    /// Gives `comm`, whose rank is this whole process, the algorithm, the segment size and the window that the user chose.
    ///
    /// # Errors
    /// A choice that [`allfold_collectives::Plan`] refuses.
    pub fn within(&self, comm: Communicator) -> CommandResult<Communicator> {
        let mut plan = allfold_collectives::Plan::default();
        if let Some(algorithm) = self.algorithm {
            plan = plan.algorithm(self.collective, algorithm.name).map_err(CommandError::usage)?;
        }
        if let Some(bytes) = self.segment {
            plan = plan.segment(bytes).map_err(CommandError::usage)?;
        }
        if let Some(steps) = self.window {
            plan = plan.window(steps).map_err(CommandError::usage)?;
        }
        Ok(comm.with_plan(plan))
    }

    /// The call as a record describes it, without `tree_hash` and `order_class`, which callers add if they know them.
    pub fn call(&self, plan: &CallPlan) -> CollectiveCall {
        CollectiveCall {
            collective: self.collective.name().into(),
            algorithm: plan.algorithm.name.into(),
            ranks: self.shape.ranks(),
            dtype: self.dtype.name().into(),
            op: self.collective.reduces().then(|| self.op.name().into()),
            root: self.collective.rooted().then(|| self.shape.root().0),
            count: plan.count,
            bytes: plan.bytes,
            tree_hash: None,
            order_class: None,
        }
    }
}

/// algbw and busbw in GB/s (1e9 bytes), for `bytes` bytes in `time_us` microseconds, by nccl-tests' rule.
pub fn bandwidths(collective: Collective, ranks: u32, bytes: u64, time_us: f64) -> (f64, f64) {
    if time_us <= 0.0 {
        return (0.0, 0.0);
    }
    let algbw = bytes as f64 / time_us / 1e3;
    (algbw, algbw * collective.bus_factor(ranks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_collectives::Plan as Communicators;
    use allfold_collectives::registry::ALGORITHMS;

    #[test]
    fn what_is_timed_is_what_a_communicator_would_run() {
        for algorithm in ALGORITHMS {
            for (ranks, size, segment) in
                [(1, 0, None), (3, 100, Some(8)), (8, 1 << 20, None), (6, 4 << 20, Some(1 << 16))]
            {
                let shape = Shape::new(ranks).unwrap();
                let choice = Choice { segment, ..Choice::new(algorithm.collective, Some(algorithm), shape) };
                let ours = choice.at(size).unwrap();
                let mut plan =
                    Communicators::default().algorithm(algorithm.collective, algorithm.name).unwrap();
                if let Some(bytes) = segment {
                    plan = plan.segment(bytes).unwrap();
                }
                let theirs = plan.of(algorithm.collective, ranks, ours.count as usize, DType::F32).unwrap();
                let (ours, theirs) = ((ours.schedule, ours.window), (theirs.schedule, theirs.window));
                let shape = |(schedule, window): &(Arc<dyn Schedule>, u32)| {
                    (schedule.chunks(), schedule.segments(), schedule.rounds(), *window)
                };
                assert_eq!(
                    shape(&ours),
                    shape(&theirs),
                    "{} {} {ranks} {size}",
                    algorithm.collective,
                    algorithm.name
                );
            }
        }
    }
}
