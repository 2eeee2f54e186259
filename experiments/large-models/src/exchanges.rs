//! Times of the exchanges of a step: bytes of a rank over the bandwidth of its group.
//!
//! ```text
//! group inside an NVLink domain     the links of a GPU
//! group across domains              the NICs of all its members in a domain, at most the links
//! ```

use crate::framework::Traits;
use crate::job::TrainingJob;
use crate::layout::Sharding;
use crate::parameters::{Physical as P, StepParameters};
use crate::stage::Stage;

/// Bandwidths of the groups of a job, in bytes a second of one rank.
pub(crate) struct Bandwidths {
    links: f64,
    nic: f64,
    domain: f64,
    mesh: Option<f64>,
}

impl Bandwidths {
    pub(crate) fn of(job: &TrainingJob, p: &StepParameters) -> Bandwidths {
        let cluster = &job.cluster;
        let network = if cluster.omni_path { P::NetworkOmniPath } else { P::Network };
        Bandwidths {
            links: cluster.links * p.share(P::Links),
            nic: cluster.nic * p.share(network),
            domain: f64::from(cluster.domain),
            mesh: cluster.mesh.then(|| f64::from(cluster.node.max(2)) - 1.0),
        }
    }

    /// Links between the members of a group inside a domain: in a mesh those between its members alone.
    fn inside(&self, members: f64) -> f64 {
        self.mesh.map_or(self.links, |others| self.links * ((members - 1.0).max(1.0) / others).min(1.0))
    }

    /// A group of `members` ranks that are `apart` GPUs apart.
    fn group(&self, members: f64, apart: f64) -> f64 {
        if members * apart <= self.domain {
            return self.inside(members);
        }
        let together = (self.domain / apart).clamp(1.0, members);
        self.links.min(self.nic * together)
    }

    /// Two ranks `apart` GPUs apart of which neighbours do the same.
    fn pair(&self, apart: f64) -> f64 {
        if apart < self.domain { self.inside(2.0) } else { self.nic }
    }
}

/// Seconds of a micro-batch's exchanges of an average stage, forward: tensor, context (backward: twice), experts.
pub(crate) fn of_micro_batch(
    job: &TrainingJob,
    stage: &Stage,
    traits: &Traits,
    p: &StepParameters,
) -> [f64; 3] {
    let bandwidths = Bandwidths::of(job, p);
    let (layout, tp, t) = (&job.layout, stage.tensor, stage.tokens);
    let context = f64::from(layout.context);
    // Two all-reduces a layer, or gathers and scatters of the same bytes, of 16-bit activations.
    let tensor = if tp > 1.0 {
        let bytes = 2.0 * (tp - 1.0) / tp * t * stage.hidden * 2.0 * stage.blocks();
        let steps = stage.blocks() * (tp - 1.0);
        p.at(traits.tensor_exposed) * (bytes / bandwidths.group(tp, 1.0) + steps * p.at(P::Latency))
    } else {
        0.0
    };
    let keys = 2.0 * f64::from(job.model.kv()) * job.model.head_width() / tp;
    let around = 2.0 * (context - 1.0) * t * keys * stage.attention;
    let bandwidth =
        if tp * context <= bandwidths.domain { bandwidths.inside(context) } else { bandwidths.nic };
    let context = p.at(P::ContextExposed) * around / bandwidth;
    [tensor, context, all_to_all(job, stage, &bandwidths, p)]
}

