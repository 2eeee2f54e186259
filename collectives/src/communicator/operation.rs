//! One collective as one rank runs it: what it called, the schedule, and how the buffer is cut.

use super::{Plan, Planned};
use crate::exec::Execution;
use crate::registry::{Algorithm, Shape};
use crate::schedule::{Schedule, Segments};
use crate::transport::Transport;
use crate::{Call, Collective, DType, Error, Geometry, Operation, Rank, ReduceOp, Result};
use allfold_kernels::divide_bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What a caller asks for. `count` is of the whole buffer, or of one block where the collective is made of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub collective: Collective,
    /// What the caller called it, for errors.
    pub operation: Operation,
    pub count: usize,
    pub dtype: DType,
    pub op: Option<ReduceOp>,
    pub root: Option<Rank>,
}

impl Request {
    pub fn reduced(self, op: ReduceOp) -> Request {
        Request { op: Some(op), ..self }
    }

    pub fn rooted(self, root: Rank) -> Request {
        Request { root: Some(root), ..self }
    }
}

/// Schedules that have been built, by what they were built from.
#[derive(Default)]
pub(super) struct Schedules {
    built: BTreeMap<Key, Arc<dyn Schedule>>,
}

/// Collective, root, algorithm, segments.
type Key = (Collective, Option<Rank>, &'static str, u32);

impl Schedules {
    fn get(&mut self, row: &Algorithm, shape: Shape, root: Option<Rank>, segments: u32) -> Arc<dyn Schedule> {
        let key = |segments| (row.collective, root, row.name, segments);
        let whole = self.built.entry(key(1)).or_insert_with(|| row.build(shape)).clone();
        if segments == 1 || whole.segments() > 1 {
            return whole;
        }
        self.built.entry(key(segments)).or_insert_with(|| Arc::new(Segments::new(whole, segments))).clone()
    }
}

/// Ready to run, on any thread.
pub(super) struct Prepared {
    schedule: Arc<dyn Schedule>,
    geometry: Geometry,
    rank: Rank,
    window: u32,
    /// But for its number, which it gets when it is called.
    call: Call,
}

impl Prepared {
    pub fn new(
        request: Request,
        rank: Rank,
        size: u32,
        plan: &Plan,
        schedules: &mut Schedules,
    ) -> Result<Prepared> {
        let Request { collective, operation, count, dtype, op, root } = request;
        let shape = Shape::new(size)?.rooted(root.unwrap_or(Rank(0)))?;
        let (count, width) = (count as u64, dtype.size() as u64);
        let blocks = if collective.blocked() { u64::from(size) } else { 1 };
        let elements = count.checked_mul(blocks).filter(|all| all.checked_mul(width).is_some_and(fits));
        let Some(elements) = elements else {
            return Err(Error::Argument(format!(
                "{collective} of {count} x {dtype} per rank over {size} ranks is more than memory can address"
            )));
        };
        let bytes = elements * width;
        let row = plan.pick(collective, shape, bytes);
        let whole = schedules.get(row, shape, root, 1);
        let chunk = elements.div_ceil(u64::from(whole.chunks()));
        let schedule = schedules.get(row, shape, root, plan.segments(row, bytes, chunk, width));
        let geometry = match collective.blocked() {
            true => Geometry::blocked(&schedule, count),
            false => Geometry::whole(&schedule, count),
        };
        let (algorithm, segments) = (row.name, schedule.segments());
        let call = Call { operation, sequence: 0, count, dtype, op, root, algorithm, segments };
        Ok(Prepared { schedule, geometry, rank, window: plan.window_of(row), call })
    }

    /// What is to be run, without this rank's part in it.
    pub fn into_planned(self) -> Planned {
        let Prepared { schedule, geometry, window, call, .. } = self;
        Planned { algorithm: call.algorithm, schedule, geometry, window }
    }

    /// Runs it, as this operation of the sequence, on the bytes of the whole buffer. `own` is the part of it that
    /// this rank ends with, where that is to be averaged.
    pub fn run(
        &self,
        sequence: u64,
        data: &mut [u8],
        own: Range<usize>,
        transport: &mut dyn Transport,
    ) -> Result<()> {
        let call = Arc::new(Call { sequence, ..self.call.clone() });
        transport.enter(&call)?;
        let execution = Execution {
            schedule: &*self.schedule,
            geometry: &self.geometry,
            rank: self.rank,
            window: self.window,
            dtype: self.call.dtype,
            op: self.call.op.unwrap_or(ReduceOp::Sum),
            call,
        };
        execution.run(data, transport)?;
        transport.done();
        if self.call.op == Some(ReduceOp::Avg) && self.call.root.is_none_or(|root| root == self.rank) {
            divide_bytes(self.call.dtype, &mut data[own], self.schedule.ranks());
        }
        Ok(())
    }
}

fn fits(bytes: u64) -> bool {
    isize::try_from(bytes).is_ok()
}
