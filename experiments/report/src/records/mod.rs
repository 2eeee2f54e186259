//! What a run leaves behind: one JSON object per line, schema 2.
//!
//! ```text
//! {"schema":2,"kind":"collective","measured":true, ...the record's fields..., "commit":..,"host":..,"seed":..,"command":..}
//! ```
//!
//! There is one Rust type per kind, and two where a kind can be measured or simulated. A reader names a type
//! ([`Records::all`]), so that no simulated record can appear in a column of measured ones.
//! Tables, plots and the report are made from these records alone.

mod collective;
mod diff;
mod explained;
mod faults;
mod kinds;
mod lines;
mod machine;
mod planning;
mod proof;
mod training;
mod triage;
mod validation;
mod waiting;
mod why;

pub use collective::{CollectiveCall, MeasuredCollective, SimulatedCollective};
pub use diff::RowChange;
pub use explained::TimeSpent;
pub use faults::FaultSchedules;
pub use kinds::RecordKind;
pub use lines::{Records, SCHEMA, Stamp, line};
pub use machine::{DoctorFinding, Limit, MachineListed, MeasuringMachine, SimulatorSpeed};
pub use planning::{PlannedLayout, PlannedRun};
pub use proof::{ProofRecord, Shown};
pub use training::{
    Breakdown, BucketLife, ComparedStrategy, EpochScores, LayerPasses, LeftOutStrategy, MeasuredComparison,
    MeasuredScale, MeasuredStep, Parity, RankMemory, RunProgress, ScalePoint, ScalingRow, Setup,
    SimulatedComparison, SimulatedScale, SimulatedStep, TimelineSpan, TrainingEnd, TrainingStep, hidden_us,
};
pub use triage::{HangJudged, TriageFound, TriageSpan};
pub use validation::{TimeInterval, TrainingScore, Validated, ValidatedTraining, ValidationScore};
pub use waiting::{WaitingByStep, WaitingFor, awaited_most};
pub use why::SlowRunCause;
