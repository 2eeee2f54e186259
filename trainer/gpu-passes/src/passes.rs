//! The forward and the backward pass of a network on a device, in the order of [`Network::forward_phases`] and
//! [`Network::backward_phases`].
//!
//! Activations come from the queue's pool and return to it as soon as the backward pass has used them. A layer that computes in
//! another type than its input has reads a cast copy of the input ([`super::precision`]).

use super::fusion::Fusion;
use super::layout::{ChannelsLast, TensorFormat, filters};
use super::precision::TensorFormats;
use super::slot::{BackwardCounts, SlotTensors};
use super::supported::{drops_whole_groups, own, supported};
use crate::error::{network, unsupported};
use crate::{Result, Values};
use allfold_collectives::ReduceOp;
use allfold_cuda::launch;
use allfold_cuda::{Memory, Queue, Slice, vendor};
use allfold_gpu::device::DeviceGroup;
use allfold_kernels::DType;
use allfold_networks::layers::LayerOperation;
use allfold_networks::{Network, NetworkTensors, Phase, layer_of};
use std::sync::Arc;

/// A rank's groups along the axes over which layers exchange values.
pub struct AxisGroups<'a, 'c> {
    /// The data axis.
    pub data: &'a mut DeviceGroup<'c>,
    /// The tensor axis, where several ranks share layers.
    pub tensor: Option<&'a mut DeviceGroup<'c>>,
    /// The context axis, where several ranks share positions.
    pub context: Option<&'a mut DeviceGroup<'c>>,
    /// The expert axis, where several ranks share experts.
    pub experts: Option<&'a mut DeviceGroup<'c>>,
}

/// The queue, the weights and the groups that a pass works with.
pub struct PassContext<'a, 'c> {
    /// The queue on which the pass runs.
    pub queue: &'a Queue,
    /// Parameters, gradients and running statistics.
    pub weights: &'a dyn Values,
    /// The groups of the rank's axes.
    pub axes: AxisGroups<'a, 'c>,
    /// The number of samples in the pass.
    pub n: usize,
}

/// A network on a device, with its micro-batches in flight.
pub struct Passes {
    /// The network; the passes use its structure alone.
    pub network: Network<f32>,
    /// What each layer computes.
    pub operations: Vec<LayerOperation>,
    /// The types and layouts of the network's tensors.
    pub precision: TensorFormats,
    /// For each parameter that is a filter stored with channels last: its number of channels and of pixels.
    pub filters: Vec<ChannelsLast>,
    counts: BackwardCounts,
    /// How each layer takes part in a fused computation.
    pub(crate) fusions: Vec<Fusion>,
    /// The distance of rows of logits in elements, if it is not the number of classes; otherwise 0.
    pub(crate) apart: usize,
    /// For each layer: whether its forward pass runs again in the backward pass.
    runs_again: Vec<bool>,
    /// The micro-batch that the passes work on, and its number among the slots.
    pub slot: SlotTensors,
    at: usize,
    /// The other micro-batches in flight; the entry of `slot` is an empty slot.
    others: Vec<SlotTensors>,
}

impl Passes {
    /// The passes of a network on the device of `queue`; with `narrow` under autocast.
    ///
    /// # Errors
    /// A layer that the kernels do not compute, `channels_last` for a network without convolutions, too little memory.
    pub fn new(
        network: Network<f32>,
        narrow: Option<DType>,
        channels_last: bool,
        queue: &Queue,
    ) -> Result<Passes> {
        let operations: Vec<LayerOperation> =
            network.layers().iter().map(|layer| layer.operation()).collect();
        for (name, operation) in network.names().iter().zip(&operations) {
            supported(name, operation)?;
        }
        if channels_last && !operations.iter().any(|op| matches!(op, LayerOperation::Conv { .. })) {
            let what = "`channels_last` is for networks with convolutions, and this one has none";
            return Err(unsupported(what.into()));
        }
        let precision = TensorFormats::new(&network, narrow, &operations, channels_last);
        for (l, operation) in operations.iter().enumerate() {
            drops_whole_groups(&network, l, operation, precision.layers[l])?;
        }
        let again = network.backward_phases();
        Ok(Passes {
            precision,
            filters: filters(&network, &operations, channels_last),
            counts: BackwardCounts::of(&network),
            runs_again: (0..operations.len()).map(|l| again.contains(&Phase::Recompute(l))).collect(),
            slot: SlotTensors::new(operations.len(), queue)?,
            fusions: vec![Fusion::Alone; operations.len()],
            apart: 0,
            at: 0,
            others: Vec::new(),
            operations,
            network,
        })
    }

