//! A process that a launcher has started becomes a rank: it finds the other ranks and connects to them.
//!
//! ```text
//! environment --> rendezvous (rank 0 or the launcher serves) --> everyone's address --> connections --> Communicator
//! ```

use super::Communicator;
use super::signalled::write_when_stalled;
use crate::environment::{self, Environment, Variables, wrong};
use crate::rendezvous::{
    self, Hello, Joined, PeerKind, RendezvousFailure, RendezvousTimeouts, Server, join, serve_world,
};
use crate::running_time;
use crate::tcp::{Deadlines, Host, PeerOptions, Secret, Security, random, runtime};
use crate::{Error, Rank, Result, flight};
use allfold_sim::fnv1a;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;
use tokio::io::AsyncReadExt;

/// The variable that names the file with the job's secret. An empty value is refused: otherwise a script whose own variable is
/// empty would run without a secret.
const SECRET: &str = "ALLFOLD_SECRET_FILE";

/// The variable with the seconds without progress after which a rank writes its flight record.
const STALLED: &str = "ALLFOLD_STALLED";

/// A process's choices for joining a world that its environment does not make.
#[derive(Clone, Debug)]
pub struct Joining {
    /// The security mode, the same on all ranks.
    pub security: Security,
    /// How long ranks wait for each other at the start.
    pub timeout: RendezvousTimeouts,
    /// The deadlines after the start.
    pub deadlines: Deadlines,
    /// A hash of the inputs that must be the same on all ranks, such as a configuration file.
    pub configuration: u64,
    /// Whether data is sent through shared memory: all data of collectives if all ranks are on one host, otherwise the messages between
    /// ranks of one host.
    pub share: bool,
    /// The folder of the flight record, written when an operation fails.
    pub flight: Option<PathBuf>,
    /// The flight record is also written when no operation begins or ends for so long, and the rank goes on; `None`: it is not.
    pub stalled: Option<Duration>,
}

impl Joining {
    /// The choices that the environment makes:
    ///
    /// | variable | value |
    /// |---|---|
    /// | `ALLFOLD_SECRET_FILE` | a file with the job's secret: TLS |
    /// | `ALLFOLD_SECURITY` | `tls` (the default with a secret), `trusted-fabric` or `insecure-plaintext` |
    /// | `ALLFOLD_SHARED_MEMORY` | `off`: everything over TCP, also between ranks of one host |
    /// | `ALLFOLD_FLIGHT_DIR` | a folder for flight records |
    /// | `ALLFOLD_STALLED` | seconds without progress after which the flight record is written, and the rank goes on (never) |
    /// | `ALLFOLD_RENDEZVOUS_TIMEOUT` | seconds that ranks wait for each other at the start (60) |
    /// | `ALLFOLD_TIMEOUT` | seconds that an operation may take (300) |
    /// | `ALLFOLD_TIMEOUT_FACTOR` | a factor of the other deadlines (1), such as the 20 s after which a silent rank is lost |
    ///
    /// # Errors
    /// [`Error::Environment`] and [`Error::Argument`] for invalid values and an unusable secret file.
    pub fn from_env() -> Result<Joining> {
        Joining::read(&Variables::new(&environment::variable))
    }

    /// The deadlines that the environment gives, for ranks that do not join other ranks.
    ///
    /// # Errors
    /// [`Error::Environment`] for invalid values.
    pub fn deadlines_from_env() -> Result<Deadlines> {
        deadlines(&Variables::new(&environment::variable))
    }

    fn read(variables: &Variables<'_>) -> Result<Joining> {
        let secret = match variables.text(SECRET) {
            None if variables.is_set(SECRET) => {
                let wanted = "name the file with the job's secret, or unset the variable";
                return Err(wrong(SECRET, Some(""), wanted).into());
            }
            secret => secret.map(|path| Secret::read(path.as_ref())).transpose()?,
        };
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
        let deadlines = deadlines(variables)?;
        let flight = variables.text(flight::FOLDER).map(PathBuf::from);
        let stalled = Some(seconds(variables, STALLED, Duration::ZERO)?).filter(|time| !time.is_zero());
        Ok(Joining { share, security, timeout, deadlines, configuration: 0, flight, stalled })
    }
}

