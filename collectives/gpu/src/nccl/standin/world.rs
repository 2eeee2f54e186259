//! Handles and communicators of the NCCL stand-in, and the common state of the ranks of a communicator.

use super::super::api::{Answer, IN_PROGRESS, RawComm, SUCCESS};
use super::family::Family;
use super::options::StandIn;
use super::traffic::{Event, Gathering, Link};
use super::wire::Wire;
use super::{INTERNAL_ERROR, INVALID_ARGUMENT};
use allfold_base::lock;
use allfold_cuda::{CudaMachine, CudaStream, Queue};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

/// One rank's communicator. Its handle is a number, so a stale handle is recognised and harmless.
pub(super) struct Comm {
    pub number: usize,
    pub group: Arc<Group>,
    pub rank: usize,
    pub blocking: bool,
    /// The result of `ncclCommGetAsyncError`.
    pub state: AtomicI32,
    /// The communicators with which it shares resources.
    pub family: Arc<Family>,
    /// Whether communicators that are split off share them too.
    pub shares: bool,
    pub finalized: AtomicBool,
    /// A reference count that captured graphs share.
    pub graphs: Arc<()>,
    /// The number of groups that are queued or run.
    pub outstanding: AtomicUsize,
    /// The connections that this rank has made.
    pub connected: Mutex<BTreeSet<Link>>,
    pub splits: AtomicUsize,
    /// The number of registrations of windows, and of captured calls.
    pub registered: AtomicUsize,
    place: Region,
}

/// A device of a machine.
#[derive(Clone)]
pub(super) struct Region {
    pub machine: Arc<dyn CudaMachine>,
    pub device: usize,
}

/// The common data of the ranks of a communicator: one value for ranks that are threads of a process; a copy in each process for ranks
/// that are processes, which tell each other what changes.
pub(super) struct Group {
    pub size: usize,
    pub options: StandIn,
    pub state: Mutex<State>,
    pub changed: Condvar,
    /// The connection to the other processes, if the ranks are processes.
    pub wire: Option<Arc<Wire>>,
    /// The group's name among those that were made from the same unique id, and the ranks of that id's communicator.
    pub path: String,
    pub members: Vec<usize>,
}

#[derive(Default)]
pub(super) struct State {
    /// The GPU of each rank that has joined, and the blocks of the rank's kernels there.
    pub joined: BTreeMap<usize, ([u8; 16], u32)>,
    /// Ranks that have aborted, died or were destroyed.
    pub gone: BTreeSet<usize>,
    pub links: BTreeMap<Link, BTreeSet<usize>>,
    /// The number of collectives that each rank has begun.
    pub begun: BTreeMap<usize, u64>,
    pub gatherings: BTreeMap<u64, Gathering>,
    /// The messages between two ranks: those in flight, the number of those sent, and of those received.
    pub mail: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    pub sent: BTreeMap<(usize, usize), u64>,
    pub taken: BTreeMap<(usize, usize), u64>,
    /// For each split, by number: the colour and the key of each rank.
    pub splits: BTreeMap<usize, BTreeMap<usize, (i32, i32)>>,
    pub children: BTreeMap<String, Arc<Group>>,
}

static COMMS: Mutex<BTreeMap<usize, Arc<Comm>>> = Mutex::new(BTreeMap::new());
static STREAMS: Mutex<Vec<(Weak<dyn CudaMachine>, CudaStream)>> = Mutex::new(Vec::new());
static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The calling thread's current device, as in the CUDA driver.
    static CURRENT: RefCell<Option<Region>> = const { RefCell::new(None) };
}

/// The number of threads that non-blocking calls have started in this process.
#[cfg(test)]
pub(in super::super) fn threads_started() -> u64 {
    THREADS.load(Ordering::Relaxed)
}

