//! Sharded checkpoints: a folder in which each rank has written the parts that it holds, so that no rank gathers the whole.
//!
//! ```text
//! step-00000012.sharded/
//!   rank-00000.safetensors     params                  this rank's part, in runs of all parameters' elements
//!                              params.runs             the first element of each run and the one after its last
//!                              optimiser.momentum_buffer, optimiser.momentum_buffer.runs       the same of the state
//!                              rank.error ..           this rank's own state
//!                              model.bn1.running_mean .., losses, epochs                       of rank 0 alone
//!   rank-00001.safetensors     ..
//! ```
//!
//! Every file has the metadata of a whole checkpoint, with a checksum of its own. The folder has the name of a temporary file until
//! all parts are on disk. Any strategy and number of ranks may resume from it as from a whole checkpoint.

use super::folder::{self, rank_file};
use super::{
    History, KEY, Named, Own, Restored, Snapshot, TrainingProgress, copy, file, fits, history, read,
    restore_buffers, rows, unwritten, verified, wrong,
};
use crate::{Model, Result};
use allfold_kernels::nn::Float;
use safetensors::tensor::{Dtype, SafeTensors};
use std::ops::Range;
use std::path::Path;

/// Some elements of a vector that is laid out as all parameters are.
#[derive(Clone, Debug, PartialEq)]
pub struct Runs<F> {
    /// The first element of each run and the one after its last.
    bounds: Vec<[i64; 2]>,
    /// The elements of all runs, one after another.
    values: Vec<F>,
}

impl<F: Float> Runs<F> {
    /// No elements.
    pub fn empty() -> Runs<F> {
        Runs { bounds: Vec::new(), values: Vec::new() }
    }

    /// Adds the elements `range`.
    pub fn push(&mut self, range: Range<usize>, values: &[F]) {
        let [start, end] = [range.start, range.end].map(|bound| bound as i64);
        match self.bounds.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last[1] == start => last[1] = end,
            _ => self.bounds.push([start, end]),
        }
        self.values.extend_from_slice(values);
    }

    /// Adds the elements of several ranges, whose values stand one after another.
    pub fn push_all(&mut self, ranges: Vec<Range<usize>>, values: &[F]) {
        let mut rest = values;
        for range in ranges {
            let (own, after) = rest.split_at(range.len());
            self.push(range, own);
            rest = after;
        }
    }

    /// The elements.
    pub fn values(&self) -> &[F] {
        &self.values
    }
}

/// What one rank writes of weights and optimiser state: what no rank before it has written, or the rank's share if the ranks share
/// the work.
#[derive(Clone, Debug, PartialEq)]
pub struct Part<F> {
    /// The parameters.
    pub params: Runs<F>,
    /// The vectors of the optimiser's state that have begun, by name.
    pub state: Vec<(&'static str, Runs<F>)>,
    /// The number of steps of the optimiser.
    pub steps: u64,
}

impl<F: Float> Part<F> {
    /// Nothing.
    pub fn empty() -> Part<F> {
        Part { params: Runs::empty(), state: Vec::new(), steps: 0 }
    }

