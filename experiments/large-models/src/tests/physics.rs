//! The physics of steps, held against what others published. Needs `ALLFOLD_DATA`.
//!
//! ```text
//! cargo test -p allfold-large-models --lib -- --ignored --nocapture physics::scores            scores of systems left out; DETAIL=1: by system; DETAIL=rows: every row
//! cargo test -p allfold-large-models --lib -- --ignored --nocapture physics::ablation          the same without each term
//! cargo test -p allfold-large-models --lib -- --ignored physics::write_parameters              parameters.toml again
//! ```

use crate::fit::{StepFit, StepSample, fit};
use crate::fixtures::published;
use crate::interval::{KnownStep, StepPredictor};
use crate::parameters::{IntervalScales, StepParameterRow, StepParameters};
use crate::rows::TrainingRow;
use crate::step::step;
use std::collections::BTreeMap;

fn rows() -> Option<Vec<TrainingRow>> {
    let all = published().into_iter().flat_map(|file| file.rows);
    let rows: Vec<TrainingRow> = all.filter(|row| row.step_s.is_some() && !row.suspect).collect();
    (!rows.is_empty()).then_some(rows)
}

fn sample(row: &TrainingRow) -> StepSample<'_> {
    StepSample { job: &row.job, seconds: row.step_s.unwrap(), system: &row.system, noisy: row.noisy }
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values: Vec<f64> = values.iter().map(|value| value.abs()).collect();
    values.sort_by(f64::total_cmp);
    values.get(((values.len() as f64 - 1.0) * share).round() as usize).copied().unwrap_or(f64::NAN)
}

/// Parameters of a fit without each system.
fn folds(
    rows: &[TrainingRow],
    prior: &[StepParameterRow],
    start: &StepParameters,
) -> BTreeMap<String, StepFit> {
    let mut systems: Vec<&str> = rows.iter().map(|row| &*row.system).collect();
    systems.sort_unstable();
    systems.dedup();
    let without = |system: &str| -> StepFit {
        let others: Vec<_> = rows.iter().filter(|row| row.system != system).map(sample).collect();
        fit(&others, prior, start)
    };
    systems.into_iter().map(|system| (system.to_string(), without(system))).collect()
}

fn print_scores(label: &str, rows: &[TrainingRow], errors: &[f64]) {
    let of = |keep: &dyn Fn(&TrainingRow) -> bool| -> Vec<f64> {
        rows.iter().zip(errors).filter(|(row, _)| keep(row)).map(|(_, error)| *error).collect()
    };
    let mut systems: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    rows.iter().zip(errors).for_each(|(row, error)| systems.entry(&row.system).or_default().push(*error));
    let by_system: Vec<f64> = systems.values().map(|errors| quantile(errors, 0.5)).collect();
    let (moe, dense) =
        (of(&|row| row.job.model.experts.is_some()), of(&|row| row.job.model.experts.is_none()));
    let [mut same_ok, mut same, mut system_ok, mut system] = [0.0f64; 4];
    let y = |i: usize| {
        (rows[i].step_s.unwrap() * f64::from(rows[i].job.layout.gpus) / rows[i].job.layout.tokens()).ln()
    };
    for i in 0..rows.len() {
        for j in 0..i {
            if rows[i].system != rows[j].system || (y(i) - y(j)).abs() < 1.05f64.ln() {
                continue;
            }
            let ok =
                ((y(i) + errors[i].ln_1p() - y(j) - errors[j].ln_1p()) * (y(i) - y(j)) > 0.0) as u8 as f64;
            system += 1.0;
            system_ok += ok;
            if rows[i].job.model.name == rows[j].job.model.name {
                same += 1.0;
                same_ok += ok;
            }
        }
    }
    println!(
        "{label}: rows {:.2} / {:.2} %, dense {:.2} / {:.2}, MoE {:.2} / {:.2}, systems {:.2}; pairs {:.1}, of a model {:.1} %",
        100.0 * quantile(errors, 0.5),
        100.0 * quantile(errors, 0.9),
        100.0 * quantile(&dense, 0.5),
        100.0 * quantile(&dense, 0.9),
        100.0 * quantile(&moe, 0.5),
        100.0 * quantile(&moe, 0.9),
        100.0 * quantile(&by_system, 0.5),
        100.0 * system_ok / system,
        100.0 * same_ok / same,
    );
}