/// The library's handle of a queue's stream. The queue's device becomes the calling thread's current device.
pub(super) fn native(queue: &Queue) -> u64 {
    let machine = queue.machine();
    CURRENT.set(Some(Region { machine: machine.clone(), device: queue.device() }));
    let mut all = lock(&STREAMS);
    let known = |(of, stream): &(Weak<dyn CudaMachine>, CudaStream)| {
        std::ptr::addr_eq(of.as_ptr(), Arc::as_ptr(machine)) && *stream == queue.stream()
    };
    let at = all.iter().position(known).unwrap_or_else(|| {
        all.push((Arc::downgrade(machine), queue.stream()));
        all.len() - 1
    });
    at as u64 + 1
}

pub(super) fn stream(handle: u64) -> Option<(Arc<dyn CudaMachine>, CudaStream)> {
    let (machine, stream) = lock(&STREAMS).get(usize::try_from(handle).ok()?.checked_sub(1)?).cloned()?;
    Some((machine.upgrade()?, stream))
}

/// The calling thread's current device, if it has one.
pub(super) fn current() -> Option<Region> {
    CURRENT.with_borrow(Clone::clone)
}

pub(super) fn find(raw: RawComm) -> Option<Arc<Comm>> {
    lock(&COMMS).get(&(raw as usize)).cloned()
}

/// Simulates that a rank's process dies, with the kernels that it has queued.
#[cfg(test)]
pub(in super::super) fn die(raw: RawComm) {
    if let Some(comm) = find(raw) {
        comm.family.abort(true);
        comm.leave();
        comm.forget();
    }
}

impl Group {
    /// The group of the ranks of a unique id, over `wire` if they are processes.
    pub fn new(size: usize, options: StandIn, wire: Option<Arc<Wire>>) -> Arc<Group> {
        Group::of((size, options, wire), String::new(), (0..size).collect())
    }

