//! The classes of single pictures, by the weights of a checkpoint.
//!
//! ```text
//! checkpoint: configuration, names of classes, weights  ->  network  ->  logits of a picture  ->  softmax, greatest first
//! ```

use crate::checkpoint::TrainedOn;
use crate::{Batch, Config, Error, Model, Result, SampleForm, checkpoint, data, models, weights};
use allfold_config::ElementType;
use allfold_kernels::nn::Float;
use std::path::{Path, PathBuf};

/// The classes of each picture with their probabilities, the most likely first. `from` is a checkpoint in one file, or a folder of
/// checkpoints, whose best is taken or else the newest. A class without a name has its number.
///
/// # Errors
/// No such checkpoint, one of a model that is not trained on pictures or of an earlier version, or a file that is no picture.
pub fn predict(from: &Path, pictures: &[PathBuf]) -> Result<Vec<Vec<(String, f64)>>> {
    let best = from.join(checkpoint::BEST);
    let path = match from.is_dir() {
        false => from.to_path_buf(),
        true if best.exists() => best,
        true => checkpoint::newest(from)?
            .ok_or_else(|| Error::Checkpoint(format!("{}: has no checkpoint", from.display())))?,
    };
    let (on, config) = TrainedOn::read(&path)?;
    match config.precision.dtype {
        ElementType::F64 => of::<f64>(&config, &on, &path, pictures),
        ElementType::F32 => of::<f32>(&config, &on, &path, pictures),
    }
}

/// The brightness of a picture of red, green and blue, weighed by ITU-R BT.601 as Pillow's `convert("L")` does.
fn make_grey<F: Float>(x: &mut Vec<F>) {
    let plane = x.len() / 3;
    for at in 0..plane {
        let colours = [(0, 0.299), (plane, 0.587), (2 * plane, 0.114)];
        x[at] = F::from_f64(colours.iter().map(|(from, weight)| weight * x[from + at].to_f64()).sum());
    }
    x.truncate(plane);
}

fn of<F: Float>(
    config: &Config,
    on: &TrainedOn,
    path: &Path,
    pictures: &[PathBuf],
) -> Result<Vec<Vec<(String, f64)>>> {
    let [channels, height, width] = on.shape;
    let form = match on.classes {
        0 => data::form(config).ok_or_else(|| {
            let what = "is of an earlier version, which keeps no classes, and its `data.dir` cannot be read";
            Error::Checkpoint(format!("{}: {what}", path.display()))
        })?,
        classes => SampleForm::new((channels, height, width), classes),
    };
    let set = data::pictures::alone(config, pictures)?;
    let mut model = Model::<F>::new(models::build(config, form)?, 0)?;
    if let Some(narrow) = models::narrow(config.precision.amp) {
        model.autocast(narrow);
    }
    weights::load(path, &mut model)?;
    let mut batch = Batch::default();
    let classes = (0..pictures.len()).map(|picture| -> Result<Vec<(String, f64)>> {
        set.gather(&[picture], &mut batch)?;
        if channels == 1 {
            make_grey(&mut batch.x);
        }
        model.evaluate(&batch, |_| ());
        let logits: Vec<f64> = model.logits().iter().map(|logit| logit.to_f64()).collect();
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
        let name = |class: usize| on.names.get(class).cloned().unwrap_or_else(|| class.to_string());
        let all = logits.iter().enumerate().map(|(class, logit)| (name(class), (logit - most).exp() / sum));
        let mut all: Vec<(String, f64)> = all.collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(all)
    });
    classes.collect()
}
