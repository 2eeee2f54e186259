//! The causes at which the waiting ends.

use super::lanes::{Lanes, broke, expected};
use super::named::{of_group, ranks};
use super::verdict::{CauseKind, HangCause};
use super::waits::{End, Key, Waiting, Waits};
use crate::model::{DumpedJob, Fact, MessageEnd, Op, OpState};
use std::collections::{BTreeMap, BTreeSet};

/// The causes at which the waiting ends.
pub(super) fn causes(lanes: &Lanes<'_>, waits: &Waits) -> Vec<HangCause> {
    let ends = waits.ends();
    let mut causes = Vec::new();
    let mut unseen: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (end, waiting) in ends {
        match end {
            End::Idle(rank) => causes.push(idle(lanes, waits, rank, &waiting)),
            End::Unseen(rank) => drop(unseen.insert(rank, waiting)),
            End::Stuck(key) => causes.push(stuck(lanes, key, &waits.ops[&key])),
            End::Circle(circle) => causes.extend(around(lanes, waits, &circle)),
        }
    }
    let around: BTreeSet<u32> = causes.iter().flat_map(|cause| cause.ranks.clone()).collect();
    if !causes.iter().any(|cause| cause.weight >= 700) {
        causes.extend(strays(lanes, waits).into_iter().filter(|cause| !around.contains(&cause.ranks[0])));
    }
    for (key, op) in
        waits.ops.iter().filter(|(key, op)| key.0 != u32::MAX && op.lacks.is_empty() && !op.unseen.is_empty())
    {
        // Whether ranks without a dump entered the operation is not known: what shows on the others counts.
        let found = stuck(lanes, *key, op);
        causes.extend(
            Some(found).filter(|found| found.kind == CauseKind::ShortTimeout || !found.evidence.is_empty()),
        );
    }
    causes.extend(without_dump(lanes.job, waits, &unseen));
    causes
}

/// Waiting ranks that broke the order of their earlier calls, if most waiting ranks did not.
fn strays(lanes: &Lanes<'_>, waits: &Waits) -> Vec<HangCause> {
    let job = lanes.job;
    let waiting: BTreeSet<u32> = waits.ops.values().flat_map(|op| op.ranks.keys().copied()).collect();
    let broken = waiting.iter().filter_map(|rank| Some((*rank, broke(&job.logs[rank])?)));
    let broken: Vec<(u32, (usize, usize))> = broken.collect();
    if 2 * broken.len() >= waiting.len() {
        return Vec::new();
    }
    let one = |(rank, (at, wanted)): (u32, (usize, usize))| {
        let (op, wanted) = (&job.logs[&rank].ops[at], &job.logs[&rank].ops[wanted]);
        let said = format!(
            "rank {rank} called {} where its earlier calls let expect {}",
            job.told(op),
            job.told(wanted)
        );
        cause(of_wanted(op, wanted), vec![rank], said, Vec::new(), 805)
    };
    broken.into_iter().map(one).collect()
}

/// An operation that lacks a rank, with one of the ranks that wait in it. Operations of few ranks say most.
fn lacking(waits: &Waits, rank: u32) -> Option<(&Key, &Waiting)> {
    let lacks =
        |op: &&Waiting| op.lacks.contains(&rank) || (op.lacks.is_empty() && op.unseen.contains(&rank));
    waits
        .ops
        .iter()
        .filter(|(_, op)| lacks(op))
        .min_by_key(|(_, op)| op.lacks.len() + op.unseen.len() + op.ranks.len())
}

/// An operation in words: `operation 41 of dp, all_reduce(10 x Float) at train.py:12`.
fn operation(job: &DumpedJob, key: &Key, op: &Waiting) -> String {
    let part = op.ranks.iter().find_map(|(rank, number)| job.logs.get(rank)?.ops.get(*number as usize));
    let told = part.map_or("a call that their recorder does not record".into(), |part| job.told(part));
    match (key.0, key.2) {
        (u32::MAX, _) => told,
        (group, None) => format!("operation {}{}, {told}", key.1, of_group(job, group)),
        (group, Some(_)) => format!("{told}, message {}{}", key.1, of_group(job, group)),
    }
}

/// A cause with nothing against it.
fn cause(kind: CauseKind, ranks: Vec<u32>, said: String, evidence: Vec<String>, weight: i64) -> HangCause {
    HangCause { kind, ranks, said, evidence, against: Vec::new(), weight }
}

