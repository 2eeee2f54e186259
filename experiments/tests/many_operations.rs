//! Very many small operations: the memory of a process does not grow with their number. `OPERATIONS` sets how many are made of each
//! backend; `scripts/long.sh small_operations` makes a million. On virtual time `bench` makes one call, whatever the number.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(target_os = "linux")]

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// The operations of each backend in an ordinary run of the tests.
const FEW: u64 = 500;

/// Bytes for each operation: `bench` keeps one time of 8 bytes per call and rank, in lists that may have twice the capacity, and sorts
/// a copy. A message or a task that is not freed takes more.
const KEPT: u64 = 48;

/// Bytes by which two runs may differ whatever they do: the stacks and heaps of their threads.
const SLACK: u64 = 4 << 20;

/// The most memory in bytes that two ranks hold during `operations` all-reduces of 8 bytes.
#[allow(clippy::disallowed_methods, reason = "between two looks at the memory of another process")]
fn peak(backend: &str, operations: u64) -> u64 {
    let count = operations.to_string();
    let mut child = Command::new(env!("CARGO_BIN_EXE_allfold"))
        .args(["-q", "bench", "all_reduce", "--ranks", "2", "-b", "8", "-e", "8", "--backend", backend])
        .args(["-n", &count])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    let ended = loop {
        let now = fs::read_to_string(&status).unwrap_or_default();
        let peak = now.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        most = peak.map_or(most, |kib| kib.parse::<u64>().unwrap() << 10);
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert!(ended.success() && most > 0, "{backend}: {ended}");
    most
}

#[test]
fn memory_does_not_grow_with_the_number_of_operations() {
    let operations = std::env::var("OPERATIONS").map_or(FEW, |count| count.parse().unwrap());
    for backend in ["threads", "shm", "tcp"] {
        let (few, many) = (peak(backend, operations / 10), peak(backend, operations));
        println!("{backend}: {} KiB for {}, {} KiB for {operations}", few >> 10, operations / 10, many >> 10);
        assert!(many < few + SLACK + KEPT * operations, "{backend}: {few} bytes, then {many}");
    }
}
