//! Weights of other programs: a safetensors file with PyTorch's names.
//!
//! ```text
//! layer1.0.conv1.weight [64, 64, 3, 3]     layer1.0.bn1.running_mean [64]     fc.bias [10]     ...num_batches_tracked
//! ```
//!
//! Every parameter and buffer of the model must be there, in its shape; f32 and f64 are read, f16 and bf16 widened. What
//! PyTorch counts beside (`num_batches_tracked`) is passed over; any other tensor is of another model, and refused. Of a
//! checkpoint the model's tensors are taken, whatever the number of ranks and the optimiser of the run that wrote it.

use crate::{Error, Model, Result, checkpoint};
use allfold_kernels::nn::Float;
use allfold_kernels::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::path::Path;

/// Replaces all parameters and buffers of `model` by those of a file.
///
/// # Errors
/// If the file cannot be read, or a tensor is missing, too many, or of another shape or type; the model is then not to be
/// used.
pub fn load<F: Float>(path: &Path, model: &mut Model<F>) -> Result<()> {
    let bytes = std::fs::read(path).map_err(|error| checkpoint::unread(path, &error))?;
    take(path, &bytes, model)
}

/// [`load`] from the bytes of a file; `path` is for messages.
///
/// # Errors
/// As [`load`].
pub fn take<F: Float>(path: &Path, bytes: &[u8], model: &mut Model<F>) -> Result<()> {
    let bad = |what: String| Error::Checkpoint(format!("{}: {what}", path.display()));
    let all = SafeTensors::deserialize(bytes).map_err(|error| bad(checkpoint::damage(bytes, &error)))?;
    let ours = all.names().iter().any(|name| name.starts_with(checkpoint::MODEL));
    let named = |name: &str| if ours { format!("{}{name}", checkpoint::MODEL) } else { name.to_string() };
    let params = model.network().params().iter().map(|place| (place.clone(), true));
    let places: Vec<_> =
        params.chain(model.network().buffers().iter().map(|place| (place.clone(), false))).collect();
    for name in all.names() {
        let beside = name.ends_with("num_batches_tracked") || ours && !name.starts_with(checkpoint::MODEL);
        if !beside && !places.iter().any(|(place, _)| named(&place.name) == name) {
            return Err(bad(format!("has a tensor `{name}` that the model does not have")));
        }
    }
    for (place, param) in places {
        let name = &named(&place.name);
        let view = all.tensor(name).map_err(|_| bad(format!("has no tensor `{name}`")))?;
        if view.shape() != place.shape {
            let (has, wants) = (view.shape(), &place.shape);
            return Err(bad(format!("`{name}` has the shape {has:?} where the model wants {wants:?}")));
        }
        let values = if param { &mut model.params } else { &mut model.buffers };
        copy(&view, &mut values[place.range]).map_err(|what| bad(format!("`{name}` {what}")))?;
    }
    Ok(())
}

fn copy<F: Float>(view: &TensorView, to: &mut [F]) -> std::result::Result<(), String> {
    fn each<F: Float, const N: usize>(data: &[u8], to: &mut [F], value: impl Fn([u8; N]) -> f64) {
        let (values, _) = data.as_chunks::<N>();
        to.iter_mut().zip(values).for_each(|(to, &bytes)| *to = F::from_f64(value(bytes)));
    }
    let data = view.data();
    match view.dtype() {
        Dtype::F64 => each(data, to, f64::from_le_bytes),
        Dtype::F32 => each(data, to, |bytes| f64::from(f32::from_le_bytes(bytes))),
        Dtype::F16 => each(data, to, |bytes| f16::from_le_bytes(bytes).to_f64()),
        Dtype::BF16 => each(data, to, |bytes| bf16::from_le_bytes(bytes).to_f64()),
        other => return Err(format!("has the type {other:?}; F16, BF16, F32 and F64 are read")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::models::mlp;
    use crate::optim::{Optimiser, Sgd};

    #[test]
    fn a_checkpoints_weights_are_carried_over_and_a_cut_one_says_where_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config { checkpoint_dir: directory.path().display().to_string(), ..Config::default() };
        let mut model = Model::<f32>::new(mlp(4, &[3], 2).unwrap(), 7).unwrap();
        let mut sgd = Sgd::new(0.9, 0.0, false);
        sgd.step(0.1, &mut model.params, &model.grads);
        let path = {
            let (losses, own) = (&[0.5], &Vec::new());
            let (model, optimiser) = (&model, &mut sgd);
            let run = checkpoint::Snapshot {
                config: &config,
                step: 1,
                ranks: 2,
                model,
                optimiser,
                scaler: None,
                losses,
                own,
            };
            checkpoint::save(run).unwrap()
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
}
