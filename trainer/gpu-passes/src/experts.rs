//! A mixture of experts on a device; [`allfold_networks::layers`] has its layers. All of it is computed in f32.
//!
//! ```text
//! activation between the layers   slots [E, n, capacity, width] | gates [n T, k] | slot numbers [n T, k]      for a whole batch
//! with ranks of the expert axis   each rank has the slots of its own experts, of the samples of all ranks
//! ```

use super::backward::gone;
use super::passes::{PassContext, Passes, cut};
use crate::Result;
use crate::error::network;
use allfold_cuda::launch::{self, DeviceMatrix, MixtureLaunch, ProductOutput, RowStrides, RowsLaunch};
use allfold_cuda::{Memory, Slice, vendor};
use allfold_kernels::DType;
use allfold_networks::layers::{ExpertShape, LayerOperation};
use std::ops::Range;

/// The memory of a product in f32.
fn f32s(data: Slice<'_>) -> ProductOutput<'_> {
    ProductOutput::new(data, DType::F32)
}

/// A router or a combine layer, for some samples.
struct Mixture {
    s: MixtureLaunch,
    /// The weight of the balance loss.
    balance: f64,
    /// The number of experts of a rank.
    own: usize,
}

impl Mixture {
    /// The slots, the gates and the slot numbers of an activation.
    fn parts<'a>(&self, of: Slice<'a>) -> Result<[Slice<'a>; 3]> {
        let MixtureLaunch { samples, tokens, experts, chosen, capacity, width } = self.s;
        let [slots, tail] = cut(of, 4 * samples * experts * capacity * width)?;
        let [gates, numbers] = cut(tail, 4 * samples * tokens * chosen)?;
        Ok([slots, gates, numbers])
    }

    fn tokens(&self) -> usize {
        self.s.samples * self.s.tokens
    }
}

/// The linear layer of one expert: its slots among those of the rank's experts, its weights and its bias, in bytes.
struct ExpertPart {
    x: Range<usize>,
    y: Range<usize>,
    w: Range<usize>,
    b: Range<usize>,
}

/// The linear layers of a rank's experts.
struct ExpertRows {
    inputs: usize,
    outputs: usize,
    /// The number of slots of an expert.
    rows: usize,
    parts: Vec<ExpertPart>,
}

fn within<'a>(of: Slice<'a>, range: &Range<usize>) -> allfold_cuda::Result<Slice<'a>> {
    of.part(range.start, range.len())
}

impl Passes {
    fn mixture(&self, l: usize, n: usize) -> Result<Mixture> {
        let (shape, balance, ranks) = match self.operations[l] {
            LayerOperation::ExpertRouter { shape, balance, ranks } => (shape, balance, ranks),
            LayerOperation::ExpertCombine { shape, ranks } => (shape, 0.0, ranks),
            _ => return Err(network(format!("layer `{}` is no mixture", self.network.names()[l]))),
        };
        let ExpertShape { positions: tokens, width, experts, chosen, capacity } = shape;
        let s = MixtureLaunch { samples: n, tokens, experts, chosen, capacity, width };
        Ok(Mixture { s, balance, own: experts / ranks.max(1) })
    }

    /// Chooses the experts of each token and puts the tokens into their slots. Returns the probabilities, and the choices with their
    /// slots.
    pub(crate) fn route(&self, l: usize, with: &mut PassContext<'_, '_>, y: &Memory) -> Result<Vec<Memory>> {
        let (m, queue) = (self.mixture(l, with.n)?, with.queue);
        let (x, w) = (self.x(l, with.n)?, self.wide_param(l, 0, with.weights)?);
        let MixtureLaunch { experts, chosen, width, .. } = m.s;
        let p = queue.memory(4 * m.tokens() * experts)?;
        let a = DeviceMatrix::new(x, [m.tokens(), width], false);
        let b = DeviceMatrix::new(w, [width, experts], true);
        vendor::matmul(queue, DType::F32, (a, b), f32s(p.all()), None)?;
        let choices = queue.memory(8 * m.tokens() * chosen)?;
        let [best, places] = cut(choices.all(), 4 * m.tokens() * chosen)?;
        let [slots, gates, numbers] = m.parts(y.all())?;
        queue.fill(slots, 0)?;
        m.s.route(queue, p.all(), [best, places], (gates, numbers))?;
        m.s.dispatch(queue, x, places, slots)?;
        with.send_to_experts(slots, m.own)?;
        Ok(vec![p, choices])
    }

