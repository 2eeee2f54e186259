//! Weights of other programs: a file of tensors with PyTorch's names.
//!
//! ```text
//! layer1.0.conv1.weight [64, 64, 3, 3]     layer1.0.bn1.running_mean [64]     fc.bias [10]     ...num_batches_tracked
//! ```
//!
//! The file is safetensors, or one that `torch.save` wrote, of a state dict or of dicts and lists with one inside: the one of which
//! most tensors fit is taken. Tensors are f64, f32, f16 or bf16. Tensors of integers (`num_batches_tracked`) are ignored. What wrappers
//! put into names is left out, and so is a prefix that leads to the model's names. A checkpoint of Allfold can be read too: its model's
//! tensors are taken, whatever the number of ranks and the optimiser of its run.

mod choice;
mod matching;
mod names;

pub use matching::UnmatchedTensors;

use crate::{Config, Error, Model, Result, checkpoint};
use allfold_config::ModelConfig;
use allfold_kernels::nn::Float;
use allfold_tensor_files::{TensorDict, pickle, weight_file, wrong};
use matching::{Matched, matched};
use std::fs::{self, File};
use std::io::{self, Cursor, Read, Seek};
use std::path::Path;

/// How much of a path an error shows.
const MOST_PATH: usize = 400;

/// Takes the weights of the file that `config` names, if it names one. Returns how many tensors the file gave and what did not match,
/// for the user.
pub(crate) fn initial<F: Float>(config: &Config, model: &mut Model<F>) -> Result<Option<String>> {
    let path = Path::new(&config.model.weights);
    if config.model.weights.is_empty() {
        return Ok(None);
    }
    if path.is_dir() {
        return Err(Error::Checkpoint(format!(
            "`model.weights` {} is a folder; it is the name of a file",
            path.display()
        )));
    }
    let network = model.network();
    let tensors = network.params().len() + network.buffers().len();
    let ModelConfig { weights_strict, weights_entry, .. } = &config.model;
    let unmatched = open(path, model, *weights_strict, weights_entry)?;
    let given = tensors - unmatched.missing.len();
    let mut said = vec![format!("{given} of the model's {tensors} tensors are from this file")];
    said.extend(unmatched.kinds());
    Ok(Some(format!("weights {}: {}", path.display(), said.join("; "))))
}

/// Replaces all parameters and buffers of `model` by those of a file.
///
/// # Errors
/// If the file cannot be read, or a tensor is missing, unknown, or of another shape or type; the model is then not to be
/// used.
pub fn load<F: Float>(path: &Path, model: &mut Model<F>) -> Result<()> {
    open(path, model, true, "").map(drop)
}

/// Replaces the parameters and buffers of `model` for which a file has a tensor of the same name and shape. Returns the names of
/// the others, and of the tensors in the file that were not used.
///
/// # Errors
/// If the file cannot be read, no tensor fits, or one that fits has another type; the model is then not to be used.
pub fn load_matching<F: Float>(path: &Path, model: &mut Model<F>) -> Result<UnmatchedTensors> {
    open(path, model, false, "")
}

/// [`load_matching`] from the bytes of a file; `path` is for messages.
///
/// # Errors
/// As [`load_matching`].
pub fn take_matching<F: Float>(path: &Path, bytes: &[u8], model: &mut Model<F>) -> Result<UnmatchedTensors> {
    fill(path, &mut Cursor::new(bytes), model, false, "")
}

/// Reads bytes as the pickle of a state dict, and drops the result: for fuzzers. The bytes may be refused; reading never panics,
/// or allocates by a number in the bytes.
pub fn read_any_pickle(bytes: &[u8]) {
    pickle::read_any(bytes);
}

/// Fills a model from a file, which must be strict or not, and from this entry of it, if it is not empty.
fn open<F: Float>(path: &Path, model: &mut Model<F>, strict: bool, entry: &str) -> Result<UnmatchedTensors> {
    // Whatever is wrong with a name is the user's error.
    let named = |error: io::Error| {
        let path = path.display().to_string();
        let cut: String = path.escape_debug().take(MOST_PATH).collect();
        Error::Checkpoint(format!("{}: {error}", if path.len() > MOST_PATH { cut + ".." } else { cut }))
    };
    let about = fs::metadata(path).map_err(named)?;
    if !about.is_file() {
        // A pipe would be waited for, and a device may have no end.
        return Err(named(wrong("is no regular file; weights are read from files alone".into())));
    }
    let mut file = File::open(path).map_err(|error| checkpoint::unread(path, &error))?;
    fill(path, &mut file, model, strict, entry)
}

