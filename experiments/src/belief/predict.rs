//! The predictors that are held against measurements.

use super::prepare::Prediction;
use crate::cli::failure::{Failure, Outcome};
use allfold_nccl_model::physics::{Parameters, Terms, closed, simulated};
use clap::ValueEnum;

/// A way to predict a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Predictor {
    /// NCCL's choice as a schedule over the machine's links, simulated
    Simulated,
    /// The longest chain and the narrowest link of that schedule: what calibration fits
    Physical,
    /// What NCCL's tuner believes itself, nothing fitted
    ClosedForm,
}

impl Predictor {
    /// The name in tables and records.
    pub const fn name(self) -> &'static str {
        match self {
            Predictor::Simulated => "simulated",
            Predictor::Physical => "physical",
            Predictor::ClosedForm => "closed-form",
        }
    }

    /// Microseconds of a row.
    ///
    /// # Errors
    /// Where the simulation fails.
    pub fn predict(self, row: &Prediction, parameters: &Parameters, terms: Terms) -> Outcome<f64> {
        match self {
            Predictor::Simulated => {
                simulated(&row.case, parameters, terms).map(|found| found.time_us).map_err(Failure::run)
            }
            Predictor::Physical => Ok(closed(&row.case, parameters, terms)),
            Predictor::ClosedForm => Ok(row.case.tuner_us),
        }
    }
}
