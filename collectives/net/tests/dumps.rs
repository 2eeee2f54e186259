#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(target_os = "linux")]
//! What a core dump of a rank would hold.

use allfold_net::{
    Authenticator, HandshakeAnswer, PeerIdentity, Purpose, Rank, Secret, Security, SegmentHandle,
};
use std::hint::black_box;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;
use std::time::Duration;

/// A byte of the secret. The test never has the secret's bytes one after the other in its own memory.
fn byte(at: usize) -> u8 {
    (black_box(at) * 73 + 41) as u8 | 0x80
}

fn identity() -> PeerIdentity {
    let (job, memory) = ([0; 16], SegmentHandle::default());
    PeerIdentity {
        purpose: Purpose::Control,
        job,
        epoch: 0,
        size: 2,
        rank: Rank(1),
        peer: Rank(0),
        group: 0,
        memory,
    }
}

/// Whether memory of this process that a core dump would hold contains the secret.
fn dumped() -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let mut bytes = vec![0; 1 << 20];
    let (mut range, mut read) = (0..0, 0);
    for line in maps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let is_dumped = flags.contains(" rd") && !flags.contains(" dd") && !flags.contains(" io");
            let mut from = range.start;
            while is_dumped && from < range.end {
                let length = (range.end - from).min(bytes.len() as u64);
                let Ok(length) = memory.read_at(&mut bytes[..length as usize], from) else { break };
                read += length;
                let begins = bytes[..length].windows(Secret::BYTES).any(|window| {
                    window[0] == byte(0) && (0..).zip(window).all(|(at, found)| *found == byte(at))
                });
                if begins {
                    return true;
                }
                // The pieces overlap, so that a secret is whole in one of them.
                from += length.saturating_sub(Secret::BYTES).max(1) as u64;
                if from + Secret::BYTES as u64 >= range.end {
                    break;
                }
            }
        } else if let Some((from, to)) = line.split(' ').next().and_then(|range| range.split_once('-'))
            && let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
        {
            range = from..to;
        }
    }
    assert!(read > 1 << 20, "this process has more memory than {read} bytes");
    false
}

#[test]
fn the_secret_is_in_no_memory_that_a_core_dump_holds() {
    let folder = tempfile::tempdir().unwrap();
    for digits in [false, true] {
        let path = folder.path().join(format!("secret-{digits}"));
        let escaped: String = (0..Secret::BYTES)
            .map(|at| if digits { format!("{:02x}", byte(at)) } else { format!("\\{:03o}", byte(at)) })
            .collect();
        let written = Command::new("sh").args(["-c", "printf \"$0\" > \"$1\"", &escaped]).arg(&path).status();
        assert!(written.unwrap().success());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let secret = Secret::read(&path).unwrap();
        let authenticator =
            Authenticator::new(Security::TrustedFabric(secret), Duration::from_secs(60)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let accepting = async {
                let (socket, _) = listener.accept().await.unwrap();
                authenticator.accept(socket, |_| HandshakeAnswer::Welcome).await
            };
            let (connected, accepted) = tokio::join!(authenticator.connect(address, identity()), accepting);
            assert!(connected.is_ok() && accepted.is_ok());
        });
        assert!(!dumped(), "digits: {digits}");
        drop(authenticator);
    }
    // The search finds what is there.
    let copy: Vec<u8> = (0..Secret::BYTES).map(byte).collect();
    assert!(dumped() && copy.len() == Secret::BYTES);
}
