//! A process that a launcher has started becomes a rank: it finds the others and connects to them.
//!
//! ```text
//! environment --> rendezvous (rank 0 or the launcher serves) --> everyone's address --> connections --> Communicator
//! ```

use super::{Communicator, Home};
use crate::environment::{self, Environment, Variables, wrong};
use crate::rendezvous::{
    self, Hello, Joined, PeerKind, RendezvousFailure, RendezvousTimeouts, Server, join, serve_world,
};
use crate::tcp::{Deadlines, Host, Peers, Secret, Security, random, runtime};
use crate::{Error, Rank, Result, flight};
use allfold_base::lock;
use allfold_sim::fnv1a;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// What a process chooses about joining, beside what its environment says.
#[derive(Clone, Debug)]
pub struct Joining {
    /// The security mode, the same on all ranks.
    pub security: Security,
    /// How long ranks wait for each other at the start.
    pub timeout: RendezvousTimeouts,
    /// How long they wait afterwards.
    pub deadlines: Deadlines,
    /// A hash of what all ranks must have been given alike, such as a configuration file.
    pub configuration: u64,
    /// Whether data goes through shared memory: all of a collective's where all ranks are on one host, else the messages
    /// between those that are.
    pub share: bool,
    /// Where the flight record is written when something goes wrong.
    pub flight: Option<PathBuf>,
}

impl Joining {
    /// What the environment says of it:
    ///
    /// | variable | says |
    /// |---|---|
    /// | `ALLFOLD_SECRET_FILE` | a file with the job's secret: TLS |
    /// | `ALLFOLD_SECURITY` | `tls`, `trusted-fabric` or `insecure-plaintext`, where that is not wanted |
    /// | `ALLFOLD_SHARED_MEMORY` | `off`: everything over TCP, also between ranks of one host |
    /// | `ALLFOLD_FLIGHT_DIR` | a folder for flight records |
    /// | `ALLFOLD_RENDEZVOUS_TIMEOUT` | seconds that ranks wait for each other at the start (60) |
    /// | `ALLFOLD_TIMEOUT` | seconds that an operation may take (300) |
    /// | `ALLFOLD_TIMEOUT_FACTOR` | what the other deadlines are multiplied by (1): after 20 s without a sign of life a rank is lost |
    ///
    /// # Errors
    /// [`Error::Environment`] and [`Error::Argument`] where they make no sense.
    pub fn from_env() -> Result<Joining> {
        Joining::read(&Variables::new(&environment::variable))
    }

    fn read(variables: &Variables<'_>) -> Result<Joining> {
        let secret = variables.text("ALLFOLD_SECRET_FILE");
        let secret = secret.map(|path| Secret::read(path.as_ref())).transpose()?;
        let mode = variables.text("ALLFOLD_SECURITY");
        let unfit = |wanted| Err(wrong("ALLFOLD_SECURITY", mode.as_deref(), wanted).into());
        let security = match (mode.as_deref(), secret) {
            (None, None) => Security::Loopback,
            (None | Some("tls"), Some(secret)) => Security::Tls(secret),
            (Some("trusted-fabric"), Some(secret)) => Security::TrustedFabric(secret),
            (Some("insecure-plaintext"), _) => Security::InsecurePlaintext,
            (Some("tls" | "trusted-fabric"), None) => {
                return unfit("it needs a secret: name its file in ALLFOLD_SECRET_FILE");
            }
            (Some(_), _) => return unfit("there are tls, trusted-fabric and insecure-plaintext"),
        };
        let share = match variables.text("ALLFOLD_SHARED_MEMORY").as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            other => return Err(wrong("ALLFOLD_SHARED_MEMORY", other, "there are on and off").into()),
        };
        let mut timeout = RendezvousTimeouts::default();
        timeout.rendezvous = seconds(variables, "ALLFOLD_RENDEZVOUS_TIMEOUT", timeout.rendezvous)?;
        let mut deadlines = Deadlines::default();
        if let Some(read) = variables.text("ALLFOLD_TIMEOUT_FACTOR") {
            let factor = read.parse().ok().filter(|factor| (1e-4..=1e4).contains(factor));
            let wanted = "a number from 0.0001 to 10000";
            deadlines =
                deadlines.scaled(factor.ok_or_else(|| wrong("ALLFOLD_TIMEOUT_FACTOR", Some(&read), wanted))?);
        }
        deadlines.operation = seconds(variables, "ALLFOLD_TIMEOUT", deadlines.operation)?;
        let flight = variables.text(flight::FOLDER).map(PathBuf::from);
        Ok(Joining { share, security, timeout, deadlines, configuration: 0, flight })
    }
}

