//! The time of a training step, by parts.
//!
//! ```text
//! step = micro-batches x (slowest stage: products, attention, kernels between them, casts, launches, recomputation,
//!                         output layer, exchanges of tensor, context and expert axis, gathers of sharded parameters)
//!      + bubble of the pipeline + messages between stages + exchange of gradients that is not hidden + optimiser + fixed,
//!        and as much more as the slowest rank takes
//! ```

use crate::exchanges::{self, DataExchange, LORA};
use crate::framework::Traits;
use crate::job::{OperandPrecision, TrainingJob};
use crate::kernels::{Speeds, slower};
use crate::layout::{Recompute, Sharding};
use crate::parameters::{Physical as P, StepParameters};
use crate::stage::Stage;

macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The parts of a step in seconds; their sum is the step.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct StepTime { $($(#[$doc])* pub $name: f64,)* }

        impl StepTime {
            /// The names of the parts.
            pub const PARTS: [&str; 18] = [$(stringify!($name),)*];

            /// The parts in seconds, in the order of [`StepTime::PARTS`].
            pub fn parts(&self) -> [f64; 18] {
                [$(self.$name,)*]
            }
        }
    };
}

parts! {
    /// Products of the blocks.
    products,
    /// Attention's scores and values.
    attention,
    /// Kernels between products: norms, activations, permutations, sums of gradients.
    elements,
    /// Casts to FP8 and FP4.
    casts,
    /// What the host's launches take longer than their kernels.
    launches,
    /// What is computed again before the backward pass.
    recomputation,
    /// Output layer and loss.
    head,
    /// What the slowest stage takes longer than the average one.
    uneven,
    /// Exchanges of the tensor axis that are not hidden.
    tensor,
    /// Exchanges of keys and values that are not hidden.
    context,
    /// All-to-all of experts.
    experts,
    /// Gathers and scatters of sharded parameters that are not hidden.
    sharding,
    /// Idle time of a stage while the pipeline fills and drains.
    bubble,
    /// Messages between stages.
    messages,
    /// Exchange of gradients that is not hidden.
    data,
    /// The optimiser.
    optimizer,
    /// A step's time beside all that.
    fixed,
    /// What the slowest of all ranks takes longer than the average one.
    stragglers,
}

impl StepTime {
    /// The seconds of the step.
    pub fn total(&self) -> f64 {
        self.parts().iter().sum()
    }
}

/// Seconds of one pass of an average stage over a micro-batch.
#[derive(Clone, Copy, Default)]
struct Pass {
    products: f64,
    attention: f64,
    elements: f64,
    casts: f64,
    tensor: f64,
    context: f64,
    experts: f64,
}

impl Pass {
    fn total(&self) -> f64 {
        self.products
            + self.attention
            + self.elements
            + self.casts
            + self.tensor
            + self.context
            + self.experts
    }
}

/// The elements that kernels between products pass backward, relative to forward.
const BACKWARD_ELEMENTS: f64 = 1.6;
/// The products with frozen weights need no gradients of them; LoRA's own are few.
const LORA_PRODUCTS: f64 = 0.03;

/// Predicts the time of one step.
pub fn step(job: &TrainingJob, p: &StepParameters) -> StepTime {
    let traits = Traits::of_job(job);
    let stage = Stage::of(job);
    let speeds = Speeds::of(job, &traits, p);
    let [forward, backward] = passes(job, &stage, &traits, &speeds, p);
    let again = recomputed(job, &traits, &forward, p);
    let computed = forward.total() + backward.total() + again;
    let host = launches(job, &traits, &stage, p);
    let busy = slower(computed, host);
    // Where the host is slower than its kernels the exchanges have as much longer to hide.
    let stretch = busy / computed;
    let data = DataExchange::of(job, &stage, &traits, p);
    let [forth, back] = [forward.total() * stretch, (backward.total() + again) * stretch];
    let sharding = gathers(&data, [forth, back], busy, &traits, p) + data.ends(f64::from(job.model.layers));
    let head = output_layer(job, &stage, &traits, &speeds, p);
    let micro = busy + sharding;
    let uneven = uneven(job, &traits, micro, head, p);
    let (n, stages) = (stage.micro_batches, f64::from(job.layout.pipeline));
    let mean = micro + head / stages;
    let hidden = if traits.hides_gradients {
        (data.step - p.share(P::Hidden) * back).max(p.at(P::DataExposed) * data.step)
    } else {
        data.step
    };
    let both = |part: fn(&Pass) -> f64| n * (part(&forward) + part(&backward));
    let mut time = StepTime {
        products: both(|pass| pass.products),
        attention: both(|pass| pass.attention),
        elements: both(|pass| pass.elements),
        casts: both(|pass| pass.casts),
        launches: n * (busy - computed),
        recomputation: n * again,
        head: n * head / stages,
        uneven: n * uneven,
        tensor: both(|pass| pass.tensor),
        context: both(|pass| pass.context),
        experts: both(|pass| pass.experts),
        sharding: n * sharding,
        bubble: (stages - 1.0) / f64::from(job.layout.chunks) * mean,
        messages: n * exchanges::between_stages(job, &stage, &traits, p),
        data: hidden,
        optimizer: optimizer(job, &stage, &speeds, p),
        fixed: p.at(P::Fixed),
        stragglers: 0.0,
    };
    time.stragglers = p.at(P::Stragglers) * largest(f64::from(job.layout.gpus)) * time.total();
    time
}

/// The expected largest of `n` standard normal values, for which every rank waits: the quantile of 1 - 0.625 / (n + 0.25) (Blom, 1958; Abramowitz
/// and Stegun, 26.2.23).
fn largest(n: f64) -> f64 {
    if n < 2.0 {
        return 0.0;
    }
    let t = (-2.0 * (0.625 / (n + 0.25)).ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    t - above / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308)))
}

