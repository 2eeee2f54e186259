//! The tables of a configuration and their keys.

use crate::{
    CheckpointConfig, DataConfig, DdpConfig, LrScheduleConfig, ModelConfig, OptimiserConfig, ParallelConfig,
    PrecisionConfig, TrainingConfig,
};
use documented::DocumentedFields;

/// A table: its name, its keys, and what they mean.
pub(crate) type KeyTable = (&'static str, &'static [&'static str], &'static [&'static str]);

/// The tables in the order of the documented file.
pub(crate) const TABLES: [KeyTable; 9] = [
    ("model", ModelConfig::FIELD_NAMES, ModelConfig::FIELD_DOCS),
    ("data", DataConfig::FIELD_NAMES, DataConfig::FIELD_DOCS),
    ("training", TrainingConfig::FIELD_NAMES, TrainingConfig::FIELD_DOCS),
    ("optimiser", OptimiserConfig::FIELD_NAMES, OptimiserConfig::FIELD_DOCS),
    ("lr_schedule", LrScheduleConfig::FIELD_NAMES, LrScheduleConfig::FIELD_DOCS),
    ("precision", PrecisionConfig::FIELD_NAMES, PrecisionConfig::FIELD_DOCS),
    ("ddp", DdpConfig::FIELD_NAMES, DdpConfig::FIELD_DOCS),
    ("parallel", ParallelConfig::FIELD_NAMES, ParallelConfig::FIELD_DOCS),
    ("checkpoint", CheckpointConfig::FIELD_NAMES, CheckpointConfig::FIELD_DOCS),
];

/// The table that has exactly these keys.
pub(crate) fn table_of(keys: &[&str]) -> Option<&'static str> {
    TABLES.iter().find(|(_, names, _)| *names == keys).map(|(name, ..)| *name)
}

/// The keys of the table of this name.
pub(crate) fn keys_of(table: &str) -> Option<&'static [&'static str]> {
    TABLES.iter().find(|(name, ..)| *name == table).map(|(_, keys, _)| *keys)
}