/// What logs say of a rank.
fn words(job: &DumpedJob, rank: u32) -> impl Iterator<Item = (Fact, &str)> {
    job.words.iter().filter(move |word| word.rank == Some(rank)).map(|word| (word.fact, &*word.said))
}

/// A rank in no operation, for which others wait.
fn idle(lanes: &Lanes<'_>, waits: &Waits, rank: u32, waiting: &BTreeSet<u32>) -> HangCause {
    let job = lanes.job;
    let log = &job.logs[&rank];
    let awaited = lacking(waits, rank);
    let what = awaited.map_or(String::new(), |(key, op)| operation(job, key, op));
    let mut evidence = Vec::new();
    let wait: Vec<u32> = waiting.iter().copied().collect();
    evidence.push(format!(
        "{} for it, directly or not",
        if wait.len() == 1 { format!("rank {} waits", wait[0]) } else { format!("{} wait", ranks(&wait)) }
    ));
    if let Some(last) = log.ops.last() {
        evidence.push(format!("its last call, {}, has ended", job.told(last)));
    }
    if let Some(next) = expected(log, log.ops.len()) {
        evidence.push(format!("by its earlier calls it would call next: {}", job.told(&log.ops[next])));
    }
    evidence.extend(words(job, rank).map(|(_, said)| format!("a log says: {said}")));
    let dead = words(job, rank).any(|(fact, _)| fact == Fact::Died);
    let kind = match () {
        () if dead => CauseKind::Died,
        () if log.ops.is_empty() => CauseKind::LateStart,
        () if !log.errors.is_empty() => CauseKind::Failed,
        () => CauseKind::Elsewhere,
    };
    let said = match kind {
        CauseKind::Died => format!("rank {rank} died, and never entered {what}"),
        CauseKind::LateStart => format!("rank {rank} never entered {what}: it has begun no operation at all"),
        _ if matches!(awaited, Some(((_, _, Some(_)), _))) => {
            format!("rank {rank} never entered {what}: it is in no operation")
        }
        _ => format!("rank {rank} never entered {what}"),
    };
    cause(kind, vec![rank], said, evidence, 700 + share(job, waiting.len()) + if dead { 100 } else { 0 })
}

/// How much of the job waits, from 0 to 100.
fn share(job: &DumpedJob, waiting: usize) -> i64 {
    (100 * waiting / job.logs.len().max(1)) as i64
}

/// Ranks without a dump, for which others wait.
fn without_dump(job: &DumpedJob, waits: &Waits, unseen: &BTreeMap<u32, BTreeSet<u32>>) -> Vec<HangCause> {
    for rank in unseen.keys() {
        let Some(host) = job.hosts.get(rank) else { continue };
        let there: Vec<u32> = job.unseen().filter(|other| job.hosts.get(other) == Some(host)).collect();
        if there.len() > 1 && !job.logs.keys().any(|other| job.hosts.get(other) == Some(host)) {
            let said = format!(
                "{} of host {host} left no dump: the host is lost, or its processes are",
                ranks(&there)
            );
            return vec![cause(CauseKind::LostNode, there, said, Vec::new(), 780)];
        }
    }
    // The operations in which ranks wait for each of them and for no rank with a dump: a rank alone in one is more suspicious.
    let direct = |rank: &u32| {
        let ops = waits.ops.values().filter(|op| op.lacks.is_empty() && op.unseen.contains(rank));
        ops.map(|op| 60 / op.unseen.len() as i64).sum::<i64>()
    };
    let tied = |rank: &u32| {
        unseen
            .iter()
            .filter(|(other, waiting)| *waiting == &unseen[rank] && direct(other) == direct(rank))
            .count()
            > 1
    };
    let one = |(rank, waiting): (&u32, &BTreeSet<u32>)| {
        let what = lacking(waits, *rank).map_or(String::new(), |(key, op)| operation(job, key, op));
        let said_of = words(job, *rank).collect::<Vec<_>>();
        let dead = said_of.iter().any(|(fact, _)| *fact == Fact::Died);
        let wait: Vec<u32> = waiting.iter().copied().collect();
        let mut evidence = vec![format!(
            "{} wait for it in operations that all ranks with a dump have entered",
            ranks(&wait)
        )];
        evidence.extend(said_of.iter().map(|(_, said)| format!("a log says: {said}")));
        evidence.extend(
            recorded(job, *rank).map(|(by, error)| format!("rank {by} recorded of rank {rank}: {error}")),
        );
        let kind = if dead { CauseKind::Died } else { CauseKind::NoDump };
        let said = match kind {
            CauseKind::Died => format!("rank {rank} died, and others wait for it in {what}"),
            _ => format!("rank {rank} left no dump, and others wait for it in {what}"),
        };
        let named = if dead || recorded(job, *rank).next().is_some() { 100 } else { 0 };
        let weight =
            600 + share(job, waiting.len()) + direct(rank).min(99) + named - if tied(rank) { 10 } else { 0 };
        let mut found = cause(kind, vec![*rank], said, evidence, weight);
        if tied(rank) && named == 0 {
            found.against.push("another rank without a dump fits as well".into());
        }
        found
    };
    unseen.iter().map(one).collect()
}

