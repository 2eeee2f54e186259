//! One group of ranks: a mailbox for each rank, the call table, and the sync segment. When the group fails, all its ranks are woken.

use crate::contract::CallTable;
use crate::contract::deadline::{LOOK, clock};
use crate::transport::Frame;
use crate::{Call, Error, Lost, Rank, Result};
use allfold_base::lock;
use allfold_kernels::fused::{Pace, SyncSegment};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The ranks of one communicator.
pub(super) struct Group {
    calls: Mutex<CallTable>,
    mailboxes: Vec<Mailbox>,
    /// The sync segment through which the ranks compute collectives without messages.
    pub sync_segment: Arc<SyncSegment>,
    /// Whether the group has failed or a rank has left; the call table has the details.
    failed: AtomicBool,
}

/// Buffers of up to this many bytes are copied to the sync segment, which needs one barrier. Larger buffers are read in place,
/// which needs two.
const SLOT: usize = 1024;

/// The messages that have arrived for one rank. The count changes with every event, so that a waiting rank may watch it before
/// it sleeps.
#[derive(Default)]
pub(super) struct Mailbox {
    mail: Mutex<Mail>,
    delivered: Condvar,
    news: AtomicU64,
}

/// The content of a mailbox. Channels are named by the peer and the lane.
#[derive(Default)]
pub(super) struct Mail {
    /// Frames from peers that were not taken yet.
    pub frames: BTreeMap<(Rank, u32), VecDeque<Frame>>,
    /// Number of this rank's frames that were received, by receiver and lane.
    pub taken: BTreeMap<(Rank, u32), u64>,
    /// Number of this rank's frames that were sent, by receiver and lane.
    pub sent: BTreeMap<(Rank, u32), u64>,
    /// Whether the group has failed or a rank has left; the call table has the details.
    pub alarm: bool,
    /// Whether the owner sleeps until it is woken.
    asleep: bool,
}

impl Mailbox {
    pub fn open(&self) -> MutexGuard<'_, Mail> {
        lock(&self.mail)
    }

    /// Changes the mail and wakes its owner.
    pub fn deliver<R>(&self, change: impl FnOnce(&mut Mail) -> R) -> R {
        let mut mail = self.open();
        let result = change(&mut mail);
        // The count changes under the lock: the owner reads it under the lock before it sleeps, so it misses no event.
        self.news.fetch_add(1, Ordering::Release);
        let asleep = mail.asleep;
        drop(mail);
        if asleep {
            self.delivered.notify_all();
        }
        result
    }

    /// The number of changes so far.
    pub fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Sleeps until something is delivered, or until `timeout` is over.
    pub fn sleep(&self, mut mail: MutexGuard<'_, Mail>, timeout: Duration) {
        mail.asleep = true;
        let (mut mail, _) =
            self.delivered.wait_timeout(mail, timeout).unwrap_or_else(PoisonError::into_inner);
        mail.asleep = false;
    }
}

impl Group {
    pub fn new(size: u32) -> Group {
        let mailboxes = (0..size).map(|_| Mailbox::default()).collect();
        let sync_segment = Arc::new(SyncSegment::new(size, SLOT, Pace::of(size)));
        let failed = AtomicBool::new(false);
        Group { calls: Mutex::new(CallTable::new(size)), mailboxes, sync_segment, failed }
    }

    pub fn size(&self) -> u32 {
        self.mailboxes.len() as u32
    }

    pub fn mailbox(&self, rank: Rank) -> &Mailbox {
        &self.mailboxes[rank.index()]
    }

    /// Reads or changes the call table. After a change that concerns other ranks, [`Group::alarm`] must be called.
    pub fn calls<R>(&self, look: impl FnOnce(&mut CallTable) -> R) -> R {
        look(&mut lock(&self.calls))
    }

    /// The group's failure, as a rank sees it. Takes no lock before the first failure or departure.
    pub fn failure(&self, rank: Rank) -> Option<Error> {
        self.failed.load(Ordering::Acquire).then(|| self.calls(|calls| calls.failure(rank))).flatten()
    }

    pub fn enter(&self, rank: Rank, call: &Call) -> Result<()> {
        let entered = self.calls(|calls| calls.enter(rank, call));
        if entered.is_err() {
            self.alarm();
        }
        entered
    }

    pub fn fail(&self, rank: Rank, error: Error) -> Error {
        let error = self.calls(|calls| calls.fail(rank, error));
        self.alarm();
        error
    }

    pub fn leave(&self, rank: Rank, operations: u64, cause: Lost) {
        // If the departure fails the group, the error is in the table. All ranks are woken to check the table in either case.
        let _ = self.calls(|calls| calls.leave(rank, operations, cause));
        self.alarm();
    }

    /// Waits until every rank has requested the survivors or has left, or until `timeout` is over.
    pub fn survivors(&self, rank: Rank, timeout: Duration) -> Result<Vec<Rank>> {
        self.calls(|calls| calls.shrink(rank));
        self.alarm();
        let mailbox = self.mailbox(rank);
        let begun = clock();
        loop {
            let seen = mailbox.news();
            if let Some(survivors) = self.calls(|calls| calls.survivors(rank)) {
                return survivors;
            }
            let left = timeout.saturating_sub(clock().saturating_duration_since(begun));
            if left.is_zero() {
                self.calls(CallTable::decide);
                self.alarm();
                continue;
            }
            let mail = mailbox.open();
            if mailbox.news() == seen {
                mailbox.sleep(mail, left.min(LOOK));
            }
        }
    }

    fn alarm(&self) {
        // The flag is set for every departure; a rank may then find no failure in the table, because the departure does not
        // concern it.
        self.failed.store(true, Ordering::Release);
        self.mailboxes.iter().for_each(|mailbox| mailbox.deliver(|mail| mail.alarm = true));
        self.sync_segment.wake();
    }
}
