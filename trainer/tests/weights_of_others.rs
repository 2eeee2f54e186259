//! Weights under the names and in the places where other programs put them.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_trainer::models::{self, Gpt, gpt, mlp};
use allfold_trainer::weights::{UnmatchedTensors, load, load_matching};
use allfold_trainer::{Config, Error, Model, SampleForm};
use safetensors::tensor::{Dtype, TensorView};
use std::path::{Path, PathBuf};

/// Name, shape and values of a tensor to write.
type Named = (String, Vec<usize>, Vec<f32>);

/// The tensors of a model, element i of all with the value i.
fn tensors(model: &Model<f32>) -> Vec<Named> {
    let places = model.network().params().iter();
    places
        .map(|place| {
            (place.name.clone(), place.shape.clone(), place.range.clone().map(|i| i as f32).collect())
        })
        .collect()
}

fn counted(model: &Model<f32>) -> Vec<f32> {
    (0..model.params.len()).map(|i| i as f32).collect()
}

fn renamed(tensors: &[Named], name: impl Fn(&str) -> String) -> Vec<Named> {
    tensors.iter().map(|(old, shape, values)| (name(old), shape.clone(), values.clone())).collect()
}

fn save(path: &Path, tensors: &[Named], tied: Option<(&str, &str)>) {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(.., values)| values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let metadata = tied.map(|(name, kept)| [(name.to_string(), kept.to_string())].into());
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, metadata).unwrap()).unwrap();
}

fn small() -> Model<f32> {
    Model::new(mlp(4, &[3], 2).unwrap(), 8).unwrap()
}

fn gpt_of(tied: bool, layers: usize) -> Model<f32> {
    let parts = Gpt {
        vocabulary: 5,
        positions: 3,
        layers,
        width: 4,
        heads: 1,
        dropout: 0.0,
        attention_dropout: 0.0,
        tied,
    };
    Model::new(gpt(&parts).unwrap(), 8).unwrap()
}

fn bert() -> Model<f32> {
    let config = Config::default().with(|c| {
        c.model.name = "bert".into();
        (c.model.layers, c.model.width, c.model.heads, c.model.vocabulary) = (1, 4, 1, 6);
        c.data.positions = 3;
    });
    Model::new(models::build(&config, SampleForm::new((1, 1, 3), 2)).unwrap(), 8).unwrap()
}

/// What [`load_matching`] says of these tensors, and the model's values afterwards; the same as [`load`]'s if all is right.
fn taken(mut model: Model<f32>, tensors: &[Named]) -> (UnmatchedTensors, Vec<f32>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    save(&path, tensors, None);
    let unmatched = load_matching(&path, &mut model).unwrap();
    let loaded = model.params.clone();
    let strict = load(&path, &mut model);
    assert_eq!(strict.is_ok(), unmatched.missing.is_empty() && unmatched.unexpected.is_empty(), "{strict:?}");
    (unmatched, loaded)
}

fn refused(mut model: Model<f32>, tensors: &[Named]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    save(&path, tensors, None);
    let errors = [load(&path, &mut model).unwrap_err(), load_matching(&path, &mut model).unwrap_err()];
    let [strict, matching] =
        errors.map(|error| error.to_string().replace(&path.display().to_string(), "FILE"));
    assert_eq!(strict, matching);
    strict
}

#[test]
fn names_with_prefixes_of_wrappers_are_the_models_names() {
    let plain = tensors(&small());
    for prefix in [
        "module.",
        "_orig_mod.",
        "module._orig_mod.",
        "_orig_mod.module.",
        "module.module.",
        "model.",
        "net.",
        "backbone.",
        "_forward_module.",
        "_fsdp_wrapped_module.",
        "trainer.model.module.",
        "a.b.c.d.",
    ] {
        let (unmatched, values) = taken(small(), &renamed(&plain, |name| format!("{prefix}{name}")));
        assert_eq!(values, counted(&small()), "{prefix}");
        assert_eq!((unmatched.missing, unmatched.unexpected), (vec![], vec![]), "{prefix}");
        let said = unmatched.changes.join("; ");
        assert!(prefix.split_terminator('.').all(|part| said.contains(part)), "{prefix}: {said}");
    }
    // A wrapper around one layer, and tensors that are not under the prefix.
    let inner = renamed(&plain, |name| name.replace("fc1.", "fc1._fsdp_wrapped_module."));
    assert_eq!(taken(small(), &inner).1, counted(&small()));
    let mut beside = renamed(&plain, |name| format!("backbone.{name}"));
    beside.push(("criterion.weight".into(), vec![2], vec![0.0; 2]));
    let (unmatched, values) = taken(small(), &beside);
    assert_eq!(values, counted(&small()));
    assert_eq!(unmatched.beside, [("criterion.weight".to_string(), vec![2])]);
}

