//! Cases 14, 19 to 22 and 25 to 27: connections that do not belong to the job, and invalid frames of members.

use super::arena::{JOB, deadlines, listeners, nothing, peers, run, sum};
use super::processes::child_of;
use allfold_collectives::tcp::{
    Authenticator, Deadlines, FRAGMENT, Fingerprint, FrameHeader, HEADER, HandshakeAnswer, Kind,
    PeerIdentity, PeerOptions, Purpose, Refusal, Secret, Security, SegmentHandle,
};
use allfold_collectives::{Communicator, Error, Rank, ReduceOp};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;

/// Connects two ranks, whose options `change` may alter, and sums. Returns the result of each.
fn pair(change: impl Fn(u32, &mut PeerOptions), timeout: Duration) -> Vec<Result<(), Error>> {
    let (listeners, addresses) = listeners(2);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(listeners)
            .map(|(rank, listener)| {
                let mut peers =
                    peers(rank, listener, &addresses, Deadlines { start: timeout, ..deadlines() });
                change(rank, &mut peers);
                scope.spawn(move || Communicator::over_tcp(peers).and_then(|comm| sum(&comm, 100)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn second() -> Duration {
    Duration::from_secs(1)
}

#[test]
fn case_19_two_communicators_in_another_order_on_each_rank_are_right() {
    let results = run(3, nothing(), deadlines(), |comm| {
        let a = comm.split(Some(0), 0)?.expect("a colour");
        let b = comm.split(Some(0), 0)?.expect("a colour");
        let order = if comm.rank().0.is_multiple_of(2) { [&a, &b] } else { [&b, &a] };
        for _ in 0..20 {
            let works: Result<Vec<_>, Error> = order
                .iter()
                .map(|on| on.all_reduce_async(vec![1f32; 30_000].into(), ReduceOp::Sum))
                .collect();
            for work in works? {
                assert!(work.wait()?.iter().all(|x| *x == 3.0));
            }
        }
        Ok(())
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn case_20_a_wrong_world_size_names_both() {
    let (_, others) = listeners(1);
    let results = pair(
        |rank, peers| {
            if rank == 1 {
                peers.addresses.push(others[0]);
            }
        },
        second(),
    );
    let text = results[1].as_ref().unwrap_err().to_string();
    assert_eq!(text, "no connection to rank 0: rank 0's world size is 2, and this rank's is 3");
    assert!(results[0].is_err());
}

#[test]
fn case_21_a_second_rank_of_one_number_is_refused_and_the_first_unharmed() {
    let (mut all, addresses) = listeners(3);
    let extra = all.pop().unwrap();
    let addresses = &addresses[..2];
    let (connected, is_connected) = mpsc::channel();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let first: Vec<_> = (0..)
            .zip(all)
            .map(|(rank, listener)| {
                let peers = peers(rank, listener, addresses, deadlines());
                let (connected, over) = (connected.clone(), &over);
                scope.spawn(move || {
                    let comm = Communicator::over_tcp(peers)?;
                    connected.send(()).unwrap();
                    loop {
                        sum(&comm, 1000)?;
                        let mut end = [i32::from(over.load(Ordering::Relaxed))];
                        comm.all_reduce(&mut end, ReduceOp::Max)?;
                        if end == [1] {
                            return Ok::<_, Error>(());
                        }
                    }
                })
            })
            .collect();
        drop(connected);
        (0..2).for_each(|_| is_connected.recv().unwrap());
        let twin = Communicator::over_tcp(peers(1, extra, addresses, deadlines())).map(drop);
        over.store(true, Ordering::Relaxed);
        assert_eq!(twin.unwrap_err().to_string(), "no connection to rank 0: rank 1 is connected already");
        for thread in first {
            assert_eq!(thread.join().unwrap(), Ok(()));
        }
    });
}

#[test]
fn case_22_a_missing_rank_is_named() {
    let (mut all, addresses) = listeners(2);
    let _silent = all.pop();
    let timeout = Deadlines { start: Duration::from_millis(300), ..deadlines() };
    let alone = peers(0, all.pop().unwrap(), &addresses, timeout);
    let error = Communicator::over_tcp(alone).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "rank 1 did not join within 300ms");
}

#[test]
fn case_26_a_wrong_secret_is_told_as_that_and_nothing_else_is() {
    for mode in [Security::Tls as fn(Secret) -> Security, Security::TrustedFabric] {
        let results = pair(|rank, peers| peers.security = mode(Secret::new([rank as u8; 32])), second());
        assert_eq!(results[1], Err(Error::AuthFailed { peer: Rank(0) }));
        assert!(matches!(&results[0], Err(Error::Missing { missing, .. }) if missing == &[Rank(1)]));
    }
}

/// An address whose connections reach another address only after a while.
fn late(to: SocketAddr, delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        std::thread::sleep(delay);
        let far = TcpStream::connect(to).unwrap();
        let copy = |mut from: TcpStream, mut to: TcpStream| {
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            })
        };
        copy(near.try_clone().unwrap(), far.try_clone().unwrap());
        copy(far, near);
    });
    address
}

#[test]
fn case_26_a_rank_that_cannot_join_tells_why_also_where_it_is_just_connecting() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for delay in [0, 200].map(Duration::from_millis) {
        let (listeners, addresses) = listeners(3);
        let results: Vec<Result<(), Error>> = std::thread::scope(|scope| {
            let join = |(rank, listener)| {
                let mut peers = peers(rank, listener, &addresses, deadlines());
                peers.security = Security::TrustedFabric(Secret::new([u8::from(rank == 1); 32]));
                match rank {
                    0 => peers.deadlines.start = second() * 60,
                    // This address answers rank 2 as long as rank 1 finds no rank 0.
                    1 => {
                        (peers.deadlines.start, peers.addresses[0]) =
                            (second() * 2, silent.local_addr().unwrap())
                    }
                    _ => peers.addresses[0] = late(addresses[0], delay),
                }
                scope.spawn(move || Communicator::over_tcp(peers).map(drop))
            };
            let threads: Vec<_> = (0..).zip(listeners).map(join).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let told = results[0].as_ref().unwrap_err().to_string();
        assert_eq!(told, "aborted by rank 2: rank 1 holds another secret than rank 2");
        assert_eq!(results[2], Err(Error::AuthFailed { peer: Rank(1) }));
    }
}

#[test]
fn case_26_a_rank_under_another_secret_is_told_so_though_the_others_have_ended() {
    let (listeners, addresses) = listeners(3);
    // Nobody listens at another loopback address under a port that a rank has. A port that is free here may be another rank's there.
    let nobody = SocketAddr::from(([127, 0, 0, 2], addresses[2].port()));
    let results: Vec<Result<(), Error>> = std::thread::scope(|scope| {
        let join = |(rank, listener)| {
            let mut peers = peers(rank, listener, &addresses, deadlines());
            peers.security = Security::TrustedFabric(Secret::new([u8::from(rank == 1); 32]));
            peers.deadlines.start = second() * 2;
            if rank == 1 {
                peers.addresses[0] = nobody;
            }
            scope.spawn(move || Communicator::over_tcp(peers).map(drop))
        };
        let threads: Vec<_> = (0..).zip(listeners).map(join).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let told = results[1].as_ref().unwrap_err().to_string();
    assert!(told.contains("Connection refused") && told.contains("failed over the secret"), "{told}");
}

#[test]
fn case_26_the_right_secret_works_in_every_mode() {
    for mode in [Security::Tls as fn(Secret) -> Security, Security::TrustedFabric] {
        let results = pair(|_, peers| peers.security = mode(Secret::new([5; 32])), second() * 10);
        assert_eq!(results, [Ok(()), Ok(())]);
    }
}

#[test]
fn case_26_another_job_is_refused() {
    let results = pair(|rank, peers| peers.job = [rank as u8; 16], second());
    assert!(results[1].as_ref().unwrap_err().to_string().contains("belongs to another job"), "{results:?}");
}

#[test]
fn case_27_an_earlier_life_of_the_job_is_refused() {
    let results = pair(|rank, peers| peers.epoch = 5 - rank, second());
    let text = results[1].as_ref().unwrap_err().to_string();
    assert_eq!(text, "no connection to rank 0: rank 0 is in epoch 5, and this rank in epoch 4");
}

#[test]
fn another_mode_of_security_is_named() {
    let secret = Secret::new([5; 32]);
    let results = pair(
        |rank, peers| {
            if rank == 1 {
                peers.security = Security::TrustedFabric(secret.clone());
            }
        },
        second(),
    );
    let text = results[1].as_ref().unwrap_err().to_string();
    assert!(text.contains("its security mode is loopback, and this side's is trusted-fabric"), "{text}");
}

#[test]
fn an_address_that_needs_a_secret_is_refused_without_one() {
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let addresses = vec![listener.local_addr().unwrap()];
    let error = Communicator::over_tcp(peers(0, listener, &addresses, deadlines())).map(drop).unwrap_err();
    assert!(error.to_string().contains("is no loopback address: give the job a secret"), "{error}");
}

/// The identity that rank 1 sends to rank 0, in a world of two.
fn identity(purpose: Purpose) -> PeerIdentity {
    PeerIdentity {
        purpose,
        job: JOB,
        epoch: 0,
        size: 2,
        rank: Rank(1),
        peer: Rank(0),
        group: 0,
        memory: SegmentHandle::default(),
    }
}

/// Plays rank 1 by hand against a rank 0 that calls `sum`. Returns rank 0's error.
fn by_hand(frame: Vec<u8>) -> Error {
    let (mut all, addresses) = listeners(2);
    let _mine = all.pop();
    let zero = peers(0, all.pop().unwrap(), &addresses, deadlines());
    let thread = std::thread::spawn(move || Communicator::over_tcp(zero).and_then(|comm| sum(&comm, 1000)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let authenticator = Authenticator::new(Security::Loopback, Duration::from_secs(5)).unwrap();
        let control = loop {
            match authenticator.connect(addresses[0], identity(Purpose::Control)).await {
                Ok((control, _)) => break control,
                Err(Refusal::Broken(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(other) => panic!("{other:?}"),
            }
        };
        let mut data = loop {
            match authenticator.connect(addresses[0], identity(Purpose::Data)).await {
                Ok((data, _)) => break data,
                Err(Refusal::Answer(HandshakeAnswer::Duplicate(_), _)) => {
                    tokio::time::sleep(Duration::from_millis(5)).await
                }
                Err(other) => panic!("{other:?}"),
            }
        };
        data.write_all(&frame).await.unwrap();
        data.flush().await.unwrap();
        tokio::task::spawn_blocking(move || {
            let result = thread.join().unwrap();
            drop((control, data));
            result.unwrap_err()
        })
        .await
        .unwrap()
    })
}

fn header(bytes: u32) -> FrameHeader {
    let fingerprint = Fingerprint([0; 16]);
    FrameHeader {
        kind: Kind::Data,
        last: true,
        comm: 0,
        epoch: 0,
        sequence: 0,
        round: 0,
        lane: 0,
        at: 0,
        bytes,
        fingerprint,
        payload_crc: 0,
    }
}

/// A line of this process's `/proc/self/status` about memory, in KiB.
fn memory(what: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
}

/// Sends frames that announce more bytes than a frame may have. Runs in a process of its own, whose memory is measured.
pub fn announce_lengths() {
    // Threads and sockets allocate memory at their first use, which is not counted.
    (0..3).for_each(|_| drop(by_hand(header(8).encode().to_vec())));
    // With this limit an allocation of gigabytes fails, even if the memory is never touched.
    let limit = (memory("VmData:") << 10) + (256 << 20);
    setrlimit(Resource::Data, Rlimit { current: Some(limit), ..getrlimit(Resource::Data) }).unwrap();
    let before = memory("VmHWM:");
    for bytes in [FRAGMENT as u32 + 1, 1 << 31, u32::MAX] {
        let error = by_hand(header(bytes).encode().to_vec());
        let Error::Protocol { rank: Rank(0), peer: Rank(1), what, .. } = &error else { panic!("{error}") };
        assert!(what.contains(&format!("announces {bytes} bytes")), "{what}");
    }
    let more = memory("VmHWM:") - before;
    assert!(more < 1024, "{more} KiB more");
}

#[test]
fn case_14_a_length_that_cannot_be_is_refused_before_any_allocation() {
    assert_eq!(child_of("0 lengths", &[]).line(), "done");
}

#[test]
fn a_member_that_calls_what_no_call_is_or_another_one_is_named() {
    let error = by_hand(header(8).encode().to_vec());
    assert!(
        matches!(error, Error::Mismatch { peer: Rank(1), .. } | Error::Protocol { peer: Rank(1), .. }),
        "{error}"
    );
    let nonsense = FrameHeader { fingerprint: Fingerprint([0xee; 16]), ..header(8) };
    let error = by_hand(nonsense.encode().to_vec());
    assert!(matches!(error, Error::Protocol { peer: Rank(1), .. }), "{error}");
    let error = by_hand(vec![b'x'; HEADER]);
    assert!(matches!(error, Error::Protocol { peer: Rank(1), .. }), "{error}");
}

/// Connections that have sent what people and scanners send to open ports.
fn rogues(to: SocketAddr, many: usize) -> Vec<TcpStream> {
    let greetings: [&[u8]; 6] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0xff; 4096],
        b"\x16\x03\x01\x02\x00",
        b"ALFH",
        &[0; 72],
    ];
    (0..many)
        .filter_map(|i| {
            let mut socket = TcpStream::connect_timeout(&to, Duration::from_millis(50)).ok()?;
            let _ = socket.write_all(greetings[i % greetings.len()]);
            Some(socket)
        })
        .collect()
}

#[test]
fn case_25_strangers_are_dropped_and_the_job_goes_on() {
    let (all, addresses) = listeners(3);
    let impatient = Deadlines { handshake: Duration::from_millis(500), ..deadlines() };
    std::thread::scope(|scope| {
        // Strangers connect before the ranks start, and while the ranks work.
        let mut strangers = rogues(addresses[0], 60);
        let ranks: Vec<_> = (0..)
            .zip(all)
            .map(|(rank, listener)| {
                let peers = peers(rank, listener, &addresses, impatient);
                scope.spawn(move || {
                    let comm = Communicator::over_tcp(peers)?;
                    (0..100).try_for_each(|_| {
                        std::thread::sleep(Duration::from_millis(10));
                        sum(&comm, 1000)
                    })
                })
            })
            .collect();
        for address in &addresses {
            strangers.extend(rogues(*address, 330));
        }
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), Ok(()));
        }
        drop(strangers);
    });
}

#[test]
fn case_25_a_stranger_that_says_nothing_is_dropped_in_time_and_told_nothing() {
    let (all, addresses) = listeners(2);
    let impatient = Deadlines { handshake: Duration::from_millis(300), ..deadlines() };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..)
            .zip(all)
            .map(|(rank, listener)| {
                let peers = peers(rank, listener, &addresses, impatient);
                scope.spawn(move || {
                    let comm = Communicator::over_tcp(peers)?;
                    std::thread::sleep(Duration::from_millis(1500));
                    sum(&comm, 10)
                })
            })
            .collect();
        let begun = Instant::now();
        let mut silent = TcpStream::connect(addresses[0]).unwrap();
        silent.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut heard = Vec::new();
        let _ = silent.read_to_end(&mut heard);
        assert!(heard.is_empty(), "{heard:?}");
        assert!(begun.elapsed() < Duration::from_secs(3));
        // A connection that sends one byte at a time is dropped in time as well.
        let mut slow = TcpStream::connect(addresses[0]).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) && slow.write_all(b"A").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(begun.elapsed() < Duration::from_secs(3), "it was listened to for ever");
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), Ok(()));
        }
    });
}

