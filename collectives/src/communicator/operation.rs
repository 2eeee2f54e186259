//! One collective as one rank runs it: the call, the schedule, the geometry of the buffer, and the path to the other ranks.

use super::path::Path;
use super::plan::{Plan, Planned};
use super::request::Request;
use super::schedules::Schedules;
use crate::exec::{Buffers, Execution};
use crate::fused;
use crate::meaning::{Meaning, Portion, Value};
use crate::registry::Shape;
use crate::schedule::Schedule;
use crate::transport::{CallHeader, Connection, Transport};
use crate::{Call, Error, Geometry, Operation, Rank, ReduceOp, Result};
use allfold_kernels::fused::{CallBuffers, Exchange};
use allfold_kernels::{copy_large, divide_bytes};
use std::ops::Range;
use std::sync::Arc;

/// The parts of a communicator that prepare a call.
pub(super) struct Site<'a> {
    pub rank: Rank,
    pub size: u32,
    pub plan: &'a Plan,
    pub schedules: &'a mut Schedules,
    /// The connection to the other ranks; `None` in [`Plan::of`], which has no communicator.
    pub connection: Option<&'a mut Connection>,
}

/// Limit on pieces per chunk: each piece costs a few steps.
const PIECES: u64 = 4096;
/// Steps in flight when pieces are pipelined: enough that there is always one to send.
const UNDER_WAY: u32 = 16;

/// A collective that is ready to run on any thread.
pub(super) struct Prepared {
    schedule: Arc<dyn Schedule>,
    geometry: Geometry,
    rank: Rank,
    window: u32,
    /// The call; [`Prepared::call`] sets its sequence number.
    call: Call,
    /// The label of the call without its number.
    label: u64,
    path: Path<Exchange>,
}

/// The algorithm's name in a call that the transport itself runs.
const NATIVE: &str = "native";

impl Prepared {
    pub fn new(request: Request, site: Site<'_>) -> Result<Prepared> {
        let Request { collective, operation, count, dtype, op, root } = request;
        let Site { rank, size, plan, schedules, connection } = site;
        let shape = Shape::new(size)?.rooted(root.unwrap_or(Rank(0)))?;
        let elements = elements(request, size)?;
        let (count, width) = (count as u64, dtype.size() as u64);
        let bytes = elements * width;
        let row = plan.pick(collective, shape, bytes);
        let whole = schedules.get(row, shape, root, (1, 0))?;
        let chunk = elements.div_ceil(u64::from(whole.chunks()));
        let mut call =
            Call { operation, sequence: 0, count, dtype, op, root, algorithm: row.name, segments: 1 };
        let named = plan.names(collective);
        let path = connection.map_or(Path::Frames, |connection| {
            Path::choose(connection, &call, named, || schedules.trees(row, &*whole, root, named))
        });
        let piece = match path {
            Path::Direct(piece) if plan.leaves_whole(row) && whole.rounds() > 1 => Some(piece),
            _ => None,
        };
        let (segments, stride) = match piece {
            Some(piece) => ((chunk * width).div_ceil(piece).clamp(1, PIECES) as u32, 1),
            None => (plan.segments(row, bytes, chunk, width), whole.stride()),
        };
        let schedule = schedules.get(row, shape, root, (segments, stride))?;
        let geometry = match collective.blocked() {
            true => Geometry::blocked(&schedule, count),
            false => Geometry::whole(&schedule, count),
        };
        call.segments = schedule.segments();
        let window = if call.segments > 1 && piece.is_some() { UNDER_WAY } else { plan.window_of(row) };
        if let Path::Native = path {
            (call.algorithm, call.segments) = (NATIVE, 1);
        }
        let path = path.map_fused(|trees| {
            let what = (dtype, op.unwrap_or(ReduceOp::Sum));
            fused::exchange(collective, size, root, what, count as usize, &trees, &geometry)
        });
        let label = call.label();
        Ok(Prepared { schedule, geometry, rank, window, call, label, path })
    }

    /// The call with this sequence number. All ranks must make the same call.
    pub fn call(&self, sequence: u64) -> Call {
        Call { sequence, ..self.call.clone() }
    }

    /// The schedule and its geometry, the same for all ranks.
    pub fn planned(&self) -> Planned {
        Planned {
            algorithm: self.call.algorithm,
            schedule: self.schedule.clone(),
            geometry: self.geometry.clone(),
            window: self.window,
            native: matches!(self.path, Path::Native),
        }
    }

