//! What a log says about a job besides its table: the test, the ranks and their GPUs, NCCL's version and settings.
//!
//! ```text
//! + mpirun -np 16 -x NCCL_ALGO=Ring ./build/all_reduce_perf -b 8 -e 1G        the test and settings
//! # nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 ..                       GPUs that a thread drives
//! #  Rank  0 Group  0 Pid 71 on node1 device  0 [0x07] NVIDIA H100 80GB HBM3  who took part
//! node1:71:90 [0] NCCL INFO NCCL_ALGO set by environment to Ring.             settings
//! node1:71:90 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0   what was used
//! ```

use super::report::version;
use super::run::{ListedRank, collective};
use allfold_schedules::Collective;
use std::collections::{BTreeMap, BTreeSet};

/// A test as a log names it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Test {
    /// A collective.
    Known(Collective),
    /// Another test, by its name.
    Unknown(String),
}

/// The facts on the job whose table follows.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) test: Option<Test>,
    pub(super) nccl_version: Option<String>,
    /// GPUs that a thread drives.
    pub(super) driven: Option<u32>,
    /// (group, rank) of the devices listed, each with its host and its GPU's name.
    ranks: BTreeMap<(u32, u32), (String, String)>,
    /// The different lines that name rank 0: one for each job.
    zeros: BTreeSet<String>,
    /// The ranks of NCCL's communicator, where NCCL's log says so.
    communicator: Option<u32>,
    /// Settings of the shell, for all jobs that follow.
    exported: BTreeMap<String, String>,
    /// Settings of this job.
    env: BTreeMap<String, String>,
    /// What NCCL's log says was used, by the words of [`USED`].
    pub(super) used: BTreeSet<&'static str>,
    /// The NICs that NCCL's log lists.
    pub(super) nics: Option<u32>,
    /// Whether a table was read, so that the next facts are on another job.
    pub(super) done: bool,
}

/// Words of NCCL's log that say what was used.
const USED: [&str; 8] = [
    "via NET/Socket",
    "Using network Socket",
    "via NET/",
    "/GDRDMA",
    "via P2P",
    "via SHM",
    "NVLS multicast support is not available",
    "Init COMPLETE",
];

/// Words of a line in which `NCCL_ALGO=Ring` is a setting.
const COMMANDS: [&str; 7] = ["mpirun", "mpiexec", "srun", "prterun", "export ", "-x ", "_perf"];

impl Facts {
    /// The facts on a job of which only the test is known.
    pub(super) fn of(test: Option<Test>) -> Facts {
        Facts { test, ..Facts::default() }
    }

