//! A rank's seat in a group: what its communicator, its communication thread and the world share.

use crate::backends::{ActorId, Backend, GateId, Member};
use crate::transport::Transport;
use crate::{Error, Lost, Result};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A rank in a group, until it leaves.
pub(crate) struct Seat {
    pub backend: Arc<dyn Backend>,
    pub actor: ActorId,
    pub member: Member,
    pub size: u32,
    /// Operations entered, or handed to the communication thread.
    sequence: AtomicU64,
    /// The failure that this rank has been told of.
    told: Mutex<Option<String>>,
    left: AtomicBool,
    stream: Mutex<Option<Arc<Stream>>>,
    /// The seats and threads of this rank, in all groups.
    roster: Arc<Roster>,
}

/// All seats of one world rank, and the threads that were started for it.
#[derive(Default)]
pub(crate) struct Roster {
    seats: Mutex<Vec<Arc<Seat>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The rank has been told of a failure of one of its groups: what it fails with is no cause.
    told: AtomicBool,
}

/// An asynchronous operation.
pub(crate) type Job = Box<dyn FnOnce(&mut dyn Transport) + Send>;

/// The communication thread of a seat: does one job after the other.
///
/// ```text
/// communicator   push job; raise `issued`            wait: pass `done` at the job's number
/// thread         pass `issued`; do the job; raise `done`
/// ```
pub(crate) struct Stream {
    jobs: Mutex<VecDeque<Option<Job>>>,
    /// Whose clock it runs on.
    pub actor: ActorId,
    issued: GateId,
    pub done: GateId,
    /// Jobs issued so far.
    count: AtomicU64,
}

impl Seat {
    pub fn take(
        backend: Arc<dyn Backend>,
        actor: ActorId,
        member: Member,
        size: u32,
        roster: &Arc<Roster>,
    ) -> Arc<Seat> {
        let seat = Arc::new(Seat {
            backend,
            actor,
            member,
            size,
            sequence: AtomicU64::new(0),
            told: Mutex::default(),
            left: AtomicBool::new(false),
            stream: Mutex::new(None),
            roster: roster.clone(),
        });
        let mut seats = locked(&roster.seats);
        // Those left are over: a rank that splits again and again keeps only what it still sits in.
        seats.retain(|seat: &Arc<Seat>| !seat.left.load(Ordering::Relaxed));
        seats.push(seat.clone());
        drop(seats);
        seat
    }

    /// Another seat of the same rank, in a smaller group.
    pub fn beside(&self, member: Member, size: u32) -> Arc<Seat> {
        Seat::take(self.backend.clone(), self.actor, member, size, &self.roster)
    }

    /// The number of the next operation.
    pub fn number(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// An error once this rank has been told of a failure.
    pub fn check(&self) -> Result<()> {
        match &*locked(&self.told) {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Notes whether this rank is being told of a failure.
    pub fn tell<R>(&self, result: Result<R>) -> Result<R> {
        if let Err(error) = &result
            && !error.is_callers()
        {
            locked(&self.told).get_or_insert_with(|| error.to_string());
            self.roster.told.store(true, Ordering::Relaxed);
        }
        result
    }

    /// The rank leaves: its communication thread ends once it has done what was issued.
    pub fn leave(&self, cause: impl FnOnce(u64) -> Lost) {
        if self.left.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(stream) = locked(&self.stream).take() {
            stream.push(self, None);
        }
        let operations = self.sequence.load(Ordering::Relaxed);
        self.backend.leave(self.actor, self.member, operations, cause(operations));
    }

    /// The communication thread, started when it is first needed.
    pub fn stream(self: &Arc<Seat>) -> Result<Arc<Stream>> {
        let mut slot = locked(&self.stream);
        if let Some(stream) = &*slot {
            return Ok(stream.clone());
        }
        let (issued, done) = (self.backend.gate(), self.backend.gate());
        let actor = self.backend.spawn(self.actor);
        let stream =
            Arc::new(Stream { jobs: Mutex::default(), actor, issued, done, count: AtomicU64::new(0) });
        let (seat, shared) = (self.clone(), stream.clone());
        let thread = std::thread::Builder::new()
            .name(format!("rank {} communication", self.member.rank))
            .spawn(move || shared.serve(&seat, actor));
        match thread {
            Ok(thread) => {
                let mut threads = locked(&self.roster.threads);
                // An ended thread keeps its stack until its handle is gone.
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(error) => {
                self.backend.retire(actor);
                return Err(Error::System(format!("cannot start a communication thread: {error}")));
            }
        }
        *slot = Some(stream.clone());
        Ok(stream)
    }

    /// The communication thread, if there is one: how many jobs it was given, and the gate that counts those done.
    pub fn outstanding(&self) -> Option<(GateId, u64)> {
        locked(&self.stream).as_ref().map(|stream| (stream.done, stream.count.load(Ordering::Relaxed)))
    }
}

impl Stream {
    /// Issues a job (`None`: the last one). Returns its number, from 1.
    pub fn push(&self, seat: &Seat, job: Option<Job>) -> u64 {
        locked(&self.jobs).push_back(job);
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        seat.backend.raise(seat.actor, self.issued);
        number
    }

    fn serve(&self, seat: &Seat, actor: ActorId) {
        let mut transport = seat.backend.clone().transport(actor, seat.member);
        for number in 1.. {
            if seat.backend.pass(actor, self.issued, number).is_err() {
                break;
            }
            let Some(Some(job)) = locked(&self.jobs).pop_front() else { break };
            // A job that panics leaves its result empty, and whoever waits for it says so.
            let _ = catch_unwind(AssertUnwindSafe(|| job(&mut *transport)));
            seat.backend.raise(actor, self.done);
        }
        seat.backend.retire(actor);
    }
}

impl Roster {
    /// The rank is gone: it leaves every group that it is still in.
    pub fn leave(&self, cause: impl Fn(u64) -> Lost) {
        let seats = std::mem::take(&mut *locked(&self.seats));
        seats.iter().for_each(|seat| seat.leave(&cause));
    }

    /// Whether the rank has been told of a failure.
    pub fn was_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    /// Waits for the threads that were started for the rank. They end once their seats are left.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *locked(&self.threads));
        for thread in threads {
            // Jobs that panic are caught where they run.
            let _ = thread.join();
        }
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