impl Joining {
    /// Reports to the launcher the ranks that were lost in this epoch, so that the launcher ends their processes and starts
    /// others: a process that is stopped or hangs does not end by itself. Does nothing where no launcher serves the rendezvous.
    ///
    /// # Errors
    /// [`Error::Rendezvous`]: the launcher cannot be reached.
    pub fn report_loss(&self, environment: &Environment, lost: &[Rank]) -> Result<()> {
        let address = &environment.rendezvous_address;
        if !address.served {
            return Ok(());
        }
        let timeout = RendezvousTimeouts { rendezvous: self.timeout.handshake, ..self.timeout };
        let authenticator = rendezvous::authenticator(&self.security, timeout)?;
        let failed = |cause| Error::Rendezvous { at: address.to_string(), cause };
        for &rank in lost {
            let hello = Hello { rank, ..self.hello(environment, PeerKind::LossReport) };
            runtime()?.block_on(async {
                let mut stream =
                    rendezvous::call(address, hello, &authenticator, timeout).await.map_err(failed)?;
                // The launcher closes the connection once it has read the report. If this side closed first, the report could be lost.
                let _ = running_time::timeout(timeout.handshake, stream.read(&mut [0])).await;
                Ok::<_, Error>(())
            })?;
        }
        Ok(())
    }

    fn hello(&self, environment: &Environment, kind: PeerKind) -> Hello {
        Hello {
            kind,
            epoch: environment.epoch,
            rank: environment.rank,
            size: environment.world_size,
            port: 0,
            configuration: self.configuration,
            job: fnv1a(environment.job.as_bytes()),
            host: host(),
        }
    }
}

fn deadlines(variables: &Variables<'_>) -> Result<Deadlines> {
    let mut deadlines = Deadlines::default();
    if let Some(read) = variables.text("ALLFOLD_TIMEOUT_FACTOR") {
        let factor = read.parse().ok().filter(|factor| (1e-4..=1e4).contains(factor));
        let wanted = "a number from 0.0001 to 10000";
        deadlines =
            deadlines.scaled(factor.ok_or_else(|| wrong("ALLFOLD_TIMEOUT_FACTOR", Some(&read), wanted))?);
    }
    deadlines.operation = seconds(variables, "ALLFOLD_TIMEOUT", deadlines.operation)?;
    Ok(deadlines)
}

/// The value of a variable in seconds; `otherwise` if it is not set.
fn seconds(variables: &Variables<'_>, name: &str, otherwise: Duration) -> Result<Duration> {
    let Some(read) = variables.text(name) else { return Ok(otherwise) };
    let seconds = environment::seconds(&read).map_err(|wanted| wrong(name, Some(&read), &wanted))?;
    if seconds < Duration::from_millis(1) {
        return Err(
            wrong(name, Some(&read), "no other rank answers so soon: give 0.001 seconds or more").into()
        );
    }
    Ok(seconds)
}

impl Communicator {
    /// This process as one rank of a world that a launcher has started: `allfold launch`, torchrun, Slurm's srun, Open
    /// MPI's mpirun, or anything that sets the same variables (see [`environment`]).
    ///
    /// Where all ranks are processes of one host, collectives compute in shared memory, and TCP carries control messages. In a world of
    /// several hosts, messages between ranks of one host are sent through shared memory, all others over TCP. The results have the same
    /// bits.
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
    /// [`Error::Environment`] names the variable that is missing or invalid; [`Error::Rendezvous`] contains the reason why the ranks did
    /// not find each other (if they disagree, a rank 0 that serves the rendezvous returns only when all ranks have its answer, or after
    /// five seconds); and as [`Communicator::over_tcp`].
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
            PeerOptions { rank, job: random()?, epoch, listener, addresses, host, security, deadlines }
        } else {
            let Joined { table, listener } = meet(environment, &joining)?.map_err(failed)?;
            let addresses = table.peers.iter().map(|peer| peer.address).collect();
            PeerOptions { rank, job: table.world, epoch, listener, addresses, host, security, deadlines }
        };
        let comm = Communicator::with_peers(peers, joining.share, flight)?;
        if let Some(time) = joining.stalled {
            write_when_stalled(time)?;
        }
        let met = &environment.rendezvous_address;
        tracing::debug!(rank = rank.0, "joined a world of {world_size} ranks at {met}, in epoch {epoch}");
        Ok(comm)
    }

    /// This process as one rank of a world whose ranks have already exchanged their addresses. `share`: whether collectives compute in
    /// shared memory where all ranks are on one host; `flight`: the folder of the flight record, written when an operation fails.
    ///
    /// # Errors
    /// As [`Communicator::over_tcp`].
    pub fn with_peers(peers: PeerOptions, share: bool, flight: Option<PathBuf>) -> Result<Communicator> {
        let mut comm = Communicator::recorded(peers, flight.clone())?;
        if flight.is_some() {
            comm.write_on_signal()?;
        }
        if share {
            comm.share_memory()?;
        }
        Ok(comm)
    }
}

