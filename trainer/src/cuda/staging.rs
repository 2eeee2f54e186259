//! Batches on their way to a device: two can be staged there, so that one is copied while the device computes with the other.

use super::spans::{mark, part};
use crate::{Batch, Result};
use allfold_cuda::{Feed, Mark, Memory, Queue, Slice};
use allfold_kernels::DType;
use allfold_kernels::nn::Float;
use std::collections::VecDeque;

/// A batch on the device.
#[derive(Clone, Copy)]
pub(super) struct Staged {
    pub half: usize,
    pub samples: usize,
}

/// The memory of the two batches, and the streams that copy them.
pub(super) struct Staging {
    feeds: [Feed; 2],
    /// Samples and labels of both batches.
    stages: [[Memory; 2]; 2],
    /// For each half: when its batch has arrived, and when it has been used.
    arrived: [Option<Mark>; 2],
    used: [Option<Mark>; 2],
    staged: VecDeque<Staged>,
    /// The half of the next batch.
    turn: usize,
}

impl Staging {
    /// Memory for batches of this many bytes of samples and of labels, on the device of `queue`.
    pub fn new(queue: &Queue, [samples, labels]: [usize; 2]) -> Result<Staging> {
        let copies = Queue::new(queue.machine().clone(), queue.device())?;
        let fresh = |bytes| Memory::new(queue.machine(), queue.device(), bytes);
        let stages = [[fresh(samples)?, fresh(labels)?], [fresh(samples)?, fresh(labels)?]];
        let feeds = [Feed::new(copies.clone()), Feed::new(copies)];
        let staged = VecDeque::new();
        Ok(Staging { feeds, stages, arrived: [None, None], used: [None, None], staged, turn: 0 })
    }

    /// The queue of the copies.
    pub fn queue(&self) -> &Queue {
        self.feeds[0].queue()
    }

    /// Whether no batch is staged.
    pub fn is_empty(&self) -> bool {
        self.staged.is_empty()
    }

    /// Whether the next batch has room for this many bytes of samples and of labels.
    pub fn fits(&self, sizes: [usize; 2]) -> bool {
        self.stages[self.turn].iter().zip(sizes).all(|(memory, bytes)| memory.len() >= bytes)
    }

    /// Gives the next batch room for as much. No queued work may use its memory.
    pub fn grow(&mut self, sizes: [usize; 2]) -> Result<()> {
        for (memory, bytes) in self.stages[self.turn].iter_mut().zip(sizes) {
            let queue = self.feeds[0].queue();
            *memory = Memory::new(queue.machine(), queue.device(), bytes.max(memory.len()))?;
        }
        Ok(())
    }

    /// Begins to copy a batch of `samples` samples, which are `tokens` or numbers.
    pub fn stage<F: Float>(&mut self, batch: &Batch<F>, samples: usize, tokens: bool) -> Result<()> {
        let half = self.turn;
        self.turn = 1 - half;
        let copies = self.feeds[0].queue().clone();
        if let Some(used) = &self.used[half] {
            copies.wait(used)?;
        }
        let [x, labels] = &self.stages[half];
        let into = x.all().part(0, 4 * batch.x.len())?;
        if tokens {
            let tokens: Vec<u32> = batch.x.iter().map(|token| token.to_f64() as u32).collect();
            self.feeds[0].send(into, &tokens)?;
        } else if F::DTYPE == DType::F32 {
            self.feeds[0].send(into, bytemuck::cast_slice::<F, f32>(&batch.x))?;
        } else {
            let x: Vec<f32> = batch.x.iter().map(|x| x.to_f64() as f32).collect();
            self.feeds[0].send(into, &x)?;
        }
        self.feeds[1].send(labels.all().part(0, 4 * batch.labels.len())?, &batch.labels)?;
        mark(&mut self.arrived[half], &copies)?;
        self.staged.push_back(Staged { half, samples });
        Ok(())
    }

    /// Takes the batch that was staged first, for which `queue` waits.
    pub fn take(&mut self, queue: &Queue) -> Result<Option<Staged>> {
        let batch = self.staged.pop_front();
        self.awaited(queue, batch)
    }

    /// Takes the batch that was staged last, for which `queue` waits; the next batch is staged in its place. One that was staged before,
    /// such as the next step's before an evaluation, stays.
    pub fn take_last(&mut self, queue: &Queue) -> Result<Option<Staged>> {
        let batch = self.staged.pop_back();
        self.turn = batch.map_or(self.turn, |batch| batch.half);
        self.awaited(queue, batch)
    }

    fn awaited(&self, queue: &Queue, batch: Option<Staged>) -> Result<Option<Staged>> {
        let arrived = batch.and_then(|batch| self.arrived[batch.half].as_ref());
        arrived.map_or(Ok(()), |arrived| queue.wait(arrived))?;
        Ok(batch)
    }

    /// Copies `n` samples of a batch, from sample `from` on, to memory of samples and of labels, which have so many numbers each.
    pub fn copy(
        &self,
        queue: &Queue,
        half: usize,
        (from, n): (usize, usize),
        into: [(Slice<'_>, usize); 2],
    ) -> Result<()> {
        for (stage, (into, wide)) in self.stages[half].iter().zip(into) {
            let span = from * wide..(from + n) * wide;
            queue.copy(into.part(0, 4 * n * wide)?, part(stage.all(), &span, 4)?)?;
        }
        Ok(())
    }

    /// Notes that the work that `queue` has so far is the last that uses a batch.
    pub fn used(&mut self, half: usize, queue: &Queue) -> Result<()> {
        mark(&mut self.used[half], queue)
    }
}
