//! The error of a file of runs: its place, and what was expected there.

use allfold_sim::expected;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why a file gives no run. Shown as `FILE:LINE:COLUMN: what was expected`, like the messages of compilers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    file: Option<PathBuf>,
    /// Line and column, both from 1.
    at: Option<(usize, usize)>,
    what: String,
}

impl Flaw {
    /// The file as a whole is wrong.
    pub fn whole(what: impl fmt::Display) -> Flaw {
        Flaw { file: None, at: None, what: what.to_string() }
    }

    /// A flaw at a line and a column, both counted from 1.
    pub fn at(line: usize, column: usize, what: impl fmt::Display) -> Flaw {
        Flaw { at: Some((line, column)), ..Flaw::whole(what) }
    }

    /// The flaw that serde reports, without the place that serde appends to its message.
    pub fn json(error: serde_json::Error) -> Flaw {
        let said = error.to_string();
        let what = expected(said.rsplit_once(" at line ").map_or(said.as_str(), |(what, _)| what));
        match error.line() {
            0 => Flaw::whole(what),
            line => Flaw::at(line, error.column(), what),
        }
    }

    /// This flaw with the name of its file.
    pub fn of(self, path: &Path) -> Flaw {
        Flaw { file: Some(path.to_path_buf()), ..self }
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.at) {
            (Some(file), Some((line, column))) => write!(f, "{}:{line}:{column}: ", file.display())?,
            (Some(file), None) => write!(f, "{}: ", file.display())?,
            (None, Some((line, column))) => write!(f, "line {line}, column {column}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for Flaw {}
