//! Times of the kernels of a step, by class and shape.
//!
//! ```text
//! product m x n x k     (arithmetic^4 + memory^4)^(1/4): the slower of both, rounded where they are alike; arithmetic in whole waves of tiles
//! attention             fused: arithmetic alone; unfused: two products, and the scores through memory
//! between products      bytes of the activations x passes / memory
//! ```

use crate::framework::{Attention, Traits};
use crate::job::{OperandPrecision, TrainingJob};
use crate::parameters::{Physical as P, StepParameters};
use allfold_sim::machines::Generation;

/// The speeds that a job's kernels reach on its GPUs.
pub(crate) struct Speeds {
    /// FLOP/s of 16-bit products.
    wide: f64,
    /// FLOP/s of the blocks' products.
    blocks: f64,
    /// FLOP/s of fused attention.
    attention: f64,
    /// FLOP/s of attention's products where scores are kept in memory.
    scores: f64,
    /// Bytes a second of the memory.
    pub(crate) memory: f64,
    /// Bytes of an operand of the blocks' products.
    operand: f64,
    /// The speed of grouped products relative to others.
    grouped: f64,
    /// Whether operands are cast to FP8 or FP4 first.
    narrow: bool,
    /// Whether all experts' products are one kernel with its casts.
    fused_experts: bool,
    /// Multiprocessors.
    cores: f64,
}

/// A product of matrices, `times` a pass.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub(crate) m: f64,
    pub(crate) n: f64,
    pub(crate) k: f64,
    pub(crate) times: f64,
    /// Whether it is one of a group of experts.
    pub(crate) grouped: bool,
}

/// The place of the parameters of a generation in a family of them.
fn by_generation(generation: Generation, family: [P; 5]) -> P {
    let [volta, ampere, hopper, blackwell, cdna] = family;
    match generation {
        Generation::Volta => volta,
        Generation::Ampere => ampere,
        Generation::Hopper => hopper,
        Generation::Blackwell => blackwell,
        Generation::Cdna => cdna,
    }
}

const WIDE: [P; 5] =
    [P::ProductsVolta, P::ProductsAmpere, P::ProductsHopper, P::ProductsBlackwell, P::ProductsCdna];
// Volta and Ampere have no FP8: their products keep 16 bits.
const FP8: [P; 5] = [P::ProductsVolta, P::ProductsAmpere, P::Fp8Hopper, P::Fp8Blackwell, P::Fp8Cdna];
const ATTENTION: [P; 5] =
    [P::AttentionAmpere, P::AttentionAmpere, P::AttentionHopper, P::AttentionBlackwell, P::AttentionCdna];
/// Fused attention on Volta relative to Ampere: no asynchronous copies.
const VOLTA_ATTENTION: f64 = 0.6;

/// Rows and columns of the tiles of products, and their speed relative to the largest.
const TILES: [[f64; 3]; 3] = [[128.0, 256.0, 1.0], [256.0, 128.0, 1.0], [128.0, 128.0, 0.95]];

impl Speeds {
    pub(crate) fn of(job: &TrainingJob, traits: &Traits, p: &StepParameters) -> Speeds {
        let cluster = &job.cluster;
        let [peak, fp8, fp4] = cluster.flops;
        let power = if cluster.limited_power { p.at(P::LimitedPower) } else { 1.0 };
        let share = p.share(by_generation(cluster.generation, WIDE));
        let wide = if job.precision == OperandPrecision::F32 {
            cluster.plain_flops * 0.9
        } else {
            peak * share * power
        };
        let blocks = match job.precision {
            OperandPrecision::F32 | OperandPrecision::Bf16 | OperandPrecision::F16 => wide,
            OperandPrecision::Nvfp4 => fp4 * p.share(P::Fp4) * power,
            OperandPrecision::Fp8 | OperandPrecision::Fp8Rows | OperandPrecision::Mxfp8 => {
                fp8 * p.share(by_generation(cluster.generation, FP8)) * power
            }
        };
        let narrow = job.precision.is_narrow();
        let fused = p.share(by_generation(cluster.generation, ATTENTION));
        let old = cluster.generation == Generation::Volta;
        let narrow_heads = job.model.head_width() <= 64.0 && job.model.latent.is_none();
        let of_kernel = match (traits.attention, cluster.generation) {
            (Attention::First, Generation::Ampere) => p.at(P::AttentionFirst),
            (Attention::First | Attention::Second, Generation::Hopper) => p.at(P::AttentionOlder),
            _ => 1.0,
        };
        let attention = peak
            * power
            * fused
            * if old { VOLTA_ATTENTION } else { 1.0 }
            * if narrow_heads { p.at(P::AttentionNarrow) } else { 1.0 }
            * of_kernel;
        Speeds {
            wide,
            blocks,
            attention,
            scores: p.at(P::AttentionProducts) * if misfit(job) { cluster.plain_flops } else { wide },
            memory: cluster.memory * p.share(P::Memory),
            operand: if narrow { 1.0 } else { 2.0 },
            grouped: p.at(if narrow && !traits.fused_experts { P::GroupedFp8 } else { P::Grouped }),
            narrow,
            fused_experts: traits.fused_experts,
            cores: f64::from(cluster.cores),
        }
    }

