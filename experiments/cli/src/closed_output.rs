//! A standard output that was closed when the process began, as by `>&-`. Rust opens the null device in its place before `main`, so
//! that everything could be written and nothing be read: whether it was open is looked at before that.

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

/// Standard output, or what refuses every write if there was none.
pub fn stdout() -> Box<dyn Write> {
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
