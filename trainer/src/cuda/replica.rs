//! One rank's model on its device: the step, captured as a graph where nothing of it needs the host.
//!
//! ```text
//! host      | copy batch t+1 into pinned memory |            read loss and flag of step t |
//! feed      | batch t+1 ->                      |
//! compute   | forward  loss  backward | found inf? | optimiser |        one graph, then one or two launches
//! link            bucket 0 | bucket 1 | ...
//! ```
//!
//! The graph is keyed by what is written into it: the number of samples, the loss scale, which micro-batch it is. What changes
//! in every step (samples, labels, seeds of draws) lies in memory that the graph names; the learning rate is an argument of
//! the optimiser's launch, which is no part of it.

use super::exchange::Exchange;
use super::optimiser::DeviceOptimiser;
use super::passes::{Passes, With};
use super::weights::{Weights, part};
use crate::optim::Optimiser;
use crate::{Batch, Config, Error, GradScaler, Memory as Held, Moment, Network, Result, models};
use allfold_collectives::Communicator;
use allfold_collectives::device::{Link, Way};
use allfold_kernels::DType;
use allfold_kernels::cuda::{Feed, Graph, Machine, Mark, Memory, Queue, Slice, launch};
use allfold_kernels::nn::{Float, Narrow};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How long ranks wait for each other at the start.
const DEADLINE: Duration = Duration::from_secs(120);
/// Parts in which the squares of gradients are added up.
const SLICES: usize = 512;

/// What a captured part of a step depends on: samples, bits of the divisor, whether it is the first and the last
/// micro-batch.
type Key = (usize, u32, bool, bool);

/// A part of a step on its way to being a graph: it has run once, and what it needs is compiled; then it is captured.
enum Course {
    Warm,
    Captured(Graph),
}

/// A batch on the device.
struct Staged {
    half: usize,
    samples: usize,
}

/// One rank's model on a device.
pub struct Replica<'a> {
    config: &'a Config,
    queue: Queue,
    passes: Passes,
    weights: Weights,
    optimiser: DeviceOptimiser,
    link: Link<'a>,
    exchange: Exchange<'a>,
    feeds: [Feed; 2],
    /// Samples and labels of two batches, and when each was used up.
    stages: [[Memory; 2]; 2],
    used: [Option<Mark>; 2],
    staged: VecDeque<Staged>,
    turn: usize,
    arrived: [Option<Mark>; 2],
    courses: BTreeMap<Key, Course>,
    losses: Memory,
    /// The loss of each micro-batch, then the flag of an infinity, then the norm of the gradients.
    report: Memory,
    squares: Memory,
}

/// What a step says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The mean loss of this rank's samples.
    pub loss: f64,
    /// Whether a gradient was not finite, and the step was none.
    pub skipped: bool,
}

