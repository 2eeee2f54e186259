//! The machine that a run is made on, and when: processor, cores, memory, load, GPUs and date.

use super::machine_limits::cores;
use crate::cli::memory;
use allfold_report::records::MeasuringMachine;
use std::fs;

/// This machine now.
pub fn here() -> MeasuringMachine {
    MeasuringMachine {
        date: now(),
        processor: processor().unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH)),
        cores: cores(),
        memory_bytes: memory::total(),
        load: load(&fs::read_to_string("/proc/loadavg").unwrap_or_default()),
        gpus: gpus(),
    }
}

/// The processor's name, as Linux reports it.
pub fn processor() -> Option<String> {
    cpuinfo("model name").or_else(|| cpuinfo("Model")).or_else(|| cpuinfo("Hardware"))
}

/// The value of a key of the first processor in `/proc/cpuinfo`.
pub fn cpuinfo(key: &str) -> Option<String> {
    value(&fs::read_to_string("/proc/cpuinfo").ok()?, key)
}

/// The value of a line `key : value`.
fn value(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_string())
    })
}

/// The mean number of processes that wanted to run in the last minute.
fn load(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

/// The names of NVIDIA's GPUs, as their driver reports them.
fn gpus() -> Vec<String> {
    let Ok(folders) = fs::read_dir("/proc/driver/nvidia/gpus") else { return Vec::new() };
    let name =
        |folder: fs::DirEntry| value(&fs::read_to_string(folder.path().join("information")).ok()?, "Model");
    folders.flatten().filter_map(name).collect()
}

#[allow(clippy::disallowed_types, reason = "the date of a report")]
fn now() -> String {
    use std::time::{SystemTime, UNIX_EPOCH};
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds)
}

/// Seconds since 1970 as a date and time in UTC, by the Gregorian calendar. The year begins in March, so that a leap day is the
/// last day of its year.
fn date(seconds: u64) -> String {
    const DAYS_TO_1970: u64 = 719_468;
    const ERA: u64 = 146_097;
    let (days, time) = (seconds / 86_400 + DAYS_TO_1970, seconds % 86_400);
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{}-{month:02}-{date:02} {:02}:{:02} UTC", era * 400 + year + later, time / 3600, time / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn what_linux_tells_is_read() {
        assert_eq!(load("0.52 0.61 0.40 1/123 4567\n"), Some(0.52));
        assert_eq!(load(""), None);
        assert_eq!(value("Model: \t NVIDIA H100\nIRQ: 1\n", "Model").as_deref(), Some("NVIDIA H100"));
        assert!(here().cores >= 1 && here().date.ends_with(" UTC"));
    }
}