/// What a variable says in seconds, if it is there.
fn seconds(variables: &Variables<'_>, name: &str, otherwise: Duration) -> Result<Duration> {
    let Some(read) = variables.text(name) else { return Ok(otherwise) };
    environment::seconds(&read).map_err(|wanted| wrong(name, Some(&read), &wanted).into())
}

impl Communicator {
    /// This process as one rank of a world that a launcher has started: `allfold launch`, torchrun, Slurm's srun, Open
    /// MPI's mpirun, or anything that sets the same variables (see [`environment`]).
    ///
    /// Where all ranks are processes of one host, collectives compute in shared memory, and TCP carries what is said beside
    /// it. In a world of several hosts, messages between ranks of one host go through shared memory, the others over TCP.
    /// The bits are the same.
    ///
    /// ```no_run
    /// use allfold_collectives::{Communicator, ReduceOp};
    ///
    /// let comm = Communicator::from_env()?;
    /// let mut x = [comm.rank().0 as f32];
    /// comm.all_reduce(&mut x, ReduceOp::Sum)?;
    /// # Ok::<(), allfold_collectives::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Environment`] names the variable that is missing or makes no sense; [`Error::Rendezvous`] says why the
    /// ranks did not find each other (where they disagree, rank 0, if it serves them, returns only when all have been told, or
    /// after five seconds); and as [`Communicator::over_tcp`].
    pub fn from_env() -> Result<Communicator> {
        let environment = Environment::detect()?.ok_or_else(environment::absent)?;
        Communicator::join(&environment, Joining::from_env()?)
    }

    /// [`Communicator::from_env`] with explicit choices.
    ///
    /// # Errors
    /// As [`Communicator::from_env`].
    pub fn join(environment: &Environment, joining: Joining) -> Result<Communicator> {
        let Environment { rank, world_size, epoch, .. } = *environment;
        let Joining { security, deadlines, flight, .. } = joining.clone();
        let host = if joining.share { Host::here() } else { None };
        let failed = |cause| Error::Rendezvous { at: environment.rendezvous_address.to_string(), cause };
        let peers = if world_size == 1 {
            let none =
                |error: std::io::Error| Error::System(format!("cannot create loopback sockets: {error}"));
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(none)?;
            let addresses = vec![listener.local_addr().map_err(none)?];
            Peers { rank, job: random()?, epoch, listener, addresses, host, security, deadlines }
        } else {
            let Joined { table, listener } = meet(environment, &joining)?.map_err(failed)?;
            let addresses = table.peers.iter().map(|peer| peer.address).collect();
            Peers { rank, job: table.world, epoch, listener, addresses, host, security, deadlines }
        };
        let mut comm = Communicator::recorded(peers, flight.clone())?;
        if flight.is_some() {
            comm.write_when_told_to_end()?;
        }
        if joining.share {
            comm.share_memory()?;
        }
        Ok(comm)
    }

    /// Writes the flight record when the process is asked to end, before it does: of the newest communicator that came
    /// to be so, where a rank joins a world again. A program that catches SIGTERM itself decides when it ends.
    fn write_when_told_to_end(&self) -> Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        static NEWEST: Mutex<Weak<Home>> = Mutex::new(Weak::new());
        static LISTENING: AtomicBool = AtomicBool::new(false);
        let newest = || lock(&NEWEST);
        *newest() = self.owner.as_ref().map_or_else(Weak::new, Arc::downgrade);
        if LISTENING.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let (runtime, ends) = (runtime()?, !catches_sigterm());
        let _inside = runtime.enter();
        let told = signal(SignalKind::terminate()).map_err(|error| Error::System(error.to_string()))?;
        runtime.spawn(async move {
            let mut told = told;
            while told.recv().await.is_some() {
                let owner = newest().upgrade();
                if let Some(owner) = owner {
                    owner.process_state.recorder.write("it was asked to end (SIGTERM)");
                }
                if ends {
                    // As shells tell the end by that signal.
                    std::process::exit(128 + 15);
                }
            }
        });
        Ok(())
    }
}

