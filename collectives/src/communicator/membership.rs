//! A rank's membership in a group: the state shared by its communicator, its communication thread and the world.

use crate::backends::shm::Segment;
use crate::backends::{Backend, GateId, GroupKey, Member, TaskId};
use crate::flight::{Recorder, Ticket};
use crate::transport::Connection;
use crate::{Call, Error, Lost, Rank, Result};
use allfold_base::lock;
use allfold_kernels::fused::SyncSegment;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

/// The membership of a rank in a group, until the rank leaves.
pub(crate) struct Membership {
    pub backend: Arc<dyn Backend>,
    pub task: TaskId,
    pub member: Member,
    pub size: u32,
    /// The numbers of the group's ranks in the world, unless the group is the world.
    pub world: Option<Box<[Rank]>>,
    /// The group's name in flight records: the same on all of its ranks; 0 is the world.
    name: u64,
    /// The sync segment of the group's shared memory, once the ranks have agreed to use it.
    pub sync_segment: OnceLock<Arc<SyncSegment>>,
    /// Operations entered, or handed to the communication thread.
    sequence: AtomicU64,
    /// The first failure of the group that a call of this rank returned, as text; `None` if there is no failure.
    got_failure: Mutex<Option<String>>,
    troubled: AtomicBool,
    left: AtomicBool,
    stream: Mutex<Option<Arc<Stream>>>,
    /// The gates of this membership's communication threads.
    gates: Mutex<Vec<GateId>>,
    /// Whether a communication thread was ever started.
    streamed: AtomicBool,
    /// The memberships and threads of this rank, in all groups.
    process_state: Arc<ProcessState>,
}

/// All memberships of one world rank, and the threads that were started for it.
pub(crate) struct ProcessState {
    pub recorder: Recorder,
    memberships: Mutex<Vec<Arc<Membership>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Whether a call of this rank has returned the failure of one of its groups. If so, the rank's own error is not the cause
    /// of the failure.
    got_failure: AtomicBool,
}

/// An asynchronous operation, as a function that runs on the communication thread.
pub(crate) type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// The communication thread of a membership, which runs one job after the other.
///
/// ```text
/// communicator   push job; raise `issued`            wait: pass `done` at the job's number
/// thread         pass `issued`; do the job; raise `done`
/// ```
pub(crate) struct Stream {
    jobs: Mutex<VecDeque<Option<Job>>>,
    /// The task whose clock the membership uses.
    pub task: TaskId,
    issued: GateId,
    pub done: GateId,
    /// Jobs issued so far.
    count: AtomicU64,
}

impl Membership {
    pub fn take(
        backend: Arc<dyn Backend>,
        task: TaskId,
        member: Member,
        size: u32,
        (name, world): (u64, Option<Box<[Rank]>>),
        process_state: &Arc<ProcessState>,
    ) -> Arc<Membership> {
        let membership = Arc::new(Membership {
            backend,
            task,
            member,
            size,
            world,
            name,
            sync_segment: OnceLock::new(),
            sequence: AtomicU64::new(0),
            got_failure: Mutex::default(),
            troubled: AtomicBool::new(false),
            left: AtomicBool::new(false),
            stream: Mutex::new(None),
            gates: Mutex::default(),
            streamed: AtomicBool::new(false),
            process_state: process_state.clone(),
        });
        lock(&process_state.memberships).push(membership.clone());
        membership
    }

