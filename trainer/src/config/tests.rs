use super::*;

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
    assert_eq!(error("batch", "many"), "`batch`: invalid type: string \"many\", expected usize");
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
    assert_eq!(error("beta2 = 1.0"), "c.toml: `beta2` is 1; it must be at least 0 and less than 1");
    assert_eq!(error("optimiser = \"adan\""), "c.toml: unknown optimiser `adan`; the nearest is `adam`");
    assert!(error("epochs = \"two\"").starts_with("c.toml:1:10: invalid type: string \"two\", expected u64"));
    assert!(error("epochs = ").starts_with("c.toml:1:10: "), "{}", error("epochs = "));
    assert!(!error("epochs = [\n1,\n").contains('\n'));
}
