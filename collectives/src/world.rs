//! A group of ranks to run code on: one thread per rank, a communicator for each.

use crate::backends::threads::{Options, Threads};
use crate::backends::{Backend, GroupId, Member};
use crate::communicator::{Plan, Roster, Seat};
use crate::{Collective, Communicator, Error, Lost, Rank, Result};
use allfold_sim::Picos;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How ranks will run. What is chosen here wrongly is told by [`World::run`].
#[derive(Clone)]
pub struct World {
    size: u32,
    plan: Plan,
    options: Options,
    /// The first wrong choice.
    wrong: Option<Error>,
}

/// What became of every rank.
#[derive(Debug)]
pub struct Report<R, E> {
    /// What each rank returned, in order of ranks. One that panicked has [`Error::PeerLost`] with its own number.
    pub ranks: Vec<Result2<R, E>>,
    /// When each rank was done: virtual time on the simulator, else real time since the start.
    pub finish: Vec<Picos>,
    /// The rank that failed first, where one did.
    pub first: Option<Rank>,
}

type Result2<R, E> = std::result::Result<R, E>;

impl World {
    /// Ranks that are threads of this process, on real time.
    pub fn threads(ranks: u32) -> World {
        let wrong = (ranks == 0).then(|| Error::Argument("a world of 0 ranks; it takes 1 or more".into()));
        let options = Options { deadline: Duration::from_secs(300), capacity: 4 };
        World { size: ranks, plan: Plan::default(), options, wrong }
    }

    /// Fails an operation that is not done in this time, and names whom it waited for. Five minutes if not given.
    pub fn deadline(mut self, deadline: Duration) -> World {
        self.options.deadline = deadline;
        self
    }

    /// Lets a channel hold this many messages before their sender must wait for the receiver. 0: a message has left
    /// only once it has been taken. Results do not depend on it.
    pub fn buffered(mut self, messages: usize) -> World {
        self.options.capacity = messages;
        self
    }

    /// Runs a collective by the algorithm of this name; see [`Plan::algorithm`].
    pub fn algorithm(self, collective: Collective, name: &str) -> World {
        let plan = self.plan.algorithm(collective, name);
        self.planned(plan)
    }

    /// Runs its collective by an algorithm of one's own; see [`Plan::own`].
    pub fn own(mut self, algorithm: &'static crate::registry::Algorithm) -> World {
        self.plan = self.plan.own(algorithm);
        self
    }

    /// Cuts chunks into segments of at most this many bytes; see [`Plan::segment`].
    pub fn segment(self, bytes: u64) -> World {
        let plan = self.plan.segment(bytes);
        self.planned(plan)
    }

    /// Lets a rank have this many steps under way; see [`Plan::window`].
    pub fn window(self, steps: u32) -> World {
        let plan = self.plan.window(steps);
        self.planned(plan)
    }

    fn planned(mut self, plan: Result<Plan>) -> World {
        match plan {
            Ok(plan) => self.plan = plan,
            Err(error) => self.wrong = self.wrong.or(Some(error)),
        }
        self
    }

    /// Runs `body` once per rank, each on a thread of its own, and returns what they returned, in order of ranks.
    ///
    /// # Errors
    /// The error of the rank that failed first. A rank that panics is [`Error::PeerLost`]; the others are told in
    /// their own calls, and nothing unwinds through the caller.
    pub fn run<R, E, F>(&self, body: F) -> Result2<Vec<R>, E>
    where
        F: Fn(Communicator) -> Result2<R, E> + Sync,
        R: Send,
        E: From<Error> + Send,
    {
        let Report { ranks, first, .. } = self.run_each(body)?;
        let first = first.map_or(0, Rank::index);
        let mut failed = None;
        let mut results = Vec::with_capacity(ranks.len());
        for (rank, result) in ranks.into_iter().enumerate() {
            match result {
                Ok(result) => results.push(result),
                Err(error) if failed.is_none() || rank == first => failed = Some(error),
                Err(_) => {}
            }
        }
        failed.map_or(Ok(results), Err)
    }

