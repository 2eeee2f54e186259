//! The environment variables of a rank: those that torchrun sets, and Allfold's own.
//!
//! A rank's OpenMP, which computes for PyTorch, gets its share of this node's cores: ranks of which each uses all cores are several
//! times as slow. torchrun gives every rank one core.

use crate::job::LaunchJob;
use crate::start::{Start, StartedRank};
use std::ffi::OsString;

/// The variables of one rank of a start; `flight` is the folder of its flight record.
pub(crate) fn variables(
    job: &LaunchJob,
    start: Start,
    at: StartedRank,
    flight: Option<&str>,
) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("RANK", at.rank.to_string()),
        ("WORLD_SIZE", start.world.to_string()),
        ("LOCAL_RANK", at.local.to_string()),
        ("LOCAL_WORLD_SIZE", job.ranks.to_string()),
        ("GROUP_RANK", job.node.to_string()),
        ("GROUP_WORLD_SIZE", job.nodes.to_string()),
        ("ROLE_NAME", "default".into()),
        ("ROLE_RANK", at.rank.to_string()),
        ("ROLE_WORLD_SIZE", start.world.to_string()),
        ("MASTER_ADDR", job.rendezvous_address.host.clone()),
        ("MASTER_PORT", start.port.to_string()),
        ("TORCHELASTIC_RESTART_COUNT", start.epoch.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", job.max_restarts.to_string()),
        ("TORCHELASTIC_RUN_ID", "allfold".into()),
        ("TORCHELASTIC_USE_AGENT_STORE", "False".into()),
        ("ALLFOLD_RENDEZVOUS", job.rendezvous_address.to_string()),
        ("ALLFOLD_RENDEZVOUS_TIMEOUT", job.timeout.as_secs_f64().to_string()),
    ];
    all.extend(
        threads(std::env::var_os("OMP_NUM_THREADS"), job.ranks).map(|count| ("OMP_NUM_THREADS", count)),
    );
    all.extend(job.elastic.then(|| ("ALLFOLD_ELASTIC", "1".into())));
    all.extend(job.log.map(|level| ("ALLFOLD_LOG", level.to_string())));
    all.extend(job.stalled.map(|time| ("ALLFOLD_STALLED", time.as_secs_f64().to_string())));
    all.extend(flight.map(|folder| ("ALLFOLD_FLIGHT_DIR", folder.to_string())));
    all
}

/// `OMP_NUM_THREADS` of each of `ranks` ranks of this node; `None` where it is `set` already, or a single rank may use all cores.
fn threads(set: Option<OsString>, ranks: u32) -> Option<String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = (cores / ranks as usize).max(1);
    (ranks > 1 && set.is_none_or(|value| value.is_empty())).then(|| share.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_the_cores_of_a_node_unless_the_user_has_set_their_threads() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(threads(None, 2), Some((cores / 2).max(1).to_string()));
        assert_eq!(threads(Some("".into()), u32::MAX), Some("1".into()));
        assert_eq!(threads(Some("7".into()), 2), None);
        assert_eq!(threads(None, 1), None, "a single rank has all cores");
    }
}
