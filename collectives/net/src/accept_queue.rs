//! Connections that arrive where ranks listen: each is heard by a task of its own until it has said who it is, and of too
//! many the oldest goes, so that incompatible peers keep nobody out.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// How many connections are heard at a time that have not said who they are.
pub const PENDING: usize = 512;

/// A listener, and the tasks of connections that have not said who they are.
pub struct AcceptQueue {
    listener: TcpListener,
    pending: VecDeque<AbortHandle>,
    most: usize,
    starved: Arc<AtomicBool>,
}

impl AcceptQueue {
    /// Of at most `most` connections at a time, [`PENDING`] for one. `starved` is true while there is no descriptor for who
    /// came last.
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
                    // Those that are pending will give some back.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    /// The task that hears a connection. Whether the oldest was dropped for it.
    pub fn hear(&mut self, task: AbortHandle) -> bool {
        self.pending.retain(|task| !task.is_finished());
        self.pending.push_back(task);
        if self.pending.len() <= self.most {
            return false;
        }
        self.pending.pop_front().inspect(AbortHandle::abort).is_some()
    }
}

/// How many descriptors this process may have.
pub fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