    /// The gradient of the router's logits.
    fn logits_back(&self, l: usize, m: &Mixture, with: &PassContext<'_, '_>, dy: &Memory) -> Result<Memory> {
        let [p, choices] = &self.slot.saved[l][..] else { return Err(gone(&self.network.names()[l])) };
        let [best, _] = cut(choices.all(), choices.len() / 2)?;
        let [_, dgates, _] = m.parts(dy.all())?;
        let dp = with.queue.memory(p.len())?;
        // The loss is a sum over rows divided by `divisor`, and the balance loss a mean over samples.
        let rows = self.network.rows() as f64 / f64::from(self.slot.divisor);
        let balance = (rows * m.balance * m.s.experts as f64) as f32;
        m.s.logits_back(with.queue, (p.all(), best), dgates, balance, dp.all())?;
        Ok(dp)
    }

    /// Computes the gradient of the router's weights.
    pub(crate) fn router_params(&self, l: usize, with: &PassContext<'_, '_>, dy: &Memory) -> Result<()> {
        let (m, queue, x) = (self.mixture(l, with.n)?, with.queue, self.x(l, with.n)?);
        let dp = self.logits_back(l, &m, with, dy)?;
        self.weight(l, 0, with, |dw| {
            let (rows, width, experts) = (m.tokens(), m.s.width, m.s.experts);
            let a = DeviceMatrix::new(dp.all(), [experts, rows], true);
            let b = DeviceMatrix::new(x, [rows, width], false);
            vendor::matmul(queue, DType::F32, (a, b), f32s(dw), None)
        })
    }

    /// Computes the gradient of the tokens: through the logits, and from their slots.
    pub(crate) fn router_input(
        &self,
        l: usize,
        with: &mut PassContext<'_, '_>,
        (dy, dx): (&Memory, &Memory),
    ) -> Result<()> {
        let (m, queue) = (self.mixture(l, with.n)?, with.queue);
        let [came, ..] = m.parts(dy.all())?;
        let slots = queue.memory(came.len())?;
        queue.copy(slots.all(), came)?;
        with.return_from_experts(slots.all(), m.own)?;
        let dp = self.logits_back(l, &m, with, dy)?;
        let (w, experts) = (self.wide_param(l, 0, with.weights)?, m.s.experts);
        let a = DeviceMatrix::new(dp.all(), [m.tokens(), experts], false);
        let b = DeviceMatrix::new(w, [experts, m.s.width], false);
        vendor::matmul(queue, DType::F32, (a, b), f32s(dx.all()), None)?;
        let choices = self.slot.saved[l].get(1).ok_or_else(|| gone(&self.network.names()[l]))?;
        let [_, places] = cut(choices.all(), choices.len() / 2)?;
        m.s.collect(queue, slots.all(), places, dx.all())?;
        Ok(())
    }

    /// Adds up the outputs of each token's experts. Returns the outputs, where ranks have exchanged them.
    pub(crate) fn combine(
        &self,
        l: usize,
        with: &mut PassContext<'_, '_>,
        y: &Memory,
    ) -> Result<Vec<Memory>> {
        let (m, queue) = (self.mixture(l, with.n)?, with.queue);
        let [slots, gates, numbers] = m.parts(self.x(l, with.n)?)?;
        if with.axes.experts.is_none() {
            m.s.combine(queue, slots, (gates, numbers), y.all())?;
            return Ok(Vec::new());
        }
        let outputs = queue.memory(slots.len())?;
        queue.copy(outputs.all(), slots)?;
        with.return_from_experts(outputs.all(), m.own)?;
        m.s.combine(queue, outputs.all(), (gates, numbers), y.all())?;
        Ok(vec![outputs])
    }

