//! The memory of a rank on a clock: it allocates and frees buffers as the engine of the CPU does, without their contents.
//!
//! ```text
//! unit          parameters, gradients, optimiser state, whole or in part; whole buffers for exchanges
//! micro-batch   activations, what layers save, gradients of activations and of parameters; their buffers are pooled
//! ```

use super::buffers::{ClockBuffer, ClockBufferPool, grown};
use super::units::UnitSizes;
use allfold_trainer::engine::{ActivationReaders, Boundary, Slot, TensorUses};
use allfold_trainer::{LayerTensors, MemoryUse, NetworkTensors, Outline, Phase};
use std::sync::Arc;

/// The tensors of a micro-batch.
#[derive(Clone, Default)]
struct SlotBuffers {
    n: usize,
    micro: usize,
    acts: Vec<ClockBuffer>,
    saved: Vec<(ClockBuffer, usize)>,
    grads: Vec<Option<ClockBuffer>>,
    uses: TensorUses,
    own_grads: Vec<ClockBuffer>,
    tied_grads: Vec<ClockBuffer>,
}

/// What is fixed for all steps of a rank.
pub(super) struct RankTensors<'a> {
    pub network: &'a dyn NetworkTensors,
    pub outline: Arc<Outline>,
    /// Readers of each storage in one micro-batch.
    pub readers: ActivationReaders,
    /// For each layer: the unit of its parameters.
    pub unit_of: Vec<usize>,
    /// Whether layers of several stages may share parameters.
    pub has_stages: bool,
    /// Bytes of an element of a parameter, and of an activation.
    pub elements: (usize, usize),
}

/// The memory that a rank holds, and the most that it held in a step.
pub(super) struct ClockMemory<'a> {
    with: RankTensors<'a>,
    pub units: UnitSizes,
    slots: Vec<SlotBuffers>,
    pool: ClockBufferPool,
    begun: Vec<bool>,
    /// Buffers of messages that are under way, and by how much their capacities exceed their lengths.
    sent: Vec<ClockBuffer>,
    slack: usize,
    /// Elements of all activations, and of all saved values; all saved indices.
    acts: usize,
    saved: usize,
    indices: usize,
    /// Bytes of what does not change in a step: running statistics, optimiser state and buckets.
    fixed: MemoryUse,
    pub peak: MemoryUse,
}

impl<'a> ClockMemory<'a> {
    /// The memory before the first step; `fixed` are bytes that do not change.
    pub fn new(with: RankTensors<'a>, units: UnitSizes, fixed: MemoryUse) -> ClockMemory<'a> {
        ClockMemory {
            units,
            begun: vec![false; with.outline.layers()],
            slots: Vec::new(),
            pool: ClockBufferPool::default(),
            sent: Vec::new(),
            slack: 0,
            acts: 0,
            saved: 0,
            indices: 0,
            fixed,
            peak: MemoryUse::default(),
            with,
        }
    }

    /// A step begins.
    pub fn begin(&mut self) {
        self.begun.fill(false);
        self.peak = MemoryUse::default();
    }

    /// Holds these gradients of the only unit, and `bytes` of buckets, from now on.
    pub fn use_buckets(&mut self, bytes: u64) {
        self.fixed.buckets = bytes;
        self.units.use_gradient(0);
    }

    /// Updates the peak by what the rank holds now.
    pub fn note(&mut self) {
        let (param, act) = self.with.elements;
        let bytes = |elements: usize| (elements * param) as u64;
        let act_bytes = |elements: usize| (elements * act) as u64;
        let now = MemoryUse {
            params: bytes(self.units.params),
            gradients: bytes(self.units.grads),
            activations: act_bytes(self.acts),
            saved_for_backward: act_bytes(self.saved) + 4 * self.indices as u64,
            activation_gradients: act_bytes(self.pool.made - self.acts - self.saved - self.slack),
            buckets: self.fixed.buckets + bytes(self.units.free()),
            ..self.fixed
        };
        if now.total() > self.peak.total() {
            self.peak = now;
        }
    }
}

/// Messages.
impl ClockMemory<'_> {
    /// A buffer of a message of this many elements, which is under way.
    pub fn message(&mut self, elements: usize) -> ClockBuffer {
        let buffer = self.pool.take(elements);
        self.slack += buffer.capacity - buffer.len;
        buffer
    }

    /// A message has arrived, and its buffer returns to the pool.
    pub fn arrived(&mut self, buffer: ClockBuffer) {
        self.slack -= buffer.capacity - buffer.len;
        self.pool.push(buffer);
    }

    /// A message is under way until [`ClockMemory::all_arrived`].
    pub fn send_values(&mut self, elements: usize) {
        let buffer = self.message(elements);
        self.sent.push(buffer);
    }