impl<'a> Replica<'a> {
    /// Builds the model that `config` asks for on this rank's device of `machine`: the rank's number among those of its
    /// host, in turn.
    ///
    /// # Errors
    /// What GPUs do not train; what the driver refused; ranks that do not come.
    pub fn new(
        config: &'a Config,
        (shape, classes): ((usize, usize, usize), usize),
        comm: &'a Communicator,
        on: (Arc<dyn Machine>, usize),
    ) -> Result<Replica<'a>> {
        Replica::of(config, models::build::<f32>(config, shape, classes)?, comm, on)
    }

    /// As [`Replica::new`], of any network; `config` says how it is trained.
    ///
    /// # Errors
    /// As [`Replica::new`].
    pub fn of(
        config: &'a Config,
        network: Network<f32>,
        comm: &'a Communicator,
        (machine, device): (Arc<dyn Machine>, usize),
    ) -> Result<Replica<'a>> {
        refuse(config)?;
        if !network.unreached().is_empty() && !config.find_unused && !config.static_graph {
            let name = &network.params()[network.unreached()[0]].name;
            return Err(Error::Config(format!("the loss does not depend on `{name}`; set `find_unused`")));
        }
        let queue = Queue::new(machine.clone(), device)?.pooled();
        let narrow = config.narrow().map(|narrow| match narrow {
            Narrow::F16 => DType::F16,
            Narrow::Bf16 => DType::Bf16,
        });
        let passes = Passes::new(network, narrow, config.channels_last, &queue)?;
        let forms = (&passes.precision, &passes.filters[..]);
        let weights = Weights::new(&passes.network, config, forms, &queue)?;
        let optimiser = DeviceOptimiser::new(config, &passes.network, &weights, &queue)?;
        let way = Way::named(&config.exchange).unwrap_or_default();
        let link = Link::open(comm, Queue::new(machine.clone(), device)?.pooled(), way, DEADLINE)?;
        let exchange = Exchange::new(config, &weights, comm, &queue)?;
        let copies = Queue::new(machine.clone(), device)?;
        let fresh = |bytes: usize| Memory::new(&machine, device, bytes);
        let report = fresh(4 * (config.accumulate + 2))?;
        queue.fill(report.all(), 0)?;
        Ok(Replica {
            config,
            passes,
            weights,
            optimiser,
            link,
            exchange,
            feeds: [Feed::new(copies.clone()), Feed::new(copies)],
            stages: [[fresh(0)?, fresh(0)?], [fresh(0)?, fresh(0)?]],
            used: [None, None],
            staged: VecDeque::new(),
            turn: 0,
            arrived: [None, None],
            courses: BTreeMap::new(),
            losses: fresh(0)?,
            report,
            squares: fresh(8 * SLICES)?,
            queue,
        })
    }

    /// How ranks add up, in words.
    pub fn link(&self) -> &'static str {
        self.link.name()
    }

    /// Parts of a step that have become graphs.
    pub fn graphs(&self) -> usize {
        self.courses.values().filter(|course| matches!(course, Course::Captured(_))).count()
    }

    /// Copies host values, laid out as the network has them, to the device; with what an optimiser remembers.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn upload<F: Float>(
        &mut self,
        params: &[F],
        buffers: &[F],
        state: &mut dyn Optimiser<F>,
    ) -> Result<()> {
        self.weights.upload(&self.passes.network, &self.queue, params, buffers)?;
        self.optimiser.load(&self.passes.network, &self.weights, &self.queue, state)
    }

    /// The reverse of [`Replica::upload`].
    ///
    /// # Errors
    /// What the driver refused, or what went wrong on the way.
    pub fn download<F: Float>(
        &self,
        params: &mut [F],
        buffers: &mut [F],
        state: &mut dyn Optimiser<F>,
    ) -> Result<()> {
        self.weights.download(&self.passes.network, &self.queue, params, buffers)?;
        self.optimiser.save(&self.passes.network, &self.weights, &self.queue, state)
    }

    /// What this rank's hook remembers from step to step, by name; as long on every rank.
    pub fn remembered<F: Float>(&mut self) -> Vec<(&'static str, Vec<F>)> {
        let all = self.exchange.remembered(&self.passes.network, &self.weights);
        let wide = |values: Vec<f32>| values.into_iter().map(|x| F::from_f64(f64::from(x))).collect();
        all.into_iter().map(|(name, values)| (name, wide(values))).collect()
    }

    /// Goes on after `steps` steps from what [`Replica::remembered`] gave.
    pub fn remember<F: Float>(&mut self, steps: u64, values: &[Vec<F>]) {
        let narrow = |values: &Vec<F>| values.iter().map(|x| x.to_f64() as f32).collect();
        let values: Vec<Vec<f32>> = values.iter().map(narrow).collect();
        self.exchange.remember(&self.passes.network, &self.weights, steps, &values);
    }

    /// Bytes that the model holds on the device. Activations are the most that a step has had at once, with all that is
    /// kept for the way back.
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

    /// Sends a batch to the device, beside whatever that is doing. At most two wait there.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn stage<F: Float>(&mut self, batch: &Batch<F>) -> Result<()> {
        let rows = self.passes.network.rows();
        let (half, samples) = (self.turn, batch.labels.len() / rows.max(1));
        self.turn = 1 - half;
        let sizes = [4 * batch.x.len(), 4 * batch.labels.len()];
        if self.stages[half].iter().zip(sizes).any(|(memory, bytes)| memory.len() < bytes) {
            self.queue.finish()?;
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

    /// Whether a batch waits on the device.
    pub fn is_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Queues a step over the batch that was staged first: forward, backward, the sums over ranks, the optimiser.
    ///
    /// # Errors
    /// That none is staged; what the driver or a peer refused.
    pub fn start(&mut self, moment: Moment, lr: f64, scaler: Option<&GradScaler>) -> Result<usize> {
        let staged =
            self.staged.pop_front().ok_or_else(|| Error::Lost("no batch is on the device".into()))?;
        let Staged { half, samples } = staged;
        if let Some(arrived) = &self.arrived[half] {
            self.queue.wait(arrived)?;
        }
        let size = self.config.micro_batch(samples);
        let count = if self.config.uneven { self.config.accumulate } else { samples.div_ceil(size) };
        let losses = 4 * size * self.passes.network.rows();
        // An evaluation may have made room for larger batches, but keeps no losses.
        if self.passes.reserve(size, &self.queue)? || self.losses.len() < losses {
            let bytes = losses.max(self.losses.len());
            self.losses = Memory::new(self.queue.machine(), self.queue.device(), bytes)?;
            self.forget();
        }
        let scale = scaler.map_or(1.0, |scaler| f64::from(scaler.scale));
        self.queue.fill(self.flag()?, 0)?;
        if self.config.broadcast_buffers && self.config.strategy != "single" {
            self.link.broadcast(&self.queue, self.weights.buffers.all())?;
        }
        for micro in 0..count {
            let from = (micro * size).min(samples);
            let n = size.min(samples - from);
            self.bring(half, from, n)?;
            let place =
                [moment.step, (u32::from(moment.micro) + micro as u32 + 1) << 16 | u32::from(moment.rank)];
            let draws = [moment.seed as u32, (moment.seed >> 32) as u32, place[0], place[1]];
            self.queue.write(self.passes.stream.all(), &draws)?;
            let share = n as f64 / samples.max(1) as f64;
            let divisor = ((n * self.passes.network.rows()) as f64 / (share * scale)) as f32;
            self.micro((n, divisor), (micro == 0, micro + 1 == count), scaler.is_some())?;
            let loss = self.report.all().part(4 * micro, 4)?;
            launch::mean(&self.queue, self.losses.all().part(0, 4 * n * self.passes.network.rows())?, loss)?;
        }
        mark(&mut self.used[half], &self.queue)?;
        self.update(lr, scale, scaler.is_some())?;
        let Replica { queue, weights, link, exchange, config, .. } = self;
        exchange.after_step(config, &mut With { queue, weights, link, n: size })?;
        Ok(samples)
    }

    /// Waits for the step that was started last.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn finish(&mut self, samples: usize) -> Result<Outcome> {
        let report: Vec<u32> = self.queue.download(self.report.all())?;
        let size = self.config.micro_batch(samples);
        let micros = report[..self.config.accumulate].iter().enumerate();
        let loss = micros.map(|(micro, bits)| {
            let n = size.min(samples.saturating_sub(micro * size));
            if n == 0 { 0.0 } else { n as f64 / samples as f64 * f64::from(f32::from_bits(*bits)) }
        });
        let (loss, skipped) = (loss.sum(), report[self.config.accumulate] != 0);
        self.optimiser.steps += u64::from(!skipped);
        Ok(Outcome { loss, skipped })
    }

    /// (Sum of losses, correct answers) over a batch.
    ///
    /// # Errors
    /// What the driver refused, or what went wrong on the way.
    pub fn evaluate<F: Float>(&mut self, batch: &Batch<F>) -> Result<(f64, u64)> {
        self.queue.finish()?;
        self.staged.clear();
        self.stage(batch)?;
        let Some(Staged { half, samples: n }) = self.staged.pop_front() else { return Ok((0.0, 0)) };
        if let Some(arrived) = &self.arrived[half] {
            self.queue.wait(arrived)?;
        }
        if self.passes.reserve(n, &self.queue)? {
            self.forget();
        }
        self.bring(half, 0, n)?;
        mark(&mut self.used[half], &self.queue)?;
        let rows = n * self.passes.network.rows();
        let (losses, hits) = (self.queue.memory(4 * rows)?, self.queue.memory(4 * rows)?);
        let mut with = With { queue: &self.queue, weights: &self.weights, link: &mut self.link, n };
        self.passes.forward(&mut with, false)?;
        self.passes.loss(&with, None, losses.all())?;
        let (dtype, logits) = self.passes.logits(n)?;
        launch::correct(&self.queue, dtype, logits, self.passes.labels_of(n)?, hits.all())?;
        let losses: Vec<f32> = self.queue.download(losses.all())?;
        let hits: Vec<u32> = self.queue.download(hits.all())?;
        self.passes.clear();
        let loss = losses.iter().map(|loss| f64::from(*loss)).sum();
        Ok((loss, hits.iter().map(|hit| u64::from(*hit)).sum()))
    }

    /// Where a step notes that a gradient was not finite.
    fn flag(&self) -> Result<Slice<'_>> {
        Ok(self.report.all().part(4 * self.config.accumulate, 4)?)
    }

    /// Copies n samples of a staged batch to where the passes read them.
    fn bring(&self, half: usize, from: usize, n: usize) -> Result<()> {
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

    /// Forward and backward over what was brought, the first time as it is, the second as a graph, then that graph.
    fn micro(&mut self, (n, divisor): (usize, f32), (first, last): (bool, bool), scaled: bool) -> Result<()> {
        let key: Key = (n, divisor.to_bits(), first, last);
        let machine = self.queue.machine().clone();
        let graph = match self.courses.get(&key) {
            Some(Course::Captured(graph)) => *graph,
            Some(Course::Warm) => {
                machine.begin_capture(self.queue.stream())?;
                let body = self.pass((n, divisor), (first, last), scaled);
                // The capture is ended whatever became of the body, else the stream would stay in it.
                let graph = machine.end_capture(self.queue.stream());
                body?;
                let graph = graph?;
                self.courses.insert(key, Course::Captured(graph));
                graph
            }
            None => {
                if self.link.captures() && self.exchange.captures() {
                    self.courses.insert(key, Course::Warm);
                }
                return self.pass((n, divisor), (first, last), scaled);
            }
        };
        #[allow(unsafe_code, reason = "graphs name memory by address")]
        // SAFETY: what the graph names is `self`'s own and as long-lived, or of the queue's pool, which gives nothing back
        // while `self` lives; what is replaced (`reserve`, `losses`) takes the graphs with it.
        unsafe { machine.replay(self.queue.stream(), graph) }?;
        Ok(())
    }

    /// Forgets all graphs: they name memory that is replaced.
    fn forget(&mut self) {
        let machine = self.queue.machine().clone();
        for course in std::mem::take(&mut self.courses).into_values() {
            if let Course::Captured(graph) = course {
                machine.forget(graph);
            }
        }
    }

    /// Forward, loss and backward; buckets are sent as they fill in the last micro-batch.
    fn pass(&mut self, (n, divisor): (usize, f32), (first, last): (bool, bool), scaled: bool) -> Result<()> {
        let Replica { queue, passes, weights, link, exchange, losses, report, config, .. } = self;
        let mut with = With { queue, weights, link, n };
        passes.forward(&mut with, true)?;
        let rows = passes.network.rows();
        passes.loss(&with, Some(divisor), losses.all().part(0, 4 * n * rows)?)?;
        let mut missing: Vec<usize> = weights.members.iter().map(|bucket| bucket.params.len()).collect();
        let mut next = 0;
        let home = |param: usize| weights.members.iter().position(|bucket| bucket.params.contains(&param));
        passes.backward(&mut with, |param, with| {
            if let Some(bucket) = home(param).filter(|_| last) {
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

    /// Clips and steps; a flag on the device makes it none.
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

impl Drop for Replica<'_> {
    fn drop(&mut self) {
        let _ = self.queue.finish();
        self.forget();
    }
}

/// Moves a mark to where a queue is now.
fn mark(mark: &mut Option<Mark>, queue: &Queue) -> Result<()> {
    match mark {
        Some(mark) => mark.move_to(queue)?,
        None => *mark = Some(queue.record()?),
    }
    Ok(())
}

/// What a GPU does not train, said before anything runs.
fn refuse(config: &Config) -> Result<()> {
    match config.dtype.as_str() {
        "f32" => Ok(()),
        other => Err(Error::Config(format!("`dtype` is {other}; GPUs train in f32, with `amp` for less"))),
    }
}
