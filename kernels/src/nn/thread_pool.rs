//! The thread pool of one rank, and the work that its threads share.
//!
//! ```text
//! ThreadPool::new(2).enter(|| model.forward(..)) every kernel that is called inside shares its work with the pool
//! share(8, |task| ...)                           thread 0: 0 2 3 5 7      thread 1: 1 4 6
//! ```
//!
//! The result of a task does not depend on the thread that runs it, so results have the same bits for any number of threads. An
//! idle worker spins for a while before it sleeps: waking a worker takes longer than many kernels.

use std::cell::RefCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The number of times that an idle worker checks for work before it sleeps: about 50 microseconds.
const SPINS: u32 = 4_000;
/// The bit of a pool's state that is set while workers may enter the job; the bits below count the workers inside.
const OPEN: u64 = 1 << 16;
/// The increment of a pool's state for each new job.
const NEXT: u64 = 1 << 17;

thread_local! {
    static POOL: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// Threads that share the work of kernels called inside [`ThreadPool::enter`].
pub struct ThreadPool {
    shared: Option<Arc<Shared>>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    threads: usize,
    /// The number of the job (bits 17 and up), whether workers may enter it (bit 16), and how many workers are inside (bits 0-15).
    state: AtomicU64,
    next: AtomicUsize,
    job: Mutex<Option<Job>>,
    wake: Condvar,
    asleep: AtomicUsize,
    failed: AtomicBool,
    over: AtomicBool,
}

/// A borrowed closure with its lifetime erased, and the number of its tasks.
#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

#[allow(unsafe_code, reason = "a pointer to something that is Sync")]
// SAFETY: the closure is `Sync`, and `share` does not drop it until every worker has left the job.
unsafe impl Send for Job {}

impl ThreadPool {
    /// A pool of `threads` threads, including the caller's; a pool of 1 starts no threads.
    pub fn new(threads: usize) -> ThreadPool {
        if threads <= 1 {
            return ThreadPool { shared: None, workers: Vec::new() };
        }
        let shared = Arc::new(Shared {
            threads,
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: Mutex::new(None),
            wake: Condvar::new(),
            asleep: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let start = |_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.work())
        };
        let workers = (1..threads).map(start).collect();
        ThreadPool { shared: Some(shared), workers }
    }

    /// Runs `body` on this thread; the kernels that it calls share their work with the pool.
    pub fn enter<R>(&self, body: impl FnOnce() -> R) -> R {
        /// Restores the thread's previous pool on drop, also when `body` panics.
        struct Back(Option<Arc<Shared>>);
        impl Drop for Back {
            fn drop(&mut self) {
                let before = self.0.take();
                POOL.with(|pool| *pool.borrow_mut() = before);
            }
        }
        let _back = Back(POOL.with(|pool| pool.replace(self.shared.clone())));
        body()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.over.store(true, Ordering::SeqCst);
            let _job = shared.job.lock().unwrap_or_else(PoisonError::into_inner);
            shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A panic of a worker was caught and is reported by `run`.
            let _ = worker.join();
        }
    }
}

/// The number of threads that share the work of the calling thread.
pub(crate) fn threads() -> usize {
    POOL.with(|pool| pool.borrow().as_ref().map_or(1, |pool| pool.threads))
}

/// Calls `body` once for each task in 0..tasks, on the threads of the pool; returns when all are done.
///
/// # Panics
/// If a call of `body` panicked.
pub(crate) fn share(tasks: usize, body: impl Fn(usize) + Sync) {
    share_tasks(tasks, &body);
}

/// [`share`], compiled once for all bodies.
fn share_tasks(tasks: usize, body: &(dyn Fn(usize) + Sync)) {
    let pool = if tasks > 1 { POOL.with(|pool| pool.borrow().clone()) } else { None };
    match pool {
        // Inside a task this thread has no pool, so kernels that the task calls run on this thread alone.
        Some(pool) => ThreadPool { shared: None, workers: Vec::new() }.enter(|| pool.run(tasks, body)),
        None => (0..tasks).for_each(body),
    }
}

/// Calls `body` once per thread, with a range of rows and that range's part of `all`. Rows have `width` elements.
pub(crate) fn share_rows<T: Send>(all: &mut [T], width: usize, body: impl Fn(Range<usize>, &mut [T]) + Sync) {
    let work = all.len();
    share_rows_of(work, (all, width), (&mut [(); 0], 0), |rows, all, _| body(rows, all));
}

/// Like [`share_rows`], for the rows of two slices together. The number of threads depends on `work`, a number of elements.
pub(crate) fn share_rows_of<T: Send, U: Send>(
    work: usize,
    a: (&mut [T], usize),
    b: (&mut [U], usize),
    body: impl Fn(Range<usize>, &mut [T], &mut [U]) + Sync,
) {
    share_parts(work, a, b, &body);
}

type RowsBody<'b, T, U> = &'b (dyn Fn(Range<usize>, &mut [T], &mut [U]) + Sync);

