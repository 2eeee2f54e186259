//! A whole collective in memory that all ranks share, without messages.
//!
//! ```text
//! all arrive at once    the transport is not used: the labels in the sync segment are equal
//! some are late         a rank that waits enters the operation: the transport has the other calls, and the ranks that
//!                       left, died or failed
//! labels differ         every rank enters, and the transport finds whose call differs
//! ```

use super::capabilities::{CallHeader, Monitor};
use super::messages::Transport;
use crate::contract::deadline::{after, clock};
use crate::contract::interrupt;
use crate::{Call, Error, Rank, Result};
use allfold_kernels::fused::{CallBuffers, Exchange, Member, Stopped, SyncSegment, WaitPolicy};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A rank's membership in the group's sync segment.
pub(crate) struct SharedMemory {
    member: Member,
    rank: Rank,
    ranks: u32,
    /// The longest sleep of a rank before it checks the transport for failures again.
    interval: Duration,
}

impl SharedMemory {
    /// `interval`: how long a rank sleeps at most before it checks the transport for failures again. [`Duration::MAX`] where the transport,
    /// when the group fails, wakes the ranks that sleep in the sync segment.
    pub fn new(sync_segment: Arc<SyncSegment>, rank: Rank, ranks: u32, interval: Duration) -> SharedMemory {
        SharedMemory { member: Member::new(sync_segment, rank.0), rank, ranks, interval }
    }

    /// Runs an operation. Only a rank that has to wait enters the operation at the transport.
    pub fn run(
        &mut self,
        transport: &mut dyn Transport,
        header: CallHeader<'_>,
        exchange: &Exchange,
        buffers: CallBuffers<'_>,
    ) -> Result<()> {
        monitor(transport)?.failure()?;
        let (rank, ranks, interval) = (self.rank, self.ranks, self.interval);
        let mut wait = Wait { transport, rank, ranks, interval, header, entered: None };
        match self.member.run(header.label, exchange, buffers, &mut wait) {
            Ok(()) => match wait.entered {
                Some(_) => monitor(transport).map(Monitor::complete),
                None => Ok(()),
            },
            Err(Stopped::TimedOut(error)) => Err(error),
            Err(Stopped::GivenUp | Stopped::Disagrees(_)) => Err(wait.disagreement()),
        }
    }
}

/// The transport's monitor, which every transport that is combined with shared memory has.
fn monitor(transport: &mut dyn Transport) -> Result<&mut dyn Monitor> {
    transport.monitor().ok_or_else(|| Error::System("the ranks do not share memory".into()))
}

/// The wait of one rank in one operation.
struct Wait<'a> {
    transport: &'a mut dyn Transport,
    rank: Rank,
    ranks: u32,
    interval: Duration,
    header: CallHeader<'a>,
    /// If the rank had to wait: its deadline, and the call that it entered at the transport.
    entered: Option<(Instant, Arc<Call>)>,
}

impl Wait<'_> {
    /// Checks the transport for failures: the first call enters the operation there, later calls announce it. Returns the deadline.
    fn look(&mut self) -> Result<Instant> {
        let monitor = monitor(self.transport)?;
        if let Some((due, _)) = &self.entered {
            monitor.declare()?;
            return Ok(*due);
        }
        let (due, call) = (after(monitor.deadline()), Arc::new(self.header.write()));
        self.transport.enter(&call)?;
        self.entered = Some((due, call));
        Ok(due)
    }

    fn late(&mut self, waiting_on: Vec<Rank>) -> Error {
        let after = match monitor(self.transport) {
            Ok(monitor) => monitor.deadline(),
            Err(error) => return error,
        };
        let (rank, call) = (self.rank, Box::new(self.header.write()));
        self.transport.fail(Error::DeadlineExceeded {
            rank,
            waiting_on,
            entered: false,
            call,
            round: 0,
            after,
        })
    }

    /// Another rank made another call, or cancelled the operation. Every rank now enters the operation at the transport. This function
    /// waits until the transport has found the error, and returns the error.
    fn disagreement(&mut self) -> Error {
        loop {
            match self.look() {
                Err(error) => return error,
                Ok(due) if clock() < due => std::thread::yield_now(),
                Ok(_) => return self.late(Vec::new()),
            }
        }
    }
}

impl WaitPolicy for Wait<'_> {
    type Error = Error;

    fn on_arrival(&mut self) {
        (self.header.begin)();
    }

    fn wait(&mut self, absent: &dyn Fn(u32) -> bool) -> Result<Duration> {
        if let Some(why) = interrupt::asked() {
            return Err(self.transport.fail(Error::Aborted { by: self.rank, why }));
        }
        let due = self.look()?;
        let left = due.saturating_duration_since(clock());
        if left.is_zero() {
            let waiting_on = (0..self.ranks).filter(|rank| absent(*rank)).map(Rank).collect();
            return Err(self.late(waiting_on));
        }
        Ok(interrupt::pause(left.min(self.interval)))
    }
}
