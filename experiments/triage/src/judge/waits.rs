//! Who waits for whom.
//!
//! ```text
//! rank 0 --> all_reduce 41 of "dp" --> rank 2 --> recv from rank 3 --> rank 3, in no operation: the cause
//! rank 1 ----^
//! ```
//!
//! A rank waits in its open operations, and an operation waits for its ranks that have not entered it. What is at the end of all ways
//! is the cause: a rank in no operation, a rank without a dump, or an operation that all of its ranks have entered. If there is no end,
//! ranks wait for each other in a circle.

use super::lanes::Lanes;
use super::order::expected;
use crate::model::{FIRST_OPEN, Log, MessageEnd, Op, OpState};
use std::collections::{BTreeMap, BTreeSet};

/// An operation that ranks wait in: group, number, and for a message its sender and receiver.
pub(super) type Key = (u32, u64, Option<(u32, u32)>);

/// An operation that ranks wait in.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The ranks that wait in it, each with its part by number in the rank's log.
    pub(super) ranks: BTreeMap<u32, u32>,
    /// Ranks with a dump that the operation waits for.
    pub(super) lacks: Vec<u32>,
    /// Ranks without a dump that belong to it.
    pub(super) unseen: Vec<u32>,
}

/// All that ranks wait in.
pub(super) struct Waits {
    pub(super) ops: BTreeMap<Key, Waiting>,
    /// Ranks that are in no operation.
    pub(super) idle: BTreeSet<u32>,
}

/// What the waiting ends at.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// A rank in no operation.
    Idle(u32),
    /// A rank without a dump.
    Unseen(u32),
    /// An operation that waits for no rank.
    Stuck(Key),
    /// Ranks that wait for each other.
    Circle(Vec<u32>),
}

fn key(rank: u32, op: &Op) -> Key {
    let ends = op.message.map(|message| match message {
        MessageEnd::SendTo(peer) => (rank, peer),
        MessageEnd::ReceiveFrom(peer) => (peer, rank),
    });
    (op.group, op.sequence, ends)
}

/// Whether an operation runs, or ran until it timed out.
fn runs(op: &Op) -> bool {
    matches!(op.state, OpState::Started | OpState::Failed)
}

/// Whether a rank whose recorded operations have ended may be in a call that is not recorded: such calls came before the operation that
/// is expected next.
fn is_in_unrecorded(log: &Log) -> bool {
    let next = || expected(log, log.ops.len()).and_then(|next| log.unrecorded.get(next));
    !log.unrecorded.is_empty() && next().is_none_or(|count| *count > 0)
}

impl Waits {
    pub(super) fn new(lanes: &Lanes<'_>) -> Waits {
        let mut waits = Waits { ops: BTreeMap::new(), idle: BTreeSet::new() };
        let mut unrecorded = Vec::new();
        let running: BTreeSet<u32> = lanes
            .job
            .logs
            .iter()
            .filter(|(_, log)| log.ops.iter().any(runs))
            .map(|(rank, _)| *rank)
            .collect();
        for (rank, log) in &lanes.job.logs {
            let mut fronts = BTreeSet::new();
            let mut first = true;
            for (number, op) in (0..).zip(&log.ops).filter(|(_, op)| op.is_open()) {
                // A call that is not first in its group, or that waits behind the rank's own, is no wait for others.
                let behind = op.state == OpState::Called && running.contains(rank);
                if fronts.insert((op.group, op.message)) && (first || !behind) {
                    waits.ops.entry(key(*rank, op)).or_default().ranks.insert(*rank, number);
                }
                first = false;
            }
            match (fronts.is_empty(), is_in_unrecorded(log)) {
                (true, true) => unrecorded.push(*rank),
                (true, false) => drop(waits.idle.insert(*rank)),
                _ => {}
            }
        }
        let keys: Vec<Key> = waits.ops.keys().copied().collect();
        for key in keys {
            waits.fill(lanes, key, &running);
        }
        waits.unrecorded(lanes, &unrecorded);
        waits
    }

