//! The textbook algorithms, one file each. [`crate::registry`] combines them: reverses of schedules, all-reduces from a reduce and
//! a broadcast, lanes, groups.

mod balanced;
mod binary_tree;
mod binomial;
mod bruck;
mod chain;
mod direct;
mod dissemination;
mod double_binary_tree;
mod halving_doubling;
mod hierarchical;
mod pairwise;
mod recursive_doubling;
mod ring;
mod shift;
mod star;

pub use binary_tree::BinaryTree;
pub use binomial::Binomial;
pub use bruck::{BruckAllGather, BruckAllToAll};
pub use chain::Chain;
pub use direct::{DirectAllGather, DirectReduceScatter, direct};
pub use dissemination::Dissemination;
pub use double_binary_tree::double_binary_tree;
pub use halving_doubling::{Halving, halving, halving_doubling};
pub use hierarchical::{hierarchical_reduce, hierarchical_scatter};
pub use pairwise::Pairwise;
pub use recursive_doubling::{RecursiveDoubling, recursive_doubling};
pub use ring::{RingAllReduce, RingReduceScatter};
pub use shift::Shift;
pub use star::Star;
