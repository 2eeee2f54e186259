//! A network with its numbers: parameters, gradients and activations in flat buffers, and the two passes.

use crate::init::{initial, reserved};
use crate::layers::{Backward, Forward, Saved};
use crate::network::{Network, Phase};
use crate::{Batch, Result};
use allfold_kernels::nn::{Cost, Float};

/// What hears of a backward pass as it goes.
pub trait Listener<F> {
    /// So much was just computed.
    fn spent(&mut self, cost: Cost);

    /// The gradient of parameter `param` is final. Called once per parameter, the last one first.
    ///
    /// # Errors
    /// Whatever stops the pass.
    fn ready(&mut self, param: usize, gradient: &[F]) -> Result<()>;
}

/// A network with parameters, gradients, buffers and activations.
pub struct Model<F> {
    network: Network<F>,
    /// All parameters, one after another, as [`Network::params`] lays them out.
    pub params: Vec<F>,
    /// Their gradients, laid out alike.
    pub grads: Vec<F>,
    /// All buffers, one after another, as [`Network::buffers`] lays them out.
    pub buffers: Vec<F>,
    /// `acts[l]` goes into layer l, `acts[l + 1]` comes out of it.
    acts: Vec<Vec<F>>,
    saved: Vec<Saved<F>>,
    /// The gradient on its way down, and the one of the layer below.
    down: (Vec<F>, Vec<F>),
}

impl<F: Float> Model<F> {
    /// The network with initial values drawn from `seed`.
    ///
    /// # Errors
    /// If its parameters do not fit in memory.
    pub fn new(network: Network<F>, seed: u64) -> Result<Model<F>> {
        let layers = network.layers().len();
        let mut grads = reserved(network.param_count())?;
        grads.resize(network.param_count(), F::ZERO);
        Ok(Model {
            params: initial(network.params(), seed)?,
            grads,
            buffers: initial(network.buffers(), seed)?,
            acts: vec![Vec::new(); layers + 1],
            saved: (0..layers).map(|_| Saved { values: Vec::new(), places: Vec::new() }).collect(),
            down: (Vec::new(), Vec::new()),
            network,
        })
    }

    /// Its layers and where its parameters lie.
    pub fn network(&self) -> &Network<F> {
        &self.network
    }

    /// One parameter's values.
    pub fn param(&self, param: usize) -> &[F] {
        &self.params[self.network.params()[param].range.clone()]
    }

    /// Logits of the samples `x`, one row per sample. In training, batch norms normalise by the batch and move their
    /// running statistics, and everything is kept for [`Model::backward`]. `spent` hears what each layer cost.
    pub fn forward(&mut self, x: &[F], train: bool, mut spent: impl FnMut(Cost)) -> &[F] {
        let n = x.len() / self.network.inputs().max(1);
        self.acts[0].clear();
        self.acts[0].extend_from_slice(x);
        for l in 0..self.network.layers().len() {
            let layer = &self.network.layers()[l];
            let (values, places) = layer.saved(n);
            let saved = &mut self.saved[l];
            saved.values.resize(values, F::ZERO);
            saved.places.resize(places, 0);
            let (below, above) = self.acts.split_at_mut(l + 1);
            let y = &mut above[0];
            y.resize(n * layer.outputs(), F::ZERO);
            layer.forward(Forward {
                n,
                train,
                params: &self.params[self.network.values_of(l)],
                buffers: &mut self.buffers[self.network.buffers_of(l)],
                x: &below[l],
                y,
                saved,
            });
            let cost = layer.cost(n);
            spent(if train { cost.forward } else { cost.evaluate });
        }
        self.logits()
    }

    /// The logits of the last forward pass.
    pub fn logits(&self) -> &[F] {
        self.acts.last().map_or(&[], |logits| logits)
    }