    /// Finds whom an operation waits for.
    fn fill(&mut self, lanes: &Lanes<'_>, key: Key, running: &BTreeSet<u32>) {
        let (group, sequence, ends) = key;
        let Some(waiting) = self.ops.get_mut(&key) else { return };
        let members = match ends {
            Some((from, to)) => vec![from, to],
            None => lanes.job.groups[group as usize].members.clone(),
        };
        let parts = || waiting.ranks.iter().filter_map(|(rank, number)| lanes.op(*rank, *number));
        let (ran, started) = (parts().any(runs), parts().any(|op| op.state == OpState::Started));
        for member in members {
            let Some(log) = lanes.log(member) else {
                if member != u32::MAX {
                    waiting.unseen.push(member);
                }
                continue;
            };
            let part = match ends {
                None => lanes.part(group, member, sequence),
                Some(_) => (0..)
                    .zip(&log.ops)
                    .find(|(_, op)| op.message.is_some() && self::key(member, op) == key)
                    .map(|(n, _)| n),
            };
            let overwritten = match ends {
                None => lanes.last(group, member).is_some_and(|last| last > sequence),
                Some(_) => sequence < FIRST_OPEN && !log.whole,
            };
            let elsewhere = started || running.contains(&member);
            match part.map(|number| &log.ops[number as usize]) {
                // It has called the operation, and waits elsewhere before it starts.
                Some(op) if ran && elsewhere && op.state == OpState::Called => waiting.lacks.push(member),
                Some(_) => {}
                None if overwritten => {}
                None => waiting.lacks.push(member),
            }
        }
    }

    /// Ranks in calls that are not recorded wait for ranks that are in no call, or else for ranks without a dump, or for any other.
    fn unrecorded(&mut self, lanes: &Lanes<'_>, ranks: &[u32]) {
        let (idle, unseen) = (self.idle.clone(), lanes.job.unseen().collect::<Vec<_>>());
        for (number, rank) in (0..).zip(ranks) {
            let waiting = self.ops.entry((u32::MAX, number, None)).or_default();
            waiting.ranks.insert(*rank, u32::MAX);
            match (idle.is_empty(), unseen.is_empty()) {
                (false, _) => waiting.lacks.extend(&idle),
                (true, false) => waiting.unseen.extend(&unseen),
                _ => waiting.lacks.extend(lanes.job.logs.keys().filter(|other| *other != rank)),
            }
        }
    }

    /// What the waiting ends at, each with the ranks that wait for it.
    pub(super) fn ends(&self) -> Vec<(End, BTreeSet<u32>)> {
        let mut ends = Vec::new();
        let mut into: BTreeMap<u32, Vec<Key>> = BTreeMap::new();
        for (key, waiting) in &self.ops {
            if waiting.lacks.is_empty() && waiting.unseen.is_empty() {
                ends.push(End::Stuck(*key));
            }
            // A rank with a dump that is missing is reason enough; one without a dump may have entered.
            let lacked = if waiting.lacks.is_empty() { &waiting.unseen } else { &waiting.lacks };
            lacked.iter().for_each(|rank| into.entry(*rank).or_default().push(*key));
        }
        let waiting: BTreeSet<u32> = self.ops.values().flat_map(|op| op.ranks.keys().copied()).collect();
        for rank in into.keys().filter(|rank| !waiting.contains(rank)) {
            ends.push(if self.idle.contains(rank) { End::Idle(*rank) } else { End::Unseen(*rank) });
        }
        let mut unexplained = waiting;
        let mut found = Vec::new();
        for end in ends {
            let first = match &end {
                End::Stuck(key) => vec![*key],
                End::Idle(rank) | End::Unseen(rank) => into[rank].clone(),
                End::Circle(_) => Vec::new(),
            };
            let reached = self.reached(first, &into);
            unexplained.retain(|rank| !reached.contains(rank));
            found.push((end, reached));
        }
        if !unexplained.is_empty() {
            let circle = self.circle(unexplained.clone());
            found.push((End::Circle(circle), unexplained));
        }
        found
    }

    /// The ranks that wait, directly or not, in these operations.
    fn reached(&self, mut ops: Vec<Key>, into: &BTreeMap<u32, Vec<Key>>) -> BTreeSet<u32> {
        let (mut ranks, mut seen) = (BTreeSet::new(), BTreeSet::new());
        while let Some(op) = ops.pop() {
            if !seen.insert(op) {
                continue;
            }
            for rank in self.ops[&op].ranks.keys().filter(|rank| ranks.insert(**rank)) {
                ops.extend(into.get(rank).into_iter().flatten());
            }
        }
        ranks
    }

    /// The ranks of a circle: those that others of them wait for.
    fn circle(&self, mut ranks: BTreeSet<u32>) -> Vec<u32> {
        loop {
            let within = |op: &&Waiting| op.ranks.keys().any(|rank| ranks.contains(rank));
            let awaited: BTreeSet<u32> =
                self.ops.values().filter(within).flat_map(|op| op.lacks.iter().copied()).collect();
            let kept: BTreeSet<u32> = ranks.intersection(&awaited).copied().collect();
            if kept.len() == ranks.len() || kept.is_empty() {
                return ranks.into_iter().collect();
            }
            ranks = kept;
        }
    }
}
