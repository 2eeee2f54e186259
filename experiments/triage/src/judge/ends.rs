//! The causes at which the waiting ends.

use super::kinds::{differs, of_wanted};
use super::lanes::Lanes;
use super::named::{of_group, ranks};
use super::order::{Breaks, expected};
use super::verdict::{CauseKind, HangCause};
use super::waits::{End, Key, Waiting, Waits};
use crate::model::{DumpedJob, FIRST_OPEN, Fact, Log, Op, OpState};
use std::collections::{BTreeMap, BTreeSet};

/// The causes at which the waiting ends.
pub(super) fn causes(lanes: &Lanes<'_>, waits: &Waits, breaks: &Breaks) -> Vec<HangCause> {
    let ends = waits.ends();
    let mut causes = Vec::new();
    let mut unseen: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (end, waiting) in ends {
        match end {
            End::Idle(rank) => causes.push(idle(lanes, waits, rank, &waiting)),
            End::Unseen(rank) => drop(unseen.insert(rank, waiting)),
            End::Stuck(key) => causes.push(stuck(lanes, key, &waits.ops[&key])),
            End::Circle(circle) => causes.extend(around(lanes, waits, breaks, &circle)),
        }
    }
    causes.extend(idle_behind(lanes, waits, &unseen));
    causes.extend(uncounted(lanes.job));
    if !unseen.is_empty() {
        causes.extend(new_calls(lanes.job, waits));
    }
    let around: BTreeSet<u32> = causes.iter().flat_map(|cause| cause.ranks.clone()).collect();
    let strays = strays(lanes.job, waits, breaks);
    causes.extend(strays.into_iter().filter(|cause| !around.contains(&cause.ranks[0])));
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

/// The rank that alone made fewer calls that are not recorded before one of its last operations than before each like one.
fn uncounted(job: &DumpedJob) -> Option<HangCause> {
    let few = |(rank, log): (&u32, &Log)| {
        let (ops, counts) = (&log.ops, &log.unrecorded);
        (ops.len().saturating_sub(LAST).max(1)..counts.len()).find_map(|at| {
            let is_like = |other: &usize| {
                ops[*other].kind() == ops[at].kind() && ops[other - 1].kind() == ops[at - 1].kind()
            };
            let usual: BTreeSet<u64> = (1..at).filter(is_like).map(|other| counts[other]).collect();
            let usual = usual.first().copied().filter(|_| usual.len() == 1)?;
            (counts[at] < usual).then_some((*rank, counts[at], usual, job.told(&ops[at])))
        })
    };
    let mut found = job.logs.iter().filter_map(few);
    let (Some((rank, made, usual, what)), None) = (found.next(), found.next()) else { return None };
    let said = format!("rank {rank} left a send or a receive out before it called {what}");
    let counted = format!("its recorder counts {made} of them there, and {usual} before each like call");
    Some(cause(CauseKind::MissingSend, vec![rank], said, vec![counted], 880))
}

/// Waiting ranks that alone broke the order of their earlier calls.
fn strays(job: &DumpedJob, waits: &Waits, breaks: &Breaks) -> Vec<HangCause> {
    let waiting: BTreeSet<u32> = waits.ops.values().flat_map(|op| op.ranks.keys().copied()).collect();
    let one = |(rank, (at, wanted)): (&u32, &(usize, usize))| {
        let log = job.logs.get(rank).filter(|_| waiting.contains(rank))?;
        let (op, wanted) = (&log.ops[*at], &log.ops[*wanted]);
        let said = format!(
            "rank {rank} called {} where its earlier calls let expect {}",
            job.told(op),
            job.told(wanted)
        );
        Some(cause(of_wanted(op, wanted), vec![*rank], said, Vec::new(), 830))
    };
    breaks.iter().filter_map(one).collect()
}

/// Waiting ranks that made a call which no other rank made and that is new to them: what those without a dump called is not known.
fn new_calls(job: &DumpedJob, waits: &Waits) -> Vec<HangCause> {
    let mut found = Vec::new();
    let mut made: Vec<u32> = Vec::new();
    for op in job.logs.values().flat_map(|log| &log.ops) {
        made.resize(made.len().max(op.call as usize + 1), 0);
        made[op.call as usize] += 1;
    }
    for (rank, number) in waits.ops.values().flat_map(|op| &op.ranks) {
        let Some((log, op)) = job.logs.get(rank).and_then(|log| Some((log, log.ops.get(*number as usize)?)))
        else {
            continue;
        };
        if made[op.call as usize] != 1 {
            continue;
        }
        let Some(wanted) = expected(log, *number as usize).map(|at| &log.ops[at]) else { continue };
        let (Some(call), Some(usual)) = (job.calls.get(op.call), job.calls.get(wanted.call)) else {
            continue;
        };
        if op.message.is_none() && wanted.message.is_none() {
            let said = format!(
                "rank {rank} called {}, which no other rank did, where its earlier calls let expect {}",
                job.told(op),
                job.told(wanted)
            );
            found.push(cause(differs(call, usual), vec![*rank], said, Vec::new(), 790));
        }
    }
    found
}

/// Ranks in no operation, for which only ranks without a dump may wait.
fn idle_behind(lanes: &Lanes<'_>, waits: &Waits, unseen: &BTreeMap<u32, BTreeSet<u32>>) -> Vec<HangCause> {
    let awaited = |rank: &&u32| waits.ops.values().any(|op| op.lacks.contains(*rank));
    let waiting: BTreeSet<u32> = unseen.values().flatten().copied().collect();
    let alone = waits.idle.iter().filter(|rank| !unseen.is_empty() && !awaited(rank));
    let one = |rank: &u32| {
        let mut found = idle(lanes, waits, *rank, &waiting);
        found.said = format!("rank {rank} is in no operation, while others wait");
        let hidden: Vec<u32> = unseen.keys().copied().collect();
        found.evidence[0] = format!("{} left no dump, and may wait for it", ranks(&hidden));
        found
    };
    alone.map(one).collect()
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
        (group, Some(_)) if key.1 >= FIRST_OPEN => format!("{told}{}", of_group(job, group)),
        (group, Some(_)) => format!("{told}, message {}{}", key.1, of_group(job, group)),
    }
}

