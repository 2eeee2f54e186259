//! Seeded hangs: jobs with a known fault, the dumps that their ranks would leave, and whether the triage of these dumps is right.
//!
//! A case is a job (`jobs`) whose ranks run their programs on a clock (`run`) until nothing moves. The fault changes the program of
//! one rank. Dumps are rendered as PyTorch's flight recorder writes them, and read back by the reader of real dumps. A folder that holds
//! the dumps of a real job and its [`Truth`] is a case, too.

mod dice;
mod jobs;
mod render;
mod run;

use crate::judge::{CauseKind, Hung, Verdict, judge};
use crate::model::DumpedJob;
use crate::read::{DumpReader, folder_files};
use crate::slow::straggler;
use allfold_base::hash::splitmix;
use allfold_base::{Rank, read_at_most};
use dice::Dice;
use serde::{Deserialize, Serialize};
use std::path::Path;

pub use jobs::Fault;
pub use render::RankFiles;

/// Which dumps are withheld.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Withheld {
    /// None that the fault does not cost.
    None,
    /// That of the rank with the fault.
    Culprit,
    /// That of a random other rank.
    Random,
    /// Those of half of the ranks.
    Half,
}

impl Withheld {
    /// All of them.
    pub const ALL: [Withheld; 4] = [Withheld::None, Withheld::Culprit, Withheld::Random, Withheld::Half];

    /// Its name in records.
    pub fn name(self) -> &'static str {
        ["none", "culprit", "random", "half"][self as usize]
    }
}

/// A case: a job with a fault.
#[derive(Clone, Debug)]
pub struct SeededCase {
    /// The job, and what ran it: `ddp, modelled` or `ddp, gloo`.
    pub job: String,
    /// The number of ranks.
    pub ranks: u32,
    /// The fault.
    pub fault: Fault,
    /// The rank with the fault; the first of them if it is a host.
    pub rank: u32,
    /// What the ranks leave.
    pub files: RankFiles,
}

/// What is true of a case, as the file [`Truth::FILE`] beside its dumps says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truth {
    /// The job, and what ran it.
    pub job: String,
    /// The number of ranks.
    pub ranks: u32,
    /// The fault, by [`Fault::name`].
    pub fault: String,
    /// The rank with the fault.
    pub rank: u32,
}

impl Truth {
    /// The name of the file.
    pub const FILE: &str = "truth.json";
}

/// How a verdict compares with the truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseScore {
    /// The cause and the rank were named first; a healthy job was called healthy.
    pub first: bool,
    /// They were among the first two.
    pub second: bool,
    /// A healthy rank was named first.
    pub wrong: bool,
    /// No cause was named.
    pub undecided: bool,
    /// The first line of the verdict.
    pub said: String,
}

impl SeededCase {
    /// The case of a seed and a number: faults take turns, everything else is drawn.
    pub fn drawn(seed: u64, number: u64) -> SeededCase {
        let mut dice = Dice::new(splitmix(seed) ^ splitmix(!number));
        let fault = Fault::ALL[(number % Fault::ALL.len() as u64) as usize];
        let job = jobs::job(&mut dice, fault);
        let rank = job.faulty(&mut dice, fault);
        let ran = run::run(&job, fault, rank, &mut dice);
        let files = render::files(&job, fault, rank, &ran, &mut dice);
        SeededCase { job: format!("{}, modelled", job.name), ranks: job.ranks, fault, rank, files }
    }

