//! A progress bar on standard error that vanishes when it is done, and is not there at all when standard error is
//! no terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `total` units with a message.
pub fn bar(total: u64, message: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{msg:28} {bar:30} {pos}/{len} {elapsed} eta {eta}") {
        bar.set_style(style);
    }
    bar.set_message(message.to_string());
    bar
}

/// A spinner for work whose length is not known.
pub fn spinner(message: &str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        spinner.set_style(style);
    }
    spinner.set_message(message.to_string());
    spinner
}
