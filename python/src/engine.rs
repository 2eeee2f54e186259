//! A communicator that any thread of a process may use: operations run on the calling thread, or in order on another thread.
//!
//! ```text
//! run      on the caller's thread, once no issued operation is outstanding
//! issue    on a thread of the communicator, in the order of issue
//! ```
//!
//! A callback of an operation runs on the thread that ran the operation. A callback may wait for a later operation, as PyTorch's
//! PowerSGD hook does: another thread runs the operations meanwhile.
//!
//! A signal to the program ends a wait for other operations of the communicator, as it ends the operations themselves.

use crate::work::Outcome;
use allfold_base::lock;
use allfold_collectives::{AbortHandle, Collective, Communicator, Error, Rank, Result, interruption};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// The number of most recent operations for which the program's number of the call is kept.
const KNOWN: usize = 4096;

/// How long a wait lasts at most before the signals of the program are checked.
const PAUSE: Duration = Duration::from_millis(50);

/// An operation on the communicator.
type Operation = Box<dyn FnOnce(&Communicator) -> Result<()> + Send>;

/// What a program attaches to a call.
#[derive(Clone, Copy)]
pub struct Mark {
    /// The program's number of the call.
    pub call: u64,
    /// The deadline of the operation.
    pub limit: Duration,
}

/// A communicator, its queue, and the thread that works through it.
pub struct Engine {
    shared: Arc<Shared>,
    abort: AbortHandle,
    rank: Rank,
    /// The process that joined; a process that was forked from it cannot use the communicator.
    process: u32,
}

struct Shared {
    communicator: Mutex<Option<Communicator>>,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Operations that were issued and are not done.
    outstanding: AtomicUsize,
    /// The last marked operations: their numbers in the communicator, and those of their calls.
    calls: Mutex<VecDeque<(u64, u64)>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Operation, Arc<Outcome>)>,
    closed: bool,
    /// Whether a thread runs an operation.
    serving: bool,
    /// Threads that run neither an operation nor a callback.
    free: usize,
}

impl Engine {
    pub fn new(communicator: Communicator) -> Engine {
        let (abort, rank) = (communicator.abort_handle(), communicator.rank());
        let shared = Arc::new(Shared {
            communicator: Mutex::new(Some(communicator)),
            queue: Mutex::default(),
            changed: Condvar::new(),
            outstanding: AtomicUsize::new(0),
            calls: Mutex::default(),
        });
        Engine { shared, abort, rank, process: std::process::id() }
    }

    /// Returns an error in a process that was forked from the one that joined.
    fn is_own_process(&self) -> Result<()> {
        own_process(self.process)
    }

    /// Runs an operation on this thread, after all issued operations.
    ///
    /// # Errors
    /// A forked process, a closed communicator, or the operation's error.
    pub fn run<R>(
        &self,
        mark: Option<Mark>,
        operation: impl FnOnce(&Communicator) -> Result<R> + Send,
    ) -> Result<R> {
        self.is_own_process()?;
        let communicator = self.take()?;
        let result = match communicator.as_ref() {
            Some(open) => self.shared.marked(open, mark, operation),
            None => Err(closed()),
        };
        drop(communicator);
        // Another thread may be waiting for the communicator.
        drop(lock(&self.shared.queue));
        self.shared.changed.notify_all();
        result
    }

