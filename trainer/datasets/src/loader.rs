//! Batches that separate threads prepare ahead of their step.
//!
//! ```text
//! worker 0   | batch 0 | batch 2 | batch 4 | ...          each keeps `prefetch` ready
//! worker 1   | batch 1 | batch 3 | ...
//! steps           | 0 | 1 | 2 | 3 ...                      always in order, whichever worker is quicker
//! ```
//!
//! A batch that a step has used is returned to the worker of the step's next batch, which reuses the memory.

use super::{Augment, Batch, Dataset};
use crate::{Error, Result};
use allfold_kernels::nn::Float;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

/// The batches of an epoch, one after another.
pub struct Batches<'a, F> {
    dataset: &'a Dataset,
    augment: Augment,
    chunks: &'a [Vec<usize>],
    at: usize,
    workers: Vec<Worker<F>>,
}

/// A thread that prepares batches: the channel of its batches, and the channel that returns used batches.
struct Worker<F> {
    ready: Receiver<Result<Batch<F>>>,
    used: Sender<Batch<F>>,
}

/// The parameters of loading an epoch.
#[derive(Clone, Copy)]
pub struct Loading<'a> {
    /// The dataset of the samples.
    pub dataset: &'a Dataset,
    /// The random changes of pictures.
    pub augment: Augment,
    /// Threads that prepare batches; with 0, each batch is prepared when it is requested.
    pub workers: usize,
    /// How many batches of each thread are kept ready for their steps, 1 if 0; the thread prepares one more meanwhile.
    pub prefetch: usize,
}

/// Calls `body` with the batches that `chunks` name, and returns what it returned.
pub fn batches<F: Float, R>(
    loading: Loading<'_>,
    chunks: &[Vec<usize>],
    body: impl FnOnce(&mut Batches<F>) -> R,
) -> R {
    let Loading { dataset, augment, workers, prefetch } = loading;
    std::thread::scope(|scope| {
        let start = |worker: usize| {
            let (send, ready) = sync_channel(prefetch.max(1));
            let (used, given_back) = channel::<Batch<F>>();
            scope.spawn(move || {
                for chunk in chunks.iter().skip(worker).step_by(workers) {
                    let mut batch = given_back.try_recv().unwrap_or_default();
                    let gathered = dataset.gather_changed(&augment, chunk, &mut batch);
                    // If the run has stopped, the receiver is dropped and the worker ends.
                    if send.send(gathered.map(|()| batch)).is_err() {
                        return;
                    }
                }
            });
            Worker { ready, used }
        };
        let workers = (0..workers).map(start).collect();
        body(&mut Batches { dataset, augment, chunks, at: 0, workers })
    })
}

impl<F: Float> Batches<'_, F> {
    /// The number of batches that have not been taken yet.
    pub fn left(&self) -> usize {
        self.chunks.len() - self.at
    }

    /// Replaces `batch` by the next batch.
    ///
    /// # Errors
    /// If there is no next batch, its worker has ended, or its samples cannot be read.
    pub fn next(&mut self, batch: &mut Batch<F>) -> Result<()> {
        let gone = || Error::Lost(format!("there is no batch {} in this epoch", self.at));
        let chunk = self.chunks.get(self.at).ok_or_else(gone)?;
        match self.at.checked_rem(self.workers.len()) {
            None => self.dataset.gather_changed(&self.augment, chunk, batch)?,
            Some(worker) => {
                let Worker { ready, used } = &self.workers[worker];
                let next = ready.recv().map_err(|_| gone())??;
                // A worker that has prepared its last batch has ended and takes none back.
                let _ = used.send(std::mem::replace(batch, next));
            }
        }
        self.at += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_come_in_order_whatever_the_workers() {
        let (train, _) = crate::digits().unwrap();
        let chunks: Vec<Vec<usize>> = (0..23).map(|i| (i * 7..i * 7 + i % 5).collect()).collect();
        let loading =
            |workers, prefetch| Loading { dataset: &train, augment: Augment::NONE, workers, prefetch };
        let all = |workers, prefetch| {
            batches::<f32, _>(loading(workers, prefetch), &chunks, |batches| {
                let mut batch = Batch::default();
                let each = chunks.iter().map(|_| batches.next(&mut batch).map(|()| batch.clone()));
                let all = each.collect::<Result<Vec<_>>>()?;
                assert!(batches.next(&mut Batch::default()).is_err());
                Ok::<_, Error>(all)
            })
            .unwrap()
        };
        let want = all(0, 0);
        assert_eq!(all(1, 1), want);
        assert_eq!(all(3, 4), want);
        // A run that stops early leaves no worker behind.
        batches::<f32, _>(loading(2, 1), &chunks, |batches| batches.next(&mut Batch::default())).unwrap();
    }
}
