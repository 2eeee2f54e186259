//! The handshake: two sides prove to each other that they hold the job's secret before either reads anything else.
//!
//! ```text
//! connector                                   acceptor
//!   hello      version, mode, nonce, certificate  -->
//!           <-- challenge  version, mode, nonce, certificate
//!   proof      HMAC(secret, hello, challenge, claims), claims  -->      verified first; then the claims are read
//!           <-- welcome    HMAC(secret, all of that, verdict), verdict
//! ```
//!
//! HMAC-SHA-256 (RFC 2104) over the whole transcript, each direction with a label of its own; nonces of 32 random bytes make a recording
//! useless. The claims (job, epoch, world size, ranks, purpose) are accepted only under the proof. The certificates' SHA-256 are part of
//! the transcript, so the TLS that follows is bound to the secret. Every message has a fixed size below 256 bytes, and this module does
//! no I/O.

use super::crypto;
use super::security::Security;
use crate::Rank;
use crate::SegmentHandle;

/// The version of the wire format after the handshake.
const VERSION: u8 = crate::format::VERSION;
const MAGIC: [u8; 4] = *b"ALFH";
/// Bytes of a hello and of a challenge.
pub const OPENING: usize = 4 + 4 + 32 + 32;
/// The size of a proof in bytes.
pub const PROOF: usize = PeerIdentity::BYTES + 32;
/// The size of a welcome in bytes.
pub const WELCOME: usize = 16 + 32;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Heartbeats and events of groups; one connection between any two ranks.
    Control = 1,
    /// The connection carries messages of the collectives of one group.
    Data = 2,
    /// The connection carries point-to-point messages of one group.
    PointToPoint = 3,
    /// The connection is to the rendezvous server.
    Rendezvous = 4,
}

/// A connector's claims: its own rank, the rank that it connects to, and the purpose of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The purpose of the connection.
    pub purpose: Purpose,
    /// The identity of the job.
    pub job: [u8; 16],
    /// The epoch of the job: how often it was restarted.
    pub epoch: u32,
    /// The world size.
    pub size: u32,
    /// The connector's rank in the world.
    pub rank: Rank,
    /// The acceptor's rank in the world.
    pub peer: Rank,
    /// The group that the connection is for; 0 is the world.
    pub group: u64,
    /// The connector's shared memory, if both sides may be on one host.
    pub memory: SegmentHandle,
}

impl PeerIdentity {
    const BYTES: usize = 8 + 16 + 4 * 4 + 8 + SegmentHandle::BYTES;

    fn encode(&self) -> [u8; PeerIdentity::BYTES] {
        let mut bytes = [0; PeerIdentity::BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &[self.purpose as u8]);
        put(8, &self.job);
        put(24, &self.epoch.to_le_bytes());
        put(28, &self.size.to_le_bytes());
        put(32, &self.rank.0.to_le_bytes());
        put(36, &self.peer.0.to_le_bytes());
        put(40, &self.group.to_le_bytes());
        for (at, word) in (48..).step_by(8).zip(self.memory.words()) {
            put(at, &word.to_le_bytes());
        }
        bytes
    }

    /// The identity in a proof that has not been verified.
    pub fn peek(proof: &[u8; PROOF]) -> Option<PeerIdentity> {
        proof.first_chunk().and_then(PeerIdentity::decode)
    }

    fn decode(bytes: &[u8; PeerIdentity::BYTES]) -> Option<PeerIdentity> {
        use Purpose::{Control, Data, PointToPoint, Rendezvous};
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let purpose = [Control, Data, PointToPoint, Rendezvous].into_iter().find(|p| *p as u8 == bytes[0])?;
        let mut job = [0; 16];
        job.copy_from_slice(&bytes[8..24]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (rank, peer, group) = (Rank(word(32)), Rank(word(36)), long(40));
        let memory = SegmentHandle::read(&[48, 56, 64, 72].map(|at| long(at) as i64))?;
        Some(PeerIdentity { purpose, job, epoch: word(24), size: word(28), rank, peer, group, memory })
    }
}

/// The acceptor's answer to a connector's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeAnswer {
    /// The connection is accepted.
    Welcome,
    /// Accepted; messages are sent through the shared memory that the connector offers.
    SharedMemoryLink,
    /// The acceptor belongs to another job; these are the first eight bytes of that job's identity.
    Job(u64),
    /// The acceptor is in this other epoch.
    Epoch(u32),
    /// The acceptor has this other world size.
    Size(u32),
    /// The acceptor is another rank.
    Peer(u32),
    /// The connector's rank does not exist, is not above the acceptor's, or has such a control connection already. For a connection with
    /// another purpose: the connector has no control connection yet.
    Duplicate(u32),
    /// The acceptor is shutting down, or does not accept connections of this purpose.
    Gone,
}

