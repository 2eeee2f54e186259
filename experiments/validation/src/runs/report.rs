//! nccl-tests' JSON, as `-J FILE` writes it (version 3; `src/util.cu` there).
//!
//! ```text
//! {"version":3, "args":["all_reduce_perf",..], "env":["K=V",..], "nccl_version":22902,
//!  "config":{"nthreads":1,"ngpus":1,..,"devices":[{"rank":0,"group":0,..},..]},
//!  "results":[{"size":8,"type":"float",..,"out_of_place":{"time":9.1,"alg_bw":..,"bus_bw":..},"in_place":{..}}]}
//! ```

use super::flaw::Flaw;
use super::run::{ListedRank, Run, RunRow, collective, named_in};
use serde::Deserialize;
use std::collections::BTreeSet;

/// The version of nccl-tests' JSON that this reads.
const VERSION: u64 = 3;

#[derive(Deserialize)]
struct ParameterFile {
    version: u64,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<String>,
    nccl_version: Option<u64>,
    config: Config,
    #[serde(default)]
    devices: Vec<Device>,
    results: Vec<Line>,
}

#[derive(Deserialize)]
struct Config {
    nthreads: u32,
    ngpus: u32,
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    #[serde(default)]
    group: i64,
    #[serde(default)]
    rank: u32,
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    device_info: String,
}

#[derive(Deserialize)]
struct Line {
    size: u64,
    #[serde(rename = "type")]
    dtype: String,
    out_of_place: Option<Side>,
    in_place: Option<Side>,
}

#[derive(Deserialize)]
struct Side {
    /// Missing where `-C` was given: then the host's time was measured, not the collective's.
    time: Option<f64>,
    alg_bw: f64,
    bus_bw: f64,
    /// The number of wrong elements, as a number or a text; null where results were not checked.
    #[serde(default)]
    nwrong: serde_json::Value,
}

impl Side {
    fn wrong(&self) -> f64 {
        let text = self.nwrong.as_str().and_then(|text| text.trim().parse().ok());
        self.nwrong.as_f64().or(text).unwrap_or(0.0)
    }
}

pub(super) fn parse(name: &str, text: &str) -> Result<Run, Flaw> {
    let file: ParameterFile = serde_json::from_str(text).map_err(Flaw::json)?;
    if file.version != VERSION {
        return Err(Flaw::whole(format!("expected version {VERSION} of the JSON; it is {}", file.version)));
    }
    let named = file.args.iter().find_map(|word| collective(word)).or_else(|| named_in(name));
    let Some(collective) = named else {
        return Err(Flaw::whole(
            "which collective was it? expected `all_reduce_perf` or the like in `args`; or name the file after it",
        ));
    };
    let mut run = Run::new(name.into(), collective, file.ranks()?);
    for line in &file.results {
        for (in_place, side) in [(false, &line.out_of_place), (true, &line.in_place)] {
            let Some(side) = side else { continue };
            let Some(time_us) = side.time else {
                return Err(Flaw::whole(
                    "expected `time` in every result; `cpu_time` (-C) is not how long the collective took",
                ));
            };
            let (algbw_gbps, busbw_gbps) = (side.alg_bw, side.bus_bw);
            run.add(RunRow { bytes: line.size, in_place, time_us, algbw_gbps, busbw_gbps }, side.wrong());
        }
    }
    let pairs = file.env.iter().filter_map(|line| line.split_once('='));
    let ours = pairs.filter(|(key, _)| key.starts_with("NCCL_"));
    Ok(Run {
        dtype: file.results.first().map_or_else(String::new, |line| line.dtype.clone()),
        listed: file.listed(),
        nccl_version: file.nccl_version.map(version),
        env: ours.map(|(key, value)| (key.into(), value.into())).collect(),
        driven: Some(file.config.ngpus),
        ..run
    })
}

impl ParameterFile {
    /// The devices of the first group.
    fn first_group(&self) -> impl Iterator<Item = &Device> {
        let devices = if self.config.devices.is_empty() { &self.devices } else { &self.config.devices };
        let first = devices.iter().map(|device| device.group).min();
        devices.iter().filter(move |device| Some(device.group) == first)
    }

    fn listed(&self) -> BTreeSet<ListedRank> {
        let named = self.first_group().filter(|device| !device.hostname.is_empty());
        named.map(|device| (device.rank, device.hostname.clone(), device.device_info.clone())).collect()
    }

    /// The ranks of the first group: the tests list one device per process, and bandwidths are those of a group.
    fn ranks(&self) -> Result<u32, Flaw> {
        let processes = self.first_group().count();
        let each = self.config.nthreads.checked_mul(self.config.ngpus);
        let ranks = each.and_then(|each| each.checked_mul(u32::try_from(processes).ok()?));
        ranks.filter(|&ranks| ranks > 0).ok_or_else(|| {
            Flaw::whole("how many ranks? expected `nthreads`, `ngpus` and a list of `devices` in `config`")
        })
    }
}

/// NCCL's version from NCCL's version number: `22902` is 2.29.2; up to 2.8 the minor number had one digit, `2804` is 2.8.4.
pub(super) fn version(code: u64) -> String {
    let (major, minor, patch) = match code < 10_000 {
        true => (code / 1_000, code / 100 % 10, code % 100),
        false => (code / 10_000, code / 100 % 100, code % 100),
    };
    format!("{major}.{minor}.{patch}")
}
