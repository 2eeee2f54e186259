//! The messages of a rendezvous. Every message has a size that its reader can compute.
//!
//! ```text
//! hello    96 bytes   magic 8 | version 4 | kind 4 | epoch 4 | rank 4 | size 4 | port 4 | configuration 8 | job 8 | host 16 | ..
//! answer  160 bytes   magic 8 | kind 4 | code 4 | numbers 4 | 32 numbers 128 | ..     a table follows where the kind says so
//! table   16 + 40 n   world 16 | per rank: address 16, port 4, host 16, .. 4          n is the reader's own world size
//! ```

use super::failure::{NUMBERS, RendezvousFailure};
use super::{Peer, Table};
use crate::Rank;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub(super) const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"allfold\n";
pub(super) const HELLO: usize = 96;
pub(super) const ANSWER: usize = 160;
const PEER: usize = 40;

/// The kind of a calling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// A process that will be a rank.
    Rank,
    /// The launcher of one node. After this message, launchers speak a protocol of their own.
    Agent,
    /// A rank that reports a lost peer to the launcher: [`Hello::rank`] is the lost rank, in [`Hello::epoch`]. There is no answer.
    LossReport,
}

/// A caller's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The kind of the calling process.
    pub kind: PeerKind,
    /// The epoch of the world that the caller belongs to.
    pub epoch: u32,
    /// The caller's rank; for an agent of a launcher, its node.
    pub rank: Rank,
    /// The world size that the caller was given; for an agent, the number of nodes.
    pub size: u32,
    /// The port at which the caller listens; for an agent, its number of ranks.
    pub port: u32,
    /// A hash of the inputs that must be the same on all ranks.
    pub configuration: u64,
    /// Hash of the job's name.
    pub job: u64,
    /// The host's identity, equal for all ranks of one host.
    pub host: [u8; 16],
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        let kind = match self.kind {
            PeerKind::Rank => 1,
            PeerKind::Agent => 2,
            PeerKind::LossReport => 3,
        };
        bytes[..8].copy_from_slice(&MAGIC);
        let words = [VERSION, kind, self.epoch, self.rank.0, self.size, self.port];
        for (place, word) in bytes[8..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&self.configuration.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.job.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.host);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HELLO]) -> Result<Hello, RendezvousFailure> {
        if bytes[..8] != MAGIC {
            return Err(RendezvousFailure::NotOurs(
                "it does not begin with Allfold's rendezvous header".into(),
            ));
        }
        if word(bytes, 8) != VERSION {
            return Err(RendezvousFailure::Version { ours: VERSION, theirs: word(bytes, 8) });
        }
        let kind = match word(bytes, 12) {
            1 => PeerKind::Rank,
            2 => PeerKind::Agent,
            3 => PeerKind::LossReport,
            other => return Err(RendezvousFailure::NotOurs(format!("unknown kind of process: {other}"))),
        };
        Ok(Hello {
            kind,
            epoch: word(bytes, 16),
            rank: Rank(word(bytes, 20)),
            size: word(bytes, 24),
            port: word(bytes, 28),
            configuration: long(bytes, 32),
            job: long(bytes, 40),
            host: sixteen(bytes, 48),
        })
    }
}

/// The server's answer: a refusal, or the announcement that a table follows.
pub(super) fn encode_answer(refusal: Option<&RendezvousFailure>) -> [u8; ANSWER] {
    let mut bytes = [0; ANSWER];
    bytes[..8].copy_from_slice(&MAGIC);
    let (code, numbers) = refusal.map_or((0, Vec::new()), RendezvousFailure::parts);
    let words = [if refusal.is_some() { 2 } else { 1 }, code, numbers.len() as u32];
    for (place, word) in bytes[8..].chunks_exact_mut(4).zip(words.into_iter().chain(numbers)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

pub(super) fn decode_answer(bytes: &[u8; ANSWER]) -> Result<(), RendezvousFailure> {
    if bytes[..8] != MAGIC {
        return Err(RendezvousFailure::NotOurs(
            "its answer does not begin with Allfold's rendezvous header".into(),
        ));
    }
    let count = word(bytes, 16) as usize;
    match word(bytes, 8) {
        1 => Ok(()),
        2 if count <= NUMBERS => {
            let numbers: Vec<u32> = (0..count).map(|at| word(bytes, 20 + 4 * at)).collect();
            Err(RendezvousFailure::of(word(bytes, 12), &numbers))
        }
        _ => Err(RendezvousFailure::NotOurs("its answer is not one of Allfold's".into())),
    }
}

/// Bytes of a table of that many ranks.
pub(super) fn table_size(ranks: u32) -> usize {
    16 + PEER * ranks as usize
}

pub(super) fn encode_table(table: &Table) -> Vec<u8> {
    let mut bytes = table.world.to_vec();
    for peer in &table.peers {
        let ip = match peer.address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        bytes.extend(ip.octets());
        bytes.extend(u32::from(peer.address.port()).to_le_bytes());
        bytes.extend(peer.host);
        bytes.extend([0; 4]);
    }
    bytes
}

pub(super) fn decode_table(bytes: &[u8], epoch: u32) -> Table {
    let peers = (0..).zip(bytes[16..].chunks_exact(PEER)).map(|(rank, bytes)| {
        let ip = Ipv6Addr::from(sixteen(bytes, 0)).to_canonical();
        let address = SocketAddr::new(ip, word(bytes, 16) as u16);
        Peer { rank: Rank(rank), address, host: sixteen(bytes, 20) }
    });
    Table { world: sixteen(bytes, 0), epoch, peers: peers.collect() }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

fn sixteen(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut sixteen = [0; 16];
    sixteen.copy_from_slice(&bytes[at..at + 16]);
    sixteen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            kind: PeerKind::Rank,
            epoch: 3,
            rank: Rank(7),
            size: 9,
            port: 40_000,
            configuration: 0x0123_4567_89ab_cdef,
            job: 5,
            host: [9; 16],
        }
    }

    #[test]
    fn messages_survive_their_travel() {
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
        assert_eq!(decode_answer(&encode_answer(None)), Ok(()));
        let failure = RendezvousFailure::DuplicateRank { rank: Rank(3) };
        assert_eq!(decode_answer(&encode_answer(Some(&failure))), Err(failure));
        let addresses = ["127.0.0.1:4000", "[2001:db8::1]:65535"].map(|text| text.parse().unwrap());
        let peers =
            (0..).zip(addresses).map(|(r, address)| Peer { rank: Rank(r), address, host: [r as u8; 16] });
        let table = Table { world: [1; 16], epoch: 2, peers: peers.collect() };
        let bytes = encode_table(&table);
        assert_eq!(bytes.len(), table_size(2));
        assert_eq!(decode_table(&bytes, 2), table);
    }

    #[test]
    fn every_flipped_bit_of_the_magic_and_the_version_is_noticed() {
        for bit in 0..96 {
            let mut bytes = hello().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Hello::decode(&bytes).is_err(), "bit {bit}");
        }
        let mut bytes = encode_answer(None);
        bytes[16] = 255;
        bytes[8] = 2;
        assert!(matches!(decode_answer(&bytes), Err(RendezvousFailure::NotOurs(_))));
    }
}
