//! The predictors that are compared with measurements.

use crate::prepare::PreparedRow;
use allfold_nccl_model::physics::{Parameters, Terms, closed, simulated};

/// A way to predict a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Predictor {
    /// NCCL's choice as a schedule over the machine's links, simulated
    Simulated,
    /// The longest chain and the narrowest link of that schedule: what calibration fits
    Physical,
    /// The time that NCCL's own tuner computes, with nothing fitted
    ClosedForm,
}

impl Predictor {
    /// All predictors; the first one decides the score.
    pub const ALL: [Predictor; 3] = [Predictor::Simulated, Predictor::Physical, Predictor::ClosedForm];

    /// The name in tables and records.
    pub const fn name(self) -> &'static str {
        match self {
            Predictor::Simulated => "simulated",
            Predictor::Physical => "physical",
            Predictor::ClosedForm => "closed-form",
        }
    }

    /// The predicted microseconds of a row.
    ///
    /// # Errors
    /// Where the simulation fails.
    pub fn predict(self, row: &PreparedRow, parameters: &Parameters, terms: Terms) -> Result<f64, String> {
        match self {
            Predictor::Simulated => simulated(&row.case, parameters, terms)
                .map(|found| found.time_us)
                .map_err(|error| error.to_string()),
            Predictor::Physical => Ok(closed(&row.case, parameters, terms)),
            Predictor::ClosedForm => Ok(row.case.tuner_us),
        }
    }
}