#[test]
#[ignore = "prints scores"]
fn scores() {
    let Some(rows) = rows() else { return };
    let prior = StepParameterRow::published();
    let all: Vec<_> = rows.iter().map(sample).collect();
    let whole = fit(&all, prior, &StepParameters::published());
    println!("{} rows", rows.len());
    let error = |row: &TrainingRow, parameters: &StepParameters| {
        step(&row.job, parameters).total() / row.step_s.unwrap() - 1.0
    };
    print_scores(
        "in sample",
        &rows,
        &rows.iter().map(|row| error(row, &whole.parameters)).collect::<Vec<_>>(),
    );
    let out = folds(&rows, prior, &whole.parameters);
    let errors: Vec<f64> = rows.iter().map(|row| error(row, &out[&row.system].parameters)).collect();
    print_scores("left out", &rows, &errors);
    let (scales, held) = intervals(&rows, &out);
    println!("{scales:?}, held {held:?}");
    one_row(&rows, &out, scales);
    if std::env::var_os("DETAIL").is_some() {
        detail(&rows, &errors, &whole);
    }
}

/// The rows of the file of parameters, with the doubt of a fit.
fn doubted(found: &StepFit) -> Vec<StepParameterRow> {
    let mut rows = StepParameterRow::published().to_vec();
    rows.iter_mut().zip(&found.std_devs).for_each(|(row, deviation)| row.deviation = *deviation);
    rows
}

/// Scales of the intervals from systems left out, each row of a system of n with the weight 1 / sqrt(n); and the shares of rows that the
/// intervals then hold.
fn intervals(rows: &[TrainingRow], out: &BTreeMap<String, StepFit>) -> (IntervalScales, [f64; 4]) {
    let unit = IntervalScales { dense: [1.0; 2], experts: [1.0; 2] };
    let off: Vec<f64> = rows
        .iter()
        .map(|row| {
            let found = &out[&row.system];
            let predicted =
                StepPredictor::new(found.parameters.clone(), &doubted(found), unit).predict(&row.job);
            (row.step_s.unwrap() / predicted.seconds).ln().abs() / predicted.deviation
        })
        .collect();
    let count = |system: &str| rows.iter().filter(|row| row.system == system).count() as f64;
    let scale = |experts: bool, share: f64| -> f64 {
        let mut list: Vec<(f64, f64)> = rows
            .iter()
            .zip(&off)
            .filter(|(row, _)| row.job.model.experts.is_some() == experts)
            .map(|(row, off)| (*off, count(&row.system).powf(-0.5)))
            .collect();
        list.sort_by(|a, b| a.0.total_cmp(&b.0));
        let whole: f64 = list.iter().map(|(_, weight)| weight).sum();
        let mut sum = 0.0;
        list.iter()
            .find(|(_, weight)| {
                sum += weight;
                sum >= share * whole
            })
            .unwrap()
            .0
    };
    let scales = IntervalScales {
        dense: [scale(false, 0.8), scale(false, 0.95)],
        experts: [scale(true, 0.8), scale(true, 0.95)],
    };
    let held = |experts: bool, at: usize| {
        let of: Vec<bool> = rows
            .iter()
            .zip(&off)
            .filter(|(row, _)| row.job.model.experts.is_some() == experts)
            .map(|(_, off)| *off <= scales.of(experts)[at])
            .collect();
        of.iter().filter(|held| **held).count() as f64 / of.len() as f64
    };
    (scales, [held(false, 0), held(false, 1), held(true, 0), held(true, 1)])
}

