use super::*;

#[test]
fn only_sets_that_can_be_fetched_are_said_to_be() {
    for (data, fetched) in [("mnist", true), ("cifar10", true), ("text", true), ("fashion_mnist", false)] {
        let config = Config::default().with(|c| {
            c.data.name = data.into();
            c.data.dir = "no/such/folder".into();
        });
        let error = load(&config).unwrap_err().to_string();
        assert_eq!(error.contains("data fetch"), fetched, "{error}");
    }
}

#[test]
fn what_is_no_picture_cannot_be_moved() {
    for text in ["data = \"text\"\nflip = true", "model = \"gpt\"\ncrop_padding = 1"] {
        let error = crate::config::parse(text, "c.toml").unwrap_err().to_string();
        assert_eq!(
            error,
            "c.toml: `data.crop_padding` and `data.flip` change pictures, and the data is text: leave them out"
        );
    }
}

#[test]
fn a_set_is_of_the_form_that_is_told() {
    for (data, model) in [("digits", "cnn"), ("synthetic", "cnn"), ("synthetic", "gpt")] {
        let config = Config::default().with(|c| {
            c.data.name = data.into();
            c.model.name = model.into();
            c.data.synthetic_samples = 20;
            c.data.synthetic_shape = [3, 5, 4];
            c.data.synthetic_classes = 7;
            c.data.positions = 6;
        });
        let (train, test) = load(&config).unwrap();
        for set in [train, test] {
            assert_eq!(set.form(), form(&config).unwrap(), "{data}, {model}");
            assert!(set.labels.len() == set.len() * set.rows());
        }
    }
}