    /// Computes the gradients of the experts' outputs and of the gates.
    pub(crate) fn combine_input(
        &self,
        l: usize,
        with: &mut PassContext<'_, '_>,
        (dy, dx): (&Memory, &Memory),
    ) -> Result<()> {
        let (m, queue) = (self.mixture(l, with.n)?, with.queue);
        let [slots, gates, numbers] = m.parts(self.x(l, with.n)?)?;
        let outputs = self.slot.saved[l].first().map_or(slots, Memory::all);
        queue.fill(dx.all(), 0)?;
        let [dslots, dgates, _] = m.parts(dx.all())?;
        m.s.combine_back(queue, (outputs, dy.all()), (gates, numbers), (dslots, dgates))?;
        with.send_to_experts(dslots, m.own)
    }

    fn expert_rows(&self, l: usize, n: usize) -> Result<ExpertRows> {
        let LayerOperation::ExpertLinear { inputs, outputs, experts, ranks, capacity, .. } =
            self.operations[l]
        else {
            return Err(network(format!("layer `{}` is of no experts", self.network.names()[l])));
        };
        let rows = n * ranks * capacity;
        let part = |e: usize| {
            let of = |elements: usize| 4 * e * elements..4 * (e + 1) * elements;
            ExpertPart {
                x: of(rows * inputs),
                y: of(rows * outputs),
                w: of(inputs * outputs),
                b: of(outputs),
            }
        };
        Ok(ExpertRows { inputs, outputs, rows, parts: (0..experts / ranks.max(1)).map(part).collect() })
    }

    /// Computes a linear layer of each expert from its slots to those of `y`; what follows the slots passes through.
    pub(crate) fn forward_expert_linear(
        &self,
        l: usize,
        with: &PassContext<'_, '_>,
        y: &Memory,
    ) -> Result<()> {
        let (queue, weights) = (with.queue, with.weights);
        let (x, w, bias) =
            (self.x(l, with.n)?, self.wide_param(l, 0, weights)?, self.wide_param(l, 1, weights)?);
        let ExpertRows { inputs, outputs, rows, parts } = self.expert_rows(l, with.n)?;
        for part in &parts {
            let a = DeviceMatrix::new(within(x, &part.x)?, [rows, inputs], false);
            let b = DeviceMatrix::new(within(w, &part.w)?, [inputs, outputs], true);
            let (y, bias) = (within(y.all(), &part.y)?, within(bias, &part.b)?);
            vendor::matmul(queue, DType::F32, (a, b), f32s(y), Some(bias))?;
        }
        let [[_, end], [_, rest]] = ends(&parts, x, y.all())?;
        Ok(queue.copy(rest, end)?)
    }

    /// Computes the gradients of the weights and biases of each expert.
    pub(crate) fn expert_linear_params(
        &self,
        l: usize,
        with: &PassContext<'_, '_>,
        dy: &Memory,
    ) -> Result<()> {
        let (queue, x, dy) = (with.queue, self.x(l, with.n)?, dy.all());
        let ExpertRows { inputs, outputs, rows, parts } = self.expert_rows(l, with.n)?;
        self.weight(l, 0, with, |dw| {
            parts.iter().try_for_each(|part| {
                let dy = within(dy, &part.y)?;
                let a = DeviceMatrix::new(dy, [outputs, rows], true);
                let b = DeviceMatrix::new(within(x, &part.x)?, [rows, inputs], false);
                vendor::matmul(queue, DType::F32, (a, b), f32s(within(dw, &part.w)?), None)
            })
        })?;
        self.wide(l, 1, with, |db| {
            parts.iter().try_for_each(|part| {
                launch::bias_back(queue, DType::F32, within(dy, &part.y)?, within(db, &part.b)?, 1)
            })
        })
    }

    /// Computes the gradient of the slots of each expert.
    pub(crate) fn expert_linear_input(
        &self,
        l: usize,
        with: &PassContext<'_, '_>,
        (dy, dx): (&Memory, &Memory),
    ) -> Result<()> {
        let (queue, w) = (with.queue, self.wide_param(l, 0, with.weights)?);
        let ExpertRows { inputs, outputs, rows, parts } = self.expert_rows(l, with.n)?;
        for part in &parts {
            let dy = within(dy.all(), &part.y)?;
            let a = DeviceMatrix::new(dy, [rows, outputs], false);
            let b = DeviceMatrix::new(within(w, &part.w)?, [outputs, inputs], false);
            vendor::matmul(queue, DType::F32, (a, b), f32s(within(dx.all(), &part.x)?), None)?;
        }
        let [[_, rest], [_, end]] = ends(&parts, dx.all(), dy.all())?;
        Ok(queue.copy(rest, end)?)
    }
}

