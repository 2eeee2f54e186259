//! The schedule that a communicator would run, without running it: for simulations and proofs of exactly that schedule.

use super::operation::{Prepared, Site};
use super::plan::{Plan, Planned};
use super::request::Request;
use super::schedules::Schedules;
use crate::{Collective, Communicator, DType, Operation, Rank, ReduceOp, Result};

impl Communicator {
    /// The schedule that this communicator runs for a collective: that of [`Plan::of`], cut into the pieces that its transport
    /// needs.
    ///
    /// # Errors
    /// As the collective itself.
    pub fn planned(&self, collective: Collective, count: usize, dtype: DType) -> Result<Planned> {
        Ok(self.prepare(request(collective, count, dtype))?.planned())
    }
}

impl Plan {
    /// The schedule that a communicator of `ranks` ranks with this plan runs for a collective over `count` elements (of the whole buffer,
    /// or of one block where the collective is made of blocks), with root 0 where it has a root. If a transport cuts the schedule into
    /// more pieces, as TCP does, [`Communicator::planned`] returns the schedule with these pieces.
    ///
    /// # Errors
    /// As the collective itself.
    pub fn of(&self, collective: Collective, ranks: u32, count: usize, dtype: DType) -> Result<Planned> {
        let request = request(collective, count, dtype);
        let schedules = &mut Schedules::default();
        let site = Site { rank: Rank(0), size: ranks, plan: self, schedules, connection: None };
        Ok(Prepared::new(request, site)?.planned())
    }
}

/// A call with root 0 that sums, where the collective has a root or reduces.
pub(super) fn request(collective: Collective, count: usize, dtype: DType) -> Request {
    Request {
        collective,
        operation: Operation::Collective(collective),
        count,
        dtype,
        op: collective.reduces().then_some(ReduceOp::Sum),
        root: collective.rooted().then_some(Rank(0)),
    }
}
