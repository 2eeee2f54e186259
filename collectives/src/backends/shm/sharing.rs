//! A backend's transport with the data of collectives going through a board instead. The backend is asked only by who
//! has to wait: it knows of peers that died, left, failed or called something else.

use super::super::real_time::clock;
use crate::transport::{Direct, Event, Frame, Payload, Summons, Transport};
use crate::{Call, Error, Rank, Result};
use allfold_kernels::fused::{Board, Ends, Exchange, Party, Patience, Stopped};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a rank sleeps before it asks the backend again: a peer's death is known that much later at most.
const NAP: Duration = Duration::from_millis(5);

/// A transport, and the board beside it.
pub(crate) struct Sharing {
    inner: Box<dyn Transport>,
    party: Party,
    rank: Rank,
    ranks: u32,
}

impl Sharing {
    pub fn new(inner: Box<dyn Transport>, board: Arc<Board>, rank: Rank, ranks: u32) -> Sharing {
        Sharing { inner, party: Party::new(board, rank.0), rank, ranks }
    }
}

/// One rank's wait in one operation.
struct Wait<'a> {
    inner: &'a mut dyn Transport,
    rank: Rank,
    ranks: u32,
    summons: Summons<'a>,
    /// Once it had to wait: until when, and the call that the backend knows it to be in.
    entered: Option<(Instant, Arc<Call>)>,
}

impl Wait<'_> {
    /// Asks the backend for bad news; when it is asked again, it also tells the peers which operation this rank is in.
    fn look(&mut self) -> Result<Instant> {
        if let Some((due, _)) = &self.entered {
            self.inner.declare()?;
            return Ok(*due);
        }
        let (now, call) = (clock(), Arc::new(self.summons.write()));
        let due = now.checked_add(self.inner.deadline()).unwrap_or(now + Duration::from_secs(1 << 32));
        self.inner.enter(&call)?;
        self.entered = Some((due, call));
        Ok(due)
    }

    fn late(&mut self, waiting_on: Vec<Rank>) -> Error {
        let (call, after) = (Box::new(self.summons.write()), self.inner.deadline());
        let rank = self.rank;
        self.inner.fail(Error::DeadlineExceeded { rank, waiting_on, entered: false, call, round: 0, after })
    }

    /// Others came with another call: the backend finds whose and which, as each tells all.
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

impl Patience for Wait<'_> {
    type Error = Error;

    fn told(&mut self) {
        (self.summons.begin)();
    }

    fn wait(&mut self, absent: &dyn Fn(u32) -> bool) -> Result<Duration> {
        let due = self.look()?;
        let patience = due.saturating_duration_since(clock());
        if patience.is_zero() {
            let waiting_on = (0..self.ranks).filter(|rank| absent(*rank)).map(Rank).collect();
            return Err(self.late(waiting_on));
        }
        Ok(patience.min(NAP))
    }
}

impl Transport for Sharing {
    fn enter(&mut self, call: &Arc<Call>) -> Result<()> {
        self.inner.enter(call)
    }

    fn room(&self, bytes: usize) -> Payload {
        self.inner.room(bytes)
    }

    fn post_send(&mut self, to: Rank, lane: u32, frame: Frame) {
        self.inner.post_send(to, lane, frame);
    }

    fn post_recv(&mut self, from: Rank, lane: u32, bytes: usize, reduced: bool) {
        self.inner.post_recv(from, lane, bytes, reduced);
    }

    fn moved(&mut self, round: u64, bytes: usize, reduced: bool) -> bool {
        self.inner.moved(round, bytes, reduced)
    }

    fn wait(&mut self, round: u64) -> Result<Event> {
        self.inner.wait(round)
    }

    fn done(&mut self) {
        self.inner.done();
    }

    fn fail(&mut self, error: Error) -> Error {
        self.inner.fail(error)
    }

    fn direct(&mut self) -> Option<&mut dyn Direct> {
        self.inner.direct()
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn together(&mut self, summons: Summons<'_>, exchange: &Exchange, ends: Ends<'_>) -> Result<()> {
        self.inner.failure()?;
        let (rank, ranks) = (self.rank, self.ranks);
        let mut wait = Wait { inner: &mut *self.inner, rank, ranks, summons, entered: None };
        match self.party.run(summons.label, exchange, ends, &mut wait) {
            Ok(()) => {
                if wait.entered.is_some() {
                    self.inner.done();
                }
                Ok(())
            }
            Err(Stopped::Impatient(error)) => Err(error),
            Err(Stopped::GivenUp | Stopped::Disagrees(_)) => Err(wait.disagreement()),
        }
    }
}
