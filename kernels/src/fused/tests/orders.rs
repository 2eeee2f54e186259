//! Tests of the synchronisation core under a scheduler that tries orders of events: gate, waker, alternating slots and naps.
//!
//! Shuttle provides the words (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS
//! 2010); the code under test is the code that threads and processes run.

#![allow(clippy::unwrap_used)]

use super::super::sync::{Gate, Nap, Sleep, Waker, Word, gate, give_up};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;
use std::time::Duration;

const ORDERS: usize = 3000;

/// A word whose sleepers sleep without a time limit, so that a missed wake-up is a deadlock, which Shuttle reports.
#[derive(Default)]
struct Model {
    word: AtomicU64,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Word for Model {
    fn get(&self) -> u64 {
        self.word.load(Ordering::SeqCst)
    }
    fn set(&self, value: u64) {
        self.word.store(value, Ordering::SeqCst);
    }
    fn count(&self) -> u64 {
        self.word.fetch_add(1, Ordering::SeqCst) + 1
    }
    fn uncount(&self) {
        self.word.fetch_sub(1, Ordering::SeqCst);
    }
    fn replace(&self, old: u64, new: u64) -> bool {
        self.word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl Sleep for Model {
    fn sleep(&self, seen: u64, _patience: Duration) {
        let guard = self.lock.lock().unwrap();
        if self.get() == seen {
            drop(self.woken.wait(guard).unwrap());
        }
    }
    fn wake(&self) {
        let _guard = self.lock.lock().unwrap();
        self.woken.notify_all();
    }
}

#[derive(Default)]
struct SyncSegment {
    gate: Model,
    rung: Model,
    sleepers: Model,
    /// For each member and each of its last two exchanges: the exchange's number and the member's source.
    slots: Vec<[(Model, Model); 2]>,
}

impl SyncSegment {
    fn new(members: usize) -> Arc<SyncSegment> {
        Arc::new(SyncSegment {
            slots: (0..members).map(|_| Default::default()).collect(),
            ..SyncSegment::default()
        })
    }

    fn waker(&self) -> Waker<'_, Model, Model> {
        Waker { rung: &self.rung, sleepers: &self.sleepers }
    }

    /// The wait of a member that has announced its arrival.
    fn until(&self, ready: impl Fn() -> bool) {
        let waker = self.waker();
        if waker.is_last(&ready) {
            return;
        }
        loop {
            let sleeper = waker.listen();
            if ready() {
                return;
            }
            sleeper.sleep(Duration::MAX);
        }
    }
}

fn all(members: usize, one: impl Fn(usize) -> Gate + Send + Sync + Clone + 'static) -> Vec<Gate> {
    let start = |member| {
        let one = one.clone();
        thread::spawn(move || one(member))
    };
    let threads: Vec<_> = (0..members).map(start).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn a_gate_is_open_for_all_or_given_up_by_all_and_nobody_sleeps_on() {
    shuttle::check_random(
        || {
            let (sync_segment, members) = (SyncSegment::new(0), 3);
            let ends = all(members, move |_| {
                let wanted = members as u64;
                let impatient = thread_rng().gen_bool(0.3);
                sync_segment.gate.count();
                if impatient && give_up(&sync_segment.gate, wanted) == Gate::GivenUp {
                    sync_segment.waker().wake();
                    return Gate::GivenUp;
                }
                sync_segment.until(|| gate(&sync_segment.gate, wanted) != Gate::Shut);
                gate(&sync_segment.gate, wanted)
            });
            assert!(ends.iter().all(|end| *end == ends[0] && *end != Gate::Shut), "{ends:?}");
        },
        ORDERS,
    );
}

#[test]
fn slots_in_turn_are_never_written_while_somebody_reads_them() {
    shuttle::check_random(
        || {
            let (sync_segment, members) = (SyncSegment::new(2), 2);
            all(members, move |me| {
                let mut sum = 0;
                for number in 1..=4u64 {
                    let (flag, data) = &sync_segment.slots[me][number as usize & 1];
                    // Odd exchanges carry a source, even ones the sum of the sources: an all-reduce by shares takes two exchanges.
                    let put = |member: u64| if number % 2 == 1 { number * 10 + member } else { sum + member };
                    data.set(put(me as u64));
                    flag.set(number);
                    let slot = |member: usize| &sync_segment.slots[member][number as usize & 1];
                    sync_segment.until(|| (0..members).all(|member| slot(member).0.get() == number));
                    for member in 0..members {
                        assert_eq!(slot(member).1.get(), put(member as u64), "read by {me}");
                    }
                    sum = (0..members).map(|member| slot(member).1.get()).sum();
                }
                Gate::Open
            });
        },
        ORDERS,
    );
}

#[test]
fn a_sleeping_side_is_woken_by_a_write() {
    shuttle::check_random(
        || {
            // A pipe that holds one byte. Per side: the bytes written (side 0) or read (side 1), the sleep flag, the sleep word.
            let pipe: Arc<[[Model; 3]; 2]> = Arc::default();
            let sides = all(2, move |me| {
                let ([mine, nap, _], [theirs, other, waker]) = (&pipe[me], &pipe[1 - me]);
                for number in 1..=4u64 {
                    loop {
                        // Side 0 writes a byte once side 1 has read the byte before; side 1 reads once side 0 has written.
                        let ready = || theirs.get() == number - (1 - me as u64);
                        if ready() {
                            break;
                        }
                        let rung = pipe[me][2].get();
                        Nap(nap).prepare_sleep();
                        if !ready() {
                            pipe[me][2].sleep(rung, Duration::MAX);
                        }
                        Nap(nap).finish_sleep();
                    }
                    mine.set(number);
                    if Nap(other).wake_peer() {
                        waker.count();
                        waker.wake();
                    }
                }
                Gate::Open
            });
            assert_eq!(sides.len(), 2);
        },
        ORDERS,
    );
}
