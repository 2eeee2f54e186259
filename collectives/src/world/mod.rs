//! Worlds: groups of ranks that run a function, one thread and one communicator per rank.
//!
//! ```text
//! World<OnThreads>      World::threads
//! World<OnSockets>      World::tcp, World::shm          --- any() --> World: worlds of several kinds side by side
//! World<OnVirtualTime>  World::sim
//! ```
//!
//! An option of one kind of world is a method of that kind, so that a wrong option does not compile.

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
