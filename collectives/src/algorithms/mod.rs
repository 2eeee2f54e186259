//! The textbook algorithms, one file each.

mod ring;

pub use ring::RingAllReduce;
