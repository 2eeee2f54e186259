//! A real network as [`StepCosts`]: the costs of its kernels on a device.

use crate::{ElementPass, MeasuredPart, MeasuredTimes, StepCosts};
use allfold_kernels::nn::{Float, OpCost};
use allfold_sim::{Device, DeviceWork, Picos};
use allfold_trainer::amp::Autocast;
use allfold_trainer::buckets::Bucket;
use allfold_trainer::costs::{accumulate_cost, clip_cost, data_cost, pack_cost, unpack_cost, unscale_cost};
use allfold_trainer::engine::{Mesh, MeshAxis, NetworkSplit, trained_parts};
use allfold_trainer::layers::{PassKind, PeerCall};
use allfold_trainer::strategies::hooks::{self, HookCalls};
use allfold_trainer::timing::work;
use allfold_trainer::{
    Config, Network, NetworkTensors, Outline, ParamSpec, Phase, Result, SampleForm, layer_of, models, optim,
};
use std::ops::Range;
use std::sync::Arc;

/// A rank's part of a network, on a device.
pub(crate) struct NetworkCosts<'a, F: Float> {
    config: &'a Config,
    network: Network<F>,
    split: NetworkSplit,
    outline: Arc<Outline>,
    amp: Option<Autocast<F>>,
    /// The number of parameters of the whole network, and of elements of a sample as it is loaded.
    parameters: u64,
    inputs: usize,
    pub device: Device,
    /// The position on the tensor axis; `None` for the largest part.
    pub part: Option<usize>,
    /// Measured times of passes, used instead of the device's.
    times: Option<MeasuredTimes<'a>>,
}

impl<'a, F: Float> NetworkCosts<'a, F> {
    /// The part of the network of `config` over samples of `shape` that a rank of `mesh` has at position `part` of the tensor axis;
    /// without a position the largest part, for which ranks with smaller parts wait. `times` are measured times of passes, if there
    /// are any.
    pub fn new(
        (config, times): (&'a Config, Option<MeasuredTimes<'a>>),
        samples: SampleForm,
        mesh: &Mesh,
        (device, part): (Device, Option<usize>),
    ) -> Result<NetworkCosts<'a, F>> {
        let whole: Network<F> = models::build(config, samples)?;
        let (parameters, inputs) = (whole.param_count() as u64, whole.inputs());
        let of_rank = |rank| models::build_part(config, samples, mesh, rank);
        let (network, split) = match part {
            Some(part) => of_rank(part)?,
            None => {
                let mut parts = (0..mesh.tensor).map(of_rank).collect::<Result<Vec<_>>>()?;
                let largest = (0..parts.len()).max_by_key(|at| (parts[*at].0.param_count(), usize::MAX - at));
                parts.swap_remove(largest.unwrap_or_default())
            }
        };
        // Refuses an unknown optimiser.
        optim::build::<F>(config, network.params())?;
        let outline = Arc::new(network.outline());
        let amp = models::narrow(config.precision.amp).map(|narrow| Autocast::new(narrow, &network));
        Ok(NetworkCosts { config, network, split, outline, amp, parameters, inputs, device, part, times })
    }

    /// Whether ranks share layers or experts, so that none has all parameters.
    pub fn has_parts(&self) -> bool {
        self.split.tensor.is_some() || self.split.experts.is_some()
    }

    fn time(&self, cost: OpCost) -> Picos {
        self.device.time(work(cost))
    }

    /// The time of a part of a phase.
    fn phase_time(&self, phase: Phase, cost: OpCost) -> Picos {
        let amp = self.amp.as_ref().zip(layer_of(phase));
        let narrow = amp.is_some_and(|(amp, layer)| amp.is_narrow(layer));
        self.device.time(DeviceWork { narrow, ..work(cost) })
    }
}

impl<F: Float> StepCosts for NetworkCosts<'_, F> {
    fn outline(&self) -> Arc<Outline> {
        self.outline.clone()
    }
    fn parameters(&self) -> u64 {
        self.parameters
    }
    fn params(&self) -> &[ParamSpec] {
        self.network.params()
    }
    fn takes(&self, phase: Phase, n: usize) -> Picos {
        match self.times {
            Some(times) => times(MeasuredPart::Phase(phase)),
            None => self.phase_time(phase, self.network.cost(phase, n)),
        }
    }
    fn data(&self, n: usize) -> Picos {
        self.times
            .map_or_else(|| self.time(data_cost::<F>(n * self.inputs)), |times| times(MeasuredPart::Data))
    }
    fn over(&self, pass: ElementPass, elements: usize) -> Picos {
        self.time(match (pass, self.times) {
            (ElementPass::Update, Some(times)) => return times(MeasuredPart::Update(elements)),
            // A measured pass contains the accumulation.
            (ElementPass::Accumulate, Some(_)) => return Picos::ZERO,
            (ElementPass::Update, None) => {
                let optimiser = optim::build::<F>(self.config, &[]);
                optimiser.map_or(OpCost::default(), |optimiser| optimiser.cost(elements))
            }
            (ElementPass::Unscale, _) => unscale_cost::<F>(elements),
            (ElementPass::Clip, _) => clip_cost::<F>(elements),
            (ElementPass::Accumulate, None) => accumulate_cost::<F>(elements),
            (ElementPass::Pack, _) => pack_cost::<F>(elements),
            (ElementPass::Unpack, _) => unpack_cost::<F>(elements),
        })
    }
    fn element(&self) -> usize {
        size_of::<F>()
    }
    fn trained(&self) -> Vec<(Range<usize>, bool)> {
        trained_parts(&self.network, &self.outline, self.split.tensor.as_ref(), 0)
    }
    fn unreached(&self) -> Vec<usize> {
        self.network.unreached()
    }
    fn buffers(&self) -> usize {
        self.network.buffer_count()
    }
    fn hook_calls(&self, bucket: &Bucket) -> Option<HookCalls> {
        hooks::calls::<F>(self.config, bucket, self.network.params())
    }
    fn activation(&self, act: usize) -> usize {
        act.checked_sub(1)
            .map_or_else(|| self.network.inputs(), |layer| self.network.layers()[layer].outputs())
    }
    fn sync_len(&self, phase: Phase) -> usize {
        self.network.sync_len(phase)
    }
    fn axis(&self, layer: usize) -> Option<MeshAxis> {
        self.network.layers()[layer].traits().axis
    }
    fn charges_itself(&self, layer: usize) -> bool {
        self.network.layers()[layer].traits().charges_itself
    }
    fn peer_calls(&self, phase: Phase, n: usize) -> Vec<PeerCall> {
        self.network.peer_calls(phase, n)
    }
    fn gather_calls(&self, layer: usize, n: usize) -> Vec<PeerCall> {
        let layer = &self.network.layers()[layer];
        match layer.gradient_len() == layer.outputs() {
            true => Vec::new(),
            false => layer.peer_calls(PassKind::GatherGradient, n),
        }
    }
    fn tensors(&self) -> Option<&dyn NetworkTensors> {
        Some(&self.network)
    }
    fn optimiser_state(&self) -> usize {
        optim::state_per_element::<F>(self.config).unwrap_or_default()
    }
    fn operation(&self, phase: Phase, cost: OpCost) -> Picos {
        self.phase_time(phase, cost)
    }
}