impl HandshakeAnswer {
    fn encode(self) -> [u8; 16] {
        let (tag, value) = match self {
            HandshakeAnswer::Welcome => (0u8, 0),
            HandshakeAnswer::Job(value) => (1, value),
            HandshakeAnswer::Epoch(value) => (2, value.into()),
            HandshakeAnswer::Size(value) => (3, value.into()),
            HandshakeAnswer::Peer(value) => (4, value.into()),
            HandshakeAnswer::Duplicate(value) => (5, value.into()),
            HandshakeAnswer::Gone => (6, 0),
            HandshakeAnswer::SharedMemoryLink => (7, 0),
        };
        let mut bytes = [0; 16];
        bytes[0] = tag;
        bytes[8..].copy_from_slice(&u64::to_le_bytes(value));
        bytes
    }

    fn decode(bytes: &[u8; 16]) -> Option<HandshakeAnswer> {
        let mut value = [0; 8];
        value.copy_from_slice(&bytes[8..]);
        let long = u64::from_le_bytes(value);
        let value = long as u32;
        Some(match bytes[0] {
            0 => HandshakeAnswer::Welcome,
            1 => HandshakeAnswer::Job(long),
            2 => HandshakeAnswer::Epoch(value),
            3 => HandshakeAnswer::Size(value),
            4 => HandshakeAnswer::Peer(value),
            5 => HandshakeAnswer::Duplicate(value),
            6 => HandshakeAnswer::Gone,
            7 => HandshakeAnswer::SharedMemoryLink,
            _ => return None,
        })
    }

    /// Whether the acceptor accepts the connection.
    pub fn is_welcome(self) -> bool {
        matches!(self, HandshakeAnswer::Welcome | HandshakeAnswer::SharedMemoryLink)
    }

    /// The answer as one line for the connector's user.
    pub fn explain(&self, identity: &PeerIdentity) -> String {
        let peer = identity.peer;
        match self {
            HandshakeAnswer::Welcome | HandshakeAnswer::SharedMemoryLink => "it is welcome".into(),
            HandshakeAnswer::Job(_) => format!("rank {peer}'s address belongs to another job"),
            HandshakeAnswer::Epoch(theirs) => {
                format!("rank {peer} is in epoch {theirs}, and this rank in epoch {}", identity.epoch)
            }
            HandshakeAnswer::Size(theirs) => {
                format!("rank {peer}'s world size is {theirs}, and this rank's is {}", identity.size)
            }
            HandshakeAnswer::Peer(theirs) => format!("rank {peer}'s address is that of rank {theirs}"),
            HandshakeAnswer::Duplicate(rank) => format!("rank {rank} is connected already"),
            HandshakeAnswer::Gone => format!("rank {peer} has left"),
        }
    }
}

/// The messages so far, which the proofs cover: first the openings of both sides.
struct Transcript {
    /// Shares the secret: a copy of its bytes would leave more copies wherever this value is moved.
    security: Security,
    said: Vec<u8>,
}

impl Transcript {
    fn new(security: &Security, hello: &[u8; OPENING], challenge: &[u8; OPENING]) -> Transcript {
        Transcript { security: security.clone(), said: [&hello[..], challenge].concat() }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.said.extend(bytes);
    }

    fn tag(&self, label: &str) -> [u8; 32] {
        crypto::tag(self.security.key(), [label.as_bytes(), &self.said])
    }

    /// Whether the tag is valid. The comparison takes constant time.
    fn holds(&self, label: &str, tag: &[u8]) -> bool {
        crypto::holds(self.security.key(), [label.as_bytes(), &self.said], tag)
    }
}

const CONNECTOR: &str = "allfold connector proves";
const ACCEPTOR: &str = "allfold acceptor proves";

/// A hello or a challenge. Both have this form; the proofs cover both, the hello first.
pub fn opening(security: &Security, nonce: &[u8; 32], certificate: &[u8; 32]) -> [u8; OPENING] {
    let mut bytes = [0; OPENING];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    bytes[5] = security.number();
    bytes[8..40].copy_from_slice(nonce);
    bytes[40..].copy_from_slice(certificate);
    bytes
}

/// Reads the other side's opening. Returns the fingerprint of its certificate.
///
/// # Errors
/// The other side is another program, version or mode.
pub fn read_opening(
    bytes: &[u8; OPENING],
    security: &Security,
) -> std::result::Result<[u8; 32], IncompatiblePeer> {
    if bytes[..4] != MAGIC {
        return Err(IncompatiblePeer::Program);
    }
    if bytes[4] != VERSION {
        return Err(IncompatiblePeer::Version { ours: VERSION, theirs: bytes[4] });
    }
    if bytes[5] != security.number() || bytes[6..8] != [0; 2] {
        let names = ["loopback", "tls", "trusted-fabric", "insecure-plaintext"];
        let theirs = names.get(usize::from(bytes[5])).unwrap_or(&"unknown");
        return Err(IncompatiblePeer::Mode { ours: security.name(), theirs });
    }
    let mut certificate = [0; 32];
    certificate.copy_from_slice(&bytes[40..]);
    Ok(certificate)
}

