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

    /// Charges work of a layer that [charges itself](super::Layer::charges_itself) to the rank's clock.
    fn charge(&mut self, cost: OpCost);
}

/// A pass of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerPass {
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
