//! Fits and folds on runs that were made by the model itself, with noise that is seeded.

use super::fit::{Prior, fit};
use super::folds::{companion, with_run, without_system};
use super::prepare::{Prepared, prepare};
use crate::runs;
use allfold_collectives::time::nccl::physics::{PARAMETERS, Parameters, Terms, closed};

fn place(name: &str) -> usize {
    PARAMETERS.iter().position(|parameter| parameter.name == name).unwrap()
}

/// A run of 8-GPU nodes whose times are those of `truth`, each off by up to 3 % either way.
fn made(name: &str, nodes: u32, nics: &str, truth: &Parameters, seed: u64) -> Prepared {
    let ranks = 8 * nodes;
    let rows: Vec<String> = (3..33)
        .map(|log| format!(r#"{{"bytes":{},"time_us":1.0,"algbw_gbps":0,"busbw_gbps":0}}"#, 1u64 << log))
        .collect();
    let text = format!(
        r#"{{"hardware":{{"gpu":"A100-SXM4-40GB","gpus_per_node":8,"nodes":{nodes},"intra_node":"NVLink3 NVSwitch",
        "inter_node":"{nics}"}},"collective":"all_reduce","dtype":"float","ranks":{ranks},"rows":[{}]}}"#,
        rows.join(",")
    );
    // The times are put in below: a run of such rows would be left out as contradicting itself.
    let mut run = runs::parse_unchecked(name, &text).unwrap();
    run.notes.clear();
    let mut prepared = prepare(&run, false).unwrap();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for row in &mut prepared.rows {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let noise = 0.97 + 0.06 * (state % 1000) as f64 / 1000.0;
        row.measured_us = closed(&row.case, truth, Terms::default()) * noise;
    }
    prepared
}

fn truth() -> Parameters {
    let mut truth = Parameters::default();
    for (name, times) in [("hop.RoCE", 1.6), ("share.RoCE", 0.9), ("link.Ampere", 0.93), ("base.LL", 0.8)] {
        truth.set(place(name), truth.at(place(name)) * times);
    }
    truth
}

#[test]
fn calibration_recovers_what_the_runs_were_made_with() {
    let truth = truth();
    let runs: Vec<Prepared> = [(1, 1), (2, 2), (4, 3), (8, 4)]
        .map(|(nodes, seed)| made("a100_lab_all_reduce", nodes, "8x200Gb/s RoCE", &truth, seed))
        .to_vec();
    let found = fit(runs.iter(), &Prior::default(), Terms::default());
    let hop = |p: &Parameters| p.at(place("hop")) * p.at(place("hop.RoCE"));
    let share = |p: &Parameters| p.at(place("share")) * p.at(place("share.RoCE"));
    assert!((hop(&found.parameters) / hop(&truth)).ln().abs() < 0.25, "{}", hop(&found.parameters));
    assert!((share(&found.parameters) / share(&truth)).ln().abs() < 0.08, "{}", share(&found.parameters));
    // What no run told anything about stays where it was, as uncertain as it was.
    let other = place("hop.Slingshot");
    assert!((found.parameters.at(other) - PARAMETERS[other].value).abs() < 1e-9);
    assert!((found.spread[other] - PARAMETERS[other].spread).abs() < 1e-6);
    assert!(found.spread[place("hop.RoCE")] < 0.8 * PARAMETERS[place("hop.RoCE")].spread);
}

#[test]
fn a_row_that_is_predicted_has_no_say_in_its_prediction() {
    let truth = truth();
    let ours = |factor: f64| {
        let mut runs = vec![
            made("a100_one_all_reduce", 2, "8x200Gb/s RoCE", &truth, 1),
            made("a100_two_all_reduce", 4, "8x200Gb/s IB HDR", &truth, 2),
            made("a100_two_b_all_reduce", 4, "8x200Gb/s IB HDR", &truth, 3),
        ];
        runs[1].rows.iter_mut().for_each(|row| row.measured_us *= factor);
        runs
    };
    let (plain, changed) = (ours(1.0), ours(3.0));
    let terms = Terms::default();
    let left_out = |runs: &[Prepared]| without_system(runs, "a100 two", terms);
    assert_eq!(left_out(&plain), left_out(&changed), "the system that is left out leaked");
    assert_ne!(without_system(&plain, "a100 one", terms), without_system(&changed, "a100 one", terms));
    // With one run of its own system, it is another run.
    let one = companion(&plain, &plain[1]).unwrap();
    assert_eq!(one.name, "a100_two_b_all_reduce");
    assert_eq!(
        with_run(&left_out(&plain), one, terms),
        with_run(&left_out(&changed), companion(&changed, &changed[1]).unwrap(), terms)
    );
    assert!(companion(&plain, &plain[0]).is_none());
}

#[test]
fn what_cannot_be_predicted_says_what_is_missing() {
    let text = r#"{"collective":"all_reduce","dtype":"float","ranks":8,"hardware":{"gpu":"H100"},
        "rows":[{"bytes":1048576,"time_us":100.0,"algbw_gbps":10.49,"busbw_gbps":18.35}]}"#;
    let run = &runs::parse("x_all_reduce", text).unwrap()[0];
    let said = prepare(run, false).unwrap_err();
    assert!(said.contains("gpus_per_node") && said.contains("nodes"), "{said}");
    let suspect = runs::Run { suspect: true, ..run.clone() };
    assert!(prepare(&suspect, false).unwrap_err().contains("suspect"));
}
