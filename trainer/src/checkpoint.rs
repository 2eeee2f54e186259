//! Checkpoints: everything that a run needs to resume with the same bits, in one safetensors file.
//!
//! ```text
//! step-00000012.safetensors      model.conv1.weight ...  model.bn1.running_mean ...   by name and shape
//!                                optimiser.momentum_buffer ...                        laid out as the parameters are
//!                                rank.error ...                                       what is each rank's own, by ranks
//!                                losses                                               of every step so far
//!                   metadata     version, step, ranks, optimiser steps, loss scale, checksum of all, configuration
//! ```
//!
//! Rank 0 writes a temporary file, syncs it to disk, and then renames it: after a crash the earlier checkpoints are
//! intact. The order of samples is a function of seed and epoch, so the step is the only state of the sampler.

use crate::optim::Optimiser;
use crate::scaler::GradScaler;
use crate::{Config, Error, Model, Result, lr_schedule};
use allfold_kernels::nn::Float;
use allfold_sim::fnv1a;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The state of a run besides its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingProgress {
    /// Version of the format.
    #[serde(default)]
    version: u32,
    /// Steps done.
    pub step: u64,
    /// Ranks of the run.
    pub ranks: u32,
    /// Steps of the optimiser: fewer than `step` if a loss scale skipped some.
    pub optimiser_steps: u64,
    /// The loss scale, 0 without one; and the good steps since it changed.
    pub loss_scale: f32,
    /// The number of steps without overflow since the loss scale changed.
    pub good: u64,
    /// FNV-1a of this text without it, then of each tensor's name, type, shape and bytes, in order of names.
    checksum: String,
    /// The run's configuration.
    pub config: Config,
}

/// The format that is written, and the only one that is read. The first had no number.
const VERSION: u32 = 2;

/// The key of the metadata under which [`TrainingProgress`] is stored, as TOML.
const KEY: &str = "allfold";

/// The prefix of a model's tensor names.
pub(crate) const MODEL: &str = "model.";

/// State that each rank has of its own, by name: the values of all ranks, one after another.
pub type Own<F> = Vec<(&'static str, Vec<F>)>;

/// A run to save.
pub struct Snapshot<'a, F: Float> {
    /// The run's configuration, which names the directory.
    pub config: &'a Config,
    /// Steps done.
    pub step: u64,
    /// Ranks of the run.
    pub ranks: u32,
    /// The weights and buffers.
    pub model: &'a Model<F>,
    /// The optimiser, for its state.
    pub optimiser: &'a mut dyn Optimiser<F>,
    /// Where there is one.
    pub scaler: Option<&'a GradScaler>,
    /// The loss of every step so far.
    pub losses: &'a [f64],
    /// State that each rank has of its own.
    pub own: &'a Own<F>,
}

/// The destination of a checkpoint that is read.
pub struct Restored<'a, F: Float> {
    /// The configuration of this run.
    pub config: &'a Config,
    /// Ranks of the run.
    pub ranks: u32,
    /// Receives the weights and buffers.
    pub model: &'a mut Model<F>,
    /// Receives its state.
    pub optimiser: &'a mut dyn Optimiser<F>,
    /// Receives the state that each rank has of its own; has the expected lengths.
    pub own: &'a mut Own<F>,
}

/// Writes the checkpoint of a run into the directory that its configuration names, and removes all but the newest
/// `checkpoint_keep`. For rank 0 alone.
///
/// # Errors
/// If the directory or the file cannot be written; older checkpoints are then as they were.
pub fn save<F: Float>(run: Snapshot<'_, F>) -> Result<PathBuf> {
    let Snapshot { config, step, ranks, model, optimiser, scaler, losses, own } = run;
    let state = optimiser.state();
    let dtype = if size_of::<F>() == 8 { Dtype::F64 } else { Dtype::F32 };
    let network = model.network();
    let mut tensors: Vec<(String, Dtype, Vec<usize>, &[u8])> = Vec::new();
    for (places, values) in [(network.params(), &model.params), (network.buffers(), &model.buffers)] {
        tensors.extend(places.iter().map(|place| {
            let bytes = bytemuck::cast_slice(&values[place.range.clone()]);
            (format!("model.{}", place.name), dtype, place.shape.clone(), bytes)
        }));
    }
    let started = state.vectors.iter().filter(|(_, values)| !values.is_empty());
    tensors.extend(started.map(|(name, values)| {
        (format!("optimiser.{name}"), dtype, vec![values.len()], bytemuck::cast_slice(&values[..]))
    }));
    tensors.extend(own.iter().map(|(name, values)| {
        let shape = vec![ranks as usize, values.len() / ranks as usize];
        (format!("rank.{name}"), dtype, shape, bytemuck::cast_slice(&values[..]))
    }));
    tensors.push(("losses".into(), Dtype::F64, vec![losses.len()], bytemuck::cast_slice(losses)));
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let mut progress = TrainingProgress {
        version: VERSION,
        step,
        ranks,
        optimiser_steps: *state.steps,
        loss_scale: scaler.map_or(0.0, |scaler| scaler.scale),
        good: scaler.map_or(0, |scaler| scaler.good),
        checksum: String::new(),
        config: config.clone(),
    };
    let text = |progress: &TrainingProgress| {
        toml::to_string(progress).map_err(|error| Error::Checkpoint(error.to_string()))
    };
    let views = tensors
        .into_iter()
        .map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(dtype, shape, bytes)?)))
        .collect::<std::result::Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|error| Error::Checkpoint(error.to_string()))?;
    progress.checksum = checksum(&text(&progress)?, &views);
    let bytes = safetensors::serialize(views, Some([(KEY.to_string(), text(&progress)?)].into()))
        .map_err(|error| Error::Checkpoint(error.to_string()))?;
    let directory = Path::new(&config.checkpoint_dir);
    let path = directory.join(format!("step-{step:08}.safetensors"));
    write(directory, &path, &bytes)
        .and_then(|()| prune(directory, config.checkpoint_keep))
        .map_err(|error| Error::Storage(format!("{}: {error}", path.display())))?;
    Ok(path)
}

