//! The client of a rendezvous: it connects until the server answers or the timeout is over.

use super::messages::{ANSWER, Hello, decode_answer, decode_table, table_size};
use super::{Peer, RendezvousFailure, RendezvousTimeouts, Table};
use crate::environment::RendezvousAddress;
use crate::running_time::{after, now, sleep, timeout_at};
use crate::{AuthenticatedStream, Authenticator, Refusal};
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The pause after the first try to connect, and the longest pause.
const FIRST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(500);
/// After how many tries in which the server closes the connection the client assumes that the server holds another secret.
const DOUBTS: u32 = 3;

/// A rank's result of the rendezvous.
pub struct Joined {
    /// The addresses of all ranks.
    pub table: Table,
    /// The socket at which this rank's peers will connect.
    pub listener: TcpListener,
}

/// Connects to `rendezvous_address`, sends `hello` with the port of a new listener, and waits for all ranks. `hosts`: whether the
/// world has several hosts.
pub async fn join(
    rendezvous_address: &RendezvousAddress,
    hosts: bool,
    hello: Hello,
    authenticator: &Authenticator,
    timeout: RendezvousTimeouts,
) -> Result<Joined, RendezvousFailure> {
    let mut stream = connect(rendezvous_address, authenticator, after(timeout.rendezvous), timeout).await?;
    // The server may start late; its own timeout begins with the first call.
    let due = after(timeout.rendezvous.saturating_add(timeout.handshake));
    let (mine, theirs) = stream.addresses().map_err(system)?;
    // Peers reach this rank over the interface through which this rank reached the server.
    let listener =
        TcpListener::bind((from_all_hosts(rendezvous_address, hosts, mine.ip()), 0)).map_err(system)?;
    let port = u32::from(listener.local_addr().map_err(system)?.port());
    stream.write_all(&Hello { port, ..hello }.encode()).await.map_err(lost)?;
    // The server's timeout ends before `due`, and its answer names the missing ranks.
    let answered = async {
        let mut answer = [0; ANSWER];
        stream.read_exact(&mut answer).await.map_err(lost)?;
        decode_answer(&answer)?;
        let mut bytes = vec![0; table_size(hello.size)];
        stream.read_exact(&mut bytes).await.map_err(lost)?;
        Ok(decode_table(&bytes, hello.epoch))
    };
    let impatient = |_| RendezvousFailure::Impatient { after: timeout.rendezvous + timeout.handshake };
    let mut table = timeout_at(due, answered).await.map_err(impatient)??;
    // The server may have a loopback address for a rank on its own host, which other hosts cannot use.
    let away = |peer: &&mut Peer| peer.address.ip().is_loopback() && !theirs.ip().is_loopback();
    table.peers.iter_mut().filter(away).for_each(|peer| peer.address.set_ip(theirs.ip()));
    Ok(Joined { table, listener })
}

