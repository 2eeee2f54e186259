//! Batches that separate threads prepare ahead of their step, also over the end of an epoch.
//!
//! ```text
//! worker 0   | batch 0 | batch 2 | batch 4 | ...          each keeps `prefetch` ready
//! worker 1   | batch 1 | batch 3 | ...
//! steps           | 0 | 1 | 2 | 3 ...                      always in order, whichever worker is quicker
//! ```
//!
//! A batch that a step has used goes to the worker of that step with the next samples, and the worker reuses the memory.

use super::{Augment, Batch, Dataset};
use crate::{Error, Result};
use allfold_kernels::nn::Float;
use std::iter::Peekable;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The samples of a batch, and their random changes.
pub struct Chunk {
    /// The samples, by their numbers.
    pub samples: Vec<usize>,
    /// The random changes of pictures.
    pub augment: Augment,
}

/// The batches of a run, one after another.
pub struct Batches<'a, F> {
    dataset: &'a Dataset,
    chunks: Peekable<Box<dyn Iterator<Item = Chunk> + 'a>>,
    /// The batches that were taken, and those that workers have prepared or are asked for.
    taken: usize,
    ordered: usize,
    workers: Vec<Worker<F>>,
}

/// A thread that prepares batches: the channel of its orders, each with memory to reuse, and the channel of its batches.
struct Worker<F> {
    orders: Sender<(Chunk, Batch<F>)>,
    ready: Receiver<Result<Batch<F>>>,
}

/// The parameters of loading.
#[derive(Clone, Copy)]
pub struct Loading<'a> {
    /// The dataset of the samples.
    pub dataset: &'a Dataset,
    /// Threads that prepare batches; with 0, each batch is prepared when it is requested.
    pub workers: usize,
    /// How many batches of each thread are kept ready for their steps, 1 if 0; the thread prepares one more meanwhile.
    pub prefetch: usize,
}

/// Calls `body` with the batches of `chunks`, and returns what it returned. Chunks are asked for only as far ahead as workers prepare
/// batches.
pub fn batches<'a, F: Float, R>(
    loading: Loading<'a>,
    chunks: impl Iterator<Item = Chunk> + 'a,
    body: impl FnOnce(&mut Batches<'a, F>) -> R,
) -> R {
    let Loading { dataset, workers, prefetch } = loading;
    std::thread::scope(|scope| {
        let start = |_| {
            let (orders, given) = channel::<(Chunk, Batch<F>)>();
            let (send, ready) = channel();
            scope.spawn(move || {
                for (chunk, mut batch) in given {
                    let gathered = dataset.gather_changed(&chunk.augment, &chunk.samples, &mut batch);
                    // If the run has stopped, the receiver is dropped and the worker ends.
                    if send.send(gathered.map(|()| batch)).is_err() {
                        return;
                    }
                }
            });
            Worker { orders, ready }
        };
        let (workers, chunks) =
            ((0..workers).map(start).collect(), Box::new(chunks) as Box<dyn Iterator<Item = _>>);
        let mut batches = Batches { dataset, chunks: chunks.peekable(), taken: 0, ordered: 0, workers };
        for _ in 0..batches.workers.len() * (prefetch.max(1) + 1) {
            batches.order(Batch::default());
        }
        body(&mut batches)
    })
}

impl<F: Float> Batches<'_, F> {
    /// Whether there is another batch.
    pub fn more(&mut self) -> bool {
        self.taken < self.ordered || self.chunks.peek().is_some()
    }

    /// Asks the next worker for a batch of the next samples, in the memory of `used`.
    fn order(&mut self, used: Batch<F>) {
        if let Some(chunk) = self.chunks.next() {
            // A worker that has ended shows when its batch is taken.
            let _ = self.workers[self.ordered % self.workers.len()].orders.send((chunk, used));
            self.ordered += 1;
        }
    }

    /// Replaces `batch` by the next batch.
    ///
    /// # Errors
    /// If there is no next batch, its worker has ended, or its samples cannot be read.
    pub fn next(&mut self, batch: &mut Batch<F>) -> Result<()> {
        let gone = || Error::Lost(format!("there is no batch {} in this run", self.taken));
        if self.workers.is_empty() {
            let chunk = self.chunks.next().ok_or_else(gone)?;
            self.dataset.gather_changed(&chunk.augment, &chunk.samples, batch)?;
        } else {
            let worker =
                self.workers.get(self.taken % self.workers.len()).filter(|_| self.taken < self.ordered);
            let next = worker.ok_or_else(gone)?.ready.recv().map_err(|_| gone())??;
            self.order(std::mem::replace(batch, next));
        }
        self.taken += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(chunks: &[Vec<usize>]) -> impl Iterator<Item = Chunk> + '_ {
        chunks.iter().map(|samples| Chunk { samples: samples.clone(), augment: Augment::NONE })
    }

    #[test]
    fn batches_come_in_order_whatever_the_workers() {
        let (train, _) = crate::digits().unwrap();
        let all_chunks: Vec<Vec<usize>> = (0..23).map(|i| (i * 7..i * 7 + i % 5).collect()).collect();
        let loading = |workers, prefetch| Loading { dataset: &train, workers, prefetch };
        let all = |workers, prefetch| {
            batches::<f32, _>(loading(workers, prefetch), chunks(&all_chunks), |batches| {
                let mut batch = Batch::default();
                let each = all_chunks.iter().map(|_| {
                    assert!(batches.more());
                    batches.next(&mut batch).map(|()| batch.clone())
                });
                let all = each.collect::<Result<Vec<_>>>()?;
                assert!(!batches.more() && batches.next(&mut Batch::default()).is_err());
                Ok::<_, Error>(all)
            })
            .unwrap()
        };
        let want = all(0, 0);
        assert_eq!(all(1, 1), want);
        assert_eq!(all(3, 4), want);
        // A run that stops early leaves no worker behind.
        let first = |batches: &mut Batches<'_, f32>| batches.next(&mut Batch::default());
        batches(loading(2, 1), chunks(&all_chunks), first).unwrap();
    }

    /// The samples of later batches are not listed before workers need them: those of a long run do not fit in memory.
    #[test]
    fn chunks_are_listed_as_far_ahead_as_batches_are_prepared() {
        let (train, _) = crate::digits().unwrap();
        let listed = std::cell::Cell::new(0);
        let endless = std::iter::from_fn(|| {
            listed.set(listed.get() + 1);
            Some(Chunk { samples: vec![0], augment: Augment::NONE })
        });
        batches::<f32, _>(Loading { dataset: &train, workers: 2, prefetch: 3 }, endless, |batches| {
            assert_eq!(listed.get(), 8);
            batches.next(&mut Batch::default())
        })
        .unwrap();
        assert_eq!(listed.get(), 9);
    }
}
