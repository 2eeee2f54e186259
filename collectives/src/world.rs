//! A group of ranks to run code on: one thread per rank, a communicator for each.

use crate::backends::sim::{Activity, Sim};
use crate::backends::tcp::{Deadlines, Local, Security};
use crate::backends::threads::Threads;
use crate::backends::{Backend, GroupId, Member, sim, threads};
use crate::communicator::{Plan, Roster, Seat};
use crate::registry::Algorithm;
use crate::{Collective, Communicator, Error, Lost, Rank, Result};
use allfold_sim::{Costs, Device, Faults, Picos, Sharing, Topology};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How ranks will run, and how many. What is chosen here wrongly is told by [`World::run`].
#[derive(Clone)]
pub struct World {
    kind: Kind,
    size: u32,
    plan: Plan,
    /// Where flight records are written when something goes wrong.
    flight: Option<PathBuf>,
    /// Whether ranks that talk over sockets put their data in memory that they share.
    share: bool,
    /// The first wrong choice.
    wrong: Option<Error>,
}

#[derive(Clone)]
enum Kind {
    Threads(threads::Options),
    Tcp(Local),
    Sim(Box<sim::Options>),
}

/// What became of every rank.
#[derive(Debug)]
pub struct Report<R, E> {
    /// What each rank returned, in order of ranks. One that panicked has [`Error::PeerLost`] with its own number.
    pub ranks: Vec<Result2<R, E>>,
    /// When each rank was done: virtual time on the simulator, else real time since the start.
    pub finish: Vec<Picos>,
    /// The rank whose failure came first, where one failed: one that failed of itself before any that was told.
    pub first: Option<Rank>,
    /// What ranks computed and communicated, on virtual time, where [`World::timeline`] asked for it.
    pub timeline: Vec<Activity>,
    /// On virtual time: of every message with the time of its arrival, in any order. The same program has the same
    /// one in every run, and that of [`crate::time::traced`] where it does one collective.
    pub event_hash: Option<u64>,
}

type Result2<R, E> = std::result::Result<R, E>;

impl World {
    /// Ranks that are threads of this process, on real time.
    pub fn threads(ranks: u32) -> World {
        let wrong = (ranks == 0).then(|| Error::Argument("a world of 0 ranks; it takes 1 or more".into()));
        let options = threads::Options { deadline: Duration::from_secs(300), capacity: 4, fused: true };
        World {
            kind: Kind::Threads(options),
            size: ranks,
            plan: Plan::default(),
            flight: None,
            share: false,
            wrong,
        }
    }

    /// Ranks that are threads of this process and talk over loopback TCP: every byte goes the way it would between
    /// processes, and every fault is found the way it would be there.
    pub fn tcp(ranks: u32) -> World {
        let local = Local {
            security: Security::Loopback,
            deadlines: Deadlines::default(),
            faults: Faults::NONE,
            ranks_per_host: None,
        };
        World { kind: Kind::Tcp(local), ..World::threads(ranks) }
    }

    /// The same with the data of collectives in a segment of shared memory, which every rank maps for itself: what
    /// processes of one host do.
    pub fn shm(ranks: u32) -> World {
        World { share: true, ..World::tcp(ranks) }
    }

    /// Ranks that are threads carrying real data on a virtual clock, one for each rank of the topology. The same
    /// program has the same times and the same bits on any machine.
    ///
    /// Rank code may block only in Allfold's calls. By default costs are the topology's, links split evenly,
    /// computation is that of an A100 in f32, nothing is wrong, and operations have no deadline: ranks that wait
    /// for each other for ever are told at once that they do.
    pub fn sim(topology: &Topology) -> World {
        let options = sim::Options {
            topology: topology.clone(),
            costs: topology.costs(),
            sharing: Sharing::default(),
            faults: Faults::NONE,
            device: Device::A100_F32,
            deadline: None,
            watchdog: Duration::from_secs(300),
            timeline: false,
        };
        let size = topology.ranks();
        World {
            kind: Kind::Sim(Box::new(options)),
            size,
            plan: Plan::default(),
            flight: None,
            share: false,
            wrong: None,
        }
    }

    /// Fails an operation that is not done in this time, real or virtual, and names whom it waited for. On threads
    /// it is five minutes if not given.
    pub fn deadline(mut self, deadline: Duration) -> World {
        match &mut self.kind {
            Kind::Threads(options) => options.deadline = deadline,
            Kind::Tcp(local) => local.deadlines.operation = deadline,
            Kind::Sim(options) => {
                let picos = u64::try_from(deadline.as_nanos().saturating_mul(1_000)).unwrap_or(u64::MAX / 4);
                options.deadline = Some(Picos(picos));
            }
        }
        self
    }

