//! The values that each numeric key may have, checked when a configuration is, and printed with the keys.

use crate::{Config, Error, Result};
use std::fmt;

/// The largest batch and the widest layer: with both, the operation count of a layer still fits in 64 bits.
const LARGEST: u64 = 65_536;
/// The most steps or epochs.
const STEPS: u64 = 1_000_000_000;
/// The most samples.
const SAMPLES: u64 = 1_000_000_000_000;
/// The greatest side that pictures are resized to.
const SIDE: u64 = 16_384;
/// The most ranks.
const RANKS: u64 = 1 << 20;
/// The largest vocabulary.
const TOKENS: u64 = 1 << 20;
/// The greatest size of a bucket in KiB: 4 TiB.
const KIB: u64 = 1 << 32;
/// The least and the greatest normal f32.
const F32: (f64, f64) = (f32::MIN_POSITIVE as f64, f32::MAX as f64);

/// The values that a key, or each number of its list, may have.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    /// Whole numbers, with both ends.
    Whole(u64, u64),
    /// Numbers, with both ends.
    Within(f64, f64),
    /// Finite numbers, 0 or more.
    NotNegative,
    /// 0 or more, and less than 1.
    BelowOne,
    /// More than 0, and at most 1.
    UpToOne,
    /// More than 0, and less than 1.
    Inside,
    /// More than 0.
    Positive,
    /// Finite numbers.
    Finite,
}
use Limit::{BelowOne, Finite, Inside, NotNegative, Positive, UpToOne, Whole, Within};

/// Every numeric key.
pub(crate) const LIMITS: [(&str, Limit); 81] = [
    ("threads", Whole(1, 1024)),
    ("seed", Whole(0, i64::MAX as u64)),
    ("model.hidden", Whole(1, LARGEST)),
    ("model.channels", Whole(1, LARGEST)),
    ("model.layers", Whole(1, LARGEST)),
    ("model.width", Whole(1, LARGEST)),
    ("model.heads", Whole(1, LARGEST)),
    ("model.kv_heads", Whole(0, LARGEST)),
    ("model.ffn", Whole(0, LARGEST)),
    ("model.rope_base", Positive),
    ("model.vocabulary", Whole(1, TOKENS)),
    ("model.dropout", BelowOne),
    ("model.attention_dropout", BelowOne),
    ("model.experts", Whole(0, LARGEST)),
    ("model.experts_per_token", Whole(1, LARGEST)),
    ("model.capacity_factor", NotNegative),
    ("model.balance_loss", NotNegative),
    ("data.train_samples", Whole(0, SAMPLES)),
    ("data.validation", Whole(0, SAMPLES)),
    ("data.test_share", Inside),
    ("data.workers", Whole(0, 64)),
    ("data.prefetch", Whole(1, LARGEST)),
    ("data.crop_padding", Whole(0, SIDE)),
    ("data.picture_size", Whole(1, SIDE)),
    ("data.resize", Whole(1, SIDE)),
    ("data.crop_scale", UpToOne),
    ("data.crop_ratio", Positive),
    ("data.picture_mean", Finite),
    ("data.picture_std", Positive),
    ("data.positions", Whole(1, LARGEST)),
    ("data.synthetic_samples", Whole(1, SAMPLES)),
    ("data.synthetic_shape", Whole(1, LARGEST)),
    ("data.synthetic_classes", Whole(1, TOKENS)),
    ("training.epochs", Whole(1, STEPS)),
    ("training.max_steps", Whole(0, STEPS)),
    ("training.stop_after", Whole(0, STEPS)),
    ("training.batch", Whole(1, LARGEST)),
    ("training.recompute", Whole(0, LARGEST)),
    ("training.accumulate", Whole(1, LARGEST)),
    ("training.patience", Whole(0, STEPS)),
    ("training.min_delta", NotNegative),
    ("optimiser.lr", NotNegative),
    ("optimiser.momentum", BelowOne),
    ("optimiser.weight_decay", NotNegative),
    ("optimiser.beta1", BelowOne),
    ("optimiser.beta2", BelowOne),
    ("optimiser.eps", NotNegative),
    ("optimiser.trust", NotNegative),
    ("optimiser.clip_norm", NotNegative),
    ("lr_schedule.warmup_steps", Whole(0, STEPS)),
    ("lr_schedule.warmup_from", NotNegative),
    ("lr_schedule.every", Whole(1, STEPS)),
    ("lr_schedule.factor", NotNegative),
    ("lr_schedule.milestones", Whole(0, STEPS)),
    ("lr_schedule.floor", NotNegative),
    ("lr_schedule.power", NotNegative),
    ("lr_schedule.patience", Whole(0, STEPS)),
    ("lr_schedule.threshold", BelowOne),
    ("lr_schedule.cooldown", Whole(0, STEPS)),
    ("precision.loss_scale", Within(0.0, F32.1)),
    ("precision.scale_growth", Within(1.0, F32.1)),
    ("precision.scale_backoff", Within(F32.0, 1.0)),
    ("precision.scale_interval", Whole(1, STEPS)),
    ("precision.scale_floor", Within(F32.0, F32.1)),
    ("ddp.first_bucket_kib", Whole(0, KIB)),
    ("ddp.bucket_kib", Whole(0, KIB)),
    ("ddp.powersgd_rank", Whole(1, LARGEST)),
    ("ddp.topk_share", UpToOne),
    ("ddp.local_steps", Whole(1, STEPS)),
    ("parallel.stages", Whole(0, RANKS)),
    ("parallel.chunks", Whole(1, LARGEST)),
    ("parallel.tensor", Whole(0, RANKS)),
    ("parallel.context", Whole(0, RANKS)),
    ("parallel.expert", Whole(0, RANKS)),
    ("parallel.servers", Whole(1, RANKS)),
    // A server keeps what each worker may still need of as many steps.
    ("parallel.staleness", Whole(0, 1024)),
    ("parallel.shard", Whole(0, RANKS)),
    ("parallel.shares", Whole(0, u32::MAX as u64)),
    ("checkpoint.every", Whole(0, STEPS)),
    ("checkpoint.every_epochs", Whole(0, STEPS)),
    ("checkpoint.keep", Whole(1, STEPS)),
];

