//! Keys that a configuration sets and that have no effect with its other keys.

use super::{Config, LrScheduleName, ScheduleName, StageSharing};
use crate::added::{Added, Named};
use crate::strategies::hooks;
use crate::{models, optim, strategies};

/// A sentence for each key that `config` sets to another value than the default and that has no effect, with what would give the key
/// an effect. Keys of own models, optimisers, hooks and strategies are taken to have an effect.
///
/// ```
/// use allfold_trainer::config::{parse, without_effect};
///
/// let config = parse("[parallel]\nstages = 2", "run.toml").unwrap();
/// assert_eq!(without_effect(&config), ["`parallel.stages` has no effect without strategy pipeline"]);
/// ```
pub fn without_effect(config: &Config) -> Vec<String> {
    let default = Config::default();
    let tables = [model, optimiser, lr_schedule, precision, ddp, parallel, checkpoint];
    let keys = tables.iter().flat_map(|table| table(config, &default));
    let idle = keys.filter(|key| key.set && !key.effective);
    let idle = idle.map(|Key { name, needs, .. }| format!("`{name}` has no effect without {needs}"));
    idle.chain(accumulate(config)).collect()
}

/// The sentence for more micro-batches than samples. In PyTorch's scripts each micro-batch has as many samples as a batch.
fn accumulate(config: &Config) -> Option<String> {
    let (batch, accumulate) = (config.training.batch, config.training.accumulate);
    (accumulate > batch).then(|| {
        format!(
            "`training.accumulate` is {accumulate} and has the effect of {batch}: it cuts `training.batch`, the {batch} samples of a rank \
             in a step, into micro-batches of 1 sample at least; for {accumulate} micro-batches of {batch} samples set `training.batch` \
             to {}",
            batch.saturating_mul(accumulate)
        )
    })
}

/// A key that may have no effect.
struct Key {
    name: &'static str,
    /// Whether the key is set to another value than the default.
    set: bool,
    effective: bool,
    /// What gives the key an effect.
    needs: &'static str,
}

/// `key!(CONFIG, DEFAULT, TABLE.KEY, EFFECTIVE, NEEDS)`
macro_rules! key {
    ($config:ident, $default:ident, $table:ident.$key:ident, $effective:expr, $needs:expr) => {
        Key {
            name: concat!(stringify!($table), ".", stringify!($key)),
            set: $config.$table.$key != $default.$table.$key,
            effective: $effective,
            needs: $needs,
        }
    };
}

/// Whether `name` is one of `names`, or a part that the program added.
fn is<T: Named>(name: &str, added: &Added<T>, names: &[&str]) -> bool {
    names.contains(&name) || added.find(name).is_some()
}

fn model(c: &Config, d: &Config) -> Vec<Key> {
    let name = c.model.name.as_str();
    let own = models::ADDED.find(name).is_some();
    let of = |families: &[&str]| own || families.iter().any(|family| name.starts_with(family));
    let (text, experts) = (of(&["gpt", "bert", "llama"]), own || c.model.experts > 0);
    vec![
        key!(c, d, model.hidden, of(&["mlp"]), "model mlp"),
        key!(c, d, model.channels, of(&["cnn"]), "model cnn"),
        key!(c, d, model.batch_norm, of(&["cnn", "vgg"]), "model cnn or a vgg"),
        key!(c, d, model.imagenet_stem, of(&["resnet", "vgg"]), "a resnet or a vgg"),
        key!(c, d, model.layers, text, "model gpt, bert or llama"),
        key!(c, d, model.width, text, "model gpt, bert or llama"),
        key!(c, d, model.heads, text, "model gpt, bert or llama"),
        key!(c, d, model.vocabulary, of(&["bert"]), "model bert"),
        key!(c, d, model.tied, of(&["gpt", "llama"]), "model gpt or llama"),
        key!(c, d, model.kv_heads, of(&["llama"]), "model llama"),
        key!(c, d, model.ffn, of(&["llama"]), "model llama"),
        key!(c, d, model.rope_base, of(&["llama"]), "model llama"),
        key!(c, d, model.dropout, of(&["gpt", "bert", "vgg"]), "model gpt, bert or a vgg"),
        key!(c, d, model.attention_dropout, text, "model gpt, bert or llama"),
        key!(c, d, model.experts, of(&["gpt"]), "model gpt"),
        key!(c, d, model.experts_per_token, experts, "`model.experts`"),
        key!(c, d, model.capacity_factor, experts, "`model.experts`"),
        key!(c, d, model.balance_loss, experts, "`model.experts`"),
    ]
}

