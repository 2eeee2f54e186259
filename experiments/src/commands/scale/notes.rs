//! Notes on keys of a configuration that give a curve other times than a reader expects.

use allfold_cli::devices::RankDevices;
use allfold_report::sizes::RankCounts;
use allfold_trainer::Config;
use allfold_trainer::config::{AutocastType, ElementType};

/// The notes on a configuration, on these devices.
pub(super) fn notes(config: &Config, devices: &RankDevices, ranks: &RankCounts) -> Vec<String> {
    let mut notes = Vec::new();
    if config.strategy == "pipeline" && config.training.accumulate == 1 && ranks.greatest() > 1 {
        notes.push(
            "a pipeline of one micro-batch leaves all stages but one idle: --set training.accumulate=N cuts the samples of a step into N \
             micro-batches; `allfold compare` takes 4 for each stage"
                .into(),
        );
    }
    let plain = config.precision.amp == AutocastType::None && config.precision.dtype == ElementType::F32;
    if let Some(name) = devices.tensor_cores().filter(|_| plain) {
        notes.push(format!(
            "{name} means f16 on tensor cores, and the configuration computes in f32: --device {name}_f32 gives its rate in f32, \
             --set precision.amp=f16 trains with AMP"
        ));
    }
    notes
}
