//! A measured run, and the names of collectives in it.

use super::left_out::RowsLeftOut;
use allfold_schedules::Collective;
use allfold_sim::fnv1a;
use allfold_sim::machines::{Description, GpuModel};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The measured times of one collective over a sweep of sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The file's name without its ending, followed by `#2` and so on for the further tables of one file.
    pub name: String,
    /// The collective of the run.
    pub collective: Collective,
    /// The element type as the run names it: `float`, `bfloat16`, `fp8_e4m3`, ...
    pub dtype: String,
    /// Size of the group.
    pub ranks: u32,
    /// The description of the hardware, if the run has one.
    pub hardware: Option<Description>,
    /// The host and the GPU of each rank of the first group, where the file lists them.
    pub listed: BTreeSet<ListedRank>,
    /// The source of the figures, if the run names it.
    pub source: Option<String>,
    /// The library's version, if the run says so.
    pub nccl_version: Option<String>,
    /// The environment variables in the run's file; of nccl-tests' JSON only those that begin with `NCCL_`.
    pub env: BTreeMap<String, String>,
    /// The collector's remarks on the run.
    pub notes: String,
    /// The name of the cluster, if the run has one.
    pub system: Option<String>,
    /// Whether the collector doubts the run.
    pub suspect: bool,
    /// The measurements in the order of the file; each side of a table's line is a row.
    pub rows: Vec<RunRow>,
    /// Rows that do not count.
    pub left_out: RowsLeftOut,
    /// The number of GPUs that one thread drives, if the run says so.
    pub driven: Option<u32>,
    /// What the reader made of figures that are not those of today's nccl-tests, one line each.
    pub remarks: Vec<String>,
}

/// A rank as nccl-tests lists it: its number, its host, and its GPU as the driver names it.
pub type ListedRank = (u32, String, String);

impl Run {
    /// A run of which no more is known.
    pub(super) fn new(name: String, collective: Collective, ranks: u32) -> Run {
        Run {
            name,
            collective,
            dtype: String::new(),
            ranks,
            hardware: None,
            listed: BTreeSet::new(),
            source: None,
            nccl_version: None,
            env: BTreeMap::new(),
            notes: String::new(),
            system: None,
            suspect: false,
            rows: Vec::new(),
            left_out: RowsLeftOut::default(),
            driven: None,
            remarks: Vec::new(),
        }
    }

    /// A number that another run has too if its collective, ranks and rows are the same, whatever its name and layout.
    pub fn fingerprint(&self) -> u64 {
        let both = self.rows.iter().any(|row| !row.in_place);
        let rows = self.rows.iter().filter(|row| !(both && row.in_place));
        // Layouts print times to different numbers of digits.
        let text: Vec<String> = rows.map(|row| format!("{} {:.2e}", row.bytes, row.time_us)).collect();
        fnv1a(format!("{} {} {}", self.collective, self.ranks, text.join(",")).as_bytes())
    }

    /// Adds a row, or counts it as left out if it has `wrong` elements.
    pub(super) fn add(&mut self, row: RunRow, wrong: f64) {
        match wrong > 0.0 {
            true => self.left_out.wrong.push(row.bytes),
            false => self.rows.push(row),
        }
    }

    /// The hardware that the file's list of ranks gives; `None` without a list.
    ///
    /// # Errors
    /// GPUs of several kinds; hosts with different numbers of ranks.
    pub fn listed_hardware(&self) -> Result<Option<Description>, String> {
        let Some((_, _, gpu)) = self.listed.first() else { return Ok(None) };
        let kind = |gpu: &str| GpuModel::named(gpu).map_or(gpu.to_string(), |model| model.name.clone());
        if let Some((_, _, other)) = self.listed.iter().find(|(_, _, other)| kind(other) != kind(gpu)) {
            return Err(format!("its ranks are on two kinds of GPU, {gpu} and {other}; the model has one"));
        }
        let mut hosts: BTreeMap<&str, u64> = BTreeMap::new();
        self.listed.iter().for_each(|(_, host, _)| *hosts.entry(host).or_default() += 1);
        // A process may drive several GPUs, of which JSON lists one.
        let listed = self.listed.len() as u64;
        let each: BTreeSet<u64> =
            hosts.values().map(|count| count * u64::from(self.ranks) / listed).collect();
        let (Some(&each), 1) = (each.first(), each.len()) else {
            return Err(format!(
                "its hosts have different numbers of ranks ({each:?}); the model has equal hosts"
            ));
        };
        Ok(Some(Description {
            gpu: (!gpu.is_empty()).then(|| gpu.clone()),
            gpus_per_node: u32::try_from(each).ok(),
            nodes: u32::try_from(hosts.len()).ok(),
            ..Description::default()
        }))
    }
}

