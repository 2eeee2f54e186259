//! The log on standard error: warnings and notes, and with `-v` what a run does.
//!
//! ```text
//!                        rank 0                 other ranks
//! -q                     warnings               warnings
//!                        and notes              warnings
//! -v,  ALLFOLD_LOG=debug and what the run does  and notes
//! -vv, ALLFOLD_LOG=trace and each operation     and what the run does
//! ```
//!
//! Other ranks log one level less than rank 0. Without `-v` a line is its text; with `-v` time, level and rank stand before the text.
//! The crates below log by `tracing`, so another program may install a subscriber of its own.

use super::error::{CommandError, CommandResult};
use super::printable::message;
use super::progress;
use allfold_base::utc;
use allfold_collectives::environment::{self, Environment};
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber, callsite, subscriber};

/// The variable that sets the level, for processes whose command line is another program's.
const VARIABLE: &str = "ALLFOLD_LOG";
/// The levels, from the quietest to the loudest, with their names in [`VARIABLE`].
const LEVELS: [(&str, LevelFilter); 4] = [
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];
/// The level without a flag and without the variable, as an index of [`LEVELS`].
const DEFAULT: usize = 1;

/// The current level, as an index of [`LEVELS`].
static CURRENT: AtomicUsize = AtomicUsize::new(DEFAULT);

/// Begins the log, or changes its level: `louder` is the number of `-v`, `quiet` whether there is `-q`.
///
/// # Errors
/// The variable names no level.
pub fn begin(louder: u8, quiet: bool) -> CommandResult {
    let usual = match environment::variable(VARIABLE).filter(|name| !name.is_empty()) {
        None => DEFAULT,
        Some(name) => LEVELS.iter().position(|(known, _)| name == *known).ok_or_else(|| {
            let known = LEVELS.map(|(name, _)| name).join(", ");
            CommandError::usage(format!("{VARIABLE}={}: there are {known}", name))
        })?,
    };
    let loud = match (quiet, louder) {
        (true, _) => 0,
        (false, 0) => usual,
        (false, more) => usual.max(DEFAULT + usize::from(more)).min(LEVELS.len() - 1),
    };
    CURRENT.store(loud, Ordering::Relaxed);
    if subscriber::set_global_default(Log).is_err() {
        // The program has a subscriber of its own, or this is not the first command of the process.
        callsite::rebuild_interest_cache();
    }
    Ok(())
}

/// The level's name in `ALLFOLD_LOG`, if it is not the default: ranks that a launcher starts log at the level of their launcher.
pub fn level() -> Option<&'static str> {
    let loud = CURRENT.load(Ordering::Relaxed);
    (loud != DEFAULT).then(|| LEVELS[loud].0)
}

/// Prints events on standard error, above a progress bar. There are no spans.
struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= LEVELS[CURRENT.load(Ordering::Relaxed)].1
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LEVELS[CURRENT.load(Ordering::Relaxed)].1)
    }

    fn event(&self, event: &Event<'_>) {
        let (loud, mut said) = (CURRENT.load(Ordering::Relaxed), EventText::default());
        event.record(&mut said);
        said.rank = said.rank.or_else(own_rank);
        if said.is_printed(*event.metadata().level(), loud) {
            let line = said.line(*event.metadata().level(), (loud > DEFAULT).then(now));
            let line = message(&line);
            // An error is ignored: the reader of standard error may have closed it.
            progress::aside(|| drop(writeln!(std::io::stderr(), "{line}")));
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The rank that this process is, if a launcher has started it.
fn own_rank() -> Option<u64> {
    static RANK: OnceLock<Option<u64>> = OnceLock::new();
    *RANK.get_or_init(|| Some(u64::from(Environment::detect().ok()??.rank.0)))
}

/// The time since 1970.
#[allow(clippy::disallowed_types, reason = "the time of a line, for logs of several hosts")]
fn now() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// The text and the rank of an event.
#[derive(Default)]
struct EventText {
    rank: Option<u64>,
    text: String,
}

impl EventText {
    /// Whether the log at [`LEVELS`]`[loud]` prints this at `level`.
    fn is_printed(&self, level: Level, loud: usize) -> bool {
        let quieter = usize::from(self.rank.is_some_and(|rank| rank > 0));
        level <= LEVELS[loud.saturating_sub(quieter)].1
    }

    /// The line, with the time since 1970, level and rank if `time` is given.
    fn line(&self, level: Level, time: Option<Duration>) -> String {
        let Some(time) = time else {
            let before = if level == Level::INFO { "note: " } else { "" };
            return format!("{before}{}", self.text);
        };
        let date = utc(time.as_secs());
        let rank = self.rank.map_or(String::new(), |rank| format!("rank {rank}: "));
        format!("{}.{:03}Z {level:5} {rank}{}", date.trim_end_matches('Z'), time.subsec_millis(), self.text)
    }
}

impl Visit for EventText {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "rank" => self.rank = Some(value),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.text, "{value:?}"),
            name => write!(self.text, " ({name} {value:?})"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(rank: Option<u64>) -> EventText {
        EventText { rank, text: "joined 4 ranks".into() }
    }

    #[test]
    fn a_line_has_time_level_and_rank_when_more_is_asked_for() {
        let at = Some(Duration::from_millis(951_782_400_007));
        assert_eq!(said(None).line(Level::INFO, None), "note: joined 4 ranks");
        assert_eq!(said(Some(2)).line(Level::WARN, None), "joined 4 ranks");
        assert_eq!(
            said(Some(2)).line(Level::WARN, at),
            "2000-02-29T00:00:00.007Z WARN  rank 2: joined 4 ranks"
        );
        assert_eq!(said(None).line(Level::DEBUG, at), "2000-02-29T00:00:00.007Z DEBUG joined 4 ranks");
    }

    #[test]
    fn rank_0_is_louder_than_the_rest() {
        for (loud, zero, other) in [
            (0, Level::WARN, Level::WARN),
            (1, Level::INFO, Level::WARN),
            (2, Level::DEBUG, Level::INFO),
            (3, Level::TRACE, Level::DEBUG),
        ] {
            for level in [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE] {
                assert_eq!(said(None).is_printed(level, loud), level <= zero, "{loud} {level}");
                assert_eq!(said(Some(0)).is_printed(level, loud), level <= zero, "{loud} {level}");
                assert_eq!(said(Some(3)).is_printed(level, loud), level <= other, "{loud} {level}");
            }
        }
    }
}
