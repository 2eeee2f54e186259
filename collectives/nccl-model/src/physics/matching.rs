//! What a host does for every message, where it matches messages to buffers itself and the NIC does not.
//!
//! libfabric's provider for Slingshot (`fi_cxi(7)`, `FI_CXI_RX_MATCH_MODE=software`) takes messages, or the first part of
//! long ones, into buffers of its own, and copies them once they are matched. To the memory of a GPU it stores up to 4 KiB
//! by itself (`FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD`) and calls the driver for more, which takes microseconds, and longer for
//! more bytes: its buffers are pageable.
//!
//! ```text
//! ring of n ranks        2 (n - 1) messages a channel and NIC    a NIC's host copies one after the other,
//! all else               one up, one down                        and the call takes no less than that
//! ```
//!
//! NCCL sends LL in slots of 64 KiB, flags included; of Simple a ring's chunks of up to 2 MiB in two slices of 32 KiB at
//! least, and all else 512 KiB at a time.

use super::super::{NcclAlgorithm, Protocol};
use super::parameters::{MATCH, MATCH_RATE, Parameters};
use super::{ModelTerm, PhysicsCase, Terms};
use allfold_schedules::Collective;

/// The largest message, in bytes, that is stored without the driver: the default of libfabric's
/// `FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD`.
pub const STORED: f64 = 4096.0;
/// The bytes of a longer message that come with its header; the others are fetched: libfabric's `FI_CXI_RDZV_THRESHOLD`.
const WHOLE: f64 = 16_384.0;
/// Bytes of a slot of LL, and of LL128.
const SLOTS: (f64, f64) = (65_536.0, 614_400.0);
/// Bytes of a slice of a ring's Simple chunk: at least, at most.
const SLICE: (f64, f64) = (32_768.0, 1_048_576.0);
/// Bytes of a chunk of Simple in all other collectives.
const CHUNK: f64 = 524_288.0;

/// Microseconds that the host of one NIC copies; 0 where NICs match.
pub(super) fn matching(case: &PhysicsCase, parameters: &Parameters, terms: Terms) -> f64 {
    let Some(stored) = case.host_stores.filter(|_| case.nodes > 1.0 && terms.has(ModelTerm::HostMatching))
    else {
        return 0.0;
    };
    let channels = (case.used / case.nics.max(1.0)).ceil();
    let copy = |bytes: f64| match bytes > stored {
        true => parameters.at(MATCH) + bytes.min(WHOLE) / 1e3 / parameters.at(MATCH_RATE),
        false => 0.0,
    };
    channels * messages(case).iter().map(|&(count, bytes)| count * copy(bytes)).sum::<f64>()
}

/// How many messages of which size reach a node on one channel.
fn messages(case: &PhysicsCase) -> [(f64, f64); 2] {
    let ring = case.algorithm == NcclAlgorithm::Ring;
    let (steps, chunk) = match (ring, case.collective) {
        (true, Collective::AllReduce) => (2.0 * (case.ranks - 1.0), case.bytes / case.ranks / case.used),
        (true, Collective::AllGather | Collective::ReduceScatter) => {
            (case.ranks - 1.0, case.bytes / case.ranks / case.used)
        }
        (true, _) => (1.0, case.bytes / case.used),
        (false, _) => (2.0, case.bytes / case.used),
    };
    let cut = |wire: f64, most: f64| {
        let pieces = (wire / most).ceil().max(1.0);
        [(steps * pieces, wire / pieces), (0.0, 0.0)]
    };
    match case.protocol {
        Protocol::Ll => cut(2.0 * chunk, SLOTS.0),
        Protocol::Ll128 => cut(chunk * 16.0 / 15.0, SLOTS.1),
        Protocol::Simple if ring && chunk <= 2.0 * SLICE.1 => {
            let first = (chunk / 2.0).max(SLICE.0).min(chunk);
            [(steps, first), (steps, chunk - first)]
        }
        Protocol::Simple => cut(chunk, if ring { SLICE.1 } else { CHUNK }),
    }
}
