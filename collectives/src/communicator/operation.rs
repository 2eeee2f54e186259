//! One collective as one rank runs it: what it called, the schedule, and how the buffer is cut.

use super::{Plan, Planned};
use crate::exec::{Buffers, Execution};
use crate::fused::{self, Trees};
use crate::registry::{Algorithm, Shape};
use crate::schedule::{Schedule, Segments};
use crate::transport::{Summons, Transport};
use crate::{Call, Collective, DType, Error, Geometry, Operation, Rank, ReduceOp, Result};
use allfold_kernels::fused::{Ends, Exchange};
use allfold_kernels::{copy_large, divide_bytes};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// What a caller asks for. `count` is of the whole buffer, or of one block where the collective is made of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// By which trees they reduce, where that is known.
    trees: BTreeMap<Key, Option<Trees>>,
}

/// Collective, root, algorithm, segments.
type Key = (Collective, Option<Rank>, &'static str, u32);

impl Schedules {
    /// Cut into so many segments that follow each other at this stride.
    fn get(
        &mut self,
        row: &Algorithm,
        shape: Shape,
        root: Option<Rank>,
        (segments, stride): (u32, u64),
    ) -> Arc<dyn Schedule> {
        let key = |segments| (row.collective, root, row.name, segments);
        let whole = self.built.entry(key(1)).or_insert_with(|| row.build(shape)).clone();
        if segments == 1 || whole.segments() > 1 {
            return whole;
        }
        self.built
            .entry(key(segments))
            .or_insert_with(|| Arc::new(Segments::with_stride(whole, segments, stride)))
            .clone()
    }

    /// The trees of an algorithm that was chosen by name; of one that was not, the canonical one, which all of those
    /// have.
    fn trees(
        &mut self,
        row: &Algorithm,
        whole: &dyn Schedule,
        root: Option<Rank>,
        named: bool,
    ) -> Option<Trees> {
        let name = if named { row.name } else { "" };
        let key = (row.collective, root, name, 1);
        let trees = self.trees.entry(key).or_insert_with(|| match named {
            true => fused::trees(whole, row.collective, root.unwrap_or(Rank(0))),
            false => fused::canonical(whole.ranks()),
        });
        trees.clone()
    }
}

/// What there is to know of the place where ranks run.
#[derive(Clone, Copy, Default)]
pub(super) struct Site {
    pub shares_memory: bool,
    /// [`Transport::piece`].
    pub piece: Option<u64>,
}

/// Chunks are cut into no more pieces than this: each costs a few steps.
const PIECES: u64 = 4096;
/// Steps under way where pieces follow each other: enough that there is always one to send.
const UNDER_WAY: u32 = 16;

/// Ready to run, on any thread.
pub(super) struct Prepared {
    schedule: Arc<dyn Schedule>,
    geometry: Geometry,
    rank: Rank,
    window: u32,
    /// But for its number, which it gets when it is called.
    call: Call,
    /// One word for the call.
    label: u64,
    /// The same for ranks that share memory.
    exchange: Option<Exchange>,
    /// Whether the transport does it by a collective of its own.
    native: bool,
}

/// What a collective that is the transport's own is called in place of an algorithm.
const NATIVE: &str = "native";

impl Prepared {
    pub fn new(
        request: Request,
        rank: Rank,
        size: u32,
        plan: &Plan,
        schedules: &mut Schedules,
        site: Site,
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
        let whole = schedules.get(row, shape, root, (1, 0));
        let chunk = elements.div_ceil(u64::from(whole.chunks()));
        let cut = site.piece.filter(|_| plan.leaves_whole(row) && whole.rounds() > 1);
        let segments = cut.map_or_else(
            || plan.segments(row, bytes, chunk, width),
            |piece| (chunk * width).div_ceil(piece).clamp(1, PIECES) as u32,
        );
        let stride = if cut.is_some() { 1 } else { whole.stride() };
        let schedule = schedules.get(row, shape, root, (segments, stride));
        let geometry = match collective.blocked() {
            true => Geometry::blocked(&schedule, count),
            false => Geometry::whole(&schedule, count),
        };
        let (algorithm, segments) = (row.name, schedule.segments());
        let call = Call { operation, sequence: 0, count, dtype, op, root, algorithm, segments };
        let mut exchange = None;
        if site.shares_memory
            && let Some(trees) = schedules.trees(row, &*whole, root, plan.names(collective))
        {
            let what = (dtype, op.unwrap_or(ReduceOp::Sum));
            exchange = Some(fused::exchange(collective, size, root, what, count as usize, &trees, &geometry));
        }
        let label = label(&call);
        let window = if segments > 1 && cut.is_some() { UNDER_WAY } else { plan.window_of(row) };
        Ok(Prepared { schedule, geometry, rank, window, call, label, exchange, native: false })
    }

    /// The same by a collective of the transport's own, if it has one and no algorithm was named.
    pub fn natively(mut self, plan: &Plan, collective: Collective, transport: &dyn Transport) -> Prepared {
        if !plan.names(collective) && transport.natively(&self.call) {
            self.native = true;
            self.call = Call { algorithm: NATIVE, segments: 1, ..self.call };
            self.label = label(&self.call);
        }
        self
    }

    /// What ranks must agree on, as this operation of the sequence.
    pub fn call(&self, sequence: u64) -> Call {
        Call { sequence, ..self.call.clone() }
    }

    /// What is to be run, without this rank's part in it.
    pub fn planned(&self) -> Planned {
        Planned {
            algorithm: self.call.algorithm,
            schedule: self.schedule.clone(),
            geometry: self.geometry.clone(),
            window: self.window,
        }
    }

    /// Runs it, as this operation of the sequence, on the rank's buffers: one that is both, of the whole size, or, where
    /// the collective has another source than result, each with what the rank gives and gets.
    /// `begin` is called when it is on its way.
    pub fn run(
        &self,
        sequence: u64,
        ends: Ends<'_>,
        transport: &mut dyn Transport,
        begin: &dyn Fn(),
    ) -> Result<()> {
        if self.native {
            begin();
            return transport.native(Summons { call: &self.call, sequence, label: self.label, begin }, ends);
        }
        let Some(exchange) = self.exchange.as_ref().filter(|_| transport.shares_memory()) else {
            begin();
            return self.by_messages(sequence, ends, transport);
        };
        // A word for each number: no two calls of one communicator have the same label.
        let label = self.label.wrapping_add(sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let summons = Summons { call: &self.call, sequence, label, begin };
        match ends {
            // What is passed on is still to be read when what comes is written.
            Ends::InPlace(data) if self.call.operation == Operation::Collective(Collective::SendRecv) => {
                let mut copy = transport.room(data.len());
                copy.copy_from_slice(data);
                transport.together(summons, exchange, Ends::Apart(&copy, data))
            }
            ends => transport.together(summons, exchange, ends),
        }
    }

    /// The same by messages, which know one buffer of the whole size.
    fn by_messages(&self, sequence: u64, ends: Ends<'_>, transport: &mut dyn Transport) -> Result<()> {
        let (rank, block) = (self.rank.index(), self.call.count as usize * self.call.dtype.size());
        let own = rank * block..(rank + 1) * block;
        let (from, to) = match ends {
            Ends::InPlace(data) => {
                return self.execute(sequence, Buffers::whole(data, own), transport);
            }
            Ends::Apart(from, to) => (from, to),
        };
        let whole = self.geometry.count() as usize * self.call.dtype.size();
        if to.len() == whole {
            // All of what the rank gives, or its block among all: that is copied to its place as it is sent.
            let mut buffers = Buffers::whole(to, own);
            match from.len() == whole {
                true => copy_large(buffers.data, from),
                false => buffers.given = Some(from),
            }
            return self.execute(sequence, buffers, transport);
        }
        let mut copy = transport.room(whole);
        let mut buffers = Buffers::whole(&mut copy, own.clone());
        // Of a reduce-scatter the rank's own block is written for certain, where it is wanted, and only what is reduced
        // is copied.
        if self.call.operation == Operation::Collective(Collective::ReduceScatter)
            && self.schedule.ranks() > 1
            && (from.len(), to.len()) == (whole, block)
        {
            (buffers.input, buffers.wanted) = (Some(from), Some(to));
            return self.execute(sequence, buffers, transport);
        }
        match from.len() {
            len if len == whole => copy_large(buffers.data, from),
            len if len == block => copy_large(&mut buffers.data[own.clone()], from),
            _ => {}
        }
        self.execute(sequence, buffers, transport)?;
        if to.len() == block {
            copy_large(to, &copy[own]);
        }
        Ok(())
    }

    /// Runs the schedule.
    fn execute(&self, sequence: u64, buffers: Buffers<'_>, transport: &mut dyn Transport) -> Result<()> {
        let call = Arc::new(self.call(sequence));
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
        let Buffers { data, input, own, given, mut wanted } = buffers;
        let lent = Buffers { data, input, own: own.clone(), given, wanted: wanted.as_deref_mut() };
        execution.run(lent, transport)?;
        transport.done();
        if self.call.op == Some(ReduceOp::Avg) && self.call.root.is_none_or(|root| root == self.rank) {
            let scatters = self.call.operation == Operation::Collective(Collective::ReduceScatter);
            let result = match wanted {
                Some(block) => block,
                None if scatters => &mut data[own],
                None => data,
            };
            divide_bytes(self.call.dtype, result, self.schedule.ranks());
        }
        Ok(())
    }
}

/// One word for a call.
fn label(call: &Call) -> u64 {
    let mut hasher = DefaultHasher::new();
    call.hash(&mut hasher);
    hasher.finish()
}

fn fits(bytes: u64) -> bool {
    isize::try_from(bytes).is_ok()
}
