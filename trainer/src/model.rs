//! A network with its numbers: parameters, gradients and activations in flat buffers, and the two passes.

mod buffer_pool;
mod pass;

pub use pass::{DrawKey, Listener, MemoryUse, Objective};
pub(crate) use pass::{normalises, normalises_all};

use crate::amp::Autocast;
use crate::init::{initial, reserved};
use crate::layers::{Backward, Forward, SavedTensors};
use crate::network::{Network, Phase};
use crate::{Batch, Result};
use allfold_collectives::Buffer;
use allfold_kernels::nn::{DropoutStream, Float, Narrow, OpCost, add_to};
use buffer_pool::BufferPool;
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
    /// Activations, as [`Network`] numbers them, each at its [storage](Network::storage_of).
    acts: Vec<Vec<F>>,
    saved: Vec<SavedTensors<F>>,
    /// The loss's gradient by each activation during the backward pass, and the pool of buffers for them.
    act_grads: Vec<Option<Vec<F>>>,
    pool: BufferPool<F>,
    /// The accumulated gradients of this step's micro-batches; empty before the first.
    accumulated: Vec<F>,
    /// The elements of the parameters that the loss does not depend on: of the network alone, so they stay what they are.
    unreached: Vec<Range<usize>>,
    /// Buffer of the totals over all ranks.
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
            grads: grads.into(),
            buffers: initial(network.buffers(), seed)?,
            draw_key: DrawKey { seed, ..DrawKey::default() },
            acts: vec![Vec::new(); layers + 1],
            saved: (0..layers).map(|_| SavedTensors { values: Vec::new(), places: Vec::new() }).collect(),
            act_grads: vec![None; layers + 1],
            pool: BufferPool::default(),
            accumulated: Vec::new(),
            unreached: network.unreached().iter().map(|at| network.params()[*at].range.clone()).collect(),
            totals: Vec::new(),
            amp: Autocast::off(),
            network,
        })
    }

    /// Runs autocast's operations in `narrow`; the parameters keep their type.
    pub fn autocast(&mut self, narrow: Narrow) {
        self.amp = Autocast::new(narrow, &self.network);
    }

    /// Its network: layers and the layout of parameters.
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
                self.totals.resize(self.network.sync_len(phase), 0.0);
                let x = &self.acts[self.network.storage_of(self.network.from(l)[0])];
                self.network.layers()[l].forward_sums(n, x, &mut self.totals);
            }
            // The totals stay valid until the layer's forward phase, which follows at once.
            if let Phase::Forward(l) = phase {
                self.layer_forward(l, n, true);
            }
            listener.on_cost(self.network.cost(phase, n));
            if let Phase::SyncForward(l) = phase {
                listener.all_reduce(&mut self.totals)?;
                normalises_all(&self.network, l, &self.totals)?;
            }
        }
        Ok(self.logits())
    }

    /// Copies the samples to the first layer's input; returns their number.
    fn take_in(&mut self, x: &[F]) -> usize {
        self.acts[0].clear();
        self.acts[0].extend_from_slice(x);
        x.len() / self.network.inputs().max(1)
    }

    fn layer_forward(&mut self, l: usize, n: usize, train: bool) {
        let storage = self.network.storage_of(l + 1);
        if storage <= l {
            return self.layer_forward_in_place(l, storage);
        }
        let layer = &self.network.layers()[l];
        let (values, places) = layer.saved(n);
        let saved = &mut self.saved[l];
        saved.values.resize(values, F::ZERO);
        saved.places.resize(places, 0);
        let (below, above) = self.acts.split_at_mut(l + 1);
        let y = &mut above[0];
        y.resize(n * layer.outputs(), F::ZERO);
        let mut from = self.network.from(l).iter().map(|&from| &below[self.network.storage_of(from)][..]);
        let (x, other) = (from.next().unwrap_or_default(), from.next().unwrap_or_default());
        let (params, x) = self.amp.inputs(&self.network, l, &self.params, x);
        let (seed, [step, part]) = (self.draw_key.seed, self.draw_key.key());
        layer.forward(Forward {
            n,
            train,
            params,
            buffers: &mut self.buffers[self.network.buffers_of(l)],
            x,
            other,
            y,
            saved,
            totals: &self.totals,
            stream: DropoutStream { seed, place: [step, part, l as u32] },
        });
        self.amp.round(l + 1, y);
    }

    /// Writes a layer's output over one of its inputs.
    fn layer_forward_in_place(&mut self, l: usize, storage: usize) {
        let mut y = std::mem::take(&mut self.acts[storage]);
        let other = self
            .network
            .from(l)
            .iter()
            .map(|&from| self.network.storage_of(from))
            .find(|&from| from != storage);
        let other = other.map_or(&[][..], |other| &self.acts[other]);
        self.network.layers()[l].forward_in_place(other, &mut y);
        self.amp.round(l + 1, &mut y);
        self.acts[storage] = y;
    }

    /// An activation of the last forward pass, or what was written over it.
    fn act(&self, act: usize) -> &[F] {
        &self.acts[self.network.storage_of(act)]
    }

    /// The logits of the last forward pass.
    pub fn logits(&self) -> &[F] {
        self.act(self.network.layers().len())
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
        self.act_grads.iter_mut().for_each(|act_grads| self.pool.extend(act_grads.take()));
        for elements in &self.unreached {
            self.grads[elements.clone()].fill(F::ZERO);
        }
        for phase in self.network.backward_phases() {
            match phase {
                Phase::Loss => loss = self.loss(objective),
                Phase::WeightGrad(l) => self.layer_params(l, n),
                Phase::SyncBackward(l) => {
                    self.totals.resize(self.network.sync_len(phase), 0.0);
                    let grads = &self.grads[self.network.values_of(l)];
                    self.network.layers()[l].backward_sums(grads, &mut self.totals);
                    listener.all_reduce(&mut self.totals)?;
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
        let all = |buffers: &[Vec<F>]| bytes(buffers.iter().map(Vec::capacity).sum());
        let saved = self.saved.iter().map(|s| bytes(s.values.capacity()) + 4 * s.places.capacity() as u64);
        MemoryUse {
            params: bytes(self.params.capacity()),
            gradients: bytes(self.grads.len() + self.accumulated.capacity()),
            buffers: bytes(self.buffers.capacity()),
            activations: all(&self.acts),
            saved_for_backward: saved.sum(),
            activation_gradients: self.pool.bytes()
                + bytes(self.act_grads.iter().flatten().map(Vec::capacity).sum()),
            ..MemoryUse::default()
        }
    }

    /// The values of frozen and of these parameters, and where they lie: an optimiser moves all, by weight decay if by
    /// nothing else.
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

    /// The layer whose output is the first that is not finite in the last forward pass, if any is.
    pub fn first_not_finite(&self) -> Option<&str> {
        let bad = |act: &Vec<F>| act.iter().any(|&x| (x * F::ZERO).is_nan());
        let layer = self.acts.iter().position(bad)?;
        Some(layer.checked_sub(1).map_or("the input", |layer| &self.network.names()[layer]))
    }

    fn loss(&mut self, Objective { labels, scale, .. }: Objective<F>) -> F {
        let last = self.acts.len() - 1;
        let mut act_grads = self.pool.take(self.logits().len());
        let loss = self.network.loss().forward_backward(self.logits(), labels, scale, &mut act_grads);
        self.amp.round(last, &mut act_grads);
        self.act_grads[last] = Some(act_grads);
        loss
    }

    /// A layer's backward pass by its parameters. Where others share them, each adds its part.
    fn layer_params(&mut self, l: usize, n: usize) {
        let values = self.network.values_of(l);
        let before = self.network.shares(l).then(|| self.grads[values.clone()].to_vec());
        let Some(dy) = self.act_grads[l + 1].take() else { return };
        let (x, y) = (
            &self.acts[self.network.storage_of(self.network.from(l)[0])],
            &self.acts[self.network.storage_of(l + 1)],
        );
        let (params, x) = self.amp.inputs(&self.network, l, &self.params, x);
        let (saved, totals) = (&mut self.saved[l], &self.totals);
        let mut pass = Backward { n, params, x, y, dy: &dy, saved, totals };
        let grads = &mut self.grads[values];
        self.network.layers()[l].backward_params(&mut pass, grads);
        self.amp.round_of(l, grads);
        if let Some(before) = before {
            add_to(grads, &before);
        }
        self.act_grads[l + 1] = Some(dy);
    }

    /// A layer's backward pass by its inputs: replaces the gradients of those activations, or adds to them.
    fn layer_input(&mut self, l: usize, n: usize) {
        let Some(dy) = self.act_grads[l + 1].take() else { return };
        if self.network.layers()[l].passes_on() {
            let from = self.network.from(l).to_vec();
            for &at in &from[1..] {
                if let Some(accumulated) = &mut self.act_grads[at] {
                    add_to(accumulated, &dy);
                    self.amp.round(at, accumulated);
                } else {
                    let mut copy = self.pool.take(dy.len());
                    copy.copy_from_slice(&dy);
                    self.accumulate_grad(at, copy);
                }
            }
            return self.accumulate_grad(from[0], dy);
        }
        let from = self.network.from(l)[0];
        if self.network.layers()[l].in_place() {
            let mut dx = dy;
            self.network.layers()[l].backward_in_place(self.act(l + 1), &mut dx);
            self.amp.round_of(l, &mut dx);
            return self.accumulate_grad(from, dx);
        }
        let mut dx = self.pool.take(n * self.network.layers()[l].inputs());
        let (x, y) = (&self.acts[self.network.storage_of(from)], &self.acts[self.network.storage_of(l + 1)]);
        let (params, x) = self.amp.inputs(&self.network, l, &self.params, x);
        let (saved, totals) = (&mut self.saved[l], &self.totals);
        let mut pass = Backward { n, params, x, y, dy: &dy, saved, totals };
        let layer = &self.network.layers()[l];
        let grads = if layer.needs_gradients() { &self.grads[self.network.values_of(l)] } else { &[] };
        layer.backward_input(&mut pass, grads, &mut dx);
        self.amp.round_of(l, &mut dx);
        self.accumulate_grad(from, dx);
        self.pool.push(dy);
    }

    fn accumulate_grad(&mut self, act: usize, mut dx: Vec<F>) {
        if let Some(mut accumulated) = self.act_grads[act].take() {
            add_to(&mut dx, &accumulated);
            accumulated.truncate(dx.len());
            self.pool.push(accumulated);
        }
        self.amp.round(act, &mut dx);
        self.act_grads[act] = Some(dx);
    }
}

/// Cost of adding `elements` to the accumulated gradients.
pub(crate) fn accumulate_cost<F>(elements: usize) -> OpCost {
    OpCost::launch(elements, 3 * elements, size_of::<F>())
}

#[cfg(test)]
mod tests;
