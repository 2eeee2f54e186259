//! Recomputation of activations in every strategy: the same bits, less memory, and the time of the repeated forward pass.

use crate::on_gpus::trained;
use crate::predicted::{compare, predicted};
use crate::{ROWS, Row, gpt, llama, on};
use allfold_collectives::World;
use allfold_prediction::StepPrediction;
use allfold_sim::{Device, Faults};
use allfold_tests::training::{bits, run};
use allfold_trainer::Config;
use allfold_trainer::config::{AutocastType, ElementType};

/// Ranks of the runs: all rows take this number.
const RANKS: u32 = 4;

/// The row's model with dropout of activations, and of attention probabilities where no mixture drops tokens.
fn base(row: &Row) -> Config {
    row.gpt().with(|c| {
        c.model.dropout = 0.2;
        c.model.attention_dropout = 0.1;
        c.training.max_steps = 3;
        c.training.epochs = 4;
    })
}

/// The configuration with every `every`th block recomputed.
fn recomputing(config: &Config, every: usize) -> Config {
    config.clone().with(|c| c.training.recompute = every)
}

#[test]
fn losses_and_weights_have_the_bits_of_a_run_that_keeps_activations() {
    for row in &ROWS {
        // Two chunks on each of four stages need more cuts than four whole blocks leave.
        let ranks = if ["interleaved", "zb_v"].contains(&row.name) { 2 } else { RANKS };
        let config = on(row, &base(row), (row.data)(ranks).unwrap());
        let want = bits(&run(&World::threads(ranks), &config));
        for every in [1, 3] {
            let got = bits(&run(&World::threads(ranks), &recomputing(&config, every)));
            assert_eq!(got, want, "{}, every {every}", row.name);
        }
    }
}

/// A llama rotates queries and keys in place.
#[test]
fn a_llama_has_the_same_bits_too() {
    for name in ["single", "zero3", "zb_h1", "tensor"] {
        let base = llama().with(|c| {
            c.model.attention_dropout = 0.1;
            c.training.max_steps = 3;
            c.training.epochs = 4;
        });
        let config = match ROWS.iter().find(|row| row.name == name) {
            Some(row) => on(row, &base, (row.data)(RANKS).unwrap()),
            None => base.with(|c| c.strategy = "single".into()),
        };
        let ranks = if name == "single" { 1 } else { RANKS };
        let want = bits(&run(&World::threads(ranks), &config));
        assert_eq!(bits(&run(&World::threads(ranks), &recomputing(&config, 1))), want, "{name}");
        compare(name, &recomputing(&config, 1), ranks, Device::CPU_CORE);
    }
}

#[test]
fn the_clock_has_the_time_and_the_bytes_of_a_run_that_recomputes() {
    for row in &ROWS {
        let ranks = if ["interleaved", "zb_v"].contains(&row.name) { 2 } else { RANKS };
        let config = on(row, &base(row), (row.data)(ranks).unwrap());
        compare(row.name, &recomputing(&config, 1), ranks, Device::CPU_CORE);
        compare(row.name, &recomputing(&config, 2), ranks, Device::default());
    }
}

/// On the shim: in f32, and under autocast, where layers keep cast copies of their inputs.
#[test]
fn gpus_have_the_bits_of_a_run_that_keeps_activations() {
    for (name, amp) in [
        ("ddp", AutocastType::Bf16),
        ("zb_h1 x zero3", AutocastType::None),
        ("tensor", AutocastType::None),
        ("zero3 x expert", AutocastType::F16),
    ] {
        let row = ROWS.iter().find(|row| row.name == name).unwrap();
        let base = base(row).with(|c| {
            c.precision.dtype = ElementType::F32;
            c.precision.amp = amp;
            c.model.layers = 2;
            c.training.max_steps = 2;
            c.data.validation = 4;
        });
        let config = on(row, &base, (row.data)(RANKS).unwrap()).with(|c| c.training.batch /= 2);
        let [want, got] = [0, 1].map(|every| trained(&recomputing(&config, every), RANKS, true));
        assert_eq!(got, want, "{name}");
    }
}

/// On one rank the clock charges exactly the forward work that runs again, and holds less.
#[test]
fn recomputation_takes_time_and_frees_memory_on_the_clock() {
    let config = gpt().with(|c| c.strategy = "single".into());
    let of = |every| predicted(&recomputing(&config, every), 1, (Device::CPU_CORE, &Faults::NONE));
    let [none, all, half] = [0, 1, 2].map(of);
    assert_eq!((none.time.forward, all.time.forward), (all.time.forward, half.time.forward));
    let more = |steps: &StepPrediction| (steps.time.backward - none.time.backward).0;
    // Four blocks, or the first and the third of them.
    assert!(more(&all) > 0 && more(&all).abs_diff(2 * more(&half)) <= 8, "{} {}", more(&all), more(&half));
    assert!(more(&all) < none.time.forward.0);
    let held = |step: &StepPrediction| {
        let peak = step.peak().unwrap();
        (peak.activations + peak.saved_for_backward + peak.activation_gradients) as f64
    };
    // Of a row of a block: two norms, queries, keys and values, the attention, a residual sum and two layers of four times the width;
    // the norms save two numbers each, and each head one. Of four blocks one is held at a time.
    let (rows, width, heads) = (config.training.batch * config.data.positions, 16, 4);
    let block = (rows * (15 * width + 4 + heads) * size_of::<f64>()) as f64;
    let fallen = (held(&none) - held(&all)) / (3.0 * block);
    assert!((0.95..1.1).contains(&fallen), "{fallen} of what three blocks hold");
    assert!(held(&all) < held(&half) && held(&half) < held(&none));
}

#[test]
fn networks_without_blocks_and_layers_with_statistics_are_refused() {
    let refused = |config: Config| {
        let (train, _) = allfold_trainer::data::load(&config).unwrap();
        allfold_trainer::models::build::<f64>(&config, train.form()).err().unwrap().to_string()
    };
    let mlp = refused(crate::digits().with(|c| c.training.recompute = 1));
    assert!(mlp.contains("`training.recompute` is for networks of blocks"), "{mlp}");
    let resnet = refused(crate::digits().with(|c| {
        c.model.name = "resnet18".into();
        c.model.hidden = Vec::new();
        c.training.recompute = 2;
    }));
    assert!(resnet.contains("updates running statistics"), "{resnet}");
}
