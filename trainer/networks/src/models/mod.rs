//! The networks, one file each.

mod cnn;
mod gpt;
mod mlp;
mod resnet;

pub use cnn::{Cnn, cnn};
pub use gpt::{Gpt, gpt};
pub use mlp::mlp;
pub use resnet::{ResNet, resnet};
