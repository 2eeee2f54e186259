//! Judging: the causes for which the ranks of a job wait, most likely first.
//!
//! Three kinds of evidence are weighed. Ranks that made different calls in one operation (`diverged`); whom the ranks wait for, followed
//! to its end (`waits`); and the order of a rank's earlier calls, which repeats in training, so that a call that breaks it is
//! suspicious (`order`).

mod diverged;
mod ends;
mod hung;
mod kinds;
mod lanes;
mod named;
mod order;
mod verdict;
mod waits;

pub(crate) use ends::{clocks_agree, recorded};
pub(crate) use lanes::Lanes;
pub(crate) use named::{of_group, ranks};
pub use verdict::{CauseKind, HangCause, Hung, Verdict};

use crate::model::{DumpedJob, Fact};
use diverged::Diverged;
use waits::Waits;

/// Finds the causes for which the ranks of a job wait.
pub fn judge(job: &DumpedJob) -> Verdict {
    let lanes = Lanes::new(job);
    let waits = Waits::new(&lanes);
    let (hung, why) = hung::hung(job, &waits);
    let breaks = order::lone_breaks(job);
    let found = diverged::diverged(&lanes, &breaks);
    let mut causes: Vec<HangCause> = found.iter().map(|found| of_calls(&lanes, &waits, found)).collect();
    causes.extend(lists(job, &waits));
    causes.extend(ends::causes(&lanes, &waits, &breaks));
    causes.extend(died(job, &causes));
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.weight));
    if hung == Hung::No {
        causes.clear();
    }
    let decided = decided(&causes);
    let mut unknown = if hung == Hung::No { Vec::new() } else { unknown(job, &causes) };
    if !decided && !causes.is_empty() {
        unknown.insert(0, apart(job, &causes));
    }
    Verdict { hung, why, causes, decided, unknown }
}

/// How much likelier than a cause that blames other ranks the first cause has to be.
const AHEAD: i64 = 40;

/// Whether the first cause is clearly the likeliest: nothing leaves its ranks open, and no cause that blames others is near.
fn decided(causes: &[HangCause]) -> bool {
    let Some((first, others)) = causes.split_first() else { return false };
    let rivals = others.iter().filter(|other| !other.ranks.iter().any(|rank| first.ranks.contains(rank)));
    let nearest = rivals.map(|rival| rival.weight).max().unwrap_or(0);
    !first.open && first.weight - nearest >= AHEAD
}

/// What would tell the candidates apart.
fn apart(job: &DumpedJob, causes: &[HangCause]) -> String {
    let unseen: Vec<u32> = job.unseen().collect();
    let many = causes[0].ranks.len() > 1;
    match (unseen.is_empty(), causes[0].kind) {
        (false, _) => format!(
            "which of them it is: a dump of {}, its exit code or its host's log would tell",
            ranks(&unseen)
        ),
        (true, CauseKind::Network) => {
            "which rank's GPU or network failed: `ncclras -f json`, or logs with NCCL_DEBUG=WARN, would tell".into()
        }
        (true, _) if many => "which of the ranks is wrong: records with stacks and more entries (TORCH_FR_BUFFER_SIZE) would tell".into(),
        _ => "which of them it is: records with more entries (TORCH_FR_BUFFER_SIZE) would tell".into(),
    }
}

/// The cause that ranks made different calls.
fn of_calls(lanes: &Lanes<'_>, waits: &Waits, found: &Diverged) -> HangCause {
    let job = lanes.job;
    let told = |(rank, number): (u32, u32)| lanes.op(rank, number).map(|op| job.told(op)).unwrap_or_default();
    let culprits: Vec<u32> = found.culprits.iter().map(|(rank, _)| *rank).collect();
    let list = ranks(&culprits);
    let (wrong, right) = (told(found.culprits[0]), told(found.right));
    let (sequence, group) = (found.sequence, of_group(job, found.group));
    let end = match found.kind {
        CauseKind::LeftOut => format!("; {list} left one call out"),
        CauseKind::Extra => format!("; {list} made one call more"),
        _ => String::new(),
    };
    let said = format!(
        "diverged at operation {sequence}{group}: {list} called {wrong}; rank {} called {right}{end}",
        found.right.0
    );
    let mut evidence = Vec::new();
    let mut against = Vec::new();
    match found.clear {
        true => evidence.push(format!("{list} broke the order of earlier calls, or differs from most ranks")),
        false => against.push(format!("it may be the other call that is wrong, of rank {}", found.right.0)),
    }
    let open = waits.ops.iter().any(|((group, _, _), op)| *group == found.group && !op.ranks.is_empty());
    if !open {
        against.push("no rank waits in this group".into());
    }
    let weight = 900 + if found.clear { 50 } else { 0 } - if open { 0 } else { 600 };
    let mut all = culprits;
    if !found.clear {
        all.push(found.right.0);
    }
    HangCause { kind: found.kind, ranks: all, said, evidence, against, open: !found.clear, weight }
}