#[test]
fn two_prefixes_that_fit_are_an_error_and_the_models_own_names_come_first() {
    let plain = tensors(&small());
    let others: Vec<Named> = renamed(&plain, |name| format!("encoder_k.{name}"))
        .into_iter()
        .map(|(name, shape, values)| (name, shape, values.iter().map(|value| value + 1.0).collect()))
        .collect();
    let both = [renamed(&plain, |name| format!("encoder_q.{name}")), others.clone()].concat();
    let error = refused(small(), &both);
    assert!(
        error.contains("under `encoder_") && error.contains("name one, as model.weights_entry = "),
        "{error}"
    );
    let (unmatched, values) = taken(small(), &[plain, others].concat());
    assert_eq!((values, unmatched.unexpected.len()), (counted(&small()), 4));
    // Two layers that happen to fit are no reason to leave out a prefix.
    let model = Model::<f32>::new(mlp(4, &[3, 3, 3, 3], 2).unwrap(), 8).unwrap();
    let own = tensors(&model);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    save(&path, &renamed(&own, |name| format!("{}x.{name}", &name[..3])), None);
    let error = load_matching(&path, &mut { model }).unwrap_err().to_string();
    assert!(error.contains("has no tensor that fits the model by name and shape"), "{error}");
}

#[test]
fn tied_weights_are_read_once_or_twice_and_unequal_copies_are_refused() {
    let (head, table) = ("lm_head.weight", "transformer.wte.weight");
    let plain = tensors(&gpt_of(true, 1));
    let alias = renamed(&plain, |name| name.replace(table, head));
    let copy = alias.iter().find(|(name, ..)| name == head).unwrap().clone();
    let twice = [plain.clone(), vec![copy.clone()]].concat();
    for given in [&plain, &alias, &twice] {
        assert_eq!(taken(gpt_of(true, 1), given).1, counted(&gpt_of(true, 1)));
        let (unmatched, values) = taken(gpt_of(false, 1), given);
        assert!(unmatched.missing.is_empty(), "{unmatched:?}");
        assert_eq!(values[..20], counted(&gpt_of(true, 1))[..20]);
        assert_eq!(values[values.len() - 20..], values[..20]);
    }
    let mut unequal = twice;
    unequal.last_mut().unwrap().2[7] += 1.0;
    let error = refused(gpt_of(true, 1), &unequal);
    assert!(error.contains("has other values in `lm_head.weight` than in the token table"), "{error}");
    assert_eq!(taken(gpt_of(false, 1), &unequal).0, UnmatchedTensors::default());
    // Names that safetensors' `save_model` keeps in the metadata.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    save(&path, &alias, Some((table, head)));
    let mut model = gpt_of(true, 1);
    assert_eq!(load_matching(&path, &mut model).unwrap(), UnmatchedTensors::default());
    assert_eq!(model.params, counted(&model));
}

#[test]
fn names_of_published_berts_and_gpts_are_read_with_their_layer_norms() {
    let plain = tensors(&bert());
    let old = |name: &str| {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    };
    let body: Vec<Named> =
        plain.iter().filter(|(name, ..)| !name.starts_with("classifier")).cloned().collect();
    for names in [
        renamed(&plain, old),
        renamed(&plain, |name| name.strip_prefix("bert.").unwrap_or(name).into()),
        renamed(&plain, |name| old(name.strip_prefix("bert.").unwrap_or(name))),
        renamed(&plain, |name| format!("module.{}", old(name))),
    ] {
        assert_eq!(taken(bert(), &names).1, counted(&bert()));
    }
    for names in [
        renamed(&body, old),
        renamed(&body, |name| name.strip_prefix("bert.").unwrap().into()),
        renamed(&body, |name| format!("model.{}", name.strip_prefix("bert.").unwrap())),
        renamed(&body, |name| format!("model.{}", old(name))),
    ] {
        let (unmatched, values) = taken(bert(), &names);
        let (all, initial) = (counted(&bert()), bert().params);
        let classifier = all.len() - 10;
        assert_eq!(
            (&values[..classifier], &values[classifier..]),
            (&all[..classifier], &initial[classifier..])
        );
        assert_eq!(unmatched.missing.len(), 2, "{unmatched:?}");
    }

    // Hugging Face's GPT-2: no `transformer.`, weights the other way round, and the mask of attention.
    let conv1d = ["c_attn.weight", "c_proj.weight", "c_fc.weight"];
    let mut published =
        renamed(&tensors(&gpt_of(true, 2)), |name| name.strip_prefix("transformer.").unwrap().into());
    for (_, shape, values) in
        published.iter_mut().filter(|(name, ..)| conv1d.iter().any(|end| name.ends_with(end)))
    {
        let (rows, columns) = (shape[0], shape[1]);
        *values = (0..rows * columns).map(|i| values[i % rows * columns + i / rows]).collect();
        shape.reverse();
    }
    published.push(("h.0.attn.bias".into(), vec![1, 1, 3, 3], vec![1.0; 9]));
    let (unmatched, values) = taken(gpt_of(true, 2), &published);
    assert_eq!(values, counted(&gpt_of(true, 2)));
    assert!(unmatched.changes.join("; ").contains("transposed"), "{unmatched:?}");
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/state_dict").join(name)
}

