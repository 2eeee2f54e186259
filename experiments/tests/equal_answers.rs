//! One network, one answer: every command that predicts a step of the same configuration on the same machine gives the same time, to
//! the picosecond.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::records;

const CONFIGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/");
const MACHINES: [(&str, &str); 6] = [
    ("dgx-a100", "8"),
    ("dgx-a100", "16"),
    ("hgx-h100", "8"),
    ("b200", "16"),
    ("dgx1-v100", "8"),
    ("pcie8", "8"),
];

/// A configuration, its strategy, what is set, and whether its arithmetic is small enough to run.
const NETWORKS: [(&str, &str, &[&str], bool); 10] = [
    ("digits-mlp", "ddp", &["training.batch=16"], true),
    ("digits-cnn", "ddp", &["training.batch=16"], true),
    ("llama-tiny", "zero1", &["data.synthetic_samples=512"], true),
    ("text-gpt", "ddp", &["data.name=synthetic", "data.positions=64", "data.synthetic_classes=80"], false),
    ("wide-mlp", "ddp", &[], false),
    ("cifar-resnet18", "ddp", &[], false),
    ("gpu/mlp", "ddp", &[], false),
    ("gpu/resnet18", "ddp", &[], false),
    ("gpu/resnet50", "ddp", &[], false),
    ("gpu/gpt2", "ddp", &[], false),
];

/// Picoseconds of the field `time`, in microseconds, of the last record that fits.
fn picoseconds(records: &[serde_json::Value], time: &str) -> u64 {
    let times = records.iter().rev().filter(|record| record["measured"] == false && record["ranks"] != 1);
    let time = times.filter_map(|record| record[time].as_f64()).next();
    (time.unwrap_or_else(|| panic!("no time in {records:?}")) * 1e6).round() as u64
}

#[test]
fn commands_agree_on_the_time_of_a_step() {
    let mut unequal = Vec::new();
    for (name, strategy, set, runs) in NETWORKS {
        let config = format!("{CONFIGS}{name}.toml");
        for (machine, ranks) in MACHINES {
            let with = |words: &[&str]| {
                let mut words: Vec<&str> = words.to_vec();
                words.extend(["--config", &config, "--topology", machine, "--ranks", ranks]);
                words.extend(set.iter().flat_map(|set| ["--set", *set]));
                records(&words)
            };
            let predicted = |collectives: &str| {
                let scale = with(&["scale", "--modeled-only", "--collectives", collectives]);
                let flags =
                    ["compare", "--modeled-only", "--strategies", strategy, "--collectives", collectives];
                (picoseconds(&scale, "time_us"), picoseconds(&with(&flags), "step_us"))
            };
            for collectives in ["nccl", "tuner"] {
                let (scale, compare) = predicted(collectives);
                assert_eq!(scale, compare, "{name} on {ranks} ranks of {machine}, {collectives}");
            }
            let (scale, compare) = predicted("simulated");
            let train =
                runs.then(|| picoseconds(&with(&["train", "--backend", "sim", "--steps", "4"]), "time_us"));
            if scale != compare || train.is_some_and(|train| train != scale) {
                unequal.push(format!(
                    "{name} on {ranks} ranks of {machine}: scale {scale}, compare {compare}, train {train:?}"
                ));
            }
        }
    }
    assert!(unequal.is_empty(), "{}", unequal.join("\n"));
}
