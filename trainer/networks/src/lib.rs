//! Networks without values: layers, the layout of their parameters in memory, the phases of a step and the cost of each phase.
//!
//! A [`Network`] is a list of layers, each fed by activations before it. A network holds no weights: a trainer holds them, and
//! calls the layers phase by phase.
//!
//! ```
//! use allfold_networks::models::mlp;
//! use allfold_networks::{Network, Phase};
//!
//! let network: Network<f32> = mlp(64, &[24], 10)?;
//! assert_eq!(network.param_count(), 64 * 24 + 24 + 24 * 10 + 10);
//! assert_eq!(network.forward_phases(), [0, 1, 2].map(Phase::Forward));
//! // The network can be cut before each of its layers but the first.
//! assert_eq!(network.outline().cuts(), [1, 2]);
//! # Ok::<_, allfold_networks::Error>(())
//! ```
//!
//! Where to look: [`layers`] for what a layer computes, [`models`] for the networks, [`Outline`] for the properties of a network
//! that a strategy uses, [`workloads`] for tables of large networks, whose times are predicted.

pub mod amp;
mod error;
pub mod layers;
mod mesh;
pub mod models;
mod network;
mod pattern;
pub mod workloads;

pub use error::{Error, Result};
pub use layers::MeshAxis;
pub use mesh::{AxisPosition, Mesh};
pub use network::{
    Builder, ContextSplit, ExpertSplit, LayerTensors, Network, NetworkSplit, NetworkTensors, Outline,
    ParamLayout, ParamSpec, Phase, TensorSplit, layer_of,
};
