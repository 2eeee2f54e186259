//! The simulator's errors: faulty topologies, fault rules, device models and files.

/// An error of the simulator. Each message says what is wrong and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A topology that cannot be built as described.
    #[error("topology: {0}")]
    Topology(String),
    /// A file that cannot be parsed.
    #[error("{path}:{line}:{column}: {what}")]
    Parse {
        /// The file, as the user named it.
        path: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong at this line and column, and what would be right.
        what: String,
    },
    /// A fault rule that cannot be read or does not fit the topology.
    #[error("fault rule: {0}")]
    Fault(String),
    /// A compute device that has no preset.
    #[error("device: {0}")]
    Device(String),
    /// A file that cannot be read or written, or whose name has an unknown ending.
    #[error("{path}: {what}")]
    File {
        /// The file, as the user named it.
        path: String,
        /// The operating system's error message, or what is wrong with the file or its name.
        what: String,
    },
}