/// A cause with nothing against it.
fn cause(kind: CauseKind, ranks: Vec<u32>, said: String, evidence: Vec<String>, weight: i64) -> HangCause {
    HangCause { evidence, ..HangCause::new(kind, ranks, said, weight) }
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
            return vec![cause(CauseKind::LostNode, there, said, Vec::new(), 880)];
        }
    }
    // The operations in which ranks wait for each of them and for no rank with a dump: a rank alone in one is more suspicious.
    let direct = |rank: &u32| {
        let ops = waits.ops.values().filter(|op| op.lacks.is_empty() && op.unseen.contains(rank));
        ops.map(|op| 60 / op.unseen.len() as i64).sum::<i64>()
    };
    let (recorded, alone) = (recorded(job), job.unseen().count() == 1);
    let recorded = |rank: &u32| recorded.get(rank).into_iter().flatten();
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
        evidence
            .extend(recorded(rank).map(|(by, error)| format!("rank {by} recorded of rank {rank}: {error}")));
        let kind = if dead { CauseKind::Died } else { CauseKind::NoDump };
        let said = match kind {
            CauseKind::Died => format!("rank {rank} died, and others wait for it in {what}"),
            _ => format!("rank {rank} left no dump, and others wait for it in {what}"),
        };
        let named = if dead || recorded(rank).next().is_some() { 100 } else { 0 };
        // A rank without a dump may wait as well for another one without a dump.
        let more = !alone && named == 0;
        let weight = 500 + share(job, waiting.len()) + direct(rank).min(99) + 2 * named;
        let mut found = cause(kind, vec![*rank], said, evidence, weight);
        found.open = more;
        found.against.extend(more.then(|| "another rank without a dump may be the cause as well".into()));
        found
    };
    unseen.iter().map(one).collect()
}

