//! Parameters as a TOML file: each with its value, its interval and its source, and which runs they were fitted to.
//!
//! ```toml
//! runs = ["gh200x4_2n_alps_all_reduce"]
//! [[parameter]]
//! name = "hop.Slingshot"
//! value = 0.9
//! unit = "times"
//! low = 0.6
//! high = 1.3
//! source = "fitted from gh200 alps"
//! ```

use crate::fit::Fit;
use crate::prepare::Prepared;
use crate::spread::{Spread, spreads, unseen};
use allfold_nccl_model::physics::{PARAMETERS, Parameters, Terms};
use allfold_sim::suggest::unknown;
use allfold_sim::{expected, line_and_column};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// The parameter file that `calibrate` writes and `validate` reads.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterFile {
    /// Runs that took part in the fit: they never count as validated by it.
    #[serde(default)]
    pub runs: Vec<String>,
    /// The rows of these runs, each run as [`crate::runs::Run::fingerprint`] in hexadecimal digits: a copy of a run has other names.
    #[serde(default)]
    pub rows: Vec<String>,
    /// The systems of the runs.
    #[serde(default)]
    pub systems: Vec<String>,
    /// The parameters; those that are missing keep their values before fitting.
    #[serde(default)]
    pub parameter: Vec<FittedParameter>,
    /// The intervals of predictions, from systems left out of the fit; empty where there was one system only.
    #[serde(default)]
    pub spread: Vec<Spread>,
}

/// A fitted parameter and its interval.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedParameter {
    /// The parameter's name.
    pub name: String,
    /// The parameter's value.
    pub value: f64,
    /// The unit: `us`, `GB/s` or `times`.
    #[serde(default)]
    pub unit: String,
    /// The lower end of the parameter's 95 % interval.
    #[serde(default)]
    pub low: f64,
    /// The upper end of the interval.
    #[serde(default)]
    pub high: f64,
    /// The origin of the value.
    #[serde(default)]
    pub source: String,
}

/// The parameters that ship with Allfold, fitted to published runs.
const PUBLISHED: &str = include_str!("published.toml");

impl ParameterFile {
    /// The parameters that ship with Allfold.
    ///
    /// # Errors
    /// Only if the shipped file were broken, which a test rules out.
    pub fn published() -> Result<ParameterFile, String> {
        static READ: LazyLock<Result<ParameterFile, String>> =
            LazyLock::new(|| ParameterFile::parse(PUBLISHED));
        READ.clone()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Text that is no such TOML file, with the line; an unknown parameter, with the nearest name; a value that is not 1e-9 to 1e9.
    pub fn parse(text: &str) -> Result<ParameterFile, String> {
        let file: ParameterFile = toml::from_str(text).map_err(|error| {
            let (line, column) = line_and_column(text, error.span().map_or(0, |span| span.start));
            format!("line {line}, column {column}: {}", expected(error.message()))
        })?;
        for entry in &file.parameter {
            let names: Vec<&str> = PARAMETERS.iter().map(|parameter| parameter.name).collect();
            if !names.contains(&&*entry.name) {
                return Err(unknown("parameter", &entry.name, &names));
            }
            // Times in microseconds, bandwidths in GB/s and factors beyond these are none of a machine.
            if !(1e-9..=1e9).contains(&entry.value) {
                return Err(format!(
                    "parameter `{}` is {:e}; give a number from 1e-9 to 1e9",
                    entry.name, entry.value
                ));
            }
        }
        Ok(file)
    }

    /// Whether a run, or a copy of it, took part in the fit.
    pub fn has(&self, run: &Prepared) -> bool {
        self.runs.contains(&run.name) || self.rows.contains(&fingerprint(run))
    }

    /// The parameters in the form that the model takes.
    pub fn parameters(&self) -> Parameters {
        let mut parameters = Parameters::default();
        for (number, known) in PARAMETERS.iter().enumerate() {
            if let Some(entry) = self.parameter.iter().find(|entry| entry.name == known.name) {
                parameters.set(number, entry.value);
            }
        }
        parameters
    }

    /// The intervals of predictions by these parameters: the file's own, or those of the parameters that ship.
    pub fn spreads(&self) -> Vec<Spread> {
        let own = Some(&self.spread).filter(|own| !own.is_empty()).cloned();
        own.or_else(|| ParameterFile::published().ok().map(|file| file.spread)).unwrap_or_default()
    }

    /// The parameters of a fit. A parameter that the runs do not determine keeps its source.
    pub fn of(fit: &Fit, intervals: &[(f64, f64)], runs: &[Prepared]) -> ParameterFile {
        let round = |value: f64| (value * 1e4).round() / 1e4;
        let entries = PARAMETERS.iter().enumerate().map(|(number, known)| {
            let value = fit.parameters.at(number);
            let (low, high) = intervals.get(number).copied().unwrap_or((value, value));
            let source = if fit.tells(number) {
                format!("fitted from {} systems; before: {}", fit.systems.len(), known.source)
            } else {
                known.source.to_string()
            };
            FittedParameter {
                name: known.name.into(),
                value: round(value),
                unit: known.unit.into(),
                low: round(low),
                high: round(high),
                source,
            }
        });
        ParameterFile {
            runs: runs.iter().map(|run| run.name.clone()).collect(),
            rows: runs.iter().map(fingerprint).collect(),
            systems: fit.systems.clone(),
            parameter: entries.collect(),
            spread: spreads(&unseen(runs, Terms::default()), None).into_iter().map(Spread::rounded).collect(),
        }
    }
}

fn fingerprint(run: &Prepared) -> String {
    format!("{:016x}", run.fingerprint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_parameters_are_read_and_name_their_runs() {
        let file = ParameterFile::published().unwrap();
        assert!(file.runs.len() > 50 && file.parameter.len() == PARAMETERS.len());
        assert!(file.parameter.iter().all(|entry| entry.low <= entry.value && entry.value <= entry.high));
    }

    #[test]
    fn a_file_that_says_nonsense_is_refused_in_a_line() {
        let said = |text: &str| ParameterFile::parse(text).unwrap_err();
        assert!(said("[[parameter]]\nname = \"extr\"\nvalue = 1.0").contains("did you mean `extra`"));
        assert!(said("[[parameter]]\nname = \"hop\"\nvalue = -1.0").contains("1e-9 to 1e9"));
        assert!(said("[[parameter]]\nname = \"hop\"\nvalue = 1e308").contains("`hop` is 1e308; give"));
        assert_eq!(said("runs = 3"), "line 1, column 8: invalid type: integer `3`, expected a list");
    }
}
