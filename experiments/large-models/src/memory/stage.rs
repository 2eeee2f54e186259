//! What a stage of the pipeline holds: layers by kind, embedding and output layer.

use crate::job::TrainingJob;

/// The part of a network on one stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StageShare {
    /// Layers with attention, with a mixer of states, with a dense feed-forward network, and with experts.
    pub layers: [f64; 4],
    /// Whether the token embedding is here.
    pub first: bool,
    /// Whether the output layer is here.
    pub last: bool,
    /// Micro-batches whose activations are kept at the same time; a fraction where the schedule is interleaved.
    pub in_flight: f64,
}

impl StageShare {
    pub fn of(job: &TrainingJob, index: u32) -> StageShare {
        let (model, layout) = (&job.model, &job.layout);
        let stages = layout.pipeline.max(1);
        let (before, blocks) = blocks(model.layers, stages, index);
        let kinds = model.kinds();
        let leading = model.experts.map_or(0, |experts| experts.dense_layers);
        // A few dense blocks come first; where they are many, they alternate with those that have experts.
        let layers = if model.hybrid.is_none() && leading * 2 < model.layers && leading > 0 {
            let dense = leading.saturating_sub(before).min(blocks);
            [blocks, 0, dense, blocks - dense].map(f64::from)
        } else {
            kinds.map(|count| count * f64::from(blocks) / f64::from(model.layers.max(1)))
        };
        StageShare {
            layers,
            first: index == 0,
            last: index + 1 == stages,
            in_flight: in_flight(stages, layout.chunks, index, layout.micro_batches()),
        }
    }
}

/// The blocks before a stage, and on it. Where two more blocks would divide evenly, the embedding and the output layer count as
/// one block each, as in Megatron-LM's balanced layouts; otherwise the first stages have one block more.
fn blocks(all: u32, stages: u32, index: u32) -> (u32, u32) {
    if stages > 2 && !all.is_multiple_of(stages) && (all + 2).is_multiple_of(stages) {
        let each = (all + 2) / stages;
        let ends = u32::from(index == 0) + u32::from(index + 1 == stages);
        return ((each * index).saturating_sub(u32::from(index > 0)), each - ends);
    }
    let (each, more) = (all / stages, all % stages);
    (each * index + more.min(index), each + u32::from(index < more))
}

/// Micro-batches in flight: 1F1B holds as many as there are stages from here to the end; interleaved schedules more (Narayanan et
/// al., SC 2021, and Korthikanti et al., 2022: `1 + (stages - 1) / (stages x chunks)` times as many on the first stage).
fn in_flight(stages: u32, chunks: u32, index: u32, micro_batches: f64) -> f64 {
    let after = f64::from(stages - index);
    if chunks <= 1 {
        return after.min(micro_batches);
    }
    let (stages, chunks) = (f64::from(stages), f64::from(chunks));
    let of_chunks = 2.0 * (after - 1.0) + (chunks - 1.0) * stages + 1.0;
    (of_chunks / chunks).min(micro_batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_shared_out_whole() {
        for (all, stages) in [(70, 12), (80, 8), (61, 16), (126, 16), (7, 2), (12, 1)] {
            let shares: Vec<_> = (0..stages).map(|index| blocks(all, stages, index)).collect();
            assert_eq!(shares.iter().map(|share| share.1).sum::<u32>(), all);
            let mut before = 0;
            for share in shares {
                assert_eq!(share.0, before, "{all} {stages}");
                before += share.1;
            }
        }
        assert_eq!((blocks(70, 12, 0).1, blocks(70, 12, 5).1, blocks(70, 12, 11).1), (5, 6, 5));
    }

    #[test]
    fn schedules_hold_as_many_micro_batches_as_their_papers_say() {
        assert_eq!(in_flight(8, 1, 0, 64.0), 8.0);
        assert_eq!(in_flight(8, 1, 7, 64.0), 1.0);
        assert_eq!(in_flight(8, 1, 0, 4.0), 4.0);
        assert_eq!(in_flight(8, 3, 0, 64.0), 8.0 * (1.0 + 7.0 / 24.0));
        assert_eq!(in_flight(1, 1, 0, 4.0), 1.0);
    }
}
