//! Whether a schedule kept the contract: no rank hung, no result was wrong, and every error named a culprit of a fault rule.

use super::case::FaultCase;
use super::ended::Ended;
use allfold_collectives::{Error, Rank, Report};
use allfold_sim::fault::Rule;
use std::collections::BTreeMap;

/// The outcome of one fault schedule.
#[derive(Clone, Debug)]
pub struct FaultVerdict {
    /// The seed, which is the case's number.
    pub seed: u64,
    /// The schedule in words.
    pub case: String,
    /// The kinds of the schedule's rules.
    pub kinds: Vec<String>,
    /// The outcome on every rank, one line each.
    pub ranks: Vec<String>,
    /// A rank ended with an error, and every error names the culprit.
    pub attributed: bool,
    /// Whether the run did not end.
    pub hung: bool,
    /// A rank has a wrong result and no error.
    pub wrong: bool,
    /// An error names a culprit that no fault rule explains, or names none.
    pub misattributed: bool,
    /// A hash of all messages with their times.
    pub event_hash: u64,
}

impl FaultVerdict {
    /// The verdict on a run that did not end.
    pub(super) fn hung(case: &FaultCase) -> FaultVerdict {
        let (ranks, kinds) = (Vec::new(), kinds(case));
        FaultVerdict {
            seed: case.seed,
            case: case.to_string(),
            kinds,
            ranks,
            attributed: false,
            hung: true,
            wrong: false,
            misattributed: false,
            event_hash: 0,
        }
    }

    /// Whether the run kept the contract: on every rank a right result, or an error that names the culprit.
    pub fn holds(&self) -> bool {
        !(self.hung || self.wrong || self.misattributed)
    }

    /// The command that runs this schedule again.
    pub fn replay(&self) -> String {
        format!("allfold faults --only {}", self.seed)
    }
}

fn kinds(case: &FaultCase) -> Vec<String> {
    let kind = |rule: &Rule| rule.to_string().split('=').next().unwrap_or_default().to_string();
    case.rules.iter().map(kind).collect()
}

/// Compares the outcomes of the ranks with the contract.
pub(super) fn judge(case: &FaultCase, report: Report<Vec<Ended>, Error>) -> FaultVerdict {
    let mut verdict = FaultVerdict { hung: false, ..FaultVerdict::hung(case) };
    verdict.event_hash = report.event_hash.unwrap_or_default();
    let mut errors = false;
    for (rank, ended) in (0u32..).zip(report.ranks) {
        let ended = ended.unwrap_or_else(|error| vec![Ended::Told(error)]);
        let words = ended.iter().map(|ended| match ended {
            Ended::Right => "right".to_string(),
            Ended::Wrong => {
                verdict.wrong = true;
                "WRONG".into()
            }
            Ended::Told(error) => {
                errors = true;
                let named = case.rules.iter().any(|rule| names(rule, error));
                verdict.misattributed |= !named;
                format!("{}{error}", if named { "" } else { "UNNAMED " })
            }
        });
        verdict.ranks.push(format!("rank {rank}: {}", words.collect::<Vec<_>>().join(", then ")));
    }
    verdict.attributed = errors && !verdict.misattributed;
    verdict
}

/// Whether an error names a culprit that the rule explains.
fn names(rule: &Rule, error: &Error) -> bool {
    match error {
        Error::PeerLost { rank, .. } => matches!(rule, Rule::DeadRank { rank: dead, .. } if dead == rank),
        // After a lost frame, the next frame on its channel does not match what the receiver expects.
        Error::Protocol { rank, peer, what, .. } => match rule {
            Rule::Corrupt { pair, .. } => pair.has(*peer, *rank) && what.contains("checksum"),
            Rule::Drop { pair, .. } => pair.has(*peer, *rank) && what.contains("of round"),
            _ => false,
        },
        Error::DeadlineExceeded { rank, waiting_on, .. } => match waiting_on[..] {
            [culprit] => parts(rule, culprit, *rank),
            _ => false,
        },
        _ => false,
    }
}

/// Whether a rule can keep a message from one rank to another from arriving.
fn parts(rule: &Rule, from: Rank, to: Rank) -> bool {
    match rule {
        Rule::Drop { pair, .. } | Rule::Cut { pair, .. } => pair.has(from, to),
        Rule::Partition { sides, .. } => {
            let side = |rank| sides.iter().position(|side| side.has(rank));
            side(from).zip(side(to)).is_some_and(|(from, to)| from != to)
        }
        _ => false,
    }
}

/// The sum over many schedules.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The number of schedules that were run.
    pub schedules: u64,
    /// The number of faults that the schedules injected.
    pub injected: u64,
    /// Schedules in which every rank had the right results.
    pub right: u64,
    /// Fault schedules in which a rank ended with an error, and every error names the culprit.
    pub attributed: u64,
    /// Schedules that did not end.
    pub hangs: u64,
    /// Schedules with a wrong result.
    pub wrong: u64,
    /// Fault schedules with an error that names no culprit or a wrong one.
    pub misattributed: u64,
    /// For each kind of fault: how many were injected, and how many of these in schedules in which a rank got an error.
    pub kinds: BTreeMap<String, (u64, u64)>,
}

impl Tally {
    /// Adds the outcome of one schedule.
    pub fn add(&mut self, verdict: &FaultVerdict) {
        self.schedules += 1;
        self.injected += verdict.kinds.len() as u64;
        self.right += u64::from(verdict.holds() && !verdict.attributed);
        self.attributed += u64::from(verdict.attributed);
        self.hangs += u64::from(verdict.hung);
        self.wrong += u64::from(verdict.wrong);
        self.misattributed += u64::from(verdict.misattributed);
        for kind in &verdict.kinds {
            let (count, attributed) = self.kinds.entry(kind.clone()).or_default();
            *count += 1;
            *attributed += u64::from(verdict.attributed || verdict.misattributed);
        }
    }
}
