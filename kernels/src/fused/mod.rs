//! Collectives between members that share memory: each member reads the sources of all members and writes its share of every
//! result. No messages are sent.
//!
//! ```text
//!            source 0   source 1   ..          small     each member copies its source to its slot of the sync segment and raises
//!              |    \  /    |                             a flag; when all have: each computes its own result from the slots
//!   member 0  [ a0 (+) b0 | ...... ]            large     each member publishes the addresses of its buffers; when all have: each
//!   member 1  [ ......... | a1 (+) b1 ]                    computes a share of all results; when all have: each returns
//!              |    /  \    |                  staged    between processes: like small, piece by piece, and an all-reduce of
//!            result 0   result 1   ..                     more than two members by shares; like large if all buffers are
//!                                                         registered in the sync segment's memory
//! ```
//!
//! An [`Exchange`] defines the computation: which block of which source, or which reduction tree over all sources, becomes which block of
//! which result. Every node of a tree is rounded, so the tree alone determines the result's bits.
//!
//! A member whose timeout expires before all members have arrived cancels a large exchange for all members; a small exchange stays
//! readable in the slots. If all have arrived, the member completes the exchange. So no buffer is accessed after its call has returned. A
//! process can end or stop in the middle: a member that stops waiting for this process marks the exchange as failed for all members and
//! detaches its own buffer from the other members.

mod barrier;
mod exchange;
mod fill;
mod formula;
#[cfg_attr(not(target_os = "linux"), path = "mapping_elsewhere.rs")]
mod mapping;
mod member;
mod memory;
mod pipe;
mod registered_buffer;
mod registered_buffers;
mod scratch;
mod sync;
mod sync_segment;

pub use barrier::{Stopped, WaitPolicy};
pub use exchange::{Exchange, Pattern};
pub use formula::{Formula, Term};
pub use member::{CallBuffers, Member};
pub use pipe::{Damaged, Pipe, Wants};
pub use registered_buffer::RegisteredBuffer;
pub use sync_segment::{Pace, SyncSegment};

#[cfg(test)]
mod tests;