/// Scores where the first row of the system, or another of the same model, is known.
fn one_row(rows: &[TrainingRow], out: &BTreeMap<String, StepFit>, scales: IntervalScales) {
    let (mut first, mut same, mut kept_first) = (Vec::new(), Vec::new(), Vec::new());
    let mut held = [0.0f64; 2];
    for (system, found) in out {
        let of: Vec<&TrainingRow> = rows.iter().filter(|row| row.system == *system).collect();
        let plain = StepPredictor::new(found.parameters.clone(), &doubted(found), scales);
        let knowing =
            |row: &TrainingRow| plain.knowing(&[KnownStep { job: &row.job, seconds: row.step_s.unwrap() }]);
        let known = knowing(of[0]);
        for row in &of[1..] {
            let predicted = known.predict(&row.job);
            let measured = row.step_s.unwrap();
            first.push(predicted.seconds / measured - 1.0);
            kept_first.push((*row).clone());
            for (held, within) in held.iter_mut().zip([predicted.within80, predicted.within95]) {
                *held += f64::from(u8::from(within[0] <= measured && measured <= within[1]));
            }
        }
        let mut runs: Vec<&str> = of.iter().map(|row| &*row.run).collect();
        runs.dedup();
        for run in runs {
            let of: Vec<_> = of.iter().filter(|row| row.run == run).collect();
            let known = knowing(of[0]);
            same.extend(
                of[1..]
                    .iter()
                    .filter(|row| row.job != of[0].job)
                    .map(|row| known.predict(&row.job).seconds / row.step_s.unwrap() - 1.0),
            );
        }
    }
    print_scores("first row of the system known", &kept_first, &first);
    println!(
        "first row of the model known: {:.2} / {:.2} %; held {:?}",
        100.0 * quantile(&same, 0.5),
        100.0 * quantile(&same, 0.9),
        held.map(|held| held / first.len() as f64)
    );
}

/// Writes `parameters.toml` again: fitted to all rows, with intervals from systems left out.
#[test]
#[ignore = "writes the file of parameters"]
fn write_parameters() {
    let Some(rows) = rows() else { return };
    let prior = StepParameterRow::published();
    let all: Vec<_> = rows.iter().map(sample).collect();
    let whole = fit(&all, prior, &StepParameters::published());
    let (scales, _) = intervals(&rows, &folds(&rows, prior, &whole.parameters));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/parameters.toml");
    let round = |value: f64| format!("{value:.4e}").parse::<f64>().unwrap();
    let mut text = String::from(
        "# Physical parameters of a step of a large model (see parameters.rs), written by\n# cargo test -p allfold-large-models --lib -- --ignored physics::write_parameters\n",
    );
    text += &format!(
        "\n[intervals]\ndense = {:?}\nexperts = {:?}\n",
        scales.dense.map(round),
        scales.experts.map(round)
    );
    for (row, (log, deviation)) in prior.iter().zip(whole.parameters.logs().iter().zip(&whole.std_devs)) {
        let (value, deviation) = (round(log.exp()), round(*deviation));
        text += &format!(
            "\n[[parameter]]\nname = {:?}\nprior = {:?}\nstd_dev = {:?}\nvaries = {:?}\nvalue = {value:?}\ndeviation = {deviation:?}\nunit = {:?}\nsource = {:?}\n",
            row.name, row.prior, row.std_dev, row.varies, row.unit, row.source
        );
    }
    std::fs::write(path, text).unwrap();
}

/// Terms of the physics, and the parameters with which they vanish.
const TERMS: [(&str, &[(&str, f64)]); 14] = [
    (
        "tensor exchanges",
        &[
            ("tensor", 1e-9),
            ("tensor.2022", 1e-9),
            ("tensor.TransformerEngine", 1e-9),
            ("tensor.asynchronous", 1e-9),
        ],
    ),
    ("context exchanges", &[("context", 1e-9)]),
    ("all-to-all of experts", &[("experts", 1e-9)]),
    ("network of all-to-all", &[("experts.network", 1e-9)]),
    ("launches", &[("host", 1e-9), ("host.experts", 1e-9)]),
    ("time of each expert", &[("expert", 1e-9)]),
    ("messages between stages", &[("pipeline", 1e-9)]),
    ("hidden exchanges", &[("hidden", 1e-9)]),
    ("contention of hidden exchanges", &[("contention", 1e-9), ("contention.FSDP1", 1e-9)]),
    (
        "kernels between products",
        &[
            ("passes.Megatron", 1e-9),
            ("passes.eager", 1e-9),
            ("passes.compiled", 1e-9),
            ("passes.XLA", 1e-9),
            ("passes.TransformerEngine", 1e-9),
            ("passes.permutation", 1e-9),
            ("passes.loss", 1e-9),
        ],
    ),
    ("scores through memory", &[("attention.passes", 1e-9)]),
    ("casts", &[("passes.cast", 1e-9)]),
    ("alignment", &[("products.misaligned", 1.0)]),
    ("uneven stages", &[("uneven", 1e-9), ("uneven.Bridge", 1e-9)]),
];