/// What other ranks' errors say of a rank of the job.
pub(crate) fn recorded(job: &DumpedJob, rank: u32) -> impl Iterator<Item = (u32, &str)> {
    job.logs.iter().flat_map(move |(by, log)| {
        // Ranks of another group than the world have other numbers in its errors.
        let world = |number: &u32| {
            log.ops.get(*number as usize).is_some_and(|op| job.groups[op.group as usize].name.is_empty())
        };
        let errors = log.errors.iter().filter(move |(number, _)| world(number)).map(|(_, error)| &**error);
        errors
            .chain([&*log.reason])
            .filter(move |error| names_missing(error).contains(&rank))
            .map(|error| (*by, error))
    })
}

/// The ranks that an error of Allfold names as missing: that never entered an operation, or were lost.
fn names_missing(error: &str) -> Vec<u32> {
    let list = match error.strip_suffix(" never entered it") {
        Some(before) => before.rsplit_once(": ").map(|(_, ranks)| ranks),
        None => error.split_once(" is lost: it ").map(|(rank, _)| rank.split(" (").next().unwrap_or(rank)),
    };
    let numbers = list.and_then(|list| list.strip_prefix("ranks ").or_else(|| list.strip_prefix("rank ")));
    numbers.into_iter().flat_map(|numbers| numbers.split(", ")).flat_map(str::parse).collect()
}

/// An operation that all of its ranks have entered, and that does not end.
fn stuck(lanes: &Lanes<'_>, key: Key, op: &Waiting) -> HangCause {
    let job = lanes.job;
    let open: Vec<u32> = op.ranks.keys().copied().collect();
    let parts = || op.ranks.iter().filter_map(|(rank, number)| Some((*rank, lanes.op(*rank, *number)?)));
    let what = operation(job, &key, op);
    let common = common(lanes, key.0, key.1, &open);
    // Clocks of hosts may differ by hours: times count from the latest operation that ended on all of these ranks.
    let called = |rank: u32, part: &Op| part.called - common.get(&rank).copied().unwrap_or(0);
    let first = parts().map(|(rank, part)| called(rank, part)).min().unwrap_or(0);
    let last = parts().max_by_key(|(rank, part)| called(*rank, part));
    let limit = parts().map(|(_, part)| i64::from(part.limit_ms) * 1_000_000).max().unwrap_or(0);
    if let Some((late, part)) = last
        && limit > 0
        && called(late, part) - first >= limit / 10 * 9
        && parts().any(|(_, part)| part.state == OpState::Failed)
    {
        let (after, limit) = ((called(late, part) - first) as f64 / 1e9, limit as f64 / 1e9);
        let said = format!(
            "rank {late} entered {what} {after:.1} s after the first rank, and the time-out is {limit:.1} s: it is too short"
        );
        return cause(CauseKind::ShortTimeout, vec![late], said, Vec::new(), 850);
    }
    let mut errors: Vec<(u32, &String)> = op
        .ranks
        .iter()
        .filter_map(|(rank, number)| Some((*rank, job.logs.get(rank)?.errors.get(number)?)))
        .collect();
    errors.sort_by_key(|(_, error)| error_distance(error));
    let quote = errors.first().map_or(String::new(), |(rank, error)| format!("; rank {rank} says: {error}"));
    let blamed: Vec<u32> = open
        .iter()
        .copied()
        .filter(|rank| words(job, *rank).any(|(fact, _)| fact == Fact::Network))
        .collect();
    let evidence = blamed
        .iter()
        .flat_map(|rank| words(job, *rank))
        .map(|(_, said)| format!("a log says: {said}"))
        .collect();
    let said = format!(
        "{} did not finish {what}{quote}: all of its ranks entered it, so a GPU or the network failed",
        ranks(&open)
    );
    let said = if quote.is_empty() {
        said
    } else {
        said.split(": all of its ranks").next().unwrap_or(&said).to_string()
    };
    let weight = if blamed.is_empty() { 500 } else { 810 };
    cause(CauseKind::Network, if blamed.is_empty() { open } else { blamed }, said, evidence, weight)
}