    pub fn all_arrived(&mut self) {
        for buffer in std::mem::take(&mut self.sent) {
            self.arrived(buffer);
        }
    }

    pub fn send(&mut self, what: Boundary, Slot(at): Slot) {
        match what {
            Boundary::Activation(act) => {
                let storage = self.with.network.storage_of(act);
                self.send_values(self.slots[at].acts[storage].len);
                self.read_once(at, storage);
            }
            Boundary::Gradient(act) => {
                let buffer = self.slots[at].grads[act].take().unwrap_or_default();
                self.slack += buffer.capacity - buffer.len;
                self.sent.push(buffer);
            }
        }
    }

    pub fn receive(&mut self, what: Boundary, Slot(at): Slot) {
        let (Boundary::Activation(act) | Boundary::Gradient(act)) = what;
        let elements = self.slots[at].n * self.numbers(act);
        match what {
            Boundary::Activation(act) => {
                let storage = self.with.network.storage_of(act);
                let before = std::mem::take(&mut self.slots[at].acts[storage]);
                self.acts -= before.capacity;
                self.pool.push_filled(before);
                let buffer = self.pool.take(elements);
                self.acts += buffer.capacity;
                self.slots[at].acts[storage] = buffer;
            }
            Boundary::Gradient(act) => {
                let buffer = self.pool.take(elements);
                let before = self.slots[at].grads[act].replace(buffer);
                self.pool.made -= before.map_or(0, |before| before.capacity);
            }
        }
    }

    /// Numbers of an activation of one sample.
    fn numbers(&self, act: usize) -> usize {
        match act.checked_sub(1) {
            None => self.with.network.layer(0).inputs,
            Some(layer) => self.with.network.layer(layer).outputs,
        }
    }
}

