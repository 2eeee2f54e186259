//! Work of a foreign library on a stream of the shim: what a stand-in for NCCL queues.

use allfold_kernels::cuda::MemoryAccess;
use std::sync::Arc;

/// How far a piece of foreign work is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The task waits for something outside of its stream.
    Busy,
    /// The task has ended; the stream continues.
    Done,
    /// The task has broken its device: every later call on the stream fails with this message.
    Failed(String),
}

/// Asked until foreign work has ended. It is called under the shim's lock, and must not call the shim.
pub type Poll = Box<dyn FnMut() -> Progress + Send>;

/// Work of a foreign library.
#[derive(Clone)]
pub struct Foreign {
    /// The task's name in messages.
    pub name: &'static str,
    /// The memory that it reads and writes.
    pub accesses: Vec<MemoryAccess>,
    /// Called whenever the stream comes to it, with whether a graph runs it.
    pub start: Arc<dyn Fn(bool) -> Poll + Send + Sync>,
    /// Held by every graph that contains this work, until the graph is forgotten.
    pub graphs: Arc<()>,
}