    /// The case in a folder: dumps, other files, and the truth.
    ///
    /// # Errors
    /// A file cannot be read, or the truth names no fault or no rank of the job.
    pub fn kept(folder: &Path) -> Result<SeededCase, String> {
        let path = folder.join(Truth::FILE);
        let told = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let text = read_at_most(&path, 1 << 16, "the truth of a case").map_err(|error| told(&error))?;
        let Truth { job, ranks, fault, rank } =
            serde_json::from_slice(&text).map_err(|error| told(&error))?;
        let known = Fault::ALL.iter().copied().find(|known| known.name() == fault);
        let fault = known.ok_or_else(|| told(&format!("knows no fault {fault:?}")))?;
        if rank >= ranks || ranks > Rank::MOST {
            return Err(told(&format!("names rank {rank} of {ranks}; a job has 1 to {} ranks", Rank::MOST)));
        }
        let mut files = folder_files(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        files.retain(|(name, ..)| name != Truth::FILE);
        Ok(SeededCase { job, ranks, fault, rank, files })
    }

    /// What is true of the case, as [`Truth::FILE`] holds it.
    pub fn truth(&self) -> Truth {
        Truth { job: self.job.clone(), ranks: self.ranks, fault: self.fault.name(), rank: self.rank }
    }

    /// The files without some of the dumps.
    pub fn with(&self, withheld: Withheld, seed: u64) -> RankFiles {
        let mut dice = Dice::new(splitmix(seed));
        let other = (self.rank + 1 + dice.below(u64::from(self.ranks) - 1) as u32) % self.ranks;
        let half: Vec<u32> = {
            let mut all: Vec<u32> = (0..self.ranks).collect();
            (0..all.len()).rev().for_each(|at| all.swap(at, dice.below(at as u64 + 1) as usize));
            all.truncate(self.ranks as usize / 2);
            all
        };
        let kept = |rank: u32| match withheld {
            Withheld::None => true,
            Withheld::Culprit => rank != self.rank,
            Withheld::Random => rank != other,
            Withheld::Half => !half.contains(&rank),
        };
        let is_kept = |name: &str| render::rank_of(name).is_none_or(kept);
        self.files.iter().filter(|(name, ..)| is_kept(name)).cloned().collect()
    }

    /// The job as its files show it.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(&self, files: &RankFiles) -> Result<DumpedJob, String> {
        let mut reading = DumpReader::default();
        reading.ranks(self.ranks);
        for (name, written, bytes) in files {
            reading.bytes(Path::new(name), *written, bytes).map_err(|error| format!("{name}: {error}"))?;
        }
        reading.finish()
    }

    /// How the verdict on some of the files compares with the truth.
    ///
    /// # Errors
    /// As [`SeededCase::read`].
    pub fn score(&self, withheld: Withheld, files: &RankFiles) -> Result<CaseScore, String> {
        let job = self.read(files)?;
        let verdict = judge(&job);
        Ok(score(self.fault, self.rank, withheld, &job, &verdict))
    }
}

/// How a verdict compares with the truth.
pub fn score(fault: Fault, rank: u32, withheld: Withheld, job: &DumpedJob, verdict: &Verdict) -> CaseScore {
    let said = verdict.causes.first().map_or(verdict.why.clone(), |cause| cause.said.clone());
    if fault.is_healthy() {
        let late = straggler(job).map(|late| late.rank);
        let first = verdict.hung != Hung::Yes
            && (fault != Fault::Slow || withheld != Withheld::None || late == Some(rank));
        return CaseScore { first, second: first, wrong: verdict.hung == Hung::Yes, undecided: false, said };
    }
    let hides = matches!(withheld, Withheld::Culprit | Withheld::Half) && !job.logs.contains_key(&rank);
    let right = |at: usize| {
        verdict.causes.get(at).is_some_and(|cause| {
            let kind = fault.causes().contains(&cause.kind) || (hides && cause.kind == CauseKind::NoDump);
            let alone = cause.ranks.len() == 1 || (fault == Fault::LostNode && cause.ranks.len() <= 2);
            kind && cause.ranks.contains(&rank) && alone
        })
    };
    let first = verdict.decided && right(0);
    let wrong = verdict.decided && verdict.causes.first().is_some_and(|cause| !cause.ranks.contains(&rank));
    CaseScore { first, second: right(0) || right(1), wrong, undecided: !verdict.decided, said }
}