    /// On TCP: who may join, and what crosses the wire in the clear.
    pub fn security(self, security: Security) -> World {
        self.on_sockets(|local| local.security = security)
    }

    /// On TCP: how long ranks wait for what.
    pub fn deadlines(self, deadlines: Deadlines) -> World {
        self.on_sockets(|local| local.deadlines = deadlines)
    }

    /// On TCP: as if hosts had this many ranks each, in order of ranks. Messages between ranks of one host go through
    /// memory that the two share, as in a world of several hosts that a launcher has started; the others over sockets.
    pub fn ranks_per_host(self, ranks: u32) -> World {
        match ranks {
            0 => self.refuse("a host of 0 ranks; it takes 1 or more"),
            _ => self.on_sockets(|local| local.ranks_per_host = Some(ranks)),
        }
    }

    fn on_sockets(mut self, change: impl FnOnce(&mut Local)) -> World {
        match &mut self.kind {
            Kind::Tcp(local) => {
                change(local);
                self
            }
            _ => self.refuse("only ranks of World::tcp have sockets"),
        }
    }

    /// Writes every rank's last operations into this folder if any rank fails; see [`crate::flight`].
    pub fn flight_records(mut self, folder: &Path) -> World {
        self.flight = Some(folder.to_path_buf());
        self
    }

    /// Runs a collective by the algorithm of this name; see [`Plan::algorithm`].
    pub fn algorithm(self, collective: Collective, name: &str) -> World {
        let plan = self.plan.algorithm(collective, name);
        self.planned(plan)
    }

