//! A micro-batch in flight, and the number of phases that still read each of its tensors.

use super::{Keep, ParamUnit, Slot};
use crate::model::{Activations, Arithmetic};
use crate::{Network, Outline, Phase};
use allfold_kernels::nn::Float;
use allfold_networks::{NetworkTensors, layer_of};
use std::ops::Range;

/// The tensors of one micro-batch.
pub(super) struct SlotState<F> {
    /// The number of samples.
    pub n: usize,
    /// The micro-batch's share of its batch, by samples.
    pub share: f64,
    /// The number of the micro-batch in its step, from 1.
    pub micro: u32,
    /// Samples of the rank's batch before those of the micro-batch.
    pub first: usize,
    /// One label per row of logits.
    pub labels: Vec<u32>,
    pub acts: Activations<F>,
    pub uses: TensorUses,
    /// For each layer whose input gradient reads its weight gradients: those of this micro-batch.
    pub own_grads: Vec<Vec<F>>,
    /// For each layer: the weight gradients in this micro-batch of layers that are tied to it, until its own is computed.
    pub tied_grads: Vec<Vec<F>>,
}

/// In one micro-batch: which phases and messages of a rank still read its tensors.
#[derive(Clone, Debug, Default)]
pub struct TensorUses {
    /// For each storage of an activation: the phases and messages that still read it.
    readers: Vec<u32>,
    /// For each layer: whether its weight gradient is still to be computed, and whether its input gradient has been.
    weights_due: Vec<bool>,
    inputs_done: Vec<bool>,
}

impl TensorUses {
    /// Begins a micro-batch.
    pub fn begin(&mut self, readers: &ActivationReaders, outline: &Outline) {
        self.readers.clone_from(&readers.first);
        self.weights_due.clear();
        self.weights_due.extend_from_slice(outline.weight_grads());
        self.inputs_done.clear();
        self.inputs_done.resize(outline.layers(), false);
    }

    /// Before layer `l` is recomputed: counts the readers of its output, if that has memory of its own.
    pub fn recompute(&mut self, readers: &ActivationReaders, network: &dyn NetworkTensors, l: usize) {
        if network.storage_of(l + 1) == l + 1 {
            self.readers[l + 1] = readers.again[l + 1];
        }
    }

    /// Before the input gradient of layer `l`: whether the gradient of its output must be kept for its weight gradient.
    pub fn inputs_done(&mut self, l: usize) -> bool {
        self.inputs_done[l] = true;
        self.weights_due[l]
    }

    /// After the weight gradient of layer `l`: whether its input gradient is done, so that nothing reads the gradient of its output.
    pub fn weights_done(&mut self, l: usize) -> bool {
        self.weights_due[l] = false;
        self.inputs_done[l]
    }

    /// Counts one read of an activation's storage. Returns whether it was the last.
    pub fn is_last_read(&mut self, storage: usize) -> bool {
        self.readers[storage] = self.readers[storage].saturating_sub(1);
        self.readers[storage] == 0
    }

    /// After a phase: the layer whose saved values no later phase reads, or that saves them again when it is recomputed.
    pub fn saved_are_done(&self, network: &dyn NetworkTensors, phase: Phase) -> Option<usize> {
        let l = layer_of(phase).filter(|l| network.is_recomputed(*l))?;
        let is_last = self.inputs_done[l] && !self.weights_due[l];
        (is_last || matches!(phase, Phase::Forward(_))).then_some(l)
    }
}

/// For each storage of an activation: how many phases and messages of a rank read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActivationReaders {
    /// The readers of what the forward pass writes.
    pub first: Vec<u32>,
    /// The readers of what is recomputed.
    pub again: Vec<u32>,
}

