//! The header of 64 bytes in front of every frame between two ranks.
//!
//! ```text
//!  0        4  5    6      8     12     16         24      28     32    36      40           56       60     64
//!  | magic  |v |kind|flags | comm | epoch| sequence | round | lane | at  | bytes| fingerprint | payload| header|
//!                                                                                             | CRC32C | CRC32C|
//! ```
//!
//! All fields are little-endian. A message is cut into fragments of [`FRAGMENT`] bytes; `at` counts them, and a flag marks the last. The
//! receiver derives each field from its own schedule and compares: no length in a header sizes an allocation beyond the limit of the
//! frame's kind.

use crate::backends::codec::CONTROL;
use crate::contract::Fingerprint;
use allfold_net::VERSION;
pub use allfold_net::{FRAGMENT, HEADER};
use crc_fast::{CrcAlgorithm, checksum};

const MAGIC: [u8; 4] = *b"ALFD";
const LAST: u16 = 1;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A fragment of a message of an operation.
    Data = 1,
    /// A heartbeat: the sender still runs.
    Beat = 2,
    /// The sender has entered an operation and waits.
    Enter = 3,
    /// The sender leaves a group.
    Leave = 4,
    /// A group has failed.
    Fail = 5,
    /// The sender will send nothing more, or nothing more about the group that the frame names.
    Bye = 6,
    /// Survivors of a failed group agree on the list of survivors.
    Shrink = 7,
    /// A fragment of a tagged message.
    Message = 8,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Data,
        Kind::Beat,
        Kind::Enter,
        Kind::Leave,
        Kind::Fail,
        Kind::Bye,
        Kind::Shrink,
        Kind::Message,
    ];

    /// The largest payload of a frame of this kind, in bytes.
    fn limit(self) -> usize {
        match self {
            Kind::Data | Kind::Message => FRAGMENT,
            _ => CONTROL,
        }
    }
}

/// The header of a frame, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of the frame.
    pub kind: Kind,
    /// Whether the fragment is the last one of its message.
    pub last: bool,
    /// The number of the group, folded to 32 bits. The handshake of the connection carried the whole number.
    pub comm: u32,
    /// The epoch of the sender's world.
    pub epoch: u32,
    /// The operation's number in its group.
    pub sequence: u64,
    /// The round of the sender's step.
    pub round: u32,
    /// The lane of the message.
    pub lane: u32,
    /// The number of the fragment in its message, from 0.
    pub at: u32,
    /// The number of payload bytes that follow the header.
    pub bytes: u32,
    /// The fingerprint of the sender's call.
    pub fingerprint: Fingerprint,
    /// CRC32C of the payload; 0 for messages over TLS, which authenticates its records, and through shared memory.
    pub payload_crc: u32,
}

/// CRC32C (Castagnoli), as in iSCSI (RFC 3720, appendix B.4).
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A header with its own checksum in its last four bytes.
pub fn sealed(mut header: [u8; HEADER]) -> [u8; HEADER] {
    let crc = crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    header
}

impl FrameHeader {
    /// The header of a control frame with this payload.
    pub fn control(kind: Kind, epoch: u32, payload: &[u8]) -> FrameHeader {
        FrameHeader {
            kind,
            last: true,
            comm: 0,
            epoch,
            sequence: 0,
            round: 0,
            lane: 0,
            at: 0,
            bytes: payload.len() as u32,
            fingerprint: Fingerprint::default(),
            payload_crc: crc32c(payload),
        }
    }

