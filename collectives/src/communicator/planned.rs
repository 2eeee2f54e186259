//! What a communicator would run, without running it: for whoever times or proves exactly that.

use super::operation::{Prepared, Request, Schedules, Site};
use super::plan::Plan;
use crate::schedule::Schedule;
use crate::{Collective, DType, Geometry, Operation, Rank, ReduceOp, Result};
use std::sync::Arc;

/// The schedule of one collective, how it cuts the buffer, and its window.
#[derive(Clone)]
pub struct Planned {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// Who sends what to whom, cut into segments.
    pub schedule: Arc<dyn Schedule>,
    /// How the buffer is cut.
    pub geometry: Geometry,
    /// How many steps of a rank may be under way.
    pub window: u32,
}

impl Plan {
    /// What a communicator of `ranks` ranks with this plan runs for a collective with root 0 (where it has one) over
    /// `count` elements: of the whole buffer, or of one block where the collective is made of blocks.
    ///
    /// # Errors
    /// As the collective itself.
    pub fn of(&self, collective: Collective, ranks: u32, count: usize, dtype: DType) -> Result<Planned> {
        let request = Request {
            collective,
            operation: Operation::Collective(collective),
            count,
            dtype,
            op: collective.reduces().then_some(ReduceOp::Sum),
            root: collective.rooted().then_some(Rank(0)),
        };
        let prepared =
            Prepared::new(request, Rank(0), ranks, self, &mut Schedules::default(), Site::default())?;
        Ok(prepared.into_planned())
    }
}
