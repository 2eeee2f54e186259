//! Calls of Linux that leave no process of a job behind. Elsewhere a launcher refuses to start.

use std::io;

/// Makes this process the parent of its descendants whose own parents have ended.
#[cfg(target_os = "linux")]
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Asks the system to kill this process when its parent ends.
#[cfg(target_os = "linux")]
pub(crate) fn end_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?)
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
pub(crate) fn end_with_parent() -> io::Result<()> {
    unsupported()
}
