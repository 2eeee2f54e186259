//! A standard output that was closed when the process began, as by `>&-`. Rust opens the null device in its place before `main`, and
//! every write to the null device succeeds, so the check of standard output runs before Rust's own start.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs before `main` and Rust's own start.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "the linker calls what this section lists")]
#[used]
// SAFETY: the section holds pointers to functions of this type. This one makes a system call and stores a flag.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        CLOSED.store(rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_err(), Ordering::Relaxed);
    }
    look
};

/// Why nothing can be written to standard output, if that is known without a write: it was closed when the process began, or it is the
/// device that is always full.
pub fn lost() -> Option<io::Error> {
    let is_full = || {
        let about = rustix::fs::fstat(rustix::stdio::stdout()).ok()?;
        (about.st_rdev == rustix::fs::makedev(1, 7)).then_some(rustix::io::Errno::NOSPC)
    };
    let errno = if CLOSED.load(Ordering::Relaxed) { Some(rustix::io::Errno::BADF) } else { is_full() };
    errno.map(io::Error::from)
}

/// Standard output; if it was closed when the process began, a writer that refuses every write.
pub fn stdout() -> Box<dyn Write + Send> {
    match CLOSED.load(Ordering::Relaxed) {
        true => Box::new(Closed),
        false => Box::new(io::stdout()),
    }
}

struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(rustix::io::Errno::BADF.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
