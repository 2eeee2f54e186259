//! ResNet-18 and a GPT against PyTorch: weights loaded by PyTorch's names, then loss, every gradient and the logits
//! of an evaluation, in f64. `fixtures/models.py` contains what was computed, and with which weights; `fixtures/llama.py` that of a llama
//! against Hugging Face's, with ten steps of AdamW.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_collectives::World;
use allfold_kernels::nn::Float;
use allfold_trainer::engine::StepInput;
use allfold_trainer::layers::{Forward, Layer, LayerCost, LayerTraits, Linear};
use allfold_trainer::models::{Gpt, Llama, ResNet, gpt, llama, resnet};
use allfold_trainer::{
    Batch, Config, Error, Model, Network, RankTrainer, config, data, models, optim, weights,
};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn formula(number: usize, count: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 37 + number * 101 + i / 7) % 211) as f64 / 211.0 - 0.5).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// The state dict as PyTorch saves it, with the counters that are ignored.
fn state_dict(case: &Value) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let tensors = case["tensors"].as_array().unwrap().iter().map(|tensor| {
        let (name, number) = (tensor[0].as_str().unwrap(), tensor[1].as_u64().unwrap() as usize);
        let shape: Vec<usize> = numbers(&tensor[2]).into_iter().map(|side| side as usize).collect();
        let count: usize = shape.iter().product();
        let row = (count / shape[0]) as f64;
        let sides = shape.len();
        let values = formula(number, count).into_iter().map(|value| match sides {
            1 if name.ends_with("weight") || name.ends_with("running_var") => value + 1.0,
            1 => value,
            _ => value * 4.0 / row.sqrt(),
        });
        (name.to_string(), shape, values.flat_map(f64::to_le_bytes).collect())
    });
    let counter = ("bn1.num_batches_tracked".to_string(), vec![1], 0f64.to_le_bytes().to_vec());
    tensors.chain([counter]).collect()
}

fn save(path: &std::path::Path, tensors: &[(String, Vec<usize>, Vec<u8>)]) {
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.clone(), TensorView::new(Dtype::F64, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn close(what: &str, got: &[f64], want: &[f64], within: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= within * (1.0 + want.abs()), "{what}[{i}]: {got} and PyTorch {want}");
    }
}

#[test]
fn weights_by_pytorchs_names_give_pytorchs_numbers() {
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/models.json")).unwrap();
    let resnet18 = |imagenet_stem, side| {
        resnet::<f64>(&ResNet { layers: 18, imagenet_stem, shape: (3, side, side), classes: 10 }).unwrap()
    };
    let parts = Gpt {
        vocabulary: 11,
        positions: 40,
        layers: 2,
        width: 24,
        heads: 3,
        dropout: 0.0,
        attention_dropout: 0.0,
        tied: true,
    };
    let tokens: Vec<u32> = (0..80).map(|i| i * 7 % 11).collect();
    let pictures = |side: usize| formula(5, 4 * 3 * side * side).iter().map(|x| x * 2.0).collect::<Vec<_>>();
    type Case<'a> = (&'a str, &'a (dyn Fn() -> Network<f64> + Sync), Vec<f64>, Vec<u32>);
    let cases: [Case<'_>; 3] = [
        ("resnet18_cifar", &|| resnet18(false, 16), pictures(16), vec![3, 1, 4, 9]),
        ("resnet18_imagenet", &|| resnet18(true, 64), pictures(64), vec![3, 1, 4, 9]),
        (
            "gpt",
            &|| gpt(&parts).unwrap(),
            tokens.iter().map(|&token| f64::from(token)).collect(),
            tokens.iter().map(|token| (token * 3 + 2) % 11).collect(),
        ),
    ];
    let directory = tempfile::tempdir().unwrap();
    let config = Config::default().with(|c| c.strategy = "single".into());
    for (name, network, x, labels) in cases {
        let case = &fixture["cases"][name];
        let path = directory.path().join(name);
        save(&path, &state_dict(case));
        let body = |comm| {
            let mut model = Model::new(network(), 0)?;
            weights::load(&path, &mut model)?;
            let mut rank = RankTrainer::new(&config, network(), &comm)?;
            rank.start(&mut model)?;
            let mut batch = Batch { x: x.clone(), labels: labels.clone() };
            let loss = rank.step(&mut batch, StepInput::default(), None)?.loss;
            // The training pass updated the running statistics, as PyTorch's did.
            rank.download(&mut model.params, &mut model.buffers)?;
            model.evaluate(&batch, |_| {});
            Ok::<_, Error>((loss, rank.gradients()?, model.logits().to_vec()))
        };
        let (loss, grads, evaluated) = World::threads(1).run(body).unwrap().remove(0);
        close(&format!("{name} loss"), &[loss], &[case["loss"].as_f64().unwrap()], 1e-12);
        for (number, place) in network().params().iter().enumerate() {
            let g = &grads[place.range.clone()];
            let other = formula(number + 1000, g.len());
            let got = [
                g.iter().sum(),
                g.iter().zip(other).map(|(g, f)| g * f).sum(),
                g.iter().map(|g| g * g).sum::<f64>().sqrt(),
            ];
            close(&format!("{name} {}", place.name), &got, &numbers(&case["gradients"][&place.name]), 1e-9);
        }
        close(&format!("{name} evaluated"), &evaluated, &numbers(&case["evaluated"]), 1e-11);
    }
}

