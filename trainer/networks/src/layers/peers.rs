//! The ranks that a layer exchanges values with.

use allfold_kernels::nn::OpCost;

/// An axis of the mesh of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MeshAxis {
    /// Ranks with samples of their own.
    Data,
    /// Ranks of the data axis that share one copy of what is sharded: neighbours, such as those of a node.
    Shard,
    /// Ranks of the data axis that hold the same parts.
    Replica,
    /// Ranks with layers of their own: the stages of a pipeline.
    Pipeline,
    /// Ranks with the same samples and a part of every layer.
    Tensor,
    /// Ranks of the data axis with the same samples, of which each has some positions: neighbours.
    Context,
}

/// The ranks along an axis of the mesh, as a layer's pass sees them. Every rank of the axis runs the same passes in the same order,
/// so their exchanges meet. After an exchange has failed, values are anything, and the pass's result is thrown away.
pub trait Peers<F> {
    /// This rank's position on the axis.
    fn index(&self) -> usize;

    /// Ranks along the axis.
    fn size(&self) -> usize;

    /// Replaces values by their sums over all ranks of the axis.
    fn sum(&mut self, values: &mut [F]);

    /// Replaces values by the largest of all ranks of the axis.
    fn max(&mut self, values: &mut [F]);

    /// Begins to send values to the next rank of the axis, the first after the last, and to receive as many from the one before.
    fn begin_shift(&mut self, values: &[F]);

    /// Ends the exchange that was begun: replaces values by those of the rank before.
    fn end_shift(&mut self, values: &mut [F]);

    /// Charges work of a layer that [charges itself](super::Layer::charges_itself) to the rank's clock.
    fn charge(&mut self, cost: OpCost);
}

/// A rank without others.
pub struct NoPeers;

impl<F> Peers<F> for NoPeers {
    fn index(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn sum(&mut self, _values: &mut [F]) {}

    fn max(&mut self, _values: &mut [F]) {}

    fn begin_shift(&mut self, _values: &[F]) {}

    fn end_shift(&mut self, _values: &mut [F]) {}

    fn charge(&mut self, _cost: OpCost) {}
}
