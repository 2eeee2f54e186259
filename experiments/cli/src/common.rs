//! Flags that every command has.

use std::path::PathBuf;

/// Flags of every command.
#[derive(clap::Args, Debug, Clone)]
pub struct Common {
    /// Append the run's records to FILE as JSON lines; `-` writes them to standard output, and the text to standard
    /// error
    #[arg(long, value_name = "FILE", help_heading = "Records")]
    pub json: Option<PathBuf>,
}