/// The causes that ranks have different lists of a group's ranks.
fn lists(job: &DumpedJob, waits: &Waits) -> Vec<HangCause> {
    let groups = (0..).zip(&job.groups).filter(|(_, group)| !group.other_lists.is_empty());
    groups
        .map(|(number, group)| {
            let mut holders: Vec<u32> = group.other_lists.values().flatten().copied().collect();
            holders.sort_unstable();
            let other = group.other_lists.keys().next().cloned().unwrap_or_default();
            let only = |those: &[u32], here: &[u32], word: &str| {
                let only: Vec<u32> = those.iter().filter(|rank| !here.contains(rank)).copied().collect();
                if only.is_empty() { String::new() } else { format!(" {word} {}", ranks(&only)) }
            };
            let (without, with) =
                (only(&group.members, &other, "without"), only(&other, &group.members, "with"));
            let order = if without.is_empty() && with.is_empty() { " in another order" } else { "" };
            let said =
                format!("{} made {}{without}{with}{order}, unlike the others", ranks(&holders), group.name);
            let awaited = waits.ops.keys().any(|(group, _, _)| *group == number);
            let weight = if awaited { 980 } else { 200 };
            HangCause::new(CauseKind::GroupOfOtherRanks, holders, said, weight)
        })
        .collect()
}

/// The causes that only logs know: processes that ended or fell behind, though no dump shows that a rank waits for them.
fn died(job: &DumpedJob, known: &[HangCause]) -> Vec<HangCause> {
    let mut causes: Vec<HangCause> = Vec::new();
    for word in &job.words {
        let (kind, what, weight) = match word.fact {
            // The ranks that are in no operation have lost the connection to a rank that died.
            Fact::Died if word.rank.is_some_and(|rank| !job.logs.contains_key(&rank)) => {
                (CauseKind::Died, "ended", 860)
            }
            Fact::Died => (CauseKind::Died, "ended", 300),
            Fact::Aborted => (CauseKind::Died, "ended after an error that may be of another rank", 120),
            Fact::Unresponsive if job.logs.is_empty() => (CauseKind::NoDump, "does not answer", 280),
            Fact::Behind if job.logs.is_empty() => (CauseKind::Elsewhere, "is behind", 250),
            _ => continue,
        };
        let Some(rank) = word.rank else { continue };
        if known.iter().chain(&causes).any(|cause| cause.kind == kind && cause.ranks.contains(&rank)) {
            continue;
        }
        let said = format!("the process of rank {rank} {what}: {}", word.said);
        let open = word.fact == Fact::Aborted;
        causes.push(HangCause { open, ..HangCause::new(kind, vec![rank], said, weight) });
    }
    causes
}

/// What cannot be known, and what would tell.
fn unknown(job: &DumpedJob, causes: &[HangCause]) -> Vec<String> {
    let mut unknown = Vec::new();
    let unseen: Vec<u32> = job.unseen().collect();
    if let Some(cause) = causes.first()
        && matches!(cause.kind, CauseKind::NoDump | CauseKind::LostNode)
    {
        unknown.push(format!(
            "why {} left no dump: its exit code or its host's log would tell whether it died; `py-spy dump` on its process, what it does",
            ranks(&cause.ranks)
        ));
    }
    if causes.first().is_some_and(|cause| cause.kind == CauseKind::Elsewhere) {
        unknown.push(
            "what the rank does outside of collectives: `py-spy dump --pid PID` on its process tells".into(),
        );
    }
    if !unseen.is_empty() && causes.first().is_some_and(|cause| cause.kind != CauseKind::NoDump) {
        unknown.push(format!("what {} did: there is no dump of it", ranks(&unseen)));
    }
    if let Some(word) = job.words.iter().find(|word| {
        word.rank.is_none()
            && word.fact != Fact::Network
            && !job.words.iter().any(|other| other.rank.is_some() && other.fact == word.fact)
    }) {
        unknown.push(format!("of which rank a log speaks: {}", word.said));
    }
    if causes.is_empty() {
        unknown.push("which rank is late: dumps of PyTorch's flight recorder of all ranks would tell (TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1)".into());
    }
    if job.logs.values().any(|log| !log.whole) {
        unknown.push("what came before the oldest entries: a larger TORCH_FR_BUFFER_SIZE keeps more".into());
    }
    unknown
}
