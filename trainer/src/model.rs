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

    /// Replaces `values` by their totals over all ranks. One rank alone has nothing to add.
    ///
    /// # Errors
    /// Whatever stops the pass.
    fn total(&mut self, _values: &mut [f64]) -> Result<()> {
        Ok(())
    }
}

/// What a backward pass is to find the gradients of: `scale` times the mean loss over these labels.
#[derive(Clone, Copy, Debug)]
pub struct Objective<'a, F> {
    /// One per sample of the last forward pass.
    pub labels: &'a [u32],
    /// What the loss is multiplied by: a micro-batch's share of its step, and the loss scale.
    pub scale: F,
    /// Whether more micro-batches of the same step follow. The gradients are then held back and added to theirs.
    pub more: bool,
}

impl<'a, F: Float> Objective<'a, F> {
    /// The mean loss over these labels, and nothing after.
    pub fn mean(labels: &'a [u32]) -> Objective<'a, F> {
        Objective { labels, scale: F::ONE, more: false }
    }
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
    /// The gradients of the micro-batches of this step so far; empty where there is none.
    held: Vec<F>,
    /// What the layers' totals pass through.
    totals: Vec<f64>,
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
            held: Vec::new(),
            totals: Vec::new(),
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

    /// Makes its batch norms normalise by the samples of all ranks, in place; says how many it changed.
    pub fn synchronise(&mut self) -> usize {
        self.network.synchronise()
    }

    /// Logits of the samples `x`, one row per sample, in training: batch norms normalise by the batch and move their
    /// running statistics, and everything is kept for [`Model::backward`].
    ///
    /// # Errors
    /// What `listener` returned.
    pub fn forward(&mut self, x: &[F], listener: &mut impl Listener<F>) -> Result<&[F]> {
        let n = self.take_in(x);
        for phase in self.network.forward_phases() {
            if let Phase::ForwardSums(l) = phase {
                self.totals.resize(self.network.shared(phase), 0.0);
                self.network.layers()[l].forward_sums(n, &self.acts[l], &mut self.totals);
            }
            // The totals of a layer's sums are still there when it goes forward: its phases follow each other.
            if let Phase::Forward(l) = phase {
                self.layer_forward(l, n, true);
            }
            listener.spent(self.network.cost(phase, n));
            if let Phase::ForwardSums(_) = phase {
                listener.total(&mut self.totals)?;
            }
        }
        Ok(self.logits())
    }

    /// Copies the samples to where the first layer reads them; says how many there are.
    fn take_in(&mut self, x: &[F]) -> usize {
        self.acts[0].clear();
        self.acts[0].extend_from_slice(x);
        x.len() / self.network.inputs().max(1)
    }

    fn layer_forward(&mut self, l: usize, n: usize, train: bool) {
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
            totals: &self.totals,
        });
    }

    /// The logits of the last forward pass.
    pub fn logits(&self) -> &[F] {
        self.acts.last().map_or(&[], |logits| logits)
    }

    /// The mean loss of the last forward pass; the gradients of all parameters are replaced, and announced to
    /// `listener` one by one as soon as they are final. Where more micro-batches follow, none is announced: the
    /// gradients are held back and are part of those that the last one announces.
    ///
    /// # Errors
    /// What `listener` returned; the gradients are then incomplete.
    pub fn backward(&mut self, objective: Objective<F>, listener: &mut impl Listener<F>) -> Result<F> {
        let n = objective.labels.len();
        let mut loss = F::ZERO;
        for phase in self.network.backward_phases() {
            match phase {
                Phase::Loss => loss = self.loss(objective),
                Phase::Params(l) => self.layer(l, n, None),
                Phase::BackwardSums(l) => {
                    self.totals.resize(self.network.shared(phase), 0.0);
                    let grads = &self.grads[self.network.values_of(l)];
                    self.network.layers()[l].backward_sums(grads, &mut self.totals);
                    listener.total(&mut self.totals)?;
                }
                Phase::Input(l) => {
                    let mut dx = std::mem::take(&mut self.down.1);
                    dx.resize(n * self.network.layers()[l].inputs(), F::ZERO);
                    self.layer(l, n, Some(&mut dx));
                    self.down.1 = std::mem::replace(&mut self.down.0, dx);
                }
                Phase::Ready(param) if !objective.more => self.announce(param, listener)?,
                Phase::Ready(_) | Phase::Forward(_) | Phase::ForwardSums(_) => {}
            }
            if !matches!(phase, Phase::Ready(_) | Phase::BackwardSums(_)) {
                listener.spent(self.network.cost(phase, n));
            }
        }
        self.hold(objective.more, listener);
        Ok(loss)
    }

    /// A parameter's gradient over all micro-batches. It is put together beside this one's, which its layer still needs.
    fn announce(&mut self, param: usize, listener: &mut impl Listener<F>) -> Result<()> {
        let range = self.network.params()[param].range.clone();
        if self.held.is_empty() {
            return listener.ready(param, &self.grads[range]);
        }
        add(&mut self.held[range.clone()], &self.grads[range.clone()]);
        listener.spent(hold_cost::<F>(range.len()));
        listener.ready(param, &self.held[range])
    }

    /// After a micro-batch: holds its gradients back, or after the last one, leaves the whole step's in `grads`.
    fn hold(&mut self, more: bool, listener: &mut impl Listener<F>) {
        match (more, self.held.is_empty()) {
            (false, true) => {}
            (false, false) => self.grads = std::mem::take(&mut self.held),
            (true, true) => self.held = std::mem::replace(&mut self.grads, vec![F::ZERO; self.params.len()]),
            (true, false) => {
                add(&mut self.held, &self.grads);
                listener.spent(hold_cost::<F>(self.held.len()));
            }
        }
    }

    /// (Sum of losses, correct answers) over a batch, with running statistics and nothing kept.
    pub fn evaluate(&mut self, batch: &Batch<F>, mut spent: impl FnMut(Cost)) -> (F, u64) {
        let loss = self.network.loss();
        let n = self.take_in(&batch.x);
        for l in 0..self.network.layers().len() {
            self.layer_forward(l, n, false);
            spent(self.network.layers()[l].cost(n).evaluate);
        }
        let logits = self.logits();
        (loss.sum(logits, &batch.labels), loss.correct(logits, &batch.labels))
    }

    fn loss(&mut self, Objective { labels, scale, .. }: Objective<F>) -> F {
        let logits = self.acts.last().map_or(&[][..], |logits| logits);
        self.down.0.resize(logits.len(), F::ZERO);
        self.network.loss().forward_backward(logits, labels, scale, &mut self.down.0)
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
            totals: &self.totals,
        };
        let grads = &mut self.grads[values];
        match dx {
            None => self.network.layers()[l].backward_params(&mut pass, grads),
            Some(dx) => self.network.layers()[l].backward_input(&mut pass, grads, dx),
        }
    }
}

