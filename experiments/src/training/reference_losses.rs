//! The losses of another program's run, drawn in one figure with those of this run.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_report::loss_curve::LossSeries;
use allfold_report::plots::Origin;
use allfold_sim::{json_error, read_text_at_most};
use serde::Deserialize;
use std::path::Path;

/// The greatest length of a file in bytes: some hundred thousand steps.
const LONGEST: u64 = 16 << 20;

/// Reads another engine's losses, a line of JSON with `step` and `loss` for each step, under the file's name.
///
/// # Errors
/// The file cannot be read, or a line, which the error names, is not such an object.
pub fn read(path: &Path) -> CommandResult<LossSeries> {
    #[derive(Deserialize)]
    struct Line {
        step: f64,
        loss: f64,
    }
    let name = path.display();
    let text = read_text_at_most(path, LONGEST, "a file of losses")
        .map_err(|error| CommandError::usage(format!("{name}: {error}")))?;
    let line = |(at, line): (usize, &str)| {
        let Line { step, loss } = serde_json::from_str(line)
            .map_err(|error| json_error(&error.to_string(), Some(at + 1)))
            .map_err(|error| {
                CommandError::usage(format!("{name}: {error}; a line is {{\"step\": 0, \"loss\": 2.5}}"))
            })?;
        Ok((step, loss))
    };
    let steps = text.lines().enumerate().map(line).collect::<CommandResult<Vec<_>>>()?;
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    // The file does not say what the engine ran on; the marker of a CPU makes no claim about a GPU.
    Ok(LossSeries { name, origin: Origin::Cpu, samples_per_step: None, steps })
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_report::loss_curve::curves;

    #[test]
    fn another_engine_s_course_is_read_or_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("theirs.jsonl");
        std::fs::write(&path, "{\"step\": 0, \"loss\": 2.5}\n{\"step\": 1, \"loss\": 2.0}\n").unwrap();
        let course = read(&path).unwrap();
        assert_eq!((&*course.name, &*course.steps), ("theirs", &[(0.0, 2.5), (1.0, 2.0)][..]));
        assert!(curves("mlp", vec![course]).draw().unwrap().file("a run").contains("theirs"));
        std::fs::write(&path, "{\"step\": 0, \"loss\": 2.5}\n{\"step\": 1}\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(
            error.contains("theirs.jsonl: line 2, column 11: missing field `loss`; a line is {"),
            "{error}"
        );
    }
}
