//! Checkpoints: everything that a run needs to resume with the same bits, in one safetensors file.
//!
//! ```text
//! step-00000012.safetensors      model.conv1.weight ...  model.bn1.running_mean ...   by name and shape
//!                                optimiser.momentum_buffer ...                        laid out as the parameters are
//!                                optimiser.momentum_buffer.runs                       if some are frozen: which elements it has
//!                                rank.error ...                                       each rank's own state, rank 0's first
//!                                losses                                               of every step so far
//!                                epochs                                               a row of scores for each epoch so far
//!                   metadata     version, step, ranks, optimiser steps, loss scale, checksum of all, configuration
//! ```
//!
//! `best.safetensors` has the same contents, as of the end of the epoch with the best score. Each rank writes a part of a
//! [`sharded`] checkpoint.
//!
//! Rank 0 writes a temporary file, syncs it to disk, and then renames it: after a crash the earlier checkpoints are
//! intact. Rank 0 holds a lock on the folder, so that no other run writes there at the same time. The order of samples is a
//! function of seed and epoch, so the step is the only state of the sampler.

mod compatible;
mod folder;
pub mod sharded;
mod trained;
mod trained_on;
mod whole;

pub(crate) use folder::taken;
pub use folder::{BEST, FolderLock, newest};
pub use trained_on::TrainedOn;
pub(crate) use whole::way_out;

use crate::optim::Optimiser;
use crate::scaler::GradScaler;
use crate::scores::{self, EpochReport};
use crate::{Config, Error, Model, ParamSpec, Result};
use allfold_kernels::nn::Float;
use allfold_sim::{expected, fnv1a};
use allfold_tensor_files::tensor_file;
use compatible::{PerRank, same_model, same_ranks, same_run};
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The state of a run besides its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingProgress {
    /// Version of the format.
    #[serde(default)]
    version: u32,
    /// The number of steps done.
    pub step: u64,
    /// The number of ranks of the run.
    pub ranks: u32,
    /// The number of steps of the optimiser: fewer than `step` if a loss scale skipped some.
    pub optimiser_steps: u64,
    /// The loss scale; 0 if the run has none.
    pub loss_scale: f32,
    /// The number of steps without overflow since the loss scale changed.
    pub good: u64,
    /// FNV-1a of this TOML text with an empty checksum, followed by each tensor's name, type, shape and bytes, in order of names.
    checksum: String,
    /// The samples that the run trains on.
    #[serde(default)]
    pub data: TrainedOn,
    /// The run's configuration.
    pub config: Config,
}

impl TrainingProgress {
    /// Whether another file is of the same step of the same run.
    fn is_of(&self, other: &TrainingProgress) -> bool {
        let whole =
            |progress: &TrainingProgress| TrainingProgress { checksum: String::new(), ..progress.clone() };
        whole(self) == whole(other)
    }
}

/// The version of the format that is written, and the only one that is read. The first version had no number.
const VERSION: u32 = 2;

/// The key of the metadata under which [`TrainingProgress`] is stored, as TOML.
const KEY: &str = "allfold";

/// The prefix of a model's tensor names.
pub(crate) const MODEL: &str = "model.";

/// State that each rank has of its own, by name: the values of all ranks, one after another.
pub type Own<F> = Vec<(&'static str, Vec<F>)>;

/// What a run has recorded so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The loss of every step.
    pub losses: Vec<f64>,
    /// The outcome of every epoch.
    pub epochs: Vec<EpochReport>,
}

/// The files that a checkpoint is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Files {
    /// Whether the checkpoint is written as one of the newest, which are named after their step.
    pub step: bool,
    /// Whether the checkpoint replaces the best one.
    pub best: bool,
}

/// A run to save.
pub struct Snapshot<'a, F: Float> {
    /// The run's configuration, which names the directory.
    pub config: &'a Config,
    /// The samples that the run trains on.
    pub data: &'a TrainedOn,
    /// The number of steps done.
    pub step: u64,
    /// The number of ranks of the run.
    pub ranks: u32,
    /// The weights and buffers.
    pub model: &'a Model<F>,
    /// The loss scaler, if the run has one.
    pub scaler: Option<&'a GradScaler>,
    /// The loss of every step so far.
    pub losses: &'a [f64],
    /// The outcome of every epoch so far.
    pub epochs: &'a [EpochReport],
    /// State that each rank has of its own: that of all ranks, or in a part of a sharded checkpoint that of this rank.
    pub own: &'a Own<F>,
}

