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
use allfold_nccl_model::physics::{PARAMETERS, Parameters};
use allfold_sim::suggest::unknown;
use serde::{Deserialize, Serialize};

/// What `calibrate` writes and `validate` reads.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterFile {
    /// Runs that took part in the fit: they never count as validated by it.
    #[serde(default)]
    pub runs: Vec<String>,
    /// Systems that took part.
    #[serde(default)]
    pub systems: Vec<String>,
    /// The parameters; those that are missing keep their values before fitting.
    #[serde(default)]
    pub parameter: Vec<FittedParameter>,
}

/// One parameter.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedParameter {
    /// The parameter's name.
    pub name: String,
    /// The parameter's value.
    pub value: f64,
    /// `us`, `GB/s` or `times`.
    #[serde(default)]
    pub unit: String,
    /// Lower end of its 95 % interval.
    #[serde(default)]
    pub low: f64,
    /// Upper end.
    #[serde(default)]
    pub high: f64,
    /// Where the value is from.
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
        ParameterFile::parse(PUBLISHED)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// What TOML says, with its line; a name that is no parameter, with the nearest; a value that is not above 0.
    pub fn parse(text: &str) -> Result<ParameterFile, String> {
        let file: ParameterFile = toml::from_str(text).map_err(|error| error.to_string())?;
        for entry in &file.parameter {
            let names: Vec<&str> = PARAMETERS.iter().map(|parameter| parameter.name).collect();
            if !names.contains(&&*entry.name) {
                return Err(unknown("parameter", &entry.name, &names));
            }
            if !(entry.value > 0.0 && entry.value.is_finite()) {
                return Err(format!("parameter `{}` is {}; give a number above 0", entry.name, entry.value));
            }
        }
        Ok(file)
    }

    /// The parameters as the model takes them.
    pub fn parameters(&self) -> Parameters {
        let mut parameters = Parameters::default();
        for (number, known) in PARAMETERS.iter().enumerate() {
            if let Some(entry) = self.parameter.iter().find(|entry| entry.name == known.name) {
                parameters.set(number, entry.value);
            }
        }
        parameters
    }

    /// What a fit found. A parameter about which the runs said nothing keeps its source.
    pub fn of(fit: &Fit, intervals: &[(f64, f64)], runs: Vec<String>) -> ParameterFile {
        let round = |value: f64| (value * 1e4).round() / 1e4;
        let entries = PARAMETERS.iter().enumerate().map(|(number, known)| {
            let (value, std_dev) = (fit.parameters.at(number), fit.std_dev[number]);
            let (low, high) = intervals.get(number).copied().unwrap_or((value, value));
            let told = std_dev < 0.95 * known.std_dev;
            let source = if told {
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
        ParameterFile { runs, systems: fit.systems.clone(), parameter: entries.collect() }
    }
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
        assert!(said("[[parameter]]\nname = \"hop\"\nvalue = -1.0").contains("above 0"));
        assert!(said("runs = 3").contains("line 1"));
    }
}