#[test]
#[ignore = "prints scores without each term; minutes"]
fn ablation() {
    let Some(rows) = rows() else { return };
    for (term, without) in TERMS {
        let mut prior = StepParameterRow::published().to_vec();
        for (name, value) in without {
            let row = prior.iter_mut().find(|row| row.name == *name).unwrap();
            (row.prior, row.std_dev) = (*value, 0.0);
        }
        let out = folds(&rows, &prior, &StepParameters::published());
        let error = |row: &TrainingRow| {
            step(&row.job, &out[&row.system].parameters).total() / row.step_s.unwrap() - 1.0
        };
        print_scores(term, &rows, &rows.iter().map(error).collect::<Vec<_>>());
    }
}

fn detail(rows: &[TrainingRow], errors: &[f64], whole: &StepFit) {
    let mut groups: BTreeMap<(String, String), Vec<(f64, usize)>> = BTreeMap::new();
    for (i, (row, error)) in rows.iter().zip(errors).enumerate() {
        groups.entry((row.system.clone(), row.run.clone())).or_default().push((*error, i));
    }
    for ((system, run), list) in &groups {
        let values: Vec<f64> = list.iter().map(|(e, _)| *e).collect();
        let mut signed = values.clone();
        signed.sort_by(f64::total_cmp);
        println!(
            "{system:28} {run:52} n {:3} med {:5.1} p90 {:5.1} bias {:+5.1}",
            list.len(),
            100.0 * quantile(&values, 0.5),
            100.0 * quantile(&values, 0.9),
            100.0 * signed[signed.len() / 2]
        );
    }
    let by = |label: &str, key: &dyn Fn(&TrainingRow) -> String| {
        let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        rows.iter().zip(errors).for_each(|(row, error)| groups.entry(key(row)).or_default().push(*error));
        println!("-- {label}");
        for (key, mut list) in groups {
            list.sort_by(f64::total_cmp);
            println!(
                "{key:40} n {:4} med {:5.1} p90 {:5.1} bias {:+5.1}",
                list.len(),
                100.0 * quantile(&list, 0.5),
                100.0 * quantile(&list, 0.9),
                100.0 * list[list.len() / 2]
            );
        }
    };
    by("system", &|row| row.system.clone());
    by("framework", &|row| {
        format!("{:?} {:?} {}", row.job.framework, row.job.precision, row.job.cluster.gpu)
    });
    println!("-- parameters");
    for (row, (log, deviation)) in
        StepParameterRow::published().iter().zip(whole.parameters.logs().iter().zip(&whole.std_devs))
    {
        println!(
            "{:26} prior {:9.4e} fit {:9.4e} sd {:.3} of {:.3} z {:+.2}",
            row.name,
            row.prior,
            log.exp(),
            deviation,
            row.std_dev,
            (log - row.prior.ln()) / row.std_dev
        );
    }
    println!("{:?}", whole.offsets);
    if std::env::var("DETAIL").unwrap() == "rows" {
        each_row(rows, errors, whole);
    }
}

/// Prints every row with its error and the parts of its step.
fn each_row(rows: &[TrainingRow], errors: &[f64], whole: &StepFit) {
    for (row, error) in rows.iter().zip(errors) {
        let t = step(&row.job, &whole.parameters);
        let l = &row.job.layout;
        let parts: Vec<String> = crate::step::StepTime::PARTS
            .iter()
            .zip(t.parts())
            .filter(|(_, s)| *s > 0.01 * t.total())
            .map(|(n, s)| format!("{n} {:.0}", 100.0 * s / t.total()))
            .collect();
        println!(
            "ROW {:+6.1} {} {} | {} {:?} {:?} n{} t{} p{}v{} c{} e{} {:?} {:?} mb{} gb{} s{} sp{} | {:.3} s | {}",
            100.0 * error,
            row.run,
            row.row,
            row.system,
            row.job.framework,
            row.job.precision,
            l.gpus,
            l.tensor,
            l.pipeline,
            l.chunks,
            l.context,
            l.expert,
            l.sharding,
            l.recompute,
            l.micro_batch,
            l.global_batch,
            l.sequence,
            l.sequence_parallel,
            row.step_s.unwrap(),
            parts.join(" ")
        );
    }
}