/// Connects; tries again with growing pauses while no server answers.
async fn connect(
    rendezvous_address: &RendezvousAddress,
    authenticator: &Authenticator,
    due: Instant,
    timeout: RendezvousTimeouts,
) -> Result<AuthenticatedStream, RendezvousFailure> {
    let (mut pause, mut doubts) = (FIRST, 0);
    loop {
        let cause = match timeout_at(due, dial(rendezvous_address, authenticator)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(Refusal::Broken(why))) => why,
            Ok(Err(Refusal::IncompatiblePeer(why))) => return Err(RendezvousFailure::unlike(why)),
            Ok(Err(Refusal::Answer(_, why))) => return Err(RendezvousFailure::NotOurs(why)),
            Ok(Err(Refusal::Forbidden(why))) => return Err(RendezvousFailure::System(why)),
            // A server that closes the connection may be busy or just ending, so the client tries again.
            Ok(Err(Refusal::Secret)) => {
                doubts += 1;
                if doubts == DOUBTS {
                    return Err(RendezvousFailure::Secret);
                }
                "the server closed the connection".into()
            }
            Err(_) => "the host does not answer".into(),
        };
        if now() + pause >= due {
            // The name may become known while a job starts, so that it is looked up until the end.
            resolved(rendezvous_address).await?;
            let server = if rendezvous_address.served { "the launcher of node 0" } else { "rank 0" };
            return Err(RendezvousFailure::Unreachable { server, after: timeout.rendezvous, cause });
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
}

async fn dial(
    rendezvous_address: &RendezvousAddress,
    authenticator: &Authenticator,
) -> Result<AuthenticatedStream, Refusal> {
    let address =
        resolved(rendezvous_address).await.map_err(|unknown| Refusal::Broken(unknown.to_string()))?;
    authenticator.connect(address, super::identity()).await.map(|(stream, _)| stream)
}

async fn resolved(rendezvous_address: &RendezvousAddress) -> Result<SocketAddr, RendezvousFailure> {
    let host = &rendezvous_address.host;
    let found = tokio::net::lookup_host((host.as_str(), rendezvous_address.port)).await;
    found
        .map(|mut all| all.next())
        .map_err(|error| error.to_string())
        .and_then(|first| first.ok_or_else(|| "it has no address".into()))
        .map_err(|why| unknown(host, why))
}

/// The failure for a host whose name cannot be resolved; a URL is no name.
fn unknown(host: &str, why: String) -> RendezvousFailure {
    let why = match host.rsplit_once("://") {
        Some((_, bare)) => format!("{why}; a URL is no host: write {bare}"),
        None => why,
    };
    RendezvousFailure::UnknownHost { host: host.into(), why }
}

/// The address at which the rendezvous server listens, on its own host. If the host resolves its own name to a loopback address,
/// other hosts resolve that name to another address; for ranks of several hosts the server therefore listens at all addresses.
///
/// # Errors
/// The name of the host cannot be resolved.
pub fn address_for(
    rendezvous_address: &RendezvousAddress,
    hosts: bool,
) -> Result<SocketAddr, RendezvousFailure> {
    use std::net::ToSocketAddrs;
    let found = (rendezvous_address.host.as_str(), rendezvous_address.port).to_socket_addrs();
    let found = found.map(|mut all| all.next());
    let unknown = |why: String| unknown(&rendezvous_address.host, why);
    let address = found.map_err(|error| unknown(error.to_string()))?;
    let address = address.ok_or_else(|| unknown("it has no address".into()))?;
    Ok(SocketAddr::new(from_all_hosts(rendezvous_address, hosts, address.ip()), address.port()))
}

/// The address to listen at on the rendezvous host, whose own name resolves to `own`: Debian resolves it to a loopback address,
/// at which no other host would reach the server.
fn from_all_hosts(rendezvous_address: &RendezvousAddress, hosts: bool, own: IpAddr) -> IpAddr {
    let named = rendezvous_address.host.parse::<IpAddr>().is_err() && rendezvous_address.host != "localhost";
    match own {
        IpAddr::V4(v4) if hosts && named && v4.is_loopback() => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(v6) if hosts && named && v6.is_loopback() => Ipv6Addr::UNSPECIFIED.into(),
        other => other,
    }
}

/// Connects to the server and sends `hello`. The caller defines what follows on the connection.
///
/// # Errors
/// No server answers, or an incompatible server answers.
pub async fn call(
    rendezvous_address: &RendezvousAddress,
    hello: Hello,
    authenticator: &Authenticator,
    timeout: RendezvousTimeouts,
) -> Result<AuthenticatedStream, RendezvousFailure> {
    let mut stream = connect(rendezvous_address, authenticator, after(timeout.rendezvous), timeout).await?;
    stream.write_all(&hello.encode()).await.map_err(lost)?;
    Ok(stream)
}

fn system(error: Error) -> RendezvousFailure {
    RendezvousFailure::System(error.to_string())
}

fn lost(error: Error) -> RendezvousFailure {
    match error.kind() {
        ErrorKind::UnexpectedEof => RendezvousFailure::Lost("it closed the connection".into()),
        _ => RendezvousFailure::Lost(error.to_string()),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_given_as_a_host_is_told_the_host() {
        let said = |host| unknown(host, "no name".into()).to_string();
        assert!(said("tcp://localhost").contains("(no name; a URL is no host: write localhost)"));
        assert!(said("node7").starts_with("no host is called node7 (no name): "));
    }

    #[test]
    fn a_host_that_names_itself_by_loopback_listens_to_all_others() {
        let rendezvous_address = |host: &str| RendezvousAddress { host: host.into(), port: 1, served: true };
        let own = |host, hosts, ip: &str| {
            from_all_hosts(&rendezvous_address(host), hosts, ip.parse().unwrap()).to_string()
        };
        assert_eq!(own("node0", true, "127.0.1.1"), "0.0.0.0");
        assert_eq!(own("node0", true, "::1"), "::");
        assert_eq!(own("node0", true, "10.0.0.7"), "10.0.0.7");
        // On a single host, or where the user requested that address, callers of other hosts are refused.
        assert_eq!(own("node0", false, "127.0.1.1"), "127.0.1.1");
        assert_eq!(own("127.0.0.1", true, "127.0.0.1"), "127.0.0.1");
        assert_eq!(own("localhost", true, "127.0.0.1"), "127.0.0.1");
    }
}