/// The values of `fixtures/state_dict.py`.
fn values() -> Vec<f32> {
    let tensor = |(number, count)| (0..count).map(move |i| i as f32 / 8.0 + number as f32);
    [12, 3, 6, 2].into_iter().enumerate().flat_map(tensor).collect()
}

#[test]
fn entries_of_checkpoints_are_chosen_by_what_fits_and_by_known_names() {
    let changes = |name: &str| {
        let mut model = small();
        let unmatched = load_matching(&fixture(name), &mut model).unwrap();
        assert_eq!(model.params, values(), "{name}");
        unmatched.changes
    };
    assert_eq!(changes("nested.pt"), ["its entry `model` is read"]);
    assert_eq!(changes("net.pt"), ["its entry `net` is read, not `ema`, which model.weights_entry can name"]);
    assert_eq!(changes("beside.pt"), ["its entry `state_dict` is read"]);
    load(&fixture("beside.pt"), &mut small()).unwrap();
    let error = load(&fixture("two.pt"), &mut small()).unwrap_err().to_string();
    let says = "holds weights that fit in `teacher` and in `student`; name one, as model.weights_entry = \"teacher\"";
    assert!(error.ends_with(says), "{error}");
    let mut model = small();
    let error = load(&fixture("sparse.pt"), &mut model).unwrap_err().to_string();
    assert!(error.ends_with("`fc1.bias` is sparse; save it after `.to_dense()`"), "{error}");
    let unmatched = load_matching(&fixture("sparse.pt"), &mut model).unwrap();
    assert_eq!(unmatched.changes, ["`fc1.bias` is sparse; save it after `.to_dense()`"]);
}

#[test]
fn files_before_pytorch_1_6_are_read_and_cut_ones_are_refused() {
    let mut model = small();
    load(&fixture("legacy_checkpoint.pt"), &mut model).unwrap();
    assert_eq!(model.params, values());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pth");
    let whole = std::fs::read(fixture("legacy.pt")).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        load_matching(&path, &mut model).unwrap_err();
    }
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let error = load(&path, &mut model).unwrap_err().to_string();
    assert!(error.contains(&format!("ends at byte {} within the storage", whole.len() - 1)), "{error}");
}

#[test]
fn other_files_are_named_as_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pth");
    let mut tar = [0; 512];
    tar[..8].copy_from_slice(b"sys_info");
    tar[257..262].copy_from_slice(b"ustar");
    for (bytes, what) in [
        (&b""[..], "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n", "is a pointer of Git LFS"),
        (b"<!doctype html><html>Sign in</html>", "is a web page"),
        (b"\n <?xml version=\"1.0\"?><Error/>", "is a web page or other XML"),
        (b"{\"message\": \"Not Found\"}", "is JSON text"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0", "is compressed by gzip"),
        (b"\x89HDF\r\n\x1a\n\0\0", "is an HDF5 file"),
        (b"\x80\x04\x95\x05\0\0\0\0\0\0\0}.", "is a pickle that `torch.save` did not write"),
        (&tar, "is of the .tar format of PyTorch 0.1"),
        (&[&[0; 257][..], b"ustar\0"].concat(), "is a .tar archive"),
        (b"Not Found, and more", "is neither a safetensors file nor a .pt of PyTorch"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = load(&path, &mut small()).unwrap_err().to_string();
        assert!(error.contains(&format!(": {what}")), "{error}");
    }
}

#[test]
fn a_file_larger_than_memory_is_refused_by_its_header_and_a_pipe_before_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    // A tensor of a terabyte, which takes no space on the disk.
    let header = format!(
        r#"{{"fc1.weight":{{"dtype":"F32","shape":[{0}],"data_offsets":[0,{1}]}}}}"#,
        1u64 << 38,
        1u64 << 40
    );
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(8 + header.len() as u64 + (1 << 40)).unwrap();
    let error = load(&path, &mut small()).unwrap_err().to_string();
    assert!(
        error.contains("`fc1.weight` has the shape [274877906944] where the model wants [3, 4]"),
        "{error}"
    );

    let pipe = folder.path().join("pipe.pt");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = load(&pipe, &mut small()).unwrap_err().to_string();
    assert!(error.ends_with("is no regular file; weights are read from files alone"), "{error}");
    for name in ["a\0b".to_string(), "a".repeat(5000)] {
        let error = load(Path::new(&name), &mut small()).unwrap_err();
        assert!(matches!(error, Error::Checkpoint(_)) && error.to_string().len() < 600, "{error}");
    }
}