/// What ranks' errors say of other ranks of the job: of each rank, who says what.
pub(crate) fn recorded(job: &DumpedJob) -> BTreeMap<u32, Vec<(u32, &str)>> {
    let mut found: BTreeMap<u32, Vec<(u32, &str)>> = BTreeMap::new();
    for (by, log) in &job.logs {
        // Ranks of another group than the world have other numbers in its errors.
        let world = |number: &u32| {
            log.ops.get(*number as usize).is_some_and(|op| job.groups[op.group as usize].name.is_empty())
        };
        let errors = log.errors.iter().filter(|(number, _)| world(number)).map(|(_, error)| &**error);
        for error in errors.chain([&*log.reason]) {
            let missing: BTreeSet<u32> = names_missing(error).into_iter().collect();
            missing.into_iter().for_each(|rank| found.entry(rank).or_default().push((*by, error)));
        }
    }
    found
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
    let failed = |part: &Op| part.state == OpState::Failed;
    // Of a recorder that writes no time-out, the others' failure is the sign.
    let least = if limit > 0 { limit / 10 * 9 } else { UNSAID };
    // A recorder without events says of no operation that it failed; what began after the time-out has failed on the first rank.
    let over = |after: i64| parts().any(|(_, part)| failed(part)) || (limit > 0 && after >= limit);
    if let Some((late, part)) = last
        && (!common.is_empty() || clocks_agree(job, &open))
        && called(late, part) - first >= least
        && (limit > 0 || !failed(part))
        && over(called(late, part) - first)
    {
        let after = (called(late, part) - first) as f64 / 1e9;
        let limit = if limit > 0 { format!(" is {:.1} s", limit as f64 / 1e9) } else { " was over".into() };
        let said = format!(
            "rank {late} entered {what} {after:.1} s after the first rank, and the time-out{limit}: it is too short"
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
    let weight = if blamed.is_empty() { 450 } else { 810 };
    let is_open = blamed.len() != 1;
    let mut found =
        cause(CauseKind::Network, if blamed.is_empty() { open } else { blamed }, said, evidence, weight);
    found.open = is_open;
    found
}

/// How many of a rank's last operations may follow a message that was left out: not all wait for the other ranks.
const LAST: usize = 4;
/// Nanoseconds that a rank has to be late by if no time-out is known.
const UNSAID: i64 = 5_000_000_000;
/// Nanoseconds between the first and the last dump of hosts whose clocks agree.
const TOGETHER: i64 = 300_000_000_000;

/// Whether dumps were written at about the same time by their hosts' clocks.
pub(crate) fn clocks_agree(job: &DumpedJob, ranks: &[u32]) -> bool {
    let written = || ranks.iter().filter_map(|rank| Some(job.logs.get(rank)?.written));
    let (first, last) = (written().min().unwrap_or(0), written().max().unwrap_or(0));
    first > 0 && last - first <= TOGETHER
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
fn around(lanes: &Lanes<'_>, waits: &Waits, breaks: &Breaks, circle: &[u32]) -> Vec<HangCause> {
    let job = lanes.job;
    let part = |rank: &u32| {
        waits.ops.values().find_map(|op| op.ranks.get(rank)).copied().filter(|number| *number != u32::MAX)
    };
    let parts: Vec<(u32, u32)> = circle.iter().filter_map(|rank| Some((*rank, part(rank)?))).collect();
    let off: Vec<_> = parts.iter().filter(|(rank, _)| breaks.contains_key(rank)).collect();
    let clear = off.len() == 1;
    // Without a pattern, the rank that most others wait for is the likeliest.
    let awaited = |rank: u32| {
        waits.ops.values().filter(|op| op.lacks.contains(&rank)).map(|op| op.ranks.len()).sum::<usize>()
    };
    let suspects: Vec<_> = if off.is_empty() { parts.iter().collect() } else { off };
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
        let mut found = cause(CauseKind::MissingSend, circle.to_vec(), said, Vec::new(), 550);
        found.open = true;
        return vec![found];
    }
    let one = |(rank, number): &(u32, u32)| {
        let log = &job.logs[rank];
        let broken = breaks.get(rank).copied();
        let op = &log.ops[broken.map_or(*number as usize, |(at, _)| at)];
        let wanted = broken.map(|(_, wanted)| &log.ops[wanted]);
        let kind = wanted.map_or_else(|| by_peers(lanes, waits, *rank), |wanted| of_wanted(op, wanted));
        let by = wanted.map_or(String::new(), |wanted| {
            format!(" where its earlier calls let expect {}", job.told(wanted))
        });
        let said = format!("{} wait for each other: rank {rank} called {}{by}", ranks(circle), job.told(op));
        let weight = 650 + if clear { 200 } else { 0 } + awaited(*rank).min(99) as i64;
        let mut found = cause(kind, vec![*rank], said, told.clone(), weight);
        found.open = !clear;
        found
    };
    suspects.into_iter().map(one).collect()
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
