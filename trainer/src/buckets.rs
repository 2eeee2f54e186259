//! Gradient buckets, by PyTorch's rule for data-parallel training.
//!
//! ```text
//! parameters    0    1    2    3    4    5    6        last first: their gradients are ready in that order
//! buckets     [   2    ] [    1    ] [   0    ]        a bucket closes once it holds its cap or more
//! ```
//!
//! The first bucket is small, so that sending starts early; the rest are large, so that latency counts little. A parameter is never
//! cut: a bucket may overshoot its cap by most of one parameter (S. Li et al., "PyTorch Distributed", VLDB 2020, section 4.2).

pub use allfold_config::Caps;

use crate::ParamSpec;
use std::ops::Range;

/// One bucket: its parameters in the order in which their gradients become ready, which is also their order in the bucket's
/// buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The parameters, by number.
    pub params: Vec<usize>,
    /// The number of elements of all its parameters.
    pub elements: usize,
}

impl Bucket {
    /// Each parameter's number with its range in the bucket's buffer.
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
pub fn split_by_bucket<F: Copy>(buckets: &[Bucket], params: &[ParamSpec], all: &[F]) -> Vec<Vec<F>> {
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

/// All buckets over the parameters in the given order.
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
mod tests;