    /// The communicator, once nothing is outstanding and no other thread uses it.
    fn take(&self) -> Result<MutexGuard<'_, Option<Communicator>>> {
        loop {
            let queue = lock(&self.shared.queue);
            if self.shared.outstanding.load(Ordering::Acquire) == 0 {
                match self.shared.communicator.try_lock() {
                    Ok(communicator) => return Ok(communicator),
                    Err(TryLockError::Poisoned(error)) => return Ok(error.into_inner()),
                    Err(TryLockError::WouldBlock) => {}
                }
            }
            let waited = self.shared.changed.wait_timeout(queue, PAUSE);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            if let Some(why) = interruption() {
                self.abort.abort(why.clone());
                return Err(Error::Aborted { by: self.rank, why });
            }
        }
    }

    /// The program's number of the call that was this operation of the communicator.
    pub fn called(&self, operation: u64) -> Option<u64> {
        let calls = lock(&self.shared.calls);
        calls.iter().rev().find(|(number, _)| *number == operation).map(|(_, call)| *call)
    }

    /// Issues an operation, which runs after the operations that were issued before. The outcome has its error.
    ///
    /// # Errors
    /// A forked process or a closed communicator.
    pub fn issue(
        &self,
        mark: Option<Mark>,
        operation: impl FnOnce(&Communicator) -> Result<()> + Send + 'static,
    ) -> Result<Arc<Outcome>> {
        self.is_own_process()?;
        let outcome = Arc::new(Outcome::default());
        let mut queue = lock(&self.shared.queue);
        if queue.closed {
            return Err(closed());
        }
        self.shared.outstanding.fetch_add(1, Ordering::AcqRel);
        let shared = self.shared.clone();
        let marked = move |communicator: &Communicator| shared.marked(communicator, mark, operation);
        queue.jobs.push_back((Box::new(marked), outcome.clone()));
        self.shared.staff(&mut queue);
        self.shared.changed.notify_all();
        Ok(outcome)
    }

    /// Runs a collective by the algorithm of this name from now on.
    pub fn choose(&self, collective: Collective, name: &str) -> Result<()> {
        self.is_own_process()?;
        let mut communicator = self.take()?;
        let open = communicator.as_ref().ok_or_else(closed)?;
        let plan = open.plan().algorithm(collective, name)?;
        *communicator = communicator.take().map(|open| open.with_plan(plan));
        Ok(())
    }

    /// Fails the group, for all of its ranks.
    pub fn abort(&self, why: String) {
        if self.is_own_process().is_ok() {
            self.abort.abort(why);
        }
    }

    /// Leaves the group. Where operations are under way, the group is aborted for all of its ranks.
    pub fn close(&self) {
        if self.is_own_process().is_err() {
            return;
        }
        lock(&self.shared.queue).closed = true;
        self.shared.changed.notify_all();
        let busy = match self.shared.communicator.try_lock() {
            Ok(_) => self.shared.outstanding.load(Ordering::Acquire) > 0,
            Err(_) => true,
        };
        if busy {
            self.abort.abort("it ended without waiting for its operations");
        }
        let queue = lock(&self.shared.queue);
        let outstanding = |_: &mut Queue| self.shared.outstanding.load(Ordering::Acquire) > 0;
        drop(self.shared.changed.wait_while(queue, outstanding).unwrap_or_else(PoisonError::into_inner));
        let communicator = lock(&self.shared.communicator).take();
        drop(communicator);
    }
}

/// Returns an error if this is not process `process`, but one that was forked from it.
pub fn own_process(process: u32) -> Result<()> {
    if process == std::process::id() {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "this communicator belongs to process {process}, from which this one was forked: join again here, or start processes by \
         `spawn`"
    )))
}

fn closed() -> Error {
    Error::Argument("this communicator is closed".into())
}

impl Shared {
    /// Starts a thread for the next job, if there is no thread but those that run callbacks.
    fn staff(self: &Arc<Self>, queue: &mut Queue) {
        if !queue.serving && queue.free == 0 {
            queue.free = 1;
            let shared = self.clone();
            std::thread::spawn(move || shared.serve());
        }
    }

    /// Runs an operation under its deadline, and remembers the number of its call.
    fn marked<R>(
        &self,
        communicator: &Communicator,
        mark: Option<Mark>,
        operation: impl FnOnce(&Communicator) -> Result<R>,
    ) -> Result<R> {
        let Some(Mark { call, limit }) = mark else { return operation(communicator) };
        communicator.set_deadline(limit)?;
        let number = communicator.operations();
        // The number is stored before the operation runs, since another thread may get the operation's error first.
        {
            let mut calls = lock(&self.calls);
            if calls.len() == KNOWN {
                calls.pop_front();
            }
            calls.push_back((number, call));
        }
        let result = operation(communicator);
        // An operation whose arguments were refused has no number.
        if communicator.operations() == number {
            lock(&self.calls).pop_back();
        }
        result
    }

    /// Runs one job after the other, until the queue is closed and empty.
    fn serve(self: &Arc<Self>) {
        loop {
            let idle = |queue: &mut Queue| queue.serving || queue.jobs.is_empty() && !queue.closed;
            let mut queue =
                self.changed.wait_while(lock(&self.queue), idle).unwrap_or_else(PoisonError::into_inner);
            queue.free -= 1;
            let Some((operation, outcome)) = queue.jobs.pop_front() else { return };
            queue.serving = true;
            drop(queue);
            let result = match &*lock(&self.communicator) {
                Some(communicator) => operation(communicator),
                None => Err(closed()),
            };
            let left = {
                let mut queue = lock(&self.queue);
                queue.serving = false;
                queue.free += 1;
                self.outstanding.fetch_sub(1, Ordering::AcqRel) - 1
            };
            if left == 0 {
                self.changed.notify_all();
            }
            if let Some(callbacks) = outcome.done(result) {
                let mut queue = lock(&self.queue);
                queue.free -= 1;
                if !queue.jobs.is_empty() {
                    self.staff(&mut queue);
                }
                drop(queue);
                self.changed.notify_all();
                callbacks.call();
                lock(&self.queue).free += 1;
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        match self.is_own_process() {
            Ok(()) => self.close(),
            // The communicator's threads are in another process: nothing can be ended here, and a wait for them would never end.
            Err(_) => std::mem::forget(self.shared.clone()),
        }
    }
}
