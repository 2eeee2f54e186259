//! A group of ranks to run code on: one thread per rank, a communicator for each.
//!
//! ```text
//! World<OnThreads>      World::threads
//! World<OnSockets>      World::tcp, World::shm          --- any() --> World: worlds of several kinds side by side
//! World<OnVirtualTime>  World::sim
//! ```
//!
//! What can be chosen about one kind of world only is a method of that kind: a wrong choice does not compile.

mod description;
mod kind;
mod report;
mod run;
mod simulated;
mod sockets;
mod threads;

pub use description::World;
pub use kind::{Any, OnSockets, OnThreads, OnVirtualTime, WorldKind};
pub use report::Report;
