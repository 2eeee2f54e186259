//! The networks, one file each.

mod bert;
mod cnn;
mod gpt;
mod llama;
mod mixture;
mod mlp;
mod resnet;
mod vgg;

pub use bert::{Bert, bert};
pub use cnn::{Cnn, cnn};
pub use gpt::{Gpt, gpt, moe_gpt};
pub use llama::{Llama, llama};
pub use mixture::Experts;
pub use mlp::mlp;
pub use resnet::{ResNet, resnet};
pub use vgg::{Vgg, vgg};