    /// The mean loss of the last forward pass; the gradients of all parameters are replaced, and announced to
    /// `listener` one by one as soon as they are final.
    ///
    /// # Errors
    /// What `listener` returned; the gradients are then incomplete.
    pub fn backward(&mut self, labels: &[u32], listener: &mut impl Listener<F>) -> Result<F> {
        let n = labels.len();
        let mut loss = F::ZERO;
        for phase in self.network.backward_phases() {
            match phase {
                Phase::Loss => loss = self.loss(labels),
                Phase::Params(l) => self.layer(l, n, None),
                Phase::Input(l) => {
                    let mut dx = std::mem::take(&mut self.down.1);
                    dx.resize(n * self.network.layers()[l].inputs(), F::ZERO);
                    self.layer(l, n, Some(&mut dx));
                    self.down.1 = std::mem::replace(&mut self.down.0, dx);
                }
                Phase::Ready(param) => {
                    listener.ready(param, &self.grads[self.network.params()[param].range.clone()])?;
                }
                Phase::Forward(_) => {}
            }
            if !matches!(phase, Phase::Ready(_)) {
                listener.spent(self.network.cost(phase, n));
            }
        }
        Ok(loss)
    }

    /// (Sum of losses, correct answers) over a batch, with running statistics and nothing kept.
    pub fn evaluate(&mut self, batch: &Batch<F>, spent: impl FnMut(Cost)) -> (F, u64) {
        let loss = self.network.loss();
        let logits = self.forward(&batch.x, false, spent);
        (loss.sum(logits, &batch.labels), loss.correct(logits, &batch.labels))
    }

    fn loss(&mut self, labels: &[u32]) -> F {
        let logits = self.acts.last().map_or(&[][..], |logits| logits);
        self.down.0.resize(logits.len(), F::ZERO);
        self.network.loss().forward_backward(logits, labels, &mut self.down.0)
    }

