//! What an epoch's batches contain, for tests.

use crate::loader::{Chunk, Loading, batches};
use crate::{Augment, Batch, Dataset, Error};
use std::collections::BTreeMap;

/// The features of the first `count` samples by their number, as `ranks` ranks together load them in batches of `batch` by
/// `workers` threads each.
pub(crate) fn by_sample(
    (dataset, count): (&Dataset, usize),
    augment: Augment,
    (ranks, batch, workers): (usize, usize, usize),
) -> BTreeMap<usize, Vec<f32>> {
    let mut all = BTreeMap::new();
    for rank in 0..ranks {
        let indices: Vec<usize> = (0..count).rev().skip(rank).step_by(ranks).collect();
        let chunks: Vec<Vec<usize>> = indices.chunks(batch).map(<[usize]>::to_vec).collect();
        let loading = Loading { dataset, workers, prefetch: 2 };
        let listed = chunks.iter().map(|samples| Chunk { samples: samples.clone(), augment });
        batches::<f32, _>(loading, listed, |batches| {
            for chunk in &chunks {
                let mut batch = Batch::default();
                batches.next(&mut batch)?;
                let samples = batch.x.chunks_exact(dataset.features()).map(<[f32]>::to_vec);
                all.extend(chunk.iter().copied().zip(samples));
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    }
    all
}