/// Whether this process catches SIGTERM already.
fn catches_sigterm() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 1 << (15 - 1) != 0)
}

/// Meets the others; rank 0 also serves, where no launcher does.
fn meet(
    environment: &Environment,
    joining: &Joining,
) -> Result<std::result::Result<Joined, RendezvousFailure>> {
    let Environment { rank, world_size: size, epoch, ref rendezvous_address, .. } = *environment;
    let (runtime, timeout) = (runtime()?, joining.timeout);
    let authenticator = rendezvous::authenticator(&joining.security, timeout)?;
    let hosts = environment.local_world_size < size;
    let mut serving = None;
    if rank == Rank(0) && !rendezvous_address.served {
        let address = match rendezvous::address_for(rendezvous_address, hosts) {
            Ok(address) => address,
            Err(failure) => return Ok(Err(failure)),
        };
        joining.security.allows(address)?;
        let _inside = runtime.enter();
        match Server::bind(address) {
            Ok(server) => {
                if let Some(warning) = joining.security.warning(rendezvous_address.port) {
                    // Standard error may be closed.
                    let _ = writeln!(std::io::stderr(), "{warning}");
                }
                serving = Some(runtime.spawn(serve_world(server, authenticator.clone(), timeout)));
            }
            Err(failure) => return Ok(Err(failure)),
        }
    }
    let hello = Hello {
        kind: PeerKind::Rank,
        epoch,
        rank,
        size,
        port: 0,
        configuration: joining.configuration,
        job: fnv1a(environment.job.as_bytes()),
        host: host(),
    };
    Ok(runtime.block_on(async {
        let joined = join(rendezvous_address, hosts, hello, &authenticator, timeout).await;
        let disagree = matches!(
            &joined,
            Err(RendezvousFailure::WorldSize { .. } | RendezvousFailure::Configuration { .. })
        );
        if let Some(serving) = serving.filter(|_| disagree) {
            // The server ends with this process, and some may still have to be told.
            let _ = serving.await;
        }
        joined
    }))
}

/// What the processes of one host have in common: its boot, and the network that they see.
fn host() -> [u8; 16] {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let net = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let (boot, net) = (fnv1a(&boot), fnv1a(net.as_os_str().as_encoded_bytes()));
    let mut host = [0; 16];
    host[..8].copy_from_slice(&boot.to_le_bytes());
    host[8..].copy_from_slice(&net.to_le_bytes());
    host
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Joining> {
        let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        Joining::read(&Variables::new(&lookup))
    }

    #[test]
    fn deadlines_are_what_the_environment_says() {
        let seconds = Duration::from_secs_f64;
        let usual = read(&[]).unwrap();
        assert_eq!((usual.deadlines.operation, usual.deadlines.dead), (seconds(300.0), seconds(20.0)));
        let chosen = [
            ("ALLFOLD_TIMEOUT", "1.5"),
            ("ALLFOLD_TIMEOUT_FACTOR", "0.01"),
            ("ALLFOLD_RENDEZVOUS_TIMEOUT", "7"),
        ];
        let chosen = read(&chosen).unwrap();
        assert_eq!((chosen.deadlines.operation, chosen.deadlines.dead), (seconds(1.5), seconds(0.2)));
        assert_eq!(chosen.timeout.rendezvous, seconds(7.0));
    }

    #[tokio::test]
    async fn a_program_that_catches_sigterm_is_known() {
        assert!(!catches_sigterm());
        let _its = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
        assert!(catches_sigterm());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (name, value) in [
            ("ALLFOLD_TIMEOUT", "soon"),
            ("ALLFOLD_TIMEOUT", "-1"),
            ("ALLFOLD_TIMEOUT", "1e19"),
            ("ALLFOLD_RENDEZVOUS_TIMEOUT", "1e19"),
            ("ALLFOLD_RENDEZVOUS_TIMEOUT", "NaN"),
            ("ALLFOLD_TIMEOUT_FACTOR", "0"),
            ("ALLFOLD_SHARED_MEMORY", "maybe"),
            ("ALLFOLD_SECURITY", "ssh"),
            ("ALLFOLD_SECURITY", "tls"),
        ] {
            let line = read(&[(name, value)]).unwrap_err().to_string();
            assert!(
                line.starts_with(&format!("environment: {name} is `{value}`")) && !line.contains('\n'),
                "{line}"
            );
        }
    }
}
