//! Training held against PyTorch 2.15: losses, first gradients and final weights of 20 steps, on 1, 2 and 4 ranks.
//! `trainer/fixtures/README.md` says how the numbers were made.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_collectives::{Communicator, World};
use allfold_kernels::nn::Float;
use allfold_trainer::models::{Cnn, cnn, mlp};
use allfold_trainer::strategies::build;
use allfold_trainer::{Config, Model, Sgd};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::collections::BTreeMap;

const TENSORS: &[u8] = include_bytes!("../fixtures/parity.safetensors");
const CASES: &str = include_str!("../fixtures/parity.json");
/// Samples per step over all ranks.
const GLOBAL: usize = 16;

#[derive(Deserialize)]
struct Oracle {
    cases: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
struct Case {
    model: String,
    dtype: String,
    nesterov: bool,
    world: u32,
    lr: Vec<f64>,
    loss_per_rank: Vec<Vec<f64>>,
}

/// A tensor's numbers, whatever type they are stored in.
fn tensor(name: &str) -> Vec<f64> {
    let all = SafeTensors::deserialize(TENSORS).unwrap();
    let view = all.tensor(name).unwrap_or_else(|_| panic!("the fixture has no {name}"));
    match view.dtype() {
        Dtype::F64 => view.data().as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
        Dtype::F32 => view.data().as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
        Dtype::I64 => view.data().as_chunks().0.iter().map(|&b| i64::from_le_bytes(b) as f64).collect(),
        other => panic!("{name} is {other:?}"),
    }
}

/// The fixture's names of this model's parameters and buffers, in order.
fn names(model: &str) -> [&'static [&'static str]; 2] {
    match model {
        "mlp" => [&["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"], &[]],
        _ => [
            &["conv.weight", "bn.weight", "bn.bias", "fc.weight", "fc.bias"],
            &["bn.running_mean", "bn.running_var"],
        ],
    }
}

fn joined(prefix: &str, names: &[&str]) -> Vec<f64> {
    names.iter().flat_map(|name| tensor(&format!("{prefix}{name}"))).collect()
}

/// What a rank ends with: (losses, first gradients, parameters, buffers).
type Trace = (Vec<f64>, Vec<f64>, Vec<f64>, Vec<f64>);

fn run<F: Float>(case: &Case, comm: &Communicator) -> allfold_trainer::Result<Trace> {
    let network = match case.model.as_str() {
        "mlp" => mlp::<F>(20, &[16], 5)?,
        _ => cnn(&Cnn { shape: (2, 8, 8), channels: &[4], batch_norm: true, classes: 5 })?,
    };
    let strategy = if case.world == 1 { "single" } else { "ddp" };
    // Buckets of a few parameters, so that there are several.
    let config =
        Config { strategy: strategy.into(), first_bucket_kib: 0, bucket_kib: 1, ..Config::default() };
    let mut strategy = build(&config, &network, comm)?;
    let cast = |values: Vec<f64>| values.into_iter().map(F::from_f64).collect::<Vec<F>>();
    let features = network.inputs();
    let mut model = Model::new(network, 1)?;
    let [params, buffers] = names(&case.model);
    // Rank 0 alone has the right weights; the others must get them from it.
    if comm.rank().0 == 0 {
        model.params = cast(joined(&format!("{}.", case.model), params));
        model.buffers = cast(joined(&format!("{}.", case.model), buffers));
    }
    strategy.start(&mut model)?;
    let mut sgd = Sgd::new(0.0, 0.9, 0.01, case.nesterov);
    let (x, y) = (cast(tensor(&format!("{}_x", case.model))), tensor(&format!("{}_y", case.model)));
    let share = GLOBAL / case.world as usize;
    let (mut losses, mut first) = (Vec::new(), Vec::new());
    for (step, &lr) in case.lr.iter().enumerate() {
        let from = step * GLOBAL + comm.rank().index() * share;
        let labels: Vec<u32> = y[from..from + share].iter().map(|&label| label as u32).collect();
        model.forward(&x[from * features..(from + share) * features], true, |_| ());
        losses.push(strategy.backward(&mut model, &labels)?.loss.to_f64());
        if step == 0 {
            first = model.grads.iter().map(|g| g.to_f64()).collect();
        }
        sgd.lr = lr;
        sgd.step(&mut model.params, &model.grads);
    }
    strategy.before_evaluation(&mut model)?;
    let plain = |values: &[F]| values.iter().map(|v| v.to_f64()).collect();
    Ok((losses, first, plain(&model.params), plain(&model.buffers)))
}

fn worst(mine: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(mine.len(), theirs.len());
    mine.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn hold(dtype: &str, tolerance: f64) {
    let oracle: Oracle = serde_json::from_str(CASES).unwrap();
    let cases: Vec<_> = oracle.cases.iter().filter(|(_, case)| case.dtype == dtype).collect();
    assert_eq!(cases.len(), 9);
    for (name, case) in cases {
        let traces = World::threads(case.world)
            .run(|comm| if dtype == "f64" { run::<f64>(case, &comm) } else { run::<f32>(case, &comm) })
            .unwrap();
        let [params, buffers] = names(&case.model);
        let want_first = joined(&format!("{name}/grad1."), params);
        let want_params = joined(&format!("{name}/final."), params);
        let want_buffers = joined(&format!("{name}/final."), buffers);
        for (rank, (losses, first, params, buffers)) in traces.iter().enumerate() {
            let want: Vec<f64> = case.loss_per_rank.iter().map(|ranks| ranks[rank]).collect();
            for (what, error) in [
                ("losses", worst(losses, &want)),
                ("first gradients", worst(first, &want_first)),
                ("final weights", worst(params, &want_params)),
                ("running statistics", worst(buffers, &want_buffers)),
            ] {
                println!("{name} rank {rank} {what}: {error:.1e}");
                assert!(error <= tolerance, "{name}, rank {rank}, {what}: off by {error:e}");
            }
        }
    }
}

#[test]
fn f64_to_1e_12() {
    hold("f64", 1e-12);
}

#[test]
fn f32_to_2e_6() {
    hold("f32", 2e-6);
}
