//! Configurations: their keys, and the values that are refused.
#![allow(missing_docs, clippy::unwrap_used)]

mod pictures;

use allfold_trainer::Config;
use allfold_trainer::config::{ParallelConfig, ScheduleName};

fn error(text: &str) -> String {
    allfold_trainer::config::parse(text, "c.toml").unwrap_err().to_string()
}

#[test]
fn an_empty_file_is_the_default_and_every_key_survives_the_round_trip() {
    assert_eq!(allfold_trainer::config::parse("", "c.toml").unwrap(), Config::default());
    let text = toml::to_string(&Config::default().with(|c| c.training.epochs = 9)).unwrap();
    assert_eq!(allfold_trainer::config::parse(&text, "c.toml").unwrap().training.epochs, 9);
}

#[test]
fn the_documented_file_is_the_default_and_has_every_key() {
    let text = Config::documented();
    assert_eq!(allfold_trainer::config::parse(&text, "c.toml").unwrap(), Config::default());
    let keys = toml::Table::try_from(Config::default()).unwrap();
    assert_eq!(text.parse::<toml::Table>().unwrap(), keys);
    assert!(text.split("\n\n").all(|key| key.starts_with("# ") && key.trim_end().lines().count() > 1));
    let tables: Vec<&toml::Table> = keys.values().filter_map(toml::Value::as_table).collect();
    let inside: usize = tables.iter().map(|table| table.len()).sum();
    assert_eq!(text.split("\n\n").count(), keys.len() - tables.len() + inside);
}

#[test]
fn one_key_is_replaced_by_what_a_file_would_say() {
    let mut config = Config::default();
    for (key, value) in [
        ("optimiser.lr", "1"),
        ("model.name", "mlp"),
        ("model.hidden", "[64, 32]"),
        ("checkpoint.resume", "true"),
        ("data.dir", "\"a b\""),
        ("parallel.stages", "3"),
        ("parallel.schedule", "gpipe"),
    ] {
        config.set(key, value).unwrap();
    }
    let parallel = ParallelConfig { stages: 3, schedule: ScheduleName::Gpipe, ..ParallelConfig::default() };
    let want = Config::default().with(|c| {
        c.parallel = parallel;
        c.optimiser.lr = 1.0;
        c.model.name = "mlp".into();
        c.model.hidden = vec![64, 32];
        c.checkpoint.resume = true;
        c.data.dir = "a b".into();
    });
    assert_eq!(config, want);
    let mut error = |key, value| config.set(key, value).unwrap_err().to_string();
    assert_eq!(error("bach", "3"), "unknown key `bach`; the nearest is `training.batch`");
    assert_eq!(
        error("parallel.stage", "3"),
        "unknown key `parallel.stage`; the nearest is `parallel.stages`"
    );
    assert_eq!(
        error("training.batch", "many"),
        "`training.batch`: invalid type: string \"many\", expected a whole number, 0 or more"
    );
    assert_eq!(error("precision.amp", "fp16"), "`precision.amp`: unknown value `fp16`; the nearest is `f16`");
    for (theirs, ours) in [("data.root", "data.dir"), ("model.pretrained", "model.weights")] {
        assert_eq!(error(theirs, "3"), format!("unknown key `{theirs}`; here it is `{ours}`"));
    }
    for other in ["data.color_jiter", "data.zzz"] {
        let says = format!("unknown key `{other}`; `allfold train --keys` lists the keys");
        assert_eq!(error(other, "0.4"), says);
    }
    assert_eq!(error("strategy.name", "3"), "unknown key `strategy.name`; `strategy` is a key, not a table");
    assert_eq!(error("optimizer.lr", "3"), "unknown key `optimizer.lr`; the nearest table is [optimiser]");
    assert_eq!(error("training", "3"), "`training` is a table; name a key in it, such as `training.epochs`");
    assert_eq!(config, want);
}

