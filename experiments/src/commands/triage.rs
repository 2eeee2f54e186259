//! `allfold triage`: compares the flight records of a run, and names the operation where ranks diverged.

use crate::cli::error::{CommandError, CommandResult};
use crate::cli::output::RunOutput;
use allfold_collectives::flight::{Record, straggler, triage};
use std::path::{Path, PathBuf};

/// Flags of `triage`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold triage logs/start-0
  allfold triage flight-rank-0.jsonl flight-rank-1.jsonl

Flight records are written when a rank fails: by `allfold launch --log-dir`, or into the folder ALLFOLD_FLIGHT_DIR. The
command names the first operation in which ranks differ and the rank that the others waited for longest, then prints each
rank's last operation.")]
pub(crate) struct Args {
    /// Flight records, or folders that hold them
    #[arg(required = true, value_name = "RECORDS")]
    dumps: Vec<PathBuf>,
}

/// Reads flight records and prints the diagnosis.
///
/// # Errors
/// A file that is no record, or a folder without one.
pub fn run(args: &Args) -> CommandResult {
    let mut records = Vec::new();
    for path in &args.dumps {
        for file in files(path)? {
            let record = Record::read(&file);
            records
                .push(record.map_err(|error| CommandError::usage(format!("{}: {error}", file.display())))?);
        }
    }
    records.sort_by_key(|record| record.header.rank);
    let twice = records.windows(2).find(|pair| pair[0].header.rank == pair[1].header.rank);
    if let Some([first, _]) = twice {
        let rank = first.header.rank;
        return Err(CommandError::usage(format!(
            "rank {rank} has two flight records: give the records of one start of a run"
        )));
    }
    let mut output = RunOutput::open(None, None)?;
    let (verdict, unseen) = triage(&records);
    output.say(&verdict)?;
    if !unseen.is_empty() {
        let ranks: Vec<String> = unseen.iter().map(|rank| rank.to_string()).collect();
        output.say(format!("no record of rank {}: killed, or never told", ranks.join(", ")))?;
    }
    if let Some(straggler) = straggler(&records) {
        output.say(straggler)?;
    }
    for record in &records {
        let rank = record.header.rank;
        let last = record.entries.last().map_or_else(
            || "nothing".into(),
            |last| format!("operation {}, {}: {:?}", last.sequence, last.call(), last.state).to_lowercase(),
        );
        output.say(format!("  rank {rank}: last {last}; written because: {}", record.header.reason))?;
    }
    output.close()
}

/// The flight records in a folder, or the file itself.
fn files(path: &Path) -> CommandResult<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let wrong = |error: std::io::Error| CommandError::usage(format!("{}: {error}", path.display()));
    let files = Record::all_in(path).map_err(wrong)?;
    if files.is_empty() {
        return Err(CommandError::usage(format!("{}: holds no flight records", path.display())));
    }
    Ok(files)
}
