//! Curves from records of single runs.

use super::*;
use crate::records::{Setup, Stamp, TrainingEnd, line};

fn ended(strategy: &str, ranks: u32, batch: u64, samples_per_s: f64) -> String {
    let end = TrainingEnd {
        accuracy: 0.5,
        batch: Some(batch),
        samples_per_s,
        warmup_steps: 1,
        time_us: 1.0,
        ..TrainingEnd::default()
    };
    let backend = if ranks == 1 { "threads" } else { "tcp" };
    let setup = Setup {
        backend: backend.into(),
        device: "H100".into(),
        model: "cnn".into(),
        strategy: strategy.into(),
        ranks,
        mesh: Setup::data_parallel(ranks),
    };
    let step = MeasuredStep { setup, step: 0, loss: 1.0, end: Some(end), ..MeasuredStep::default() };
    let stamp = Stamp { commit: "c".into(), host: "h".into(), seed: None, command: "allfold train".into() };
    line(&step, &stamp).unwrap()
}

#[test]
fn runs_of_equal_batch_are_a_weak_curve_and_those_of_equal_samples_a_strong_one() {
    let lines = [
        ended("single", 1, 32, 100.0),
        ended("ddp", 2, 32, 1.0),
        ended("ddp", 2, 32, 180.0),
        ended("ddp", 4, 32, 320.0),
        ended("ddp", 2, 16, 150.0),
        ended("zero3", 4, 64, 90.0),
    ];
    let curves = curves(&Records::parse(&lines.join("\n")).unwrap());
    let seen: Vec<Vec<(u32, u64, f64)>> = curves
        .iter()
        .map(|curve| curve.iter().map(|point| (point.setup.ranks, point.batch, point.efficiency)).collect())
        .collect();
    let weak = vec![(1, 32, 1.0), (2, 32, 0.9), (4, 32, 0.8)];
    assert_eq!(seen, [weak, vec![(1, 32, 1.0), (2, 16, 0.75)]]);
    assert!(curves.iter().flatten().all(|point| point.setup.strategy == "ddp"));
}