#[test]
fn a_key_that_is_not_where_it_stands_is_found_where_it_belongs() {
    for (text, says) in [
        ("[traning]\nbatch = 3", "1:2: unknown table `[traning]`; the nearest is `[training]`"),
        ("[training]\nbach = 3", "2:1: unknown key `training.bach`; the nearest is `training.batch`"),
        ("[training]\nlr = 3", "2:1: unknown key `training.lr`; there is `optimiser.lr`"),
        ("[training]\nseed = 3", "2:1: unknown key `training.seed`; there is `seed`, outside of tables"),
        (
            "[optimiser]\noptimiser = \"adamw\"",
            "2:1: unknown key `optimiser.optimiser`; the nearest is `optimiser.name`",
        ),
        (
            "[checkpoint]\ncheckpoint_dir = \"d\"",
            "2:1: unknown key `checkpoint.checkpoint_dir`; there is `checkpoint.dir`",
        ),
        ("optimizer = \"adamw\"", "1:1: unknown key `optimizer`; here it is `optimiser.name`"),
        ("model = \"mlp\"\n[model]\nhidden = [8]", "2:2: `model` stands here and above"),
        (
            "[precision]\namp = true",
            "2:7: expected a word in quotes, as in amp = \"bf16\"; `allfold train --keys` lists the words",
        ),
        ("[precision]\namp = \"float16\"", "2:7: unknown value `float16`; here it is `f16`"),
        ("[precision]\namp = \"bfloat16\"", "2:7: unknown value `bfloat16`; here it is `bf16`"),
        ("[precision]\namp = \"zzz\"", "2:7: unknown value `zzz`; it is one of `none`, `f16`, `bf16`"),
        ("zzz = 3", "1:1: unknown key `zzz`; `allfold train --keys` lists the keys"),
        (
            "[data]\ncolor_jitter = 0.4",
            "2:1: unknown key `data.color_jitter`; `allfold train --keys` lists the keys",
        ),
        ("lr = 3", "1:1: unknown key `lr`; there is `optimiser.lr`"),
        ("model = \"mlp\"", "1:9: `model` is a table; name a key in it, such as `model.name`"),
        ("training = 3", "1:12: `training` is a table; name a key in it, such as `training.epochs`"),
        ("data_dir = \"d\"", "1:1: unknown key `data_dir`; there is `data.dir`"),
    ] {
        assert_eq!(error(text), format!("c.toml:{says}"));
    }
}

#[test]
fn mistakes_are_named_in_one_line_with_what_would_be_right() {
    assert_eq!(
        error("seed = 1\nbatchsize = 3"),
        "c.toml:2:1: unknown key `batchsize`; the nearest is `training.batch`"
    );
    assert_eq!(error("model.name = \"cn\""), "c.toml: unknown model `cn`; the nearest is `cnn`");
    assert_eq!(error("strategy = \"dpp\""), "c.toml: unknown strategy `dpp`; the nearest is `ddp`");
    assert_eq!(error("training.batch = 0"), "c.toml: `training.batch` is 0; it must be 1 to 65536");
    assert_eq!(error("model.hidden = [8, 70000]"), "c.toml: `model.hidden` has 70000; it must be 1 to 65536");
    assert_eq!(allfold_trainer::config::parse("optimiser.lr = 1", "c.toml").unwrap().optimiser.lr, 1.0);
    assert_eq!(error("optimiser.lr = -1.0"), "c.toml: `optimiser.lr` is -1; it must be 0 or more");
    assert_eq!(
        error("lr_schedule.name = \"cosin\""),
        "c.toml:1:20: unknown value `cosin`; the nearest is `cosine`"
    );
    assert_eq!(
        error("precision.scale_backoff = 2.0"),
        "c.toml: `precision.scale_backoff` is 2; it must be 1.18e-38 to 1"
    );
    assert_eq!(
        error("optimiser.clip_norm = nan"),
        "c.toml: `optimiser.clip_norm` is NaN; it must be 0 or more"
    );
    assert_eq!(
        error("optimiser.momentum = 2.0"),
        "c.toml: `optimiser.momentum` is 2; it must be at least 0 and less than 1"
    );
    assert_eq!(
        error("optimiser.beta2 = 1.0"),
        "c.toml: `optimiser.beta2` is 1; it must be at least 0 and less than 1"
    );
    assert_eq!(error("optimiser.name = \"adan\""), "c.toml: unknown optimiser `adan`; the nearest is `adam`");
    assert_eq!(
        error("model.trained = [\"fc\"]"),
        "c.toml: `model.trained` excepts layers from `model.frozen`, which names none; to train these alone, set model.frozen = [\"*\"]"
    );
    assert_eq!(
        error("model.weights_strict = false"),
        "c.toml: `model.weights_strict` is for the file that `model.weights` names; without one, leave it out"
    );
    assert_eq!(
        error("training.score = \"acuracy\""),
        "c.toml:1:18: unknown value `acuracy`; the nearest is `accuracy`"
    );
    assert_eq!(
        error("lr_schedule.unit = \"epochs\""),
        "c.toml:1:20: unknown value `epochs`; the nearest is `epoch`"
    );
    assert_eq!(
        error("training.min_delta = -0.1\ntraining.patience = 1"),
        "c.toml: `training.min_delta` is -0.1; it must be 0 or more"
    );
    assert_eq!(
        error("training.min_delta = 0.1"),
        "c.toml: `training.min_delta` is for `training.patience`: set both of them"
    );
    assert_eq!(
        error("lr_schedule.name = \"plateau\"\nlr_schedule.factor = 1.0"),
        "c.toml: `lr_schedule.factor` is 1; `plateau` needs less than 1, so that the rate is lowered"
    );
    assert_eq!(
        error("lr_schedule.threshold = 1.0"),
        "c.toml: `lr_schedule.threshold` is 1; it must be at least 0 and less than 1"
    );
}

