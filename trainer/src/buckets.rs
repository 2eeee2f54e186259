//! Which gradients travel together: PyTorch's rule for the buckets of data-parallel training.
//!
//! ```text
//! parameters    0    1    2    3    4    5    6        last first: their gradients are ready in that order
//! buckets     [   2    ] [    1    ] [   0    ]        a bucket closes once it holds its cap or more
//! ```
//!
//! The first bucket is small, so that sending starts early; the rest are large, so that latency counts little. A
//! parameter is never cut: a bucket may overshoot its cap by most of one parameter (S. Li et al., "PyTorch
//! Distributed", VLDB 2020, section 4.2).

use crate::network::Place;
use std::ops::Range;

/// The sizes at which buckets close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Bytes that close the first bucket.
    pub first: u64,
    /// Bytes that close each further one.
    pub rest: u64,
}

/// One bucket: parameters that are consecutive, the last one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The parameters, by number.
    pub params: Range<usize>,
    /// Their elements in the flat buffer of all gradients; the bucket's own buffer is laid out alike.
    pub range: Range<usize>,
}

/// All buckets, in the order in which they fill and are sent.
pub fn buckets(params: &[Place], element: usize, caps: Caps) -> Vec<Bucket> {
    let mut buckets = Vec::new();
    let mut end = params.len();
    for first in (0..params.len()).rev() {
        let range = params[first].range.start..params[end - 1].range.end;
        let cap = if buckets.is_empty() { caps.first } else { caps.rest };
        if (range.len() * element) as u64 >= cap || first == 0 {
            buckets.push(Bucket { params: first..end, range });
            end = first;
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::Init;
    use serde_json::Value;

    fn places(bytes: &[u64]) -> Vec<Place> {
        let mut end = 0;
        let place = |&bytes: &u64| {
            let range = end..end + bytes as usize / 4;
            end = range.end;
            Place { name: String::new(), shape: vec![range.len()], range, init: Init::Constant(0.0) }
        };
        bytes.iter().map(place).collect()
    }

    #[test]
    fn agrees_with_pytorch_on_three_models_and_three_caps() {
        let oracle: Value = crate::oracle::json("ddp_buckets.json");
        for model in ["mlp784", "resnet18", "gpt"] {
            let bytes: Vec<u64> =
                serde_json::from_value(oracle["buckets"][format!("{model}_cap25MiB")]["param_bytes"].clone())
                    .unwrap();
            for cap in [1, 5, 25] {
                let case = &oracle["buckets"][format!("{model}_cap{cap}MiB")];
                let want: Vec<Vec<usize>> =
                    serde_json::from_value(case["buckets_over_reversed_params"].clone()).unwrap();
                let mine = buckets(&places(&bytes), 4, Caps { first: 1 << 20, rest: cap << 20 });
                let mine: Vec<Vec<usize>> = mine
                    .iter()
                    .map(|bucket| bucket.params.clone().rev().map(|p| bytes.len() - 1 - p).collect())
                    .collect();
                assert_eq!(mine, want, "{model}, {cap} MiB");
            }
        }
    }

    #[test]
    fn cap_zero_gives_every_parameter_its_own_bucket() {
        let all = buckets(&places(&[8, 4, 12]), 4, Caps { first: 0, rest: 0 });
        assert_eq!(all.iter().map(|b| b.range.clone()).collect::<Vec<_>>(), [3..6, 2..3, 0..2]);
        assert!(buckets(&[], 4, Caps { first: 0, rest: 0 }).is_empty());
    }
}
