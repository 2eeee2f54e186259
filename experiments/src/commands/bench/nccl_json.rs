//! The results of `bench --backend nccl` as JSON in the form of nccl-tests (`-J`, version 3), which `validate` reads.

use super::args::Args;
use crate::measure::bench::Bench;
use crate::measure::ranks::MeasuredSide;
use crate::measure::statistics::CallTimes;
use allfold_cli::names::nccl_dtype;
use allfold_collectives::DType;
use allfold_report::records::MeasuredCollective;
use serde_json::{Value, json};

/// The version of the form.
const VERSION: u32 = 3;

/// The results so far.
#[derive(Default)]
pub(super) struct Report {
    nccl_version: i32,
    devices: Vec<Value>,
    results: Vec<Value>,
}

impl Report {
    /// Notes the version of NCCL, and the line of each rank about its process, host and GPU.
    pub fn joined(&mut self, (major, minor, patch): (i32, i32, i32), places: &[String]) {
        self.nccl_version = 10_000 * major + 100 * minor + patch;
        self.devices = places.iter().enumerate().map(|(rank, place)| device(rank, place)).collect();
    }

    /// Adds a size: the records of its sides, and the times of their calls.
    pub fn size(&mut self, records: &[MeasuredCollective], sides: &[MeasuredSide], host_time: bool) {
        let Some(MeasuredCollective { call, iterations, .. }) = records.first() else { return };
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == call.dtype).map(nccl_dtype);
        let mut result = json!({
            "size": call.bytes, "count": call.count, "type": dtype, "redop": call.op.as_deref().unwrap_or("none"),
            "root": format!("{:>6}", call.root.map_or(-1, i64::from)),
            "out_of_place": null, "in_place": null, "actual_iterations": iterations, "experiment_name": "",
        });
        for (record, side) in records.iter().zip(sides) {
            let name = if record.in_place { "in_place" } else { "out_of_place" };
            let time = if host_time { "cpu_time" } else { "time" };
            result[name] = json!({
                time: record.time_us, "alg_bw": record.algbw_gbps, "bus_bw": record.busbw_gbps,
                "nwrong": record.wrong_elements.map(|wrong| wrong as f64),
            });
            if let Some(spread) = CallTimes::of(&side.each_us) {
                let [p50, p95, p99] = spread.percentiles;
                result[format!("{name}_per_iter")] = json!({
                    "min_us": spread.least, "max_us": spread.greatest, "avg_us": spread.mean, "p50_us": p50,
                    "p95_us": p95, "p99_us": p99, "stdev_us": spread.deviation, "cv_pct": spread.variation(),
                    "times_us": side.each_us,
                });
            }
        }
        self.results.push(result);
    }

    /// The file.
    pub fn text(&self, args: &Args, bench: &Bench) -> String {
        let program = format!("{}_perf", bench.choice.collective.meaning().nccl_tests);
        let given = std::env::args().skip(1);
        let variables = std::env::vars().filter(|(name, _)| name.starts_with("NCCL_"));
        let wrong: f64 = self.sides().filter_map(|side| side["nwrong"].as_f64()).sum();
        let busbw: Vec<f64> = self.sides().filter_map(|side| side["bus_bw"].as_f64()).collect();
        let mean = if busbw.is_empty() { 0.0 } else { busbw.iter().sum::<f64>() / busbw.len() as f64 };
        let file = json!({
            "version": VERSION,
            "args": std::iter::once(program).chain(given).collect::<Vec<_>>(),
            "env": variables.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
            "nccl_version": self.nccl_version,
            "config": {
                "nthreads": 1, "ngpus": 1, "warmup_iters": args.warmup, "iterations": args.iterations,
                "validation": args.check, "devices": self.devices,
            },
            "results": self.results,
            "out_of_bounds": { "count": wrong, "okay": (wrong == 0.0).to_string() },
            "average_bus_bandwidth": { "bandwidth": mean, "okay": "unchecked" },
        });
        format!("{file:#}\n")
    }

    fn sides(&self) -> impl Iterator<Item = &Value> {
        let of = |result: &'static str| self.results.iter().map(move |line| &line[result]);
        of("out_of_place").chain(of("in_place"))
    }
}

/// A rank's entry, from its line `Pid 7 on host device 0 [0x00] NAME`.
fn device(rank: usize, place: &str) -> Value {
    let words: Vec<&str> = place.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let hex = words.get(6).map(|word| word.trim_matches(['[', ']']));
    json!({
        "rank": rank, "group": 0, "pid": number(1), "hostname": words.get(3).unwrap_or(&""), "device": number(5),
        "device_hex": hex, "device_info": words.get(7..).unwrap_or_default().join(" "),
    })
}
