//! What an average stage of the pipeline computes on one rank in one micro-batch, in elements, bytes and FLOPs.

use crate::framework::is_gpt_oss;
use crate::job::TrainingJob;
use crate::kernels::Product;
use crate::layout::Sharding;

/// Sizes of an average stage on one rank.
pub(crate) struct Stage {
    /// Tokens of a micro-batch on this rank.
    pub(crate) tokens: f64,
    /// Layers with attention, with a mixer, dense and with experts.
    pub(crate) attention: f64,
    pub(crate) mamba: f64,
    pub(crate) dense: f64,
    pub(crate) mixtures: f64,
    pub(crate) tensor: f64,
    pub(crate) hidden: f64,
    pub(crate) micro_batches: f64,
}

/// The share of all pairs where a sequence is packed from shorter ones: about four of equal length.
const PACKED: f64 = 0.25;

/// Width of a mixer's first and second product relative to `hidden` (Mamba-2 as in Nemotron-H, 2025).
const MIXER: [f64; 2] = [4.2, 2.0];

/// A mixer's scan takes as long as fused attention of as wide heads over so many tokens (Dao and Gu, 2024, figure 10).
const SCANNED: f64 = 2048.0;

impl Stage {
    pub(crate) fn of(job: &TrainingJob) -> Stage {
        let layout = &job.layout;
        let stages = f64::from(layout.pipeline);
        let [attention, mamba, dense, mixtures] = job.model.kinds().map(|layers| layers / stages);
        Stage {
            tokens: f64::from(layout.micro_batch) * f64::from(layout.sequence) / f64::from(layout.context),
            attention,
            mamba,
            dense,
            mixtures,
            tensor: f64::from(layout.tensor),
            hidden: f64::from(job.model.hidden),
            micro_batches: layout.micro_batches(),
        }
    }

    /// Attentions, mixers and feed-forward networks; a layer of a transformer has two.
    pub(crate) fn blocks(&self) -> f64 {
        self.attention + self.mamba + self.dense + self.mixtures
    }

    /// Every product of the forward pass of the blocks.
    pub(crate) fn products(&self, job: &TrainingJob, mut each: impl FnMut(&Product)) {
        let (model, t, tp, hidden) = (&job.model, self.tokens, self.tensor, self.hidden);
        let heads = f64::from(model.heads);
        let mut put = |times: f64, m: f64, n: f64, k: f64, grouped: bool| {
            if times > 0.0 {
                each(&Product { m, n, k, times, grouped });
            }
        };
        if let Some(latent) = model.latent {
            let [query, kv, plain, rotary, value] =
                [latent.query_rank, latent.kv_rank, latent.plain_dim, latent.rotary_dim, latent.value_dim]
                    .map(f64::from);
            // The products to the small ranks are not shared: each rank has the tokens of its part of the sequence.
            put(self.attention, t / tp, query + kv + rotary, hidden, false);
            let (rank, direct) = if query > 0.0 { (query, 1.0) } else { (hidden, 1.0) };
            put(self.attention * direct, t, heads * (plain + rotary) / tp, rank, false);
            put(self.attention, t, heads * (plain + value) / tp, kv, false);
            put(self.attention, t, hidden, heads * value / tp, false);
        } else {
            let width = model.head_width();
            put(self.attention, t, (heads + 2.0 * f64::from(model.kv())) * width / tp, hidden, false);
            put(self.attention, t, hidden, heads * width / tp, false);
        }
        put(self.mamba, t, MIXER[0] * hidden / tp, hidden, false);
        put(self.mamba, t, hidden, MIXER[1] * hidden / tp, false);
        let up = if model.gated { 2.0 } else { 1.0 };
        let ffn = f64::from(model.ffn);
        put(self.dense, t, up * ffn / tp, hidden, false);
        put(self.dense, t, hidden, ffn / tp, false);
        let Some(experts) = model.experts else { return };
        let local = f64::from(experts.count) / f64::from(job.layout.expert);
        let (input, inner) = (experts.input.map_or(hidden, f64::from), f64::from(experts.ffn));
        // Tokens of an expert of this rank, if all have equally many.
        let of_expert = t / tp * f64::from(experts.top_k) / local;
        put(self.mixtures * local, of_expert, up * inner, input, true);
        put(self.mixtures * local, of_expert, input, inner, true);
        let shared = f64::from(experts.shared_ffn);
        if shared > 0.0 {
            put(self.mixtures, t, up * shared / tp, hidden, false);
            put(self.mixtures, t, hidden, shared / tp, false);
        }
    }

