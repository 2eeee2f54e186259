//! A network with its numbers: parameters, gradients and activations in flat buffers, and the two passes.

use crate::amp::Autocast;
use crate::init::{initial, reserved};
use crate::layers::{Backward, Forward, Saved};
use crate::network::{Network, Phase};
use crate::{Batch, Error, Result};
use allfold_kernels::nn::{Cost, Float, Narrow, Stream, add_to};

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
    /// One per row of logits of the last forward pass.
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

/// What a pass is a part of: with the seed, it determines every random draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Seed of the run.
    pub seed: u64,
    /// Step of the run.
    pub step: u32,
    /// Micro-batch of the step.
    pub micro: u16,
    /// Rank, of which no two draw alike.
    pub rank: u16,
}

/// Bytes that a model holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Memory {
    /// Parameters.
    pub params: u64,
    /// Gradients, those held back between micro-batches included.
    pub gradients: u64,
    /// Running statistics.
    pub buffers: u64,
    /// What went through the layers.
    pub activations: u64,
    /// What layers keep for their backward pass.
    pub saved: u64,
    /// Gradients by activations.
    pub down: u64,
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
    /// Where in the run the next pass is.
    pub moment: Moment,
    /// Activations, as [`Network`] numbers them.
    acts: Vec<Vec<F>>,
    saved: Vec<Saved<F>>,
    /// The loss's gradient by each activation, on its way down, and buffers that wait to be one.
    down: Vec<Option<Vec<F>>>,
    spare: Vec<Vec<F>>,
    /// The gradients of the micro-batches of this step so far; empty where there is none.
    held: Vec<F>,
    /// What the layers' totals pass through.
    totals: Vec<f64>,
    amp: Autocast<F>,
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
            moment: Moment { seed, ..Moment::default() },
            acts: vec![Vec::new(); layers + 1],
            saved: (0..layers).map(|_| Saved { values: Vec::new(), places: Vec::new() }).collect(),
            down: vec![None; layers + 1],
            spare: Vec::new(),
            held: Vec::new(),
            totals: Vec::new(),
            amp: Autocast::off(),
            network,
        })
    }

    /// Computes in `narrow` what autocast computes in it; the parameters stay as wide as they are.
    pub fn autocast(&mut self, narrow: Narrow) {
        self.amp = Autocast::new(narrow, &self.network);
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

    /// Logits of the samples `x`, one row per label, in training: batch norms normalise by the batch and move their
    /// running statistics, and everything is kept for [`Model::backward`].
    ///
    /// # Errors
    /// What `listener` returned.
    pub fn forward(&mut self, x: &[F], listener: &mut impl Listener<F>) -> Result<&[F]> {
        let n = self.take_in(x);
        for (layer, name) in self.network.layers().iter().zip(self.network.names()) {
            if (1..layer.least()).contains(&n) {
                return Err(Error::Data(format!(
                    "`{name}` normalises by the batch and would have 1 value per channel; a rank needs {} samples or more, \
                     or `sync_batch_norm`",
                    layer.least()
                )));
            }
        }
        for phase in self.network.forward_phases() {
            if let Phase::ForwardSums(l) = phase {
                self.totals.resize(self.network.shared(phase), 0.0);
                let x = &self.acts[self.network.from(l)[0]];
                self.network.layers()[l].forward_sums(n, x, &mut self.totals);
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
        let from = self.network.from(l);
        let (params, x) = self.amp.inputs(&self.network, l, &self.params, &below[from[0]]);
        let Moment { seed, step, micro, rank } = self.moment;
        layer.forward(Forward {
            n,
            train,
            params,
            buffers: &mut self.buffers[self.network.buffers_of(l)],
            x,
            other: from.get(1).map_or(&[], |&other| &below[other]),
            y,
            saved,
            totals: &self.totals,
            stream: Stream { seed, place: [step, u32::from(micro) << 16 | u32::from(rank), l as u32] },
        });
        self.amp.round(l + 1, y);
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
        let n = objective.labels.len() / self.network.rows();
        let mut loss = F::ZERO;
        for l in 0..self.down.len() {
            self.give_back(l);
        }
        for param in self.network.unreached() {
            self.grads[self.network.params()[param].range.clone()].fill(F::ZERO);
        }
        for phase in self.network.backward_phases() {
            match phase {
                Phase::Loss => loss = self.loss(objective),
                Phase::Params(l) => self.layer_params(l, n),
                Phase::BackwardSums(l) => {
                    self.totals.resize(self.network.shared(phase), 0.0);
                    let grads = &self.grads[self.network.values_of(l)];
                    self.network.layers()[l].backward_sums(grads, &mut self.totals);
                    listener.total(&mut self.totals)?;
                }
                Phase::Input(l) => self.layer_input(l, n),
                Phase::Ready(param) if !objective.more => self.announce(param, listener)?,
                Phase::Ready(_) | Phase::Forward(_) | Phase::ForwardSums(_) => {}
            }
            if !matches!(phase, Phase::Ready(_) | Phase::BackwardSums(_)) {
                listener.spent(self.network.cost(phase, n));
            }
        }
        for (param, place) in self.network.params().iter().enumerate() {
            // A synchronised layer needs them, frozen or not; nobody else may see them.
            if self.network.frozen(param) {
                self.grads[place.range.clone()].fill(F::ZERO);
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
        add_to(&mut self.held[range.clone()], &self.grads[range.clone()]);
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
                add_to(&mut self.held, &self.grads);
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

    /// What it holds now.
    pub fn memory(&self) -> Memory {
        let bytes = |elements: usize| (elements * size_of::<F>()) as u64;
        let all = |buffers: &[Vec<F>]| bytes(buffers.iter().map(Vec::capacity).sum());
        let saved = self.saved.iter().map(|s| bytes(s.values.capacity()) + 4 * s.places.capacity() as u64);
        Memory {
            params: bytes(self.params.capacity()),
            gradients: bytes(self.grads.capacity() + self.held.capacity()),
            buffers: bytes(self.buffers.capacity()),
            activations: all(&self.acts),
            saved: saved.sum(),
            down: all(&self.spare) + bytes(self.down.iter().flatten().map(Vec::capacity).sum()),
        }
    }

    /// The values of frozen and of these parameters, and where they lie: an optimiser moves all, by weight decay if by
    /// nothing else.
    pub fn kept(&self, unused: &[usize]) -> Vec<(usize, Vec<F>)> {
        let params = self.network.params().iter().enumerate();
        let kept = params.filter(|(param, _)| self.network.frozen(*param) || unused.contains(param));
        kept.map(|(_, place)| (place.range.start, self.params[place.range.clone()].to_vec())).collect()
    }

    /// Puts them back.
    pub fn restore(&mut self, frozen: Vec<(usize, Vec<F>)>) {
        for (start, values) in frozen {
            self.params[start..start + values.len()].copy_from_slice(&values);
        }
    }

    /// The layer whose output is the first that is not finite in the last forward pass, if any is.
    pub fn first_not_finite(&self) -> Option<&str> {
        let bad = |act: &Vec<F>| act.iter().any(|&x| (x * F::ZERO).is_nan());
        let layer = self.acts.iter().position(bad)?;
        Some(layer.checked_sub(1).map_or("the input", |layer| &self.network.names()[layer]))
    }

    fn loss(&mut self, Objective { labels, scale, .. }: Objective<F>) -> F {
        let last = self.acts.len() - 1;
        let mut down = self.take(self.acts[last].len());
        let loss = self.network.loss().forward_backward(&self.acts[last], labels, scale, &mut down);
        self.amp.round(last, &mut down);
        self.down[last] = Some(down);
        loss
    }

    /// A buffer of so many elements, whatever is in it. One that is much larger is left for those who need it: it would be
    /// cut now, and cleared when it grows again.
    fn take(&mut self, elements: usize) -> Vec<F> {
        let fits = |at: &usize| (elements..=2 * elements).contains(&self.spare[*at].capacity());
        let best = (0..self.spare.len()).filter(fits).min_by_key(|&at| self.spare[at].capacity());
        let mut buffer = best.map(|at| self.spare.swap_remove(at)).unwrap_or_default();
        buffer.resize(elements, F::ZERO);
        buffer
    }

    fn give_back(&mut self, act: usize) {
        self.spare.extend(self.down[act].take());
    }

    /// A layer's backward pass by its parameters. Where others share them, each adds its part.
    fn layer_params(&mut self, l: usize, n: usize) {
        let values = self.network.values_of(l);
        let before = self.network.shares(l).then(|| self.grads[values.clone()].to_vec());
        let Some(dy) = self.down[l + 1].take() else { return };
        let x = &self.acts[self.network.from(l)[0]];
        let (params, x) = self.amp.inputs(&self.network, l, &self.params, x);
        let (y, saved, totals) = (&self.acts[l + 1], &mut self.saved[l], &self.totals);
        let mut pass = Backward { n, params, x, y, dy: &dy, saved, totals };
        let grads = &mut self.grads[values];
        self.network.layers()[l].backward_params(&mut pass, grads);
        self.amp.round_of(l, grads);
        if let Some(before) = before {
            add_to(grads, &before);
        }
        self.down[l + 1] = Some(dy);
    }

    /// A layer's backward pass by its inputs: replaces the gradients of those activations, or adds to them.
    fn layer_input(&mut self, l: usize, n: usize) {
        let Some(dy) = self.down[l + 1].take() else { return };
        if self.network.layers()[l].passes_on() {
            let from = self.network.from(l).to_vec();
            for &at in &from[1..] {
                if let Some(held) = &mut self.down[at] {
                    add_to(held, &dy);
                    self.amp.round(at, held);
                } else {
                    let mut copy = self.take(dy.len());
                    copy.copy_from_slice(&dy);
                    self.pass_down(at, copy);
                }
            }
            return self.pass_down(from[0], dy);
        }
        let from = self.network.from(l)[0];
        let mut dx = self.take(n * self.network.layers()[l].inputs());
        let (params, x) = self.amp.inputs(&self.network, l, &self.params, &self.acts[from]);
        let (y, saved, totals) = (&self.acts[l + 1], &mut self.saved[l], &self.totals);
        let mut pass = Backward { n, params, x, y, dy: &dy, saved, totals };
        let grads = &self.grads[self.network.values_of(l)];
        self.network.layers()[l].backward_input(&mut pass, grads, &mut dx);
        self.amp.round_of(l, &mut dx);
        self.pass_down(from, dx);
        self.spare.push(dy);
    }

    fn pass_down(&mut self, act: usize, mut dx: Vec<F>) {
        if let Some(mut held) = self.down[act].take() {
            add_to(&mut dx, &held);
            held.truncate(dx.len());
            self.spare.push(held);
        }
        self.amp.round(act, &mut dx);
        self.down[act] = Some(dx);
    }
}

/// Cost of adding `elements` to those held back.
pub(crate) fn hold_cost<F>(elements: usize) -> Cost {
    Cost::launch(elements, 3 * elements, size_of::<F>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{
        Add, BatchNorm, Conv2d, Dropout, Gelu, GlobalMeanPool, Layer, LayerNorm, Linear, MaxPool, MeanPool,
        Relu,
    };
    use crate::models::{Cnn, Gpt, cnn, gpt, mlp};
    use crate::network::Builder;
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
            Conv2d::new(nn::Conv2d { inputs, outputs, picture, kernel: 3, stride, padding: 1, groups: 1 })
        };
        let mean = Pool { channels: 3, picture: (3, 3), window: 2, stride: 1, padding: 0 };
        let every: Vec<(&str, Box<dyn Layer<f64>>)> = vec![
            ("conv", Box::new(conv(2, 3, 2))),
            ("bn", Box::new(BatchNorm::new(3, 9))),
            ("relu", Box::new(Relu::new(27))),
            ("mean", Box::new(MeanPool::new(mean))),
            ("global", Box::new(GlobalMeanPool::new(3, 4))),
            ("fc", Box::new(Linear::new(3, 4))),
        ];
        let max = Pool { channels: 2, picture, window: 2, stride: 2, padding: 0 };
        let pooled: Vec<(&str, Box<dyn Layer<f64>>)> =
            vec![("max", Box::new(MaxPool::new(max))), ("fc", Box::new(Linear::new(18, 3)))];
        let named = |layers: Vec<(&str, Box<dyn Layer<f64>>)>| {
            Network::new(layers.into_iter().map(|(name, layer)| (name.to_string(), layer)).collect()).unwrap()
        };
        let parts = Cnn { shape: (1, 4, 4), channels: &[2, 3], batch_norm: true, classes: 3 };
        vec![named(every), named(pooled), residual(), mlp(7, &[6, 5], 4).unwrap(), cnn(&parts).unwrap()]
    }

    /// Two branches over grouped convolutions, then rows that are normalised, and draws.
    fn residual() -> Network<f64> {
        let shape = nn::Conv2d {
            inputs: 4,
            outputs: 4,
            picture: (3, 3),
            kernel: 3,
            stride: 1,
            padding: 1,
            groups: 2,
        };
        let mut builder = Builder::new(36);
        let a = builder.push("conv", Conv2d::new(shape).with_bias(), &[0]).unwrap();
        let b = builder.push("gelu", Gelu::new(36), &[a]).unwrap();
        let c = builder.push("deep", Conv2d::new(shape).normal(), &[b]).unwrap();
        let d = builder.push("add", Add::new(36), &[c, a]).unwrap();
        let e = builder.push("ln", LayerNorm::new(4, 9), &[d]).unwrap();
        let f = builder.push("drop", Dropout::new(0.25, 36), &[e]).unwrap();
        let init = crate::layers::Init::Normal(0.3);
        let g = builder.push("rows", Linear::rows(4, (9, 3), init, None), &[f]).unwrap();
        builder.push("fc", Linear::new(12, 3), &[g]).unwrap();
        builder.build(1).unwrap()
    }

    /// The head's weight is the token table: its gradient is the sum of both uses.
    #[test]
    fn gradients_of_a_tied_gpt_match_differences() {
        for tied in [true, false] {
            let parts = Gpt {
                vocabulary: 5,
                positions: 3,
                layers: 2,
                width: 4,
                heads: 2,
                dropout: 0.25,
                attention_dropout: 0.25,
                tied,
            };
            let mut model = Model::new(gpt::<f64>(&parts).unwrap(), 3).unwrap();
            // The usual start is so small that differences drown.
            model.params.iter_mut().zip(0..).for_each(|(p, i)| *p += (i * 37 % 101) as f64 / 101.0 - 0.5);
            let (x, labels) = ([0.0, 3.0, 1.0, 4.0, 4.0, 2.0], [3, 1, 2, 4, 2, 0]);
            let run = |model: &mut Model<f64>| {
                let mut log = Log(Vec::new(), Cost::default());
                model.forward(&x, &mut log).unwrap();
                model.backward(Objective::mean(&labels), &mut log).unwrap()
            };
            run(&mut model);
            let grads = model.grads.clone();
            for (i, grad) in grads.into_iter().enumerate() {
                let (at, step) = (model.params[i], 1e-5);
                let mut shifted = |to: f64| {
                    model.params[i] = to;
                    run(&mut model)
                };
                let numeric = (shifted(at + step) - shifted(at - step)) / (2.0 * step);
                model.params[i] = at;
                assert!((numeric - grad).abs() < 1e-8, "param {i}: {grad} {numeric}");
            }
        }
    }

    #[test]
    fn frozen_layers_have_no_gradient_and_what_they_alone_need_is_not_computed() {
        let mut network = residual();
        let all = network.backward_phases().len();
        network.freeze(&["conv".into(), "deep.weight".into()]).unwrap();
        assert!(network.backward_phases().len() < all);
        let mut model = Model::new(network, 3).unwrap();
        let mut log = Log(Vec::new(), Cost::default());
        model.forward(&[0.3; 72], &mut log).unwrap();
        model.backward(Objective::mean(&[0, 1]), &mut log).unwrap();
        let names: Vec<&str> =
            log.0.iter().map(|(param, _)| &*model.network().params()[*param].name).collect();
        assert_eq!(names, ["fc.bias", "fc.weight", "rows.weight", "ln.bias", "ln.weight"]);
        let error = residual().freeze(&["cov".into()]).unwrap_err().to_string();
        assert_eq!(error, "unknown frozen layer `cov`; the nearest is `conv`");
    }

    #[test]
    fn autocast_rounds_what_it_lists_and_nothing_else() {
        let mut plain = Model::new(residual(), 3).unwrap();
        let mut half = Model::new(residual(), 3).unwrap();
        half.autocast(Narrow::F16);
        let x: Vec<f64> = (0..72).map(|i| (i * 37 % 101) as f64 / 50.0 - 1.0).collect();
        let mut log = Log(Vec::new(), Cost::default());
        for model in [&mut plain, &mut half] {
            model.forward(&x, &mut log).unwrap();
            model.backward(Objective::mean(&[0, 1]), &mut log).unwrap();
        }
        let narrow = |values: &[f64]| {
            let mut rounded = values.to_vec();
            Narrow::F16.round(&mut rounded);
            rounded == values
        };
        // Activations: the input, conv, gelu, deep, add | ln, drop | rows, fc.
        let narrows: Vec<bool> = half.acts.iter().map(|act| narrow(act)).collect();
        assert_eq!(narrows, [false, true, true, true, true, false, false, true, true]);
        assert!(!narrow(&half.params) && half.params == plain.params);
        for place in half.network().params() {
            let (half, plain) = (&half.grads[place.range.clone()], &plain.grads[place.range.clone()]);
            assert_eq!(narrow(half), !place.name.starts_with("ln"), "{}", place.name);
            let size = plain.iter().fold(0.0, |max: f64, g| max.max(g.abs()));
            assert!(half.iter().zip(plain).all(|(a, b)| (a - b).abs() < 0.02 * size), "{}", place.name);
        }
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
            let down: usize = model.down.iter().flatten().chain(&model.spare).map(Vec::len).sum();
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
