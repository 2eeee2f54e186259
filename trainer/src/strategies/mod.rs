//! The strategies of training: what each adds to forward pass, backward pass and the optimiser's step.
//!
//! | file | each rank holds | exchanged in a step |
//! |---|---|---|
//! | [`single`] | the only model | nothing |
//! | [`ddp`] | a replica | gradients, averaged in buckets during the backward pass |
//! | [`data_parallel`] | a replica; the first rank also batch and optimiser | samples, outputs, gradients, weights |
//! | [`parameter_server`] | servers: parameters and optimiser; workers: samples | weights to workers, gradients to servers |
//! | [`zero1`] | a replica and a part of the optimiser state | gradients, in parts; then weights |
//! | [`zero2`] | a replica and a part of gradients and state | gradients, in parts, for every micro-batch; then weights |
//! | [`zero3`] | a part of weights, gradients and state | weights before they are used; gradients, in parts |
//! | [`pipeline`] | some of the layers | activations and their gradients |
//! | `tensor` | a part of every layer ([`TensorSplit`](crate::TensorSplit)) | sums of activations and of their gradients |
//! | `tensor`, `sequence_parallel` | a part of every layer; some positions between these | the same sums, scattered; gathers |
//! | `context` | all parameters; some positions ([`ContextSplit`](crate::ContextSplit)) | keys and values in a ring; gradients |
//! | `expert` | some experts, all other parameters ([`ExpertSplit`](crate::ExpertSplit)) | tokens, all to all; gradients |
//!
//! A strategy is a [`Driver`], which runs the step, and mostly a [`DataSharing`], which decides what happens to parameters and
//! gradients over the data axis; both work on a [`RankEngine`](crate::engine::RankEngine).

pub mod data_parallel;
pub mod ddp;
mod driver;
pub mod hooks;
pub mod parameter_server;
pub mod pipeline;
mod plain;
mod registry;
mod replicated;
pub mod single;
mod table;
pub mod zero1;
pub mod zero2;
pub mod zero3;

pub use driver::{DataSharing, Driver};
pub use plain::Plain;
pub(crate) use registry::{ADDED, mesh};
pub use registry::{EnginePlan, OwnStrategy, axes, check_name, fits, names, plan};
pub use table::STRATEGIES;
