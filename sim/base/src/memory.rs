//! The memory that this process may still allocate, so that what is too large is refused before it starts.

use std::fs;
use std::path::Path;

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
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: u64 = limit.split_whitespace().next()?.parse().ok()?;
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

/// The folders of this process's control groups that may limit what `controller` counts, of version 2 and of version 1, the innermost
/// first: the limits of all of them count. `read` reads a file of the system.
pub fn control_groups(read: &dyn Fn(&str) -> Option<String>, controller: &str) -> Vec<String> {
    // A line is `number:controllers:group`; version 2 names no controllers.
    let text = read("/proc/self/cgroup").unwrap_or_else(|| "0::/".into());
    let groups = text.lines().filter_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let folder = match controllers {
            "" => String::new(),
            _ => format!("/{}", controllers.split(',').find(|name| *name == controller)?),
        };
        Some((folder, group))
    });
    let folders = groups.flat_map(|(folder, group)| {
        let name = move |group: &Path| format!("/sys/fs/cgroup{folder}{}", group.display());
        Path::new(group).ancestors().map(name).collect::<Vec<_>>()
    });
    folders.map(|folder| folder.trim_end_matches('/').into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
