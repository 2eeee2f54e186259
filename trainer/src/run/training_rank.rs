//! What a run calls on its rank, which computes on the CPU ([`RankTrainer`](super::RankTrainer)) or on a GPU.

use crate::checkpoint::Own;
use crate::checkpoint::sharded::Part;
use crate::data::loader::Batches;
use crate::engine::StepInput;
use crate::timing::{BucketTimes, LayerSpan, StepBreakdown, StepSpan};
use crate::{Batch, Dataset, Evaluation, GradScaler, MemoryUse, Model, Optimiser, Result};
use allfold_kernels::nn::Float;

/// The whole model and its optimiser in the host's memory: a run begins with them, scores on the CPU with them and writes them into
/// checkpoints. While the rank alone holds the values, they are freed here.
pub(super) struct Host<F: Float> {
    pub model: Model<F>,
    pub optimiser: Box<dyn Optimiser<F>>,
}

impl<F: Float> Host<F> {
    /// Frees parameters, buffers and the optimiser's state.
    pub fn free(&mut self) {
        self.model.free();
        self.optimiser.state().vectors.into_iter().for_each(|(_, values)| *values = Vec::new());
    }
}

/// Where a step's batch comes from.
pub(super) struct Loaded<'a, 'b, F: Float> {
    pub batches: &'a mut Batches<'b, F>,
    /// The memory that a batch is read into.
    pub batch: &'a mut Batch<F>,
}

/// The outcome of a step on a rank.
pub(super) struct StepDone {
    /// The mean loss of this rank's samples.
    pub loss: f64,
    pub time: StepBreakdown,
    /// Whether the step was skipped because a gradient was not finite.
    pub skipped: bool,
    /// The first layer with an output that is not finite, if the rank looks for it.
    pub not_finite: Option<String>,
}

/// The records of a rank's last step; empty on GPUs.
#[derive(Default)]
pub(super) struct StepRecords<'a> {
    pub buckets: &'a [BucketTimes],
    pub spans: &'a [StepSpan],
    pub layers: &'a [LayerSpan],
    /// The memory of the rank when it held the most, if that was recorded.
    pub peak: Option<MemoryUse>,
}

/// A rank that trains: its part of the model, and its steps.
pub(super) trait TrainingRank<F: Float> {
    /// Takes this rank's part of the host's model and optimiser state, which are freed.
    fn upload(&mut self, host: &mut Host<F>) -> Result<()>;

    /// Gives the host all weights, and the running statistics that all ranks agree on. Every rank must call it.
    fn download(&mut self, host: &mut Host<F>) -> Result<()>;

    /// Gives the host of rank 0 the whole model and optimiser state, and the hosts of all ranks if `shared` or if the ranks need each
    /// other for it. Every rank must call it.
    fn gather(&mut self, host: &mut Host<F>, shared: bool) -> Result<()>;

    /// What this rank writes into a checkpoint in parts, with its buffers in `buffers`; `None` if it has to gather the whole for that.
    fn part(&mut self, buffers: &mut Vec<F>) -> Option<Result<Part<F>>>;

    /// One step over the next batch, in which all ranks together have `everywhere` samples.
    fn step(
        &mut self,
        loaded: Loaded<'_, '_, F>,
        input: StepInput,
        everywhere: u64,
        scaler: Option<GradScaler>,
    ) -> Result<StepDone>;

    /// Before the evaluations of an epoch: gives every rank the same weights.
    fn settle(&mut self, host: &mut Host<F>) -> Result<()>;

    /// The score on the first samples of a set.
    fn evaluate(&mut self, host: &mut Host<F>, set: (&Dataset, usize)) -> Result<Evaluation>;

    /// The state of the hook, by name; equally long on every rank.
    fn hook_state(&mut self) -> Own<F>;

    /// Continues from the state that [`TrainingRank::hook_state`] returned.
    fn load_hook_state(&mut self, values: &[Vec<F>]);

    /// After a step under a loss scale: undoes a skipped step's changes of the hook's state, and multiplies that state, which is in
    /// units of the scale, by the factor by which the scale has changed.
    fn after_scaled(&mut self, skipped: bool, by: f64);

    /// By which path gradients are summed on GPUs, and why.
    fn exchange(&self) -> Option<String> {
        None
    }

    /// The memory that this rank holds between two steps.
    fn memory(&mut self) -> MemoryUse;

    /// Turns the records of spans and of the peak of memory on or off.
    fn observe(&mut self, _wanted: bool) {}

    /// Turns the record of layers on or off, from the next step on.
    fn observe_layers(&mut self, _wanted: bool) {}

    /// The records of the last step.
    fn records(&self) -> StepRecords<'_> {
        StepRecords::default()
    }
}
