//! A call in 16 bytes. The receiver of a frame compares the fingerprint with its own call, and decodes from it what the sender called.
//!
//! ```text
//!  0         1    2      4        6          8        16
//!  |operation|type|root  |schedule| segments | count  |
//!            |op  |      |  hash  |          |        |
//! ```

use crate::{Call, Collective, DType, Operation, Rank, ReduceOp, registry};
use allfold_sim::fnv1a;

/// A call without its sequence number, which is sent in a separate field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 16]);

const NO_ROOT: u16 = u16::MAX;
const NO_OP: u8 = 0xf;
const SPLIT: u8 = 0x40;
const POINT_TO_POINT: u8 = 0x41;

impl Fingerprint {
    /// The fingerprint of a call.
    pub fn of(call: &Call) -> Fingerprint {
        let operation = match call.operation {
            Operation::Collective(collective) => collective as u8,
            Operation::Split => SPLIT,
            Operation::PointToPoint => POINT_TO_POINT,
        };
        let op = call.op.map_or(NO_OP, |op| op as u8);
        let root = call.root.map_or(NO_ROOT, |root| u16::try_from(root.0).unwrap_or(NO_ROOT - 1));
        let segments = u16::try_from(call.segments).unwrap_or(u16::MAX);
        let mut bytes = [0; 16];
        bytes[0] = operation;
        bytes[1] = call.dtype as u8 | op << 4;
        bytes[2..4].copy_from_slice(&root.to_le_bytes());
        bytes[4..6].copy_from_slice(&schedule(call.algorithm, call.segments).to_le_bytes());
        bytes[6..8].copy_from_slice(&segments.to_le_bytes());
        bytes[8..].copy_from_slice(&call.count.to_le_bytes());
        Fingerprint(bytes)
    }

    /// The call with this fingerprint; `None` if no call has it. The algorithm's name is found by its hash, among the names of
    /// the registry and `known`: a program's own algorithm need not be in the registry.
    pub fn call(&self, sequence: u64, known: &'static str) -> Option<Call> {
        let bytes = &self.0;
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let operation = match bytes[0] {
            SPLIT => Operation::Split,
            POINT_TO_POINT => Operation::PointToPoint,
            number => Operation::Collective(*Collective::ALL.get(usize::from(number))?),
        };
        let dtype = *DType::ALL.get(usize::from(bytes[1] & 0xf))?;
        let op = match bytes[1] >> 4 {
            NO_OP => None,
            number => Some(*ReduceOp::ALL.get(usize::from(number))?),
        };
        let root = Some(half(2)).filter(|root| *root != NO_ROOT).map(|root| Rank(u32::from(root)));
        let segments = u32::from(half(6));
        let names = ["", known].into_iter().chain(registry::all().map(|row| row.name));
        let algorithm = names
            .into_iter()
            .find(|name| schedule(name, segments) == half(4))
            .unwrap_or("an algorithm of its own");
        let mut count = [0; 8];
        count.copy_from_slice(&bytes[8..]);
        let count = u64::from_le_bytes(count);
        Some(Call { operation, sequence, count, dtype, op, root, algorithm, segments })
    }
}

impl Call {
    /// A label of the call without its number, equal on all ranks that run the same release of Allfold. Ranks that share memory
    /// compare labels instead of calls.
    pub(crate) fn label(&self) -> u64 {
        let root = self.root.map_or([u8::MAX; 4], |root| root.0.to_le_bytes());
        let words =
            [&Fingerprint::of(self).0[..], &root, &self.segments.to_le_bytes(), self.algorithm.as_bytes()];
        fnv1a(&words.concat())
    }
}

/// A 16-bit hash of an algorithm's name and the number of segments: FNV-1a, folded.
fn schedule(name: &str, segments: u32) -> u16 {
    let word = name
        .bytes()
        .chain(segments.to_le_bytes())
        .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (word >> 16) as u16 ^ word as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_of_the_table_comes_back() {
        for row in registry::ALGORITHMS {
            for dtype in DType::ALL {
                for op in ReduceOp::ALL.into_iter().map(Some).chain([None]) {
                    let call = Call {
                        operation: Operation::Collective(row.collective),
                        sequence: 12,
                        count: u64::MAX / 3,
                        dtype,
                        op,
                        root: op.map(|_| Rank(400)),
                        algorithm: row.name,
                        segments: 77,
                    };
                    assert_eq!(Fingerprint::of(&call).call(12, ""), Some(call));
                }
            }
        }
    }

    #[test]
    fn the_names_of_the_table_hash_apart() {
        let mut names: Vec<&str> = registry::ALGORITHMS.iter().map(|row| row.name).collect();
        names.sort();
        names.dedup();
        let mut hashes: Vec<u16> = names.iter().map(|name| schedule(name, 1)).collect();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), names.len());
    }

    #[test]
    fn labels_of_calls_are_the_same_in_every_build() {
        let call = |count, root: Option<u32>, algorithm| Call {
            operation: Operation::Collective(Collective::Broadcast),
            sequence: 12,
            count,
            dtype: DType::F32,
            op: None,
            root: root.map(Rank),
            algorithm,
            segments: 3,
        };
        let calls = [
            call(10, None, "ring"),
            call(11, None, "ring"),
            call(10, Some(0), "ring"),
            // The fingerprint has too few bits for a root of this size.
            call(10, Some(70_000), "ring"),
            call(10, Some(70_001), "ring"),
            call(10, None, "direct"),
        ];
        let labels: Vec<u64> = calls.iter().map(Call::label).collect();
        assert_eq!(labels[0], 2_944_502_650_801_700_769);
        assert_eq!(labels.iter().collect::<std::collections::BTreeSet<_>>().len(), calls.len());
        // The label does not contain the sequence number, which is added when the call is run.
        assert_eq!(Call { sequence: 13, ..calls[0].clone() }.label(), labels[0]);
    }

    #[test]
    fn impossible_fingerprints_are_refused() {
        for (at, wrong) in [(0, 0x3f), (0, 0xff), (1, 0x0e), (1, 0xe0)] {
            let mut bytes = [0; 16];
            bytes[at] = wrong;
            assert_eq!(Fingerprint(bytes).call(0, ""), None);
        }
    }
}
