//! The ranks that a layer exchanges values with.

use allfold_kernels::nn::OpCost;

/// An axis of the mesh of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MeshAxis {
    /// Ranks with samples of their own.
    Data,
    /// Neighbouring ranks of the data axis, such as those of a node, that together hold one copy of what is sharded.
    Shard,
    /// Ranks of the data axis that hold the same part of what is sharded.
    Replica,
    /// Ranks with layers of their own: the stages of a pipeline.
    Pipeline,
    /// Ranks with the same samples and a part of every layer.
    Tensor,
    /// Neighbouring ranks of the data axis with the same samples, each with some of their positions.
    Context,
    /// Neighbouring ranks of the data axis, each with experts of its own.
    Expert,
    /// Ranks of the data axis that hold the same experts.
    ExpertReplica,
}

impl MeshAxis {
    /// Every axis, in the order of declaration.
    pub const ALL: [MeshAxis; 8] = [
        MeshAxis::Data,
        MeshAxis::Shard,
        MeshAxis::Replica,
        MeshAxis::Pipeline,
        MeshAxis::Tensor,
        MeshAxis::Context,
        MeshAxis::Expert,
        MeshAxis::ExpertReplica,
    ];
}

/// The ranks along an axis of the mesh, as a layer's pass uses them. Every rank of the axis runs the same passes in the same
/// order, so their exchanges match. After a failed exchange the values are undefined, and the result of the pass is dropped.
pub trait Peers<F> {
    /// This rank's position on the axis.
    fn index(&self) -> usize;

    /// The number of ranks along the axis.
    fn size(&self) -> usize;

    /// Replaces values by their sums over all ranks of the axis.
    fn sum(&mut self, values: &mut [F]);

    /// Replaces values by the largest of all ranks of the axis.
    fn max(&mut self, values: &mut [F]);

    /// Leaves the `own` values of every rank of the axis, in order of ranks, in `all`.
    fn gather(&mut self, own: &[F], all: &mut [F]);

    /// Sums `all` over the ranks of the axis, and leaves in `own` this rank's block of the sum: of equal blocks, in order of ranks.
    fn sum_scattered(&mut self, all: &[F], own: &mut [F]);

    /// Sends each rank of the axis one of the equal blocks of `sent`, in order of the ranks, and receives one from each.
    fn all_to_all(&mut self, sent: &[F], received: &mut [F]);

    /// Begins to send values to the next rank of the axis (the last to the first), and to receive as many from the previous rank.
    fn begin_shift(&mut self, values: &[F]);

    /// Ends the exchange: replaces the values by those of the previous rank.
    fn end_shift(&mut self, values: &mut [F]);

    /// Charges work of a layer that [charges itself](super::LayerTraits::charges_itself) to the rank's clock.
    fn charge(&mut self, cost: OpCost);
}

/// A pass of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassKind {
    /// [`Layer::forward`](super::Layer::forward).
    Forward,
    /// [`Layer::gather_gradient`](super::Layer::gather_gradient).
    GatherGradient,
    /// [`Layer::backward_params`](super::Layer::backward_params).
    WeightGrad,
    /// [`Layer::backward_input`](super::Layer::backward_input).
    InputGrad,
}

/// A call of [`Peers`] by a layer's pass, with the number of elements that a rank gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerCall {
    /// [`Peers::sum`].
    Sum(usize),
    /// [`Peers::max`].
    Max(usize),
    /// [`Peers::gather`] of this rank's elements.
    Gather(usize),
    /// [`Peers::sum_scattered`] of the elements for all ranks.
    SumScattered(usize),
    /// [`Peers::all_to_all`] of the elements for all ranks.
    AllToAll(usize),
    /// [`Peers::begin_shift`].
    BeginShift(usize),
    /// [`Peers::end_shift`].
    EndShift,
    /// [`Peers::charge`].
    Charge(OpCost),
}

/// The peers of a rank that is alone on its axis.
pub struct NoPeers;

