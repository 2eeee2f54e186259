//! The activations of one micro-batch, their gradients, and each layer's passes over them on the CPU.

use super::buffer_pool::BufferPool;
use super::pass::{DrawKey, Objective};
use crate::Network;
use crate::amp::Autocast;
use crate::layers::{Backward, Forward, Peers, SavedTensors};
use allfold_kernels::nn::{ClassReduction, Float, add_to};

/// What all passes of a rank compute with: autocast's rounding, and a pool of buffers for activations and their gradients.
pub(crate) struct Arithmetic<F> {
    pub amp: Autocast<F>,
    pub pool: BufferPool<F>,
}

impl<F: Float> Arithmetic<F> {
    /// Arithmetic in the type of the parameters, without autocast.
    pub fn new() -> Arithmetic<F> {
        Arithmetic { amp: Autocast::off(), pool: BufferPool::default() }
    }
}

/// The arguments of a layer's forward pass besides activations.
pub(crate) struct LayerPass<'a, F> {
    /// The number of samples.
    pub n: usize,
    /// Whether the pass is for training; otherwise it is for evaluation.
    pub train: bool,
    /// The layer's parameters.
    pub params: &'a [F],
    /// The layer's buffers.
    pub buffers: &'a mut [F],
    /// The key of the layer's random draws.
    pub draw_key: DrawKey,
    /// The ranks along the layer's axis.
    pub peers: &'a mut dyn Peers<F>,
}

/// The activations of one micro-batch, as [`Network`] numbers them, each at its [storage](Network::storage_of).
pub(crate) struct Activations<F> {
    pub(super) acts: Vec<Vec<F>>,
    pub(super) saved: Vec<SavedTensors<F>>,
    /// The gradient of the loss with respect to each activation, during the backward pass.
    pub(super) act_grads: Vec<Option<Vec<F>>>,
    /// The totals over all ranks that the next phase of a synchronised layer reads.
    pub totals: Vec<f64>,
    /// The factor on the mean loss of the samples.
    pub scale: F,
}

impl<F: Float> Activations<F> {
    /// The activations of a network with `layers` layers.
    pub fn new(layers: usize) -> Activations<F> {
        Activations {
            acts: vec![Vec::new(); layers + 1],
            saved: (0..layers).map(|_| SavedTensors { values: Vec::new(), indices: Vec::new() }).collect(),
            act_grads: vec![None; layers + 1],
            totals: Vec::new(),
            scale: F::ONE,
        }
    }

    /// Copies the samples to the first layer's input.
    pub fn load(&mut self, pool: &mut BufferPool<F>, x: &[F]) {
        pool.size(&mut self.acts[0], x.len());
        self.acts[0].copy_from_slice(x);
    }

    /// An activation of the last forward pass, or the later activation that has overwritten it.
    pub fn act(&self, network: &Network<F>, act: usize) -> &[F] {
        &self.acts[network.storage_of(act)]
    }

    /// Computes this rank's part of the totals that the forward pass of the synchronised layer `l` reads.
    pub fn forward_sums(&mut self, network: &Network<F>, l: usize, n: usize, len: usize) {
        self.totals.resize(len, 0.0);
        let x = &self.acts[network.storage_of(network.from(l)[0])];
        network.layers()[l].forward_sums(n, x, &mut self.totals);
    }

    /// Computes this rank's part of the totals that the backward pass of the synchronised layer `l` reads, from its gradients.
    pub fn backward_sums(&mut self, network: &Network<F>, l: usize, grads: &[F], len: usize) {
        self.totals.resize(len, 0.0);
        network.layers()[l].backward_sums(grads, &mut self.totals);
    }

    /// The forward pass of layer `l`.
    pub fn forward(
        &mut self,
        on: &mut Arithmetic<F>,
        network: &Network<F>,
        l: usize,
        pass: LayerPass<'_, F>,
    ) {
        let storage = network.storage_of(l + 1);
        if storage <= l {
            return self.forward_in_place(on, network, l, storage);
        }
        let LayerPass { n, train, params, buffers, draw_key, peers } = pass;
        let layer = &network.layers()[l];
        let (values, indices) = layer.saved(n);
        let saved = &mut self.saved[l];
        on.pool.size(&mut saved.values, values);
        saved.indices.resize(indices, 0);
        let (below, above) = self.acts.split_at_mut(l + 1);
        let y = &mut above[0];
        on.pool.size(y, n * layer.outputs());
        let mut from = network.from(l).iter().map(|&from| &below[network.storage_of(from)][..]);
        let (x, other) = (from.next().unwrap_or_default(), from.next().unwrap_or_default());
        let (params, x) = on.amp.inputs(network, l, params, x);
        layer.forward(Forward {
            n,
            train,
            params,
            buffers,
            x,
            other,
            y,
            saved,
            totals: &self.totals,
            stream: draw_key.stream(l),
            peers,
        });
        on.amp.round(l + 1, y);
    }