    /// Seconds of a product of a block; of its backward pass twice as many.
    pub(crate) fn product(&self, of: &Product, p: &StepParameters) -> f64 {
        let aligned = |size: f64| size.round() % 64.0 == 0.0;
        let speed = match (of.grouped, aligned(of.n) && aligned(of.k)) {
            (true, _) => self.grouped,
            (false, false) => p.at(P::Misaligned),
            (false, true) => 1.0,
        };
        let waves = if of.grouped { 1.0 } else { self.waves(of) };
        let one = self.roofline(of, self.blocks * speed * waves, self.operand);
        of.times * (one + if of.grouped && !self.fused_experts { p.at(P::Expert) } else { 0.0 })
    }

    /// The speed at which a product's tiles pass over the multiprocessors in whole waves, of the tiles that do best; small ones load their
    /// operands more often ("Matrix Multiplication Background", NVIDIA). Libraries split sums and idle multiprocessors leave their power to
    /// others: half of the loss, in logarithms, remains.
    pub(crate) fn waves(&self, of: &Product) -> f64 {
        let speed = |[rows, columns, speed]: [f64; 3]| {
            let waves = (of.m / rows).ceil() * (of.n / columns).ceil() / self.cores;
            speed * waves / waves.ceil()
        };
        TILES.into_iter().map(speed).fold(0.0, f64::max).sqrt()
    }

    /// Seconds of a product of the output layer, whose operands have 16 bits and whose vocabulary is padded.
    pub(crate) fn head_product(&self, of: &Product) -> f64 {
        of.times * self.roofline(of, self.wide, 2.0)
    }

    fn roofline(&self, of: &Product, rate: f64, width: f64) -> f64 {
        let arithmetic = 2.0 * of.m * of.n * of.k / rate;
        let bytes = width * (of.m * of.k + of.k * of.n + of.m * of.n);
        slower(arithmetic, bytes / self.memory)
    }

    /// Seconds to cast the operands of a product and its gradients; weights once a step of `micro_batches`.
    pub(crate) fn cast(&self, of: &Product, micro_batches: f64) -> f64 {
        if !self.narrow || of.grouped && self.fused_experts {
            return 0.0;
        }
        3.0 * of.times * (of.m * (of.k + of.n) + of.k * of.n / micro_batches) / self.memory
    }

    /// Seconds of attention forward and backward: FLOPs of both products over all pairs, and elements of the scores.
    pub(crate) fn attention(&self, flops: f64, scores: f64, traits: &Traits, p: &StepParameters) -> [f64; 2] {
        if traits.attention != Attention::Unfused {
            let forward = 0.5 * flops / self.attention; // causal: half of the pairs
            return [forward, 2.5 * forward]; // backward: five products for two
        }
        let moved = 2.0 * scores * p.at(P::ScorePasses) / self.memory;
        [flops / self.scores + 0.4 * moved, 2.0 * flops / self.scores + 0.6 * moved]
    }
}

/// Whether rows of the heads are no multiples of 16 bytes: cuBLAS's batched products then leave the tensor cores for ordinary ones ("Matrix
/// Multiplication Background", NVIDIA; Anthony et al., "The Case for Co-Designing Model Architectures with Hardware", 2024).
fn misfit(job: &TrainingJob) -> bool {
    let width = job.model.head_width();
    // A width that is no whole number is of heads that nobody stated.
    width.fract() == 0.0 && width % 8.0 != 0.0
}

/// The slower of two, and a little more where both are alike.
pub(crate) fn slower(one: f64, other: f64) -> f64 {
    let (large, small) = if one > other { (one, other) } else { (other, one) };
    if large <= 0.0 {
        return 0.0;
    }
    let ratio = small / large;
    let squared = ratio * ratio;
    large * (1.0 + squared * squared).sqrt().sqrt()
}
