//! Gradient buckets, by PyTorch's rule for data-parallel training.
//!
//! ```text
//! parameters    0    1    2    3    4    5    6        last first: their gradients are ready in that order
//! buckets     [   2    ] [    1    ] [   0    ]        a bucket closes once it holds its cap or more
//! ```
//!
//! The first bucket is small, so that sending starts early; the rest are large, so that latency counts little. A
//! parameter is never cut: a bucket may overshoot its cap by most of one parameter (S. Li et al., "PyTorch
//! Distributed", VLDB 2020, section 4.2).

use crate::ParamSpec;
use std::ops::Range;

/// The sizes at which buckets are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Bytes that close the first bucket.
    pub first: u64,
    /// Bytes that close each further one.
    pub rest: u64,
}

/// One bucket: its parameters in the order in which their gradients become ready, which is also their order in the bucket's
/// buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The parameters, by number.
    pub params: Vec<usize>,
    /// Elements of all of them.
    pub elements: usize,
}

impl Bucket {
    /// Where each parameter lies in the bucket's buffer.
    pub fn places<'a>(&'a self, params: &'a [ParamSpec]) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
        let mut end = 0;
        self.params.iter().map(move |&param| {
            let start = end;
            end += params[param].range.len();
            (param, start..end)
        })
    }
}

/// The range of each bucket among all gradients, if every bucket is contiguous and the buckets follow each other from
/// the end to the start; else `None`.
pub fn views(buckets: &[Bucket], params: &[ParamSpec]) -> Option<Vec<Range<usize>>> {
    let mut end = params.last()?.range.end;
    let view = |bucket: &Bucket| {
        let start = bucket.params.iter().map(|&param| params[param].range.start).min()?;
        let inside = bucket.params.iter().all(|&param| params[param].range.end <= end);
        let view = start..end;
        end = start;
        (inside && view.len() == bucket.elements).then_some(view)
    };
    buckets.iter().map(view).collect()
}

/// Reorders values from one slice per bucket to the layout of the parameters.
pub fn flat<F: Copy + Default>(buckets: &[Bucket], params: &[ParamSpec], by_bucket: &[Vec<F>]) -> Vec<F> {
    let mut all = vec![F::default(); params.last().map_or(0, |last| last.range.end)];
    for (bucket, values) in buckets.iter().zip(by_bucket).filter(|(_, values)| !values.is_empty()) {
        for (param, range) in bucket.places(params) {
            all[params[param].range.clone()].copy_from_slice(&values[range]);
        }
    }
    all
}

/// The inverse of [`flat`].
pub fn parted<F: Copy>(buckets: &[Bucket], params: &[ParamSpec], all: &[F]) -> Vec<Vec<F>> {
    let of = |bucket: &Bucket| {
        let places = bucket.places(params);
        places.flat_map(|(param, _)| all[params[param].range.clone()].iter().copied()).collect()
    };
    buckets.iter().map(of).collect()
}

/// All buckets over the parameters in reverse order of registration, in the order in which they fill and are sent.
pub fn buckets(params: &[ParamSpec], element: usize, caps: Caps) -> Vec<Bucket> {
    buckets_in(&(0..params.len()).rev().collect::<Vec<_>>(), params, element, caps)
}

/// All buckets over the parameters, in this `order`.
pub fn buckets_in(order: &[usize], params: &[ParamSpec], element: usize, caps: Caps) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut open = Bucket { params: Vec::new(), elements: 0 };
    for &param in order {
        open.elements += params[param].range.len();
        open.params.push(param);
        let cap = if buckets.is_empty() { caps.first } else { caps.rest };
        if (open.elements * element) as u64 >= cap {
            buckets.push(std::mem::replace(&mut open, Bucket { params: Vec::new(), elements: 0 }));
        }
    }
    buckets.extend(Some(open).filter(|open| !open.params.is_empty()));
    buckets
}

/// Buckets of several groups of parameters, each group cut by itself, in the order in which the buckets' last gradients become
/// ready. A parameter belongs to the first of `groups` that its name begins with; parameters of no group form one of their own.
pub fn grouped(
    order: &[usize],
    params: &[ParamSpec],
    (element, caps): (usize, Caps),
    groups: &[String],
) -> Vec<Bucket> {
    let group = |param: usize| {
        groups
            .iter()
            .position(|prefix| params[param].name.starts_with(prefix.as_str()))
            .unwrap_or(groups.len())
    };
    let mut all: Vec<Bucket> = (0..=groups.len())
        .flat_map(|of| {
            let own: Vec<usize> = order.iter().copied().filter(|&param| group(param) == of).collect();
            buckets_in(&own, params, element, caps)
        })
        .collect();
    all.sort_by_key(|bucket| {
        bucket.params.last().and_then(|last| order.iter().position(|param| param == last))
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::Init;
    use serde_json::Value;

    fn places(bytes: &[u64]) -> Vec<ParamSpec> {
        let mut end = 0;
        let place = |&bytes: &u64| {
            let range = end..end + bytes as usize / 4;
            end = range.end;
            ParamSpec { name: String::new(), shape: vec![range.len()], range, init: Init::Constant(0.0) }
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
                    .map(|bucket| bucket.params.iter().map(|p| bytes.len() - 1 - p).collect())
                    .collect();
                assert_eq!(mine, want, "{model}, {cap} MiB");
            }
        }
    }

    #[test]
    fn cap_zero_gives_every_parameter_its_own_bucket() {
        let all = buckets(&places(&[8, 4, 12]), 4, Caps { first: 0, rest: 0 });
        assert_eq!(
            all.iter().map(|b| (b.params.clone(), b.elements)).collect::<Vec<_>>(),
            [(vec![2], 3), (vec![1], 1), (vec![0], 2)]
        );
        assert!(buckets(&[], 4, Caps { first: 0, rest: 0 }).is_empty());
    }

    #[test]
    fn buckets_are_views_where_their_elements_lie_side_by_side_from_the_end_on() {
        let params = places(&[8, 4, 12, 4]);
        let caps = Caps { first: 8, rest: 8 };
        let of = |order: &[usize]| views(&buckets_in(order, &params, 4, caps), &params);
        assert_eq!(of(&[3, 2, 1, 0]), Some(vec![3..7, 0..3]));
        assert_eq!(of(&[2, 3, 1, 0]), None, "the first is not at the end");
        assert_eq!(of(&[3, 1, 2, 0]), None, "an element of another bucket lies between");
        assert_eq!(of(&[2, 1, 0]), None, "a frozen one at the end");
        assert_eq!(of(&[3, 2, 1]), Some(vec![3..7, 2..3]), "a frozen one before all");
        assert_eq!(of(&[]), Some(vec![]));
    }

    #[test]
    fn groups_have_their_own_buckets_in_the_order_in_which_they_fill() {
        let mut params = places(&[8, 4, 12, 4]);
        for (place, name) in params.iter_mut().zip(["a.w", "b.w", "a.b", "b.b"]) {
            place.name = name.into();
        }
        let caps = Caps { first: 1 << 20, rest: 1 << 20 };
        let all = grouped(&[3, 2, 1, 0], &params, (4, caps), &["a.".into()]);
        assert_eq!(all.iter().map(|b| b.params.clone()).collect::<Vec<_>>(), [vec![3, 1], vec![2, 0]]);
    }
}
