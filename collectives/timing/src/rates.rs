//! The duration of a message on links that no other message uses, cached by path and size.
//!
//! The paths of a topology have few different rates, and a collective sends few sizes, so most divisions are computed once.

use allfold_sim::{Bytes, BytesPerSec, Costs, Picos};
use std::collections::BTreeMap;

/// The times of a message, counted from its start.
#[derive(Clone, Copy, Default)]
pub(crate) struct Times {
    /// When the sender's half is done.
    pub left: u64,
    /// When the receiver's half is done if the receiver copies the message.
    pub arrived: u64,
    /// When the receiver's half is done if the receiver reduces the message.
    pub reduced: u64,
    /// The values of `left` and `arrived` for a message without bytes.
    pub least_left: u64,
    pub least_arrived: u64,
}

struct Rate {
    costs: Costs,
    bandwidth: Option<BytesPerSec>,
    latency: Picos,
    /// The last two sizes with their times; near-equal chunks have two sizes.
    recent: [(u64, Times); 2],
}

/// The key of a rate: overhead, bandwidth of memory (0: no cost), bandwidth and latency of the path.
type Key = (Picos, u64, u64, Picos);

/// The distinct rates of all paths seen so far; a rate's number is its index.
#[derive(Default)]
pub(crate) struct Rates {
    numbers: BTreeMap<Key, u32>,
    rates: Vec<Rate>,
}

impl Rates {
    /// The number of a path's rate. `bandwidth` is the path's least bandwidth (`None`: no links) and `latency` its latency; `costs`
    /// has the sender's overhead and the receiver's memory rate.
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

    /// The times of a message of `bytes` with rate number `rate`.
    #[inline(always)]
    pub(crate) fn times(&mut self, rate: u32, bytes: u64) -> &Times {
        let rate = &mut self.rates[rate as usize];
        if rate.recent[0].0 != bytes {
            rate.recent.swap(0, 1);
            if rate.recent[0].0 != bytes {
                rate.recent[0] = (bytes, times(&rate.costs, rate.bandwidth, rate.latency, bytes));
            }
        }
        &rate.recent[0].1
    }
}

#[cold]
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