/// The destination of a checkpoint that is read.
pub struct Restored<'a, F: Float> {
    /// The configuration of this run.
    pub config: &'a Config,
    /// The samples that this run trains on.
    pub data: &'a TrainedOn,
    /// The number of ranks of this run.
    pub ranks: u32,
    /// Receives the weights and buffers.
    pub model: &'a mut Model<F>,
    /// Receives the optimiser's state.
    pub optimiser: &'a mut dyn Optimiser<F>,
    /// Receives the state that each rank has of its own. The vectors already have the expected lengths.
    pub own: &'a mut Own<F>,
}

/// Tensors of a file: name, type, shape and bytes.
type Named<'a> = Vec<(String, Dtype, Vec<usize>, &'a [u8])>;

impl<F: Float> Snapshot<'_, F> {
    /// The run's progress as the file stores it, without the checksum; `steps` is the number of the optimiser's steps.
    fn progress(&self, steps: u64) -> TrainingProgress {
        TrainingProgress {
            version: VERSION,
            step: self.step,
            ranks: self.ranks,
            optimiser_steps: steps,
            loss_scale: self.scaler.map_or(0.0, |scaler| scaler.scale),
            good: self.scaler.map_or(0, |scaler| scaler.good),
            checksum: String::new(),
            data: self.data.clone(),
            config: self.config.clone(),
        }
    }

    /// The network's buffers.
    fn buffers(&self, dtype: Dtype) -> Named<'_> {
        of_model(self.model.network().buffers(), &self.model.buffers, dtype)
    }

    /// What the run has recorded; `rows` are those of [`rows`].
    fn recorded<'a>(&'a self, rows: &'a [f64]) -> Named<'a> {
        let scores = vec![self.epochs.len(), scores::COLUMNS];
        vec![
            ("losses".into(), Dtype::F64, vec![self.losses.len()], bytemuck::cast_slice(self.losses)),
            ("epochs".into(), Dtype::F64, scores, bytemuck::cast_slice(rows)),
        ]
    }
}

/// The numbers of the epochs, a row for each.
fn rows(epochs: &[EpochReport]) -> Vec<f64> {
    epochs.iter().flat_map(EpochReport::row).collect()
}

/// Parameters or buffers of a model, by name.
fn of_model<'a, F: Float>(places: &[ParamSpec], values: &'a [F], dtype: Dtype) -> Named<'a> {
    let named = |place: &ParamSpec| {
        let bytes = bytemuck::cast_slice(&values[place.range.clone()]);
        (format!("{MODEL}{}", place.name), dtype, place.shape.clone(), bytes)
    };
    places.iter().map(named).collect()
}

/// Writes the checkpoint of a run into the directory that its configuration names, and removes all but the best and the newest
/// `checkpoint.keep`. For rank 0 alone. Returns the path of the last file that was written.
///
/// # Errors
/// If the directory or a file cannot be written; the newest `checkpoint.keep` checkpoints and the best are then unchanged, and no
/// incomplete file is left.
pub fn save<F: Float>(
    run: Snapshot<'_, F>,
    optimiser: &mut dyn Optimiser<F>,
    files: Files,
) -> Result<PathBuf> {
    let directory = Path::new(&run.config.checkpoint.dir);
    let (keep, named) = (run.config.checkpoint.keep, directory.join(folder::name(run.step, false)));
    let bytes = contents(&run, optimiser)?;
    let mut path = directory.to_path_buf();
    for (_, name) in
        [(files.step, named), (files.best, directory.join(BEST))].into_iter().filter(|(due, _)| *due)
    {
        path = name;
        folder::put(directory, &path, keep, &bytes).map_err(|error| unwritten(&path, &error))?;
        tracing::debug!("wrote the checkpoint {} of {} bytes", path.display(), bytes.len());
    }
    Ok(path)
}