    /// Writes a layer's output over one of its inputs.
    fn forward_in_place(&mut self, on: &mut Arithmetic<F>, network: &Network<F>, l: usize, storage: usize) {
        let mut y = std::mem::take(&mut self.acts[storage]);
        let mut others = network.from(l).iter().map(|&from| network.storage_of(from));
        let other = others.find(|&from| from != storage).map_or(&[][..], |other| &self.acts[other]);
        network.layers()[l].forward_in_place(other, &mut y);
        on.amp.round(l + 1, &mut y);
        self.acts[storage] = y;
    }

    /// Returns the mean loss, not scaled, and stores the gradient of the scaled loss with respect to the network's output. `peers`
    /// are the ranks that share rows of logits.
    pub fn loss(
        &mut self,
        on: &mut Arithmetic<F>,
        network: &Network<F>,
        objective: Objective<F>,
        peers: &mut dyn Peers<F>,
    ) -> F {
        let Objective { labels, scale } = objective;
        self.scale = scale;
        let last = self.acts.len() - 1;
        let logits = &self.acts[network.storage_of(last)];
        let mut act_grads = on.pool.take(logits.len());
        let loss = match network.class_split() {
            None => network.loss().forward_backward(logits, labels, scale, &mut act_grads),
            Some(split) => {
                let mut combine = |how, values: &mut [F]| match how {
                    ClassReduction::Sum => peers.sum(values),
                    ClassReduction::Max => peers.max(values),
                };
                let given = (&logits[..], labels);
                network.loss().forward_backward_split(split, given, scale, &mut act_grads, &mut combine)
            }
        };
        on.amp.round(last, &mut act_grads);
        self.act_grads[last] = Some(act_grads);
        loss
    }

    /// Computes the gradients with respect to layer `l`'s parameters over `n` samples; they replace `grads`.
    pub fn weight_grad(
        &mut self,
        on: &mut Arithmetic<F>,
        network: &Network<F>,
        (l, n): (usize, usize),
        (params, grads): (&[F], &mut [F]),
        peers: &mut dyn Peers<F>,
    ) {
        let Some(dy) = self.output_grad(on, network, (l, n), peers) else { return };
        let (x, y) =
            (&self.acts[network.storage_of(network.from(l)[0])], &self.acts[network.storage_of(l + 1)]);
        let (params, x) = on.amp.inputs(network, l, params, x);
        let (saved, totals, scale) = (&mut self.saved[l], &self.totals, self.scale);
        let mut pass = Backward { n, scale, params, x, y, dy: &dy, saved, totals, peers };
        network.layers()[l].backward_params(&mut pass, grads);
        on.amp.round_of(l, grads);
        self.act_grads[l + 1] = Some(dy);
    }

    /// Computes the gradients of layer `l`'s inputs over `n` samples: replaces the gradients of those activations, or adds to them.
    /// `grads` are the gradients of the layer's parameters, which some layers read here. The gradient of the layer's output is
    /// freed unless `keep` is set: then the layer's weight gradient still needs it.
    pub fn input_grad(
        &mut self,
        on: &mut Arithmetic<F>,
        network: &Network<F>,
        (l, n): (usize, usize),
        (params, grads): (&[F], &[F]),
        keep: bool,
        peers: &mut dyn Peers<F>,
    ) {
        let Some(dy) = self.output_grad(on, network, (l, n), peers) else { return };
        let layer = &network.layers()[l];
        let moves = layer.traits().identity_backward || layer.traits().in_place;
        if moves && keep {
            let mut copy = on.pool.take(dy.len());
            copy.copy_from_slice(&dy);
            self.act_grads[l + 1] = Some(copy);
        }
        if layer.traits().identity_backward {
            return self.pass_on(on, network.from(l), dy);
        }
        let from = network.from(l)[0];
        if layer.traits().in_place {
            let mut dx = dy;
            layer.backward_in_place(self.act(network, l + 1), &mut dx);
            on.amp.round_of(l, &mut dx);
            return self.accumulate_grad(on, from, dx);
        }
        let mut dx = on.pool.take(n * layer.inputs());
        let (x, y) = (&self.acts[network.storage_of(from)], &self.acts[network.storage_of(l + 1)]);
        let (params, x) = on.amp.inputs(network, l, params, x);
        let (saved, totals, scale) = (&mut self.saved[l], &self.totals, self.scale);
        let mut pass = Backward { n, scale, params, x, y, dy: &dy, saved, totals, peers };
        layer.backward_input(&mut pass, grads, &mut dx);
        on.amp.round_of(l, &mut dx);
        self.accumulate_grad(on, from, dx);
        if keep { self.act_grads[l + 1] = Some(dy) } else { on.pool.push(dy) }
    }