impl<F: Copy> Peers<F> for NoPeers {
    fn index(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn sum(&mut self, _values: &mut [F]) {}

    fn max(&mut self, _values: &mut [F]) {}

    fn gather(&mut self, own: &[F], all: &mut [F]) {
        all.copy_from_slice(own);
    }

    fn sum_scattered(&mut self, all: &[F], own: &mut [F]) {
        own.copy_from_slice(all);
    }

    fn all_to_all(&mut self, sent: &[F], received: &mut [F]) {
        received.copy_from_slice(sent);
    }

    fn begin_shift(&mut self, _values: &[F]) {}

    fn end_shift(&mut self, _values: &mut [F]) {}

    fn charge(&mut self, _cost: OpCost) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{
        Backward, ExpertCombine, ExpertRouter, ExpertShape, Forward, Init, Layer, LayerNorm, ParallelLinear,
        PositionsPart, RingAttention, SavedTensors, VocabParallelEmbedding,
    };
    use allfold_kernels::nn::{AttentionShape, DropoutStream};

    const N: usize = 2;

    /// The first of two ranks, which receives its own values back and records its calls.
    #[derive(Default)]
    struct Recorder(Vec<PeerCall>);

    impl Peers<f64> for Recorder {
        fn index(&self) -> usize {
            0
        }
        fn size(&self) -> usize {
            2
        }
        fn sum(&mut self, values: &mut [f64]) {
            self.0.push(PeerCall::Sum(values.len()));
        }
        fn max(&mut self, values: &mut [f64]) {
            self.0.push(PeerCall::Max(values.len()));
        }
        fn gather(&mut self, own: &[f64], all: &mut [f64]) {
            self.0.push(PeerCall::Gather(own.len()));
            all.chunks_exact_mut(own.len()).for_each(|part| part.copy_from_slice(own));
        }
        fn sum_scattered(&mut self, all: &[f64], own: &mut [f64]) {
            self.0.push(PeerCall::SumScattered(all.len()));
            own.copy_from_slice(&all[..own.len()]);
        }
        fn all_to_all(&mut self, sent: &[f64], received: &mut [f64]) {
            self.0.push(PeerCall::AllToAll(sent.len()));
            received.copy_from_slice(sent);
        }
        fn begin_shift(&mut self, values: &[f64]) {
            self.0.push(PeerCall::BeginShift(values.len()));
        }
        fn end_shift(&mut self, _values: &mut [f64]) {
            self.0.push(PeerCall::EndShift);
        }
        fn charge(&mut self, cost: OpCost) {
            self.0.push(PeerCall::Charge(cost));
        }
    }

    /// The calls of each pass of a layer to its peers.
    fn recorded(layer: &dyn Layer<f64>) -> [(PassKind, Vec<PeerCall>); 4] {
        let len = |values: usize, of: f64| vec![of; values];
        let params = len(layer.params().iter().map(crate::layers::Tensor::len).sum(), 0.5);
        let (x, mut y) = (len(N * layer.inputs(), 1.0), len(N * layer.outputs(), 0.0));
        let (values, indices) = layer.saved(N);
        let mut saved = SavedTensors { values: len(values, 0.0), indices: vec![0; indices] };
        let mut forward = Recorder::default();
        layer.forward(Forward {
            n: N,
            train: true,
            params: &params,
            buffers: &mut [],
            x: &x,
            other: &[],
            y: &mut y,
            saved: &mut saved,
            totals: &[],
            stream: DropoutStream::default(),
            peers: &mut forward,
        });
        let (mut gather, own) = (Recorder::default(), y.clone());
        let mut dy = len(N * layer.gradient_len(), 1.0);
        if layer.gradient_len() != layer.outputs() {
            layer.gather_gradient(N, &own, &mut dy, &mut gather);
        }
        let (mut weights, mut inputs) = (Recorder::default(), Recorder::default());
        let mut pass = |peers: &mut Recorder, then: &mut dyn FnMut(&mut Backward<f64>)| {
            let saved = &mut saved;
            let (params, x, y, dy) = (&params[..], &x[..], &y[..], &dy[..]);
            then(&mut Backward { n: N, scale: 1.0, params, x, y, dy, saved, totals: &[], peers });
        };
        let (mut grads, mut dx) = (len(params.len(), 0.0), len(x.len(), 0.0));
        pass(&mut weights, &mut |pass| layer.backward_params(pass, &mut grads));
        if !layer.traits().identity_backward {
            pass(&mut inputs, &mut |pass| layer.backward_input(pass, &grads, &mut dx));
        }
        [
            (PassKind::Forward, forward.0),
            (PassKind::GatherGradient, gather.0),
            (PassKind::WeightGrad, weights.0),
            (PassKind::InputGrad, inputs.0),
        ]
    }

    #[test]
    fn layers_ask_their_peers_for_what_they_say() {
        let experts = ExpertShape { positions: 4, width: 4, experts: 4, chosen: 2, capacity: 3 };
        let init = Init::Constant(0.5);
        let shared = |layer: &dyn Layer<f64>| layer.sharing_experts(2).unwrap();
        let attention = AttentionShape { positions: 8, width: 4, heads: 2, kv_heads: 2, causal: true };
        let norm = LayerNorm::new(2, 4);
        let layers: Vec<Box<dyn Layer<f64>>> = vec![
            Box::new(ParallelLinear::of_outputs(4, (6, 2), true)),
            Box::new(ParallelLinear::of_outputs(4, (6, 2), true).sharing_positions(2)),
            Box::new(ParallelLinear::of_inputs(4, (2, 6), true)),
            Box::new(ParallelLinear::of_inputs(4, (2, 6), true).sharing_positions(2)),
            Box::new(VocabParallelEmbedding::new(4, 0..3, 6)),
            Box::new(VocabParallelEmbedding::new(4, 0..3, 6).sharing_positions(2)),
            Box::new(norm.sharing_positions()),
            Box::new(PositionsPart::of_sequence(4, 6, 0..2)),
            Box::new(RingAttention::new(attention, 2, 0.0)),
            shared(&ExpertRouter::new(experts, 0.1, init)),
            shared(&ExpertCombine::new(experts)),
        ];
        for (number, layer) in layers.iter().enumerate() {
            assert!(layer.traits().axis.is_some());
            for (pass, calls) in recorded(&**layer) {
                assert_eq!(layer.peer_calls(pass, N), calls, "layer {number}, {pass:?}");
            }
        }
    }
}