/// The bytes of a checkpoint's file.
fn contents<F: Float>(run: &Snapshot<'_, F>, optimiser: &mut dyn Optimiser<F>) -> Result<Vec<u8>> {
    let dtype = if size_of::<F>() == 8 { Dtype::F64 } else { Dtype::F32 };
    let rows = rows(run.epochs);
    let mut tensors = of_model(run.model.network().params(), &run.model.params, dtype);
    tensors.extend(of_model(run.model.network().buffers(), &run.model.buffers, dtype));
    tensors.extend(run.own.iter().map(|(name, values)| {
        let shape = vec![run.ranks as usize, values.len() / run.ranks as usize];
        (format!("rank.{name}"), dtype, shape, bytemuck::cast_slice(&values[..]))
    }));
    tensors.extend(run.recorded(&rows));
    let state = optimiser.state();
    let runs = trained::runs(run.model, &state);
    tensors.extend(trained::tensors(&state, runs.as_deref(), dtype));
    file(run.progress(*state.steps), tensors)
}

/// A file of these tensors, with a checksum.
fn file(mut progress: TrainingProgress, mut tensors: Named<'_>) -> Result<Vec<u8>> {
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let text = |progress: &TrainingProgress| {
        toml::to_string(progress).map_err(|error| Error::Checkpoint(error.to_string()))
    };
    let views = tensors
        .into_iter()
        .map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(dtype, shape, bytes)?)))
        .collect::<std::result::Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|error| Error::Checkpoint(error.to_string()))?;
    progress.checksum = checksum(&text(&progress)?, &views);
    safetensors::serialize(views, Some([(KEY.to_string(), text(&progress)?)].into()))
        .map_err(|error| Error::Checkpoint(error.to_string()))
}

/// The error for a path that cannot be written.
fn unwritten(path: &Path, error: &std::io::Error) -> Error {
    Error::Storage(format!("{}: {error}", path.display()))
}

/// The error for a path that cannot be read: a wrong path is the user's error, any other cause may be temporary.
pub(crate) fn unread(path: &Path, error: &std::io::Error) -> Error {
    let what = format!("{}: {error}", path.display());
    match error.kind() {
        ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::IsADirectory
        | ErrorKind::InvalidData
        | ErrorKind::NotADirectory => Error::Checkpoint(what),
        _ => Error::Storage(what),
    }
}

/// The checkpoint of a directory with the most steps, among the newest and the best; `None` if the directory has none.
///
/// # Errors
/// If the directory, or the file of the best, cannot be read.
pub fn latest(directory: &Path) -> Result<Option<PathBuf>> {
    let (newest, best) = (newest(directory)?, directory.join(BEST));
    if !best.try_exists().map_err(|error| unread(&best, &error))? {
        return Ok(newest);
    }
    let head = tensor_file::head(&best).map_err(|error| unread(&best, &error))?;
    let (progress, _) = described(&head).map_err(|what| wrong(&best, &what))?;
    let earlier = newest.filter(|path| folder::step(path).is_some_and(|step| step >= progress.step));
    Ok(Some(earlier.unwrap_or(best)))
}

/// The error for a file with this defect.
fn wrong(path: &Path, what: &str) -> Error {
    Error::Checkpoint(format!("{}: {what}", path.display()))
}

/// Reads a checkpoint; returns the run's progress, and what the run had recorded.
///
/// # Errors
/// If the file cannot be read, is damaged, or is of another model, number of ranks or configuration. Model and optimiser
/// are then not to be used.
pub fn load<F: Float>(path: &Path, into: Restored<'_, F>) -> Result<(TrainingProgress, History)> {
    let (progress, history) = match path.is_dir() {
        true => sharded::load(path, into)?,
        false => {
            let bytes = read(path, into.config, into.model, into.own)?;
            restore(path, &bytes, into)?
        }
    };
    tracing::debug!("read the checkpoint {} of step {}", path.display(), progress.step);
    match folder::step(path).filter(|named| *named != progress.step) {
        // A file named with a later step would count as the newest checkpoint, and each new one would be removed as older.
        Some(named) => Err(Error::Checkpoint(format!(
            "{}: is named as of step {named} and holds step {}: remove it, or name it {}",
            path.display(),
            progress.step,
            folder::name(progress.step, path.is_dir())
        ))),
        None => Ok((progress, history)),
    }
}

