//! Calls of Linux that leave no process of a job behind. Elsewhere a launcher refuses to start.

use rustix::process::Signal;
use std::io;

/// Makes this process the parent of its descendants whose own parents have ended.
#[cfg(target_os = "linux")]
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Asks the system to send this process a signal when its parent ends.
#[cfg(target_os = "linux")]
pub(crate) fn at_parent_s_end(signal: Signal) -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(signal))?)
}

#[cfg(not(target_os = "linux"))]
fn unsupported() -> io::Result<()> {
    let why = "only Linux ends a job's processes with their launcher; run the ranks as threads (--backend threads), or on Linux";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn adopt_orphans() -> io::Result<()> {
    unsupported()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn at_parent_s_end(_signal: Signal) -> io::Result<()> {
    unsupported()
}