/// Micro-batches.
impl ClockMemory<'_> {
    pub fn load(&mut self, (n, micro): (usize, usize), Slot(at): Slot) {
        let layers = self.with.outline.layers();
        while self.slots.len() <= at {
            self.slots.push(SlotBuffers {
                acts: vec![ClockBuffer::default(); layers + 1],
                saved: vec![(ClockBuffer::default(), 0); layers],
                grads: vec![None; layers + 1],
                own_grads: vec![ClockBuffer::default(); layers],
                tied_grads: vec![ClockBuffer::default(); layers],
                ..SlotBuffers::default()
            });
        }
        self.forget(Slot(at));
        let slot = &mut self.slots[at];
        (slot.n, slot.micro) = (n, micro);
        slot.uses.begin(&self.with.readers, &self.with.outline);
        if self.with.readers.first[0] > 0 {
            let buffer = self.pool.take(n * self.numbers(0));
            self.acts += buffer.capacity;
            self.slots[at].acts[0] = buffer;
        }
    }

    /// Runs a phase of a micro-batch, in which its tensors are allocated, notes what the rank holds, and frees what no later phase
    /// reads.
    pub fn run(&mut self, phase: Phase, Slot(at): Slot) {
        match phase {
            Phase::Forward(l) => self.forward(l, at),
            Phase::Recompute(l) => {
                self.slots[at].uses.recompute(&self.with.readers, self.with.network, l);
                self.forward(l, at);
            }
            Phase::Loss => {
                let last = self.with.outline.layers();
                let logits = self.slots[at].acts[self.with.network.storage_of(last)].len;
                self.slots[at].grads[last] = Some(self.pool.take(logits));
            }
            Phase::WeightGrad(l) => self.weight_grad(l, at),
            Phase::InputGrad(l) => self.input_grad(l, at),
            Phase::SyncForward(_) | Phase::SyncBackward(_) => {}
            Phase::Ready(_) => return,
        }
        self.note();
        for storage in self.with.network.reads(phase).into_iter().flatten() {
            self.read_once(at, storage);
        }
        let slot = &mut self.slots[at];
        if let Some(l) = slot.uses.saved_are_done(self.with.network, phase) {
            let saved = std::mem::take(&mut slot.saved[l].0);
            self.saved -= saved.capacity;
            self.pool.push_filled(saved);
        }
    }

    /// Frees the tensors of a micro-batch.
    pub fn forget(&mut self, Slot(at): Slot) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        slot.grads.iter_mut().filter_map(Option::take).for_each(|grad| self.pool.push(grad));
        for (saved, _) in &mut slot.saved {
            self.saved -= saved.capacity;
            self.pool.push_filled(std::mem::take(saved));
        }
        for act in &mut slot.acts {
            self.acts -= act.capacity;
            self.pool.push_filled(std::mem::take(act));
        }
        let own = slot.own_grads.iter_mut().chain(&mut slot.tied_grads);
        own.for_each(|grads| self.pool.push_filled(std::mem::take(grads)));
    }

    fn read_once(&mut self, at: usize, storage: usize) {
        let slot = &mut self.slots[at];
        if slot.uses.is_last_read(storage) {
            let act = std::mem::take(&mut slot.acts[storage]);
            self.acts -= act.capacity;
            self.pool.push_filled(act);
        }
    }

    fn forward(&mut self, l: usize, at: usize) {
        if self.with.network.storage_of(l + 1) <= l {
            return;
        }
        let slot = &mut self.slots[at];
        let (values, indices) = self.with.network.saved(l, slot.n);
        let outputs = slot.n * self.with.network.layer(l).outputs;
        let (saved, kept) = &mut slot.saved[l];
        let before = (saved.capacity, *kept, slot.acts[l + 1].capacity);
        self.pool.size(saved, values);
        if indices > *kept {
            *kept = grown(*kept, indices);
        }
        self.pool.size(&mut slot.acts[l + 1], outputs);
        self.saved = self.saved + saved.capacity - before.0;
        self.indices = self.indices + *kept - before.1;
        self.acts = self.acts + slot.acts[l + 1].capacity - before.2;
    }

    fn weight_grad(&mut self, l: usize, at: usize) {
        let unit = self.with.unit_of[l];
        if self.units.use_gradient(unit) {
            let of = &self.with.unit_of;
            self.begun
                .iter_mut()
                .zip(of)
                .filter(|(_, of)| **of == unit)
                .for_each(|(begun, _)| *begun = false);
        }
        let owner = self.with.outline.owner(l);
        let owned = !self.with.has_stages && self.with.outline.weight_grads()[owner];
        let waits = owner != l && owned && self.begun[owner] && self.slots[at].micro > 1;
        let keeps = self.with.network.layer(l).keeps_gradients;
        if let Some(dy) = self.output_grad(l, at) {
            self.slots[at].grads[l + 1] = Some(dy);
        }
        if self.begun[owner] || keeps || waits {
            let own = self.pool.take(self.with.outline.values_of(l).len());
            let slot = &mut self.slots[at];
            self.pool.push_filled(std::mem::take(&mut slot.tied_grads[owner]));
            match (waits, keeps) {
                (true, _) => slot.tied_grads[owner] = own,
                (_, true) => slot.own_grads[l] = own,
                _ => self.pool.push(own),
            }
        }
        self.begun[owner] = true;
        let slot = &mut self.slots[at];
        if slot.uses.weights_done(l)
            && let Some(grad) = slot.grads[l + 1].take()
        {
            self.pool.push(grad);
        }
    }

    fn input_grad(&mut self, l: usize, at: usize) {
        let slot = &mut self.slots[at];
        let own = std::mem::take(&mut slot.own_grads[l]);
        let keep = slot.uses.inputs_done(l);
        self.input_grad_of(l, at, keep);
        self.pool.push_filled(own);
    }

    fn input_grad_of(&mut self, l: usize, at: usize, keep: bool) {
        let Some(dy) = self.output_grad(l, at) else { return };
        let (n, from) = (self.slots[at].n, self.with.network.inputs_of(l));
        let LayerTensors { inputs, passes_on, in_place, .. } = self.with.network.layer(l);
        if (passes_on || in_place) && keep {
            self.slots[at].grads[l + 1] = Some(self.pool.take(dy.len));
        }
        if passes_on {
            for &from in &from[1..] {
                if self.slots[at].grads[from].is_none() {
                    self.slots[at].grads[from] = Some(self.pool.take(dy.len));
                }
            }
            return self.add_grad(from[0], at, dy);
        }
        if in_place {
            return self.add_grad(from[0], at, dy);
        }
        let dx = self.pool.take(n * inputs);
        self.add_grad(from[0], at, dx);
        if keep { self.slots[at].grads[l + 1] = Some(dy) } else { self.pool.push(dy) }
    }

    /// Takes the gradient of a layer's output, gathered if the layer reads more of it than this rank has.
    fn output_grad(&mut self, l: usize, at: usize) -> Option<ClockBuffer> {
        let (slot, layer) = (&mut self.slots[at], self.with.network.layer(l));
        let own = slot.grads[l + 1].take()?;
        let all = slot.n * layer.gradient;
        if layer.gradient == layer.outputs || own.len == all {
            return Some(own);
        }
        let gathered = self.pool.take(all);
        self.pool.push(own);
        Some(gathered)
    }

    fn add_grad(&mut self, act: usize, at: usize, dx: ClockBuffer) {
        if let Some(before) = self.slots[at].grads[act].replace(dx) {
            self.pool.push(before);
        }
    }
}
