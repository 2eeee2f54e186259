//! Simulated faults of machines, and how often the judge names them.

use super::candidate::{Change, changes, sound};
use super::judge::{largest_change, std_devs};
use super::*;
use crate::file::ParameterFile;
use crate::prepare::{GivenMachine, prepare};
use crate::runs::{Run, parse_unchecked};
use allfold_nccl_model::physics::{Parameters, Terms, closed};
use allfold_sim::hash::SplitMix;
use std::collections::BTreeMap;

/// Machines in words: GPU, GPUs of a node, nodes, links in a node, network.
const MACHINES: [(&str, u32, u32, &str, &str); 10] = [
    ("H100 SXM", 8, 2, "NVLink4 NVSwitch", "8x400Gb/s InfiniBand"),
    ("H100 SXM", 8, 8, "NVLink4 NVSwitch", "8x400Gb/s RoCE"),
    ("A100-SXM4-80GB", 8, 2, "NVLink3 NVSwitch", "8x200Gb/s InfiniBand"),
    ("A100-SXM4-40GB", 8, 4, "NVLink3 NVSwitch", "4x100Gb/s EFA"),
    ("H200", 8, 4, "NVLink4 NVSwitch", "8x400Gb/s InfiniBand"),
    ("B200", 8, 2, "NVLink5 NVSwitch", "8x400Gb/s InfiniBand"),
    ("GH200", 4, 4, "NVLink4", "4x200Gb/s Slingshot"),
    ("V100-SXM2-32GB", 8, 2, "NVLink2", "4x100Gb/s InfiniBand"),
    ("H100 SXM", 8, 1, "NVLink4 NVSwitch", ""),
    ("L40S", 8, 1, "PCIe", ""),
];
/// A row's noise in the simulated runs, as a standard deviation of its logarithm.
const NOISE: f64 = 0.04;
/// A change of all times by less than this, in logarithms, cannot be told from noise.
const UNSEEN: f64 = 0.10;

struct Draws(SplitMix);

