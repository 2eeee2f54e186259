//! How the ranks of a mesh share a network: its layers, its positions or its experts.

use super::{ContextSplit, ExpertSplit, Network, ParamLayout, TensorSplit};
use crate::{Mesh, MeshAxis, Result};
use allfold_kernels::nn::Float;

/// How ranks share a network's layers, positions and experts.
#[derive(Clone, Debug, Default)]
pub struct NetworkSplit {
    /// How the ranks of the tensor axis share layers, where there are several.
    pub tensor: Option<TensorSplit>,
    /// How the ranks of the context axis share positions, where there are several.
    pub context: Option<ContextSplit>,
    /// How the ranks of the expert axis share experts, where there are several.
    pub experts: Option<ExpertSplit>,
}

impl NetworkSplit {
    /// The part that `rank` has of `network`, and how the ranks of `mesh` share the network. With `sequence_parallel` the ranks of the
    /// tensor axis, where there are several, also share the positions of the layers that they do not cut.
    ///
    /// # Errors
    /// A network that the ranks cannot share in this way.
    pub fn of<F: Float>(
        network: Network<F>,
        mesh: &Mesh,
        rank: usize,
        sequence_parallel: bool,
    ) -> Result<(Network<F>, NetworkSplit)> {
        let [tensor, context, expert] =
            [MeshAxis::Tensor, MeshAxis::Context, MeshAxis::Expert].map(|axis| mesh.position(rank, axis));
        let mut split = NetworkSplit::default();
        let mut part = network;
        if tensor.size > 1 {
            let mut layers = TensorSplit::of(&part, tensor.size)?;
            if sequence_parallel {
                layers = layers.sharing_positions(&part)?;
            }
            part = layers.part(part, tensor.index)?;
            split.tensor = Some(layers);
        }
        if context.size > 1 {
            let positions = ContextSplit::of(&part, context.size)?;
            part = positions.part(part, context.index)?;
            split.context = Some(positions);
        }
        if expert.size > 1 {
            let experts = ExpertSplit::of(&part, expert.size)?;
            part = experts.part(part)?;
            split.experts = Some(experts);
        }
        Ok((part, split))
    }

    /// The axis whose ranks have parts of the parameters, and where the elements of each rank's part lie; `None` if there is none.
    pub fn parts(&self) -> Option<(MeshAxis, Vec<ParamLayout>)> {
        let tensor = self
            .tensor
            .as_ref()
            .map(|split| (MeshAxis::Tensor, (0..split.size()).map(|index| split.layout(index)).collect()));
        let experts = self.experts.as_ref();
        tensor.or_else(|| {
            let split = experts?;
            Some((MeshAxis::Expert, (0..split.size()).map(|index| split.layout(index)).collect()))
        })
    }
}
