//! Virtual time: [`allfold_timing`], and NCCL's model beside it.

pub use allfold_timing::*;

pub mod nccl;
