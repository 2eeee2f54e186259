//! Weights of other programs: a file of tensors with PyTorch's names.
//!
//! ```text
//! layer1.0.conv1.weight [64, 64, 3, 3]     layer1.0.bn1.running_mean [64]     fc.bias [10]     ...num_batches_tracked
//! ```
//!
//! The file is safetensors, or an archive that `torch.save` wrote, of a state dict or of a dict with one as the entry `state_dict`,
//! `model_state_dict` or `model`. Tensors are f64, f32, f16 or bf16. PyTorch's counters (`num_batches_tracked`) are ignored. If all
//! names begin with `module.`, as `DistributedDataParallel` makes them, this prefix is left out. A checkpoint of Allfold can be
//! read too: its model's tensors are taken, whatever the number of ranks and the optimiser of its run.

mod matching;

pub use matching::UnmatchedTensors;

use crate::{Config, Error, Model, Result, checkpoint};
use allfold_kernels::nn::Float;
use allfold_tensor_files::{StoredTensor, pickle, state_dict, tensor_file, wrong};
use matching::matched;
use safetensors::tensor::{SafeTensors, TensorInfo};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Cursor, Read, Seek};
use std::path::Path;

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
    let unmatched = open(path, model, config.model.weights_strict)?;
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
    open(path, model, true).map(drop)
}

/// Replaces the parameters and buffers of `model` for which a file has a tensor of the same name and shape. Returns the names of
/// the others, and of the tensors in the file that were not used.
///
/// # Errors
/// If the file cannot be read, no tensor fits, or one that fits has another type; the model is then not to be used.
pub fn load_matching<F: Float>(path: &Path, model: &mut Model<F>) -> Result<UnmatchedTensors> {
    open(path, model, false)
}

/// [`load_matching`] from the bytes of a file; `path` is for messages, and its ending for the format.
///
/// # Errors
/// As [`load_matching`].
pub fn take_matching<F: Float>(path: &Path, bytes: &[u8], model: &mut Model<F>) -> Result<UnmatchedTensors> {
    let mut from = Cursor::new(bytes);
    let tensors = match of_pytorch(path, bytes) {
        true => state_dict::tensors(&mut from),
        false => safetensors(bytes),
    };
    fill(path, &tensors.map_err(|error| checkpoint::unread(path, &error))?, &mut from, (model, false))
}

/// Reads bytes as the pickle of a state dict, and drops the result: for fuzzers. The bytes may be refused; reading never panics,
/// or allocates by a number in the bytes.
pub fn read_any_pickle(bytes: &[u8]) {
    pickle::read_any(bytes);
}

fn open<F: Float>(path: &Path, model: &mut Model<F>, strict: bool) -> Result<UnmatchedTensors> {
    let failed = |error: io::Error| checkpoint::unread(path, &error);
    let mut file = File::open(path).map_err(failed)?;
    let regular = file.metadata().map_err(failed)?.is_file();
    let mut first = Vec::new();
    if regular {
        (&file).take(16).read_to_end(&mut first).map_err(failed)?;
    }
    if of_pytorch(path, &first) {
        if !regular {
            let what = "is no regular file, which an archive of PyTorch's has to be";
            return Err(failed(wrong(what.into())));
        }
        let tensors = state_dict::tensors(&mut file).map_err(failed)?;
        return fill(path, &tensors, &mut file, (model, strict));
    }
    let bytes = tensor_file::read(path).map_err(failed)?;
    if !checkpoint::begins(&bytes) {
        let what = "is neither a safetensors file nor a .pt of PyTorch, as torch.save writes it";
        return Err(failed(wrong(what.into())));
    }
    let tensors = safetensors(&bytes).map_err(failed)?;
    fill(path, &tensors, &mut Cursor::new(&bytes[..]), (model, strict))
}

/// Whether a file is to be read as one of `torch.save`: by its first bytes, or by the ending of its name.
fn of_pytorch(path: &Path, first: &[u8]) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    state_dict::begins(first) || matches!(ending, Some("pt" | "pth"))
}

/// The tensors of a safetensors file by name.
fn safetensors(bytes: &[u8]) -> io::Result<BTreeMap<String, StoredTensor>> {
    let damaged = |error| wrong(checkpoint::damage(bytes, &error));
    let (header, about) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
    let stored = |info: &TensorInfo| tensor_file::stored(info, 8 + header as u64);
    Ok(about.tensors().into_iter().map(|(name, info)| (name, stored(info))).collect())
}

/// Fills a model from a file with these tensors. If `strict`, all must match.
fn fill<F: Float>(
    path: &Path,
    tensors: &BTreeMap<String, StoredTensor>,
    from: &mut (impl Read + Seek),
    (model, strict): (&mut Model<F>, bool),
) -> Result<UnmatchedTensors> {
    let bad = |what: String| Error::Checkpoint(format!("{}: {what}", path.display()));
    let params = model.network().params().iter().map(|place| (place, true));
    let places = params.chain(model.network().buffers().iter().map(|place| (place, false)));
    let (taken, unmatched) = matched(tensors, places);
    let refusal = if strict { unmatched.first() } else { None };
    if let Some(what) = refusal.or_else(|| taken.is_empty().then(|| unmatched.of_another_model())) {
        return Err(bad(what));
    }
    for (name, tensor, range, is_param) in taken {
        let values = if is_param { &mut model.params } else { &mut model.buffers };
        tensor.read(from, &mut values[range]).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => bad(format!("`{name}` {error}")),
            _ => checkpoint::unread(path, &error),
        })?;
    }
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
        for bytes in [&b"\x89PNG\r\n\x1a\n\0\0"[..], b"\x08\0\0\0\0\0\0\0<html>"] {
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
