//! A rank's state on its device, and the work on it: steps, evaluations, copies to and from the host.
//!
//! ```text
//! host      | copy batch t+1 into pinned memory |            read loss and flag of step t |
//! feed      | batch t+1 ->                      |
//! compute   | forward  loss  backward | found inf? | optimiser |        one graph, then one or two launches
//! link            bucket 0 | bucket 1 | ...
//! ```
//!
//! Data that changes in every step (samples, labels, seeds of draws) lies in memory that a graph names. The learning rate is an
//! argument of the optimiser's launch, which is not part of the graph. Before the host reads, it waits by [`State::settle`] or
//! [`DeviceGroup::wait`], which have a deadline.

use super::captures::{Captures, StepPart};
use super::exchange::Exchange;
use super::optimiser::DeviceOptimiser;
use super::outcome::StepOutcome;
use super::passes::{PassContext, Passes};
use super::weights::{Weights, part};
use super::within::Within;
use crate::optim::Optimiser;
use crate::{Batch, Config, DrawKey, Error, GradScaler, MemoryUse as Held, Network, Result};
use allfold_collectives::Communicator;
use allfold_gpu::device::{DeviceGroup, ReducePath};
use allfold_kernels::DType;
use allfold_kernels::cuda::{Feed, Mark, Memory, Queue, Slice, launch};
use allfold_kernels::nn::{Float, Narrow};
use std::collections::VecDeque;

/// The number of partial sums for the squares of gradients.
const SLICES: usize = 512;

/// A batch on the device.
struct Staged {
    half: usize,
    samples: usize,
}

/// The state of a rank on its device.
pub(super) struct State<'a> {
    config: &'a Config,
    pub queue: Queue,
    pub passes: Passes,
    pub weights: Weights,
    optimiser: DeviceOptimiser,
    pub link: DeviceGroup<'a>,
    pub exchange: Exchange<'a>,
    feeds: [Feed; 2],
    /// Samples and labels of the two batches that can be staged.
    stages: [[Memory; 2]; 2],
    used: [Option<Mark>; 2],
    staged: VecDeque<Staged>,
    turn: usize,
    arrived: [Option<Mark>; 2],
    pub captures: Captures,
    /// The loss of each row of a micro-batch.
    losses: Memory,
    /// The loss of each micro-batch, then the flag that a gradient was not finite, then the norm of the gradients.
    report: Memory,
    squares: Memory,
}

