//! Configurations: their keys, and what is refused.
#![allow(missing_docs, clippy::unwrap_used)]

mod pictures;

use allfold_trainer::Config;
use allfold_trainer::config::{Parallel, ScheduleName};

fn error(text: &str) -> String {
    Config::parse(text, "c.toml").unwrap_err().to_string()
}

#[test]
fn an_empty_file_is_the_default_and_every_key_survives_the_round_trip() {
    assert_eq!(Config::parse("", "c.toml").unwrap(), Config::default());
    let text = toml::to_string(&Config { epochs: 9, ..Config::default() }).unwrap();
    assert_eq!(Config::parse(&text, "c.toml").unwrap().epochs, 9);
}

#[test]
fn the_documented_file_is_the_default_and_has_every_key() {
    let text = Config::documented();
    assert_eq!(Config::parse(&text, "c.toml").unwrap(), Config::default());
    let keys = toml::Table::try_from(Config::default()).unwrap();
    assert_eq!(text.parse::<toml::Table>().unwrap(), keys);
    let (flat, nested) = text.split_once("\n[parallel]\n").unwrap();
    let nested_keys = keys["parallel"].as_table().unwrap().len();
    for (text, count) in [(flat, keys.len() - 1), (nested, nested_keys)] {
        assert!(text.split("\n\n").all(|key| key.starts_with("# ") && key.trim_end().lines().count() > 1));
        assert_eq!(text.split("\n\n").count(), count);
    }
}

#[test]
fn one_key_is_replaced_by_what_a_file_would_say() {
    let mut config = Config::default();
    for (key, value) in
        [("lr", "1"), ("model", "mlp"), ("hidden", "[64, 32]"), ("resume", "true"), ("data_dir", "\"a b\"")]
    {
        config.set(key, value).unwrap();
    }
    config.set("parallel.stages", "3").unwrap();
    config.set("parallel.schedule", "gpipe").unwrap();
    let parallel = Parallel { stages: 3, schedule: ScheduleName::Gpipe, ..Parallel::default() };
    let want = Config {
        parallel,
        lr: 1.0,
        model: "mlp".into(),
        hidden: vec![64, 32],
        resume: true,
        data_dir: "a b".into(),
        ..Config::default()
    };
    assert_eq!(config, want);
    let mut error = |key, value| config.set(key, value).unwrap_err().to_string();
    assert_eq!(error("bach", "3"), "unknown key `bach`; the nearest is `batch`");
    assert_eq!(
        error("parallel.stage", "3"),
        "unknown key `parallel.stage`; the nearest is `parallel.stages`"
    );
    assert_eq!(
        error("batch", "many"),
        "`batch`: invalid type: string \"many\", expected a whole number, 0 or more"
    );
    assert_eq!(config, want);
}