/// The header of a file that begins with these bytes.
fn header(bytes: &[u8]) -> std::result::Result<Metadata, String> {
    let length = bytes.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let text = usize::try_from(length).ok().and_then(|length| bytes.get(8..)?.get(..length));
    serde_json::from_slice(text.unwrap_or_default())
        .map_err(|error| tensor_file::damage(bytes, bytes.len() as u64, &error))
}

/// The state that a file's metadata describe, and the text that describes it.
fn described(bytes: &[u8]) -> std::result::Result<(TrainingProgress, String), String> {
    let header = header(bytes)?;
    let text = header.metadata().as_ref().and_then(|metadata| metadata.get(KEY)).cloned();
    let text = text.ok_or("is no checkpoint of a run")?;
    let progress = toml::from_str::<TrainingProgress>(&text).map_err(|error| expected(error.message()))?;
    match progress.version {
        VERSION => Ok((progress, text)),
        other => Err(format!(
            "is of format {} and this version reads {VERSION}; the key `model.weights` can still load its weights",
            other.max(1)
        )),
    }
}

/// The bytes of a file, if its header describes the model that this run trains, and no more than a run of it keeps.
fn read<F: Float>(path: &Path, config: &Config, model: &Model<F>, own: &Own<F>) -> Result<Vec<u8>> {
    let head = tensor_file::head(path).map_err(|error| unread(path, &error))?;
    described(&head)
        .and_then(|(progress, _)| same_model(&progress, config))
        .and_then(|()| same_shapes(&head, model, own))
        .map_err(|what| wrong(path, &what))?;
    tensor_file::read(path).map_err(|error| unread(path, &error))
}

/// Refuses a header with other shapes of parameters or buffers than the model's, or with far more bytes than a run of the model keeps:
/// the file may be sparse.
fn same_shapes<F: Float>(head: &[u8], model: &Model<F>, own: &Own<F>) -> std::result::Result<(), String> {
    /// Bytes of losses and scores: those of 16 million steps.
    const HISTORY: usize = 128 << 20;
    /// Bytes of an element of the model, of its optimiser's vectors and of the bounds of their runs.
    const ELEMENT: usize = 128;
    let tensors = header(head)?;
    let network = model.network();
    for place in network.params().iter().chain(network.buffers()) {
        let has = tensors.info(&format!("{MODEL}{}", place.name)).map(|info| &info.shape);
        if let Some(has) = has.filter(|has| **has != place.shape) {
            let (name, wants) = (&place.name, &place.shape);
            return Err(format!("`{MODEL}{name}` has the shape {has:?} where the model wants {wants:?}"));
        }
    }
    let elements = network.param_count() + network.buffer_count();
    let own: usize = own.iter().map(|(_, values)| values.len() * size_of::<F>()).sum();
    let most = elements.saturating_mul(ELEMENT).saturating_add(own + HISTORY);
    match tensors.data_len() > most {
        true => {
            Err(format!("has {} bytes, and a run of this model keeps {most} at most", tensors.data_len()))
        }
        false => Ok(()),
    }
}

/// [`load`] from the bytes of a file; `path` is for messages.
///
/// # Errors
/// As [`load`].
pub fn restore<F: Float>(
    path: &Path,
    bytes: &[u8],
    into: Restored<'_, F>,
) -> Result<(TrainingProgress, History)> {
    let Restored { config, data, ranks, model, optimiser, own } = into;
    let bad = |what: String| wrong(path, &what);
    let (all, progress) = verified(bytes).map_err(bad)?;
    let tensor = |name: &str| all.tensor(name).map_err(|_| bad(format!("has no tensor `{name}`")));
    fits(&progress, (config, data, ranks), model, own).map_err(bad)?;
    let places = model.network().params().to_vec();
    restored(&all, &places, &mut model.params).map_err(bad)?;
    restore_buffers(&all, model).map_err(bad)?;
    let state = optimiser.state();
    *state.steps = progress.optimiser_steps;
    trained::restore(&all, model.params.len(), state).map_err(bad)?;
    for (name, values) in own {
        let name = format!("rank.{name}");
        copy(&tensor(&name)?, values).map_err(|what| bad(format!("`{name}` {what}")))?;
    }
    let history = history(&all, progress.step).map_err(bad)?;
    Ok((progress, history))
}