/// The readers of the activations of a rank with these units.
pub fn readers(network: &dyn NetworkTensors, outline: &Outline, units: &[ParamUnit]) -> ActivationReaders {
    let counts = vec![0; outline.layers() + 1];
    let mut readers = ActivationReaders { first: counts.clone(), again: counts };
    for layers in &held_layers(units) {
        let forward = outline.forward(layers).into_iter().map(|phase| (phase, false));
        let backward = outline.backward(layers, true).into_iter().map(|phase| (phase, true));
        for (phase, is_backward) in forward.chain(backward) {
            for storage in network.reads(phase).into_iter().flatten() {
                let recomputed = storage > 0 && network.is_recomputed(storage - 1);
                let of = if is_backward && recomputed { &mut readers.again } else { &mut readers.first };
                of[storage] += 1;
            }
        }
        // The last activation is read once more, to be sent to the next stage.
        if layers.end < outline.layers() {
            readers.first[network.storage_of(layers.end)] += 1;
        }
    }
    readers
}

/// The layers that a rank runs: ranges of units that are neighbours are joined.
fn held_layers(units: &[ParamUnit]) -> Vec<Range<usize>> {
    let mut held: Vec<Range<usize>> = Vec::new();
    for unit in units.iter().filter(|unit| unit.keep != Keep::Nothing) {
        match held.last_mut() {
            Some(last) if last.end == unit.layers.start => last.end = unit.layers.end,
            _ => held.push(unit.layers.clone()),
        }
    }
    held
}

/// The micro-batches in flight, and the readers of the activations of each.
pub(super) struct Slots<F> {
    pub all: Vec<SlotState<F>>,
    pub readers: ActivationReaders,
}

impl<F: Float> Slots<F> {
    pub fn new(readers: ActivationReaders) -> Slots<F> {
        Slots { all: Vec::new(), readers }
    }

    /// A slot of a network with `layers` layers, which is added if it does not exist.
    pub fn at(&mut self, slot: Slot, layers: usize) -> &mut SlotState<F> {
        while self.all.len() <= slot.0 {
            self.all.push(SlotState::new(layers));
        }
        &mut self.all[slot.0]
    }
}

impl<F: Float> SlotState<F> {
    /// An empty slot of a network with `layers` layers.
    pub fn new(layers: usize) -> SlotState<F> {
        SlotState {
            n: 0,
            share: 0.0,
            micro: 0,
            first: 0,
            labels: Vec::new(),
            acts: Activations::new(layers),
            uses: TensorUses::default(),
            own_grads: vec![Vec::new(); layers],
            tied_grads: vec![Vec::new(); layers],
        }
    }

    /// After the weight gradient of layer `l`: frees the gradient of its output, if its input gradient is done.
    pub fn weights_done(&mut self, on: &mut Arithmetic<F>, l: usize) {
        if self.uses.weights_done(l)
            && let Some(grad) = self.acts.take_grad(l + 1)
        {
            on.pool.push(grad);
        }
    }

    /// After a phase: frees what no later phase reads.
    pub fn after(&mut self, on: &mut Arithmetic<F>, network: &Network<F>, phase: Phase) {
        for storage in network.reads(phase).into_iter().flatten() {
            self.read_once(on, storage);
        }
        if let Some(l) = self.uses.saved_are_done(network, phase) {
            self.acts.free_saved(l, &mut on.pool);
        }
    }

    /// Counts one read of an activation's storage; the last read frees it.
    pub fn read_once(&mut self, on: &mut Arithmetic<F>, storage: usize) {
        if self.uses.is_last_read(storage) {
            self.acts.free(storage, &mut on.pool);
        }
    }

    /// Bytes of activations, of the values that layers saved, and of gradients of activations and of parameters in this micro-batch.
    pub fn bytes(&self) -> [u64; 3] {
        let [acts, saved, grads] = self.acts.bytes();
        let own: usize = self.own_grads.iter().chain(&self.tied_grads).map(Vec::capacity).sum();
        [acts, saved, grads + (own * size_of::<F>()) as u64]
    }

    /// Frees activations, their gradients, what layers saved, and the layers' own weight gradients.
    pub fn clear(&mut self, on: &mut Arithmetic<F>) {
        self.acts.recycle_grads(&mut on.pool);
        self.acts.recycle_saved(&mut on.pool);
        (0..=self.own_grads.len()).for_each(|storage| self.acts.free(storage, &mut on.pool));
        self.own_grads.iter_mut().chain(&mut self.tied_grads).for_each(|grads| {
            if !grads.is_empty() {
                on.pool.push(std::mem::take(grads));
            }
        });
    }
}