    /// Makes the micro-batch of slot `at` the one that the passes work on.
    pub fn select(&mut self, at: usize, queue: &Queue) -> Result<()> {
        while self.others.len() <= at.max(self.at) {
            self.others.push(SlotTensors::new(self.operations.len(), queue)?);
        }
        if at != self.at {
            std::mem::swap(&mut self.slot, &mut self.others[self.at]);
            std::mem::swap(&mut self.slot, &mut self.others[at]);
            self.at = at;
        }
        Ok(())
    }

    /// Whether the network's samples are tokens.
    pub fn tokens(&self) -> bool {
        matches!(
            self.operations.first(),
            Some(LayerOperation::Embedding { .. } | LayerOperation::VocabParallel { .. })
        )
    }

    /// Makes the slot's memory of samples and labels large enough for `n` samples. Returns the old memory if that was too small.
    pub fn reserve(&mut self, n: usize, queue: &Queue) -> Result<Option<[Memory; 2]>> {
        let (input, labels) = (4 * n * self.network.inputs(), 4 * n * self.network.rows());
        if self.slot.input.len() >= input && self.slot.labels.len() >= labels {
            return Ok(None);
        }
        let fresh = |bytes| Memory::new(queue.machine(), queue.device(), bytes);
        let (input, labels) = (fresh(input)?, fresh(labels)?);
        let input = std::mem::replace(&mut self.slot.input, input);
        let labels = std::mem::replace(&mut self.slot.labels, labels);
        Ok(Some([input, labels]))
    }