    /// Takes the gradient of layer `l`'s output, gathered from the layer's peers if the layer reads more of it than this rank has.
    fn output_grad(
        &mut self,
        on: &mut Arithmetic<F>,
        network: &Network<F>,
        (l, n): (usize, usize),
        peers: &mut dyn Peers<F>,
    ) -> Option<Vec<F>> {
        let (own, layer) = (self.act_grads[l + 1].take()?, &network.layers()[l]);
        let all = n * layer.gradient_len();
        if layer.gradient_len() == layer.outputs() || own.len() == all {
            return Some(own);
        }
        let mut gathered = on.pool.take(all);
        layer.gather_gradient(n, &own, &mut gathered, peers);
        on.pool.push(own);
        Some(gathered)
    }

    /// Passes the gradient of a layer's output to all of its inputs.
    fn pass_on(&mut self, on: &mut Arithmetic<F>, from: &[usize], dy: Vec<F>) {
        for &at in &from[1..] {
            if let Some(accumulated) = &mut self.act_grads[at] {
                add_to(accumulated, &dy);
                on.amp.round(at, accumulated);
            } else {
                let mut copy = on.pool.take(dy.len());
                copy.copy_from_slice(&dy);
                self.accumulate_grad(on, at, copy);
            }
        }
        self.accumulate_grad(on, from[0], dy);
    }

    fn accumulate_grad(&mut self, on: &mut Arithmetic<F>, act: usize, mut dx: Vec<F>) {
        if let Some(mut accumulated) = self.act_grads[act].take() {
            add_to(&mut dx, &accumulated);
            accumulated.truncate(dx.len());
            on.pool.push(accumulated);
        }
        on.amp.round(act, &mut dx);
        self.act_grads[act] = Some(dx);
    }

    /// Returns the gradients that remain after a pass to the pool.
    pub fn recycle_grads(&mut self, pool: &mut BufferPool<F>) {
        self.act_grads.iter_mut().for_each(|act_grads| pool.extend(act_grads.take()));
    }

    /// Returns the values that layers saved to the pool.
    pub fn recycle_saved(&mut self, pool: &mut BufferPool<F>) {
        let saved = self.saved.iter_mut().map(|saved| std::mem::take(&mut saved.values));
        pool.extend(saved.filter(|values| values.capacity() > 0));
    }

    /// Returns the values that layer `l` saved to the pool.
    pub fn free_saved(&mut self, l: usize, pool: &mut BufferPool<F>) {
        let values = std::mem::take(&mut self.saved[l].values);
        pool.extend((values.capacity() > 0).then_some(values));
    }

    /// Returns an activation to the pool.
    pub fn free(&mut self, storage: usize, pool: &mut BufferPool<F>) {
        let act = std::mem::take(&mut self.acts[storage]);
        if act.capacity() > 0 {
            pool.push(act);
        }
    }

    /// Stores an activation that another rank computed.
    pub fn put(&mut self, storage: usize, act: Vec<F>) {
        self.acts[storage] = act;
    }

    /// Stores the gradient of an activation that another rank computed.
    pub fn put_grad(&mut self, act: usize, grad: Vec<F>) {
        self.act_grads[act] = Some(grad);
    }

    /// Takes the gradient of an activation out, if it has been computed.
    pub fn take_grad(&mut self, act: usize) -> Option<Vec<F>> {
        self.act_grads[act].take()
    }

    /// The first activation with a value that is not finite, if there is one.
    pub fn first_not_finite(&self) -> Option<usize> {
        self.acts.iter().position(|act| act.iter().any(|&x| (x * F::ZERO).is_nan()))
    }

    /// Bytes of the activations, of the values that layers saved, and of gradients with respect to activations.
    pub fn bytes(&self) -> [u64; 3] {
        let bytes = |elements: usize| (elements * size_of::<F>()) as u64;
        let saved = self.saved.iter().map(|s| bytes(s.values.capacity()) + 4 * s.indices.capacity() as u64);
        [
            bytes(self.acts.iter().map(Vec::capacity).sum()),
            saved.sum(),
            bytes(self.act_grads.iter().flatten().map(Vec::capacity).sum()),
        ]
    }
}
