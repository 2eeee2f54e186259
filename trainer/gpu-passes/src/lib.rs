//! The forward and the backward pass of a network on a GPU, phase by phase: each layer by its
//! [`LayerOperation`](allfold_networks::layers::LayerOperation), over the kernels of
//! `allfold_cuda` and NVIDIA's libraries.
//!
//! ```text
//! Passes              runs a phase of the micro-batch of one slot
//!    |-- Values          parameters and gradients: the caller's
//!    |-- SlotTensors     the tensors of a micro-batch in flight
//!    '-- TensorFormats       the type of every layer and activation under autocast, and the layout of pictures
//! ```
//!
//! Losses equal the CPU's up to rounding: products are summed in another order, and 16-bit results are rounded where tensors are
//! stored.

mod backward;
mod error;
mod experts;
mod fused;
mod fusion;
mod layout;
mod linear;
mod loss;
mod passes;
mod precision;
mod ring;
mod sequence;
mod slot;
mod supported;
mod values;

pub use error::{Error, Result};
pub use layout::{ChannelsLast, TensorFormat, turned};
pub use passes::{AxisGroups, PassContext, Passes};
pub use precision::TensorFormats;
pub use slot::SlotTensors;
pub use values::Values;
