//! What a rank printed on standard error that may be the cause of its end: its last line, and the first panic of a Rust program.
//!
//! ```text
//! thread 'main' (4711) panicked at src/main.rs:12:5:      the first line of the panic
//! assertion `left == right` failed                        its message
//!   left: 1                                               more of its message: lines that begin with white space
//!  right: 2
//! note: run with `RUST_BACKTRACE=1` ...                   the last line, which says nothing about the cause
//! ```

use crate::end::End;
use rustix::process::Signal;

/// What a rank says after another rank's number where that rank got the signal by which the run ends.
pub const WAS_ASKED: &str = " was asked to end by ";

/// The exit code of a Rust program whose main thread has panicked.
const PANICKED: i32 = 101;

/// The most bytes of a panic that are kept; a message between launchers carries fewer.
const LONGEST: usize = 512;

/// A rank's last line and its first panic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// The last line that is not empty, without white space around it.
    last: String,
    /// The first panic: the place and the message, in one line.
    panic: Option<String>,
    /// The line of the panic that is read next.
    next: Next,
}

/// Which line of the first panic comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    /// None: there was no panic so far, or all of its lines have come.
    #[default]
    None,
    Message,
    /// A line that belongs to the message only if it begins with white space.
    More,
}

impl Said {
    /// Adds a line.
    pub fn add(&mut self, line: &str) {
        let text = line.trim();
        match (&mut self.panic, self.next) {
            (None, _) => {
                self.panic = panic(text);
                self.next = if self.panic.is_some() { Next::Message } else { Next::None };
            }
            (Some(panic), Next::Message) => {
                if !text.is_empty() {
                    panic.push_str(&format!(" {text}"));
                }
                self.next = Next::More;
            }
            (Some(panic), Next::More)
                if !text.is_empty() && line.starts_with(' ') && panic.len() < LONGEST =>
            {
                panic.push_str(&format!(", {text}"));
            }
            _ => self.next = Next::None,
        }
        if !text.is_empty() {
            self.last = text.into();
        }
    }

    /// The line that explains this end best: the panic, if the panic ended the program, else the last line.
    pub fn cause(self, end: End) -> String {
        let notes = ["note: run with `RUST_BACKTRACE", "note: Some details are omitted"];
        let panicked = end == End::Code(PANICKED)
            || end == End::Signal(Signal::ABORT.as_raw())
            || notes.iter().any(|note| self.last.starts_with(note));
        self.panic.filter(|_| panicked).unwrap_or(self.last)
    }
}

/// The first line of a panic without the process's number; `None` for any other line.
fn panic(line: &str) -> Option<String> {
    let (thread, place) = line.strip_prefix("thread ")?.split_once(" panicked at ")?;
    let (name, id) = thread.rsplit_once(" (").unwrap_or((thread, ""));
    let name = if id.trim_end_matches(')').parse::<u64>().is_ok() { name } else { thread };
    Some(format!("thread {name} panicked at {place}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(lines: &str, end: End) -> String {
        let mut said = Said::default();
        lines.lines().for_each(|line| said.add(line));
        said.cause(end)
    }

    #[test]
    fn a_panic_is_the_cause_and_not_the_note_after_it() {
        let note = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace";
        let frames = "stack backtrace:\n   0: std::panicking::begin\n             at ./src/main.rs:12:5";
        let omitted =
            "note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.";
        let says = "thread 'main' panicked at src/main.rs:12:5: my bug";
        for first in [
            "thread 'main' (4711) panicked at src/main.rs:12:5:",
            "thread 'main' panicked at src/main.rs:12:5:",
        ] {
            for after in [note.to_string(), format!("{frames}\n{omitted}")] {
                let text = format!("step 3 of 9\n\n{first}\nmy bug\n{after}\n");
                assert_eq!(cause(&text, End::Code(101)), says);
                assert_eq!(cause(&text, End::Signal(6)), says);
                assert_eq!(cause(&text, End::Code(1)), says, "a wrapper has changed the exit code");
            }
        }
        let compared = format!(
            "thread 'a (b)' (7) panicked at a.rs:1:2:\nassertion `left == right` failed\n  left: 1\n right: 2\n{note}"
        );
        let says = "thread 'a (b)' panicked at a.rs:1:2: assertion `left == right` failed, left: 1, right: 2";
        assert_eq!(cause(&compared, End::Code(101)), says);
    }

    #[test]
    fn the_last_line_is_the_cause_where_no_panic_ended_the_program() {
        let python = "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\nValueError: my bug\n\n";
        assert_eq!(cause(python, End::Code(1)), "ValueError: my bug");
        let caught = "thread 'worker' panicked at a.rs:1:2:\nno\nnote: run with `RUST_BACKTRACE=1`\nerror: a worker failed";
        assert_eq!(cause(caught, End::Code(1)), "error: a worker failed");
        assert_eq!(cause("", End::Code(101)), "");
    }
}