/// Both passes of an average stage.
fn passes(
    job: &TrainingJob,
    stage: &Stage,
    traits: &Traits,
    speeds: &Speeds,
    p: &StepParameters,
) -> [Pass; 2] {
    let (mut products, mut casts) = (0.0, 0.0);
    stage.products(job, |product| {
        products += speeds.product(product, p);
        casts += speeds.cast(product, stage.micro_batches);
    });
    casts *= p.at(P::PassesCast);
    if matches!(job.precision, OperandPrecision::Mxfp8 | OperandPrecision::Nvfp4) {
        casts *= p.at(P::PassesCastBlocks);
    }
    let [flops, scores] = stage.attention_work(job);
    let [attention, attention_back] = speeds.attention(flops, scores, traits, p);
    let elements = (p.at(traits.passes) * stage.element_bytes(job, traits.fused_experts)
        + p.at(P::PassesPermutation) * stage.permuted_bytes(job))
        / speeds.memory;
    let [tensor, context, experts] = exchanges::of_micro_batch(job, stage, traits, p);
    let forward = Pass { products, attention, elements, casts: casts / 3.0, tensor, context, experts };
    let of_weights = if job.lora { LORA_PRODUCTS } else { 1.0 };
    let backward = Pass {
        products: products * (1.0 + of_weights),
        attention: attention_back,
        elements: BACKWARD_ELEMENTS * elements + accumulation(job, stage, traits, speeds),
        casts: casts * 2.0 / 3.0,
        context: 2.0 * context,
        ..forward
    };
    [forward, backward]
}

/// Seconds in which a micro-batch adds its gradients of the weights to those of the micro-batches before it.
fn accumulation(job: &TrainingJob, stage: &Stage, traits: &Traits, speeds: &Speeds) -> f64 {
    if stage.micro_batches <= 1.0 || job.lora {
        return 0.0;
    }
    let shards = if job.layout.sharding.shares_parameters() { Stage::shards(job) } else { 1.0 };
    let parameters: f64 = stage.parameters(job).iter().sum();
    traits.accumulated * parameters / shards / speeds.memory
}

/// Seconds of what a stage computes again in a micro-batch.
fn recomputed(job: &TrainingJob, traits: &Traits, forward: &Pass, p: &StepParameters) -> f64 {
    let unstated = |traits: &Traits| traits.unstated.map_or(0.0, |share| p.share(share));
    let [products, attention, elements, tensor] = match job.layout.recompute {
        Recompute::None => [0.0; 4],
        Recompute::Full => [1.0; 4],
        Recompute::Selective => traits.selective,
        Recompute::Unknown => [1.0, 1.0, 1.0, 0.0].map(|share| share * unstated(traits)),
    };
    let experts = if job.layout.recompute == Recompute::Unknown { 0.0 } else { products };
    products * forward.products
        + attention * forward.attention
        + elements * forward.elements
        + tensor * forward.tensor
        + experts * forward.experts
}

