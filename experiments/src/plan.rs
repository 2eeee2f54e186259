//! One call, worked out: which algorithm, how the buffer is cut, how much of it is under way at once.

use crate::failure::{Failure, Outcome};
use crate::records::Call;
use allfold_collectives::registry::{self, Algorithm, Shape};
use allfold_collectives::schedule::{Schedule, Segments};
use allfold_collectives::{Collective, DType, Geometry, ReduceOp};
use std::sync::Arc;

/// What the user chose, for all sizes.
#[derive(Clone)]
pub struct Choice {
    /// What is to be computed.
    pub collective: Collective,
    /// How; `None` chooses by size.
    pub algorithm: Option<&'static Algorithm>,
    /// Over whom.
    pub shape: Shape,
    /// Of what.
    pub dtype: DType,
    /// With which operator, where the collective reduces.
    pub op: ReduceOp,
    /// Largest piece, in bytes; `None` leaves it to the algorithm.
    pub segment: Option<u64>,
    /// Steps under way; `None` leaves it to the algorithm.
    pub window: Option<u32>,
}

/// One size of it.
pub struct Plan {
    /// How it is computed.
    pub algorithm: &'static Algorithm,
    /// The schedule, cut into segments.
    pub schedule: Arc<dyn Schedule>,
    /// Where the chunks lie.
    pub geometry: Geometry,
    /// Elements that a rank contributes: of the whole buffer, or of one block where there is one per rank.
    pub count: u64,
    /// Bytes of the whole buffer, after rounding down to whole elements and blocks.
    pub bytes: u64,
    /// Steps that a rank may have under way.
    pub window: u32,
    /// Bytes of the largest piece; `None` where chunks are not cut.
    pub segment: Option<u64>,
}

impl Choice {
    /// Elements of a rank's share for a size in bytes, and the bytes that they make.
    pub fn count(&self, size: u64) -> (u64, u64) {
        let element = self.dtype.size() as u64;
        let shares = if self.collective.blocked() { u64::from(self.shape.ranks()) } else { 1 };
        let count = size / (element * shares);
        (count, count * element * shares)
    }

    /// The algorithm for a size in bytes.
    pub fn algorithm(&self, size: u64) -> &'static Algorithm {
        self.algorithm.unwrap_or_else(|| registry::auto(self.collective, self.shape, self.count(size).1))
    }

    /// Works out one size.
    ///
    /// # Errors
    /// Segments so small that they cannot be numbered.
    pub fn at(&self, size: u64) -> Outcome<Plan> {
        let (count, bytes) = self.count(size);
        let algorithm = self.algorithm(size);
        let whole = algorithm.build(self.shape);
        let chunk = bytes.div_ceil(u64::from(whole.chunks()));
        let segments = match self.segment {
            None => algorithm.segments(bytes),
            Some(piece) => u32::try_from(chunk.div_ceil(piece)).map_err(|_| {
                Failure::usage(format!(
                    "pieces of {piece} bytes cut {chunk} bytes more than 2^32 times; take a larger --segment"
                ))
            })?,
        };
        let schedule: Arc<dyn Schedule> =
            if segments > 1 { Arc::new(Segments::new(whole, segments)) } else { whole };
        let geometry = match self.collective.blocked() {
            true => Geometry::blocked(&*schedule, count),
            false => Geometry::whole(&*schedule, count),
        };
        let window = self.window.unwrap_or_else(|| algorithm.window());
        let segment = (segments > 1).then(|| chunk.div_ceil(u64::from(segments)));
        Ok(Plan { algorithm, schedule, geometry, count, bytes, window, segment })
    }

    /// What a record says was called. The identity of the result is added where it is known.
    pub fn call(&self, plan: &Plan) -> Call {
        Call {
            collective: self.collective.name().into(),
            algorithm: plan.algorithm.name.into(),
            ranks: self.shape.ranks(),
            dtype: self.dtype.name().into(),
            op: self.collective.reduces().then(|| self.op.name().into()),
            root: self.collective.rooted().then(|| self.shape.root().0),
            count: plan.count,
            bytes: plan.bytes,
            tree: None,
            order: None,
        }
    }
}

/// algbw and busbw in GB/s (1e9) of so many bytes in so many microseconds, by nccl-tests' rule.
pub fn bandwidths(collective: Collective, ranks: u32, bytes: u64, time_us: f64) -> (f64, f64) {
    if time_us <= 0.0 {
        return (0.0, 0.0);
    }
    let algbw = bytes as f64 / time_us / 1e3;
    (algbw, algbw * collective.bus_factor(ranks))
}