/// The time of one size, in place or out of place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunRow {
    /// Bytes of the larger of a rank's two buffers, nccl-tests' "size".
    pub bytes: u64,
    /// Whether the result replaced the input in its buffer.
    pub in_place: bool,
    /// Mean time of a call in microseconds.
    pub time_us: f64,
    /// bytes / time, in GB/s (1e9): as printed, or computed if the file does not give it.
    pub algbw_gbps: f64,
    /// algbw times nccl-tests' factor for the collective: as printed, or computed if the file does not give it.
    pub busbw_gbps: f64,
}

impl RunRow {
    /// Makes a size and time of OSU's benchmarks, which count what a rank sends to one rank, those of nccl-tests, with their rates.
    pub(super) fn complete(&mut self, collective: Collective, ranks: u32) {
        use Collective::{AllGather, AllToAll, Gather, Scatter};
        let parts =
            if matches!(collective, AllGather | AllToAll | Gather | Scatter) { u64::from(ranks) } else { 1 };
        self.bytes = self.bytes.saturating_mul(parts);
        self.algbw_gbps = self.bytes as f64 / self.time_us / 1e3;
        self.busbw_gbps = self.algbw_gbps * collective.bus_factor(ranks);
    }
}

/// The name of a file's run: the file's, with the number of all but the first.
pub(super) fn numbered(file: &str, number: usize) -> String {
    if number == 1 { file.into() } else { format!("{file}#{number}") }
}

/// The collective in a file's name, the longest where there are several: `all_reduce` in `a100_all_reduce_2n`.
pub(super) fn named_in(name: &str) -> Option<Collective> {
    let spelled = Collective::ALL.into_iter().map(|collective| (collective.name(), collective));
    let others = Collective::ALL.into_iter().map(|collective| (collective.meaning().nccl_tests, collective));
    let found = spelled.chain(others).filter(|(word, _)| name.contains(word));
    found.max_by_key(|(word, _)| word.len()).map(|(_, collective)| collective)
}

/// The collective that a program, a file or a record is named after: `all_reduce_perf`, `alltoall`, `AllReduce`, `Bcast`, ...
pub(super) fn collective(word: &str) -> Option<Collective> {
    let word = word.rsplit('/').next().unwrap_or(word);
    let letters = |word: &str| word.to_lowercase().replace(['_', '-'], "");
    let name = match letters(word.strip_suffix("_perf").unwrap_or(word)) {
        name if name == "bcast" => "broadcast".into(),
        name => name,
    };
    let called = |collective: &Collective| {
        [collective.name(), collective.meaning().nccl_tests].iter().any(|known| letters(known) == name)
    };
    Collective::ALL.into_iter().find(called)
}

/// Turns a JSON string into a collective; an unknown name is an error at its place in the file.
pub(super) fn collective_field<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Collective, D::Error> {
    let word = String::deserialize(from)?;
    collective(&word).ok_or_else(|| {
        let names = Collective::ALL.map(Collective::name);
        serde::de::Error::custom(allfold_sim::suggest::unknown("collective", &word, &names))
    })
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, dtype) = (self.rows.len(), &self.dtype);
        write!(
            f,
            "read {}: {} over {} ranks, {rows} rows of {dtype}",
            self.name, self.collective, self.ranks
        )?;
        match self.left_out.is_empty() {
            true => Ok(()),
            false => write!(f, "; left out: {}", self.left_out),
        }
    }
}
