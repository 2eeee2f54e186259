//! The machine that a run is made on, and when: processor, cores, memory, load, GPUs and date.

use super::machine_limits::cores;
use allfold_base::utc;
use allfold_cli::memory;
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
pub(super) fn value(text: &str, key: &str) -> Option<String> {
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

/// Seconds since 1970 as a date and time to the minute, such as `2026-11-26 09:30 UTC`.
fn date(seconds: u64) -> String {
    let time = utc(seconds);
    let (day, clock) = time.split_once('T').unwrap_or((&time, ""));
    format!("{day} {} UTC", clock.get(..5).unwrap_or(clock))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_to_the_minute() {
        assert_eq!(date(951_782_399), "2000-02-28 23:59 UTC");
    }

    #[test]
    fn what_linux_tells_is_read() {
        assert_eq!(load("0.52 0.61 0.40 1/123 4567\n"), Some(0.52));
        assert_eq!(load(""), None);
        assert_eq!(value("Model: \t NVIDIA H100\nIRQ: 1\n", "Model").as_deref(), Some("NVIDIA H100"));
        assert!(here().cores >= 1 && here().date.ends_with(" UTC"));
    }
}
