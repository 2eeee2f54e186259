//! Published datasets, fetched as packages.

pub mod published;
