//! Slurm's lists of hosts and of tasks, as far as ranks need them: the first host, and the number of tasks on a host.
//!
//! ```text
//! gpu[007-011,020],login1        first host   gpu007
//! 4(x2),3                        tasks        4 4 3
//! ```

/// The first host of a Slurm list. `None` if the text is not such a list.
pub fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        let Some(inner) = rest[end..].strip_prefix('[') else { break };
        let (ranges, after) = inner.split_once(']')?;
        let first = ranges.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    (!host.is_empty() && host.chars().all(plain)).then_some(host)
}

/// How many tasks run on the node of this number, by Slurm's `TASKS_PER_NODE`. `None` if the list does not contain the node.
pub(super) fn tasks_on(node: u32, list: &str) -> Option<u32> {
    let mut left = node;
    for part in list.split(',') {
        let (tasks, times) = match part.trim().split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part.trim(), 1u32),
        };
        if left < times {
            return tasks.parse().ok();
        }
        left -= times;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_lists_as_slurm_writes_them() {
        for (list, host) in [
            ("gpu[007-011,020],login1", "gpu007"),
            ("node1", "node1"),
            ("a,b,c", "a"),
            ("rack[2-3]-n[01,04]", "rack2-n01"),
            ("n[3]", "n3"),
            ("host[09-10].cluster.org", "host09.cluster.org"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for list in ["", "gpu[", "gpu[]", "gpu[x-y]", ",", "a b", "$(rm)"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }

    #[test]
    fn tasks_of_a_node() {
        assert_eq!([0, 1, 2, 3].map(|node| tasks_on(node, "4(x2),3")), [Some(4), Some(4), Some(3), None]);
        assert_eq!(tasks_on(0, "2"), Some(2));
        for list in ["", "x", "2(x", "2(xx)"] {
            assert_eq!(tasks_on(0, list), None, "{list}");
        }
    }
}
