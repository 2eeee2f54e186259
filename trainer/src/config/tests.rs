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