    fn of(
        (size, options, wire): (usize, StandIn, Option<Arc<Wire>>),
        path: String,
        members: Vec<usize>,
    ) -> Arc<Group> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let group = Arc::new(Group { size, options, state, changed, wire, path, members });
        if let Some(wire) = &group.wire {
            let weak = Arc::downgrade(&group);
            let hear = move |rank, event| {
                if let Some(group) = weak.upgrade() {
                    group.apply(rank, event);
                }
            };
            wire.register(&group.path, &group.members, Arc::new(hear));
        }
        group
    }

    /// The group of some ranks of this one, under a name of their own.
    pub fn child(&self, name: &str, ranks: &[usize]) -> Arc<Group> {
        let members = ranks.iter().map(|rank| self.members[*rank]).collect();
        let common = (ranks.len(), self.options, self.wire.clone());
        Group::of(common, format!("{}/{name}", self.path), members)
    }

    /// The number of ranks whose state this process has.
    pub fn here(&self) -> usize {
        if self.wire.is_some() { 1 } else { self.size }
    }

    /// Makes a rank's change, here and in the other processes.
    pub fn tell(&self, rank: usize, event: Event) {
        let send = || self.wire.iter().for_each(|wire| wire.send(&self.path, rank, &event));
        send();
        self.apply(rank, event);
    }

    /// Makes a rank's change here.
    pub fn apply(&self, rank: usize, event: Event) {
        let mut state = lock(&self.state);
        match event {
            Event::Joined(gpu, blocks) => {
                state.joined.insert(rank, (gpu, blocks));
            }
            Event::Gone => {
                state.gone.insert(rank);
            }
            Event::Calls(link) => {
                state.links.entry(link).or_default().insert(rank);
            }
            Event::Begins(at, entry) => {
                let empty = || Gathering { entries: (0..self.size).map(|_| None).collect(), taken: 0 };
                state.gatherings.entry(at).or_insert_with(empty).entries[rank] = Some(entry);
            }
            Event::Sends(to, bytes) => {
                state.mail.entry((rank, to)).or_default().push_back(bytes);
            }
            Event::Takes(from) => {
                *state.taken.entry((from, rank)).or_default() += 1;
            }
            Event::Splits(nth, color, key) => {
                state.splits.entry(nth).or_default().insert(rank, (color, key));
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl Comm {
    /// Makes a communicator and registers its handle; the communicator is in progress until all its ranks have joined.
    pub fn register(
        group: &Arc<Group>,
        rank: usize,
        blocking: bool,
        place: Region,
        (family, shares): (Arc<Family>, bool),
    ) -> Arc<Comm> {
        static NUMBERS: AtomicUsize = AtomicUsize::new(0x1000);
        let comm = Arc::new(Comm {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            group: group.clone(),
            rank,
            blocking,
            state: AtomicI32::new(IN_PROGRESS),
            family,
            shares,
            finalized: AtomicBool::new(false),
            graphs: Arc::new(()),
            outstanding: AtomicUsize::new(0),
            connected: Mutex::default(),
            splits: AtomicUsize::new(0),
            registered: AtomicUsize::new(0),
            place,
        });
        lock(&COMMS).insert(comm.number, comm.clone());
        comm
    }

    pub fn raw(&self) -> RawComm {
        self.number as RawComm
    }

    /// Unregisters the communicator's handle.
    pub fn forget(&self) {
        lock(&COMMS).remove(&self.number);
    }

    pub fn device(&self) -> (&Arc<dyn CudaMachine>, usize) {
        (&self.place.machine, self.place.device)
    }

    pub fn place(&self) -> Region {
        self.place.clone()
    }

    pub fn is_aborted(&self) -> bool {
        self.family.is_aborted()
    }

    /// The result of `ncclCommEnsureReady`.
    pub fn ready(&self) -> Answer {
        match self.state.load(Ordering::Acquire) {
            IN_PROGRESS => INVALID_ARGUMENT,
            answer => answer,
        }
    }

    /// Runs a call's work: on this thread for a blocking communicator, otherwise on another thread, while the communicator is in
    /// progress.
    pub fn work(self: &Arc<Comm>, job: impl FnOnce() -> Answer + Send + 'static) -> Answer {
        if self.blocking {
            let answer = job();
            if self.state.load(Ordering::Acquire) == IN_PROGRESS {
                self.state.store(answer, Ordering::Release);
            }
            return answer;
        }
        self.state.store(IN_PROGRESS, Ordering::Release);
        THREADS.fetch_add(1, Ordering::Relaxed);
        let comm = self.clone();
        std::thread::spawn(move || comm.state.store(job(), Ordering::Release));
        IN_PROGRESS
    }

    /// Waits until `ready` finds a result in the ranks' common state; the abort flag ends the wait.
    pub fn await_all<R>(&self, mut ready: impl FnMut(&mut State) -> Option<R>) -> Result<R, Answer> {
        let mut state = lock(&self.group.state);
        loop {
            if let Some(found) = ready(&mut state) {
                self.group.changed.notify_all();
                return Ok(found);
            }
            if self.is_aborted() {
                return Err(INTERNAL_ERROR);
            }
            let waited = self.group.changed.wait_timeout(state, Duration::from_millis(2));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets the machine's streams make progress until the condition holds.
    #[allow(clippy::disallowed_methods, reason = "threads wait for each other in real time")]
    pub fn until(&self, done: impl Fn() -> bool) {
        // Progress is made by polling a separate stream, because polling a captured stream would invalidate the capture.
        let Ok(side) = self.place.machine.stream(self.place.device) else { return };
        while !done() {
            let _ = self.place.machine.idle(side);
            std::thread::sleep(Duration::from_micros(200));
        }
        self.place.machine.retire_stream(side);
    }

    /// Marks this rank as gone: aborted, died or destroyed.
    pub fn leave(&self) {
        self.group.tell(self.rank, Event::Gone);
    }
}

/// Makes a call on a communicator, which must be ready.
pub(super) fn on(raw: RawComm, call: impl FnOnce(Arc<Comm>) -> Answer) -> Answer {
    match find(raw) {
        None => INVALID_ARGUMENT,
        Some(comm) => match comm.ready() {
            SUCCESS => call(comm),
            answer => answer,
        },
    }
}