    /// The runs of a vector of the state.
    pub fn state_of(&mut self, name: &'static str) -> &mut Runs<F> {
        let at = self.state.iter().position(|(known, _)| *known == name).unwrap_or(self.state.len());
        if at == self.state.len() {
            self.state.push((name, Runs::empty()));
        }
        &mut self.state[at].1
    }
}

/// The bytes of a rank's file. Buffers and what the run has recorded are rank 0's.
pub(super) fn contents<F: Float>(run: &Snapshot<'_, F>, rank: usize, part: &Part<F>) -> Result<Vec<u8>> {
    let dtype = if size_of::<F>() == 8 { Dtype::F64 } else { Dtype::F32 };
    let state = part.state.iter().map(|(name, runs)| (format!("optimiser.{name}"), runs));
    let mut tensors: Named<'_> = Vec::new();
    for (name, runs) in std::iter::once(("params".to_string(), &part.params)).chain(state) {
        tensors.extend(self::tensors(name, runs, dtype));
    }
    tensors.extend(run.own.iter().map(|(name, values)| {
        (format!("rank.{name}"), dtype, vec![1, values.len()], bytemuck::cast_slice(&values[..]))
    }));
    let rows = rows(run.epochs);
    if rank == 0 {
        tensors.extend(run.buffers(dtype));
        tensors.extend(run.recorded(&rows));
    }
    file(run.progress(part.steps), tensors)
}

/// The tensors of runs: their elements, and where these belong.
pub(super) fn tensors<F: Float>(name: String, runs: &Runs<F>, dtype: Dtype) -> Named<'_> {
    let bounds = bytemuck::cast_slice(runs.bounds.as_flattened());
    vec![
        (format!("{name}.runs"), Dtype::I64, vec![runs.bounds.len(), 2], bounds),
        (name, dtype, vec![runs.values.len()], bytemuck::cast_slice(&runs.values)),
    ]
}

/// Reads a folder; as [`super::load`].
pub(super) fn load<F: Float>(path: &Path, into: Restored<'_, F>) -> Result<(TrainingProgress, History)> {
    let Restored { config, data, ranks, model, optimiser, own } = into;
    let mut covered = vec![false; model.params.len()];
    let state = optimiser.state();
    let mut vectors = state.vectors;
    let mut found: Option<(TrainingProgress, History)> = None;
    let mut files = 1;
    let mut rank = 0;
    while rank < files {
        let path = path.join(rank_file(rank));
        let bytes = read(&path, config, model, own)?;
        let bad = |what: String| wrong(&path, &what);
        let (all, progress) = verified(&bytes).map_err(bad)?;
        match &found {
            None => {
                fits(&progress, (config, data, ranks), model, own).map_err(bad)?;
                files = progress.ranks as usize;
                *state.steps = progress.optimiser_steps;
                restore_buffers(&all, model).map_err(bad)?;
                let history = history(&all, progress.step).map_err(bad)?;
                found = Some((progress, history));
            }
            Some((first, _)) if !first.is_of(&progress) => {
                return Err(bad(format!(
                    "is of step {} of {} ranks, and rank 0's part of step {} of {}",
                    progress.step, progress.ranks, first.step, first.ranks
                )));
            }
            Some(_) => {}
        }
        put(&all, "params", &mut model.params, Some(&mut covered)).map_err(bad)?;
        for (name, values) in &mut vectors {
            let name = format!("optimiser.{name}");
            if all.tensor(&name).is_ok() {
                values.resize(model.params.len(), F::ZERO);
                put(&all, &name, values, None).map_err(bad)?;
            }
        }
        take_own(&all, rank, files, own).map_err(bad)?;
        rank += 1;
    }
    if let Some(missing) = covered.iter().position(|covered| !covered) {
        let params = model.network().params();
        let name = params.iter().find(|place| place.range.contains(&missing)).map_or("", |place| &place.name);
        return Err(wrong(path, &format!("has a part of `{name}` in no file")));
    }
    found.ok_or_else(|| wrong(path, &format!("has no metadata `{KEY}`")))
}

