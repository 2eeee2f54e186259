//! Incoming connections. Each connection has a task until it has authenticated itself. If too many are pending, the oldest is dropped, so
//! that incompatible peers cannot keep ranks out.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Limit on connections that have not authenticated themselves yet.
pub const PENDING: usize = 512;

/// A listener and the tasks of its unauthenticated connections.
pub struct AcceptQueue {
    listener: TcpListener,
    pending: VecDeque<AbortHandle>,
    most: usize,
    starved: Arc<AtomicBool>,
}

impl AcceptQueue {
    /// An accept queue with at most `most` pending connections, for example [`PENDING`]. `starved` is true while the process has
    /// no descriptor left for the next connection.
    pub fn at(listener: TcpListener, most: usize, starved: Arc<AtomicBool>) -> AcceptQueue {
        AcceptQueue { listener, pending: VecDeque::new(), most, starved }
    }

    /// The next connection.
    pub async fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => {
                    self.starved.store(false, Ordering::Relaxed);
                    return accepted;
                }
                Err(error) => {
                    let out = matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE));
                    self.starved.fetch_or(out, Ordering::Relaxed);
                    // A lack of descriptors ends when pending connections end; other errors are tried again after the same pause.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    /// Adds the task of a connection. Returns whether the oldest connection was dropped to make space for it.
    pub fn hear(&mut self, task: AbortHandle) -> bool {
        self.pending.retain(|task| !task.is_finished());
        self.pending.push_back(task);
        if self.pending.len() <= self.most {
            return false;
        }
        self.pending.pop_front().inspect(AbortHandle::abort).is_some()
    }
}

/// This process's limit on descriptors.
pub fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