#[test]
fn case_26_a_recorded_handshake_is_worth_nothing() {
    // Everything that an honest connector sent to one acceptor is sent to it again.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let authenticator = Authenticator::new(Security::TrustedFabric(Secret::new([3; 32])), Duration::from_secs(2)).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap();
        let tap = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tapped = tap.local_addr().unwrap();
        let acceptor = authenticator.clone();
        let accept = tokio::spawn(async move {
            let mut verdicts = Vec::new();
            for _ in 0..2 {
                let (socket, _) = listener.accept().await.unwrap();
                verdicts.push(acceptor.accept(socket, |_| HandshakeAnswer::Welcome).await.map(|(_, identity)| identity));
            }
            verdicts
        });
        let recorder = tokio::spawn(async move {
            use tokio::io::AsyncReadExt;
            let (mut near, _) = tap.accept().await.unwrap();
            let mut far = tokio::net::TcpStream::connect(target).await.unwrap();
            let mut recording = Vec::new();
            let (mut a, mut b) = ([0u8; 512], [0u8; 512]);
            loop {
                tokio::select! {
                    n = near.read(&mut a) => match n {
                        Ok(n) if n > 0 => { recording.extend(&a[..n]); far.write_all(&a[..n]).await.unwrap(); }
                        _ => break,
                    },
                    n = far.read(&mut b) => match n {
                        Ok(n) if n > 0 => near.write_all(&b[..n]).await.unwrap(),
                        _ => break,
                    },
                }
            }
            recording
        });
        let honest = authenticator.connect(tapped, identity(Purpose::Control)).await.unwrap();
        drop(honest);
        let recording = recorder.await.unwrap();
        let mut replay = tokio::net::TcpStream::connect(target).await.unwrap();
        replay.write_all(&recording).await.unwrap();
        let verdicts = accept.await.unwrap();
        assert_eq!(verdicts[0], Ok(identity(Purpose::Control)));
        assert_eq!(verdicts[1], Err(Refusal::Secret));
    });
}
