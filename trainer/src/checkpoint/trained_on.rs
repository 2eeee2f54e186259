//! What a checkpoint keeps of the samples: a resumed run continues on the same ones, and predictions name their classes.

use super::compatible::allow;
use super::{described, unread, wrong};
use crate::{Config, Dataset, Error, data};
use allfold_tensor_files::pickle::shown;
use allfold_tensor_files::tensor_file;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The samples that a run trains on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainedOn {
    /// The number of training samples.
    pub samples: u64,
    /// Channels, height and width of a sample.
    pub shape: [usize; 3],
    /// The number of classes; 0 in a checkpoint of an earlier version.
    pub classes: usize,
    /// The names of the classes, in the order of the labels; empty if the data has none.
    pub names: Vec<String>,
}

impl TrainedOn {
    /// What the run of a checkpoint trained on, and its configuration. `path` is a checkpoint in one file.
    ///
    /// # Errors
    /// The file cannot be read or is no checkpoint.
    pub fn read(path: &Path) -> Result<(TrainedOn, Config), Error> {
        let head = tensor_file::head(path).map_err(|error| unread(path, &error))?;
        let (progress, _) = described(&head).map_err(|what| wrong(path, &what))?;
        Ok((progress.data, progress.config))
    }

    /// The samples of the training set of a run.
    pub fn of(config: &Config, train: &Dataset) -> TrainedOn {
        let (channels, height, width) = train.shape;
        let names = Some(data::class_names(config)).filter(|names| names.len() == train.classes);
        TrainedOn {
            samples: train.len() as u64,
            shape: [channels, height, width],
            classes: train.classes,
            names: names.unwrap_or_default(),
        }
    }

    /// Refuses a run on other samples, `now`, than those of the checkpoint, except for what may differ.
    pub(super) fn same(&self, now: &TrainedOn, may_differ: &[String]) -> Result<(), String> {
        let differs = |key: &str| self.classes > 0 && !may_differ.iter().any(|named| named == key);
        let place = self.names.len().max(now.names.len());
        let other = (0..place).find(|&at| self.names.get(at) != now.names.get(at));
        if let Some(at) = other.filter(|_| !self.names.is_empty() && differs("data.classes")) {
            let said =
                |on: &TrainedOn| on.names.get(at).map_or("none".into(), |name| format!("`{}`", shown(name)));
            return Err(format!(
                "was made with {} as class {at} and this run has {} there; to go on with these classes, {}",
                said(self),
                said(now),
                allow("data.classes", may_differ)
            ));
        }
        if self.samples != now.samples && differs("data.samples") {
            return Err(format!(
                "was made with {} training samples and this run has {}; to go on with these samples, {}",
                self.samples,
                now.samples,
                allow("data.samples", may_differ)
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_of_another_name_is_told_with_both_names() {
        let on = |names: &[&str]| TrainedOn {
            samples: 8,
            shape: [3, 4, 4],
            classes: names.len(),
            names: names.iter().map(|name| name.to_string()).collect(),
        };
        let was = on(&["cat", "dog"]);
        for (now, says) in [
            (&["cat", "wolf"][..], "with `dog` as class 1 and this run has `wolf` there"),
            (&["ant", "cat", "dog"], "with `cat` as class 0 and this run has `ant` there"),
            (&["cat"], "with `dog` as class 1 and this run has none there"),
        ] {
            let said = was.same(&on(now), &[]).unwrap_err();
            assert!(said.contains(says) && said.contains("may_differ=[\"data.classes\"]"), "{said}");
            assert_eq!(was.same(&on(now), &["data.classes".into()]), Ok(()));
        }
        assert_eq!(was.same(&was, &[]), Ok(()));
        assert_eq!(TrainedOn::default().same(&was, &[]), Ok(()), "a checkpoint of an earlier version");
    }
}