/// Fills a model from an open file. If `strict`, all its tensors must match.
fn fill<F: Float>(
    path: &Path,
    from: &mut (impl Read + Seek),
    model: &mut Model<F>,
    strict: bool,
    entry: &str,
) -> Result<UnmatchedTensors> {
    let bad = |what: String| Error::Checkpoint(format!("{}: {what}", path.display()));
    let failed = |name: &str, error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => bad(format!("`{}` {error}", pickle::shown(name))),
        _ => checkpoint::unread(path, &error),
    };
    let dicts = weight_file::dicts(from).map_err(|error| checkpoint::unread(path, &error))?;
    let network = model.network();
    let places: Vec<_> = (network.params().iter().map(|place| (place, true)))
        .chain(network.buffers().iter().map(|place| (place, false)))
        .collect();
    let dicts: Vec<TensorDict> = choice::narrowed(dicts, entry).map_err(bad)?;
    let (dict, names, said) = choice::best(&dicts, &places).map_err(bad)?;
    let Matched { taken, equal, mut unmatched, unread } = matched(dict, &names, &places);
    let refusal = if strict { unread.clone().or_else(|| unmatched.first()) } else { None };
    if let Some(what) = refusal.or_else(|| taken.is_empty().then(|| unmatched.of_another_model())) {
        return Err(bad(what));
    }
    for (name, tensor, range, is_param) in taken {
        let values = if is_param { &mut model.params } else { &mut model.buffers };
        tensor.read(from, &mut values[range]).map_err(|error| failed(name, error))?;
    }
    for (name, tensor, range) in equal {
        let mut values = vec![F::from_f64(0.0); range.len()];
        tensor.read(from, &mut values).map_err(|error| failed(name, error))?;
        if values != model.params[range] {
            return Err(bad(format!(
                "has other values in `{}` than in the token table, and they are one tensor of this model; set model.tied = false",
                pickle::shown(name)
            )));
        }
    }
    unmatched.changes = said.into_iter().chain(unread).chain(unmatched.changes).collect();
    Ok(unmatched)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::mlp;

    #[test]
    fn what_is_no_file_of_weights_is_refused_and_how_many_tensors_one_gave_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let with = |path: &Path, strict: bool| {
            let config = Config::default().with(|c| {
                c.model.weights = path.display().to_string();
                c.model.weights_strict = strict;
            });
            let mut model = Model::<f32>::new(mlp(4, &[3], 2).unwrap(), 8).unwrap();
            let said = initial(&config, &mut model).map_err(|error| error.to_string());
            said.map(|note| note.unwrap().replace(&path.display().to_string(), "FILE"))
                .map_err(|error| error.replace(&path.display().to_string(), "FILE"))
        };
        let refused = |path: &Path| with(path, true).unwrap_err();
        assert_eq!(
            refused(folder.path()),
            "checkpoint: `model.weights` FILE is a folder; it is the name of a file"
        );
        let picture = folder.path().join("a.png");
        let what = "is neither a safetensors file nor a .pt of PyTorch, as torch.save writes it";
        for bytes in [&b"\x88PNG\r\n\x1a\n\0\0"[..], b"\x08\0\0\0\0\0\0\0<html>"] {
            std::fs::write(&picture, bytes).unwrap();
            assert_eq!(refused(&picture), format!("checkpoint: FILE: {what}"));
        }
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/state_dict");
        let all = with(&fixtures.join("f32.pt"), true).unwrap();
        assert_eq!(all, "weights FILE: 4 of the model's 4 tensors are from this file");
        let some = with(&fixtures.join("classes5.pt"), false).unwrap();
        let starts =
            "weights FILE: 2 of the model's 4 tensors are from this file; 2 tensors of the model with";
        assert!(some.starts_with(starts), "{some}");
    }
}
