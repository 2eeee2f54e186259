//! Weights from files: values of PyTorch's archives, files that are refused, files that fit in part, and fine-tuning.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_collectives::{Communicator, World};
use allfold_kernels::nn::Float;
use allfold_trainer::models::{self, Cnn, Gpt, cnn, gpt, mlp};
use allfold_trainer::weights::{UnmatchedTensors, load, load_matching, take_matching};
use allfold_trainer::{Config, Error, Model, Observer, Optimiser, SampleForm, Sgd, checkpoint, train};
use safetensors::tensor::{Dtype, TensorView};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

#[test]
fn a_checkpoints_weights_are_carried_over_and_a_cut_one_says_where_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config::default().with(|c| c.checkpoint.dir = directory.path().display().to_string());
    let mut model = Model::<f32>::new(mlp(4, &[3], 2).unwrap(), 7).unwrap();
    let mut sgd = Sgd::new(0.9, 0.0, false);
    let grads = vec![0.5; model.params.len()];
    sgd.step(0.1, &mut model.params, &grads);
    let path = {
        let (losses, own) = (&[0.5], &Vec::new());
        let model = &model;
        let run = checkpoint::Snapshot {
            config: &config,
            data: &checkpoint::TrainedOn::default(),
            step: 1,
            ranks: 2,
            model,
            scaler: None,
            losses,
            epochs: &[],
            own,
        };
        checkpoint::save(run, &mut sgd, checkpoint::Files { step: true, best: false }).unwrap()
    };
    let mut other = Model::<f32>::new(mlp(4, &[3], 2).unwrap(), 8).unwrap();
    load(&path, &mut other).unwrap();
    assert_eq!(other.params, model.params);
    let mut wider = Model::<f32>::new(mlp(4, &[5], 2).unwrap(), 8).unwrap();
    let error = load(&path, &mut wider).unwrap_err().to_string();
    assert!(
        error.contains("`model.fc1.weight` has the shape [3, 4] where the model wants [5, 4]"),
        "{error}"
    );

    let bytes = std::fs::read(&path).unwrap();
    for (length, what) in [
        (5, "ends at byte 5 within the length of its header".to_string()),
        (100, "ends at byte 100 within its header".into()),
        (bytes.len() - 2, format!("ends at byte {} within the tensor `", bytes.len() - 2)),
    ] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let error = load(&path, &mut other).unwrap_err().to_string();
        assert!(error.contains(&what), "{error}");
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/state_dict").join(name)
}

/// The values that `fixtures/state_dict.py` gives the tensors of the MLP: of four tensors in order.
fn values() -> Vec<f64> {
    let counts = [12, 3, 6, 2];
    let tensor = |(number, count)| (0..count).map(move |i| f64::from(i) / 8.0 + number as f64);
    counts.into_iter().enumerate().flat_map(tensor).collect()
}

fn small<F: Float>(classes: usize) -> Model<F> {
    Model::new(mlp(4, &[3], classes).unwrap(), 8).unwrap()
}

/// The error of `load` and `load_matching` for a file, without its path.
fn refused(path: &Path) -> String {
    let said = |error: Error| error.to_string().replace(&path.display().to_string(), "FILE");
    let strict = said(load(path, &mut small::<f32>(2)).unwrap_err());
    let matching = said(load_matching(path, &mut small::<f32>(2)).unwrap_err());
    assert_eq!(strict, matching);
    strict
}

#[test]
fn state_dicts_that_pytorch_saved_have_pytorchs_values() {
    let same = [
        "f32.pt",
        "f64.pt",
        "f16.pt",
        "bf16.pt",
        "protocol4.pt",
        "parameters.pt",
        "nested.pt",
        "checkpoint.pt",
        "ddp.pt",
        "legacy.pt",
    ];
    for name in same {
        let mut model = small::<f32>(2);
        load(&fixture(name), &mut model).unwrap();
        assert_eq!(
            model.params.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(),
            values(),
            "{name}"
        );
    }
    // The bias of the last layer is one value, repeated.
    let mut model = small::<f64>(2);
    load(&fixture("views.pt"), &mut model).unwrap();
    let mut want = values();
    want[22] = 3.0;
    assert_eq!(model.params, want);
}

