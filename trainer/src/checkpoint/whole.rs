//! Which checkpoint of a folder is whole, when the one with the most steps is damaged.

use super::folder::{self, BEST, rank_file};
use super::verified;
use allfold_tensor_files::tensor_file;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What to do so that a run goes on, as the end of an error's sentence: which checkpoints of a folder are damaged, and from which whole
/// one the run then continues. `None` if the checkpoint with the most steps is whole, or if none is.
pub(crate) fn way_out(directory: &Path) -> Option<String> {
    let mut damaged: Vec<PathBuf> = Vec::new();
    let mut found = None;
    let best = directory.join(BEST);
    if best.exists() {
        match step_of(&best) {
            Some(step) => found = Some((step, best)),
            None => damaged.push(best),
        }
    }
    for path in folder::all(directory).ok()?.into_iter().rev() {
        let named = folder::step(&path).unwrap_or(0);
        if found.as_ref().is_some_and(|(step, _)| *step > named) {
            break;
        }
        if let Some(step) = step_of(&path).filter(|step| *step == named) {
            found = Some((step, path));
            break;
        }
        damaged.push(path);
    }
    let (step, whole) = found.filter(|_| !damaged.is_empty())?;
    let damaged: Vec<String> = damaged.iter().map(|path| path.display().to_string()).collect();
    let (damaged, whole) = (damaged.join(" and "), whole.display());
    Some(format!("{whole} is whole: move or remove {damaged} to go on from step {step}"))
}

/// The step of a checkpoint, a file or a folder of parts, if no file of it is damaged or missing.
fn step_of(path: &Path) -> Option<u64> {
    let progress = |path: &Path| {
        // A sparse file is no checkpoint, and may be longer than memory.
        let about = std::fs::metadata(path).ok().filter(|about| about.blocks() >= about.len() / 4096)?;
        let bytes = about.is_file().then(|| tensor_file::read(path).ok()).flatten()?;
        verified(&bytes).ok().map(|(_, progress)| progress)
    };
    if !path.is_dir() {
        return progress(path).map(|progress| progress.step);
    }
    let first = progress(&path.join(rank_file(0)))?;
    let rest = 1..first.ranks as usize;
    let whole = rest
        .into_iter()
        .all(|rank| progress(&path.join(rank_file(rank))).is_some_and(|progress| first.is_of(&progress)));
    whole.then_some(first.step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Files, Snapshot, TrainedOn, save};
    use crate::models::mlp;
    use crate::{Config, Model, Sgd};

    #[test]
    fn the_newest_whole_checkpoint_is_named_with_the_damaged_ones_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        let config = &Config::default().with(|c| c.checkpoint.dir = place.display().to_string());
        let model = &Model::<f32>::new(mlp(4, &[3], 2).unwrap(), 3).unwrap();
        let write = |step: u64, best: bool| {
            let (losses, own) = (&vec![0.5; step as usize][..], &Vec::new());
            let run = Snapshot {
                config,
                data: &TrainedOn::default(),
                step,
                ranks: 1,
                model,
                scaler: None,
                losses,
                epochs: &[],
                own,
            };
            save(run, &mut Sgd::new(0.0, 0.0, false), Files { step: !best, best }).unwrap()
        };
        let cut = |path: &Path| {
            let bytes = std::fs::read(path).unwrap();
            std::fs::write(path, &bytes[..bytes.len() - 5]).unwrap();
        };
        let said = || way_out(place).map(|text| text.replace(&format!("{}/", place.display()), ""));
        assert_eq!(said(), None);
        let [first, second, third] = [1, 2, 10].map(|step| write(step, false));
        assert_eq!(said(), None);
        cut(&third);
        let step = |step| format!("step-{step:08}.safetensors");
        let want = format!("{} is whole: move or remove {} to go on from step 2", step(2), step(10));
        assert_eq!(said(), Some(want));
        let best = write(3, true);
        let want = format!("best.safetensors is whole: move or remove {} to go on from step 3", step(10));
        assert_eq!(said(), Some(want));
        cut(&best);
        cut(&second);
        let damaged = format!("best.safetensors and {} and {}", step(10), step(2));
        let want = format!("{} is whole: move or remove {damaged} to go on from step 1", step(1));
        assert_eq!(said(), Some(want));
        cut(&first);
        assert_eq!(said(), None);
    }
}