/// The sum of `values`, their product with the formula of tensor `number`, and their norm.
fn three(values: &[f64], number: usize) -> [f64; 3] {
    let other = formula(number + 1000, values.len());
    let dot = values.iter().zip(other).map(|(value, other)| value * other).sum();
    [values.iter().sum(), dot, values.iter().map(|value| value * value).sum::<f64>().sqrt()]
}

/// Trains the llama of a case for ten steps of AdamW, and compares all numbers with Hugging Face's, `within` of 1 plus their size; those
/// after the tenth step within `at_last`.
fn llama_is_hugging_faces<F: Float>(
    name: &str,
    case: &Value,
    path: &std::path::Path,
    (within, at_last): (f64, f64),
) {
    let network = || {
        llama::<F>(&Llama {
            vocabulary: 96,
            positions: 12,
            layers: 2,
            width: 32,
            heads: 4,
            kv_heads: 2,
            ffn: 56,
            rope_base: 500.0,
            attention_dropout: 0.0,
            tied: name == "tied",
        })
        .unwrap()
    };
    let config = Config::default().with(|c| {
        c.strategy = "single".into();
        c.optimiser.name = "adamw".into();
        c.optimiser.weight_decay = 0.01;
    });
    let tokens: Vec<u32> = (0..24).map(|i| i * 7 % 96).collect();
    let mut batch = Batch {
        x: tokens.iter().map(|&token| F::from_f64(f64::from(token))).collect(),
        labels: tokens.iter().map(|token| (token * 3 + 2) % 96).collect(),
    };
    let wide = |values: &[F]| values.iter().map(|value| value.to_f64()).collect::<Vec<_>>();
    let batch = Mutex::new(&mut batch);
    let body = |comm| {
        let mut batch = batch.lock().unwrap();
        let mut model = Model::new(network(), 0)?;
        weights::load(path, &mut model)?;
        model.evaluate(&batch, |_| {});
        let evaluated = wide(model.logits());
        let mut rank = RankTrainer::new(&config, network(), &comm)?;
        rank.start(&mut model)?;
        let (mut losses, mut grads) = (Vec::new(), Vec::new());
        for step in 0..10 {
            losses.push(rank.step(&mut batch, StepInput { lr: 0.01, ..StepInput::default() }, None)?.loss);
            if step == 0 {
                grads = wide(&rank.gradients()?);
            }
        }
        rank.download(&mut model.params, &mut model.buffers)?;
        Ok::<_, Error>((evaluated, losses, grads, wide(&model.params)))
    };
    let (evaluated, losses, grads, trained) = World::threads(1).run(body).unwrap().remove(0);
    let want = numbers(&case["losses"]);
    close(&format!("{name} losses"), &losses[..9], &want[..9], within);
    close(&format!("{name} last loss"), &losses[9..], &want[9..], at_last);
    for (number, place) in network().params().iter().map(|place| {
        let tensors = case["tensors"].as_array().unwrap();
        let tensor = tensors.iter().find(|tensor| tensor[0] == *place.name).unwrap();
        (tensor[1].as_u64().unwrap() as usize, place)
    }) {
        for (what, values, within) in [("gradients", &grads, within), ("trained", &trained, at_last)] {
            let got = three(&values[place.range.clone()], number);
            close(&format!("{name} {what} {}", place.name), &got, &numbers(&case[what][&place.name]), within);
        }
    }
    let rows: Vec<f64> = evaluated.chunks_exact(96).step_by(8).flatten().copied().collect();
    if name == "untied" {
        close("logits", &rows, &numbers(&case["evaluated"]), within);
    }
}

#[test]
fn a_llama_with_hugging_faces_weights_gives_its_numbers() {
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/llama.json")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for name in ["untied", "tied"] {
        let (case, path) = (&fixture["cases"][name], directory.path().join(name));
        save(&path, &state_dict(case));
        llama_is_hugging_faces::<f64>(name, case, &path, (1e-11, 1e-10));
        // Adam divides by the square root of small moments: in f32 PyTorch's tenth loss is 6e-5 from its own in f64.
        llama_is_hugging_faces::<f32>(name, case, &path, (1e-5, 2e-4));
    }
}

