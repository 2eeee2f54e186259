//! Runs rank code in a world.

use super::description::World;
use super::kind::{Place, WorldKind};
use super::report::{Report, Result2};
use crate::backends::sim::{Activity, Sim};
use crate::backends::threads::Threads;
use crate::backends::{Backend, GroupId, Member};
use crate::communicator::{Membership, Plan, ProcessState};
use crate::{Communicator, Error, Lost, Rank, Result};
use allfold_base::panic_message;
use allfold_sim::Picos;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

impl<K: WorldKind> World<K> {
    /// Runs `body` once per rank, each on a thread of its own, and returns the results in order of ranks.
    ///
    /// # Errors
    /// The error of the rank that failed first. A rank that panics is [`Error::PeerLost`]; the other ranks get an error
    /// from their own calls, and nothing unwinds through the caller.
    pub fn run<R, E, F>(&self, body: F) -> Result2<Vec<R>, E>
    where
        F: Fn(Communicator) -> Result2<R, E> + Sync,
        R: Send,
        E: From<Error> + Send,
    {
        self.run_each(body)?.results()
    }

    /// Runs `body` once per rank, each on a thread of its own, and reports the outcome of every rank.
    ///
    /// # Errors
    /// The world cannot be run as described. Errors that ranks return are in the report.
    pub fn run_each<R, E, F>(&self, body: F) -> Result<Report<R, E>>
    where
        F: Fn(Communicator) -> Result2<R, E> + Sync,
        R: Send,
        E: From<Error> + Send,
    {
        // Only this function is compiled for every `body`; `Ranks::run` is compiled once.
        let results: Vec<Mutex<Option<Result2<R, E>>>> = (0..self.size).map(|_| Mutex::new(None)).collect();
        let body = |communicator: Communicator| {
            let rank = communicator.rank().index();
            let result = body(communicator);
            let ended = result.is_ok();
            *results[rank].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            ended
        };
        let ended = self.ranks()?.run(&body)?;
        let result = |(result, error): (Mutex<Option<Result2<R, E>>>, Option<Error>)| {
            let result = result.into_inner().unwrap_or_else(PoisonError::into_inner);
            match (result, error) {
                (_, Some(error)) => Err(error.into()),
                (Some(result), None) => result,
                (None, None) => unreachable!("a rank without an error has run its body to the end"),
            }
        };
        Ok(Report {
            ranks: results.into_iter().zip(ended.errors).map(result).collect(),
            finish: ended.finish,
            first: ended.first,
            timeline: ended.timeline,
            event_hash: ended.event_hash,
        })
    }

    fn ranks(&self) -> Result<Ranks> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        let place = self.kind.clone().into().0;
        Ok(Ranks { place, size: self.size, plan: self.plan, flight: self.flight.clone() })
    }
}

/// The function that each rank runs. It returns whether the rank has succeeded.
type Body<'a> = &'a (dyn Fn(Communicator) -> bool + Sync);

/// The ranks of a world, ready to be run.
struct Ranks {
    place: Place,
    size: u32,
    plan: Plan,
    flight: Option<PathBuf>,
}

/// How the ranks ended, in order of ranks.
struct Ended {
    /// An error in place of the body's result: the body was not run, or it panicked.
    errors: Vec<Option<Error>>,
    finish: Vec<Picos>,
    first: Option<Rank>,
    timeline: Vec<Activity>,
    event_hash: Option<u64>,
}

impl Ranks {
    fn run(self, body: Body) -> Result<Ended> {
        match &self.place {
            Place::Threads(kind) => {
                let threads: Arc<dyn Backend> = Arc::new(Threads::new(self.size, kind.0));
                Ok(self.on(&|_| threads.clone(), false, body))
            }
            Place::Sockets(kind) => {
                let mesh = kind.local.connect(self.size)?;
                Ok(self.on(&|rank| mesh.ranks[rank.index()].clone(), kind.share, body))
            }
            Place::VirtualTime(kind) => {
                let sim = Arc::new(Sim::new((*kind.0).clone()));
                let ended = self.on(&|_| sim.clone(), false, body);
                Ok(Ended { timeline: sim.timeline(), event_hash: Some(sim.event_hash()), ..ended })
            }
        }
    }

