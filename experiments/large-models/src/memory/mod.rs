//! The memory of a training job by class, on the stage of the pipeline that needs most.
//!
//! ```text
//! parameters, gradients, optimizer    state.rs: bytes of each parameter by framework and sharding
//! activations                         activations.rs: bytes of each token and layer x tokens x micro-batches in flight
//! exchange, workspace                 gathered parameters, buckets, messages; a block's backward pass, logits
//! slack, context                      what the allocator holds beside, what the driver and NCCL hold
//! ```
//! Sources: Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022 (activations); Rajbhandari et
//! al., "ZeRO", 2020 (state).

mod activations;
mod stage;
mod state;

use crate::job::{Framework, TrainingJob};
use crate::layout::Recompute;
pub use activations::bytes_per_token;
use allfold_sim::machines::Generation;
use stage::StageShare;

/// Bytes on each GPU of one stage of the pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JobMemory {
    /// The stage, from 0.
    pub stage: u32,
    /// What is computed again: as the layout says, or, where it does not say, the least that fits.
    pub recompute: Option<Recompute>,
    /// Parameters as kernels read them.
    pub parameters: f64,
    /// Gradients.
    pub gradients: f64,
    /// The optimiser's state with its main copy of the parameters.
    pub optimizer: f64,
    /// Activations of all micro-batches in flight.
    pub activations: f64,
    /// Gathered parameters and buckets of gradients.
    pub exchange: f64,
    /// The largest temporary tensors: a block's backward pass, or the logits.
    pub workspace: f64,
    /// What the allocator reserves beside what is allocated.
    pub slack: f64,
    /// The driver's context, libraries and NCCL's buffers.
    pub context: f64,
}

impl JobMemory {
    /// What `torch.cuda.max_memory_allocated` would say.
    pub fn allocated(&self) -> f64 {
        self.parameters + self.gradients + self.optimizer + self.activations + self.exchange + self.workspace
    }

    /// What `torch.cuda.max_memory_reserved` would say.
    pub fn reserved(&self) -> f64 {
        self.allocated() + self.slack
    }

    /// What `nvidia-smi` would say.
    pub fn total(&self) -> f64 {
        self.reserved() + self.context
    }

    /// What the GPU must have: the total with the least slack.
    pub fn needed(&self) -> f64 {
        let least = LEAST_SLACK * (self.activations + self.workspace);
        self.allocated() + least.min(self.slack) + self.context
    }

    /// The memory that this meter reads.
    pub fn by(&self, meter: MemoryMeter) -> f64 {
        match meter {
            MemoryMeter::Allocated => self.allocated(),
            MemoryMeter::Reserved => self.reserved(),
            MemoryMeter::Device => self.total(),
        }
    }

    /// The odds that this fits a GPU that is sold with `capacity` bytes: the error of a predicted total is taken as log-normal.
    pub fn fits(&self, capacity: f64) -> f64 {
        1.0 / (1.0 + (-1.702 * (usable(capacity) / self.needed()).ln() / SPREAD).exp())
    }
}

/// The bytes of a GPU that programs can use. GPUs are sold by GB and have as many GiB, less 1 % for the driver: an A100 of 80 GB has
/// 79.1 GiB (`torch.cuda.get_device_properties`).
fn usable(capacity: f64) -> f64 {
    capacity * 1.062
}

/// The share of activations and temporary tensors that the allocator loses at least.
const LEAST_SLACK: f64 = 0.02;

/// The standard deviation of the logarithm of measured over predicted memory.
const SPREAD: f64 = 0.07;

/// The program that measured the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryMeter {
    /// PyTorch's allocated bytes.
    Allocated,
    /// PyTorch's reserved bytes.
    Reserved,
    /// All bytes of the GPU in use: `nvidia-smi`.
    Device,
}

impl MemoryMeter {
    /// The meter that these words name; without such words what the framework prints itself.
    pub fn of(words: &str, framework: Framework) -> MemoryMeter {
        let words = words.to_lowercase();
        let says = |part| words.contains(part);
        if says("max_memory_allocated") || says("allocated bytes") || says("peak allocated") {
            MemoryMeter::Allocated
        } else if says("nvidia-smi") {
            MemoryMeter::Device
        } else if says("reserved")
            || matches!(framework, Framework::Torchtitan | Framework::TorchtitanEager | Framework::Automodel)
        {
            MemoryMeter::Reserved
        } else {
            MemoryMeter::Device
        }
    }
}