/// Tokens above 65,535, such as 70,001, have rows of their own in the table and in the logits.
#[test]
fn tokens_beyond_two_bytes_are_told_apart() {
    let run = Config::default().with(|c| {
        c.strategy = "single".into();
        c.model.name = "llama".into();
        (c.model.layers, c.model.width, c.model.heads, c.model.tied) = (1, 4, 2, false);
        c.data.name = "synthetic".into();
        (c.data.positions, c.data.synthetic_classes) = (3, 70_010);
    });
    config::check(&run).unwrap();
    let network = || models::build::<f32>(&run, data::form(&run).unwrap()).unwrap();
    let body = |comm| {
        let mut rank = RankTrainer::new(&run, network(), &comm)?;
        rank.start(&mut Model::new(network(), 0)?)?;
        let mut batch = Batch { x: vec![70_001.0, 4_466.0, 3.0], labels: vec![70_009, 4_473, 0] };
        rank.step(&mut batch, StepInput::default(), None)?;
        rank.gradients()
    };
    let grads = World::threads(1).run(body).unwrap().remove(0);
    let of = |name: &str| {
        let network = network();
        let place = network.params().iter().find(|place| place.name == name).unwrap();
        grads[place.range.clone()].to_vec()
    };
    let touched = |table: &[f32]| {
        let rows = table.chunks_exact(4).enumerate();
        rows.filter(|(_, row)| row.iter().any(|g| *g != 0.0)).map(|(row, _)| row).collect::<Vec<_>>()
    };
    assert_eq!(touched(&of("model.embed_tokens.weight")), [3, 4_466, 70_001]);
    let head = of("lm_head.weight");
    let size = |row: usize| head[row * 4..][..4].iter().map(|g| g.abs()).sum::<f32>();
    assert!([70_009, 4_473, 0].into_iter().all(|row| size(row) > 100.0 * size(70_008)));
}

#[test]
fn weights_of_another_model_are_refused_by_name() {
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/models.json")).unwrap();
    let mut tensors = state_dict(&fixture["cases"]["resnet18_cifar"]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights");
    let refused = |tensors: &[(String, Vec<usize>, Vec<u8>)]| {
        save(&path, tensors);
        let parts = ResNet { layers: 18, imagenet_stem: false, shape: (3, 8, 8), classes: 10 };
        let mut model = Model::new(resnet::<f64>(&parts).unwrap(), 0).unwrap();
        let error = weights::load(&path, &mut model).unwrap_err().to_string();
        error.replace(&path.display().to_string(), "FILE")
    };
    tensors[0].1 = vec![64, 27];
    assert_eq!(
        refused(&tensors),
        "checkpoint: FILE: `conv1.weight` has the shape [64, 27] where the model wants [64, 3, 3, 3]"
    );
    tensors.remove(0);
    assert_eq!(refused(&tensors), "checkpoint: FILE: has no tensor `conv1.weight`");
    tensors[0].0 = "bn.weight".into();
    assert_eq!(refused(&tensors), "checkpoint: FILE: has a tensor `bn.weight` that the model does not have");
}

/// The identity. This layer counts the calls of `sync_len`: one each time the phases of a pass are listed.
struct Counted(Arc<AtomicUsize>);

impl Layer<f64> for Counted {
    fn inputs(&self) -> usize {
        3
    }
    fn outputs(&self) -> usize {
        3
    }
    fn sync_len(&self) -> (usize, usize) {
        self.0.fetch_add(1, Ordering::Relaxed);
        (0, 0)
    }
    fn traits(&self) -> LayerTraits {
        LayerTraits { identity_backward: true, ..LayerTraits::default() }
    }
    fn forward(&self, pass: Forward<f64>) {
        pass.y.copy_from_slice(pass.x);
    }
    fn cost(&self, _n: usize) -> LayerCost {
        LayerCost::default()
    }
}

/// Regression: every backward pass listed the phases again, to find the parameters that the loss does not depend on.
#[test]
fn a_step_lists_no_phases() {
    let asked = Arc::<AtomicUsize>::default();
    let layers: Vec<(String, Box<dyn Layer<f64>>)> = vec![
        ("fc".into(), Box::new(Linear::new(2, 3))),
        ("counted".into(), Box::new(Counted(asked.clone()))),
    ];
    let network = Mutex::new(Some(Network::new(layers).unwrap()));
    let config = Config::default().with(|c| c.strategy = "single".into());
    let again = World::threads(1).run(|comm| {
        let mut rank = RankTrainer::new(&config, network.lock().unwrap().take().unwrap(), &comm)?;
        rank.upload(&[0.5; 9], &[], &mut *optim::build(&config, &[])?)?;
        let mut step = || {
            let mut batch = Batch { x: vec![0.5, 0.25], labels: vec![1] };
            rank.step(&mut batch, StepInput::default(), None).map(|_| asked.load(Ordering::Relaxed))
        };
        Ok::<_, Error>((step()?, step()?))
    });
    let (first, second) = again.unwrap()[0];
    assert!(first > 0 && first == second, "{first} {second}");
}