/// [`share_rows_of`], compiled once for all bodies over the same types.
fn share_parts<T: Send, U: Send>(
    work: usize,
    (a, a_width): (&mut [T], usize),
    (b, b_width): (&mut [U], usize),
    body: RowsBody<'_, T, U>,
) {
    let rows = a.len().checked_div(a_width).unwrap_or(0);
    let parts = if work < SMALL { 1 } else { threads().min(rows).max(1) };
    if parts == 1 {
        return body(0..rows, a, b);
    }
    let cut = |part: usize| rows * part / parts;
    let (mut a, mut b) = (a, b);
    let mut pieces = Vec::with_capacity(parts);
    for part in 0..parts {
        let rows = cut(part + 1) - cut(part);
        let ((a_piece, a_rest), (b_piece, b_rest)) =
            (a.split_at_mut(rows * a_width), b.split_at_mut(rows * b_width));
        pieces.push(Mutex::new((a_piece, b_piece)));
        (a, b) = (a_rest, b_rest);
    }
    share(parts, |part| {
        let mut piece = pieces[part].lock().unwrap_or_else(PoisonError::into_inner);
        let (a, b) = &mut *piece;
        body(cut(part)..cut(part + 1), a, b);
    });
}

/// With fewer elements than this, one thread is faster than waking other threads.
pub(crate) const SMALL: usize = 16_384;

impl Shared {
    fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let body: *const (dyn Fn(usize) + Sync + '_) = body;
        // SAFETY: only workers inside the job use the pointer, and none is inside after the job is closed below.
        #[allow(unsafe_code, reason = "a lifetime that `close` bounds")]
        let body: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(body) };
        let job = Job { body, tasks };
        self.next.store(0, Ordering::SeqCst);
        *self.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job);
        self.state.fetch_add(NEXT | OPEN, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) > 0 {
            let _job = self.job.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
        let mine = catch_unwind(AssertUnwindSafe(|| self.tasks(job)));
        // Close the job: no further thread enters, and threads inside finish the parts that they have taken.
        self.state.fetch_and(!OPEN, Ordering::SeqCst);
        let mut looks = 0u32;
        while self.state.load(Ordering::SeqCst) & (OPEN - 1) > 0 {
            looks += 1;
            if looks < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        if let Err(cause) = mine {
            std::panic::resume_unwind(cause);
        }
        assert!(!self.failed.swap(false, Ordering::SeqCst), "a thread of the pool panicked");
    }

    fn tasks(&self, job: Job) {
        // SAFETY: every caller is inside the job, and `run` waits for workers inside before the closure's lifetime ends.
        #[allow(unsafe_code, reason = "a pointer that the job keeps alive")]
        let body = unsafe { &*job.body };
        loop {
            let task = self.next.fetch_add(1, Ordering::SeqCst);
            if task >= job.tasks {
                return;
            }
            body(task);
        }
    }

    /// The loop of a worker thread.
    fn work(&self) {
        let (mut seen, mut looks) = (0, 0u32);
        while !self.over.load(Ordering::SeqCst) {
            let state = self.state.load(Ordering::SeqCst);
            if state & OPEN > 0 && state / NEXT != seen {
                let entered =
                    self.state.compare_exchange(state, state + 1, Ordering::SeqCst, Ordering::SeqCst);
                if entered.is_ok() {
                    seen = state / NEXT;
                    let job = *self.job.lock().unwrap_or_else(PoisonError::into_inner);
                    let done = catch_unwind(AssertUnwindSafe(|| {
                        if let Some(job) = job {
                            self.tasks(job);
                        }
                    }));
                    if done.is_err() {
                        self.failed.store(true, Ordering::SeqCst);
                    }
                    self.state.fetch_sub(1, Ordering::SeqCst);
                    looks = 0;
                }
                continue;
            }
            looks += 1;
            if looks < SPINS {
                std::hint::spin_loop();
                continue;
            }
            looks = 0;
            let job = self.job.lock().unwrap_or_else(PoisonError::into_inner);
            self.asleep.fetch_add(1, Ordering::SeqCst);
            let again = self.state.load(Ordering::SeqCst);
            let nothing = again & OPEN == 0 || again / NEXT == seen;
            if nothing && !self.over.load(Ordering::SeqCst) {
                drop(self.wake.wait(job));
            }
            self.asleep.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whoever_takes_it() {
        for threads in [1, 2, 3, 5] {
            let pool = ThreadPool::new(threads);
            for tasks in [0, 1, 2, 7, 100] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..50 {
                    pool.enter(|| {
                        share(tasks, |task| {
                            counts[task].fetch_add(1, Ordering::SeqCst);
                        })
                    });
                }
                assert!(counts.iter().all(|count| count.load(Ordering::SeqCst) == 50));
            }
        }
    }

    #[test]
    fn rows_are_cut_between_samples() {
        let mut all = vec![0usize; 5 * SMALL];
        ThreadPool::new(3).enter(|| {
            share_rows(&mut all, 5, |rows, piece| {
                assert_eq!(piece.len(), rows.len() * 5);
                piece.iter_mut().zip(rows.start * 5..).for_each(|(x, i)| *x = i);
            });
        });
        assert!(all.iter().copied().eq(0..5 * SMALL));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let pool = ThreadPool::new(2);
        for bad in 0..8 {
            let outcome =
                catch_unwind(AssertUnwindSafe(|| pool.enter(|| share(8, |task| assert!(task != bad)))));
            assert!(outcome.is_err());
        }
        pool.enter(|| share(8, |_| {}));
    }
}
