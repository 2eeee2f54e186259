//! Work of a foreign library on a stream of the shim, such as work that a stand-in for NCCL queues.

use allfold_cuda::MemoryAccess;
use std::sync::Arc;

/// The progress of a piece of foreign work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The task waits for an event outside of its stream.
    Busy,
    /// The task has ended; the stream continues.
    Done,
    /// The task has failed: every later call on the stream fails with this message.
    Failed(String),
}

/// A function that is called until foreign work has ended. It is called under the shim's lock, and must not call the shim.
pub type Poll = Box<dyn FnMut() -> Progress + Send>;

/// A task of a foreign library.
#[derive(Clone)]
pub struct Foreign {
    /// The task's name in messages.
    pub name: &'static str,
    /// The memory that the task reads and writes.
    pub accesses: Vec<MemoryAccess>,
    /// Called whenever the stream reaches the task; the argument is whether a graph runs the task.
    pub start: Arc<dyn Fn(bool) -> Poll + Send + Sync>,
    /// A reference that every graph with this task holds until the graph is destroyed.
    pub graphs: Arc<()>,
}