/// The connector's side, once both openings are known.
pub struct Connector {
    transcript: Transcript,
    identity: PeerIdentity,
}

impl Connector {
    /// Begins with both openings. Returns the connector and the proof to send.
    pub fn new(
        security: &Security,
        hello: &[u8; OPENING],
        challenge: &[u8; OPENING],
        identity: PeerIdentity,
    ) -> (Connector, [u8; PROOF]) {
        let mut transcript = Transcript::new(security, hello, challenge);
        let said = identity.encode();
        transcript.say(&said);
        let tag = transcript.tag(CONNECTOR);
        let mut proof = [0; PROOF];
        proof[..PeerIdentity::BYTES].copy_from_slice(&said);
        proof[PeerIdentity::BYTES..].copy_from_slice(&tag);
        transcript.say(&tag);
        (Connector { transcript, identity }, proof)
    }

    /// Verifies the acceptor's welcome. Returns its answer if that accepts the connection.
    ///
    /// # Errors
    /// The acceptor does not hold the secret, or refuses the connection.
    pub fn finish(mut self, welcome: &[u8; WELCOME]) -> std::result::Result<HandshakeAnswer, Refusal> {
        let (verdict, tag) = welcome.split_at(16);
        self.transcript.say(verdict);
        if !self.transcript.holds(ACCEPTOR, tag) {
            return Err(Refusal::Secret);
        }
        let verdict = verdict.first_chunk().and_then(HandshakeAnswer::decode).ok_or(Refusal::Secret)?;
        match verdict {
            welcome if welcome.is_welcome() => Ok(welcome),
            other => Err(Refusal::Answer(other, other.explain(&self.identity))),
        }
    }
}

/// Why a connection was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The other side does not hold this secret.
    Secret,
    /// The other side holds the secret and refuses the connection.
    Answer(HandshakeAnswer, String),
    /// The other side is incompatible.
    IncompatiblePeer(IncompatiblePeer),
    /// The connection broke, or took too long.
    Broken(String),
    /// This side's security mode forbids a connection to that address.
    Forbidden(String),
}

/// Why the other side is incompatible, as its first bytes show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IncompatiblePeer {
    /// The other side is not Allfold.
    #[error("the other side does not use Allfold's handshake")]
    Program,
    /// The other side has another version of the wire format.
    #[error("it speaks version {theirs} of the wire format, and this side version {ours}")]
    Version {
        /// This side's version.
        ours: u8,
        /// The other side's version.
        theirs: u8,
    },
    /// The other side has another [`Security`].
    #[error("its security mode is {theirs}, and this side's is {ours}")]
    Mode {
        /// This side's mode.
        ours: &'static str,
        /// The other side's mode.
        theirs: &'static str,
    },
}

/// The acceptor's side, once both openings are known.
pub struct Acceptor {
    transcript: Transcript,
}

impl Acceptor {
    /// Begins the handshake from both sides' first messages.
    pub fn new(security: &Security, hello: &[u8; OPENING], challenge: &[u8; OPENING]) -> Acceptor {
        Acceptor { transcript: Transcript::new(security, hello, challenge) }
    }

    /// Verifies the connector's proof, and only then reads its identity. `None` if the connector does not hold the secret or its
    /// identity is impossible.
    pub fn verify(&mut self, proof: &[u8; PROOF]) -> Option<PeerIdentity> {
        let (said, tag) = proof.split_at(PeerIdentity::BYTES);
        self.transcript.say(said);
        if !self.transcript.holds(CONNECTOR, tag) {
            return None;
        }
        self.transcript.say(tag);
        said.first_chunk().and_then(PeerIdentity::decode)
    }