/// When the latest operation before this one ended on each of the ranks; empty if there is none.
fn common(lanes: &Lanes<'_>, group: u32, sequence: u64, ranks: &[u32]) -> BTreeMap<u32, i64> {
    let ended = |before: u64| {
        let end = |rank: &u32| {
            let op = lanes.op(*rank, lanes.part(group, *rank, before)?)?;
            (op.ended > 0).then_some((*rank, op.ended))
        };
        ranks.iter().map(end).collect::<Option<BTreeMap<u32, i64>>>()
    };
    (1..=16).filter_map(|back| ended(sequence.checked_sub(back)?)).next().unwrap_or_default()
}

/// How far an error is from the cause: the later it comes, the less it says of a missing rank.
fn error_distance(error: &str) -> u8 {
    match () {
        () if !names_missing(error).is_empty() => 0,
        () if error.starts_with("this communicator has failed before: ") => 3,
        () if error.starts_with("deadline of ") => 2,
        () => 1,
    }
}

/// Ranks that wait for each other: who of them broke the order of its earlier calls.
fn around(lanes: &Lanes<'_>, waits: &Waits, circle: &[u32]) -> Vec<HangCause> {
    let job = lanes.job;
    let part = |rank: &u32| {
        waits.ops.values().find_map(|op| op.ranks.get(rank)).copied().filter(|number| *number != u32::MAX)
    };
    let parts: Vec<(u32, u32)> = circle.iter().filter_map(|rank| Some((*rank, part(rank)?))).collect();
    let off: Vec<_> = parts.iter().filter(|(rank, _)| broke(&job.logs[rank]).is_some()).collect();
    let clear = !off.is_empty() && off.len() < parts.len();
    // Without a pattern, the rank that most others wait for is the likeliest.
    let awaited = |rank: u32| {
        waits.ops.values().filter(|op| op.lacks.contains(&rank)).map(|op| op.ranks.len()).sum::<usize>()
    };
    let suspects: Vec<_> = if clear { off } else { parts.iter().collect() };
    let told: Vec<String> = parts
        .iter()
        .take(8)
        .filter_map(|(rank, number)| {
            Some(format!("rank {rank} waits in {}", job.told(lanes.op(*rank, *number)?)))
        })
        .collect();
    if suspects.is_empty() {
        let said = format!(
            "{} wait for each other, in calls that their recorder does not record: a send or a receive is missing",
            ranks(circle)
        );
        return vec![cause(CauseKind::MissingSend, circle.to_vec(), said, Vec::new(), 550)];
    }
    let one = |(rank, number): &(u32, u32)| {
        let log = &job.logs[rank];
        let broken = broke(log);
        let op = &log.ops[broken.map_or(*number as usize, |(at, _)| at)];
        let wanted = broken.map(|(_, wanted)| &log.ops[wanted]);
        let kind = wanted.map_or_else(|| by_peers(lanes, waits, *rank), |wanted| of_wanted(op, wanted));
        let by = wanted.map_or(String::new(), |wanted| {
            format!(" where its earlier calls let expect {}", job.told(wanted))
        });
        let said = format!("{} wait for each other: rank {rank} called {}{by}", ranks(circle), job.told(op));
        let weight = 650 + if clear { 200 } else { 0 } + awaited(*rank).min(99) as i64;
        cause(kind, vec![*rank], said, told.clone(), weight)
    };
    suspects.into_iter().map(one).collect()
}

/// What it means that a rank called `op` where `wanted` was expected.
fn of_wanted(op: &Op, wanted: &Op) -> CauseKind {
    match wanted.message {
        Some(MessageEnd::SendTo(_)) => CauseKind::MissingSend,
        Some(MessageEnd::ReceiveFrom(_)) => CauseKind::MissingReceive,
        None if wanted.group != op.group => CauseKind::Order,
        None => CauseKind::LeftOut,
    }
}

/// What others wait for, if it is a message of this rank.
fn by_peers(lanes: &Lanes<'_>, waits: &Waits, rank: u32) -> CauseKind {
    let awaited = waits.ops.iter().filter(|(_, op)| op.lacks.contains(&rank));
    let message = awaited.filter_map(|((.., ends), _)| *ends).next();
    match message {
        Some((from, _)) if from == rank => CauseKind::MissingSend,
        Some(_) => CauseKind::MissingReceive,
        None if lanes.job.groups.len() > 1 => CauseKind::Order,
        None => CauseKind::LeftOut,
    }
}