/// The error for a path that cannot be read: a wrong path is the user's error, any other cause may be temporary.
pub(crate) fn unread(path: &Path, error: &std::io::Error) -> Error {
    let what = format!("{}: {error}", path.display());
    match error.kind() {
        ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::IsADirectory
        | ErrorKind::NotADirectory => Error::Checkpoint(what),
        _ => Error::Storage(what),
    }
}

/// Writes under another name first, so that a file with the final name is complete.
fn write(directory: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    // The new name is safe only once the directory is on disk.
    File::open(directory)?.sync_all()
}

/// Removes all but the newest `keep` checkpoints, and incomplete files from a crash.
fn prune(directory: &Path, keep: usize) -> std::io::Result<()> {
    let all = named(directory, "safetensors")?;
    let old = &all[..all.len().saturating_sub(keep.max(1))];
    old.iter().chain(&named(directory, "tmp")?).try_for_each(fs::remove_file)
}

/// The checkpoints of a directory, oldest first; none if the directory does not exist.
fn named(directory: &Path, extension: &str) -> std::io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let ours = path.file_stem().and_then(|stem| stem.to_str()).is_some_and(|stem| {
            stem.strip_prefix("step-").is_some_and(|step| step.bytes().all(|b| b.is_ascii_digit()))
        });
        if ours && path.extension().is_some_and(|found| found == extension) {
            paths.push(path);
        }
    }
    // Longer numbers are later; of equal length, the names' order is the numbers'.
    paths.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    Ok(paths)
}

/// The newest checkpoint of a directory, if it has one.
///
/// # Errors
/// If the directory cannot be read.
pub fn newest(directory: &Path) -> Result<Option<PathBuf>> {
    let all = named(directory, "safetensors").map_err(|error| unread(directory, &error))?;
    Ok(all.into_iter().next_back())
}

/// Reads a checkpoint; returns where the run was, and its losses so far.
///
/// # Errors
/// If the file cannot be read, is damaged, or is of another model, number of ranks or configuration. Model and optimiser
/// are then not to be used.
pub fn load<F: Float>(path: &Path, into: Restored<'_, F>) -> Result<(TrainingProgress, Vec<f64>)> {
    let bytes = fs::read(path).map_err(|error| unread(path, &error))?;
    restore(path, &bytes, into)
}

/// [`load`] from the bytes of a file; `path` is for messages.
///
/// # Errors
/// As [`load`].
pub fn restore<F: Float>(
    path: &Path,
    bytes: &[u8],
    into: Restored<'_, F>,
) -> Result<(TrainingProgress, Vec<f64>)> {
    let Restored { config, ranks, model, optimiser, own } = into;
    let bad = |what: String| Error::Checkpoint(format!("{}: {what}", path.display()));
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| bad(damage(bytes, &error)))?;
    let all = SafeTensors::deserialize(bytes).map_err(|error| bad(damage(bytes, &error)))?;
    let text = header.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
    let text = text.ok_or_else(|| bad("is no checkpoint of a run".into()))?;
    let progress: TrainingProgress =
        toml::from_str(text).map_err(|error| bad(error.message().to_string()))?;
    if progress.version != VERSION {
        return Err(bad(format!(
            "is of format {} and this version reads {VERSION}: `weights` takes the weights of either",
            progress.version.max(1)
        )));
    }
    let mut tensors = all.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let said = format!("checksum = \"{}\"", progress.checksum);
    if checksum(&text.replacen(&said, "checksum = \"\"", 1), &tensors) != progress.checksum {
        return Err(bad("does not have the checksum that it was written with".into()));
    }
    let tensor = |name: &str| all.tensor(name).map_err(|_| bad(format!("has no tensor `{name}`")));
    same_run(&progress, config, ranks).map_err(bad)?;

    let places = model.network().params().iter().map(|place| (place.clone(), true));
    let places: Vec<_> =
        places.chain(model.network().buffers().iter().map(|place| (place.clone(), false))).collect();
    for (place, is_param) in places {
        let name = format!("model.{}", place.name);
        let view = tensor(&name)?;
        let to = if is_param { &mut model.params } else { &mut model.buffers };
        if view.shape() != place.shape {
            let (has, wants) = (view.shape(), &place.shape);
            return Err(bad(format!("`{name}` has the shape {has:?} where the model wants {wants:?}")));
        }
        copy(&view, &mut to[place.range]).map_err(|what| bad(format!("`{name}` {what}")))?;
    }
    let state = optimiser.state();
    *state.steps = progress.optimiser_steps;
    for (name, values) in state.vectors {
        let name = format!("optimiser.{name}");
        // Before its first step an optimiser has no state.
        if let Ok(view) = all.tensor(&name) {
            values.resize(model.params.len(), F::ZERO);
            copy(&view, values).map_err(|what| bad(format!("`{name}` {what}")))?;
        }
    }
    for (name, values) in own {
        let name = format!("rank.{name}");
        copy(&tensor(&name)?, values).map_err(|what| bad(format!("`{name}` {what}")))?;
    }
    let view = tensor("losses")?;
    let mut losses = vec![0.0f64; view.data().len() / size_of::<f64>()];
    copy(&view, &mut losses).map_err(|what| bad(format!("`losses` {what}")))?;
    if losses.len() as u64 != progress.step {
        return Err(bad(format!("has {} losses of {} steps", losses.len(), progress.step)));
    }
    Ok((progress, losses))
}