    /// The acceptor's last message, with its answer.
    pub fn welcome(mut self, verdict: HandshakeAnswer) -> [u8; WELCOME] {
        let said = verdict.encode();
        self.transcript.say(&said);
        let mut bytes = [0; WELCOME];
        bytes[..16].copy_from_slice(&said);
        bytes[16..].copy_from_slice(&self.transcript.tag(ACCEPTOR));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::crypto::random;
    use crate::Secret;

    use super::*;
    use proptest::prelude::*;

    fn identity() -> PeerIdentity {
        PeerIdentity {
            purpose: Purpose::Data,
            job: [7; 16],
            epoch: 2,
            size: 4,
            rank: Rank(3),
            peer: Rank(1),
            group: 1 << 50,
            memory: SegmentHandle::read(&[-5, 77, 4, i64::MIN]).unwrap(),
        }
    }

    /// A whole handshake. Returns the identity that the acceptor read, and the connector's result.
    fn shake(
        ours: &Security,
        theirs: &Security,
        change: impl Fn(&mut [u8; PROOF]),
        answer: impl Fn(&mut [u8; WELCOME]),
    ) -> (Option<PeerIdentity>, std::result::Result<HandshakeAnswer, Refusal>) {
        let hello = opening(ours, &random().unwrap(), &[1; 32]);
        let challenge = opening(theirs, &random().unwrap(), &[2; 32]);
        let (connector, mut proof) = Connector::new(ours, &hello, &challenge, identity());
        change(&mut proof);
        let mut acceptor = Acceptor::new(theirs, &hello, &challenge);
        let read = acceptor.verify(&proof);
        let mut welcome = acceptor.welcome(HandshakeAnswer::Welcome);
        answer(&mut welcome);
        (read, connector.finish(&welcome))
    }

    fn tls(byte: u8) -> Security {
        Security::Tls(Secret::new([byte; 32]))
    }

    #[test]
    fn two_sides_with_one_secret_believe_each_other() {
        assert_eq!(shake(&tls(1), &tls(1), |_| {}, |_| {}), (Some(identity()), Ok(HandshakeAnswer::Welcome)));
    }

    #[test]
    fn a_wrong_secret_proves_nothing_to_either_side() {
        assert_eq!(shake(&tls(1), &tls(2), |_| {}, |_| {}), (None, Err(Refusal::Secret)));
    }

    #[test]
    fn every_flipped_bit_of_a_proof_or_a_welcome_is_found() {
        for bit in 0..PROOF * 8 {
            let (read, _) = shake(&tls(1), &tls(1), |proof| proof[bit / 8] ^= 1 << (bit % 8), |_| {});
            assert_eq!(read, None, "bit {bit} of the proof");
        }
        for bit in 0..WELCOME * 8 {
            let (_, result) = shake(&tls(1), &tls(1), |_| {}, |answer| answer[bit / 8] ^= 1 << (bit % 8));
            assert_eq!(result, Err(Refusal::Secret), "bit {bit} of the welcome");
        }
    }

    #[test]
    fn a_recorded_proof_is_worth_nothing_against_a_fresh_nonce() {
        let security = tls(1);
        let hello = opening(&security, &[9; 32], &[1; 32]);
        let recorded = opening(&security, &random().unwrap(), &[2; 32]);
        let (_, proof) = Connector::new(&security, &hello, &recorded, identity());
        assert_eq!(Acceptor::new(&security, &hello, &recorded).verify(&proof), Some(identity()));
        let fresh = opening(&security, &random().unwrap(), &[2; 32]);
        assert_eq!(Acceptor::new(&security, &hello, &fresh).verify(&proof), None);
    }

    #[test]
    fn a_certificate_swapped_on_the_way_spoils_the_proof() {
        let security = tls(1);
        let hello = opening(&security, &[9; 32], &[1; 32]);
        let (sent, swapped) =
            (opening(&security, &[8; 32], &[2; 32]), opening(&security, &[8; 32], &[3; 32]));
        let (_, proof) = Connector::new(&security, &hello, &swapped, identity());
        assert_eq!(Acceptor::new(&security, &hello, &sent).verify(&proof), None);
    }

    #[test]
    fn an_opening_of_another_version_or_mode_says_which() {
        let good = opening(&tls(1), &[0; 32], &[5; 32]);
        assert_eq!(read_opening(&good, &tls(9)), Ok([5; 32]));
        let with = |at: usize, byte: u8| {
            let mut bad = good;
            bad[at] = byte;
            read_opening(&bad, &tls(1)).unwrap_err().to_string()
        };
        assert!(with(0, b'G').contains("does not use"));
        assert!(with(4, 9).contains("version 9"));
        assert!(with(5, 0).contains("security mode is loopback"));
        assert!(with(5, 77).contains("unknown"));
    }

    #[test]
    fn no_message_exceeds_the_bytes_read_before_the_proof() {
        assert!([OPENING, PROOF, WELCOME].into_iter().all(|bytes| bytes <= 256));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused(hello in prop::collection::vec(any::<u8>(), OPENING), proof in prop::collection::vec(any::<u8>(), PROOF)) {
            let hello: [u8; OPENING] = hello.try_into().unwrap();
            let proof: [u8; PROOF] = proof.try_into().unwrap();
            let _ = read_opening(&hello, &tls(1));
            let challenge = opening(&tls(1), &[8; 32], &[2; 32]);
            prop_assert_eq!(Acceptor::new(&tls(1), &hello, &challenge).verify(&proof), None);
        }
    }
}
