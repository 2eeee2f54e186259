//! Records between two ends that have shaken hands, and between one end and rustls' own record layer.

use super::super::credentials::Credentials;
use super::super::handshake::shake;
use super::*;
use crate::socket;
use proptest::prelude::*;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConnection, Connection, ServerConnection};
use std::io::{Read, Write};
use std::net::TcpListener;
use tokio::net::TcpStream;
use tokio::runtime::Builder;

/// Two connected sockets, each of them given to a future.
fn connected<A, B, FA, FB>(near: impl FnOnce(TcpStream) -> FA, far: impl FnOnce(TcpStream) -> FB) -> (A, B)
where
    FA: Future<Output = A>,
    FB: Future<Output = B>,
{
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let one = socket::connect(listener.local_addr().unwrap()).await.unwrap();
        let (other, _) = listener.accept().await.unwrap();
        tokio::join!(near(one), far(other))
    })
}

/// The connecting end of a handshake, and the accepting one.
fn pair() -> (Records, Records) {
    let (one, other) = (Credentials::new().unwrap(), Credentials::new().unwrap());
    let client = one.client(other.fingerprint).unwrap();
    let server = other.server(one.fingerprint).unwrap();
    let client = UnbufferedClientConnection::new(client, Credentials::name().unwrap()).unwrap();
    let server = UnbufferedServerConnection::new(server).unwrap();
    let near = async |mut socket| shake(client, &mut socket).await.unwrap();
    let far = async |mut socket| shake(server, &mut socket).await.unwrap();
    connected(near, far)
}

/// Takes the sealed bytes out of the output buffer.
fn taken(from: &mut Records) -> Vec<u8> {
    let bytes = from.held().to_vec();
    from.written(bytes.len());
    bytes
}

/// Gives an end these bytes, as read from a socket.
fn give(to: &mut Records, bytes: &[u8]) {
    to.read_buffer()[..bytes.len()].copy_from_slice(bytes);
    to.filled(bytes.len()).unwrap();
}

/// Seals these bytes at one end and opens them at the other, with a buffer of `capacity` bytes at a time.
fn carried(from: &mut Records, to: &mut Records, bytes: &[u8], capacity: usize) -> Vec<u8> {
    let mut opened = Vec::new();
    let mut gone = 0;
    while gone < bytes.len() {
        gone += from.seal(&[], &bytes[gone..]).unwrap();
        give(to, &taken(from));
        opened.append(&mut all(to, capacity));
    }
    opened
}

fn all(from: &mut Records, capacity: usize) -> Vec<u8> {
    let mut opened = Vec::new();
    let mut buffer = vec![0; capacity];
    while let Opened::Bytes(bytes) = from.open(&mut buffer).unwrap() {
        opened.extend_from_slice(&buffer[..bytes]);
    }
    opened
}

