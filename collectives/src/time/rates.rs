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
    bandwidth: BytesPerSec,
    latency: Picos,
    /// The last two sizes; near-equal chunks have two.
    recent: [(u64, Times); 2],
}

/// All rates that paths have had so far, by number.
pub(crate) struct Rates {
    costs: Costs,
    numbers: BTreeMap<(u64, Picos), u32>,
    rates: Vec<Rate>,
}

impl Rates {
    pub(crate) fn new(costs: Costs) -> Rates {
        Rates { costs, numbers: BTreeMap::new(), rates: Vec::new() }
    }

    /// The number of the rate of a path: its least bandwidth (`None`: no link at all) and its latency.
    pub(crate) fn rate(&mut self, bandwidth: Option<BytesPerSec>, latency: Picos) -> u32 {
        let bandwidth = bandwidth.unwrap_or(BytesPerSec(u64::MAX));
        let rates = &mut self.rates;
        let costs = &self.costs;
        *self.numbers.entry((bandwidth.0, latency)).or_insert_with(|| {
            let none = (0, times(costs, bandwidth, latency, 0));
            rates.push(Rate { bandwidth, latency, recent: [none; 2] });
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
                rate.recent[0] = (bytes, times(&self.costs, rate.bandwidth, rate.latency, bytes));
            }
        }
        rate.recent[0].1
    }
}

fn times(costs: &Costs, bandwidth: BytesPerSec, latency: Picos, bytes: u64) -> Times {
    let (overhead, bytes) = (costs.overhead.0, Bytes(bytes));
    let arrived = costs.transfer(bytes, bandwidth, latency).0;
    Times {
        left: overhead + bandwidth.time(bytes).0.min(arrived),
        arrived: overhead + arrived,
        reduced: overhead + arrived + costs.reduce(bytes).0,
        least_left: overhead,
        least_arrived: overhead + costs.rounded(latency).0,
    }
}
