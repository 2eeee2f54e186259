//! Why a command ends early, and with which exit code.
//!
//! ```text
//! 0  all went well
//! 1  a check failed, or a run did
//! 2  a wrong flag, file or value
//! 65 a run failed, and another start would fail in the same way: it diverged
//! 141 the reader of the output has closed it: 128 + SIGPIPE, as a shell reports for a program that this signal ends
//! ```

use crate::printable::message;
use std::fmt;

/// The error that ends a command: one line for the user, and an exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandError {
    /// A wrong flag, file or value: says what is wrong and what would be right. Exit code 2.
    Usage(String),
    /// A check failed; carries the counterexample. Exit code 1.
    Check(String),
    /// The run itself failed. Exit code 1.
    Run(String),
    /// The run itself failed, and another start would fail in the same way, as after a divergence. Exit code 65, which few
    /// programs use: a launcher does not start the ranks again.
    Lasting(String),
    /// A launched job failed, by a rank, a node or a signal: the message, and the launcher's exit code.
    Launched(String, u8),
    /// A signal ended the run early: what is left of it, and the exit code that a shell reports for the signal.
    Interrupted(String, u8),
    /// The reader of the output has closed it, and output is lost. Exit code 141, no message.
    Closed,
}

/// The result of a command.
pub type CommandResult<T = ()> = Result<T, CommandError>;

impl CommandError {
    /// An error of usage: a wrong flag, file or value.
    pub fn usage(what: impl fmt::Display) -> CommandError {
        CommandError::Usage(one_line(&what.to_string()))
    }

    /// The error of a check that failed.
    pub fn check(what: impl fmt::Display) -> CommandError {
        CommandError::Check(one_line(&what.to_string()))
    }

    /// The error of a run that failed.
    pub fn run(what: impl fmt::Display) -> CommandError {
        CommandError::Run(one_line(&what.to_string()))
    }

    /// The error of a run that failed and would fail again.
    pub fn lasting(what: impl fmt::Display) -> CommandError {
        CommandError::Lasting(one_line(&what.to_string()))
    }

    /// The exit code of the process.
    pub fn code(&self) -> u8 {
        match self {
            CommandError::Usage(_) => 2,
            CommandError::Lasting(_) => 65,
            CommandError::Check(_) | CommandError::Run(_) => 1,
            CommandError::Launched(_, code) | CommandError::Interrupted(_, code) => *code,
            CommandError::Closed => 128 + 13,
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandError::Usage(what)
            | CommandError::Run(what)
            | CommandError::Lasting(what)
            | CommandError::Launched(what, _) => write!(f, "error: {}", message(what)),
            CommandError::Interrupted(what, _) => write!(f, "interrupted: {}", message(what)),
            CommandError::Check(what) => write!(f, "check failed: {}", message(what)),
            CommandError::Closed => Ok(()),
        }
    }
}

/// Errors that the user can correct are usage errors; all others are failed runs.
impl From<allfold_collectives::Error> for CommandError {
    fn from(error: allfold_collectives::Error) -> CommandError {
        use allfold_collectives::Error;
        match error {
            Error::Argument(_) | Error::Registry(_) | Error::Sim(_) | Error::Environment { .. } => {
                CommandError::usage(error)
            }
            Error::AuthFailed { .. } => CommandError::usage(error),
            Error::Rendezvous { ref cause, .. } if cause.is_lasting() => CommandError::usage(error),
            error => CommandError::run(error),
        }
    }
}

/// A missing library or device is a usage error, because another try would fail in the same way.
#[cfg(feature = "cuda")]
impl From<allfold_cuda::Error> for CommandError {
    fn from(error: allfold_cuda::Error) -> CommandError {
        match error {
            allfold_cuda::Error::Missing { .. } | allfold_cuda::Error::NoDevice(_) => {
                CommandError::usage(error)
            }
            error => CommandError::run(error),
        }
    }
}

impl From<allfold_trainer::Error> for CommandError {
    fn from(error: allfold_trainer::Error) -> CommandError {
        use allfold_trainer::Error;
        match error {
            // A restart would compute the same numbers and diverge again. The other ranks see the diverged rank's abort.
            Error::NotFinite { .. } | Error::Collective(allfold_collectives::Error::Aborted { .. }) => {
                CommandError::lasting(error)
            }
            Error::Config(_) | Error::Network(_) | Error::Data(_) | Error::Checkpoint(_) => {
                CommandError::usage(error)
            }
            Error::Collective(error) => error.into(),
            #[cfg(feature = "cuda")]
            Error::Device(error) => error.into(),
            error => CommandError::run(error),
        }
    }
}

impl From<allfold_launch::Error> for CommandError {
    fn from(error: allfold_launch::Error) -> CommandError {
        match error {
            allfold_launch::Error::Usage(what) => CommandError::usage(what),
            allfold_launch::Error::Rank { text, code } => CommandError::Launched(text, code),
            allfold_launch::Error::Closed => CommandError::Closed,
            error => CommandError::run(error),
        }
    }
}

impl From<allfold_report::Error> for CommandError {
    fn from(error: allfold_report::Error) -> CommandError {
        match error {
            allfold_report::Error::Empty => CommandError::usage(error),
            error => CommandError::run(error),
        }
    }
}

/// Joins the lines of a message, such as that of a parser, into one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let failure = CommandError::usage("TOML parse error\n  |\n1 | ranks = x\n");
        assert_eq!(failure.to_string(), "error: TOML parse error | 1 | ranks = x");
    }

    #[test]
    fn what_was_lost_meanwhile_may_be_tried_again_and_what_never_fitted_may_not() {
        use allfold_trainer::Error;
        assert!(matches!(CommandError::from(Error::Data("no such file".into())), CommandError::Usage(_)));
        assert!(matches!(CommandError::from(Error::Lost("no such file".into())), CommandError::Run(_)));
    }
}
