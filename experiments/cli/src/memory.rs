//! The memory that this process may still allocate, so that a run that is too large is refused before it starts.

use crate::error::{CommandError, CommandResult};
use allfold_launch::control_groups;
use rustix::process::{Resource, getrlimit};
use std::fs;

/// Bytes that can still be allocated: the kernel's estimate, or the limit of the control group or of the process
/// (`ulimit -v`) if that is lower. `None` where none can be read.
pub fn available() -> Option<u64> {
    [from_kernel(), from_cgroups(&|path| fs::read_to_string(path).ok()), from_process()]
        .into_iter()
        .flatten()
        .min()
}

/// The memory of the machine in bytes.
pub fn total() -> Option<u64> {
    meminfo("MemTotal:")
}

fn from_kernel() -> Option<u64> {
    meminfo("MemAvailable:")
}

fn meminfo(key: &str) -> Option<u64> {
    from_table("/proc/meminfo", key)
}

/// The bytes behind a key in a table of the kernel's, which counts in KiB.
fn from_table(path: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes that this process's limit on its address space still allows.
fn from_process() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    Some(limit.saturating_sub(from_table("/proc/self/status", "VmSize:")?))
}

/// Bytes that the control groups of this process still allow: the least, over all of them, of the limit less what is in use.
fn from_cgroups(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let of = |group: &String| {
        let file = |name: &str| read(&format!("{group}/memory.{name}"));
        // The second names are those of version 1.
        let limit = file("max").or_else(|| file("limit_in_bytes"))?;
        let used = file("current").or_else(|| file("usage_in_bytes"))?;
        left(&limit, &used, &file("stat").unwrap_or_default())
    };
    control_groups(read, "memory").iter().filter_map(of).min()
}

/// Bytes that a control group's limit still allows, from the texts of its files. Cached pages of files count as free: the
/// kernel takes them back.
fn left(max: &str, current: &str, stat: &str) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    // Version 1 also lists the pages without those of inner groups, whose use it counts.
    let inner = if stat.contains("total_inactive_file") { "total_" } else { "" };
    let pages = |line: &str| {
        let (name, bytes) = line.strip_prefix(inner)?.split_once(' ')?;
        ["inactive_file", "active_file"].contains(&name).then(|| number(bytes))?
    };
    let files: u64 = stat.lines().filter_map(pages).sum();
    Some(number(max)?.saturating_sub(number(current)?.saturating_sub(files)))
}

/// Refuses to start with less than `need` bytes of free memory. `need` is `None` if the sum overflows.
pub fn require(need: Option<u64>, what: &str) -> CommandResult {
    require_or(need, what, "take fewer ranks or a smaller size")
}

/// As [`require`], with the advice that the error gives.
pub fn require_or(need: Option<u64>, what: &str, remedy: &str) -> CommandResult {
    let have = available().unwrap_or(u64::MAX / 2);
    match need {
        Some(need) if need <= have => Ok(()),
        Some(need) => Err(CommandError::usage(format!(
            "{what} need {} of memory and {} are available; {remedy}",
            gib(need),
            gib(have)
        ))),
        None => Err(CommandError::usage(format!("{what} need more than 2^64 bytes; {remedy}"))),
    }
}

/// Refuses more ranks than one process can run as threads: each rank takes two threads with several memory mappings each, and
/// Linux allows a process 65,530 mappings (vm.max_map_count).
pub fn threads(ranks: u32) -> CommandResult {
    const MOST: u32 = 4_096;
    if ranks <= MOST {
        return Ok(());
    }
    Err(CommandError::usage(format!(
        "{ranks} ranks are more than the {MOST} that run as threads of one process; `allfold simulate` times any number"
    )))
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_refused_with_both_numbers() {
        assert_eq!(require(Some(1), "buffers"), Ok(()));
        let Err(CommandError::Usage(text)) = require(Some(1 << 62), "buffers") else { panic!("not refused") };
        assert!(text.contains("4294967296.0 GiB") && text.contains("available"), "{text}");
        assert!(require(None, "buffers").is_err());
    }

    #[test]
    fn the_least_of_nested_groups_counts() {
        let files = |path: &str| {
            let text = match path {
                "/proc/self/cgroup" => "1:name=old:/x\n0::/job/step\n",
                "/sys/fs/cgroup/job/step/memory.max" => "max\n",
                "/sys/fs/cgroup/job/memory.max" => "500\n",
                "/sys/fs/cgroup/memory.max" => "1000\n",
                "/sys/fs/cgroup/job/memory.current" => "100\n",
                path if path.ends_with("memory.current") => "10\n",
                _ => return None,
            };
            Some(text.to_string())
        };
        assert_eq!(from_cgroups(&files), Some(400));
        assert_eq!(from_cgroups(&|path| files(path).filter(|_| !path.contains("job"))), Some(990));
        assert_eq!(from_cgroups(&|_| None), None);
    }

    #[test]
    fn groups_of_version_1_limit_as_those_of_version_2() {
        let files = |path: &str| {
            let text = match path {
                "/proc/self/cgroup" => "11:cpu,cpuacct:/x\n4:memory:/job/step\n",
                "/sys/fs/cgroup/memory/job/step/memory.limit_in_bytes" => "9223372036854771712\n",
                "/sys/fs/cgroup/memory/job/memory.limit_in_bytes" => "1000\n",
                path if path.ends_with("memory.usage_in_bytes") => "900\n",
                path if path.ends_with("memory.stat") => "inactive_file 1\ntotal_inactive_file 50\n",
                _ => return None,
            };
            Some(text.to_string())
        };
        assert_eq!(from_cgroups(&files), Some(150));
    }

    #[test]
    fn pages_of_files_are_no_memory_that_a_group_has_used_up() {
        let stat =
            "anon 100\nfile 700\ninactive_anon 60\nactive_anon 40\ninactive_file 500\nactive_file 150\n";
        assert_eq!(left("1000\n", "900\n", stat), Some(750));
        assert_eq!(left("1000\n", "900\n", ""), Some(100));
        assert_eq!(left("1000\n", "1200\n", "inactive_file 50\n"), Some(0));
        assert_eq!(left("max\n", "900\n", stat), None);
    }
}