    /// Encodes the header into its 64 bytes.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(4, &[VERSION, self.kind as u8]);
        put(6, &(if self.last { LAST } else { 0 }).to_le_bytes());
        put(8, &self.comm.to_le_bytes());
        put(12, &self.epoch.to_le_bytes());
        put(16, &self.sequence.to_le_bytes());
        put(24, &self.round.to_le_bytes());
        put(28, &self.lane.to_le_bytes());
        put(32, &self.at.to_le_bytes());
        put(36, &self.bytes.to_le_bytes());
        put(40, &self.fingerprint.0);
        put(56, &self.payload_crc.to_le_bytes());
        sealed(bytes)
    }

    /// Decodes a header. If anything is wrong, no field is used.
    ///
    /// # Errors
    /// What is wrong, as text.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<FrameHeader, String> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != MAGIC {
            return Err("it is not an Allfold frame: its first four bytes are not ALFD".into());
        }
        if word(60) != crc32c(&bytes[..60]) {
            return Err("its header's checksum is wrong".into());
        }
        if bytes[4] != VERSION {
            return Err(format!("its version is {}, not {VERSION}: run one build everywhere", bytes[4]));
        }
        let Some(kind) = Kind::ALL.into_iter().find(|kind| *kind as u8 == bytes[5]) else {
            return Err(format!("its kind {} is unknown", bytes[5]));
        };
        let flags = u16::from_le_bytes([bytes[6], bytes[7]]);
        if flags & !LAST != 0 {
            return Err(format!("its flags {flags:#x} are unknown"));
        }
        let mut fingerprint = Fingerprint::default();
        fingerprint.0.copy_from_slice(&bytes[40..56]);
        let header = FrameHeader {
            kind,
            last: flags & LAST != 0,
            comm: word(8),
            epoch: word(12),
            sequence: u64::from(word(16)) | u64::from(word(20)) << 32,
            round: word(24),
            lane: word(28),
            at: word(32),
            bytes: word(36),
            fingerprint,
            payload_crc: word(56),
        };
        let cap = kind.limit();
        if header.bytes as usize > cap {
            return Err(format!(
                "it announces {} bytes; a frame of its kind has at most {cap}",
                header.bytes
            ));
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> FrameHeader {
        FrameHeader {
            kind: Kind::Data,
            last: true,
            comm: 7,
            epoch: 3,
            sequence: 1 << 40,
            round: 9,
            lane: 2,
            at: 1,
            bytes: 4096,
            fingerprint: Fingerprint([0xa5; 16]),
            payload_crc: 0xdead_beef,
        }
    }

    #[test]
    fn the_checksum_is_the_one_of_the_standard() {
        // RFC 3720, appendix B.4: 32 bytes of zeros; and the check value of "123456789".
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_header_comes_back_as_it_went() {
        assert_eq!(FrameHeader::decode(&sample().encode()), Ok(sample()));
        for kind in Kind::ALL {
            let control = FrameHeader { kind, bytes: 16, ..sample() };
            assert_eq!(FrameHeader::decode(&control.encode()), Ok(control));
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_found() {
        let good = sample().encode();
        for bit in 0..HEADER * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_length_beyond_the_cap_is_refused_even_with_a_right_checksum() {
        for bytes in [FRAGMENT as u32 + 1, 1 << 31, u32::MAX] {
            let error = FrameHeader::decode(&FrameHeader { bytes, ..sample() }.encode()).unwrap_err();
            assert!(error.contains("announces"), "{error}");
        }
        let control = FrameHeader { kind: Kind::Fail, bytes: CONTROL as u32 + 1, ..sample() };
        assert!(FrameHeader::decode(&control.encode()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_mean_themselves(mut bytes in prop::array::uniform32(any::<u8>()), mend in any::<bool>()) {
            let mut header = [0u8; HEADER];
            header[..32].copy_from_slice(&bytes);
            bytes.reverse();
            header[32..].copy_from_slice(&bytes);
            if mend {
                header[..4].copy_from_slice(&MAGIC);
                header[4] = VERSION;
                header[5] = header[5] % Kind::ALL.len() as u8 + 1;
                header[6] &= 1;
                header[7] = 0;
                let crc = crc32c(&header[..60]);
                header[60..].copy_from_slice(&crc.to_le_bytes());
            }
            if let Ok(decoded) = FrameHeader::decode(&header) {
                prop_assert_eq!(decoded.encode(), header);
            }
        }
    }
}
