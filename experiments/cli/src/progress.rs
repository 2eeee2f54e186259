//! Progress of work that takes long, on standard error: on a terminal a bar that vanishes when the work is done, elsewhere a line
//! after two seconds and then one every five seconds.

use crate::{interruption, invocation};
use allfold_base::lock;
use indicatif::{HumanDuration, ProgressBar, ProgressStyle, WeakProgressBar};
use std::io::Write;
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long work takes before its first line.
const FIRST: Duration = Duration::from_secs(2);
/// The time between two lines.
const BETWEEN: Duration = Duration::from_secs(5);
/// The time between two checks whether the user has interrupted the run, and between two moves of a bar.
const LOOK: Duration = Duration::from_millis(200);

/// How long no step has ended before a line says so instead of how much time is left, unless steps usually take long.
const STALLED: Duration = Duration::from_secs(10);
/// The number of usual steps in whose time no step has ended before a line says so.
const STALLED_STEPS: u32 = 10;

/// What a bar shows. A message that does not fit on what is left of the line is cut, so that no line of a narrow terminal wraps.
const BAR: &str = "{bar:12} {pos}/{len} {elapsed} eta {eta} {wide_msg}";

/// What a bar shows for one run of several. The name of the run is cut as well.
const BAR_OF_RUN: &str = "{bar:12} {prefix:24!} {pos}/{len} {elapsed} eta {eta} {wide_msg}";

/// Whether the user requested no progress.
static QUIET: AtomicBool = AtomicBool::new(false);