    /// Takes a line that belongs to no table.
    pub(super) fn learn(&mut self, line: &str) {
        if let Some(test) = test(line) {
            self.test = Some(test);
        }
        for before in ["NCCL version ", "RCCL version ", "compiled with NCCL "] {
            if let Some((_, version)) = line.split_once(before) {
                self.nccl_version = version.split_whitespace().next().map(str::to_string);
            }
        }
        if let Some(code) = number(line, "nccl-library=") {
            self.nccl_version = Some(version(code.into()));
        }
        self.driven = number(line, "nGpus ").or(self.driven);
        if let Some((before, value)) = line.split_once(" set by environment to ") {
            let key = before.rsplit(' ').next().unwrap_or_default();
            self.env.extend(setting(key, value.trim().trim_end_matches('.')));
        }
        if line.contains("NCCL INFO") {
            self.used.extend(USED.iter().filter(|words| line.contains(**words)));
            self.communicator = number(line, " nranks ").or(self.communicator);
            let nics = line.split_once("NET/IB : Using ").map(|(_, list)| list.matches(']').count());
            self.nics =
                nics.and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0).or(self.nics);
        }
        if line.contains("CCL_") || line.contains("FI_") {
            self.settings(line);
        }
    }

    /// Takes the settings of a command line.
    fn settings(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() > 1 && !COMMANDS.iter().any(|command| line.contains(command)) {
            return;
        }
        let of_all = line.contains("export ");
        // Slurm's `--export=ALL,NCCL_ALGO=Tree` is one word.
        let given = words.iter().flat_map(|word| match word.strip_prefix("--export=") {
            Some(list) => list.split(',').collect(),
            None => vec![*word],
        });
        let given = given.filter_map(|word| word.trim_matches(['"', '\'']).split_once('='));
        let pairs = words.windows(3).filter(|words| ["-genv", "-env"].contains(&words[0]));
        let pairs = pairs.map(|words| (words[1], words[2]));
        let found = given.chain(pairs).filter_map(|(key, value)| setting(key, value));
        if of_all { &mut self.exported } else { &mut self.env }.extend(found);
    }

    /// Takes a line that lists a rank.
    pub(super) fn list(&mut self, line: &ListedLine<'_>) {
        let (device, gpu) = line.text.split_once(']').unwrap_or((line.text, ""));
        let host = device.split_whitespace().skip_while(|word| *word != "on").nth(1).unwrap_or_default();
        if line.rank == 0 {
            self.zeros.insert(line.text.into());
        }
        self.ranks.insert((line.group, line.rank), (host.into(), gpu.trim().into()));
    }

    /// The number of jobs whose ranks are listed together.
    pub(super) fn jobs(&self) -> usize {
        self.zeros.len()
    }

    /// Whether a line lists rank 0 of another job than the lines so far.
    pub(super) fn is_other_job(&self, line: &ListedLine<'_>) -> bool {
        !self.done && line.rank == 0 && self.jobs() > 0 && !self.zeros.contains(line.text)
    }

    /// Forgets what was of one job only.
    pub(super) fn next_job(&mut self) {
        let (nccl_version, exported) = (self.nccl_version.take(), std::mem::take(&mut self.exported));
        *self = Facts { nccl_version, exported, ..Facts::default() };
    }

    /// The number of ranks of the first group, whose bandwidths the table has; that of NCCL's communicator where no list has it.
    pub(super) fn ranks(&self) -> Option<u32> {
        let ends = self.first_group().next().zip(self.first_group().last());
        ends.map(|((first, ..), (last, ..))| last + 1 - first).or(self.communicator)
    }

    /// The ranks of the first group with hosts and GPUs; none where the list has gaps.
    pub(super) fn listed(&self) -> BTreeSet<ListedRank> {
        let of_first: BTreeSet<ListedRank> = self.first_group().collect();
        let whole = self.ranks().is_some_and(|ranks| ranks as usize == of_first.len());
        of_first.into_iter().filter(|(_, host, _)| whole && !host.is_empty()).collect()
    }

    fn first_group(&self) -> impl Iterator<Item = ListedRank> {
        let first = self.ranks.keys().next().map(|&(group, _)| group);
        let of_first = self.ranks.iter().filter(move |((group, _), _)| Some(*group) == first);
        of_first.map(|((_, rank), (host, gpu))| (*rank, host.clone(), gpu.clone()))
    }

    /// The settings of the job: those that were given, and those that have the effect which NCCL's log shows.
    pub(super) fn env(&self) -> BTreeMap<String, String> {
        let used = |words: &str| self.used.contains(words);
        let socket = used("via NET/Socket") || used("Using network Socket");
        let effects = [
            (socket, "NCCL_NET", "Socket"),
            (used("via NET/") && !used("/GDRDMA") && !socket, "NCCL_NET_GDR_LEVEL", "LOC"),
            (used("via SHM") && !used("via P2P"), "NCCL_P2P_DISABLE", "1"),
            (used("NVLS multicast support is not available"), "NCCL_NVLS_ENABLE", "0"),
        ];
        let effects = effects.into_iter().filter(|(shown, ..)| *shown);
        let effects = effects.map(|(_, key, value)| (key.to_string(), value.to_string()));
        let given = self.exported.iter().chain(&self.env).map(|(key, value)| (key.clone(), value.clone()));
        effects.chain(given).collect()
    }
}

/// The test that a line names, unless it says that the test is over.
pub(super) fn test(line: &str) -> Option<Test> {
    let names = ["_perf", "_test", "# OSU "].iter().any(|word| line.contains(word));
    if !names || ["concluded", "NCCL INFO", "NCCL WARN"].iter().any(|word| line.contains(word)) {
        return None;
    }
    if let Some((_, words)) = line.split_once("# OSU ") {
        let name = words.split(" Latency").next()?.rsplit(' ').next()?;
        return Some(collective(name).map_or_else(|| Test::Unknown(format!("OSU {name}")), Test::Known));
    }
    let program = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric()).rsplit('/').next()?.to_string();
        let name = word.strip_suffix("_mpi").unwrap_or(&word);
        match name.strip_suffix("_perf") {
            Some(name) => Some(collective(name).map_or_else(|| Test::Unknown(word.clone()), Test::Known)),
            None => collective(name.strip_suffix("_test")?).map(Test::Known),
        }
    };
    line.split_whitespace().find_map(program)
}

/// A line that lists a rank.
pub(super) struct ListedLine<'a> {
    /// What stands before it.
    pub(super) before: &'a str,
    group: u32,
    rank: u32,
    text: &'a str,
}

/// The rank that a line lists: `Rank  3 Group  0 Pid 71 on ..`, or in NCCL's first tests `Device  3 -> ..`.
pub(super) fn listed(line: &str) -> Option<ListedLine<'_>> {
    let after = |word: &str, all: &[&str]| {
        line.rsplit_once(word).filter(|(_, rest)| all.iter().any(|word| rest.contains(word)))
    };
    let (before, rest) = after("Rank ", &["device", "Group", "Pid"]).or_else(|| after("Device ", &["->"]))?;
    let (rank, text) = rest.trim_start().split_once(' ')?;
    let group = number(text, "Group ").unwrap_or(0);
    (!before.contains("NCCL")).then_some(ListedLine { before, group, rank: rank.parse().ok()?, text })
}

/// The number that follows these words.
fn number(line: &str, before: &str) -> Option<u32> {
    let rest = line.split_once(before)?.1.trim_start();
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// A variable of NCCL, RCCL or a provider of libfabric, and its value.
fn setting(key: &str, value: &str) -> Option<(String, String)> {
    let ours = ["NCCL_", "RCCL_", "FI_"].iter().any(|start| key.starts_with(start));
    let named = key.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    let value = value.trim_matches(['"', '\'', '\\', ';']);
    (ours && named).then(|| (key.into(), value.into()))
}