    /// Activation number `act` of a batch of `n` samples.
    pub fn act(&self, act: usize, n: usize) -> Result<Slice<'_>> {
        match &self.slot.acts[act] {
            Some(memory) => Ok(memory.all()),
            None if act == 0 => Ok(self.slot.input.all().part(0, 4 * n * self.network.inputs())?),
            None => Err(network(format!(
                "the output of layer `{}` is read before it is computed: this is a bug of Allfold",
                self.network.names()[act - 1]
            ))),
        }
    }

    /// The first input of layer `l`, in the layer's type and layout.
    pub(crate) fn x(&self, l: usize, n: usize) -> Result<Slice<'_>> {
        match &self.slot.casts[l] {
            Some(cast) => Ok(cast.all()),
            None => self.act(self.network.from(l)[0], n),
        }
    }

    /// Allocates memory for `elements` elements of a layer's type.
    pub(crate) fn fresh(&self, l: usize, elements: usize, queue: &Queue) -> Result<Memory> {
        Ok(queue.memory(elements * self.precision.layers[l].size())?)
    }

    /// The labels of n samples.
    pub(crate) fn labels_of(&self, n: usize) -> Result<Slice<'_>> {
        Ok(self.slot.labels.all().part(0, 4 * n * self.network.rows())?)
    }

    /// The logits of the last forward pass, and their type.
    pub(crate) fn logits(&self, n: usize) -> Result<(DType, Slice<'_>)> {
        let last = self.network.layers().len();
        Ok((self.precision.acts[last], self.act(last, n)?))
    }

    /// Runs any phase of a training step except the loss.
    pub fn run(&mut self, phase: Phase, with: &mut PassContext<'_, '_>) -> Result<()> {
        match phase {
            Phase::SyncForward(l) => self.sums(l, with)?,
            Phase::Forward(l) => {
                match self.fusions[l] {
                    Fusion::Sum | Fusion::Gelu | Fusion::BeforeNorm => {}
                    Fusion::AfterSum => self.forward_sum_norm(l, with)?,
                    Fusion::BeforeGelu => self.forward_gelu(l, with)?,
                    Fusion::Relu { norm, other } => self.forward_fused(l, (norm, other), with)?,
                    _ => self.forward_layer(l, with, true)?,
                }
                self.drop_recomputed(l);
            }
            Phase::Recompute(l) => self.forward_layer(l, with, true)?,
            Phase::WeightGrad(l) => self.layer_params(l, with)?,
            Phase::SyncBackward(l) => self.sums_back(l, with)?,
            Phase::InputGrad(l) => match self.fusions[l] {
                Fusion::Relu { norm, other } => self.fused_relu_back(l, (norm, other), with)?,
                Fusion::Gelu => {}
                _ => self.layer_input(l, with)?,
            },
            Phase::Loss | Phase::Ready(_) => {}
        }
        if matches!(phase, Phase::WeightGrad(_) | Phase::SyncBackward(_) | Phase::InputGrad(_))
            && let Some(l) = layer_of(phase)
        {
            self.slot.after_backward(l, self.network.from(l));
        }
        Ok(())
    }

    /// After the forward pass of layer `l`: drops what is inside a recomputed block, if the layer is the block's last.
    fn drop_recomputed(&mut self, l: usize) {
        if self.network.is_recomputed(l) {
            return;
        }
        for inside in (0..l).rev().take_while(|inside| self.network.is_recomputed(*inside)) {
            self.slot.acts[inside + 1] = None;
            // A layer that does not run again keeps its cast input.
            if self.runs_again[inside] {
                self.slot.casts[inside] = None;
                self.slot.saved[inside].clear();
            }
        }
    }

    /// Computes the logits from the input, without training.
    pub fn evaluate(&mut self, with: &mut PassContext<'_, '_>) -> Result<()> {
        for l in 0..self.operations.len() {
            self.forward_layer(l, with, false)?;
            // Activations that no later layer reads are freed.
            let last =
                |act: usize| (l + 1..self.operations.len()).all(|m| !self.network.from(m).contains(&act));
            let gone: Vec<usize> = self.network.from(l).iter().copied().filter(|act| last(*act)).collect();
            gone.into_iter().for_each(|act| self.slot.acts[act] = None);
            self.slot.casts[l] = None;
        }
        Ok(())
    }

    /// Drops the slot's activations, saved tensors and gradients of activations: before a micro-batch, and when it is done.
    pub fn clear(&mut self) {
        self.slot.clear(&self.counts);
    }

    /// Converts the first input of layer `l` to the format in which the layer reads it.
    pub(crate) fn take_in(&mut self, l: usize, with: &PassContext<'_, '_>) -> Result<()> {
        let from = self.network.from(l)[0];
        self.slot.casts[l] = None;
        let x = self.act(from, with.n)?;
        self.slot.casts[l] = self.precision.act(from).to(self.precision.reads(l), x, with.queue)?;
        Ok(())
    }

    /// The sums over ranks that a synchronised batch norm needs for its forward pass.
    fn sums(&mut self, l: usize, with: &mut PassContext<'_, '_>) -> Result<()> {
        self.take_in(l, with)?;
        let LayerOperation::BatchNorm { channels, plane, .. } = self.operations[l] else {
            return Ok(());
        };
        if with.axes.data.ranks() == 1 {
            // Counts of several ranks are summed on the device, where the host does not see them, so only a single rank's count
            // is checked.
            self.network.normalises_all(l, &[(with.n * plane) as f64])?;
        }
        let shape = self.batch_norm(l, channels, plane, with.n);
        let totals = with.queue.memory(8 * (1 + 2 * channels))?;
        shape.sums(with.queue, self.x(l, with.n)?, totals.all())?;
        with.axes.data.all_reduce(with.queue, DType::F64, ReduceOp::Sum, totals.all())?;
        with.axes.data.join(with.queue)?;
        self.slot.saved[l] = vec![totals];
        Ok(())
    }

    pub(crate) fn batch_norm(
        &self,
        l: usize,
        channels: usize,
        plane: usize,
        n: usize,
    ) -> launch::BatchNormLaunch {
        let (dtype, layout) = (self.precision.layers[l], self.precision.reads(l).layout());
        launch::BatchNormLaunch { dtype, n, channels, plane, layout }
    }

    /// The launch shape of attention layer `l`; in training it includes the random draws of dropout, if the layer has dropout.
    pub(crate) fn heads(&self, l: usize, n: usize, train: bool) -> Result<launch::Heads<'_>> {
        let LayerOperation::Attention { positions, width, heads, causal, dropped, first_head, .. } =
            self.operations[l]
        else {
            return Err(own(&self.network.names()[l]));
        };
        let (dtype, size) = (self.precision.layers[l], width / heads.max(1));
        let part = launch::AttentionPart { length: positions, head: first_head, query: 0, key: 0 };
        let stream = self.slot.stream.all();
        let draws = launch::Dropped { stream, layer: l as u32, share: dropped, part: Some(part) };
        let dropped = (train && dropped > 0.0).then_some(draws);
        Ok(launch::Heads { dtype, batch: n, length: positions, heads, size, causal, dropped })
    }

    /// Parameter number `nth` of layer `l`, in the type in which the layer computes.
    pub(crate) fn param<'w>(&self, l: usize, nth: usize, weights: &'w dyn Values) -> Result<Slice<'w>> {
        let narrow = self.precision.narrows(&self.network, l);
        weights.read(self.network.params_of(l).start + nth, narrow)
    }

    pub(crate) fn wide_param<'w>(&self, l: usize, nth: usize, weights: &'w dyn Values) -> Result<Slice<'w>> {
        weights.param(self.network.params_of(l).start + nth)
    }

    fn forward_layer(&mut self, l: usize, with: &mut PassContext<'_, '_>, train: bool) -> Result<()> {
        let totals = if train { self.slot.saved[l].pop() } else { None };
        // The sums of a synchronised batch norm have cast the layer's input already.
        if totals.is_none() {
            self.take_in(l, with)?;
        }
        // Where ranks share the positions of an output, its parts have all positions before they are summed.
        let layer = &self.network.layers()[l];
        let [own, all] = match self.logits_apart(l) {
            0 => [layer.outputs(), layer.gradient_len()].map(|each| with.n * each),
            apart => [with.n * self.network.rows() * apart; 2],
        };
        let is_inside = train && matches!(self.fusions[l], Fusion::Norm { .. });
        let y = with.queue.memory(if is_inside { 0 } else { all * self.precision.acts[l + 1].size() })?;
        let summed = if own < all { Some(self.fresh(l, own, with.queue)?) } else { None };
        let own_input = self.gather_input(l, with)?;
        let mut saved = match self.operations[l] {
            LayerOperation::BatchNorm { channels, plane, .. } => {
                let shape = self.batch_norm(l, channels, plane, with.n);
                self.forward_batch_norm(l, with, train, &shape, totals.as_ref(), &y)?
            }
            LayerOperation::RingAttention { .. } => self.forward_ring(l, with, train, &y)?,
            LayerOperation::ExpertRouter { .. } => self.route(l, with, &y)?,
            LayerOperation::ExpertCombine { .. } => self.combine(l, with, &y)?,
            _ => self.forward_operation(l, with, train, &y)?,
        };
        let y = self.sum_output(l, with, y, summed)?;
        if let Some(own) = own_input {
            self.slot.casts[l] = own;
        }
        saved.extend(totals);
        self.slot.saved[l] = if train { saved } else { Vec::new() };
        self.slot.acts[l + 1] = (!is_inside).then(|| Arc::new(y));
        Ok(())
    }

    /// Computes layer `l`, which is no batch norm, from its input to `y`. Returns the tensors that it saves for the backward pass.
    fn forward_operation(
        &self,
        l: usize,
        with: &PassContext<'_, '_>,
        train: bool,
        y: &Memory,
    ) -> Result<Vec<Memory>> {
        let (n, queue, weights, dtype) = (with.n, with.queue, with.weights, self.precision.layers[l]);
        let x = self.x(l, n)?;
        let mut saved = Vec::new();
        match &self.operations[l] {
            LayerOperation::Linear { .. }
            | LayerOperation::ColumnParallel { .. }
            | LayerOperation::RowParallel { .. } => self.forward_linear(l, with, y, None)?,
            LayerOperation::Conv { shape, bias } => {
                let s = conv(shape, self.precision.reads(l), n);
                let w = self.param(l, 0, weights)?;
                vendor::conv(queue, vendor::ConvProduct::Forward, &s, (x, w), y.all())?;
                if *bias {
                    launch::bias(queue, dtype, y.all(), self.wide_param(l, 1, weights)?, plane(&s)?)?;
                }
            }
            LayerOperation::LayerNorm { rows, width, eps }
            | LayerOperation::SequenceLayerNorm { rows, width, eps } => {
                let s = self.layer_norm_launch(l, n * rows, *width, *eps as f32);
                let (means, rs) = (queue.memory(4 * s.rows)?, queue.memory(4 * s.rows)?);
                let wb = (self.wide_param(l, 0, weights)?, self.wide_param(l, 1, weights)?);
                launch::layer_norm(queue, &s, (x, None), wb, (means.all(), rs.all()), y.all())?;
                saved.extend([means, rs]);
            }
            LayerOperation::Relu => launch::activate(queue, launch::Function::Relu, dtype, x, y.all())?,
            LayerOperation::Gelu => launch::activate(queue, launch::Function::Gelu, dtype, x, y.all())?,
            LayerOperation::Add => self.residual_sum(l, x, y, with)?,
            LayerOperation::MaxPool(shape) => {
                let winners = queue.memory(4 * n * self.network.layers()[l].outputs())?;
                let s = pool(shape, self.precision.reads(l), n);
                launch::max_pool(queue, dtype, &s, x, y.all(), winners.all())?;
                saved.push(winners);
            }
            LayerOperation::MeanPool(shape) => {
                launch::mean_pool(queue, dtype, &pool(shape, self.precision.reads(l), n), x, y.all())?;
            }
            LayerOperation::GlobalMeanPool { channels, .. } => {
                let last = self.precision.reads(l).channels_last.map(|_| *channels);
                launch::plane_mean(queue, dtype, x, y.all(), last)?;
            }
            LayerOperation::Embedding { .. } | LayerOperation::VocabParallel { .. } => {
                self.forward_table(l, with, y)?;
            }
            LayerOperation::Positions { .. } => {
                queue.copy(y.all(), x)?;
                launch::bias(queue, dtype, y.all(), self.wide_param(l, 0, weights)?, 1)?;
            }
            LayerOperation::PositionsPart { .. } => self.add_positions(l, with, y)?,
            LayerOperation::SequencePositions { .. } => self.add_sequence_positions(l, with, y)?,
            LayerOperation::ExpertLinear { .. } => self.forward_expert_linear(l, with, y)?,
            LayerOperation::ExpertGelu { .. } => self.forward_expert_gelu(l, with, y)?,
            LayerOperation::Attention { positions, heads, .. } => {
                let s = self.heads(l, n, train)?;
                let lse = queue.memory(4 * n * heads * positions)?;
                launch::attention(queue, &s, x, y.all(), lse.all())?;
                saved.push(lse);
            }
            LayerOperation::Dropout { .. } if train => self.drop_values(l, queue, (x, y.all()))?,
            LayerOperation::Dropout { .. } => queue.copy(y.all(), x)?,
            _ => Err(own(&self.network.names()[l]))?,
        }
        Ok(saved)
    }
}

