//! Published datasets, by the packages that carry them.

pub mod published;
