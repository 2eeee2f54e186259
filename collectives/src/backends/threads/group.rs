//! One group of ranks: a mailbox each, the ledger, and the bell that is rung when the group fails.

use crate::ledger::Ledger;
use crate::transport::Frame;
use crate::{Call, Error, Lost, Rank, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The ranks of one communicator.
pub(super) struct Group {
    ledger: Mutex<Ledger>,
    mailboxes: Vec<Mailbox>,
}

/// What has come for one rank. The count changes with every piece of news, so a waiter may watch it before it
/// sleeps.
#[derive(Default)]
pub(super) struct Mailbox {
    mail: Mutex<Mail>,
    bell: Condvar,
    news: AtomicU64,
}

/// The inside of a mailbox. Channels are named by the peer and the lane.
#[derive(Default)]
pub(super) struct Mail {
    /// Frames from peers, not taken yet.
    pub frames: BTreeMap<(Rank, u32), VecDeque<Frame>>,
    /// Of the frames this rank sent: how many have been taken.
    pub taken: BTreeMap<(Rank, u32), u64>,
    /// Of the frames this rank sent: how many there were.
    pub sent: BTreeMap<(Rank, u32), u64>,
    /// The group has failed, or a rank has left: look at the ledger.
    pub alarm: bool,
    /// The owner waits for the bell.
    asleep: bool,
}

impl Mailbox {
    pub fn open(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the mail and wakes its owner.
    pub fn deliver<R>(&self, change: impl FnOnce(&mut Mail) -> R) -> R {
        let mut mail = self.open();
        let result = change(&mut mail);
        // Under the lock: the owner looks at the count under it before it sleeps, so no news is missed.
        self.news.fetch_add(1, Ordering::Release);
        let asleep = mail.asleep;
        drop(mail);
        if asleep {
            self.bell.notify_all();
        }
        result
    }

    /// How many changes there were.
    pub fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Sleeps until something is delivered, or `patience` is over.
    pub fn sleep(&self, mut mail: MutexGuard<'_, Mail>, patience: Duration) {
        mail.asleep = true;
        let (mut mail, _) = self.bell.wait_timeout(mail, patience).unwrap_or_else(PoisonError::into_inner);
        mail.asleep = false;
    }
}

impl Group {
    pub fn new(size: u32) -> Group {
        let mailboxes = (0..size).map(|_| Mailbox::default()).collect();
        Group { ledger: Mutex::new(Ledger::new(size)), mailboxes }
    }

    pub fn mailbox(&self, rank: Rank) -> &Mailbox {
        &self.mailboxes[rank.index()]
    }

    /// Looks something up in the ledger, or changes it in a way that concerns no one else.
    pub fn ledger<R>(&self, look: impl FnOnce(&mut Ledger) -> R) -> R {
        look(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn enter(&self, rank: Rank, call: &Call) -> Result<()> {
        let entered = self.ledger(|ledger| ledger.enter(rank, call));
        if entered.is_err() {
            self.alarm();
        }
        entered
    }

    pub fn fail(&self, rank: Rank, error: Error) -> Error {
        let error = self.ledger(|ledger| ledger.fail(rank, error));
        self.alarm();
        error
    }

    pub fn leave(&self, rank: Rank, operations: u64, cause: Lost) {
        // A failure that follows is in the ledger; everyone is told to look either way.
        let _ = self.ledger(|ledger| ledger.leave(rank, operations, cause));
        self.alarm();
    }

    fn alarm(&self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.deliver(|mail| mail.alarm = true));
    }
}
