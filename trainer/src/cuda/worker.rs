//! A rank's state on its device: staged batches, its units, and the outcome of a step. The step itself is [`super::rank`].
//!
//! ```text
//! host      | copy batch t+1 into pinned memory |            read loss and flag of step t |
//! feed      | batch t+1 ->                      |
//! compute   | forward  loss  backward | found inf? | optimiser |        one graph, then one or two launches
//! link            bucket 0 | bucket 1 | ...
//! ```
//!
//! Data that changes in every step (samples, labels, seeds of draws) lies in memory that a graph names. The learning rate is an
//! argument of the optimiser's launch, which is not part of the graph. Before the host reads, it waits by [`GpuWorker::settle`] or
//! [`allfold_gpu::device::DeviceGroup::wait`], which have a deadline.

use super::captures::Captures;
use super::exchange::Exchange;
use super::groups::GpuGroups;
use super::optimiser::DeviceOptimiser;
use super::outcome::StepOutcome;
use super::spans::{part, zeroed};
use super::staging::{Staged, Staging};
use super::weights::{Weights, whole_of};
use super::within::Within;
use crate::engine::{
    Keep, Mesh, MeshAxis, NetworkSplit, ParamUnit, RankPlace, StepInput, part_of, share_parts,
};
use crate::optim::Optimiser;
use crate::shares::batch_of;
use crate::{Batch, Config, Error, MemoryUse as Held, Network, Result, models};
use allfold_collectives::{Communicator, Rank};
use allfold_cuda::launch::StepReads;
use allfold_cuda::{Memory, Queue, Slice};
use allfold_gpu_passes::Passes;
use allfold_kernels::DType;
use allfold_kernels::nn::{Float, Narrow};
use std::sync::Arc;

/// The number of partial sums for the squares of gradients.
pub(super) const SLICES: usize = 512;

/// The step under way.
pub(super) struct Step {
    pub input: StepInput,
    pub batch: Staged,
    /// The number of samples of all ranks.
    pub everywhere: u64,
    /// Whether there is a loss scale, by which gradients that are not finite skip the step.
    pub scaled: bool,
}

/// The units whose messages are under way.
#[derive(Default)]
pub(super) struct ServingUnits {
    /// On a server, for each worker: the units whose gradients are expected of the worker.
    pub expected: Vec<Vec<usize>>,
    /// On a worker: whether the servers have not yet sent parameters of this step.
    pub is_unanswered: bool,
}

/// What a step writes besides gradients.
pub(super) struct StepValues {
    /// The loss of each row of a micro-batch.
    pub losses: Memory,
    /// The loss of each micro-batch, then the flag that a gradient was not finite, then the norm of the gradients and the
    /// factor that clips them.
    pub report: Memory,
    /// Partial sums of the squares of gradients.
    pub squares: Memory,
}

/// A rank that computes on a device.
pub(super) struct GpuWorker<'a> {
    pub config: &'a Config,
    pub queue: Queue,
    pub passes: Passes,
    pub weights: Weights,
    pub place: RankPlace,
    /// How the rank's network is a part of the whole one.
    pub split: NetworkSplit,
    /// The most samples that this rank has in a step, and the most losses of micro-batches.
    most: usize,
    pub micros: usize,
    optimiser: Option<DeviceOptimiser>,
    pub groups: GpuGroups<'a>,
    pub exchange: Exchange<'a>,
    pub step: Step,
    pub staging: Staging,
    pub captures: Captures,
    pub values: StepValues,
    pub serving: ServingUnits,
}