    /// Runs `body` once per rank, each on a thread of its own, and says what became of every one.
    ///
    /// # Errors
    /// The world cannot be run as described. What ranks return is in the report.
    pub fn run_each<R, E, F>(&self, body: F) -> Result<Report<R, E>>
    where
        F: Fn(Communicator) -> Result2<R, E> + Sync,
        R: Send,
        E: From<Error> + Send,
    {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        let backend: Arc<dyn Backend> = Arc::new(Threads::new(self.size, self.options));
        let failures = AtomicU64::new(0);
        let ranks: Vec<Outcome<R, E>> = std::thread::scope(|scope| {
            let start = |rank| {
                let one = One::new(&backend, Rank(rank), self.size);
                let (body, failures, plan) = (&body, &failures, self.plan);
                let run = move || one.run(body, plan, failures);
                std::thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, run)
            };
            let threads: Vec<_> = (0..self.size).map(start).collect();
            let ranks = threads.into_iter().zip(0..).map(|(thread, rank)| match thread {
                Ok(thread) => {
                    thread.join().unwrap_or_else(|panic| Outcome::lost(Rank(rank), message(&*panic)))
                }
                Err(error) => Outcome::lost(Rank(rank), format!("its thread could not be started: {error}")),
            });
            ranks.collect()
        });
        let first = ranks.iter().zip(0..).filter_map(|(o, rank)| Some((o.failed?, Rank(rank)))).min();
        Ok(Report {
            finish: ranks.iter().map(|outcome| outcome.finish).collect(),
            ranks: ranks.into_iter().map(|outcome| outcome.result).collect(),
            first: first.map(|(_, rank)| rank),
        })
    }
}

/// What one rank came to.
struct Outcome<R, E> {
    result: Result2<R, E>,
    finish: Picos,
    /// How many ranks had failed before it, where it failed.
    failed: Option<u64>,
}

impl<R, E: From<Error>> Outcome<R, E> {
    fn lost(rank: Rank, message: String) -> Outcome<R, E> {
        let error = Error::PeerLost { rank, cause: Lost::Panicked(message), call: None };
        Outcome { result: Err(error.into()), finish: Picos::ZERO, failed: Some(0) }
    }
}

/// One rank's thread. Dropped before it could run, it still leaves its group, so that no one waits for it.
struct One {
    backend: Arc<dyn Backend>,
    rank: Rank,
    seat: Arc<Seat>,
    roster: Arc<Roster>,
}

impl One {
    fn new(backend: &Arc<dyn Backend>, rank: Rank, size: u32) -> One {
        let roster = Arc::new(Roster::default());
        let member = Member { group: GroupId(0), rank };
        let seat = Seat::take(backend.clone(), backend.main(rank), member, size, &roster);
        One { backend: backend.clone(), rank, seat, roster }
    }

    fn run<R, E: From<Error>>(
        self,
        body: impl Fn(Communicator) -> Result2<R, E>,
        plan: Plan,
        failures: &AtomicU64,
    ) -> Outcome<R, E> {
        let communicator = Communicator::new(self.seat.clone(), plan);
        let result = catch_unwind(AssertUnwindSafe(|| body(communicator)));
        let failed = !matches!(result, Ok(Ok(_)));
        let failed = failed.then(|| failures.fetch_add(1, Ordering::Relaxed));
        let actor = self.backend.main(self.rank);
        let finish = self.backend.now(actor);
        let result = match result {
            Ok(result) => {
                self.roster.leave(|operations| Lost::ReturnedEarly { operations });
                result
            }
            Err(panic) => {
                let cause = Lost::Panicked(message(&*panic));
                self.roster.leave(|_| cause.clone());
                Err(Error::PeerLost { rank: self.rank, cause, call: None }.into())
            }
        };
        Outcome { result, finish, failed }
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.roster.leave(|_| Lost::Panicked("its thread could not be started".into()));
        self.backend.retire(self.backend.main(self.rank));
        self.roster.join();
    }
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
