//! The time that a host spends per message if the host, not the NIC, matches messages to buffers.
//!
//! libfabric's provider for Slingshot (`fi_cxi(7)`, `FI_CXI_RX_MATCH_MODE=software`) receives messages, or the first part of long
//! messages, in its own buffers, and copies them after they are matched. Up to 4 KiB the host stores in GPU memory itself
//! (`FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD`). For larger copies the host calls the driver, which takes microseconds plus a time per byte,
//! because the provider's buffers are pageable.
//!
//! ```text
//! ring all-reduce        2 (n - 1) messages per channel, n ranks   the host copies the messages of a NIC one after another,
//! all other algorithms   one message up, one down                  and the call takes at least as long as these copies
//! ```
//!
//! NCCL sends LL in slots of 64 KiB, flags included. With Simple, a ring sends chunks of up to 2 MiB in two slices, the first of at
//! least 32 KiB, and all other algorithms send 512 KiB at a time.

use super::super::{NcclAlgorithm, Protocol};
use super::parameters::{MATCH, MATCH_RATE, Parameters};
use super::{ModelTerm, PhysicsCase, Terms};
use allfold_schedules::Collective;

/// The largest message, in bytes, that is stored without the driver: the default of libfabric's
/// `FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD`.
pub const STORED: f64 = 4096.0;
/// The bytes of a message that arrive with its header; the rest of a longer message is fetched. libfabric's
/// `FI_CXI_RDZV_THRESHOLD`.
const WHOLE: f64 = 16_384.0;
/// The bytes of a slot of LL and of LL128.
const SLOTS: (f64, f64) = (65_536.0, 614_400.0);
/// The least bytes of the first slice, and the greatest bytes of any slice, of a ring's chunk with Simple.
const SLICE: (f64, f64) = (32_768.0, 1_048_576.0);
/// The bytes of a chunk with Simple in all other algorithms.
const CHUNK: f64 = 524_288.0;

/// The time that the host of one NIC spends on copies, in microseconds; 0 if NICs match messages or there is one node.
pub(super) fn matching(case: &PhysicsCase, parameters: &Parameters, terms: Terms) -> f64 {
    let Some(stored) =
        case.machine.host_stores.filter(|_| case.nodes > 1.0 && terms.has(ModelTerm::HostMatching))
    else {
        return 0.0;
    };
    let channels = (case.used / case.machine.nics.max(1.0)).ceil();
    let copy = |bytes: f64| match bytes > stored {
        true => parameters.at(MATCH) + bytes.min(WHOLE) / 1e3 / parameters.at(MATCH_RATE),
        false => 0.0,
    };
    channels * messages(case).iter().map(|&(count, bytes)| count * copy(bytes)).sum::<f64>()
}

/// The messages that reach a node on one channel: their number and their size.
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
