//! The names of predictors on the command line.

use allfold_validation::predict::Predictor;
use clap::ValueEnum;

/// A predictor, as a flag names it.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(super) enum PredictorName {
    /// NCCL's choice as a schedule over the machine's links, simulated
    Simulated,
    /// The longest chain and the narrowest link of that schedule, in closed form: what calibration fits
    Physical,
    /// The time that NCCL's own tuner estimates; nothing is fitted
    ClosedForm,
}

impl PredictorName {
    /// The predictor of this name.
    pub(super) fn predictor(self) -> Predictor {
        match self {
            PredictorName::Simulated => Predictor::Simulated,
            PredictorName::Physical => Predictor::Physical,
            PredictorName::ClosedForm => Predictor::ClosedForm,
        }
    }
}