impl Draws {
    fn share(&mut self) -> f64 {
        (self.0.word() >> 11) as f64 / (1u64 << 53) as f64
    }
    fn below(&mut self, count: usize) -> usize {
        (self.share() * count as f64) as usize
    }
    /// A draw of the standard normal distribution.
    fn normal(&mut self) -> f64 {
        let (a, b) = (self.share().max(1e-12), self.share());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

fn run_on((gpu, devices, nodes, inside, across): (&str, u32, u32, &str, &str)) -> Run {
    let rows: Vec<String> = (3..34)
        .map(|log| format!(r#"{{"bytes":{},"time_us":1.0,"algbw_gbps":0,"busbw_gbps":0}}"#, 1u64 << log))
        .collect();
    let across = if nodes > 1 { format!(r#","inter_node":"{across}""#) } else { String::new() };
    let text = format!(
        r#"{{"hardware":{{"gpu":"{gpu}","gpus_per_node":{devices},"nodes":{nodes},"intra_node":"{inside}"{across}}},
        "collective":"all_reduce","dtype":"float","ranks":{},"rows":[{}]}}"#,
        devices * nodes,
        rows.join(",")
    );
    parse_unchecked("simulated", &text).unwrap()
}

/// A degree between those that the judge knows.
fn between(change: &Change, draws: &mut Draws) -> Change {
    let mut change = change.clone();
    let factor = 0.8 + 0.45 * draws.share();
    if change.late_us > 0.0 {
        change.late_us *= factor;
    }
    if change.cause == SlowCause::SlowLinks {
        change.shares =
            change.shares.map(|share| if share < 1.0 { share * (0.85 + 0.3 * draws.share()) } else { share });
    }
    change
}

#[derive(Default, Debug)]
struct Tally {
    faults: usize,
    first: usize,
    second: usize,
    unseen: usize,
    healthy: usize,
    blamed: usize,
    confused: BTreeMap<(SlowCause, SlowCause), usize>,
}

fn score(times: usize, seed: u64) -> Tally {
    let file = ParameterFile::published().unwrap();
    let (fitted, std_devs) = (file.parameters(), std_devs(&file));
    let mut draws = Draws(SplitMix(seed));
    let mut tally = Tally::default();
    for (at, machine) in MACHINES.iter().enumerate() {
        let run = sound(&run_on(*machine));
        let judge = Judge::new(&run, None, &file).unwrap();
        let healthy = prepare(&run, None, true).unwrap();
        let all = changes(&healthy, run.collective);
        let causes: Vec<SlowCause> = SlowCause::ALL
            .into_iter()
            .filter(|cause| all.iter().any(|change| change.cause == *cause))
            .collect();
        for _ in (at..times).step_by(MACHINES.len()) {
            let drawn: Vec<f64> =
                fitted.logs().iter().zip(&std_devs).map(|(log, sd)| log + sd * draws.normal()).collect();
            let parameters = Parameters::from_logs(&drawn);
            let sound_times = judge.candidates().next().unwrap().times(&parameters);
            let mut noisy = |times: &[f64]| -> Vec<f64> {
                times.iter().map(|time| time * (NOISE * draws.normal()).exp()).collect()
            };
            let blamed =
                judge.causes(&noisy(&sound_times), &Evidence::default())[0].cause != SlowCause::Healthy;
            tally.healthy += 1;
            tally.blamed += usize::from(blamed);
            let cause = causes[draws.below(causes.len())];
            let degrees: Vec<&Change> = all.iter().filter(|change| change.cause == cause).collect();
            let change = between(degrees[draws.below(degrees.len())], &mut draws);
            let Ok(faulty) = Candidate::with(&run, None::<&GivenMachine>, change) else { continue };
            let times = faulty.times(&parameters);
            let found = judge.causes(
                &times.iter().map(|time| time * (NOISE * draws.normal()).exp()).collect::<Vec<_>>(),
                &Evidence::default(),
            );
            if largest_change(&times, &sound_times) < UNSEEN {
                tally.unseen += 1;
                tally.healthy += 1;
                tally.blamed += usize::from(found[0].cause != SlowCause::Healthy);
                continue;
            }
            tally.faults += 1;
            tally.first += usize::from(found[0].cause == cause);
            tally.second += usize::from(found.iter().take(2).any(|finding| finding.cause == cause));
            if found[0].cause != cause {
                *tally.confused.entry((cause, found[0].cause)).or_default() += 1;
            }
        }
    }
    tally
}

impl Tally {
    /// The shares of faults whose cause came first, and first or second, and of healthy runs that were blamed.
    fn shares(&self) -> [f64; 3] {
        let of = |part: usize, all: usize| part as f64 / all.max(1) as f64;
        [of(self.first, self.faults), of(self.second, self.faults), of(self.blamed, self.healthy)]
    }
}

#[test]
fn most_simulated_faults_are_named_and_healthy_runs_are_not_blamed() {
    let tally = score(200, 7);
    let [first, second, blamed] = tally.shares();
    assert!(first >= 0.80 && second >= 0.92 && blamed <= 0.03, "{tally:?}");
}

#[test]
#[ignore = "6 times 1,000 simulated faults: cargo test -p allfold-validation -- --ignored why_scores --nocapture"]
fn why_scores() {
    for seed in 1..=6 {
        let tally = score(1000, seed);
        let [first, second, blamed] = tally.shares();
        println!("seed {seed}: first {first:.3}, first two {second:.3}, blamed {blamed:.3}; {tally:?}");
        assert!(first >= 0.82 && second >= 0.95 && blamed <= 0.02, "seed {seed}");
        assert!(seed > 1 || first >= 0.85, "the seed by which the widths were chosen");
    }
}

/// The format of NVIDIA/nccl, `ext-tuner/example/README.md`.
#[test]
fn a_tuner_file_has_a_line_for_every_size_in_the_words_of_the_plug_in() {
    let file = ParameterFile::published().unwrap();
    let healthy = prepare(&run_on(MACHINES[2]), None, true).unwrap();
    let made = |times: f64| {
        let parameters = file.parameters();
        let measured =
            healthy.rows.iter().map(|row| times * closed(&row.case, &parameters, Terms::default()));
        tuner_file(&healthy, &measured.collect::<Vec<_>>(), &parameters, &file.spreads())
    };
    assert_eq!(made(0.1), None);
    let (text, gains) = made(20.0).unwrap();
    assert_eq!(gains, healthy.rows.len());
    let algorithms = ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"];
    let mut next = 0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(',').collect();
        let [collective, from, to, algorithm, protocol, channels, nodes, ranks] = fields[..] else {
            panic!("{line}")
        };
        assert_eq!([collective, channels, nodes, ranks], ["allreduce", "-1", "2", "16"], "{line}");
        assert!(algorithms.contains(&algorithm), "{line}");
        assert!(["ll", "ll128", "simple"].contains(&protocol), "{line}");
        assert_eq!(from.parse::<u64>().unwrap(), next, "{line}");
        next = to.parse::<u64>().unwrap() + 1;
    }
    assert!(next > 4_294_967_295, "{text}");
}