impl Passes {
    /// The function of the experts' slots; what follows the slots passes through.
    pub(crate) fn forward_expert_gelu(&self, l: usize, with: &PassContext<'_, '_>, y: &Memory) -> Result<()> {
        let LayerOperation::ExpertGelu { slots, .. } = self.operations[l] else { return Ok(()) };
        let bytes = 4 * with.n * slots;
        let ([x, end], [y, rest]) = (cut(self.x(l, with.n)?, bytes)?, cut(y.all(), bytes)?);
        launch::activate(with.queue, launch::Function::Gelu, DType::F32, x, y)?;
        Ok(with.queue.copy(rest, end)?)
    }

    /// The gradient of [`Passes::forward_expert_gelu`]'s input.
    pub(crate) fn expert_gelu_input(
        &self,
        l: usize,
        with: &PassContext<'_, '_>,
        (dy, dx): (&Memory, &Memory),
    ) -> Result<()> {
        let LayerOperation::ExpertGelu { slots, .. } = self.operations[l] else { return Ok(()) };
        let bytes = 4 * with.n * slots;
        let [x, _] = cut(self.x(l, with.n)?, bytes)?;
        let ([dy, end], [dx, rest]) = (cut(dy.all(), bytes)?, cut(dx.all(), bytes)?);
        launch::activate_back(with.queue, launch::Function::Gelu, DType::F32, (x, dy), dx)?;
        Ok(with.queue.copy(rest, end)?)
    }
}

/// The slots and what follows them, on the side of the experts' inputs and on that of their outputs.
fn ends<'a>(parts: &[ExpertPart], x: Slice<'a>, y: Slice<'a>) -> Result<[[Slice<'a>; 2]; 2]> {
    let (x_end, y_end) = parts.last().map_or((0, 0), |part| (part.x.end, part.y.end));
    Ok([cut(x, x_end)?, cut(y, y_end)?])
}

impl PassContext<'_, '_> {
    /// Sends every expert's slots to the rank that has the expert, of which each has `own`. A rank receives slots in the order of its
    /// experts, and for each expert in the order of the sending ranks.
    fn send_to_experts(&mut self, slots: Slice<'_>, own: usize) -> Result<()> {
        let Some(group) = &mut self.axes.experts else { return Ok(()) };
        let received = self.queue.memory(slots.len())?;
        group.all_to_all(self.queue, slots, received.all())?;
        group.join(self.queue)?;
        let (by_rank, by_expert) = orders(slots, own, group.ranks() as usize);
        let s = RowsLaunch { from: by_rank, into: by_expert.into, ..by_expert };
        launch::rows(self.queue, DType::F32, &s, received.all(), slots)?;
        Ok(())
    }

    /// Sends every slot back to the rank from which [`PassContext::send_to_experts`] received the slot.
    fn return_from_experts(&mut self, slots: Slice<'_>, own: usize) -> Result<()> {
        let Some(group) = &mut self.axes.experts else { return Ok(()) };
        let sent = self.queue.memory(slots.len())?;
        let (by_rank, by_expert) = orders(slots, own, group.ranks() as usize);
        let s = RowsLaunch { from: by_expert.into, into: by_rank, ..by_expert };
        launch::rows(self.queue, DType::F32, &s, slots, sent.all())?;
        group.all_to_all(self.queue, sent.all(), slots)?;
        Ok(group.join(self.queue)?)
    }
}

/// The layouts of the slots of a rank's `own` experts from `ranks` ranks: the strides of experts and ranks in the order of ranks, and
/// the launch from this order to the order of experts, whose strides are in `into`.
fn orders(slots: Slice<'_>, own: usize, ranks: usize) -> (RowStrides, RowsLaunch) {
    let block = slots.len() / 4 / (own * ranks).max(1);
    let by_rank = RowStrides { outer: block as u64, row: (own * block) as u64 };
    let by_expert = RowStrides { outer: (ranks * block) as u64, row: block as u64 };
    let s = RowsLaunch { outer: own, rows: ranks, columns: block, from: by_rank, into: by_expert };
    (by_rank, s)
}