#[test]
fn values_of_another_type_are_named_by_their_place() {
    let says = error("training.patience = -1");
    assert!(says.starts_with("c.toml:1:21: invalid value: integer `-1`, expected a whole number"), "{says}");
    assert!(
        error("training.epochs = \"two\"")
            .starts_with("c.toml:1:19: invalid type: string \"two\", expected a whole number")
    );
    assert!(error("training.epochs = ").starts_with("c.toml:1:19: "), "{}", error("training.epochs = "));
    assert!(!error("training.epochs = [\n1,\n").contains('\n'));
}

#[test]
fn keys_of_other_models_are_refused() {
    for (text, says) in [
        (
            "model.vocabulary = 144115188075855872",
            "`model.vocabulary` is 144115188075855872; it must be 1 to 1048576",
        ),
        ("model.name = \"bert\"", "model `bert` classifies arrays of tokens; set data.name = \"arrays\""),
        (
            "model.attention_dropout = 0.1",
            "`model.attention_dropout` is for models `gpt`, `bert` and `llama`; the others have no attention",
        ),
        (
            "model.name = \"vgg11\"\nmodel.dropout = 0.5",
            "`model.dropout` is for models `gpt` and `bert`, and for a vgg with `model.imagenet_stem`; the others drop nothing",
        ),
        (
            "model.imagenet_stem = true",
            "`model.imagenet_stem` is for resnets and vggs; another model has one form",
        ),
    ] {
        assert_eq!(error(text), format!("c.toml: {says}"));
    }
}

#[test]
fn pictures_that_cannot_be_cut_or_scaled_are_refused() {
    for (text, says) in [
        ("data.picture_size = 0", "`data.picture_size` is 0; it must be 1 to 16384"),
        ("data.resize = 20000", "`data.resize` is 20000; it must be 1 to 16384"),
        (
            "data.name = \"pictures\"\ndata.picture_size = 300",
            "`data.resize` is 256 and `data.picture_size` 300, which is cut out of that; set `data.resize` to 300 or more",
        ),
        (
            "data.random_resized_crop = true",
            "`data.random_resized_crop` is for data \"pictures\", and the data is \"digits\"; `data.crop_padding` moves any picture",
        ),
        (
            "data.name = \"pictures\"\ndata.random_resized_crop = true\ndata.crop_padding = 4",
            "`data.random_resized_crop` and `data.crop_padding` both move pictures: set one of them",
        ),
        ("data.test_share = 1.0", "`data.test_share` is 1; it must be more than 0 and less than 1"),
        (
            "data.crop_scale = [0.5, 0.2]",
            "`data.crop_scale` is [0.5, 0.2]; it must be the least and the greatest value, more than 0 and at most 1",
        ),
        ("data.crop_ratio = [0.0, 1.0]", "`data.crop_ratio` has 0; it must be more than 0"),
        ("data.picture_mean = [0.5, nan, 0.5]", "`data.picture_mean` has NaN; it must be finite"),
        ("data.picture_std = [1.0, 0.0, 1.0]", "`data.picture_std` has 0; it must be more than 0"),
    ] {
        assert_eq!(error(text), format!("c.toml: {says}"));
    }
    assert!(
        allfold_trainer::config::parse("data.name = \"pictures\"\ndata.random_resized_crop = true", "c.toml")
            .is_ok()
    );
}
