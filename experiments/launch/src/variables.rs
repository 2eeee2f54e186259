//! The environment variables of a rank: those that torchrun sets, and Allfold's own.

use crate::job::LaunchJob;
use crate::start::{Start, StartedRank};

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
    all.extend(job.elastic.then(|| ("ALLFOLD_ELASTIC", "1".into())));
    all.extend(job.log.map(|level| ("ALLFOLD_LOG", level.to_string())));
    all.extend(flight.map(|folder| ("ALLFOLD_FLIGHT_DIR", folder.to_string())));
    all
}