/// The tensors of a file and the state that its metadata describe, if the file is unchanged since it was written.
fn verified(bytes: &[u8]) -> std::result::Result<(SafeTensors<'_>, TrainingProgress), String> {
    let all = SafeTensors::deserialize(bytes)
        .map_err(|error| tensor_file::damage(bytes, bytes.len() as u64, &error))?;
    let (progress, text) = described(bytes)?;
    let mut tensors = all.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let said = format!("checksum = \"{}\"", progress.checksum);
    if checksum(&text.replacen(&said, "checksum = \"\"", 1), &tensors) != progress.checksum {
        return Err("does not have the checksum that it was written with".into());
    }
    Ok((all, progress))
}

/// Refuses the checkpoint of a run that this run does not continue.
fn fits<F: Float>(
    progress: &TrainingProgress,
    (config, data, ranks): (&Config, &TrainedOn, u32),
    model: &Model<F>,
    own: &Own<F>,
) -> std::result::Result<(), String> {
    let local_norms = model.network().buffer_count() > 0 && !config.model.sync_batch_norm;
    let per_rank = match own.is_empty() {
        false => PerRank::State,
        true if local_norms => PerRank::BatchNorms,
        true => PerRank::Nothing,
    };
    same_ranks(progress, (config, ranks), per_rank)?;
    same_run(progress, config)?;
    progress.data.same(data, &config.checkpoint.may_differ)
}

/// Copies a model's parameters or buffers, which lie at `places` of `to`.
fn restored<F: Float>(
    all: &SafeTensors,
    places: &[ParamSpec],
    to: &mut [F],
) -> std::result::Result<(), String> {
    for place in places {
        let name = format!("{MODEL}{}", place.name);
        let view = all.tensor(&name).map_err(|_| format!("has no tensor `{name}`"))?;
        copy(&view, &mut to[place.range.clone()]).map_err(|what| format!("`{name}` {what}"))?;
    }
    Ok(())
}

fn restore_buffers<F: Float>(all: &SafeTensors, model: &mut Model<F>) -> std::result::Result<(), String> {
    let places = model.network().buffers().to_vec();
    restored(all, &places, &mut model.buffers)
}

/// The losses and scores of a checkpoint after `step` steps. Checkpoints of earlier versions have no scores.
fn history(all: &SafeTensors, step: u64) -> std::result::Result<History, String> {
    let numbers = |name: &str, view: &TensorView| {
        let mut numbers = vec![0.0f64; view.data().len() / size_of::<f64>()];
        copy(view, &mut numbers).map_err(|what| format!("`{name}` {what}"))?;
        Ok::<_, String>(numbers)
    };
    let losses = numbers("losses", &all.tensor("losses").map_err(|_| "has no tensor `losses`")?)?;
    if losses.len() as u64 != step {
        return Err(format!("has {} losses of {step} steps", losses.len()));
    }
    let Ok(view) = all.tensor("epochs") else { return Ok(History { losses, epochs: Vec::new() }) };
    let rows = numbers("epochs", &view)?;
    let epochs = scores::reports(&rows).filter(|all| all.last().is_none_or(|last| last.steps <= step));
    Ok(History { losses, epochs: epochs.ok_or("`epochs` has other numbers than the scores of a run")? })
}

/// Copies a tensor of equally many bytes.
fn copy<F: Float>(view: &TensorView, to: &mut [F]) -> std::result::Result<(), String> {
    let to: &mut [u8] = bytemuck::cast_slice_mut(to);
    if view.data().len() != to.len() {
        return Err(format!("has {} bytes where {} are needed", view.data().len(), to.len()));
    }
    to.copy_from_slice(view.data());
    Ok(())
}

fn checksum(text: &str, tensors: &[(String, TensorView)]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for (name, view) in tensors {
        bytes.extend(format!("{name} {:?} {:?};", view.dtype(), view.shape()).as_bytes());
        bytes.extend(view.data());
    }
    format!("{:016x}", fnv1a(&bytes))
}