/// The bar that was shown last; it may have ended.
static SHOWN: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// Shows no progress from now on.
pub fn quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Prints something on standard error, above the bar if one is shown.
pub fn aside(print: impl FnOnce()) {
    let bar = lock(&SHOWN).as_ref().and_then(WeakProgressBar::upgrade);
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// The progress of one piece of work; it ends when it is dropped. Everything of a [`ProgressBar`] can be called on it.
pub struct ProgressDisplay {
    bar: ProgressBar,
    lines: Option<Lines>,
}

impl Deref for ProgressDisplay {
    type Target = ProgressBar;

    fn deref(&self) -> &ProgressBar {
        &self.bar
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.lines.take();
        self.bar.finish_and_clear();
    }
}

/// A progress bar of `total` units with a message.
pub fn bar(total: u64, message: &str) -> ProgressDisplay {
    shown(ProgressBar::new(total), BAR, message)
}

/// A bar of the steps of a run, whose lines begin with the number of steps that are done.
pub fn steps(total: u64, message: &str) -> ProgressDisplay {
    let bar = ProgressBar::new(total).with_prefix("step");
    shown(bar, BAR, message)
}

/// A bar of the steps of one run of several, whose lines begin with the run's name.
pub fn steps_of(run: &str, total: u64) -> ProgressDisplay {
    let bar = ProgressBar::new(total).with_prefix(format!("{run}: step"));
    shown(bar, BAR_OF_RUN, "")
}

/// A spinner for work whose length is not known.
pub fn spinner(message: &str) -> ProgressDisplay {
    shown(ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}", message)
}

/// Progress that is not shown, for a process whose work another process shows.
pub fn hidden() -> ProgressDisplay {
    ProgressDisplay { bar: ProgressBar::hidden(), lines: None }
}

fn shown(bar: ProgressBar, template: &str, message: &str) -> ProgressDisplay {
    if QUIET.load(Ordering::Relaxed) || invocation::keeper().is_some() {
        return hidden();
    }
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(message.to_string());
    *lock(&SHOWN) = Some(bar.downgrade());
    if !bar.is_hidden() {
        bar.enable_steady_tick(LOOK);
    }
    let lines = Lines::of(bar.clone());
    ProgressDisplay { bar, lines }
}

/// A thread that prints, for readers of a log file, a line now and then about a bar that no terminal shows. It also prints a line when
/// an interruption has arrived, which may take effect later.
struct Lines {
    /// Dropping the sender ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Lines {
    /// The lines of a bar; `None` if the system has no thread left, in which case the work continues without lines.
    fn of(bar: ProgressBar) -> Option<Lines> {
        let (end, ended) = channel();
        let thread =
            std::thread::Builder::new().name("progress".into()).spawn(move || print(&bar, &ended)).ok()?;
        Some(Lines { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            // The thread ends at once and returns nothing.
            let _ = thread.join();
        }
    }
}

/// Prints lines until the sender of `ended` is dropped or the bar is finished.
#[allow(clippy::disallowed_methods, reason = "tells the user how long it takes")]
fn print(bar: &ProgressBar, ended: &Receiver<()>) {
    let (start, mut due, mut before, mut heard) = (Instant::now(), FIRST, None, false);
    let (mut position, mut reached) = (bar.position(), Duration::ZERO);
    while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        if bar.is_finished() {
            return;
        }
        if !heard && interruption::is_ending() {
            heard = true;
            let said = "interrupted: what is under way is ended first; a second signal ends the run at once";
            bar.suspend(|| drop(writeln!(std::io::stderr(), "{said}")));
        }
        if bar.position() != position {
            (position, reached) = (bar.position(), start.elapsed());
        }
        if !bar.is_hidden() || start.elapsed() < due {
            continue;
        }
        let now = Seen { at: start.elapsed(), position, reached };
        // Writing fails if the reader has closed standard error; the work continues.
        let _ =
            writeln!(std::io::stderr(), "{}", line(&bar.prefix(), &bar.message(), bar.length(), before, now));
        before = before.or(Some(now));
        due = start.elapsed() + BETWEEN;
    }
}

/// The position of a bar at a time.
#[derive(Clone, Copy)]
struct Seen {
    at: Duration,
    position: u64,
    /// When the bar got this position.
    reached: Duration,
}

/// One line. The time that is left follows from the pace between the first line and the last change: a resumed run does not begin at 0.
/// If no step has ended for long, the line says so: the pace of earlier steps then says nothing about the rest.
fn line(prefix: &str, message: &str, length: Option<u64>, before: Option<Seen>, now: Seen) -> String {
    let so_far = HumanDuration(Duration::from_secs(now.at.as_secs()));
    let Some(length) = length else { return format!("{message}, {so_far} so far") };
    let pace = before
        .filter(|before| now.position > before.position)
        .map(|before| now.reached.saturating_sub(before.at).div_f64((now.position - before.position) as f64));
    let none_for = now.at.saturating_sub(now.reached);
    let limit = STALLED.max(pace.unwrap_or_default().saturating_mul(STALLED_STEPS));
    let in_steps = prefix.ends_with("step") && now.reached > Duration::ZERO && now.position < length;
    let left = match pace {
        _ if in_steps && none_for >= limit => format!(", no step for {} s", none_for.as_secs()),
        Some(pace) => {
            format!(", {} left", HumanDuration(pace.mul_f64(length.saturating_sub(now.position) as f64)))
        }
        None => String::new(),
    };
    match prefix.strip_suffix("step") {
        None => format!("{message}: {} of {length}, {so_far} so far{left}", now.position),
        Some(run) => {
            format!("{run}{} of {length} steps, {message}, {so_far} so far{left}", now.position)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::{ProgressDrawTarget, TermLike};
    use std::io;
    use std::sync::Arc;

    fn seen(seconds: u64, position: u64) -> Seen {
        still(seconds, position, seconds)
    }

    /// A bar at `seconds` that has had its position since `reached`.
    fn still(seconds: u64, position: u64, reached: u64) -> Seen {
        Seen { at: Duration::from_secs(seconds), position, reached: Duration::from_secs(reached) }
    }

    #[test]
    fn a_line_says_how_far_and_how_long() {
        let said = |before, now| line("step", "loss 0.5", Some(1000), before, now);
        assert_eq!(said(None, seen(2, 100)), "100 of 1000 steps, loss 0.5, 2 seconds so far");
        let line_after = said(Some(seen(2, 100)), seen(12, 300));
        assert_eq!(line_after, "300 of 1000 steps, loss 0.5, 12 seconds so far, 35 seconds left");
        let resumed = said(Some(seen(2, 900)), seen(12, 950));
        assert!(resumed.ends_with("10 seconds left"), "{resumed}");
    }

    #[test]
    fn a_run_that_hangs_says_how_long_no_step_has_ended_and_does_not_guess_when_it_ends() {
        let before = Some(seen(2, 100));
        let said = |prefix, now| line(prefix, "loss 0.5", Some(1000), before, now);
        let waits = "300 of 1000 steps, loss 0.5, 21 seconds so far, 35 seconds left";
        assert_eq!(
            said("step", still(21, 300, 12)),
            waits,
            "the estimate does not grow while a step is awaited"
        );
        let hangs = "300 of 1000 steps, loss 0.5, 22 seconds so far, no step for 10 s";
        assert_eq!(said("step", still(22, 300, 12)), hangs);
        assert!(said("gpt: step", still(100, 300, 12)).ends_with(", no step for 88 s"));
        // No step has ended since the first line, or at all.
        assert!(said("step", still(30, 100, 1)).ends_with("30 seconds so far, no step for 29 s"));
        assert!(said("step", still(30, 0, 0)).ends_with("30 seconds so far"));
        assert!(said("step", still(90, 1000, 12)).ends_with(" left"), "all steps have ended");
        // A step that takes 20 seconds is awaited for longer. Work that is not counted in steps does not say how long.
        assert!(said("step", still(90, 102, 42)).ends_with(" left"));
        assert!(said("", still(90, 300, 12)).ends_with(" left"));
    }

    #[test]
    fn work_without_a_length_says_how_long() {
        assert_eq!(line("", "all_reduce", None, None, seen(7, 0)), "all_reduce, 7 seconds so far");
        assert_eq!(line("", "proving", Some(1), None, seen(7, 0)), "proving: 0 of 1, 7 seconds so far");
    }

    /// A terminal of 60 columns that keeps the text written to it.
    #[derive(Clone, Debug, Default)]
    struct Narrow(Arc<Mutex<Vec<String>>>);

    impl TermLike for Narrow {
        fn width(&self) -> u16 {
            60
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, line: &str) -> io::Result<()> {
            self.write_str(line)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            lock(&self.0).push(text.into());
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.write_str("\n")
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_bar_fits_on_a_narrow_terminal() {
        let long = "gpt on 4 ranks: loss 0.123456, 1.2M samples/s, best 0.1";
        for (template, message) in
            [(BAR, "proving"), (BAR, long), (BAR_OF_RUN, "loss 0.1234, 1.2M samples/s")]
        {
            let terminal = Narrow::default();
            let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
            let bar = ProgressBar::with_draw_target(Some(1000), target);
            bar.set_style(ProgressStyle::with_template(template).unwrap());
            bar.set_prefix("run 13 of 14, data_parallel on threads: step");
            bar.set_message(message);
            bar.tick();
            let told = lock(&terminal.0).concat();
            let widest = told.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
            assert!(told.contains("/1000") && widest <= 60, "{widest}: {told:?}");
        }
    }

    #[test]
    fn progress_ends_when_it_is_dropped() {
        let progress = bar(3, "work");
        progress.inc(1);
        let inner = (*progress).clone();
        drop(progress);
        assert!(inner.is_finished());
    }
}