    /// The product of the output layer, and of those of further predictions.
    pub(crate) fn head(&self, job: &TrainingJob) -> Product {
        let times = 1.0 + 0.6 * f64::from(job.model.extra_predictions);
        let n = f64::from(job.model.vocab) / self.tensor;
        Product { m: self.tokens, n, k: self.hidden, times, grouped: false }
    }

    /// Queries of all heads of this rank, over all layers of the stage.
    fn queries(&self, job: &TrainingJob) -> f64 {
        self.tokens * f64::from(job.model.heads) / self.tensor * self.attention
    }

    /// FLOPs of attention's two products over all pairs of tokens and of the mixers' scans, and elements of the scores.
    pub(crate) fn attention_work(&self, job: &TrainingJob) -> [f64; 2] {
        let scores = self.queries(job) * f64::from(job.layout.sequence);
        let width = match job.model.latent {
            Some(latent) => f64::from(latent.plain_dim + latent.rotary_dim + latent.value_dim) / 2.0,
            None => job.model.head_width(),
        };
        let seen = seen(job);
        let scans = self.tokens * SCANNED * MIXER[1] * self.hidden / self.tensor * self.mamba;
        [4.0 * (scores * width * seen + scans), scores * seen]
    }

    /// Bytes of activations that the kernels between products read and write, if each fused kernel did so once; forward.
    pub(crate) fn element_bytes(&self, job: &TrainingJob, fused_experts: bool) -> f64 {
        let model = &job.model;
        let shared = if job.layout.sequence_parallel { self.tensor } else { 1.0 };
        let norms = 10.0 * self.hidden * self.tokens * self.blocks() / shared;
        let routed = if fused_experts { 0 } else { 1 };
        let experts = model
            .experts
            .map_or(0.0, |experts| f64::from(routed * experts.top_k * experts.ffn + experts.shared_ffn));
        let inner = experts * self.mixtures + f64::from(model.ffn) * self.dense;
        let activations = (if model.gated { 6.0 } else { 4.0 }) * inner;
        // A state-space mixer convolves, gates and norms what its first product gives.
        let mixers = 10.0 * MIXER[0] * self.hidden * self.mamba;
        let heads = match model.latent {
            Some(latent) => {
                f64::from(model.heads)
                    * f64::from(2 * (latent.plain_dim + latent.rotary_dim) + latent.value_dim)
            }
            None => f64::from(model.heads + 2 * model.kv()) * model.head_width(),
        };
        norms + (activations + 4.0 * heads * self.attention + mixers) * self.tokens / self.tensor
    }

    /// Bytes of the tokens that go to experts and back in the order of experts; forward.
    pub(crate) fn permuted_bytes(&self, job: &TrainingJob) -> f64 {
        let copies = job.model.experts.map_or(0.0, |experts| f64::from(experts.top_k));
        8.0 * self.hidden * copies * self.tokens / self.tensor * self.mixtures
    }

    /// Parameters of a rank: those that all ranks of the tensor axis share, and its experts.
    pub(crate) fn parameters(&self, job: &TrainingJob) -> [f64; 2] {
        let (count, stages) = (job.model.parameters(), f64::from(job.layout.pipeline));
        let ends = match job.layout.pipeline {
            1 => count.embedding + count.head,
            _ => count.embedding, // one end of the pipeline has the embedding, the other the output layer
        };
        [(count.dense / stages + ends) / self.tensor, count.experts / stages / f64::from(job.layout.expert)]
    }

    /// Ranks that share optimiser, gradients or parameters.
    pub(crate) fn shards(job: &TrainingJob) -> f64 {
        let group = job.layout.data() * job.layout.context;
        f64::from(match job.layout.sharding {
            Sharding::None => 1,
            Sharding::Hsdp => group.min(job.cluster.domain),
            _ => group,
        })
    }
}

/// The share of all pairs of tokens that attention sees: in GPT-OSS every second layer looks at the last 128 tokens alone (its model card).
/// Sequences that are packed into one do not see each other; the lengths of sets for fine-tuning are seldom stated.
fn seen(job: &TrainingJob) -> f64 {
    if job.packed {
        return PACKED;
    }
    if !is_gpt_oss(job) {
        return 1.0;
    }
    // Half of the pairs of causal attention are left out already.
    0.5 + 0.5 * (2.0 * 128.0 / f64::from(job.layout.sequence)).min(1.0)
}