/// The values that a key may have; `None` for a key that is no number.
pub(crate) fn limit(key: &str) -> Option<Limit> {
    LIMITS.iter().find(|(known, _)| *known == key).map(|(_, limit)| *limit)
}

impl Limit {
    fn holds(self, number: f64) -> bool {
        number.is_finite()
            && match self {
                Whole(least, most) => (least as f64..=most as f64).contains(&number),
                Within(least, most) => (least..=most).contains(&number),
                NotNegative => number >= 0.0,
                BelowOne => (0.0..1.0).contains(&number),
                UpToOne => number > 0.0 && number <= 1.0,
                Inside => number > 0.0 && number < 1.0,
                Positive => number > 0.0,
                Finite => true,
            }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whole(least, most) => write!(f, "{least} to {most}"),
            Within(least, most) => write!(f, "{} to {}", short(*least), short(*most)),
            NotNegative => f.write_str("0 or more"),
            BelowOne => f.write_str("at least 0 and less than 1"),
            UpToOne => f.write_str("more than 0 and at most 1"),
            Inside => f.write_str("more than 0 and less than 1"),
            Positive => f.write_str("more than 0"),
            Finite => f.write_str("finite"),
        }
    }
}

/// A number with three digits where plain digits would be many.
fn short(number: f64) -> String {
    if number == 0.0 || (1e-9..1e15).contains(&number.abs()) {
        number.to_string()
    } else {
        format!("{number:.2e}")
    }
}

impl Config {
    /// Checks every number against its limit.
    pub(crate) fn check_limits(&self) -> Result<()> {
        let all = toml::Table::try_from(self)
            .map_err(|error| Error(format!("a number is more than 2^63 - 1: {error}")))?;
        for (key, limit) in LIMITS {
            let of = |(table, inner)| all.get(table).and_then(|table: &toml::Value| table.get(inner));
            match key.split_once('.').map_or_else(|| all.get(key), of) {
                Some(toml::Value::Array(numbers)) => {
                    numbers.iter().try_for_each(|value| check(key, "has", value, limit))?;
                }
                Some(value) => check(key, "is", value, limit)?,
                None => {}
            }
        }
        Ok(())
    }
}

fn check(key: &str, verb: &str, value: &toml::Value, limit: Limit) -> Result<()> {
    let number = value.as_float().or(value.as_integer().map(|whole| whole as f64));
    let text = match value.as_float() {
        Some(float) if float != 0.0 && !(1e-9..1e15).contains(&float.abs()) => format!("{float:e}"),
        Some(float) => float.to_string(),
        None => value.to_string(),
    };
    match number {
        Some(number) if !limit.holds(number) => {
            Err(Error(format!("`{key}` {verb} {text}; it must be {limit}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_numeric_key_has_a_limit_that_its_default_meets() {
        let is_number = |value: &toml::Value| value.is_integer() || value.is_float();
        // Lists that are empty by default.
        let lists = ["lr_schedule.milestones", "parallel.shares"];
        let mut numeric: Vec<String> = lists.map(String::from).into();
        for (name, value) in toml::Table::try_from(Config::default()).unwrap() {
            let keys: Vec<(String, toml::Value)> = match value {
                toml::Value::Table(keys) => {
                    keys.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)).collect()
                }
                value => vec![(name, value)],
            };
            let of_numbers = |value: &toml::Value| match value {
                toml::Value::Array(values) => values.iter().any(is_number),
                value => is_number(value),
            };
            numeric.extend(keys.into_iter().filter(|(_, value)| of_numbers(value)).map(|(key, _)| key));
        }
        numeric.sort();
        let mut limited: Vec<String> = LIMITS.iter().map(|(key, _)| key.to_string()).collect();
        limited.sort();
        assert_eq!(numeric, limited);
        assert_eq!(Config::default().check_limits(), Ok(()));
    }

    #[test]
    fn numbers_outside_of_their_limits_are_refused_with_the_limits() {
        let refused = |key: &str, value: &str| {
            let mut config = Config::default();
            config.set(key, value).unwrap();
            config.check_limits().unwrap_err().to_string()
        };
        assert_eq!(
            refused("training.accumulate", "2147483648"),
            "`training.accumulate` is 2147483648; it must be 1 to 65536"
        );
        assert_eq!(
            refused("parallel.staleness", "65537"),
            "`parallel.staleness` is 65537; it must be 0 to 1024"
        );
        assert_eq!(
            refused("data.picture_std", "[1, 0, 1]"),
            "`data.picture_std` has 0; it must be more than 0"
        );
        assert_eq!(refused("optimiser.lr", "inf"), "`optimiser.lr` is inf; it must be 0 or more");
        assert_eq!(
            refused("precision.scale_backoff", "1e-320"),
            "`precision.scale_backoff` is 1e-320; it must be 1.18e-38 to 1"
        );
    }
}