/// The memory on the fullest stage. Where recomputation is not stated, the least that fits the GPU is taken.
pub fn memory(job: &TrainingJob) -> JobMemory {
    let of = |recompute| fullest(job, recompute);
    if job.layout.recompute != Recompute::Unknown {
        return of(job.layout.recompute);
    }
    let known = [Recompute::None, Recompute::Selective].map(of);
    let fitting = known.into_iter().find(|used| used.needed() <= usable(job.cluster.capacity));
    fitting.unwrap_or_else(|| of(Recompute::Full))
}

/// The bytes that a run's meter reads, on the fullest stage; Megatron-LM of before 2023 and DeepSpeed report what their rank 0 uses, which
/// is on the first stage (`see_memory_usage` in DeepSpeed's `runtime/utils.py`).
pub fn reported(job: &TrainingJob, meter: MemoryMeter) -> f64 {
    use Framework::{HuggingfaceDeepspeed, Megatron2021, Megatron2022, MegatronDeepspeed};
    let fullest = memory(job);
    let first =
        [Megatron2021, Megatron2022, MegatronDeepspeed, HuggingfaceDeepspeed].contains(&job.framework);
    let shown = fullest.recompute.filter(|_| first).map(|recompute| of_stage(job, 0, recompute));
    shown.unwrap_or(fullest).by(meter)
}

fn fullest(job: &TrainingJob, recompute: Recompute) -> JobMemory {
    let last = job.layout.pipeline.max(1) - 1;
    // Of the stages between, the first holds most micro-batches.
    let candidates = [0, 1, last].map(|stage| of_stage(job, stage.min(last), recompute));
    candidates
        .into_iter()
        .fold(JobMemory::default(), |most, one| if one.needed() > most.needed() { one } else { most })
}

fn of_stage(job: &TrainingJob, index: u32, recompute: Recompute) -> JobMemory {
    let (layout, stage) = (&job.layout, StageShare::of(job, index));
    let tokens = f64::from(layout.micro_batch) * f64::from(layout.sequence) / f64::from(layout.context);
    let state = state::State::of(job, &stage);
    let (activations, workspace) = activations::activations(job, &stage, recompute, tokens);
    let mut used = JobMemory {
        stage: index,
        recompute: Some(recompute),
        parameters: state.parameters,
        gradients: state.gradients,
        optimizer: state.optimizer,
        activations,
        exchange: state.exchange,
        workspace,
        slack: 0.0,
        context: context(job),
    };
    // Allocated and reserved bytes of Megatron-core on B200 (SimuMax, 2026): 0.5 to 8 GB apart, by activations of 2 to 25 GB. Where
    // the memory is nearly full, the allocator gives cached blocks back before it fails.
    let moving = used.activations + used.workspace;
    let room = usable(job.cluster.capacity) * 0.98 - used.total();
    let lost = match job.framework {
        // Blocks of FSDP are equal, and PyTorch's allocator uses them again: 128 GPUs of torchtitan's report, 2024.
        Framework::Foundry | Framework::Torchtitan | Framework::TorchtitanEager | Framework::Automodel => {
            0.05
        }
        _ => 0.22,
    };
    used.slack = (0.4e9 + lost * moving).min(room).max(LEAST_SLACK * moving);
    used
}

/// The driver's context and its libraries, and NCCL's buffers of each communicator.
fn context(job: &TrainingJob) -> f64 {
    let layout = &job.layout;
    let groups = [layout.tensor, layout.pipeline, layout.context, layout.expert, layout.data()];
    let communicators = groups.iter().filter(|size| **size > 1).count() as f64;
    // Libraries hold more code for newer GPUs.
    let libraries = if job.cluster.generation == Generation::Volta { 0.6e9 } else { 1.2e9 };
    libraries + 0.4e9 * communicators
}

#[cfg(test)]
mod tests;