fn numbered(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn bytes_arrive_as_they_left_in_any_pieces(
        writes in prop::collection::vec((0usize..100, prop_oneof![0usize..300, 0usize..200_000]), 1..6),
        capacity in prop_oneof![1usize..40, 1usize..200_000],
        cut in prop_oneof![1usize..2_000, 1usize..200_000],
        early in any::<bool>(),
    ) {
        let (mut one, mut other) = pair();
        let (from, to) = if early { (&mut one, &mut other) } else { (&mut other, &mut one) };
        let mut buffer = vec![0; capacity];
        for (first, second) in writes {
            let bytes = numbered(first + second);
            let (mut sent, mut got) = (0, Vec::new());
            while got.len() < bytes.len() {
                if from.held().is_empty() && sent < bytes.len() {
                    sent += from.seal(&bytes[sent..sent.max(first)], &bytes[sent.max(first)..]).unwrap();
                }
                let some = from.held().len().min(cut).min(to.read_buffer().len());
                let piece = from.held()[..some].to_vec();
                from.written(some);
                if some > 0 {
                    give(to, &piece);
                }
                while let Opened::Bytes(bytes) = to.open(&mut buffer).unwrap() {
                    got.extend_from_slice(&buffer[..bytes]);
                }
            }
            prop_assert_eq!(got, bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_refused_or_wait_for_more(mut bytes in prop::collection::vec(any::<u8>(), 1..300), mend in any::<bool>()) {
        let (_, mut other) = pair();
        if mend && bytes.len() > PREFIX {
            let front = prefix(bytes.len() - PREFIX);
            bytes[..PREFIX].copy_from_slice(&front);
        }
        give(&mut other, &bytes);
        prop_assert!(!matches!(other.open(&mut [0; 100]), Ok(Opened::Bytes(_) | Opened::Closed)));
    }
}

#[test]
fn a_flipped_bit_is_refused_and_the_other_side_hears_of_it() {
    // A buffer with space for the record, and one without: the record is decrypted into the buffer, or in place.
    for capacity in [1000, 10] {
        for bit in [0, 3, 25, 40, 8 * 60, 8 * 105, 8 * 105 + 7, 8 * 121 + 7] {
            let (mut one, mut other) = pair();
            one.seal(&[], &[7; 100]).unwrap();
            let mut bytes = taken(&mut one);
            assert_eq!(bytes.len(), 100 + AROUND);
            bytes[bit / 8] ^= 1 << (bit % 8);
            // A record of a longer claimed length needs more bytes before it is refused.
            bytes.resize(LONGEST + PREFIX, 0);
            give(&mut other, &bytes);
            let error = other.open(&mut vec![0; capacity]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "bit {bit}");
            assert!(other.open(&mut [0; 10]).is_err() && other.seal(&[], &[1]).is_err());
            give(&mut one, &taken(&mut other));
            let told = one.open(&mut [0; 10]).unwrap_err().to_string();
            assert!(told.contains("the peer's TLS failed"), "bit {bit}: {told}");
        }
    }
}

#[test]
fn a_record_taken_out_or_repeated_is_refused() {
    for repeat in [false, true] {
        let (mut one, mut other) = pair();
        let records: Vec<Vec<u8>> = (0..3)
            .map(|at| {
                one.seal(&[], &[at; 100]).unwrap();
                taken(&mut one)
            })
            .collect();
        give(&mut other, &records[0]);
        assert_eq!(all(&mut other, 1000), [0; 100]);
        give(&mut other, &records[if repeat { 0 } else { 2 }]);
        let error = other.open(&mut [0; 1000]).unwrap_err().to_string();
        assert!(error.contains("BadRecordMac"), "{error}");
    }
}

#[test]
fn the_end_is_announced_and_the_other_direction_goes_on() {
    let (mut one, mut other) = pair();
    one.seal(b"he", b"llo").unwrap();
    one.close();
    one.close();
    assert!(one.seal(&[], b"more").is_err());
    give(&mut other, &taken(&mut one));
    let mut buffer = [0; 10];
    assert_eq!(other.open(&mut buffer).unwrap(), Opened::Bytes(5));
    assert_eq!(other.open(&mut buffer).unwrap(), Opened::Closed);
    assert_eq!(other.open(&mut buffer).unwrap(), Opened::Closed);
    assert_eq!(carried(&mut other, &mut one, b"bye", 10), b"bye");
}

#[test]
fn an_end_that_was_not_announced_is_told() {
    let (mut one, mut other) = pair();
    one.seal(&[], &[1; 100]).unwrap();
    let bytes = taken(&mut one);
    give(&mut other, &bytes[..50]);
    assert_eq!(other.open(&mut [0; 200]).unwrap(), Opened::Wanting);
    let error = other.filled(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert!(error.to_string().contains("close_notify"), "{error}");
}

#[test]
fn what_is_neither_data_nor_meant_for_now_is_refused() {
    let sealed: [(ContentType, &[u8], &str); 6] = [
        (ContentType::Unknown(99), &[1], "among data"),
        (ContentType::Handshake, &[20, 0, 0, 0], "among data"),
        (ContentType::Handshake, &[24, 0, 0, 1, 2], "among data"),
        (ContentType::Handshake, &[4; 100], "DecodeError"),
        (ContentType::Alert, &[2, 80], "InternalError"),
        // A record of padding only, without a content type.
        (ContentType::Unknown(0), &[0; 20], "UnexpectedMessage"),
    ];
    for (kind, message, why) in sealed {
        for capacity in [1000, 1] {
            let (mut one, mut other) = pair();
            one.record(kind, message, &[]).unwrap();
            give(&mut other, &taken(&mut one));
            let error = other.open(&mut vec![0; capacity]).unwrap_err().to_string();
            assert!(error.contains(why), "{kind:?}: {error}");
        }
    }
    let plain: [&[u8]; 4] =
        [&[20, 3, 3, 0, 1, 1], &[22, 3, 3, 0, 40], &[23, 3, 3, 0, 16], &[23, 3, 3, 66, 0]];
    for bytes in plain {
        let (_, mut other) = pair();
        give(&mut other, bytes);
        assert_eq!(other.open(&mut [0; 10]).unwrap_err().kind(), ErrorKind::InvalidData, "{bytes:?}");
    }
}

#[test]
fn records_without_content_do_not_keep_anyone_busy() {
    let (mut one, mut other) = pair();
    for _ in 0..EMPTY {
        one.record(ContentType::ApplicationData, &[], &[]).unwrap();
        give(&mut other, &taken(&mut one));
        assert_eq!(other.open(&mut [0; 10]).unwrap(), Opened::Wanting);
    }
    one.renew().unwrap();
    give(&mut other, &taken(&mut one));
    assert!(other.open(&mut [0; 10]).is_err());
}

#[test]
fn keys_are_renewed_in_both_directions_and_no_byte_is_lost() {
    let (mut one, mut other) = pair();
    (one.rekey, other.rekey) = (3, 5);
    let bytes = numbered(700_000);
    for capacity in [200_000, 1000] {
        assert!(carried(&mut one, &mut other, &bytes, capacity) == bytes);
        assert!(carried(&mut other, &mut one, &bytes, capacity) == bytes);
    }
    assert!(one.sealing.next <= 3 && other.opening.next == one.sealing.next);
}

/// The connecting or accepting end, and rustls' own connection as the other end.
fn with_rustls(connects: bool) -> (Records, Connection) {
    let (one, other) = (Credentials::new().unwrap(), Credentials::new().unwrap());
    let client = one.client(other.fingerprint).unwrap();
    let server = other.server(one.fingerprint).unwrap();
    let name = Credentials::name().unwrap();
    let mut theirs: Connection = match connects {
        true => ServerConnection::new(server.clone()).unwrap().into(),
        false => ClientConnection::new(client.clone(), name.clone()).unwrap().into(),
    };
    let near = async |mut socket: TcpStream| match connects {
        true => shake(UnbufferedClientConnection::new(client, name).unwrap(), &mut socket).await.unwrap(),
        false => shake(UnbufferedServerConnection::new(server).unwrap(), &mut socket).await.unwrap(),
    };
    let far = async move |socket: TcpStream| {
        let mut socket = socket.into_std().unwrap();
        socket.set_nonblocking(false).unwrap();
        let whole = move || {
            while theirs.is_handshaking() {
                theirs.complete_io(&mut socket).unwrap();
            }
            theirs
        };
        tokio::task::spawn_blocking(whole).await.unwrap()
    };
    connected(near, far)
}

#[test]
fn rustls_understands_every_word_and_is_understood() {
    for connects in [true, false] {
        let (mut mine, mut theirs) = with_rustls(connects);
        mine.rekey = 4;
        for turn in 0..6 {
            let bytes = numbered(50_000);
            mine.seal(&[], &bytes).unwrap();
            let sealed = taken(&mut mine);
            let mut rest = &sealed[..];
            let mut got = Vec::new();
            while !rest.is_empty() {
                theirs.read_tls(&mut rest).unwrap();
                let there = theirs.process_new_packets().unwrap().plaintext_bytes_to_read();
                let from = got.len();
                got.resize(from + there, 0);
                theirs.reader().read_exact(&mut got[from..]).unwrap();
            }
            assert!(got == bytes, "turn {turn}");
            if turn % 2 == 1 {
                // Requests a new key from this side, too.
                theirs.refresh_traffic_keys().unwrap();
            }
            theirs.writer().write_all(&bytes).unwrap();
            let mut sealed = Vec::new();
            while theirs.wants_write() {
                theirs.write_tls(&mut sealed).unwrap();
            }
            give(&mut mine, &sealed);
            assert!(all(&mut mine, 7000) == bytes, "turn {turn}");
            assert_eq!(mine.asked, turn % 2 == 1);
        }
        mine.close();
        theirs.read_tls(&mut &taken(&mut mine)[..]).unwrap();
        let state = theirs.process_new_packets().unwrap();
        assert!(state.peer_has_closed());
        theirs.send_close_notify();
        let mut sealed = Vec::new();
        theirs.write_tls(&mut sealed).unwrap();
        give(&mut mine, &sealed);
        assert_eq!(mine.open(&mut [0; 10]).unwrap(), Opened::Closed);
    }
}