    /// Runs the collective as operation number `sequence`. The caller's buffers are one buffer of the whole size, or the source and the
    /// result. `begin` is called in shared memory when the call is being sent to the other ranks, otherwise immediately.
    pub fn run(
        &self,
        sequence: u64,
        buffers: CallBuffers<'_>,
        connection: &mut Connection,
        begin: &dyn Fn(),
    ) -> Result<()> {
        // The number is added to the label, so that no two calls of one communicator have the same label.
        let label = self.label.wrapping_add(sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let header = CallHeader { call: &self.call, sequence, label, begin };
        match (&self.path, buffers) {
            (Path::Native, buffers) => {
                begin();
                connection.run_native(header, buffers)
            }
            (Path::Direct(_) | Path::Frames, buffers) => {
                begin();
                self.by_messages(sequence, buffers, connection)
            }
            // The previous rank's data would overwrite the data that this rank sends on, so this rank's data are copied first.
            (Path::Fused(exchange), CallBuffers::InPlace(data))
                if self.meaning().is_some_and(|row| row.value == Value::Previous) =>
            {
                let mut copy = connection.messages().alloc(data.len());
                copy.copy_from_slice(data);
                connection.run_fused(header, exchange, CallBuffers::OutOfPlace(&copy, data))
            }
            (Path::Fused(exchange), buffers) => connection.run_fused(header, exchange, buffers),
        }
    }

    /// Runs the messages of the collective without contents, on virtual time.
    pub fn run_lengths(&self, sequence: u64, connection: &mut Connection) -> Result<()> {
        needs_virtual_time(connection.messages())?;
        self.execute(sequence, Buffers::Lengths, connection)
    }

    /// The row of the collective in the table of meanings; `None` for a split, which runs as an all-gather.
    fn meaning(&self) -> Option<&'static Meaning> {
        match self.call.operation {
            Operation::Collective(collective) => Some(collective.meaning()),
            _ => None,
        }
    }

    /// Whether each rank ends with its block of a reduction.
    fn scatters_reduced(&self) -> bool {
        let row = self.meaning();
        row.is_some_and(|row| row.value == Value::Reduced && row.output.part == Portion::Block)
    }

    /// The rank's own block of the whole buffer, in bytes.
    fn own(&self) -> Range<usize> {
        let (rank, block) = (self.rank.index(), self.call.count as usize * self.call.dtype.size());
        rank * block..(rank + 1) * block
    }

    /// Runs the collective by messages, which use one buffer of the whole size.
    fn by_messages(
        &self,
        sequence: u64,
        buffers: CallBuffers<'_>,
        connection: &mut Connection,
    ) -> Result<()> {
        let own = self.own();
        let (from, to) = match buffers {
            CallBuffers::InPlace(data) => return self.execute(sequence, Buffers::Whole(data), connection),
            CallBuffers::OutOfPlace(from, to) => (from, to),
        };
        let (block, whole) = (own.len(), self.geometry.count() as usize * self.call.dtype.size());
        if to.len() == whole {
            // The rank gives either the whole buffer, or its own block, which is copied to its range of the buffer as it is sent.
            let buffers = match from.len() == whole {
                true => {
                    copy_large(to, from);
                    Buffers::Whole(to)
                }
                false => Buffers::Block { whole: to, own, block: from },
            };
            return self.execute(sequence, buffers, connection);
        }
        let mut copy = connection.messages().alloc(whole);
        // A reduce-scatter reads its input in place: only chunks that are reduced are copied to `copy`, and the rank's own block is
        // written directly to `to`.
        if self.scatters_reduced() && self.schedule.ranks() > 1 && (from.len(), to.len()) == (whole, block) {
            let buffers = Buffers::Scattered { input: from, scratch: &mut copy, own, result: to };
            return self.execute(sequence, buffers, connection);
        }
        match from.len() {
            len if len == whole => copy_large(&mut copy, from),
            len if len == block => copy_large(&mut copy[own.clone()], from),
            _ => {}
        }
        self.execute(sequence, Buffers::Whole(&mut copy), connection)?;
        if to.len() == block {
            copy_large(to, &copy[own]);
        }
        Ok(())
    }

    /// Runs the schedule on the buffers.
    fn execute(&self, sequence: u64, mut buffers: Buffers<'_>, connection: &mut Connection) -> Result<()> {
        let call = Arc::new(self.call(sequence));
        connection.messages().enter(&call)?;
        let execution = Execution {
            schedule: &*self.schedule,
            geometry: &self.geometry,
            rank: self.rank,
            window: self.window,
            dtype: self.call.dtype,
            op: self.call.op.unwrap_or(ReduceOp::Sum),
            call,
        };
        execution.run(buffers.lend(), self.path.route(connection)?)?;
        connection.messages().done();
        if self.call.op == Some(ReduceOp::Avg) && self.call.root.is_none_or(|root| root == self.rank) {
            let own = self.scatters_reduced().then(|| self.own());
            divide_bytes(self.call.dtype, buffers.result(own), self.schedule.ranks());
        }
        Ok(())
    }
}

/// Elements of the whole buffer.
fn elements(request: Request, size: u32) -> Result<u64> {
    let Request { collective, count, dtype, .. } = request;
    let blocks = if collective.blocked() { u64::from(size) } else { 1 };
    let fits = |bytes: u64| isize::try_from(bytes).is_ok();
    let elements = (count as u64)
        .checked_mul(blocks)
        .filter(|all| all.checked_mul(dtype.size() as u64).is_some_and(fits));
    elements.ok_or_else(|| {
        Error::Argument(format!(
            "{collective} of {count} x {dtype} per rank over {size} ranks is more than memory can address"
        ))
    })
}

pub(super) fn needs_virtual_time(transport: &mut dyn Transport) -> Result<()> {
    match transport.virtual_time() {
        Some(_) => Ok(()),
        None => Err(Error::Argument("messages without contents are for ranks on virtual time".into())),
    }
}
