//! A network with its numbers: parameters, gradients and activations in flat buffers, and the two passes.

mod activations;
mod buffer_pool;
mod pass;

pub(crate) use activations::{Activations, Arithmetic, LayerPass};
pub use pass::{DrawKey, Listener, MemoryUse, Objective};
pub(crate) use pass::{normalises, normalises_all};

use crate::amp::Autocast;
use crate::init::{initial, reserved};
use crate::layers::NoPeers;
use crate::{Batch, Result};
use crate::{Network, Phase};
use allfold_collectives::Buffer;
use allfold_kernels::nn::{Float, Narrow, OpCost, add_to};
use std::ops::Range;

/// A network with parameters, gradients, buffers and activations.
pub struct Model<F: Float> {
    network: Network<F>,
    /// All parameters, one after another, as [`Network::params`] lays them out.
    pub params: Vec<F>,
    /// The gradients, in the layout of the parameters.
    pub grads: Buffer<F>,
    /// All buffers, one after another, as [`Network::buffers`] lays them out.
    pub buffers: Vec<F>,
    /// The key of the next pass's random draws.
    pub draw_key: DrawKey,
    pass: Activations<F>,
    on: Arithmetic<F>,
    /// The accumulated gradients of this step's micro-batches; empty before the first.
    accumulated: Vec<F>,
    /// The elements of the parameters that the loss does not depend on. They follow from the network and never change.
    unreached: Vec<Range<usize>>,
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
            grads: grads.into(),
            buffers: initial(network.buffers(), seed)?,
            draw_key: DrawKey { seed, ..DrawKey::default() },
            pass: Activations::new(layers),
            on: Arithmetic::new(),
            accumulated: Vec::new(),
            unreached: network.unreached().iter().map(|at| network.params()[*at].range.clone()).collect(),
            network,
        })
    }

    /// Runs autocast's operations in `narrow`; the parameters keep their type.
    pub fn autocast(&mut self, narrow: Narrow) {
        self.on.amp = Autocast::new(narrow, &self.network);
    }

    /// The model's network: layers and the layout of parameters.
    pub fn network(&self) -> &Network<F> {
        &self.network
    }

    /// One parameter's values.
    pub fn param(&self, param: usize) -> &[F] {
        &self.params[self.network.params()[param].range.clone()]
    }

    /// Makes its batch norms normalise over the samples of all ranks; returns how many it changed.
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
        normalises(&self.network, n)?;
        for phase in self.network.forward_phases() {
            if let Phase::SyncForward(l) = phase {
                self.pass.forward_sums(&self.network, l, n, self.network.sync_len(phase));
            }
            // The totals stay valid until the layer's forward phase, which follows at once.
            if let Phase::Forward(l) = phase {
                self.layer_forward(l, n, true);
            }
            listener.on_cost(self.network.cost(phase, n));
            if let Phase::SyncForward(l) = phase {
                listener.all_reduce(&mut self.pass.totals)?;
                normalises_all(&self.network, l, &self.pass.totals)?;
            }
        }
        Ok(self.logits())
    }

    /// Copies the samples to the first layer's input; returns their number.
    fn take_in(&mut self, x: &[F]) -> usize {
        self.pass.load(&mut self.on.pool, x);
        x.len() / self.network.inputs().max(1)
    }

    fn layer_forward(&mut self, l: usize, n: usize, train: bool) {
        let params = &self.params[self.network.values_of(l)];
        let buffers = &mut self.buffers[self.network.buffers_of(l)];
        let pass = LayerPass { n, train, params, buffers, draw_key: self.draw_key, peers: &mut NoPeers };
        self.pass.forward(&mut self.on, &self.network, l, pass);
    }

    /// The logits of the last forward pass.
    pub fn logits(&self) -> &[F] {
        self.pass.act(&self.network, self.network.layers().len())
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
        if self.grads.len() < self.params.len() {
            // A pass that failed may have left some.
            self.grads = Buffer::zeroed(self.params.len());
        }
        self.pass.recycle_grads(&mut self.on.pool);
        for elements in &self.unreached {
            self.grads[elements.clone()].fill(F::ZERO);
        }
        for phase in self.network.backward_phases() {
            match phase {
                Phase::Loss => loss = self.pass.loss(&mut self.on, &self.network, objective, &mut NoPeers),
                Phase::WeightGrad(l) => self.layer_params(l, n),
                Phase::SyncBackward(l) => {
                    let grads = &self.grads[self.network.values_of(l)];
                    self.pass.backward_sums(&self.network, l, grads, self.network.sync_len(phase));
                    listener.all_reduce(&mut self.pass.totals)?;
                }
                Phase::InputGrad(l) => self.layer_input(l, n),
                Phase::Ready(param) if !objective.more => self.announce(param, listener)?,
                Phase::Ready(_) | Phase::Forward(_) | Phase::SyncForward(_) => {}
            }
            if !matches!(phase, Phase::Ready(_) | Phase::SyncBackward(_)) {
                listener.on_cost(self.network.cost(phase, n));
            }
        }
        for (param, place) in self.network.params().iter().enumerate() {
            // Only a synchronised layer needs the gradients of frozen parameters.
            if self.network.frozen(param) {
                self.grads[place.range.clone()].fill(F::ZERO);
            }
        }
        self.accumulate(objective.more, listener);
        Ok(loss)
    }

    /// Adds the accumulated gradient to this micro-batch's and announces the sum.
    fn announce(&mut self, param: usize, listener: &mut impl Listener<F>) -> Result<()> {
        let elements = self.network.params()[param].range.clone();
        if !self.accumulated.is_empty() {
            add_to(&mut self.grads[elements.clone()], &self.accumulated[elements.clone()]);
            listener.on_cost(accumulate_cost::<F>(elements.len()));
        }
        listener.on_grad(param, elements, &mut self.grads)
    }

    /// After a micro-batch: accumulates its gradients, if more micro-batches follow.
    fn accumulate(&mut self, more: bool, listener: &mut impl Listener<F>) {
        if !more {
            self.accumulated.clear();
        } else if self.accumulated.is_empty() {
            self.accumulated.extend_from_slice(&self.grads);
        } else {
            add_to(&mut self.accumulated, &self.grads);
            listener.on_cost(accumulate_cost::<F>(self.accumulated.len()));
        }
    }

    /// (Sum of losses, correct answers) over a batch, with running statistics and nothing kept.
    pub fn evaluate(&mut self, batch: &Batch<F>, mut on_cost: impl FnMut(OpCost)) -> (F, u64) {
        let loss = self.network.loss();
        let n = self.take_in(&batch.x);
        for l in 0..self.network.layers().len() {
            self.layer_forward(l, n, false);
            on_cost(self.network.layers()[l].cost(n).evaluate);
        }
        let logits = self.logits();
        (loss.sum(logits, &batch.labels), loss.correct(logits, &batch.labels))
    }

    /// The memory that the model holds now, without optimiser and buckets.
    pub fn memory(&self) -> MemoryUse {
        let bytes = |elements: usize| (elements * size_of::<F>()) as u64;
        let [activations, saved_for_backward, activation_gradients] = self.pass.bytes();
        MemoryUse {
            params: bytes(self.params.capacity()),
            gradients: bytes(self.grads.len() + self.accumulated.capacity()),
            buffers: bytes(self.buffers.capacity()),
            activations,
            saved_for_backward,
            activation_gradients: self.on.pool.bytes() + activation_gradients,
            ..MemoryUse::default()
        }
    }

    /// Frees parameters, gradients, buffers and activations: what the model is without them is its network.
    pub(crate) fn free(&mut self) {
        (self.params, self.buffers) = (Vec::new(), Vec::new());
        self.grads = Vec::new().into();
        self.accumulated = Vec::new();
        self.pass = Activations::new(self.network.layers().len());
        self.on.pool = Default::default();
    }

    /// The values of frozen parameters and of those in `unused`, with their places: the optimiser moves all parameters, at
    /// least by weight decay.
    pub fn kept(&self, unused: &[usize]) -> Vec<(usize, Vec<F>)> {
        let params = self.network.params().iter().enumerate();
        let kept = params.filter(|(param, _)| self.network.frozen(*param) || unused.contains(param));
        kept.map(|(_, place)| (place.range.start, self.params[place.range.clone()].to_vec())).collect()
    }

    /// Restores the values of [`Model::kept`].
    pub fn restore(&mut self, frozen: Vec<(usize, Vec<F>)>) {
        for (start, values) in frozen {
            self.params[start..start + values.len()].copy_from_slice(&values);
        }
    }

    /// The first layer with an output that is not finite in the last forward pass, if there is one.
    pub fn first_not_finite(&self) -> Option<&str> {
        let layer = self.pass.first_not_finite()?;
        Some(layer.checked_sub(1).map_or("the input", |layer| &self.network.names()[layer]))
    }

    /// The gradients of a layer's parameters. Where other layers share them, each adds its part.
    fn layer_params(&mut self, l: usize, n: usize) {
        let values = self.network.values_of(l);
        let before = self.network.shares(l).then(|| self.grads[values.clone()].to_vec());
        let (params, grads) = (&self.params[values.clone()], &mut self.grads[values]);
        self.pass.weight_grad(&mut self.on, &self.network, (l, n), (params, grads), &mut NoPeers);
        if let Some(before) = before {
            add_to(grads, &before);
        }
    }

    /// The gradients of a layer's inputs.
    fn layer_input(&mut self, l: usize, n: usize) {
        let values = self.network.values_of(l);
        let needs = self.network.layers()[l].needs_gradients();
        let grads = if needs { &self.grads[values.clone()] } else { &[] };
        let given = (&self.params[values], grads);
        self.pass.input_grad(&mut self.on, &self.network, (l, n), given, false, &mut NoPeers);
    }
}

/// Cost of adding `elements` to the accumulated gradients.
pub(crate) fn accumulate_cost<F>(elements: usize) -> OpCost {
    OpCost::launch(elements, 3 * elements, size_of::<F>())
}

#[cfg(test)]
mod tests;
