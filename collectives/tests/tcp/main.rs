#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
//! Every fault of the matrix over real sockets: each has its own test and its own expected error, within its bound.
//!
//! | module | what goes wrong |
//! |---|---|
//! | `network` | what lies between two ranks: losses, damage, delays, partitions, cuts |
//! | `kills` | a rank dies in any round of any operation |
//! | `incompatible peers` | who connects and does not belong here, or says what cannot be |
//! | `processes` | real processes that are killed and stopped |
//! | `campaign` | seeded rules in numbers; counts what was injected and what came of it |

mod arena;
mod campaign;
mod kills;
mod network;
mod pieces;
mod processes;
mod strangers;