    /// The backward pass of one layer: by its parameters, or by its input into `dx`.
    fn layer(&mut self, l: usize, n: usize, dx: Option<&mut [F]>) {
        let values = self.network.values_of(l);
        let mut pass = Backward {
            n,
            params: &self.params[values.clone()],
            x: &self.acts[l],
            y: &self.acts[l + 1],
            dy: &self.down.0,
            saved: &mut self.saved[l],
        };
        let grads = &mut self.grads[values];
        match dx {
            None => self.network.layers()[l].backward_params(&mut pass, grads),
            Some(dx) => self.network.layers()[l].backward_input(&mut pass, grads, dx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{BatchNorm, Conv2d, GlobalMeanPool, Layer, Linear, MaxPool, MeanPool, Relu};
    use crate::models::{Cnn, cnn, mlp};
    use allfold_kernels::nn::{self, Pool};

    /// Remembers who was ready, and that the gradient was the final one.
    struct Log(Vec<(usize, Vec<f64>)>, Cost);

    impl Listener<f64> for Log {
        fn spent(&mut self, cost: Cost) {
            self.1 = self.1 + cost;
        }
        fn ready(&mut self, param: usize, gradient: &[f64]) -> Result<()> {
            self.0.push((param, gradient.to_vec()));
            Ok(())
        }
    }

    /// Networks that hold every layer between them.
    fn networks() -> Vec<Network<f64>> {
        let picture = (6, 6);
        let conv = |inputs, outputs, stride| {
            Conv2d::new(nn::Conv2d { inputs, outputs, picture, kernel: 3, stride, padding: 1 })
        };
        let mean = Pool { channels: 3, picture: (3, 3), window: 2, stride: 1 };
        let every: Vec<(&str, Box<dyn Layer<f64>>)> = vec![
            ("conv", Box::new(conv(2, 3, 2))),
            ("bn", Box::new(BatchNorm::new(3, 9))),
            ("relu", Box::new(Relu::new(27))),
            ("mean", Box::new(MeanPool::new(mean))),
            ("global", Box::new(GlobalMeanPool::new(3, 4))),
            ("fc", Box::new(Linear::new(3, 4))),
        ];
        let max = Pool { channels: 2, picture, window: 2, stride: 2 };
        let pooled: Vec<(&str, Box<dyn Layer<f64>>)> =
            vec![("max", Box::new(MaxPool::new(max))), ("fc", Box::new(Linear::new(18, 3)))];
        let named = |layers: Vec<(&str, Box<dyn Layer<f64>>)>| {
            Network::new(layers.into_iter().map(|(name, layer)| (name.to_string(), layer)).collect()).unwrap()
        };
        let parts = Cnn { shape: (1, 4, 4), channels: &[2, 3], batch_norm: true, classes: 3 };
        vec![named(every), named(pooled), mlp(7, &[6, 5], 4).unwrap(), cnn(&parts).unwrap()]
    }

    #[test]
    fn gradients_of_whole_networks_match_differences() {
        const N: usize = 4;
        for network in networks() {
            let (inputs, classes) = (network.inputs(), network.classes());
            let mut model = Model::new(network, 3).unwrap();
            let places: Vec<_> = (0..N * inputs).map(|i| ((i * 37 % 101) as f64 / 50.0) - 1.0).collect();
            let labels: Vec<u32> = (0..N as u32).map(|i| i % classes as u32).collect();
            let run = |model: &mut Model<f64>| {
                model.forward(&places, true, |_| ());
                model.backward(&labels, &mut Log(Vec::new(), Cost::default())).unwrap()
            };
            run(&mut model);
            let grads = model.grads.clone();
            for i in (0..grads.len()).step_by(grads.len().div_ceil(60)) {
                let (at, step) = (model.params[i], 1e-6);
                let mut shifted = |to: f64| {
                    model.params[i] = to;
                    run(&mut model)
                };
                let numeric = (shifted(at + step) - shifted(at - step)) / (2.0 * step);
                model.params[i] = at;
                assert!((numeric - grads[i]).abs() < 1e-6, "param {i}: {} {numeric}", grads[i]);
            }
        }
    }

    #[test]
    fn gradients_are_announced_last_first_and_final() {
        for network in networks() {
            let (inputs, count) = (network.inputs(), network.params().len());
            let mut model = Model::new(network, 3).unwrap();
            model.forward(&vec![0.3; 2 * inputs], true, |_| ());
            let mut log = Log(Vec::new(), Cost::default());
            model.backward(&[0, 1], &mut log).unwrap();
            assert_eq!(
                log.0.iter().map(|(param, _)| *param).collect::<Vec<_>>(),
                (0..count).rev().collect::<Vec<_>>()
            );
            for (param, gradient) in &log.0 {
                assert_eq!(gradient[..], model.grads[model.network().params()[*param].range.clone()]);
            }
            let forward: Cost = model.network().forward_phases().map(|p| model.network().cost(p, 2)).sum();
            assert_eq!(forward + log.1, model.network().step_cost(2));
        }
    }

    #[test]
    fn memory_is_what_a_step_holds() {
        for network in networks() {
            let (inputs, params) = (network.inputs(), network.param_count());
            let told = network.memory(2);
            let mut model = Model::new(network, 3).unwrap();
            model.forward(&vec![0.3; 2 * inputs], true, |_| ());
            model.backward(&[0, 1], &mut Log(Vec::new(), Cost::default())).unwrap();
            let values = |vectors: &[Vec<f64>]| vectors.iter().map(Vec::len).sum::<usize>();
            let saved: usize = model.saved.iter().map(|s| 8 * s.values.len() + 4 * s.places.len()).sum();
            let down = model.down.0.len() + model.down.1.len();
            // Velocities and buckets are the strategy's and the optimiser's: two more of every parameter.
            let held = 8 * (4 * params + model.buffers.len() + values(&model.acts) + down) + saved;
            assert!(held as u64 <= told && told <= 2 * held as u64, "{told} for {held}");
        }
    }

    #[test]
    fn layers_that_do_not_fit_are_refused() {
        let layers: Vec<(String, Box<dyn Layer<f32>>)> =
            vec![("a".into(), Box::new(Linear::new(3, 4))), ("b".into(), Box::new(Linear::new(5, 2)))];
        let error = Network::new(layers).err().unwrap();
        assert_eq!(error.to_string(), "network: a gives 4 numbers but b takes 5");
    }
}