    /// Runs a collective by a user's own algorithm; see [`Plan::with`].
    pub fn with(mut self, algorithm: &'static Algorithm) -> World {
        self.plan = self.plan.with(algorithm);
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

    /// On threads: sends every message of every schedule, where ranks would otherwise read each other's buffers and
    /// evaluate the same reduction trees there. The results are the same bits; the speed is not.
    pub fn messages(mut self) -> World {
        match &mut self.kind {
            Kind::Threads(options) => {
                options.fused = false;
                self
            }
            _ => self,
        }
    }

    /// By messages on threads ([`World::messages`]): lets a channel hold this many of them before their sender must
    /// wait for the receiver. 0: a message has left only once it has been taken. Results do not depend on it.
    pub fn buffered(mut self, messages: usize) -> World {
        match &mut self.kind {
            Kind::Threads(options) => {
                options.capacity = messages;
                options.fused = false;
                self
            }
            Kind::Tcp(_) => self.refuse("over TCP the kernel holds the messages, and says how many"),
            Kind::Sim(_) => self.refuse("messages on virtual time are never buffered"),
        }
    }

    /// On virtual time: the device that [`Communicator::charge`] asks how long its work takes.
    pub fn device(self, device: Device) -> World {
        self.virtually(|options| options.device = device)
    }

    /// On virtual time: what messages, launches and reductions cost.
    pub fn costs(self, costs: Costs) -> World {
        self.virtually(|options| options.costs = costs)
    }

    /// On virtual time: what is slower than it should be, or goes wrong. On TCP: what a proxy before every rank does to
    /// its connections, of these rules those about messages, partitions and deaths.
    pub fn faults(mut self, faults: Faults) -> World {
        if let Kind::Tcp(local) = &mut self.kind {
            local.faults = faults;
            return self;
        }
        self.virtually(|options| options.faults = faults)
    }

    /// On virtual time: how messages share links.
    pub fn sharing(self, sharing: Sharing) -> World {
        self.virtually(|options| options.sharing = sharing)
    }

    /// On virtual time: records what every rank computes and communicates, as [`Report::timeline`].
    pub fn timeline(self) -> World {
        self.virtually(|options| options.timeline = true)
    }

    /// On virtual time: fails everything, naming the ranks, once some rank was busy outside of Allfold's calls for
    /// this much real time while all others waited. Five minutes if not given.
    pub fn watchdog(self, patience: Duration) -> World {
        self.virtually(|options| options.watchdog = patience)
    }

    fn virtually(mut self, change: impl FnOnce(&mut sim::Options)) -> World {
        match &mut self.kind {
            Kind::Sim(options) => {
                change(options);
                self
            }
            Kind::Threads(_) | Kind::Tcp(_) => {
                self.refuse("ranks as threads run on real time; World::sim has a virtual clock")
            }
        }
    }

    fn refuse(mut self, why: &str) -> World {
        self.wrong.get_or_insert_with(|| Error::Argument(why.into()));
        self
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
        match &self.kind {
            Kind::Threads(options) => {
                let threads: Arc<dyn Backend> = Arc::new(Threads::new(self.size, *options));
                self.on(|_| threads.clone(), body)
            }
            Kind::Tcp(local) => {
                let mesh = local.connect(self.size)?;
                self.on(|rank| mesh.ranks[rank.index()].clone(), body)
            }
            Kind::Sim(options) => {
                let sim = Arc::new(Sim::new(options.as_ref().clone()));
                let mut report = self.on(|_| sim.clone(), body)?;
                report.timeline = sim.timeline();
                report.event_hash = Some(sim.event_hash());
                Ok(report)
            }
        }
    }

    fn on<R, E, F>(&self, backend: impl Fn(Rank) -> Arc<dyn Backend>, body: F) -> Result<Report<R, E>>
    where
        F: Fn(Communicator) -> Result2<R, E> + Sync,
        R: Send,
        E: From<Error> + Send,
    {
        let ranks: Vec<Outcome<R, E>> = std::thread::scope(|scope| {
            let start = |rank| {
                let one = One::new(&backend(Rank(rank)), Rank(rank), self.size, self.flight.clone());
                let (body, plan, share) = (&body, self.plan, self.share);
                let run = move || one.run(body, plan, share);
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
        if ranks.iter().any(|outcome| outcome.result.is_err()) {
            let rosters = ranks.iter().filter_map(|outcome| outcome.roster.as_ref());
            rosters.for_each(|roster| roster.recorder.write("another rank failed"));
        }
        // Who failed of itself, rather than because it was told of a failure; then by time.
        let failed = ranks.iter().zip(0..).filter(|(outcome, _)| outcome.result.is_err());
        let first = failed.map(|(outcome, rank)| (outcome.told, outcome.finish, Rank(rank))).min();
        Ok(Report {
            finish: ranks.iter().map(|outcome| outcome.finish).collect(),
            ranks: ranks.into_iter().map(|outcome| outcome.result).collect(),
            first: first.map(|(_, _, rank)| rank),
            timeline: Vec::new(),
            event_hash: None,
        })
    }
}

/// What one rank came to.
struct Outcome<R, E> {
    result: Result2<R, E>,
    finish: Picos,
    /// It had been told of a failure.
    told: bool,
    roster: Option<Arc<Roster>>,
}

impl<R, E: From<Error>> Outcome<R, E> {
    fn lost(rank: Rank, message: String) -> Outcome<R, E> {
        let error = Error::PeerLost { rank, cause: Lost::Panicked(message), call: None };
        Outcome { result: Err(error.into()), finish: Picos::ZERO, told: false, roster: None }
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
    fn new(backend: &Arc<dyn Backend>, rank: Rank, size: u32, flight: Option<PathBuf>) -> One {
        let roster = Arc::new(Roster::new(backend, rank, size, flight));
        let member = Member { group: GroupId(0), rank };
        let seat = Seat::take(backend.clone(), backend.main(rank), member, size, 0, &roster);
        One { backend: backend.clone(), rank, seat, roster }
    }

    fn run<R, E: From<Error>>(
        self,
        body: impl Fn(Communicator) -> Result2<R, E>,
        plan: Plan,
        share: bool,
    ) -> Outcome<R, E> {
        let mut communicator = Communicator::new(self.seat.clone(), plan);
        let result = catch_unwind(AssertUnwindSafe(|| {
            if share && communicator.size() > 1 && !communicator.share_memory()? {
                return Err(Error::System("this system has no memory that processes can share".into()).into());
            }
            body(communicator)
        }));
        let actor = self.backend.main(self.rank);
        let finish = self.backend.clock().now(actor);
        let result = match result {
            Ok(result) => {
                self.roster.leave(|operations| Lost::ReturnedEarly { operations });
                result
            }
            Err(panic) => {
                let cause = Lost::Panicked(message(&*panic));
                self.roster.recorder.write(&format!("it {cause}"));
                self.roster.leave(|_| cause.clone());
                Err(Error::PeerLost { rank: self.rank, cause, call: None }.into())
            }
        };
        Outcome { result, finish, told: self.roster.was_told(), roster: Some(self.roster.clone()) }
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