fn optimiser(c: &Config, d: &Config) -> Vec<Key> {
    let of = |names: &[&str]| is(&c.optimiser.name, &optim::ADDED, names);
    let adam = of(&["adam", "adamw"]);
    vec![
        key!(c, d, optimiser.momentum, of(&["sgd", "lars"]), "optimiser sgd or lars"),
        key!(c, d, optimiser.beta1, adam, "optimiser adam or adamw"),
        key!(c, d, optimiser.beta2, adam, "optimiser adam or adamw"),
        key!(c, d, optimiser.eps, adam, "optimiser adam or adamw"),
        key!(c, d, optimiser.trust, of(&["lars"]), "optimiser lars"),
    ]
}

fn lr_schedule(c: &Config, d: &Config) -> Vec<Key> {
    use LrScheduleName::{Constant, Cosine, Exponential, Milestones, Plateau, Polynomial, Restarts, Step};
    let of = |names: &[LrScheduleName]| names.contains(&c.lr_schedule.name);
    let by_factor = of(&[Step, Milestones, Exponential, Restarts, Plateau]);
    vec![
        key!(c, d, lr_schedule.unit, !of(&[Constant]), "an `lr_schedule.name`"),
        key!(c, d, lr_schedule.warmup_from, c.lr_schedule.warmup_steps > 0, "`lr_schedule.warmup_steps`"),
        key!(c, d, lr_schedule.every, of(&[Step, Restarts]), "the schedule step or restarts"),
        key!(
            c,
            d,
            lr_schedule.factor,
            by_factor,
            "the schedule step, milestones, exponential, restarts or plateau"
        ),
        key!(
            c,
            d,
            lr_schedule.floor,
            of(&[Cosine, Restarts, Plateau]),
            "the schedule cosine, restarts or plateau"
        ),
        key!(c, d, lr_schedule.power, of(&[Polynomial]), "the schedule polynomial"),
        key!(c, d, lr_schedule.patience, of(&[Plateau]), "the schedule plateau"),
        key!(c, d, lr_schedule.threshold, of(&[Plateau]), "the schedule plateau"),
        key!(c, d, lr_schedule.cooldown, of(&[Plateau]), "the schedule plateau"),
    ]
}

fn precision(c: &Config, d: &Config) -> Vec<Key> {
    let (scales, needs) = (c.precision.loss_scale > 0.0, "`precision.loss_scale`");
    vec![
        key!(c, d, precision.scale_growth, scales, needs),
        key!(c, d, precision.scale_backoff, scales, needs),
        key!(c, d, precision.scale_interval, scales, needs),
        key!(c, d, precision.scale_floor, scales, needs),
    ]
}

fn ddp(c: &Config, d: &Config) -> Vec<Key> {
    let ddp = is(&c.strategy, &strategies::ADDED, &["ddp"]);
    let by = |hook| is(&c.ddp.hook, &hooks::ADDED, &[hook]);
    vec![
        key!(c, d, ddp.first_bucket_kib, ddp, "strategy ddp"),
        key!(c, d, ddp.bucket_kib, ddp, "strategy ddp"),
        key!(c, d, ddp.powersgd_rank, by("powersgd"), "`ddp.hook` powersgd"),
        key!(c, d, ddp.topk_share, by("topk"), "`ddp.hook` topk"),
        key!(c, d, ddp.local_steps, by("local_sgd"), "`ddp.hook` local_sgd"),
    ]
}

