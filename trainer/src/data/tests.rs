use super::*;

#[test]
fn only_sets_that_can_be_fetched_are_said_to_be() {
    for (data, fetched) in [("mnist", true), ("cifar10", true), ("text", true), ("fashion_mnist", false)] {
        let config = Config { data: data.into(), data_dir: "no/such/folder".into(), ..Config::default() };
        let error = load(&config).unwrap_err().to_string();
        assert_eq!(error.contains("data fetch"), fetched, "{error}");
    }
}

#[test]
fn what_is_no_picture_cannot_be_moved() {
    for text in ["data = \"text\"\nflip = true", "model = \"gpt\"\ncrop_padding = 1"] {
        let error = Config::parse(text, "c.toml").unwrap_err().to_string();
        assert_eq!(
            error,
            "c.toml: `crop_padding` and `flip` change pictures, and the data is text: leave them out"
        );
    }
}

#[test]
fn a_set_is_of_the_form_that_is_told() {
    for (data, model) in [("digits", "cnn"), ("synthetic", "cnn"), ("synthetic", "gpt")] {
        let config = Config {
            data: data.into(),
            model: model.into(),
            synthetic_samples: 20,
            synthetic_shape: [3, 5, 4],
            synthetic_classes: 7,
            positions: 6,
            ..Config::default()
        };
        let (train, test) = load(&config).unwrap();
        for set in [train, test] {
            assert_eq!((set.shape, set.classes), form(&config).unwrap(), "{data}, {model}");
            assert!(set.labels.len() == set.len() * set.rows());
        }
    }
}
