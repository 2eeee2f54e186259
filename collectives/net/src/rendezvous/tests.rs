//! Tests of successful rendezvous, and of every kind of failure: one error each, the right one, in time.

use super::authenticator;
use super::messages::PeerKind;
use super::{Hello, Joined, Launching, RendezvousFailure, RendezvousTimeouts, Server, join};
use crate::Rank;
use crate::environment::RendezvousAddress;
use crate::{AuthenticatedStream, Secret, Security};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

/// Callers wait for the server's answer for both times, which leaves a busy server 5 s after its own timeout.
const SOON: RendezvousTimeouts =
    RendezvousTimeouts { rendezvous: Duration::from_millis(400), handshake: Duration::from_secs(5) };
/// A timeout for worlds that must succeed even on a busy machine.
const LONG: RendezvousTimeouts =
    RendezvousTimeouts { rendezvous: Duration::from_secs(20), handshake: Duration::from_secs(5) };
/// A timeout that no test waits for.
const NEVER: RendezvousTimeouts =
    RendezvousTimeouts { rendezvous: Duration::from_secs(1 << 20), handshake: Duration::from_secs(60) };

fn hello(rank: u32, size: u32) -> Hello {
    Hello {
        kind: PeerKind::Rank,
        epoch: 0,
        rank: Rank(rank),
        size,
        port: 0,
        configuration: 1,
        job: 2,
        host: [rank as u8; 16],
    }
}

