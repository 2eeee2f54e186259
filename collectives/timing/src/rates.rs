//! How long a message takes on links that it has for itself, remembered by path and size.
//!
//! Paths differ in a few ways only, and a collective sends few sizes, so that the divisions are done once.

use allfold_sim::{Bytes, BytesPerSec, Costs, Picos};
use std::collections::BTreeMap;

/// The times of one message from its start.
#[derive(Clone, Copy, Default)]
pub(crate) struct Times {
    /// Until the sender's half is done.
    pub left: u64,
    /// Until the receiver's half is done, where it copies.
    pub arrived: u64,
    /// Until the receiver's half is done, where it reduces.
    pub reduced: u64,
    /// `left` and `arrived` of a message of no bytes.
    pub least_left: u64,
    pub least_arrived: u64,
}

struct Rate {
    costs: Costs,
    bandwidth: Option<BytesPerSec>,
    latency: Picos,
    /// The last two sizes; near-equal chunks have two.
    recent: [(u64, Times); 2],
}

/// Overhead, bandwidth of memory (0: free), bandwidth and latency of the path.
type Key = (Picos, u64, u64, Picos);

/// All rates that paths have had so far, by number.
#[derive(Default)]
pub(crate) struct Rates {
    numbers: BTreeMap<Key, u32>,
    rates: Vec<Rate>,
}

impl Rates {
    /// The number of the rate of a path: its least bandwidth (`None`: no link at all) and its latency, with the
    /// overhead of its sender and the memory of its receiver.
    pub(crate) fn rate(&mut self, costs: Costs, bandwidth: Option<BytesPerSec>, latency: Picos) -> u32 {
        let rates = &mut self.rates;
        let key = (
            costs.overhead,
            costs.memory.map_or(0, |memory| memory.0),
            bandwidth.map_or(0, |b| b.0),
            latency,
        );
        *self.numbers.entry(key).or_insert_with(|| {
            let none = (0, times(&costs, bandwidth, latency, 0));
            rates.push(Rate { costs, bandwidth, latency, recent: [none; 2] });
            (rates.len() - 1) as u32
        })
    }

    /// The times of a message of this many bytes.
    #[inline]
    pub(crate) fn times(&mut self, rate: u32, bytes: u64) -> Times {
        let rate = &mut self.rates[rate as usize];
        if rate.recent[0].0 != bytes {
            rate.recent.swap(0, 1);
            if rate.recent[0].0 != bytes {
                rate.recent[0] = (bytes, times(&rate.costs, rate.bandwidth, rate.latency, bytes));
            }
        }
        rate.recent[0].1
    }
}

fn times(costs: &Costs, bandwidth: Option<BytesPerSec>, latency: Picos, bytes: u64) -> Times {
    let (overhead, bytes) = (costs.overhead, Bytes(bytes));
    let (flow, arrived) = match bandwidth {
        Some(bandwidth) => (bandwidth.time(bytes), costs.transfer(bytes, bandwidth, latency)),
        None => (Picos::ZERO, costs.rounded(latency)),
    };
    Times {
        left: (overhead + flow.min(arrived)).0,
        arrived: (overhead + arrived).0,
        reduced: (overhead + arrived + costs.reduce(bytes)).0,
        least_left: overhead.0,
        least_arrived: (overhead + costs.rounded(latency)).0,
    }
}