/// Seconds that the host needs to launch the kernels of a stage's micro-batch. For experts that drop no tokens it waits for the numbers of
/// tokens of each, and cannot run ahead of the GPU; with a capacity these numbers are fixed (Megatron-core's guide of mixtures).
fn launches(job: &TrainingJob, traits: &Traits, stage: &Stage, p: &StepParameters) -> f64 {
    // A layer of a transformer has two blocks; one of a hybrid has a block alone.
    let dense = if traits.eager { 0.5 } else { 0.25 } * p.at(P::HostDense);
    let mixture = if job.details.token_drop { dense } else { p.at(P::HostExperts) };
    if traits.fused_experts {
        return 0.0;
    }
    let again = match job.layout.recompute {
        Recompute::Full => 0.4,
        Recompute::Selective if traits.selective[0] > 0.0 => 0.4,
        _ => 0.0,
    };
    (dense * (stage.blocks() - stage.mixtures) + mixture * stage.mixtures) * (1.0 + again)
}

/// Seconds of gathers and scatters of a micro-batch that its passes do not hide, and what hidden ones take from them.
fn gathers(data: &DataExchange, passes: [f64; 2], busy: f64, traits: &Traits, p: &StepParameters) -> f64 {
    let [forth, back] = passes.map(|seconds| p.share(P::Hidden) * seconds);
    let beside = (2.0 * data.gather + data.scatter).min(busy);
    (data.gather - forth).max(0.0)
        + (data.gather + data.scatter - back).max(0.0)
        + p.at(traits.contention) * beside
}

impl DataExchange {
    /// The first gather and the last scatter have nothing beside them: a layer's part.
    fn ends(&self, layers: f64) -> f64 {
        (2.0 * self.gather + self.scatter) / layers.max(1.0)
    }
}

/// Seconds of the output layer and its loss, both passes.
fn output_layer(
    job: &TrainingJob,
    stage: &Stage,
    traits: &Traits,
    speeds: &Speeds,
    p: &StepParameters,
) -> f64 {
    let product = stage.head(job);
    let passes = if job.lora { 2.0 } else { 3.0 };
    let loss = 26.0 * product.m * product.n * p.at(P::PassesLoss) / speeds.memory;
    passes * speeds.head_product(&product) + loss * if traits.fused_loss { 0.6 } else { 1.0 }
}

/// Seconds that the slowest stage takes longer than the average one, as far as others wait for it.
fn uneven(job: &TrainingJob, traits: &Traits, micro: f64, head: f64, p: &StepParameters) -> f64 {
    let (layers, stages) = (job.model.layers, job.layout.pipeline);
    if stages == 1 {
        return 0.0;
    }
    let (all, count) = (f64::from(layers), f64::from(stages));
    let layer = micro / (all / count);
    // Where layers do not divide, embedding and output layer count as a layer each if that divides.
    let (middle, last) = match (layers % stages, (layers + 2) % stages) {
        (1.., 0) => ((all + 2.0) / count, (all + 2.0) / count - 1.0),
        _ => ((all / count).ceil(), all / count),
    };
    let slowest = (middle * layer).max(last * layer + head);
    p.share(traits.uneven) * (slowest - micro - head / count).max(0.0)
}

/// Seconds of the optimiser: it reads and writes parameters, gradients and two moments.
fn optimizer(job: &TrainingJob, stage: &Stage, speeds: &Speeds, p: &StepParameters) -> f64 {
    let [dense, experts] = stage.parameters(job);
    let trained = (dense + experts) * if job.lora { LORA } else { 1.0 };
    let bytes = 32.0 * if job.details.pure_16_bit { 0.55 } else { 1.0 };
    let shards = if job.layout.sharding == Sharding::None { 1.0 } else { Stage::shards(job) };
    p.at(P::Optimizer) * bytes * trained / shards / speeds.memory
}