impl<'a> State<'a> {
    pub fn new(
        config: &'a Config,
        network: Network<f32>,
        comm: &'a Communicator,
        Within { machine, device, deadline }: Within,
    ) -> Result<State<'a>> {
        let queue = Queue::new(machine.clone(), device)?.pooled();
        let narrow = config.narrow().map(|narrow| match narrow {
            Narrow::F16 => DType::F16,
            Narrow::Bf16 => DType::Bf16,
        });
        let mut passes = Passes::new(network, narrow, config.channels_last, &queue)?;
        // Allocates for the largest batch of the run at the start: memory that graphs name must never be replaced, on no rank.
        drop(passes.reserve(config.batch, &queue)?);
        let (inputs, rows) = (4 * passes.network.inputs(), 4 * passes.network.rows());
        let forms = (&passes.precision, &passes.filters[..]);
        let weights = Weights::new(&passes.network, config, forms, &queue)?;
        let optimiser = DeviceOptimiser::new(config, &passes.network, &weights, &queue)?;
        let way = ReducePath::named(&config.exchange).unwrap_or_default();
        let link = DeviceGroup::open(comm, Queue::new(machine.clone(), device)?.pooled(), way, deadline)?;
        let exchange = Exchange::new(config, &weights, comm, &queue)?;
        let copies = Queue::new(machine.clone(), device)?;
        let fresh = |bytes: usize| Memory::new(&machine, device, bytes);
        let stage = || Ok::<_, Error>([fresh(config.batch * inputs)?, fresh(config.batch * rows)?]);
        let report = fresh(4 * (config.accumulate + 2))?;
        queue.fill(report.all(), 0)?;
        Ok(State {
            config,
            weights,
            optimiser,
            link,
            exchange,
            feeds: [Feed::new(copies.clone()), Feed::new(copies)],
            stages: [stage()?, stage()?],
            used: [None, None],
            staged: VecDeque::new(),
            turn: 0,
            arrived: [None, None],
            captures: Captures::default(),
            losses: fresh(config.micro_batch(config.batch) * rows)?,
            report,
            squares: fresh(8 * SLICES)?,
            passes,
            queue,
        })
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
        Ok(self.link.wait(&self.queue, what)?)
    }

    /// The queues of the streams that use this rank's memory.
    pub fn queues(&self) -> [&Queue; 3] {
        [&self.queue, self.link.queue(), self.feeds[0].queue()]
    }

    pub fn upload<F: Float>(
        &mut self,
        params: &[F],
        buffers: &[F],
        state: &mut dyn Optimiser<F>,
    ) -> Result<()> {
        self.settle("finish what was under way")?;
        self.weights.upload(&self.passes.network, &self.queue, params, buffers)?;
        self.optimiser.load(&self.passes.network, &self.weights, &self.queue, state)
    }

    pub fn download<F: Float>(
        &mut self,
        params: &mut [F],
        buffers: &mut [F],
        state: &mut dyn Optimiser<F>,
    ) -> Result<()> {
        self.settle("finish what was under way")?;
        self.weights.download(&self.passes.network, &self.queue, params, buffers)?;
        self.optimiser.save(&self.passes.network, &self.weights, &self.queue, state)
    }

    pub fn memory(&self) -> Held {
        let narrow = self.weights.narrow.as_ref().map_or(0, |(_, memory)| memory.len());
        let held = self.weights.held.as_ref().map_or(0, |held| held.len());
        Held {
            params: (self.weights.params.len() + narrow) as u64,
            gradients: (self.weights.grads.len() + held) as u64,
            buffers: self.weights.buffers.len() as u64,
            activations: self.queue.usage().peak,
            optimiser: self.optimiser.bytes(),
            buckets: self.exchange.bytes(),
            ..Held::default()
        }
    }

    pub fn stage<F: Float>(&mut self, batch: &Batch<F>) -> Result<()> {
        let rows = self.passes.network.rows();
        let (half, samples) = (self.turn, batch.labels.len() / rows.max(1));
        self.turn = 1 - half;
        let sizes = [4 * batch.x.len(), 4 * batch.labels.len()];
        if self.stages[half].iter().zip(sizes).any(|(memory, bytes)| memory.len() < bytes) {
            self.settle("make room for a larger batch")?;
            for (memory, bytes) in self.stages[half].iter_mut().zip(sizes) {
                *memory = Memory::new(self.queue.machine(), self.queue.device(), bytes.max(memory.len()))?;
            }
        }
        let copies = self.feeds[0].queue().clone();
        if let Some(used) = &self.used[half] {
            copies.wait(used)?;
        }
        let [x, labels] = &self.stages[half];
        let into = x.all().part(0, sizes[0])?;
        match self.passes.tokens() {
            true => {
                let tokens: Vec<u32> = batch.x.iter().map(|token| token.to_f64() as u32).collect();
                self.feeds[0].send(into, &tokens)?;
            }
            false if F::DTYPE == DType::F32 => {
                self.feeds[0].send(into, bytemuck::cast_slice::<F, f32>(&batch.x))?;
            }
            false => {
                let x: Vec<f32> = batch.x.iter().map(|x| x.to_f64() as f32).collect();
                self.feeds[0].send(into, &x)?;
            }
        }
        self.feeds[1].send(labels.all().part(0, sizes[1])?, &batch.labels)?;
        mark(&mut self.arrived[half], &copies)?;
        self.staged.push_back(Staged { half, samples });
        Ok(())
    }

    pub fn is_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    pub fn start(
        &mut self,
        draw_key: DrawKey,
        everywhere: u64,
        lr: f64,
        scaler: Option<&GradScaler>,
    ) -> Result<usize> {
        let staged =
            self.staged.pop_front().ok_or_else(|| Error::Lost("the device holds no batch".into()))?;
        let Staged { half, samples } = staged;
        if samples > self.config.batch {
            let most = self.config.batch;
            return Err(Error::Config(format!("a step has {samples} samples, but `batch` is {most}")));
        }
        if let Some(arrived) = &self.arrived[half] {
            self.queue.wait(arrived)?;
        }
        let size = self.config.micro_batch(samples);
        let count = if self.config.uneven { self.config.accumulate } else { samples.div_ceil(size) };
        let scale = scaler.map_or(1.0, |scaler| f64::from(scaler.scale));
        self.queue.fill(self.flag()?, 0)?;
        if self.config.broadcast_buffers && self.config.strategy != "single" {
            self.link.broadcast(&self.queue, self.weights.buffers.all())?;
        }
        for micro in 0..count {
            let from = (micro * size).min(samples);
            let n = size.min(samples - from);
            self.copy_micro_batch(half, from, n)?;
            // The key is that of layer 0: kernels get the layer's number as an argument.
            let draws = draw_key.after(from).stream(0).words();
            self.queue.write(self.passes.stream.all(), &draws)?;
            let share = n as f64 / samples.max(1) as f64;
            let divisor = ((n * self.passes.network.rows()) as f64 / (share * scale)) as f32;
            let place = if self.config.uneven { micro } else { 0 };
            let (first, last) = (micro == 0, micro + 1 == count);
            let part = StepPart { everywhere, place, samples: n, divisor: divisor.to_bits(), first, last };
            self.micro(part, scaler.is_some())?;
            let loss = self.report.all().part(4 * micro, 4)?;
            launch::mean(&self.queue, self.losses.all().part(0, 4 * n * self.passes.network.rows())?, loss)?;
        }
        mark(&mut self.used[half], &self.queue)?;
        self.update(lr, scale, scaler.is_some())?;
        let State { queue, weights, link, exchange, config, .. } = self;
        exchange.after_step(config, &mut PassContext { queue, weights, link, n: size })?;
        Ok(samples)
    }

    pub fn finish(&mut self, samples: usize) -> Result<StepOutcome> {
        self.settle("finish a step")?;
        let report: Vec<u32> = self.queue.download(self.report.all())?;
        let size = self.config.micro_batch(samples);
        let micros = report[..self.config.accumulate].iter().enumerate();
        let loss = micros.map(|(micro, bits)| {
            let n = size.min(samples.saturating_sub(micro * size));
            if n == 0 { 0.0 } else { n as f64 / samples as f64 * f64::from(f32::from_bits(*bits)) }
        });
        let (loss, skipped) = (loss.sum(), report[self.config.accumulate] != 0);
        self.optimiser.steps += u64::from(!skipped);
        Ok(StepOutcome { loss, skipped })
    }

    pub fn evaluate<F: Float>(&mut self, batch: &Batch<F>) -> Result<(f64, u64)> {
        self.settle("finish a step")?;
        self.staged.clear();
        self.stage(batch)?;
        let Some(Staged { half, samples: n }) = self.staged.pop_front() else { return Ok((0.0, 0)) };
        if let Some(arrived) = &self.arrived[half] {
            self.queue.wait(arrived)?;
        }
        // Graphs name the memory for a step's samples, so a larger batch gets memory for the duration of this call.
        let kept = self.passes.reserve(n, &self.queue)?;
        let scored = self.score(half, n);
        if let Some([input, labels]) = kept {
            (self.passes.input, self.passes.labels) = (input, labels);
        }
        scored
    }

    fn score(&mut self, half: usize, n: usize) -> Result<(f64, u64)> {
        self.copy_micro_batch(half, 0, n)?;
        mark(&mut self.used[half], &self.queue)?;
        let rows = n * self.passes.network.rows();
        let (losses, hits) = (self.queue.memory(4 * rows)?, self.queue.memory(4 * rows)?);
        let mut with = PassContext { queue: &self.queue, weights: &self.weights, link: &mut self.link, n };
        self.passes.forward(&mut with, false)?;
        self.passes.loss(&with, None, losses.all())?;
        let (dtype, logits) = self.passes.logits(n)?;
        launch::correct(&self.queue, dtype, logits, self.passes.labels_of(n)?, hits.all())?;
        self.settle("evaluate")?;
        let losses: Vec<f32> = self.queue.download(losses.all())?;
        let hits: Vec<u32> = self.queue.download(hits.all())?;
        self.passes.clear();
        let loss = losses.iter().map(|loss| f64::from(*loss)).sum();
        Ok((loss, hits.iter().map(|hit| u64::from(*hit)).sum()))
    }

    /// The device memory in which a step notes that a gradient was not finite.
    fn flag(&self) -> Result<Slice<'_>> {
        Ok(self.report.all().part(4 * self.config.accumulate, 4)?)
    }

    /// Copies `n` samples of the staged batch `half`, from sample `from` on, to the memory that the passes read.
    fn copy_micro_batch(&self, half: usize, from: usize, n: usize) -> Result<()> {
        let [x, labels] = &self.stages[half];
        let wide = [self.passes.network.inputs(), self.passes.network.rows()];
        for ((stage, into), wide) in
            [(x, &self.passes.input), (labels, &self.passes.labels)].into_iter().zip(wide)
        {
            let span = from * wide..(from + n) * wide;
            self.queue.copy(into.all().part(0, 4 * n * wide)?, part(stage.all(), &span, 4)?)?;
        }
        Ok(())
    }

    /// Forward and backward passes over the loaded samples, launched one by one or as a graph.
    fn micro(&mut self, part: StepPart, scaled: bool) -> Result<()> {
        let capturable = self.link.captures() && self.exchange.captures();
        let queue = self.queue.clone();
        // Seeded defect 19 of a test: with a key by this rank's samples alone, ranks decide differently.
        let key =
            if queue.machine().seeded(19) { StepPart { everywhere: 0, place: 0, ..part } } else { part };
        let mut captures = std::mem::take(&mut self.captures);
        let done = captures.run(&queue, key, capturable, || self.pass(part, scaled));
        self.captures = captures;
        done
    }

    /// Queues forward, loss and backward of a micro-batch. In the last micro-batch, each bucket is sent when it is full.
    fn pass(&mut self, part_of_step: StepPart, scaled: bool) -> Result<()> {
        let State { queue, passes, weights, link, exchange, losses, report, config, .. } = self;
        let StepPart { samples: n, first, last, .. } = part_of_step;
        let divisor = f32::from_bits(part_of_step.divisor);
        let mut with = PassContext { queue, weights, link, n };
        passes.forward(&mut with, true)?;
        let rows = passes.network.rows();
        passes.loss(&with, Some(divisor), losses.all().part(0, 4 * n * rows)?)?;
        let mut missing: Vec<usize> = weights.members.iter().map(|bucket| bucket.params.len()).collect();
        let mut next = 0;
        let bucket_of =
            |param: usize| weights.members.iter().position(|bucket| bucket.params.contains(&param));
        passes.backward(&mut with, |param, with| {
            if let Some(bucket) = bucket_of(param).filter(|_| last) {
                missing[bucket] -= 1;
            }
            while last && next < missing.len() && missing[next] == 0 {
                if let Some(held) = weights.held.as_ref().filter(|_| !first) {
                    let bucket = part(weights.grads.all(), &weights.buckets[next], 4)?;
                    let held = part(held.all(), &weights.buckets[next], 4)?;
                    launch::add(with.queue, DType::F32, (bucket, held), bucket)?;
                }
                exchange.send(next, with)?;
                next += 1;
            }
            Ok(())
        })?;
        let Some(held) = weights.held.as_ref().filter(|_| !last) else {
            exchange.finish(&passes.network, &mut with)?;
            if scaled && config.clip_norm == 0.0 {
                let flag = report.all().part(4 * config.accumulate, 4)?;
                launch::found_inf(queue, DType::F32, weights.grads.all(), flag)?;
            }
            return Ok(());
        };
        match first {
            true => queue.copy(held.all(), weights.grads.all())?,
            false => {
                launch::add(queue, DType::F32, (held.all(), weights.grads.all()), held.all())?;
            }
        }
        Ok(())
    }

    /// Clips the gradients and steps the optimiser. If the flag of a non-finite gradient is set on the device, the step changes
    /// nothing.
    fn update(&self, lr: f64, scale: f64, scaled: bool) -> Result<()> {
        let (grads, inverse) = (self.weights.grads.all(), (1.0 / scale) as f32);
        let mut factor = inverse;
        if self.config.clip_norm > 0.0 {
            if scaled {
                launch::unscale(&self.queue, DType::F32, grads, inverse, self.flag()?)?;
                factor = 1.0;
            }
            let norm = self.report.all().part(4 * (self.config.accumulate + 1), 4)?;
            launch::squares(&self.queue, grads, self.squares.all())?;
            launch::clip(&self.queue, grads, self.squares.all(), self.config.clip_norm, norm)?;
        }
        let skip = if scaled { Some(self.flag()?) } else { None };
        self.optimiser.step(self.config, lr, factor, skip, &self.queue)
    }
}

/// Moves `mark` to the current end of `queue`.
fn mark(mark: &mut Option<Mark>, queue: &Queue) -> Result<()> {
    match mark {
        Some(mark) => mark.move_to(queue)?,
        None => *mark = Some(queue.record()?),
    }
    Ok(())
}
