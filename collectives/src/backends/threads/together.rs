//! A rank's patience while ranks that share memory meet, and whom it asks when they do not come or do not agree.
//!
//! ```text
//! all come at once      nobody looks at the ledger: the labels on the board are equal
//! some are late         who waits enters the ledger, which knows of other calls, of ranks that left, of failures
//! labels differ         everybody enters the ledger, and the second one of two that differ is told of both
//! ```

use super::super::real_time::clock;
use super::group::Group;
use crate::transport::Summons;
use crate::{Call, Error, Rank, Result};
use allfold_kernels::fused::Patience;
use std::time::{Duration, Instant};

/// One rank's wait in one operation.
pub(super) struct Wait<'a> {
    group: &'a Group,
    rank: Rank,
    summons: Summons<'a>,
    deadline: Duration,
    /// Once it had to wait: until when, and the call that it entered the ledger with.
    entered: Option<(Instant, Call)>,
}

impl<'a> Wait<'a> {
    pub fn new(group: &'a Group, rank: Rank, summons: Summons<'a>, deadline: Duration) -> Wait<'a> {
        Wait { group, rank, summons, deadline, entered: None }
    }

    /// Enters the ledger, or looks whether there was a failure since. Until when this rank waits.
    fn look(&mut self) -> Result<Instant> {
        match &self.entered {
            Some((due, _)) => {
                let failure = self.group.ledger(|ledger| ledger.failure(self.rank));
                failure.map_or(Ok(*due), Err)
            }
            None => {
                let (now, call) = (clock(), self.summons.write());
                let due = now.checked_add(self.deadline).unwrap_or(now + Duration::from_secs(1 << 32));
                self.group.enter(self.rank, &call)?;
                self.entered = Some((due, call));
                Ok(due)
            }
        }
    }

    fn late(&self, waiting_on: Vec<Rank>) -> Error {
        let (rank, call, after) = (self.rank, Box::new(self.summons.write()), self.deadline);
        let error = Error::DeadlineExceeded { rank, waiting_on, entered: false, call, round: 0, after };
        self.group.fail(rank, error)
    }

    /// The operation is done by all.
    pub fn over(self) {
        if let Some((_, call)) = self.entered {
            self.group.ledger(|ledger| ledger.close(call.sequence));
        }
    }

    /// Another rank has come with another call: the error that names both, as soon as both are in the ledger.
    pub fn disagreement(mut self) -> Error {
        loop {
            match self.look() {
                Err(error) => return error,
                Ok(due) if clock() < due => std::thread::yield_now(),
                Ok(_) => return self.late(Vec::new()),
            }
        }
    }

    /// The group's failure, after which another rank took the operation back.
    pub fn failure(mut self) -> Error {
        match self.look() {
            Err(error) => error,
            Ok(_) => self.disagreement(),
        }
    }
}

impl Patience for Wait<'_> {
    type Error = Error;

    fn told(&mut self) {
        (self.summons.begin)();
    }

    fn wait(&mut self, absent: &dyn Fn(u32) -> bool) -> Result<Duration> {
        let due = self.look()?;
        let patience = due.saturating_duration_since(clock());
        if patience.is_zero() {
            let all = 0..self.group.size();
            return Err(self.late(all.filter(|rank| absent(*rank)).map(Rank).collect()));
        }
        Ok(patience)
    }
}
