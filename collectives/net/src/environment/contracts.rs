//! The variables that each launcher sets, and their meaning.

use super::nodelist;
use super::process::{Environment, Launcher, RendezvousAddress};
use super::variables::{Variables, wrong};
use crate::{Rank, Result};

/// The place of a rank according to a launcher's variables, before it is checked. `rank` and `world` also hold the names of the variables
/// that were read.
pub(super) struct Place {
    rank: (&'static str, u32),
    world: (&'static str, u32),
    local_rank: u32,
    local_world: u32,
    node: u32,
    /// The host of the rendezvous if `MASTER_ADDR` is not set; an error if the user must set it.
    host: std::result::Result<String, &'static str>,
    /// The port (see [`port_of`]) if `MASTER_PORT` is not set; an error if the user must set it.
    port: std::result::Result<u16, &'static str>,
    epoch: u32,
    job: String,
}

/// The launcher whose variables are set. A Slurm batch script has no step, or in some versions one of a number that Slurm reserves, and is
/// not taken for a rank.
pub(super) fn launcher(variables: &Variables) -> Option<Launcher> {
    const RESERVED: u64 = 0xffff_fff0;
    let has = |name: &str| variables.text(name).is_some();
    let step = variables.first(&["SLURM_STEP_ID", "SLURM_STEPID"]);
    let step = step.is_some_and(|(_, step)| step.parse().is_ok_and(|step: u64| step < RESERVED));
    let contracts = [
        (Launcher::Torchrun, has("RANK") || has("WORLD_SIZE")),
        (Launcher::OpenMpi, has("OMPI_COMM_WORLD_RANK") || has("OMPI_COMM_WORLD_SIZE")),
        (Launcher::Slurm, has("SLURM_PROCID") && step),
        (Launcher::Pmi, has("PMI_RANK") || has("PMI_SIZE")),
    ];
    contracts.into_iter().find(|(_, there)| *there).map(|(launcher, _)| launcher)
}

const NO_HOST: &str = "name the host where rank 0 runs";
const NO_PORT: &str = "name a free port on the host where rank 0 runs";

pub(super) fn torchrun(variables: &Variables) -> Result<Place> {
    let (rank, world) = (variables.number("RANK")?, variables.number("WORLD_SIZE")?);
    not_left_over(rank, world, variables)?;
    Ok(Place {
        rank: ("RANK", rank),
        world: ("WORLD_SIZE", world),
        local_rank: variables.optional("LOCAL_RANK")?.unwrap_or(rank),
        local_world: variables.optional("LOCAL_WORLD_SIZE")?.unwrap_or(world),
        node: variables.any(&["GROUP_RANK", "NODE_RANK"])?.unwrap_or(0),
        host: Err(NO_HOST),
        port: Err(NO_PORT),
        epoch: variables.optional("TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0),
        job: variables.text("TORCHELASTIC_RUN_ID").unwrap_or_default(),
    })
}

/// Refuses `RANK` and `WORLD_SIZE` that were exported before another launcher started several processes: each process would become a
/// world of its own, or all of them the same rank. A launcher that starts ranks within each of these processes is allowed: it makes a
/// larger world, or sets ALLFOLD_RENDEZVOUS or TORCHELASTIC_RUN_ID.
fn not_left_over(rank: u32, world: u32, variables: &Variables) -> Result<()> {
    if variables.first(&["ALLFOLD_RENDEZVOUS", "TORCHELASTIC_RUN_ID"]).is_some() {
        return Ok(());
    }
    for (other_rank, other_size) in [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("PMI_RANK", "PMI_SIZE"),
    ] {
        let said = (variables.optional::<u32>(other_rank)?, variables.optional::<u32>(other_size)?);
        let (Some(theirs), Some(size)) = said else { continue };
        let (name, read, other, says) = match (world < size, world == size && rank != theirs) {
            (true, _) => ("WORLD_SIZE", world, other_size, size),
            (_, true) => ("RANK", rank, other_rank, theirs),
            _ => continue,
        };
        let wanted = format!(
            "{other} is {says}: unset RANK and WORLD_SIZE, or set them to {other_rank} and {other_size}"
        );
        return Err(wrong(name, Some(&read.to_string()), &wanted));
    }
    Ok(())
}

/// The variables with the numbers of tasks per node: of the step, and of the job.
const SLURM_TASKS: [&str; 2] = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"];

pub(super) fn slurm(variables: &Variables) -> Result<Place> {
    let size = variables.first(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"]);
    let size = size.map_or("SLURM_NTASKS", |(name, _)| name);
    let world = variables.number(size)?;
    let node = variables.optional("SLURM_NODEID")?.unwrap_or(0);
    let job: u64 = variables.any(&["SLURM_JOB_ID", "SLURM_JOBID"])?.unwrap_or(0);
    let step: u64 = variables.any(&["SLURM_STEP_ID", "SLURM_STEPID"])?.unwrap_or(0);
    let tasks = variables.first(&SLURM_TASKS);
    let local_world = tasks.and_then(|(_, tasks)| nodelist::tasks_on(node, &tasks)).unwrap_or(world);
    let hosts = variables.first(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]);
    let host = match hosts {
        Some((name, hosts)) => Ok(nodelist::first_host(&hosts)
            .ok_or_else(|| wrong(name, Some(&hosts), "a list of hosts such as gpu[01-04] is needed"))?),
        None => Err(NO_HOST),
    };
    Ok(Place {
        rank: ("SLURM_PROCID", variables.number("SLURM_PROCID")?),
        world: (size, world),
        local_rank: variables.optional("SLURM_LOCALID")?.unwrap_or(0),
        local_world,
        node,
        host,
        port: Ok(port_of(job.wrapping_mul(31).wrapping_add(step))),
        epoch: variables.optional("SLURM_RESTART_COUNT")?.unwrap_or(0),
        job: format!("slurm-{job}.{step}"),
    })
}

pub(super) fn open_mpi(variables: &Variables) -> Result<Place> {
    let world = variables.number("OMPI_COMM_WORLD_SIZE")?;
    let rank = variables.number("OMPI_COMM_WORLD_RANK")?;
    let local_world = variables.optional("OMPI_COMM_WORLD_LOCAL_SIZE")?.unwrap_or(world);
    let job = variables.first(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"]);
    Ok(Place {
        rank: ("OMPI_COMM_WORLD_RANK", rank),
        world: ("OMPI_COMM_WORLD_SIZE", world),
        local_rank: variables.optional("OMPI_COMM_WORLD_LOCAL_RANK")?.unwrap_or(rank),
        local_world,
        // OMPI_COMM_WORLD_NODE_RANK is not the number of a host: it numbers the processes of all jobs on one host.
        node: 0,
        host: here(local_world == world),
        port: job.as_ref().map(|(_, job)| port_of(allfold_base::fnv1a(job.as_bytes()))).ok_or(NO_PORT),
        epoch: 0,
        job: job.map_or_else(String::new, |(_, job)| format!("mpi-{job}")),
    })
}

pub(super) fn pmi(variables: &Variables) -> Result<Place> {
    let (rank, world) = (variables.number("PMI_RANK")?, variables.number("PMI_SIZE")?);
    let local_world = variables.any(&["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"])?.unwrap_or(world);
    Ok(Place {
        rank: ("PMI_RANK", rank),
        world: ("PMI_SIZE", world),
        local_rank: variables.any(&["MPI_LOCALRANKID", "PMI_LOCAL_RANK"])?.unwrap_or(rank),
        local_world,
        node: 0,
        host: here(local_world == world),
        port: Err(NO_PORT),
        epoch: 0,
        job: String::new(),
    })
}

/// The host of the rendezvous: the loopback address if all ranks are on this host.
fn here(alone: bool) -> std::result::Result<String, &'static str> {
    if alone { Ok("127.0.0.1".into()) } else { Err(NO_HOST) }
}

/// A port that follows from a job's number, so that all ranks of the job use the same: from 15000 to 29999, below the ports
/// that systems assign.
fn port_of(job: u64) -> u16 {
    15_000 + (job % 15_000) as u16
}

impl Place {
    /// Checks the variables against each other, and finds the address of the rendezvous.
    pub fn checked(self, launcher: Launcher, variables: &Variables) -> Result<Environment> {
        let ((rank_name, rank), (world_name, world)) = (self.rank, self.world);
        if !(1..=Rank::MOST).contains(&world) {
            let wanted = format!("a world has 1 to {} ranks", Rank::MOST);
            return Err(wrong(world_name, Some(&world.to_string()), &wanted));
        }
        if rank >= world {
            let wanted = format!("{world_name} is {world}, so ranks are 0 to {}", world - 1);
            return Err(wrong(rank_name, Some(&rank.to_string()), &wanted));
        }
        let (local_rank, local) = match launcher {
            Launcher::Torchrun => ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
            Launcher::Slurm => {
                ("SLURM_LOCALID", variables.first(&SLURM_TASKS).map_or(SLURM_TASKS[1], |(name, _)| name))
            }
            Launcher::OpenMpi => ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
            Launcher::Pmi => ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        };
        if self.local_world > world || self.local_world == 0 {
            let wanted = format!("{world_name} is {world}, so a host has 1 to {world} ranks");
            return Err(wrong(local, Some(&self.local_world.to_string()), &wanted));
        }
        if self.local_rank >= self.local_world {
            let wanted = format!("{local} is {}, so choose 0 to {}", self.local_world, self.local_world - 1);
            return Err(wrong(local_rank, Some(&self.local_rank.to_string()), &wanted));
        }
        let rendezvous_address = self.rendezvous_address(world, variables)?;
        Ok(Environment {
            launcher,
            rank: Rank(rank),
            world_size: world,
            local_rank: self.local_rank,
            local_world_size: self.local_world,
            node_rank: self.node,
            rendezvous_address,
            epoch: self.epoch,
            job: self.job,
        })
    }

    fn rendezvous_address(&self, world: u32, variables: &Variables) -> Result<RendezvousAddress> {
        if let Some(at) = variables.text("ALLFOLD_RENDEZVOUS") {
            let parts = at.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
            let Some((host, port)) = parts.filter(|(host, _)| !host.is_empty()) else {
                return Err(wrong("ALLFOLD_RENDEZVOUS", Some(&at), "write HOST:PORT"));
            };
            let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
            return Ok(RendezvousAddress { host, port, served: true });
        }
        let alone = world == 1;
        let host = match (variables.text("MASTER_ADDR"), &self.host) {
            (Some(host), _) => host,
            (None, Ok(host)) => host.clone(),
            (None, Err(_)) if alone => "127.0.0.1".into(),
            (None, Err(why)) => return Err(wrong("MASTER_ADDR", None, why)),
        };
        let port = match (variables.optional::<u16>("MASTER_PORT")?, self.port) {
            (Some(0), _) if !alone => {
                return Err(wrong("MASTER_PORT", Some("0"), "all ranks must know the port: 1 to 65535"));
            }
            // The agents of torchrun serve their own store at that port, so ranks use the next port for the rendezvous.
            (Some(port), _) if variables.text("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True") => {
                port.checked_add(1)
                    .ok_or_else(|| wrong("MASTER_PORT", Some("65535"), "65534 at most: ranks use port + 1"))?
            }
            (Some(port), _) => port,
            (None, Ok(port)) => port,
            (None, Err(_)) if alone => 0,
            (None, Err(why)) => return Err(wrong("MASTER_PORT", None, why)),
        };
        Ok(RendezvousAddress { host, port, served: false })
    }
}

#[cfg(test)]
mod tests {
    use crate::environment::{Environment, Launcher, RendezvousAddress};
    use crate::{Error, Rank};

    fn read(variables: &[(&str, &str)]) -> Result<Option<Environment>, Error> {
        Environment::read(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    fn right(variables: &[(&str, &str)]) -> Environment {
        read(variables).unwrap().unwrap()
    }

    fn rendezvous_address(host: &str, port: u16) -> RendezvousAddress {
        RendezvousAddress { host: host.into(), port, served: false }
    }

    const TORCHRUN: [(&str, &str); 8] = [
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("GROUP_RANK", "1"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RESTART_COUNT", "2"),
    ];

    #[test]
    fn torchruns_variables() {
        let found = right(&TORCHRUN);
        assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::Torchrun, Rank(5), 8));
        assert_eq!((found.local_rank, found.local_world_size, found.node_rank), (1, 4, 1));
        assert_eq!((found.rendezvous_address, found.epoch), (rendezvous_address("node0", 29500), 2));
        let agents = [&TORCHRUN[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(
            right(&agents).rendezvous_address,
            rendezvous_address("node0", 29501),
            "the agents' store holds the port"
        );
        let launched = [&TORCHRUN[..], &[("ALLFOLD_RENDEZVOUS", "[::1]:4000")]].concat();
        assert_eq!(
            right(&launched).rendezvous_address,
            RendezvousAddress { host: "::1".into(), port: 4000, served: true }
        );
    }

    #[test]
    fn slurms_variables() {
        let step = [
            ("SLURM_PROCID", "6"),
            ("SLURM_NTASKS", "7"),
            ("SLURM_LOCALID", "2"),
            ("SLURM_NODEID", "1"),
            ("SLURM_STEP_ID", "3"),
            ("SLURM_STEP_NODELIST", "gpu[07-08]"),
            ("SLURM_STEP_TASKS_PER_NODE", "4,3"),
            ("SLURM_JOB_ID", "100"),
        ];
        let found = right(&step);
        assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::Slurm, Rank(6), 7));
        assert_eq!((found.local_rank, found.local_world_size, found.node_rank), (2, 3, 1));
        assert_eq!(found.rendezvous_address, rendezvous_address("gpu07", 15_000 + 3_103));
        assert_eq!(found.job, "slurm-100.3");
        // The message names the variable that contained the value.
        for tasks in ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"] {
            let eight = step.map(|pair| if pair.1 == "4,3" { (tasks, "4,8") } else { pair });
            let line = read(&eight).unwrap_err().to_string();
            assert!(line.starts_with(&format!("environment: {tasks} is `8`: ")), "{line}");
        }
        // A batch script is no rank, although Slurm sets SLURM_PROCID to 0 for it.
        let batch: Vec<_> = step.into_iter().filter(|(name, _)| *name != "SLURM_STEP_ID").collect();
        assert_eq!(read(&batch), Ok(None));
        let reserved = [&batch[..], &[("SLURM_STEP_ID", "4294967291")]].concat();
        assert_eq!(read(&reserved), Ok(None));
    }

    #[test]
    fn open_mpis_variables_and_pmis() {
        let mpirun = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("OMPI_COMM_WORLD_NODE_RANK", "1"),
            ("OMPI_MCA_ess_base_jobid", "2785214465"),
        ];
        let found = right(&mpirun);
        assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::OpenMpi, Rank(1), 4));
        assert_eq!((found.node_rank, found.rendezvous_address.host.as_str()), (0, "127.0.0.1"));
        let hosts: Vec<_> = mpirun.into_iter().chain([("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]).collect();
        let hosts: Vec<_> =
            hosts.into_iter().filter(|pair| *pair != ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")).collect();
        assert!(
            matches!(read(&hosts), Err(Error::Environment { variable, .. }) if variable == "MASTER_ADDR")
        );

        let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MASTER_PORT", "29500")];
        let found = right(&pmi);
        assert_eq!(
            (found.launcher, found.rank, found.rendezvous_address),
            (Launcher::Pmi, Rank(1), rendezvous_address("127.0.0.1", 29500))
        );
    }

    #[test]
    fn another_launchers_processes_are_not_all_taken_for_one_rank() {
        let within = |rank: &'static str, world: &'static str, others: &[(&'static str, &'static str)]| {
            let own = [("RANK", rank), ("WORLD_SIZE", world), ("MASTER_ADDR", "node0"), ("MASTER_PORT", "1")];
            read(&[&own[..], others].concat())
        };
        let mpirun = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        let line = |found: Result<_, Error>| found.unwrap_err().to_string();
        let left_over =
            "unset RANK and WORLD_SIZE, or set them to OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE";
        assert_eq!(
            line(within("0", "1", &mpirun)),
            format!("environment: WORLD_SIZE is `1`: OMPI_COMM_WORLD_SIZE is 2: {left_over}")
        );
        assert_eq!(
            line(within("0", "2", &mpirun)),
            format!("environment: RANK is `0`: OMPI_COMM_WORLD_RANK is 1: {left_over}")
        );
        assert!(line(within("0", "1", &[("PMI_RANK", "0"), ("PMI_SIZE", "2")])).contains("PMI_SIZE is 2"));
        let step = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "4")];
        assert!(line(within("0", "1", &step)).contains("SLURM_STEP_NUM_TASKS is 4"));
        // Accepted: the same world; several ranks for each process; ranks that a launcher within the processes started.
        assert!(within("1", "2", &mpirun).is_ok());
        assert!(within("5", "8", &mpirun).is_ok());
        let agent = [("TORCHELASTIC_RUN_ID", "none")];
        assert!(within("0", "1", &[&mpirun[..], &agent].concat()).is_ok());
    }

    #[test]
    fn one_rank_needs_no_place_to_meet() {
        assert_eq!(
            right(&[("RANK", "0"), ("WORLD_SIZE", "1")]).rendezvous_address,
            rendezvous_address("127.0.0.1", 0)
        );
        assert_eq!(read(&[("PATH", "/bin")]), Ok(None));
    }

    #[test]
    fn missing_and_contradictory_variables_are_named() {
        let with = |name: &'static str, value: &'static str| {
            let others = TORCHRUN.into_iter().filter(move |(n, _)| *n != name);
            let all: Vec<_> = others.chain((!value.is_empty()).then_some((name, value))).collect();
            read(&all).unwrap_err().to_string()
        };
        for (name, value, says) in [
            ("RANK", "", "RANK is not set"),
            ("WORLD_SIZE", "", "WORLD_SIZE is not set"),
            ("MASTER_ADDR", "", "MASTER_ADDR is not set"),
            ("MASTER_PORT", "", "MASTER_PORT is not set"),
            ("RANK", "8", "RANK is `8`: WORLD_SIZE is 8, so ranks are 0 to 7"),
            ("RANK", "-1", "RANK is `-1`"),
            ("WORLD_SIZE", "0", "WORLD_SIZE is `0`"),
            ("WORLD_SIZE", "2147483648", "a world has 1 to 1048576 ranks"),
            ("WORLD_SIZE", "eight", "WORLD_SIZE is `eight`"),
            ("LOCAL_RANK", "4", "LOCAL_RANK is `4`: LOCAL_WORLD_SIZE is 4"),
            ("LOCAL_WORLD_SIZE", "9", "LOCAL_WORLD_SIZE is `9`: WORLD_SIZE is 8"),
            ("MASTER_PORT", "70000", "MASTER_PORT is `70000`"),
            ("MASTER_PORT", "0", "MASTER_PORT is `0`"),
        ] {
            let line = with(name, value);
            assert!(line.contains(says) && !line.contains('\n'), "{name}={value}: {line}");
        }
    }
}