#[test]
fn buffers_and_tied_weights_are_read_from_state_dicts() {
    let parts = Cnn { shape: (1, 2, 2), channels: &[2], batch_norm: true, classes: 2 };
    let mut model = Model::<f32>::new(cnn(&parts).unwrap(), 8).unwrap();
    model.buffers.fill(7.0);
    let before = model.params.clone();
    load(&fixture("conv.pt"), &mut model).unwrap();
    assert_eq!(model.buffers, [0.0, 0.0, 1.0, 1.0]);
    let changed = model.params.iter().zip(&before).filter(|(now, before)| now != before).count();
    // The convolution and the linear layer: the batch norm begins with PyTorch's values.
    assert_eq!(changed, 18 + 4 + 2);

    let parts = |tied| Gpt {
        vocabulary: 5,
        positions: 3,
        layers: 0,
        width: 4,
        heads: 1,
        dropout: 0.0,
        attention_dropout: 0.0,
        tied,
    };
    let [tied, untied] = [true, false].map(|tied| {
        let mut model = Model::<f32>::new(gpt(&parts(tied)).unwrap(), 8).unwrap();
        load(&fixture("tied.pt"), &mut model).unwrap();
        model
    });
    let head = &untied.network().params().iter().find(|place| place.name == "lm_head.weight").unwrap().range;
    assert_eq!(untied.params[head.clone()], tied.params[..20]);
}

#[test]
fn files_that_are_no_weights_are_refused_with_what_would_be_right() {
    let nothing = "which is no part of weights; Allfold executes nothing from a file: save the tensors alone, by \
                   `torch.save(model.state_dict(), \"x.pt\")`";
    let said = |name| refused(&fixture(name));
    assert_eq!(said("module.pt"), format!("checkpoint: FILE: names __main__.Mlp, {nothing}"));
    assert_eq!(said("command.pt"), format!("checkpoint: FILE: names posix.system, {nothing}"));
    assert_eq!(
        said("compressed.pt"),
        "checkpoint: FILE: has `f32/byteorder` compressed or encrypted; leave the file as `torch.save` wrote it"
    );
    assert_eq!(
        said("big.pt"),
        "checkpoint: FILE: is not little-endian; write it by `torch.save` on a little-endian machine"
    );
    assert_eq!(
        said("nothing.pt"),
        "checkpoint: FILE: holds `epoch` and no tensors; save `model.state_dict()`"
    );
    assert_eq!(
        said("i32.pt"),
        "checkpoint: FILE: `fc1.weight` has the type I32; F16, BF16, F32 and F64 are read"
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pt");
    std::fs::write(&path, b"{}").unwrap();
    assert!(refused(&path).starts_with("checkpoint: FILE: is JSON text, and no weights"));
    let pickle = std::fs::read(fixture("f32.pt")).unwrap();
    for length in [16, 500, pickle.len() - 1] {
        std::fs::write(&path, &pickle[..length]).unwrap();
        let error = refused(&path);
        assert!(error.starts_with("checkpoint: FILE: has no directory at its end"), "{error}");
    }
}

#[test]
fn files_without_an_end_and_sparse_files_are_refused_before_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pth");
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    assert_eq!(refused(&path), "checkpoint: FILE: is no regular file; weights are read from files alone");
    // A whole archive, and then zeros up to a terabyte: the file takes no space on the disk.
    let path = folder.path().join("y.pt");
    std::fs::copy(fixture("f32.pt"), &path).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(refused(&path).starts_with("checkpoint: FILE: has no directory at its end"));
}

#[test]
fn what_fits_by_name_and_shape_is_taken_from_both_formats_and_the_rest_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let same = folder.path().join("classes5.safetensors");
    let tensors = [
        ("fc1.weight", vec![3, 4]),
        ("fc1.bias", vec![3]),
        ("fc2.weight", vec![5, 3]),
        ("fc2.bias", vec![5]),
    ];
    let bytes: Vec<Vec<u8>> = (tensors.iter().enumerate())
        .map(|(number, (_, shape))| {
            let count = shape.iter().product::<usize>();
            (0..count).flat_map(|i| (i as f32 / 8.0 + number as f32).to_le_bytes()).collect()
        })
        .collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape), bytes)| (*name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    std::fs::write(&same, safetensors::serialize(views, None).unwrap()).unwrap();
    for path in [fixture("classes5.pt"), same] {
        let initial = small::<f64>(2).params;
        let mut model = small::<f64>(2);
        let unmatched = load_matching(&path, &mut model).unwrap();
        assert_eq!(model.params[..15], values()[..15]);
        assert_eq!(model.params[15..], initial[15..]);
        let named =
            |rows| vec![("fc2.bias".to_string(), vec![rows]), ("fc2.weight".to_string(), vec![rows, 3])];
        let missing = named(2).into_iter().rev().collect();
        let want = UnmatchedTensors { missing, unexpected: named(5), ..UnmatchedTensors::default() };
        assert_eq!(unmatched, want);
        assert_eq!(
            unmatched.note(Path::new("x.pt")).unwrap(),
            "weights x.pt: 2 tensors of the model with random initial values: `fc2.weight` [2, 3], `fc2.bias` [2]; \
             2 tensors of the file not used: `fc2.bias` [5], `fc2.weight` [5, 3]"
        );
        let error = load(&path, &mut model).unwrap_err().to_string();
        assert!(
            error.ends_with(": `fc2.weight` has the shape [5, 3] where the model wants [2, 3]"),
            "{error}"
        );
        assert!(!initial.contains(&model.params[0]));
    }
    let whole = load_matching(&fixture("f32.pt"), &mut small::<f32>(2)).unwrap();
    assert_eq!((whole.note(Path::new("x")), whole), (None, UnmatchedTensors::default()));
}