impl<'a> GpuWorker<'a> {
    /// A rank of `mesh` that holds `specs` of its network; [`GpuWorker::allocate`] gives it memory for them.
    pub fn new(
        config: &'a Config,
        (network, split): (Network<f32>, NetworkSplit),
        specs: Vec<ParamUnit>,
        (mesh, channels): (Mesh, usize),
        comm: &'a Communicator,
        Within { machine, device, deadline }: Within,
    ) -> Result<GpuWorker<'a>> {
        let queue = Queue::new(machine.clone(), device)?.pooled();
        let narrow = models::narrow(config.precision.amp).map(|narrow| match narrow {
            Narrow::F16 => DType::F16,
            Narrow::Bf16 => DType::Bf16,
        });
        let rank = comm.rank().index();
        let place = RankPlace::new((mesh, rank), Arc::new(network.outline()), specs);
        let mut passes = Passes::new(network, narrow, config.channels_last, &queue)?;
        // Gradients inside a fused computation are not those that another stage or rank would be sent.
        if mesh.pipeline == 1 && place.units.iter().all(|unit| unit.keep != Keep::Sharded) {
            // Logits that ranks send each other have no elements between rows.
            passes.fuse(!place.is_led);
        }
        let (inputs, rows) = (4 * passes.network.inputs(), 4 * passes.network.rows());
        let own = batch_of(config, &mesh, rank);
        // Allocates for the largest batch of the run at the start: memory that graphs name must never be replaced, on no rank.
        drop(passes.reserve(own, &queue)?);
        let forms = (&passes.precision, &passes.filters[..]);
        let data = place.position(MeshAxis::Data);
        // The first rank holds a micro-batch of each rank's samples then.
        let (most, micros) = match (place.is_led, data.index) {
            (true, 0) => (own * data.size, data.size),
            (true, _) => (own, 1),
            (false, _) => (own, config.training.accumulate),
        };
        let weights = Weights::new(&passes.network, &place, forms, &queue)?;
        let groups = GpuGroups::open(config, comm, (&mesh, channels), &place.units, (&queue, deadline))?;
        let fresh = |bytes: usize| Memory::new(&machine, device, bytes);
        // A part of the sums for each unit, and for each parameter where ranks count some of a unit's alone.
        let sums = place.units.len() + split.tensor.iter().count() * passes.network.params().len();
        let values = StepValues {
            losses: fresh(most.div_ceil(micros) * rows)?,
            report: zeroed(&queue, 4 * (micros + 3))?,
            squares: fresh(8 * SLICES * sums)?,
        };
        let batch = Staged { half: 0, samples: 0 };
        Ok(GpuWorker {
            config,
            most,
            micros,
            optimiser: None,
            groups,
            exchange: Exchange::new(config, comm)?,
            step: Step { input: StepInput::default(), batch, everywhere: 0, scaled: false },
            staging: Staging::new(&queue, [most * inputs, most * rows])?,
            captures: Captures::default(),
            values,
            serving: ServingUnits::default(),
            split,
            passes,
            weights,
            place,
            queue,
        })
    }

    /// Allocates parameters, gradients and optimiser state, after the strategy has said how gradients are laid out.
    pub fn allocate(&mut self) -> Result<()> {
        // A pipeline has several micro-batches in flight. Giving memory back while a step is queued would wait for the device, where
        // messages may wait for another rank's host.
        let slots = if self.overlaps_micro_batches() { self.micros } else { 1 };
        for slot in (0..slots).rev() {
            self.passes.select(slot, &self.queue)?;
            drop(self.passes.reserve(self.most.div_ceil(self.micros), &self.queue)?);
        }
        self.weights.allocate(&self.queue)?;
        self.exchange.allocate(&self.weights, &self.queue)?;
        let counts = |param: usize| self.counts_param(param);
        // Servers step when they have gradients, and workers do not.
        let role = self.place.role();
        let shares = match role.servers {
            0 => self.is_sharded(),
            servers => servers > 1 && role.server.is_some(),
        };
        let counts: Option<&dyn Fn(usize) -> bool> = if shares { Some(&counts) } else { None };
        let optimiser =
            DeviceOptimiser::new(self.config, &self.passes.network, &self.weights, counts, &self.queue)?;
        self.optimiser = Some(optimiser);
        Ok(())
    }

    /// Waits until the device has done the queued work; `what` describes the work in words that follow "could not". The wait has a
    /// deadline, because a sum over ranks never ends if a rank is lost.
    ///
    /// # Errors
    /// Those of [`DeviceGroup::wait`].
    pub fn settle(&mut self, what: &str) -> Result<()> {
        if self.queue.machine().seeded(5) {
            return Ok(self.queue.finish()?);
        }
        self.groups.wait(&self.queue, what)
    }

    /// Whether several micro-batches are in flight at a time. Such steps have no parts.
    pub fn overlaps_micro_batches(&self) -> bool {
        self.place.mesh.pipeline > 1 || self.place.is_led
    }

    /// The queues of the streams that use this rank's memory.
    pub fn queues(&self) -> impl Iterator<Item = &Queue> {
        [&self.queue, self.staging.queue()].into_iter().chain(self.groups.queues())
    }

    pub fn upload<F: Float>(
        &mut self,
        params: &[F],
        buffers: &[F],
        state: &mut dyn Optimiser<F>,
    ) -> Result<()> {
        self.settle("finish what was under way")?;
        let layout = self
            .split
            .parts()
            .map(|(axis, mut layouts)| layouts.swap_remove(self.place.position(axis).index));
        let params = part_of(params, layout.as_ref());
        self.weights.upload(&self.passes.network, &self.queue, &params, buffers)?;
        let GpuWorker { optimiser: Some(optimiser), passes, weights, queue, .. } = self else {
            return Err(unallocated());
        };
        optimiser.load((&passes.network, weights), queue, state, layout.as_ref())
    }

    /// All elements of the whole network, from this rank's in `own`. Every rank of the axis that shares parameters must call it.
    fn share<F: Float>(&self, own: &[F], whole: &mut [F]) -> Result<()> {
        let (Some(host), Some((_, layouts))) = (&self.groups.parts_host, self.split.parts()) else {
            whole.copy_from_slice(own);
            return Ok(());
        };
        share_parts((Some(host), host.rank().index()), layouts, own, whole)
    }

    pub fn download<F: Float>(
        &mut self,
        params: &mut [F],
        buffers: &mut [F],
        state: &mut dyn Optimiser<F>,
    ) -> Result<()> {
        self.settle("finish what was under way")?;
        self.open_units()?;
        self.share_buffers()?;
        self.settle("gather what other ranks hold")?;
        let mut own = vec![F::ZERO; self.passes.network.param_count()];
        self.weights.download(&self.passes.network, &self.queue, &mut own, buffers)?;
        self.close_units();
        self.share(&own, params)?;
        let GpuWorker { optimiser: Some(optimiser), passes, weights, queue, groups, .. } = self else {
            return Err(unallocated());
        };
        let parts = optimiser.save((&passes.network, weights), (queue, groups))?;
        let into = state.state();
        *into.steps = optimiser.steps;
        for (own, (_, values)) in parts.iter().zip(into.vectors) {
            values.clear();
            if !own.is_empty() {
                values.resize(params.len(), F::ZERO);
                self.share(own, values)?;
            }
        }
        Ok(())
    }

    /// Gets whole parameters of all units, until [`GpuWorker::close_units`]. Every rank must call it.
    pub fn open_units(&mut self) -> Result<()> {
        let GpuWorker { queue, weights, groups, .. } = self;
        for (at, unit) in weights.units.iter_mut().enumerate() {
            let own = unit.params.as_ref().or(unit.param_part.as_ref());
            let whole = whole_of((at, unit), own, queue, groups)?;
            if matches!(unit.keep, Keep::First | Keep::Copy) {
                unit.narrow_params(queue, weights.narrow)?;
            }
            if unit.params.is_none() {
                unit.params = Some(whole);
                unit.narrow_params(queue, weights.narrow)?;
                weights.opened.push(at);
            }
        }
        Ok(())
    }

    /// Frees what [`GpuWorker::open_units`] has gathered.
    pub fn close_units(&mut self) {
        for at in std::mem::take(&mut self.weights.opened) {
            (self.weights.units[at].params, self.weights.units[at].narrow) = (None, None);
        }
    }

    /// Gives every stage of a pipeline the running statistics of all layers.
    fn share_buffers(&mut self) -> Result<()> {
        let GpuWorker { queue, weights, groups, place, passes, .. } = self;
        let holders = groups.holders.clone();
        let Some(pipeline) = groups.along(MeshAxis::Pipeline) else { return Ok(()) };
        for (unit, holder) in place.units.iter().zip(holders) {
            for layer in unit.layers.clone() {
                let range = passes.network.buffers_of(layer);
                if !range.is_empty() {
                    pipeline.broadcast(queue, part(weights.buffers.all(), &range, 4)?, holder)?;
                }
            }
        }
        Ok(())
    }

    /// Gives every rank the running statistics of the first rank that has samples. Every rank must call it.
    pub fn share_statistics(&mut self, comm: &Communicator) -> Result<()> {
        self.share_buffers()?;
        self.settle("finish what was under way")?;
        let own = self.weights.buffers.all().part(0, 4 * self.passes.network.buffer_count())?;
        let mut values: Vec<f32> = self.queue.download(own)?;
        comm.broadcast(&mut values, Rank(self.place.mesh.servers as u32))?;
        Ok(self.queue.write(own, &values)?)
    }

    pub fn memory(&self) -> Held {
        let mut held = Held {
            buffers: self.weights.buffers.len() as u64,
            activations: self.queue.usage().peak,
            optimiser: self.optimiser.as_ref().map_or(0, DeviceOptimiser::bytes),
            buckets: self.exchange.bytes(),
            ..Held::default()
        };
        for unit in &self.weights.units {
            let [params, gradients] = unit.bytes();
            held.params += params;
            held.gradients += gradients;
        }
        held
    }

    pub fn stage<F: Float>(&mut self, batch: &Batch<F>) -> Result<()> {
        let own = self.own_positions(batch);
        let batch = own.as_ref().unwrap_or(batch);
        let samples = batch.labels.len() / self.passes.network.rows().max(1);
        let sizes = [4 * batch.x.len(), 4 * batch.labels.len()];
        if !self.staging.fits(sizes) {
            self.settle("allocate memory for a larger batch")?;
            self.staging.grow(sizes)?;
        }
        self.staging.stage(batch, samples, self.passes.tokens())
    }

    /// This rank's positions of a batch, where ranks share samples.
    fn own_positions<F: Float>(&self, batch: &Batch<F>) -> Option<Batch<F>> {
        let split = self.split.context.as_ref()?;
        let index = self.place.position(MeshAxis::Context).index;
        Some(Batch { x: split.cut(index, &batch.x), labels: split.cut(index, &batch.labels) })
    }

    /// Begins a step over the batch that was staged first. Returns its number of samples.
    pub fn begin(&mut self, input: StepInput, everywhere: u64, scaled: bool) -> Result<usize> {
        let none = || Error::Lost("the device holds no batch".into());
        let batch = self.staging.take(&self.queue)?.ok_or_else(none)?;
        if batch.samples > self.most {
            let (samples, most) = (batch.samples, self.most);
            return Err(Error::Config(format!("a step has {samples} samples, but this rank takes {most}")));
        }
        self.step = Step { input, batch, everywhere, scaled };
        self.queue.fill(self.values.report.all(), 0)?;
        self.weights.all_begun(false);
        Ok(batch.samples)
    }

    /// Queues the optimiser's step, which changes nothing if the flag of a non-finite gradient is set on the device. `factor` scales
    /// gradients, and so does the factor of clipping if they are `clipped`.
    pub fn step_optimiser(&mut self, factor: f32, clipped: bool) -> Result<()> {
        let GpuWorker { optimiser, queue, groups, values, micros, .. } = self;
        let part = |number: usize| values.report.all().part(4 * (*micros + number), 4);
        let skip = if self.step.scaled { Some(part(0)?) } else { None };
        let reads = StepReads { skip, factor: if clipped { Some(part(2)?) } else { None } };
        let holders = if self.place.mesh.servers > 0 { groups.data() } else { &mut groups.world };
        let optimiser = optimiser.as_ref().ok_or_else(unallocated)?;
        optimiser.share_norms(factor, reads, queue, holders)?;
        optimiser.step(self.config, self.step.input.lr, factor, reads, queue)
    }

    pub fn finish(&mut self, samples: usize) -> Result<StepOutcome> {
        self.settle("finish a step")?;
        let report: Vec<u32> = self.queue.download(self.values.report.all())?;
        let size = samples.div_ceil(self.micros).max(1);
        let micros = report[..self.micros].iter().enumerate();
        let loss = micros.map(|(micro, bits)| {
            let n = size.min(samples.saturating_sub(micro * size));
            if n == 0 { 0.0 } else { n as f64 / samples as f64 * f64::from(f32::from_bits(*bits)) }
        });
        let (loss, skipped) = (loss.sum(), report[self.micros] != 0);
        // A server that does not wait for all workers has counted its steps.
        if self.config.parallel.staleness == 0 || self.place.role().server.is_none() {
            self.count_update(!skipped)?;
        }
        Ok(StepOutcome { loss, skipped })
    }

    /// Counts an update of the parameters that was made.
    pub fn count_update(&mut self, made: bool) -> Result<()> {
        self.optimiser.as_mut().ok_or_else(unallocated)?.steps += u64::from(made);
        Ok(())
    }

    /// The device memory in which a step notes that a gradient was not finite.
    pub fn flag(&self) -> Result<Slice<'_>> {
        Ok(self.values.report.all().part(4 * self.micros, 4)?)
    }

    /// Copies `n` samples of the staged batch `half`, from sample `from` on, to the memory that the passes read.
    pub fn copy_micro_batch(&self, half: usize, from: usize, n: usize) -> Result<()> {
        let (network, slot) = (&self.passes.network, &self.passes.slot);
        let into = [(slot.input.all(), network.inputs()), (slot.labels.all(), network.rows())];
        self.staging.copy(&self.queue, half, (from, n), into)
    }
}

fn unallocated() -> Error {
    Error::Strategy("the rank's units have no memory yet".into())
}
