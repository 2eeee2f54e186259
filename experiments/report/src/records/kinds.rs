//! The kinds of records.

use super::collective::{MeasuredCollective, SimulatedCollective};
use super::diff::RowChange;
use super::explained::TimeSpent;
use super::faults::FaultSchedules;
use super::machine::{DoctorFinding, Limit, MachineListed, MeasuringMachine, SimulatorSpeed};
use super::planning::{PlannedLayout, PlannedRun};
use super::proof::{ProofRecord, Shown};
use super::training::{
    ComparedStrategy, LayerPasses, LeftOutStrategy, Parity, RunProgress, ScalePoint, ScalingRow,
    TimelineSpan, TrainingStep,
};
use super::triage::{HangJudged, TriageFound, TriageSpan};
use super::validation::{TrainingScore, Validated, ValidatedTraining, ValidationScore};
use super::why::SlowRunCause;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A kind of record: its name, and whether its times were measured or simulated.
pub trait RecordKind: Serialize + DeserializeOwned {
    /// The `kind` of its lines.
    const KIND: &'static str;
    /// The `measured` of its lines; `None` for kinds that are neither, whose lines have no such field.
    const MEASURED: Option<bool>;
}

/// The table of all kinds: the type, the `kind` of its lines, and their `measured`; or `by clock`, if the type says that itself.
macro_rules! kinds {
    ({ $($record:ty: $kind:literal, $measured:expr;)* } by clock { $($pair:ident: $pair_kind:literal;)* }) => {
        $(impl RecordKind for $record {
            const KIND: &'static str = $kind;
            const MEASURED: Option<bool> = $measured;
        })*
        $(impl<const MEASURED: bool> RecordKind for $pair<MEASURED> {
            const KIND: &'static str = $pair_kind;
            const MEASURED: Option<bool> = Some(MEASURED);
        })*
    };
}

kinds! {
    {
        MeasuredCollective: "collective", Some(true);
        SimulatedCollective: "collective", Some(false);
        RowChange: "diff", None;
        TimeSpent: "time_spent", Some(false);
        FaultSchedules: "faults", None;
        MeasuringMachine: "measuring_machine", None;
        Limit: "limit", Some(true);
        SimulatorSpeed: "simulator", Some(true);
        DoctorFinding: "doctor", None;
        MachineListed: "machine", None;
        PlannedLayout: "plan", Some(false);
        PlannedRun: "plan_run", Some(false);
        ProofRecord: "verify", None;
        Shown: "show", None;
        LeftOutStrategy: "left_out", None;
        TimelineSpan: "span", Some(false);
        Parity: "parity", None;
        ScalingRow: "validate_scaling", None;
        TriageFound: "triage", None;
        HangJudged: "hang", None;
        SlowRunCause: "why", Some(false);
        TriageSpan: "triage_span", None;
        Validated: "validate", Some(false);
        ValidationScore: "validation_score", None;
        TrainingScore: "training_score", None;
        ValidatedTraining: "validate_training", Some(false);
    }
    by clock {
        TrainingStep: "train";
        RunProgress: "train_progress";
        LayerPasses: "layer";
        ScalePoint: "scale";
        ComparedStrategy: "compare";
    }
}
