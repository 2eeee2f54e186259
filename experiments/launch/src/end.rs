//! How a rank ended, and the exit code that follows.

use rustix::process::Signal;
use signal_hook::low_level;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process returned this code.
    Code(i32),
    /// A signal of this number killed the rank.
    Signal(i32),
}

impl End {
    /// The end that the system reports.
    pub fn of(status: ExitStatus) -> End {
        status.signal().map_or_else(|| End::Code(status.code().unwrap_or(1)), End::Signal)
    }

    /// Whether the rank succeeded.
    pub fn is_good(self) -> bool {
        self == End::Code(0)
    }

    /// Whether another start could end differently. Code 2 means that a flag, a file or a value is wrong, such as a folder with
    /// another run's checkpoints; 65 that a run of `allfold train` diverged; 126 and 127 that the program cannot be run or does not
    /// exist.
    pub fn may_differ(self) -> bool {
        !matches!(self, End::Code(2 | 65 | 126 | 127))
    }

    /// Whether the rank was ended by a signal that others send and that no program raises by its own mistakes. The line that the rank
    /// printed last is then not the cause.
    pub fn is_from_outside(self) -> bool {
        let outside = [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
        outside.iter().any(|signal| self == End::Signal(signal.as_raw()))
    }

    /// The launcher's exit code for this end, by the convention of shells.
    pub fn code(self) -> u8 {
        match self {
            End::Code(code) => u8::try_from(code).unwrap_or(1),
            End::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
        }
    }

    /// The end as two numbers of a message: its kind, and the exit code or signal.
    pub(super) fn parts(self) -> (u32, u32) {
        match self {
            End::Code(code) => (0, code.unsigned_abs()),
            End::Signal(signal) => (1, signal.unsigned_abs()),
        }
    }

    pub(super) fn of_parts(kind: u32, number: u32) -> End {
        let number = i32::try_from(number).unwrap_or(1);
        if kind == 1 { End::Signal(number) } else { End::Code(number) }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Code(code) => write!(f, "exited with {code}"),
            End::Signal(signal) => write!(f, "killed by {}", signal_name(*signal)),
        }
    }
}

/// The name of the signal with this number, such as `SIGTERM`; `signal 34` for a signal without a name.
pub(super) fn signal_name(number: i32) -> String {
    low_level::signal_name(number).map_or_else(|| format!("signal {number}"), String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_read_as_people_know_them() {
        assert_eq!(End::Signal(9).to_string(), "killed by SIGKILL");
        assert_eq!(End::Signal(15).to_string(), "killed by SIGTERM");
        let named = [(12, "SIGUSR2"), (6, "SIGABRT"), (14, "SIGALRM"), (26, "SIGVTALRM"), (34, "signal 34")];
        for (number, name) in named {
            assert_eq!(End::Signal(number).to_string(), format!("killed by {name}"));
        }
        assert_eq!(End::Code(3).to_string(), "exited with 3");
        assert_eq!((End::Signal(9).code(), End::Code(3).code(), End::Code(-1).code()), (137, 3, 1));
    }
}
