//! The limits of this machine on processes and descriptors. A job whose ranks need more is refused before its first rank is
//! started.

use crate::error::{Error, LaunchResult};
use crate::job::LaunchJob;
use allfold_base::memory::control_groups;
use rustix::process::{Resource, geteuid, getrlimit};

/// Descriptors that a launcher needs for itself: its runtimes, its signals, the guard, the rendezvous, and a start under way.
const OWN: u64 = 40;

/// Descriptors for each rank: two pipes of its output, and its process.
const EACH: u64 = 3;

/// Further descriptors for each rank whose output is written to two files.
const FILES: u64 = 2;

/// Refuses a job if this machine cannot start all of this node's ranks.
///
/// # Errors
/// Which limit is too low, and what the job needs.
pub(crate) fn check(job: &LaunchJob) -> LaunchResult {
    let open = std::fs::read_dir("/proc/self/fd").map_or(3, |all| all.count() as u64);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    fits(job, open, limit).map_err(Error::Usage)?;
    match least(&processes(&|path| std::fs::read_to_string(path).ok())) {
        Some((most, of)) if u64::from(job.ranks) >= most => Err(Error::Usage(format!(
            "-n {} needs more processes than the {most} that may run here ({of}): start fewer ranks",
            job.ranks
        ))),
        _ => Ok(()),
    }
}

/// Whether a limit of `limit` descriptors is enough where `open` are open already.
fn fits(job: &LaunchJob, open: u64, limit: u64) -> Result<(), String> {
    let ranks = u64::from(job.ranks);
    let each = EACH + if job.log_dir.is_some() { FILES } else { 0 };
    // All ranks of the world may connect to node 0 at once.
    let callers = if job.node == 0 { ranks * u64::from(job.nodes) } else { 0 };
    let need = open + OWN + ranks * each + callers;
    match need <= limit {
        true => Ok(()),
        false => Err(format!(
            "-n {ranks} needs {need} descriptors and this process may open {limit}: raise the limit by `ulimit -n {need}`, or \
             start fewer ranks"
        )),
    }
}

/// The limits on processes, with what sets them; `read` reads a file of the system.
fn processes(read: &dyn Fn(&str) -> Option<String>) -> Vec<(u64, &'static str)> {
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    let left = |group: &String| {
        Some(number(&format!("{group}/pids.max"))?.saturating_sub(number(&format!("{group}/pids.current"))?))
    };
    let group = || control_groups(read, "pids").iter().filter_map(left).min();
    // Linux does not apply RLIMIT_NPROC to root.
    let user = || getrlimit(Resource::Nproc).current.filter(|_| !geteuid().is_root());
    let limits = [
        (number("/proc/sys/kernel/pid_max"), "kernel.pid_max"),
        (number("/proc/sys/kernel/threads-max"), "kernel.threads-max"),
        (group(), "pids.max of the control group"),
        (user(), "`ulimit -u`"),
    ];
    limits.into_iter().filter_map(|(limit, of)| Some((limit?, of))).collect()
}

fn least(limits: &[(u64, &'static str)]) -> Option<(u64, &'static str)> {
    limits.iter().copied().min_by_key(|(limit, _)| *limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_collectives::environment::RendezvousAddress;
    use allfold_collectives::tcp::Security;
    use std::time::Duration;

    fn job(ranks: u32) -> LaunchJob {
        LaunchJob {
            ranks,
            nodes: 2,
            node: 0,
            rendezvous_address: RendezvousAddress { host: "127.0.0.1".into(), port: 0, served: true },
            max_restarts: 0,
            elastic: false,
            grace: Duration::ZERO,
            stalled: None,
            timeout: Duration::ZERO,
            security: Security::Loopback,
            log_dir: None,
            tee: false,
            log: None,
            command: vec!["true".into()],
        }
    }

    #[test]
    fn descriptors_are_counted_for_every_rank_its_files_and_its_call() {
        let fits = |job: &LaunchJob, limit| fits(job, 4, limit).is_ok();
        assert!(fits(&job(10), 44 + 10 * 3 + 20) && !fits(&job(10), 44 + 10 * 3 + 19));
        let second = LaunchJob { node: 1, ..job(10) };
        assert!(fits(&second, 44 + 10 * 3) && !fits(&second, 44 + 10 * 3 - 1));
        let logged = LaunchJob { log_dir: Some("logs".into()), ..second };
        assert!(fits(&logged, 44 + 10 * 5) && !fits(&logged, 44 + 10 * 5 - 1));
        assert!(!fits(&job(u32::MAX), 1 << 20), "no sum overflows");
    }

    #[test]
    fn the_lowest_limit_on_processes_counts() {
        let read = |path: &str| match path {
            "/proc/sys/kernel/pid_max" => Some("32768\n".to_string()),
            "/sys/fs/cgroup/pids.max" => Some("100\n".into()),
            "/sys/fs/cgroup/pids.current" => Some("30\n".into()),
            _ => None,
        };
        let found = processes(&read);
        assert_eq!(found[..2], [(32_768, "kernel.pid_max"), (70, "pids.max of the control group")]);
        assert_eq!(least(&found[..2]), Some((70, "pids.max of the control group")));
        // Version 1 has a tree of groups for each controller.
        let old = |path: &str| match path {
            "/proc/self/cgroup" => Some("9:cpu,pids:/job\n8:memory:/other\n1:name=systemd:/x\n".to_string()),
            "/sys/fs/cgroup/pids/job/pids.max" => Some("50\n".into()),
            "/sys/fs/cgroup/pids/job/pids.current" => Some("8\n".into()),
            _ => None,
        };
        assert_eq!(processes(&old)[..1], [(42, "pids.max of the control group")]);
        let unlimited = |path: &str| path.starts_with("/sys").then(|| "max\n".to_string());
        assert!(processes(&unlimited).iter().all(|(_, of)| *of == "`ulimit -u`"));
    }
}