fn add<F: Float>(to: &mut [F], from: &[F]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to += from);
}

/// Cost of adding `elements` to those held back.
pub(crate) fn hold_cost<F>(elements: usize) -> Cost {
    Cost::launch(elements, 3 * elements, size_of::<F>())
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
        let synchronised = networks().into_iter().map(|mut network| {
            network.synchronise();
            network
        });
        for network in networks().into_iter().chain(synchronised) {
            let (inputs, classes) = (network.inputs(), network.classes());
            let mut model = Model::new(network, 3).unwrap();
            let places: Vec<_> = (0..N * inputs).map(|i| ((i * 37 % 101) as f64 / 50.0) - 1.0).collect();
            let labels: Vec<u32> = (0..N as u32).map(|i| i % classes as u32).collect();
            let run = |model: &mut Model<f64>| {
                let mut log = Log(Vec::new(), Cost::default());
                model.forward(&places, &mut log).unwrap();
                model.backward(Objective::mean(&labels), &mut log).unwrap()
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
            let mut log = Log(Vec::new(), Cost::default());
            model.forward(&vec![0.3; 2 * inputs], &mut log).unwrap();
            model.backward(Objective::mean(&[0, 1]), &mut log).unwrap();
            assert_eq!(
                log.0.iter().map(|(param, _)| *param).collect::<Vec<_>>(),
                (0..count).rev().collect::<Vec<_>>()
            );
            for (param, gradient) in &log.0 {
                assert_eq!(gradient[..], model.grads[model.network().params()[*param].range.clone()]);
            }
            assert_eq!(log.1, model.network().step_cost(2));
        }
    }

    #[test]
    fn memory_is_what_a_step_holds() {
        for network in networks() {
            let (inputs, params) = (network.inputs(), network.param_count());
            let told = network.memory(2);
            let mut model = Model::new(network, 3).unwrap();
            let mut log = Log(Vec::new(), Cost::default());
            model.forward(&vec![0.3; 2 * inputs], &mut log).unwrap();
            model.backward(Objective::mean(&[0, 1]), &mut log).unwrap();
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