/// Finds the other ranks by a rendezvous, which rank 0 serves unless the launcher does.
fn meet(
    environment: &Environment,
    joining: &Joining,
) -> Result<std::result::Result<Joined, RendezvousFailure>> {
    let Environment { rank, world_size: size, ref rendezvous_address, .. } = *environment;
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
                    tracing::warn!(rank = rank.0, "{warning}");
                }
                let server = server.saying(|line| tracing::warn!(rank = 0, "{line}"));
                serving = Some(runtime.spawn(serve_world(server, authenticator.clone(), timeout)));
            }
            Err(failure) => return Ok(Err(failure)),
        }
    }
    let hello = joining.hello(environment, PeerKind::Rank);
    Ok(runtime.block_on(async {
        let mut joining = pin!(join(rendezvous_address, hosts, hello, &authenticator, timeout));
        let joined = tokio::select! {
            joined = &mut joining => joined,
            () = tokio::time::sleep(SILENT) => {
                warn_waiting(environment, timeout.rendezvous);
                joining.await
            }
        };
        let disagree = matches!(
            &joined,
            Err(RendezvousFailure::WorldSize { .. } | RendezvousFailure::Configuration { .. })
        );
        if let Some(serving) = serving.filter(|_| disagree) {
            // The server ends with this process, and some ranks may not have received its answer yet.
            let _ = serving.await;
        }
        joined
    }))
}

/// How long a rank waits for the others before it prints that it waits.
const SILENT: Duration = Duration::from_secs(2);

/// Warns that this rank waits. Where rank 0 or a launcher serves the rendezvous, that process names the ranks that are missing.
fn warn_waiting(environment: &Environment, timeout: Duration) {
    let Environment { rank, world_size, ref rendezvous_address, .. } = *environment;
    if rendezvous_address.served || rank == Rank(0) {
        return;
    }
    tracing::warn!(
        rank = rank.0,
        "rank {rank} waits at {rendezvous_address} for all {world_size} ranks of the world to come, for up to {timeout:?}"
    );
}

/// Identifies this host: hashes of the kernel's boot id and of the network namespace.
fn host() -> [u8; 16] {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let net = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let (boot, net) = (fnv1a(&boot), fnv1a(net.as_os_str().as_encoded_bytes()));
    let mut host = [0; 16];
    host[..8].copy_from_slice(&boot.to_le_bytes());
    host[8..].copy_from_slice(&net.to_le_bytes());
    host
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Joining> {
        let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        Joining::read(&Variables::new(&lookup))
    }

    #[test]
    fn deadlines_are_read_from_the_environment() {
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

    #[test]
    fn deadlines_alone_need_no_secret() {
        let lookup = |name: &str| (name == SECRET).then(|| "/no/such/secret".to_string());
        let variables = Variables::new(&lookup);
        assert_eq!(deadlines(&variables).unwrap().operation, Deadlines::default().operation);
        assert!(Joining::read(&variables).is_err());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (name, value) in [
            ("ALLFOLD_TIMEOUT", "soon"),
            ("ALLFOLD_TIMEOUT", "-1"),
            ("ALLFOLD_TIMEOUT", "0"),
            ("ALLFOLD_TIMEOUT", "1e19"),
            ("ALLFOLD_RENDEZVOUS_TIMEOUT", "1e19"),
            ("ALLFOLD_RENDEZVOUS_TIMEOUT", "NaN"),
            ("ALLFOLD_TIMEOUT_FACTOR", "0"),
            ("ALLFOLD_SHARED_MEMORY", "maybe"),
            ("ALLFOLD_SECURITY", "ssh"),
            ("ALLFOLD_SECURITY", "tls"),
            ("ALLFOLD_SECRET_FILE", ""),
        ] {
            let line = read(&[(name, value)]).unwrap_err().to_string();
            assert!(
                line.starts_with(&format!("environment: {name} is `{value}`")) && !line.contains('\n'),
                "{line}"
            );
        }
    }
}
