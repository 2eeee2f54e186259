//! The losses of another engine, drawn in one figure with those of a run.

use crate::cli::error::{CommandError, CommandResult};
use allfold_report::loss_curve::Course;
use serde::Deserialize;
use std::path::Path;

/// Reads another engine's losses, a line of JSON with `step` and `loss` for each step, under the file's name.
///
/// # Errors
/// The file cannot be read, or a line (named) is not such an object.
pub fn read(path: &Path) -> CommandResult<Course> {
    #[derive(Deserialize)]
    struct Line {
        step: f64,
        loss: f64,
    }
    let name = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|error| CommandError::usage(format!("{name}: {error}")))?;
    let line = |(at, line): (usize, &str)| {
        let Line { step, loss } = serde_json::from_str(line)
            .map_err(|error| CommandError::usage(format!("{name}, line {}: {error}", at + 1)))?;
        Ok((step, loss))
    };
    let steps = text.lines().enumerate().map(line).collect::<CommandResult<Vec<_>>>()?;
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    Ok((name, steps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_report::loss_curve::figure;

    #[test]
    fn another_engine_s_course_is_read_or_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("theirs.jsonl");
        std::fs::write(&path, "{\"step\": 0, \"loss\": 2.5}\n{\"step\": 1, \"loss\": 2.0}\n").unwrap();
        let course = read(&path).unwrap();
        assert_eq!(course, ("theirs".to_string(), vec![(0.0, 2.5), (1.0, 2.0)]));
        assert!(figure("mlp", vec![course]).unwrap().file("a run").contains("theirs"));
        std::fs::write(&path, "{\"step\": 0, \"loss\": 2.5}\n{\"step\": 1}\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("theirs.jsonl, line 2: missing field `loss`"), "{error}");
    }
}