/// Dispatch and combine of a mixture's tokens, forward.
fn all_to_all(job: &TrainingJob, stage: &Stage, bandwidths: &Bandwidths, p: &StepParameters) -> f64 {
    let Some(experts) = job.model.experts.filter(|_| job.layout.expert > 1) else { return 0.0 };
    let group = f64::from(job.layout.expert);
    let (copies, width) = (f64::from(experts.top_k), experts.input.map_or(stage.hidden, f64::from));
    let bytes =
        2.0 * 2.0 * stage.tokens / stage.tensor * copies * width * stage.mixtures * (group - 1.0) / group;
    let domains = (group / bandwidths.domain).max(1.0);
    // A token goes once to each other domain where one of its experts is.
    let hit = domains * (1.0 - (1.0 - 1.0 / domains).powf(copies));
    let hit = hit.min(experts.most_nodes.map_or(f64::INFINITY, f64::from));
    let remote = hit * (domains - 1.0) / domains / copies;
    p.at(P::ExpertsExposed)
        * bytes
        * (1.0 / bandwidths.links + p.at(P::ExpertsNetwork) * remote / bandwidths.nic)
}

/// Seconds of the messages of a boundary between stages in a micro-batch, there and back.
pub(crate) fn between_stages(job: &TrainingJob, stage: &Stage, traits: &Traits, p: &StepParameters) -> f64 {
    if job.layout.pipeline == 1 {
        return 0.0;
    }
    let bandwidths = Bandwidths::of(job, p);
    let sharded = job.layout.sequence_parallel || traits.sharded_messages;
    let bytes = 2.0 * stage.tokens * stage.hidden / if sharded { stage.tensor } else { 1.0 };
    let inside = f64::from(job.layout.gpus) <= bandwidths.domain;
    let bandwidth = if inside { bandwidths.pair(0.0) } else { bandwidths.nic };
    2.0 * p.at(P::PipelineExposed) * bytes / bandwidth * f64::from(job.layout.chunks)
}

/// Seconds of the exchanges over the data-parallel axis.
pub(crate) struct DataExchange {
    /// A gather of the parameters of a micro-batch.
    pub(crate) gather: f64,
    /// A scatter of their gradients.
    pub(crate) scatter: f64,
    /// The exchange once a step.
    pub(crate) step: f64,
}

impl DataExchange {
    pub(crate) fn of(job: &TrainingJob, stage: &Stage, traits: &Traits, p: &StepParameters) -> DataExchange {
        let bandwidths = Bandwidths::of(job, p);
        let group = f64::from(job.layout.data()) * f64::from(job.layout.context);
        let [dense, experts] = stage.parameters(job);
        let (all, width) = (dense + experts, traits.gradient_bytes);
        let trained = all * if job.lora { LORA } else { 1.0 };
        let part = |members: f64| (members - 1.0).max(0.0) / members.max(1.0);
        let bandwidth = bandwidths.group(group, stage.tensor);
        let sharding = job.layout.sharding;
        if !sharding.shares_parameters() {
            let gathered = if sharding == Sharding::None { width } else { 2.0 };
            // Experts have copies on fewer ranks, which are farther apart.
            let apart = f64::from(job.layout.expert);
            let copies = (group * stage.tensor / apart).max(1.0);
            let shared = part(group) * dense / bandwidth;
            let routed = part(copies) * experts / bandwidths.group(copies, apart);
            let step = (width + gathered) * (shared + routed) * trained / all;
            return DataExchange { gather: 0.0, scatter: 0.0, step };
        }
        let shards = Stage::shards(job);
        let hybrid = sharding == Sharding::Hsdp;
        let mut inner = if hybrid { bandwidths.inside(shards) } else { bandwidth };
        if traits.single_nic {
            inner = inner.min(bandwidths.nic);
        }
        // Inside a pipeline parameters are gathered once a step.
        let often = if job.layout.pipeline > 1 { 1.0 / stage.micro_batches } else { 1.0 };
        let across =
            bandwidths.links.min(bandwidths.nic * (bandwidths.domain / stage.tensor).clamp(1.0, group));
        DataExchange {
            gather: part(shards) * 2.0 * all / inner * often,
            scatter: part(shards) * width * trained / inner * often,
            step: if hybrid { 2.0 * width * trained / shards / across } else { 0.0 },
        }
    }
}

/// Parameters that LoRA trains, relative to the model's.
pub(crate) const LORA: f64 = 0.01;
