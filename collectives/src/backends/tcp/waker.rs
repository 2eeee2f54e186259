//! Wakes a rank's thread that waits for its sockets, when another thread has an event for the rank.

use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A count of events, and a descriptor that becomes readable if there is a new event while a thread sleeps.
pub(super) struct Waker {
    news: AtomicU64,
    asleep: AtomicBool,
    /// Readable after a write to itself or, on systems without such a descriptor, to the other end.
    event: OwnedFd,
    other_end: Option<OwnedFd>,
}

#[cfg(target_os = "linux")]
fn event() -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok((eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?, None))
}

#[cfg(not(target_os = "linux"))]
fn event() -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let (here, there) = std::os::unix::net::UnixStream::pair()?;
    here.set_nonblocking(true)?;
    there.set_nonblocking(true)?;
    Ok((here.into(), Some(there.into())))
}

impl Waker {
    pub fn new() -> Result<Waker> {
        let failed = |error: io::Error| Error::System(format!("cannot create an event descriptor: {error}"));
        let (event, other_end) = event().map_err(failed)?;
        Ok(Waker { news: AtomicU64::new(0), asleep: AtomicBool::new(false), event, other_end })
    }

    /// Announces an event, which must be stored before this call.
    pub fn ring(&self) {
        self.news.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            // The write fails only if the descriptor is full of events that no sleep has read, and then it is readable.
            let _ = rustix::io::write(self.other_end.as_ref().unwrap_or(&self.event), &1u64.to_ne_bytes());
        }
    }

    pub fn news(&self) -> u64 {
        self.news.load(Ordering::SeqCst)
    }

    /// Announces a sleep. Returns whether there was no event since `seen`, so that the thread may sleep.
    pub fn prepare_sleep(&self, seen: u64) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        self.news() == seen
    }

    /// Sleeps until there are more events than `seen`, or `timeout` is over.
    pub fn sleep(&self, seen: u64, timeout: Duration) {
        if self.prepare_sleep(seen) {
            let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
            let limit = Timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos().into() };
            let mut event = [PollFd::new(&self.event, PollFlags::IN)];
            // A signal may end the sleep early; the thread then checks again.
            let _ = poll(&mut event, Some(&limit));
        }
        self.finish_sleep();
    }

    pub fn finish_sleep(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
