//! One training step of three models, timed as `benches/peers/torch_step.py` times PyTorch's: the same shapes, optimisers
//! and numbers of steps, the median of all steps. `benches/peers/run.sh` runs both, one after the other.
//!
//! `cargo bench -p allfold-trainer --bench peer -- mlp 1` prints one line of JSON.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::disallowed_methods, reason = "real time is what is measured")]

use allfold_kernels::nn::{Cost, Team};
use allfold_trainer::models::{Gpt, ResNet, gpt, mlp, resnet};
use allfold_trainer::optim::Adam;
use allfold_trainer::{Listener, Model, Network, Objective, Optimiser, Result, Sgd};
use std::time::Instant;

struct Nobody;

impl Listener<f32> for Nobody {
    fn spent(&mut self, _: Cost) {}
    fn ready(&mut self, _: usize, _: &[f32]) -> Result<()> {
        Ok(())
    }
}

/// What is timed: a network, its optimiser, samples, and (steps before, steps timed).
type Case = (Network<f32>, Box<dyn Optimiser<f32>>, f64, usize, (usize, usize));

fn case(model: &str) -> Case {
    match model {
        "mlp" => (mlp(784, &[128], 10).unwrap(), Box::new(Sgd::new(0.0, 0.0, false)), 0.01, 64, (200, 2000)),
        "gpt" => {
            let parts = Gpt {
                vocabulary: 1024,
                positions: 128,
                layers: 4,
                width: 128,
                heads: 4,
                dropout: 0.0,
                attention_dropout: 0.0,
                tied: false,
            };
            let adam = Adam::new((0.9, 0.999), 1e-8, 0.01, true);
            (gpt(&parts).unwrap(), Box::new(adam), 3e-4, 8, (6, 40))
        }
        "resnet18" => {
            let parts = ResNet { layers: 18, imagenet_stem: false, shape: (3, 32, 32), classes: 10 };
            (resnet(&parts).unwrap(), Box::new(Sgd::new(0.9, 5e-4, false)), 0.1, 32, (2, 12))
        }
        other => panic!("no model {other}; there are mlp, gpt, resnet18"),
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let model = words.first().map_or("mlp", |word| word);
    let threads: usize = words.get(1).map_or(1, |word| word.parse().unwrap());
    let (network, mut optimiser, lr, batch, (warm, steps)) = case(model);
    let (rows, classes) = (network.rows(), network.classes());
    let whole = model == "gpt";
    let number = |i: usize| (i as u64 * 2_654_435_761 % 4_093) as f32;
    let x: Vec<f32> = (0..batch * network.inputs())
        .map(|i| if whole { number(i) as u32 as f32 % 1024.0 } else { number(i) / 1024.0 - 2.0 })
        .collect();
    let labels: Vec<u32> = (0..batch * rows).map(|i| number(i + 7) as u32 % classes as u32).collect();
    let mut model = Model::new(network, 0).unwrap();
    let (mut times, mut parts, mut loss) = (Vec::new(), [0.0; 3], 0.0);
    Team::new(threads).enter(|| {
        for step in 0..warm + steps {
            let start = Instant::now();
            model.forward(&x, &mut Nobody).unwrap();
            let forward = Instant::now();
            loss = model.backward(Objective::mean(&labels), &mut Nobody).unwrap();
            let backward = Instant::now();
            optimiser.step(lr, &mut model.params, &model.grads);
            if step >= warm {
                let spans = [forward - start, backward - forward, backward.elapsed()];
                parts
                    .iter_mut()
                    .zip(spans)
                    .for_each(|(part, span)| *part += span.as_secs_f64() * 1e3 / steps as f64);
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
    });
    times.sort_by(f64::total_cmp);
    let (median, least) = (times[times.len() / 2], times[0]);
    let name = words.first().map_or("mlp", |word| word);
    println!(
        "{{\"engine\": \"allfold\", \"model\": \"{name}\", \"threads\": {threads}, \"med_ms\": {median:.4}, \
         \"min_ms\": {least:.4}, \"forward_ms\": {:.4}, \"backward_ms\": {:.4}, \"optimiser_ms\": {:.4}, \"loss\": {loss}}}",
        parts[0], parts[1], parts[2]
    );
}