/// Copies the runs of a tensor to their places.
pub(super) fn put<F: Float>(
    all: &SafeTensors,
    name: &str,
    whole: &mut [F],
    covered: Option<&mut Vec<bool>>,
) -> std::result::Result<(), String> {
    let view = |name: &str| all.tensor(name).map_err(|_| format!("has no tensor `{name}`"));
    let (values, bounds) = (view(name)?, view(&format!("{name}.runs"))?);
    let mut part = vec![F::ZERO; values.data().len() / size_of::<F>()];
    copy(&values, &mut part).map_err(|what| format!("`{name}` {what}"))?;
    let mut runs = vec![0i64; bounds.data().len() / size_of::<i64>()];
    let bounds = bounds.data().get(..size_of_val(&runs[..])).unwrap_or_default();
    bytemuck::cast_slice_mut(&mut runs).copy_from_slice(bounds);
    let mut covered = covered;
    let mut rest = &part[..];
    for run in runs.chunks_exact(2) {
        let [start, end] = [run[0], run[1]].map(|bound| usize::try_from(bound).unwrap_or(usize::MAX));
        let to = whole.get_mut(start..end).filter(|to| to.len() <= rest.len());
        let to = to.ok_or_else(|| format!("`{name}` has no elements {} to {}", run[0], run[1]))?;
        let (own, after) = rest.split_at(to.len());
        to.copy_from_slice(own);
        rest = after;
        if let Some(covered) = &mut covered {
            covered[start..end].fill(true);
        }
    }
    match rest.is_empty() {
        true => Ok(()),
        false => Err(format!("`{name}` has {} elements more than its runs", rest.len())),
    }
}

/// Stores a rank's own state among that of all `ranks` ranks.
fn take_own<F: Float>(
    all: &SafeTensors,
    rank: usize,
    ranks: usize,
    own: &mut Own<F>,
) -> std::result::Result<(), String> {
    for (name, values) in own {
        let name = format!("rank.{name}");
        let view = all.tensor(&name).map_err(|_| format!("has no tensor `{name}`"))?;
        let length = values.len() / ranks.max(1);
        copy(&view, &mut values[rank * length..][..length]).map_err(|what| format!("`{name}` {what}"))?;
    }
    Ok(())
}

/// Makes the folder of a new checkpoint, under a temporary name, and removes what failures and crashes have left. For rank 0 alone.
///
/// # Errors
/// The folder cannot be made.
pub fn begin(directory: &Path, step: u64, keep: usize) -> Result<()> {
    folder::begin(directory, step, keep).map_err(|error| unwritten(directory, &error))
}

/// Writes a rank's part into the folder that [`begin`] has made.
///
/// # Errors
/// The file cannot be written.
pub fn write<F: Float>(run: &Snapshot<'_, F>, rank: usize, part: &Part<F>) -> Result<()> {
    let directory = Path::new(&run.config.checkpoint.dir);
    let bytes = contents(run, rank, part)?;
    folder::put_part(directory, run.step, rank, &bytes)
}

/// Gives the folder its name once all ranks have written their parts, or removes it if one could not. For rank 0 alone.
///
/// # Errors
/// The folder cannot be renamed.
pub fn end(directory: &Path, step: u64, keep: usize, complete: bool) -> Result<()> {
    let ended = match complete {
        true => folder::commit(directory, step, keep),
        false => folder::discard(directory, step),
    };
    ended.map_err(|error| unwritten(directory, &error))
}

/// The trained elements among the elements `mine` of a vector that is laid out as all parameters are.
pub(super) fn trained<F: Float>(model: &Model<F>, mine: &Range<usize>, values: &[F]) -> Runs<F> {
    let network = model.network();
    let mut runs = Runs::empty();
    for (_, place) in network.params().iter().enumerate().filter(|(param, _)| !network.frozen(*param)) {
        let (from, to) = (place.range.start.max(mine.start), place.range.end.min(mine.end));
        if from < to {
            runs.push(from..to, &values[from..to]);
        }
    }
    runs
}

/// The part that a rank with the whole state writes: number `rank` of `ranks` about equal ranges, and of the state the trained elements.
pub fn cut<F: Float>(
    model: &Model<F>,
    vectors: &[(&'static str, &mut Vec<F>)],
    steps: u64,
    (rank, ranks): (usize, usize),
) -> Part<F> {
    let all = model.params.len();
    let mine = rank * all / ranks..(rank + 1) * all / ranks;
    let mut params = Runs::empty();
    params.push(mine.clone(), &model.params[mine.clone()]);
    let begun = vectors.iter().filter(|(_, values)| !values.is_empty());
    let state = begun.map(|(name, values)| (*name, trained(model, &mine, values)));
    Part { params, state: state.collect(), steps }
}