impl Passes {
    /// Dropout of values, or of their gradients, by the draws of layer `l`.
    pub(crate) fn drop_values(&self, l: usize, queue: &Queue, values: (Slice<'_>, Slice<'_>)) -> Result<()> {
        let LayerOperation::Dropout { share, runs } = &self.operations[l] else { return Ok(()) };
        let (s, draws) = (launch::DropoutLaunch { runs, share: *share }, self.slot.stream.all());
        launch::dropout(queue, self.precision.layers[l], values, (draws, l as u32), &s)?;
        Ok(())
    }
}

impl PassContext<'_, '_> {
    /// Combines `data` over the ranks of the tensor axis, in place.
    pub(crate) fn sum_parts(&mut self, dtype: DType, op: ReduceOp, data: Slice<'_>) -> Result<()> {
        let Some(tensor) = &mut self.axes.tensor else { return Ok(()) };
        tensor.all_reduce(self.queue, dtype, op, data)?;
        Ok(tensor.join(self.queue)?)
    }
}

/// The first `bytes` bytes of a slice, and the others.
pub(crate) fn cut(of: Slice<'_>, bytes: usize) -> Result<[Slice<'_>; 2]> {
    Ok([of.part(0, bytes)?, of.part(bytes, of.len().saturating_sub(bytes))?])
}

/// The number of values of one channel that are adjacent in memory.
pub(crate) fn plane(s: &launch::Conv) -> Result<usize> {
    let (p, q) = s.output_picture()?;
    Ok(if s.layout == launch::TensorLayout::ChannelsLast { 1 } else { p * q })
}

pub(crate) fn conv(shape: &allfold_kernels::nn::Conv2dShape, form: TensorFormat, n: usize) -> launch::Conv {
    launch::Conv {
        dtype: form.dtype,
        groups: shape.groups,
        layout: form.layout(),
        n,
        channels: shape.inputs,
        picture: shape.picture,
        filters: shape.outputs,
        side: shape.kernel,
        stride: shape.stride,
        padding: shape.padding,
    }
}

pub(crate) fn pool(
    shape: &allfold_kernels::nn::PoolShape,
    form: TensorFormat,
    n: usize,
) -> launch::PoolLaunch {
    launch::PoolLaunch {
        channels: shape.channels,
        layout: form.layout(),
        planes: n * shape.channels,
        picture: shape.picture,
        window: shape.window,
        stride: shape.stride,
        padding: shape.padding,
    }
}