/// Runs a server and callers that send `hellos` one after the other; returns each caller's outcome.
async fn meet(timeout: RendezvousTimeouts, hellos: &[Hello]) -> Vec<Result<Joined, RendezvousFailure>> {
    let (rendezvous_address, _server) = serve(timeout);
    let mut calls = JoinSet::new();
    for (at, hello) in hellos.iter().copied().enumerate() {
        let rendezvous_address = rendezvous_address.clone();
        calls.spawn(async move { (at, come(&rendezvous_address, hello, timeout).await) });
        // The callers arrive in order, because an error names the rank that arrived first.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut all = calls.join_all().await;
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

/// An authenticator that needs no secret.
fn open() -> crate::Authenticator {
    authenticator(&Security::Loopback, LONG).unwrap()
}

async fn come(
    rendezvous_address: &RendezvousAddress,
    hello: Hello,
    timeout: RendezvousTimeouts,
) -> Result<Joined, RendezvousFailure> {
    join(rendezvous_address, false, hello, &open(), timeout).await
}

/// Connects through the authenticator and sends `bytes`.
async fn said(rendezvous_address: &RendezvousAddress, bytes: &[u8]) -> AuthenticatedStream {
    let address = format!("127.0.0.1:{}", rendezvous_address.port).parse().unwrap();
    let (mut stream, _) = open().connect(address, super::identity()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// How many callers that have not identified themselves the server of a test keeps: fewer than usual, since a test holds both ends
/// of every connection.
const HEARD: usize = 64;

fn serve(
    timeout: RendezvousTimeouts,
) -> (RendezvousAddress, tokio::task::JoinHandle<Result<(), RendezvousFailure>>) {
    serve_for(timeout, None)
}

fn serve_for(
    timeout: RendezvousTimeouts,
    launcher: Option<Launching>,
) -> (RendezvousAddress, tokio::task::JoinHandle<Result<(), RendezvousFailure>>) {
    let server = Server::bind("127.0.0.1:0".parse().unwrap()).unwrap().hearing(HEARD);
    let port = server.address().unwrap().port();
    let rendezvous_address = RendezvousAddress { host: "127.0.0.1".into(), port, served: true };
    (rendezvous_address, tokio::spawn(server.serve(open(), timeout, launcher)))
}

fn failures(results: Vec<Result<Joined, RendezvousFailure>>) -> Vec<Option<RendezvousFailure>> {
    results.into_iter().map(Result::err).collect()
}

#[tokio::test]
async fn all_come_and_get_one_table() {
    let hellos: Vec<_> = [2, 0, 3, 1].map(|rank| hello(rank, 4)).to_vec();
    let joined: Vec<Joined> = meet(LONG, &hellos).await.into_iter().map(Result::unwrap).collect();
    for (one, hello) in joined.iter().zip(&hellos) {
        assert_eq!(one.table, joined[0].table);
        let me = one.table.peers[hello.rank.index()];
        assert_eq!((me.rank, me.host), (hello.rank, hello.host));
        assert_eq!(me.address, one.listener.local_addr().unwrap());
    }
}

#[tokio::test]
async fn missing_ranks_are_named_to_all_arrived_ranks() {
    // On a busy machine a rank may come after a short timeout: then a longer one is taken.
    for timeout in [SOON.rendezvous, 10 * SOON.rendezvous, 100 * SOON.rendezvous] {
        let missing = RendezvousFailure::Missing { ranks: vec![Rank(1), Rank(3)], more: 0, after: timeout };
        let timeouts = RendezvousTimeouts { rendezvous: timeout, handshake: timeout.max(SOON.handshake) };
        let results = failures(meet(timeouts, &[hello(0, 4), hello(2, 4)]).await);
        if results == [Some(missing.clone()), Some(missing)] {
            return;
        }
        println!("with {timeout:?}: {results:?}");
    }
    panic!("the missing ranks are not named");
}

#[tokio::test]
async fn ranks_do_not_wait_for_one_whose_process_has_exited_with_0() {
    for first in [true, false] {
        let (exits, exited) = tokio::sync::watch::channel(BTreeSet::new());
        let launching = Launching { callers: tokio::sync::mpsc::channel(1).0, exited };
        let (rendezvous_address, _server) = serve_for(NEVER, Some(launching));
        let exits = async {
            // Either the exit is known before the others come, or one of the others waits already.
            if !first {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            exits.send_replace([Rank(1), Rank(9)].into());
        };
        let others = [0, 2].map(|rank| come(&rendezvous_address, hello(rank, 3), NEVER));
        let [one, two] = others;
        let (one, two, ()) = tokio::join!(one, two, exits);
        for failure in [one, two].map(|joined| joined.err().unwrap()) {
            assert_eq!(failure.to_string(), "rank 1 exited with 0 and cannot join any more");
        }
    }
}

#[tokio::test]
async fn a_rank_that_came_and_ended_is_missing_as_well() {
    let (rendezvous_address, _server) = serve(SOON);
    drop(said(&rendezvous_address, &hello(1, 3).encode()).await);
    let failure = come(&rendezvous_address, hello(0, 3), SOON).await.err().unwrap();
    assert_eq!(failure.to_string(), "ranks 1, 2 did not join within 400ms");
}

#[tokio::test]
async fn a_rank_that_waits_less_long_than_the_server_says_so() {
    let (rendezvous_address, _server) = serve(LONG);
    let short = RendezvousTimeouts { handshake: Duration::from_millis(100), ..SOON };
    let failure = come(&rendezvous_address, hello(1, 3), short).await.err().unwrap().to_string();
    assert!(
        failure.starts_with("not all ranks joined within 500ms, and the server waits longer"),
        "{failure}"
    );
}

#[test]
fn a_size_that_a_caller_says_takes_no_memory() {
    let came = [(Rank(0), ()), (Rank(2), ())].into();
    assert_eq!(super::server::missing(4, &came), (vec![Rank(1), Rank(3)], 0));
    let (ranks, more) = super::server::missing(1 << 20, &came);
    assert_eq!((ranks.len(), more), (30, (1 << 20) - 32));
    // A caller on another host gets the same list of ranks as a caller on the server's host.
    let failure = RendezvousFailure::Missing { ranks, more, after: SOON.rendezvous };
    let (code, numbers) = failure.parts();
    assert_eq!(RendezvousFailure::of(code, &numbers), failure);
    assert!(
        failure.to_string().ends_with(", 30, 31 and 1048544 more did not join within 400ms"),
        "{failure}"
    );
}

#[tokio::test]
async fn another_world_size_fails_all_at_once_with_both_values() {
    let wrong = RendezvousFailure::WorldSize { rank: Rank(0), size: 3, peer: Rank(1), theirs: 4 };
    let results = failures(meet(LONG, &[hello(0, 3), hello(1, 4), hello(2, 3)]).await);
    assert_eq!(results, vec![Some(wrong); 3]);
}

#[tokio::test]
async fn another_configuration_fails_all_at_once() {
    let other = Hello { configuration: 9, ..hello(1, 3) };
    let wrong = RendezvousFailure::Configuration { rank: Rank(0), peer: Rank(1) };
    assert_eq!(failures(meet(LONG, &[hello(0, 3), other, hello(2, 3)]).await), vec![Some(wrong); 3]);
}

#[tokio::test]
async fn a_second_process_of_one_rank_is_refused_and_the_first_unharmed() {
    let results = failures(meet(LONG, &[hello(0, 2), hello(0, 2), hello(1, 2), hello(1, 2)]).await);
    let twice = |rank| Some(RendezvousFailure::DuplicateRank { rank: Rank(rank) });
    assert_eq!(results, [None, twice(0), None, twice(1)]);
}

#[tokio::test]
async fn another_job_is_refused_and_an_older_epoch() {
    let other = Hello { job: 7, ..hello(1, 2) };
    let results = failures(meet(LONG, &[hello(0, 2), other, hello(1, 2)]).await);
    assert_eq!(results, [None, Some(RendezvousFailure::Job), None]);
    let again = |rank| Hello { epoch: 1, ..hello(rank, 2) };
    let results = failures(meet(LONG, &[hello(0, 2), again(0), hello(1, 2), again(1)]).await);
    let old = Some(RendezvousFailure::Epoch { mine: 0, theirs: 1, by: Rank(0) });
    assert_eq!(results, [old.clone(), None, old, None]);
}

#[tokio::test]
async fn who_calls_for_a_start_that_cannot_be_is_refused_and_the_job_unharmed() {
    let beyond = Hello { epoch: u32::MAX, ..hello(1, 2) };
    let results = failures(meet(LONG, &[hello(0, 2), beyond, hello(1, 2)]).await);
    let refused = RendezvousFailure::EpochBeyond { mine: u32::MAX, theirs: 0 };
    assert_eq!(results, [None, Some(refused), None]);
}

#[tokio::test]
async fn a_rank_that_died_while_it_waited_may_come_again() {
    let (rendezvous_address, _server) = serve(LONG);
    let dead = said(&rendezvous_address, &hello(0, 2).encode()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(dead);
    let (first, second) = tokio::join!(
        come(&rendezvous_address, hello(0, 2), LONG),
        come(&rendezvous_address, hello(1, 2), LONG)
    );
    assert_eq!(failures(vec![first, second]), [None, None]);
}

#[tokio::test]
async fn rogues_do_not_keep_ranks_apart() {
    let (rendezvous_address, _server) = serve(LONG);
    let mut rogues = Vec::new();
    for said in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 96], b"allfold\n"] {
        // There are more silent rogues than the server keeps connected at a time.
        for _ in 0..if said.is_empty() { 2 * HEARD } else { 10 } {
            let mut rogue =
                tokio::net::TcpStream::connect(("127.0.0.1", rendezvous_address.port)).await.unwrap();
            rogue.write_all(said).await.unwrap();
            rogues.push(rogue);
        }
    }
    let (first, second) = tokio::join!(
        come(&rendezvous_address, hello(0, 2), LONG),
        come(&rendezvous_address, hello(1, 2), LONG)
    );
    assert_eq!(failures(vec![first, second]), [None, None]);
}

#[tokio::test]
async fn another_version_and_another_program_are_named() {
    let (rendezvous_address, _server) = serve(LONG);
    let mut bytes = hello(0, 2).encode();
    bytes[8] = 99;
    let mut old = said(&rendezvous_address, &bytes).await;
    let mut answer = [0; super::messages::ANSWER];
    tokio::io::AsyncReadExt::read_exact(&mut old, &mut answer).await.unwrap();
    let told = super::messages::decode_answer(&answer).unwrap_err();
    assert_eq!(told, RendezvousFailure::Version { ours: 99, theirs: super::messages::VERSION });

    // Other programs that may answer at the port, and an Allfold of another wire format.
    let answered = async |answer: [u8; 400]| {
        let web = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = web.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = web.accept().await.unwrap();
            stream.write_all(&answer).await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
        });
        let rendezvous_address = RendezvousAddress { host: "127.0.0.1".into(), port, served: true };
        come(&rendezvous_address, hello(0, 2), SOON).await.err()
    };
    assert!(matches!(answered([b'x'; 400]).await, Some(RendezvousFailure::NotOurs(_))));
    let mut other = [0; 400];
    other[..5].copy_from_slice(b"ALFH\x09");
    assert!(matches!(answered(other).await, Some(RendezvousFailure::Version { theirs: 9, .. })));
}

#[tokio::test]
async fn no_server_and_a_port_in_use() {
    let (rendezvous_address, address) = not_yet_served("127.0.0.4");
    let server = Server::bind(address).unwrap();
    assert_eq!(Server::bind(address).err(), Some(RendezvousFailure::PortInUse));
    drop(server);
    let nobody = come(&rendezvous_address, hello(0, 2), SOON).await;
    let said = nobody.err().unwrap().to_string();
    assert!(said.starts_with("rank 0 did not answer there within "), "{said}");
}

#[tokio::test]
async fn without_a_secret_no_other_host_is_called() {
    let rendezvous_address = RendezvousAddress { host: "192.0.2.1".into(), port: 1, served: true };
    let error = come(&rendezvous_address, hello(1, 2), LONG).await.err().unwrap().to_string();
    assert_eq!(
        error,
        "192.0.2.1:1 is no loopback address: give the job a secret by ALLFOLD_SECRET_FILE, or set \
         ALLFOLD_SECURITY=insecure-plaintext to let anyone join"
    );
}

/// An address at which a server will listen later. `host` is a loopback address that no other test uses: at 127.0.0.1 the server of
/// a test that runs beside this one could get the same port in the meantime, and would answer the callers.
fn not_yet_served(host: &str) -> (RendezvousAddress, std::net::SocketAddr) {
    let late = Server::bind(format!("{host}:0").parse().unwrap()).unwrap();
    let address = late.address().unwrap();
    (RendezvousAddress { host: host.into(), port: address.port(), served: false }, address)
}

#[tokio::test]
async fn a_server_that_comes_late_is_found() {
    let (rendezvous_address, address) = not_yet_served("127.0.0.2");
    let serve = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        super::serve_world(Server::bind(address).unwrap(), open(), LONG).await
    };
    let (served, first, second) = tokio::join!(
        serve,
        come(&rendezvous_address, hello(0, 2), LONG),
        come(&rendezvous_address, hello(1, 2), LONG)
    );
    assert_eq!(served, Ok(()));
    assert_eq!(failures(vec![first, second]), [None, None]);
}

#[tokio::test]
async fn a_rank_that_waited_for_a_late_server_gets_the_missing_ranks() {
    let (rendezvous_address, address) = not_yet_served("127.0.0.3");
    // The server starts after 1.5 s, so its timeout ends after the first caller's own 6 s, and by more than a handshake's time.
    let seconds = Duration::from_secs_f64;
    let timeout = RendezvousTimeouts { rendezvous: seconds(6.0), handshake: seconds(1.0) };
    let serve = async {
        tokio::time::sleep(seconds(1.5)).await;
        let server = Server::bind(address).unwrap();
        tokio::join!(
            super::serve_world(server, open(), timeout),
            come(&rendezvous_address, hello(0, 3), timeout)
        )
    };
    let (first, (_, second)) = tokio::join!(come(&rendezvous_address, hello(1, 3), timeout), serve);
    let missing =
        Some(RendezvousFailure::Missing { ranks: vec![Rank(2)], more: 0, after: timeout.rendezvous });
    assert_eq!(failures(vec![first, second]), [missing.clone(), missing]);
}

#[tokio::test]
async fn who_comes_after_others_disagreed_is_told_by_the_server_of_rank_0_too() {
    let server = Server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = server.address().unwrap().port();
    let rendezvous_address = RendezvousAddress { host: "127.0.0.1".into(), port, served: false };
    let served = tokio::spawn(super::serve_world(server, open(), LONG));
    let first = tokio::spawn({
        let rendezvous_address = rendezvous_address.clone();
        async move { come(&rendezvous_address, hello(0, 3), LONG).await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let second = come(&rendezvous_address, hello(1, 4), LONG).await;
    let first = first.await.unwrap();
    assert!(!served.is_finished(), "rank 2 is still to be told");
    let third = come(&rendezvous_address, hello(2, 3), LONG).await;
    let wrong = RendezvousFailure::WorldSize { rank: Rank(0), size: 3, peer: Rank(1), theirs: 4 };
    assert_eq!(failures(vec![first, second, third]), vec![Some(wrong); 3]);
    assert_eq!(served.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn after_a_disagreement_absent_ranks_are_not_waited_for() {
    let hurry = RendezvousTimeouts { handshake: Duration::from_millis(300), ..LONG };
    let server = Server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = server.address().unwrap().port();
    let rendezvous_address = RendezvousAddress { host: "127.0.0.1".into(), port, served: false };
    let (served, first, second) = tokio::join!(
        super::serve_world(server, open(), hurry),
        come(&rendezvous_address, hello(0, 3), LONG),
        come(&rendezvous_address, hello(1, 4), LONG)
    );
    assert_eq!(served, Ok(()));
    assert!(
        failures(vec![first, second]).iter().all(|f| matches!(f, Some(RendezvousFailure::WorldSize { .. })))
    );
}

#[tokio::test]
async fn another_secret_keeps_a_process_out_and_harms_nobody() {
    let key = |byte| authenticator(&Security::TrustedFabric(Secret::new([byte; 32])), LONG).unwrap();
    let server = Server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = server.address().unwrap().port();
    let rendezvous_address = RendezvousAddress { host: "127.0.0.1".into(), port, served: true };
    tokio::spawn(server.serve(key(1), LONG, None));
    let (right, wrong) = (key(1), key(2));
    let (first, rogue, second) = tokio::join!(
        join(&rendezvous_address, false, hello(0, 2), &right, LONG),
        join(&rendezvous_address, false, hello(1, 2), &wrong, LONG),
        join(&rendezvous_address, false, hello(1, 2), &right, LONG)
    );
    assert_eq!(failures(vec![first, rogue, second]), [None, Some(RendezvousFailure::Secret), None]);
    // A rank that uses no secret is refused as well.
    let mode = RendezvousFailure::Mode { ours: "loopback", theirs: "trusted-fabric" };
    assert_eq!(come(&rendezvous_address, hello(1, 2), LONG).await.err(), Some(mode));
}