#[test]
fn mistakes_are_named_in_one_line_with_what_would_be_right() {
    assert_eq!(
        error("seed = 1\nbatchsize = 3"),
        "c.toml:2:1: unknown key `batchsize`; the nearest is `batch`"
    );
    assert_eq!(error("model = \"cn\""), "c.toml: unknown model `cn`; the nearest is `cnn`");
    assert_eq!(error("strategy = \"dpp\""), "c.toml: unknown strategy `dpp`; the nearest is `ddp`");
    assert_eq!(error("batch = 0"), "c.toml: `batch` has 0; it must be 1 to 65536");
    assert_eq!(error("hidden = [8, 70000]"), "c.toml: `hidden` has 70000; it must be 1 to 65536");
    assert_eq!(Config::parse("lr = 1", "c.toml").unwrap().lr, 1.0);
    assert_eq!(error("lr = -1.0"), "c.toml: `lr` is -1; it must be 0 or more");
    assert_eq!(
        error("lr_schedule = \"cosin\""),
        "c.toml: unknown lr_schedule `cosin`; the nearest is `cosine`"
    );
    assert_eq!(
        error("scale_backoff = 2.0"),
        "c.toml: `scale_backoff` is 2; it must be 1.1754943508222875e-38 to 1e0"
    );
    assert_eq!(error("clip_norm = nan"), "c.toml: `clip_norm` is NaN; it must be 0 or more");
    assert_eq!(error("momentum = 2.0"), "c.toml: `momentum` is 2; it must be at least 0 and less than 1");
    assert_eq!(error("beta2 = 1.0"), "c.toml: `beta2` is 1; it must be at least 0 and less than 1");
    assert_eq!(error("optimiser = \"adan\""), "c.toml: unknown optimiser `adan`; the nearest is `adam`");
    assert_eq!(
        error("trained = [\"fc\"]"),
        "c.toml: `trained` excepts layers from `frozen`, which names none; to train these alone, set frozen = [\"*\"]"
    );
    assert_eq!(
        error("weights_strict = false"),
        "c.toml: `weights_strict` is for the file that `weights` names; without one, leave it out"
    );
    assert_eq!(error("score = \"acuracy\""), "c.toml: unknown score `acuracy`; the nearest is `accuracy`");
    assert_eq!(error("lr_unit = \"epochs\""), "c.toml: unknown lr_unit `epochs`; the nearest is `epoch`");
    assert_eq!(error("min_delta = -0.1\npatience = 1"), "c.toml: `min_delta` is -0.1; it must be 0 or more");
    assert_eq!(error("min_delta = 0.1"), "c.toml: `min_delta` is for `patience`: set both of them");
    assert_eq!(
        error("lr_schedule = \"plateau\"\nlr_factor = 1.0"),
        "c.toml: `lr_factor` is 1; `plateau` needs less than 1, so that the rate is lowered"
    );
    assert_eq!(
        error("lr_threshold = 1.0"),
        "c.toml: `lr_threshold` is 1; it must be at least 0 and less than 1"
    );
    let says = error("patience = -1");
    assert!(says.starts_with("c.toml:1:12: invalid value: integer `-1`, expected a whole number"), "{says}");
    assert!(
        error("epochs = \"two\"")
            .starts_with("c.toml:1:10: invalid type: string \"two\", expected a whole number")
    );
    assert!(error("epochs = ").starts_with("c.toml:1:10: "), "{}", error("epochs = "));
    assert!(!error("epochs = [\n1,\n").contains('\n'));
}

#[test]
fn keys_of_other_models_are_refused() {
    for (text, says) in [
        ("vocabulary = 144115188075855872", "`vocabulary` is 144115188075855872; it must be 1 to 1048576"),
        ("model = \"bert\"", "model `bert` classifies arrays of tokens; set data = \"arrays\""),
        (
            "attention_dropout = 0.1",
            "`attention_dropout` is for models `gpt` and `bert`; the others have no attention",
        ),
        (
            "model = \"vgg11\"\ndropout = 0.5",
            "`dropout` is for models `gpt` and `bert`, and for a vgg with `imagenet_stem`; the others drop nothing",
        ),
        ("imagenet_stem = true", "`imagenet_stem` is for resnets and vggs; another model has one form"),
    ] {
        assert_eq!(error(text), format!("c.toml: {says}"));
    }
}

#[test]
fn pictures_that_cannot_be_cut_or_scaled_are_refused() {
    for (text, says) in [
        ("picture_size = 0", "`picture_size` is 0; it must be 1 to 16384"),
        ("resize = 20000", "`resize` is 20000; it must be 1 to 16384"),
        (
            "data = \"pictures\"\npicture_size = 300",
            "`resize` is 256 and `picture_size` 300, which is cut out of that; set `resize` to 300 or more",
        ),
        (
            "random_resized_crop = true",
            "`random_resized_crop` is for data \"pictures\", and the data is \"digits\"; `crop_padding` moves any picture",
        ),
        (
            "data = \"pictures\"\nrandom_resized_crop = true\ncrop_padding = 4",
            "`random_resized_crop` and `crop_padding` both move pictures: set one of them",
        ),
        ("test_share = 1.0", "`test_share` is 1; it must be more than 0 and less than 1"),
        (
            "crop_scale = [0.5, 0.2]",
            "`crop_scale` is [0.5, 0.2]; it must be the least and the greatest value, more than 0 and at most 1",
        ),
        (
            "crop_ratio = [0.0, 1.0]",
            "`crop_ratio` is [0, 1]; it must be the least and the greatest value, more than 0 and at most 1000",
        ),
        ("picture_mean = [0.5, nan, 0.5]", "`picture_mean` has NaN; it must be finite"),
        ("picture_std = [1.0, 0.0, 1.0]", "`picture_std` has 0; it must be more than 0"),
    ] {
        assert_eq!(error(text), format!("c.toml: {says}"));
    }
    assert!(Config::parse("data = \"pictures\"\nrandom_resized_crop = true", "c.toml").is_ok());
}