fn parallel(c: &Config, d: &Config) -> Vec<Key> {
    let of = |names: &[&str]| is(&c.strategy, &strategies::ADDED, names);
    let (pipeline, servers) = (of(&["pipeline"]), of(&["parameter_server"]));
    let chunks = pipeline && c.parallel.schedule == ScheduleName::Interleaved;
    let sharing = of(&["pipeline", "tensor", "context", "expert"]);
    let zero3 = of(&["zero3"]) || sharing && c.parallel.sharding == StageSharing::Zero3;
    vec![
        key!(c, d, parallel.stages, pipeline, "strategy pipeline"),
        key!(c, d, parallel.schedule, pipeline, "strategy pipeline"),
        key!(c, d, parallel.split, pipeline, "strategy pipeline"),
        key!(c, d, parallel.chunks, chunks, "strategy pipeline and `parallel.schedule` interleaved"),
        key!(c, d, parallel.servers, servers, "strategy parameter_server"),
        key!(c, d, parallel.staleness, servers, "strategy parameter_server"),
        key!(c, d, parallel.sharding, sharing, "strategy pipeline, tensor, context or expert"),
        key!(c, d, parallel.reshard_after_forward, zero3, "strategy zero3 or `parallel.sharding` zero3"),
    ]
}

fn checkpoint(c: &Config, d: &Config) -> Vec<Key> {
    let any = c.checkpoint.writes() || c.checkpoint.resume;
    let by_time = c.checkpoint.by_time();
    let (every, or_best) = (
        "`checkpoint.every` or `checkpoint.every_epochs`",
        "`checkpoint.every`, `checkpoint.every_epochs`, `checkpoint.best` or `checkpoint.resume`",
    );
    let scores = "`training.patience`, `checkpoint.best` or the schedule plateau";
    vec![
        key!(c, d, checkpoint.dir, any, or_best),
        key!(c, d, checkpoint.may_differ, c.checkpoint.resume, "`checkpoint.resume`"),
        key!(c, d, checkpoint.keep, by_time, every),
        key!(c, d, checkpoint.sharded, by_time, every),
        key!(c, d, training.score, c.compares_scores(), scores),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn idle(text: &str) -> Vec<String> {
        without_effect(&parse(text, "run.toml").unwrap())
    }

    #[test]
    fn defaults_and_keys_with_an_effect_are_not_mentioned() {
        assert_eq!(without_effect(&Config::default()), [""; 0]);
        for text in [
            "[model]\nname = \"vgg11\"\nbatch_norm = true\nimagenet_stem = true\ndropout = 0.1",
            "strategy = \"parameter_server\"\n[parallel]\nservers = 2\nstaleness = 1",
            "strategy = \"tensor\"\n[parallel]\nsharding = \"zero3\"\nreshard_after_forward = false",
            "[lr_schedule]\nname = \"restarts\"\nevery = 3\nfactor = 2.0\nfloor = 0.001",
            "[checkpoint]\ndir = \"elsewhere\"\nresume = true",
        ] {
            assert_eq!(idle(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn every_key_of_the_configurations_that_ship_has_an_effect() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments/configs");
        let within = |folder: &std::path::Path| -> Vec<_> {
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
        };
        let files = within(folder.as_ref());
        let more = files.iter().filter(|path| path.is_dir()).flat_map(|path| within(path));
        let files: Vec<_> = files.iter().filter(|path| path.is_file()).cloned().chain(more).collect();
        assert!(files.len() > 10);
        for file in files {
            assert_eq!(idle(&std::fs::read_to_string(&file).unwrap()), [""; 0], "{}", file.display());
        }
    }

    #[test]
    fn more_micro_batches_than_samples_are_mentioned() {
        let said = idle("[training]\nbatch = 4\naccumulate = 8");
        assert_eq!(
            said,
            [
                "`training.accumulate` is 8 and has the effect of 4: it cuts `training.batch`, the 4 samples of a rank in a step, into \
              micro-batches of 1 sample at least; for 8 micro-batches of 4 samples set `training.batch` to 32"
            ]
        );
        assert_eq!(idle("[training]\nbatch = 4\naccumulate = 4"), [""; 0]);
    }

    #[test]
    fn each_key_without_an_effect_is_said_with_what_it_needs() {
        let said = idle(
            "strategy = \"zero2\"\n[parallel]\nstages = 2\n[optimiser]\nname = \"adam\"\nmomentum = 0.5\n[checkpoint]\ndir = \"a\"",
        );
        assert_eq!(
            said,
            [
                "`optimiser.momentum` has no effect without optimiser sgd or lars",
                "`parallel.stages` has no effect without strategy pipeline",
                "`checkpoint.dir` has no effect without `checkpoint.every`, `checkpoint.every_epochs`, `checkpoint.best` or \
                 `checkpoint.resume`"
            ]
        );
    }
}