    /// `share`: whether the ranks first set up shared memory for collectives.
    fn on(&self, backend: &dyn Fn(Rank) -> Arc<dyn Backend>, share: bool, body: Body) -> Ended {
        let ranks: Vec<Outcome> = std::thread::scope(|scope| {
            let start = |rank| {
                let one = One::new(&backend(Rank(rank)), Rank(rank), self.size, self.flight.clone());
                let plan = self.plan;
                let run = move || one.run(body, plan, share);
                std::thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, run)
            };
            let threads: Vec<_> = (0..self.size).map(start).collect();
            let ranks = threads.into_iter().zip(0..).map(|(thread, rank)| match thread {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|panic| Outcome::lost(Rank(rank), panic_message(&*panic).into())),
                Err(error) => Outcome::lost(Rank(rank), format!("its thread could not be started: {error}")),
            });
            ranks.collect()
        });
        if ranks.iter().any(|outcome| outcome.failed) {
            let rosters = ranks.iter().filter_map(|outcome| outcome.process_state.as_ref());
            rosters.for_each(|process_state| process_state.recorder.write("another rank failed"));
        }
        // A rank that failed by itself comes before ranks that got the error of a failed group; ranks of the same kind are
        // ordered by time.
        let failed = ranks.iter().zip(0..).filter(|(outcome, _)| outcome.failed);
        let first = failed.map(|(outcome, rank)| (outcome.told, outcome.finish, Rank(rank))).min();
        Ended {
            finish: ranks.iter().map(|outcome| outcome.finish).collect(),
            errors: ranks.into_iter().map(|outcome| outcome.error).collect(),
            first: first.map(|(_, _, rank)| rank),
            timeline: Vec::new(),
            event_hash: None,
        }
    }
}

/// The outcome of one rank.
struct Outcome {
    failed: bool,
    /// An error in place of the body's result.
    error: Option<Error>,
    finish: Picos,
    /// Whether a call of the rank had returned the error of a failed group.
    told: bool,
    process_state: Option<Arc<ProcessState>>,
}

impl Outcome {
    fn lost(rank: Rank, message: String) -> Outcome {
        let error = Error::lost(rank, Lost::Panicked(message), None);
        Outcome { failed: true, error: Some(error), finish: Picos::ZERO, told: false, process_state: None }
    }
}

/// The work of one rank's thread. If dropped before it ran, the rank still leaves its group, so that no rank waits for it.
struct One {
    backend: Arc<dyn Backend>,
    rank: Rank,
    membership: Arc<Membership>,
    process_state: Arc<ProcessState>,
}

impl One {
    fn new(backend: &Arc<dyn Backend>, rank: Rank, size: u32, flight: Option<PathBuf>) -> One {
        let process_state = Arc::new(ProcessState::new(backend, rank, size, flight));
        let member = Member { group: GroupId(0), rank };
        let membership =
            Membership::take(backend.clone(), backend.main(rank), member, size, (0, None), &process_state);
        One { backend: backend.clone(), rank, membership, process_state }
    }

    fn run(self, body: Body, plan: Plan, share: bool) -> Outcome {
        let mut communicator = Communicator::new(self.membership.clone(), plan);
        let result = catch_unwind(AssertUnwindSafe(|| {
            if share && communicator.size() > 1 && !communicator.share_memory()? {
                return Err(Error::System("this system has no memory that processes can share".into()));
            }
            Ok(body(communicator))
        }));
        let task = self.backend.main(self.rank);
        let finish = self.backend.clock().now(task);
        let result = match result {
            Ok(result) => {
                self.process_state.leave(|operations| Lost::ReturnedEarly { operations });
                result
            }
            Err(panic) => {
                let cause = Lost::Panicked(panic_message(&*panic).into());
                self.process_state.recorder.write(&format!("it {cause}"));
                self.process_state.leave(|_| cause.clone());
                Err(Error::lost(self.rank, cause, None))
            }
        };
        Outcome {
            failed: !matches!(result, Ok(true)),
            error: result.err(),
            finish,
            told: self.process_state.has_returned_failure(),
            process_state: Some(self.process_state.clone()),
        }
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.process_state.leave(|_| Lost::Panicked("its thread could not be started".into()));
        self.backend.retire(self.backend.main(self.rank));
        self.process_state.join();
    }
}