#[test]
fn a_file_of_which_nothing_fits_is_refused() {
    let mut model = Model::<f32>::new(mlp(9, &[7, 6, 5, 4], 8).unwrap(), 8).unwrap();
    let error = load_matching(&fixture("conv.pt"), &mut model).unwrap_err().to_string();
    let said = "has no tensor that fits the model by name and shape: it has `bn1.bias` [2], `bn1.running_mean` [2], \
                `bn1.running_var` [2], `bn1.weight` [2] and 3 more, and the model wants `fc1.weight` [7, 9], \
                `fc1.bias` [7], `fc2.weight` [6, 7], `fc2.bias` [6] and 6 more";
    assert!(error.ends_with(said), "{error}");
}

#[test]
fn an_empty_tensor_of_sizes_whose_product_is_too_large_is_only_unknown() {
    let header = format!(r#"{{"x":{{"dtype":"F32","shape":[0,{0},{0}],"data_offsets":[0,0]}}}}"#, 1u64 << 40);
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    let error = take_matching(Path::new("x"), &bytes, &mut small::<f32>(2)).unwrap_err().to_string();
    assert!(error.contains("it has `x` [0, 1099511627776, 1099511627776], and the model wants"), "{error}");
}

struct Notes(Vec<String>);

impl Observer for Notes {
    fn note(&mut self, text: &str) {
        self.0.push(text.into());
    }
}

/// Fine-tuning: all layers but the last come from a file and are frozen; the last one has another number of classes.
#[test]
fn a_new_last_layer_is_trained_after_loaded_and_frozen_layers() {
    let weights = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/state_dict/classes5.pt");
    let of_model = |lr| {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::default().with(|c| {
            c.model.name = "mlp".into();
            c.model.hidden = vec![3];
            c.data.name = "synthetic".into();
            c.data.synthetic_shape = [1, 2, 2];
            c.data.synthetic_classes = 2;
            c.data.synthetic_samples = 40;
            c.model.weights = weights.into();
            c.model.weights_strict = false;
            c.model.frozen = vec!["*".into()];
            c.model.trained = vec!["fc2".into()];
            c.training.batch = 4;
            c.training.max_steps = 2;
            c.optimiser.lr = lr;
            c.checkpoint.dir = folder.path().display().to_string();
            c.checkpoint.every = 2;
        });
        let body = |comm: Communicator| {
            let mut notes = Notes(Vec::new());
            train(&config, &comm, &mut notes)?;
            Ok::<_, Error>(notes.0)
        };
        let notes = World::threads(2).run(body).unwrap();
        let said = "2 of the model's 4 tensors are from this file; 2 tensors of the model with random initial values: \
                    `fc2.weight` [2, 3], `fc2.bias` [2]; 2 tensors of the file not used: `fc2.bias` [5], `fc2.weight` [5, 3]";
        assert_eq!(notes, [vec![format!("weights {weights}: {said}")], Vec::new()]);
        let network = || models::build::<f32>(&config, SampleForm::new((1, 2, 2), 2)).unwrap();
        let (initial, mut model) =
            (Model::new(network(), config.seed).unwrap(), Model::new(network(), 99).unwrap());
        let newest = checkpoint::newest(folder.path()).unwrap().unwrap();
        load(&newest, &mut model).unwrap();
        (initial.params, model.params)
    };
    let loaded: Vec<f32> = (0..12).chain(8..11).map(|i| i as f32 / 8.0).collect();
    let (initial, still) = of_model(0.0);
    assert_eq!((&still[..15], &still[15..]), (&loaded[..], &initial[15..]));
    let (_, trained) = of_model(0.5);
    assert_eq!(trained[..15], loaded[..]);
    assert!(trained[15..].iter().zip(&initial[15..]).all(|(now, before)| now != before));
}