    /// A membership of the same rank in the group of these ranks, of which it is one, named after operation `sequence` and `color`.
    pub fn subgroup(&self, members: &[Rank], sequence: u64, color: u32) -> Result<Arc<Membership>> {
        let group =
            self.backend.subgroup(GroupKey { parent: self.member.group, sequence, color }, members)?;
        let place = members.iter().position(|rank| *rank == self.member.rank).unwrap_or_default();
        let member = Member { group, rank: Rank(place as u32) };
        let words = [self.name, sequence, u64::from(color)];
        let mix = |name: u64, word: u64| (name ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let name = words.into_iter().fold(0xcbf2_9ce4_8422_2325, mix) | 1;
        let in_world = |rank: &Rank| self.world.as_ref().map_or(*rank, |world| world[rank.index()]);
        let called = (name, Some(members.iter().map(in_world).collect()));
        let size = members.len() as u32;
        Ok(Membership::take(self.backend.clone(), self.task, member, size, called, &self.process_state))
    }

    /// Stores the training step that this rank is in, for its flight record.
    pub fn note_step(&self, step: u64) {
        self.process_state.recorder.note_step(step);
    }

    /// The last operations of this rank; with `step`, only those of this training step.
    pub fn flight_record(&self, step: Option<u64>) -> crate::flight::Record {
        self.process_state.recorder.record("", step)
    }

    /// Records that an operation is called.
    pub fn record_issue(&self, call: Call, peer: Option<Rank>) -> Ticket {
        let now = self.backend.clock().stamp(self.task);
        self.process_state.recorder.issue((self.name, self.member.rank, self.size), call, peer, now)
    }

    /// Runs an operation that was issued, on the thread of `task`, and records how it ends.
    pub fn run_recorded<R>(
        &self,
        ticket: Ticket,
        task: TaskId,
        run: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.process_state.recorder.start(ticket, self.backend.clock().stamp(task));
        self.record_end(ticket, task, run())
    }

    /// Records the issue and the run of an operation that can start immediately on the rank's own thread, with one clock reading less,
    /// which saves a tenth of a small operation between threads. The record is made when `run` calls its argument, at the latest when
    /// `run` returns: at that time the call is already being sent to the other ranks, so recording takes no extra time.
    pub fn run_recording<R>(
        &self,
        call: impl Fn() -> Call,
        run: impl FnOnce(&dyn Fn()) -> Result<R>,
    ) -> Result<R> {
        let ticket = Cell::new(None);
        let begin = || {
            ticket.get().unwrap_or_else(|| {
                let now = self.backend.clock().stamp(self.task);
                let new =
                    self.process_state.recorder.begin((self.name, self.member.rank, self.size), call(), now);
                ticket.set(Some(new));
                new
            })
        };
        let result = run(&|| {
            begin();
        });
        self.record_end(begin(), self.task, result)
    }

    fn record_end<R>(&self, ticket: Ticket, task: TaskId, result: Result<R>) -> Result<R> {
        self.process_state.recorder.end(ticket, self.backend.clock().stamp(task), &result);
        result
    }

    /// Makes this rank's connection to its peers.
    pub fn connect(&self, task: TaskId) -> Connection {
        let connection = self.backend.clone().connect(task, self.member);
        match self.sync_segment.get() {
            Some(sync_segment) => {
                connection.sharing(Segment::share(sync_segment, self.member.rank, self.size))
            }
            None => connection,
        }
    }

    /// Takes the number of the next operation.
    pub fn number(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the last number, so that the next operation gets it again.
    pub fn take_back(&self) {
        self.sequence.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of operations so far.
    pub fn operations(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// An error once a call of this rank has returned a failure of the group.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if !self.troubled.load(Ordering::Acquire) {
            return Ok(());
        }
        match &*lock(&self.got_failure) {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Returns a call's result to this rank, and records the result if it is a failure of the group.
    pub fn report<R>(&self, result: Result<R>) -> Result<R> {
        let result = match &self.world {
            Some(world) => result.map_err(|error| error.in_world(world)),
            None => result,
        };
        if let Err(error) = &result
            && !error.is_callers()
        {
            lock(&self.got_failure).get_or_insert_with(|| error.to_string());
            self.troubled.store(true, Ordering::Release);
            self.process_state.got_failure.store(true, Ordering::Relaxed);
            self.process_state.recorder.write(&error.to_string());
        }
        result
    }

    /// The rank leaves the group. Its communication thread ends after the operations that were issued.
    pub fn leave(&self, cause: impl FnOnce(u64) -> Lost) {
        if self.left.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(stream) = lock(&self.stream).take() {
            stream.push(self, None);
        }
        let operations = self.sequence.load(Ordering::Relaxed);
        self.backend.leave(self.task, self.member, operations, cause(operations));
        // Drops the memberships that this rank has left, so that repeated splits do not accumulate them.
        lock(&self.process_state.memberships).retain(|membership| !membership.left.load(Ordering::Relaxed));
    }

    /// The communication thread, started when it is first needed.
    pub fn stream(self: &Arc<Membership>) -> Result<Arc<Stream>> {
        let mut slot = lock(&self.stream);
        if let Some(stream) = &*slot {
            return Ok(stream.clone());
        }
        let (issued, done) = (self.backend.clock().gate(), self.backend.clock().gate());
        lock(&self.gates).extend([issued, done]);
        let task = self.backend.spawn(self.task);
        let stream =
            Arc::new(Stream { jobs: Mutex::default(), task, issued, done, count: AtomicU64::new(0) });
        let (membership, shared) = (self.clone(), stream.clone());
        let thread = std::thread::Builder::new()
            .name(format!("rank {} communication", self.member.rank))
            .spawn(move || shared.serve(&membership, task));
        match thread {
            Ok(thread) => {
                let mut threads = lock(&self.process_state.threads);
                // An ended thread keeps its stack until its handle is dropped.
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(error) => {
                self.backend.retire(task);
                return Err(Error::System(format!("cannot start a communication thread: {error}")));
            }
        }
        *slot = Some(stream.clone());
        self.streamed.store(true, Ordering::Release);
        Ok(stream)
    }

    /// For the communication thread, if there is one: the gate that counts its completed jobs, and the number of jobs issued.
    pub fn outstanding(&self) -> Option<(GateId, u64)> {
        let streamed = self.streamed.load(Ordering::Acquire);
        streamed
            .then(|| lock(&self.stream))
            .as_ref()?
            .as_ref()
            .map(|stream| (stream.done, stream.count.load(Ordering::Relaxed)))
    }
}

impl Drop for Membership {
    /// Runs when the communicator is dropped, its communication thread has ended, and no handle waits for its operations.
    fn drop(&mut self) {
        lock(&self.gates).drain(..).for_each(|gate| self.backend.clock().discard(gate));
        self.backend.release(self.member);
    }
}

impl Stream {
    /// Issues a job; `None` ends the communication thread after the jobs before it. Returns the job's number, from 1.
    pub fn push(&self, membership: &Membership, job: Option<Job>) -> u64 {
        lock(&self.jobs).push_back(job);
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        membership.backend.clock().raise(membership.task, self.issued);
        number
    }

    fn serve(&self, membership: &Membership, task: TaskId) {
        let mut connection = membership.connect(task);
        for number in 1.. {
            if membership.backend.clock().pass(task, self.issued, number).is_err() {
                break;
            }
            let Some(Some(job)) = lock(&self.jobs).pop_front() else { break };
            // A job that panics leaves its result empty; the caller that waits for it gets an error.
            let _ = catch_unwind(AssertUnwindSafe(|| job(&mut connection)));
            membership.backend.clock().raise(task, self.done);
        }
        membership.backend.retire(task);
    }
}

impl ProcessState {
    /// The state of a rank of the world; flight records are written to this folder.
    pub fn new(backend: &Arc<dyn Backend>, rank: Rank, size: u32, folder: Option<PathBuf>) -> ProcessState {
        let time = backend.clone();
        let recorder = Recorder::new(rank, size, folder, Box::new(move || time.clock().scale()));
        ProcessState {
            recorder,
            memberships: Mutex::default(),
            threads: Mutex::default(),
            got_failure: AtomicBool::new(false),
        }
    }

    /// The rank ends: it leaves every group that it is still in.
    pub fn leave(&self, cause: impl Fn(u64) -> Lost) {
        let memberships = std::mem::take(&mut *lock(&self.memberships));
        memberships.iter().for_each(|membership| membership.leave(&cause));
    }

    /// Whether a call of the rank has returned a failure of a group.
    pub fn has_returned_failure(&self) -> bool {
        self.got_failure.load(Ordering::Relaxed)
    }

    /// Waits for the threads that were started for the rank. They end once their memberships are left.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // A panic of a job is caught in the communication thread, so a join cannot fail.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::GroupId;
    use crate::backends::threads::{Options, Threads};
    use crate::transport::Connection;
    use std::time::Duration;

    #[test]
    fn a_group_that_is_left_gives_back_the_gates_of_its_communication_thread() {
        let options = Options { deadline: Duration::from_secs(60), capacity: 4, fused: true };
        let threads = Arc::new(Threads::new(1, options));
        let backend: Arc<dyn Backend> = threads.clone();
        let process_state = Arc::new(ProcessState::new(&backend, Rank(0), 1, None));
        let member = Member { group: GroupId(0), rank: Rank(0) };
        let membership =
            Membership::take(backend.clone(), backend.main(Rank(0)), member, 1, (0, None), &process_state);
        let stream = membership.stream().unwrap();
        let number = stream.push(&membership, Some(Box::new(|_: &mut Connection| ())));
        assert_eq!(threads.gates(), 2);
        process_state.leave(|operations| Lost::ReturnedEarly { operations });
        // A handle of an operation can still be waited for after the rank has left.
        backend.clock().pass(membership.task, stream.done, number).unwrap();
        drop(stream);
        process_state.join();
        drop(membership);
        assert_eq!(threads.gates(), 0);
    }
}
