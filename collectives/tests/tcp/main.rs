#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
//! Every fault of the matrix over real sockets: each has its own test and its own expected error, within its bound.
//!
//! | module | fault |
//! |---|---|
//! | `network` | the network between two ranks: losses, damage, delays, partitions, cuts |
//! | `kills` | a rank dies before any frame of any operation |
//! | `strangers` | connections that do not belong to the job, and invalid frames of members |
//! | `processes` | real processes that are killed and stopped |
//! | `campaign` | seeded fault rules in numbers: how many were injected, and with which outcomes |

mod arena;
mod campaign;
mod kills;
mod network;
mod pieces;
mod processes;
mod strangers;