/// The defect of a safetensors file: where it ends, if it ends early, else the message of its reader.
pub(crate) fn damage(bytes: &[u8], error: &safetensors::SafeTensorError) -> String {
    /// What the header says of a tensor.
    #[derive(Deserialize)]
    struct Entry {
        data_offsets: Option<(u64, u64)>,
    }
    let length = bytes.len() as u64;
    let Some(header) = bytes.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes)) else {
        return format!("ends at byte {length} within the length of its header");
    };
    let Some(text) = usize::try_from(header).ok().and_then(|header| bytes[8..].get(..header)) else {
        return format!("ends at byte {length} within its header of {header} bytes");
    };
    let entries: std::collections::BTreeMap<String, Entry> = serde_json::from_slice(text).unwrap_or_default();
    let ends = entries.iter().filter_map(|(name, entry)| Some((entry.data_offsets?, name)));
    let cut = ends.filter(|((_, end), _)| 8u64.saturating_add(header).saturating_add(*end) > length).min();
    match cut {
        Some((_, name)) => format!("ends at byte {length} within the tensor `{name}`"),
        None => error.to_string(),
    }
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

/// Refuses to resume with another number of ranks or another configuration, which would be a different run. Keys may
/// differ that only set the length of the run (if no rate depends on it), folders, or how data is cut and exchanged.
fn same_run(progress: &TrainingProgress, config: &Config, ranks: u32) -> std::result::Result<(), String> {
    if progress.ranks != ranks {
        return Err(format!(
            "was made by {} ranks and this run has {ranks}; `weights` takes a checkpoint's weights to any number of ranks",
            progress.ranks
        ));
    }
    let (was, schedule) = (&progress.config, &config.lr_schedule);
    let ends =
        |config: &Config| format!("`epochs = {}` and `max_steps = {}`", config.epochs, config.max_steps);
    if lr_schedule::spans_the_run(schedule) && ends(was) != ends(config) {
        let (was, is) = (ends(was), ends(config));
        return Err(format!(
            "was made with {was} and this run has {is}: its rates, of `{schedule}`, depend on where a run ends"
        ));
    }
    let was = Config {
        strategy: config.strategy.clone(),
        parallel: config.parallel.clone(),
        epochs: config.epochs,
        max_steps: config.max_steps,
        first_bucket_kib: config.first_bucket_kib,
        bucket_kib: config.bucket_kib,
        checkpoint_dir: config.checkpoint_dir.clone(),
        checkpoint_every: config.checkpoint_every,
        checkpoint_keep: config.checkpoint_keep,
        resume: config.resume,
        exchange: config.exchange.clone(),
        threads: config.threads,
        workers: config.workers,
        prefetch: config.prefetch,
        data_dir: config.data_dir.clone(),
        ..progress.config.clone()
    };
    let lines = |config: &Config| toml::to_string(config).map_err(|error| error.to_string());
    let (was, is) = (lines(&was)?, lines(config)?);
    match was.lines().zip(is.lines()).find(|(was, is)| was != is) {
        Some((was, is)) => Err(format!("was made with `{was}` and this run has `{is}`")),
        None => Ok(()),
    }
}

fn checksum(text: &str, tensors: &[(String, TensorView)]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for (name, view) in tensors {
        bytes.extend(format!("{name} {:?} {:?};", view.dtype(), view.shape()).as_bytes());
        bytes.extend(view.data());
    }
    format!("{:016x}", fnv1a(&bytes))
}
