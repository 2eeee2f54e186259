//! Compares the flow network with slow, simple solvers that solve everything from scratch at every instant.

use super::*;
use proptest::prelude::*;

/// A flow of the reference solver: when it begins, its path, and its bytes.
#[derive(Clone, Debug)]
struct FlowRequest {
    begin: u64,
    path: Vec<Crossing>,
    bytes: u64,
}

/// Reference solver in integers. Max-min: repeatedly freezes the flows of all links with the least equal share.
fn fill_by_levels(capacities: &[u64], paths: &[&[Crossing]], sharing: Sharing) -> Vec<u64> {
    let load = |link: usize, among: &[usize]| -> u64 {
        let on = among.iter().flat_map(|&f| paths[f]).filter(|c| c.link.0 as usize == link);
        on.map(|c| u64::from(c.weight)).sum()
    };
    let all: Vec<usize> = (0..paths.len()).collect();
    if sharing == Sharing::Split {
        let share = |c: &Crossing| (capacities[c.link.0 as usize] / load(c.link.0 as usize, &all)).max(1);
        return paths.iter().map(|path| path.iter().map(share).min().unwrap()).collect();
    }
    let (mut rates, mut open, mut left) = (vec![0; paths.len()], all, capacities.to_vec());
    while !open.is_empty() {
        let used: Vec<usize> = (0..capacities.len()).filter(|&l| load(l, &open) > 0).collect();
        let level = |l: usize| (left[l] / load(l, &open)).max(1);
        let least = used.iter().map(|&l| level(l)).min().unwrap();
        let full: Vec<usize> = used.into_iter().filter(|&l| level(l) == least).collect();
        let (frozen, rest): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|&&f| paths[f].iter().any(|c| full.contains(&(c.link.0 as usize))));
        for f in frozen {
            rates[f] = least;
            for c in paths[f] {
                left[c.link.0 as usize] = left[c.link.0 as usize].saturating_sub(least * u64::from(c.weight));
            }
        }
        open = rest;
    }
    rates
}

/// Reference solver for max-min shares by water filling in floating point, without rounding to whole bytes.
fn fill_by_water(capacities: &[u64], paths: &[&[Crossing]]) -> Vec<f64> {
    let mut rates = vec![f64::NAN; paths.len()];
    loop {
        let level = |l: usize| {
            let on = |f: &usize| {
                paths[*f].iter().filter(|c| c.link.0 as usize == l).map(|c| f64::from(c.weight)).sum::<f64>()
            };
            let all: Vec<usize> = (0..paths.len()).collect();
            let frozen: f64 = all.iter().filter(|f| !rates[**f].is_nan()).map(|f| on(f) * rates[*f]).sum();
            let open: f64 = all.iter().filter(|f| rates[**f].is_nan()).map(on).sum();
            (open > 0.0).then(|| (capacities[l] as f64 - frozen) / open)
        };
        let lowest =
            (0..capacities.len()).filter_map(|l| Some((level(l)?, l))).min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((least, full)) = lowest else { return rates };
        for f in 0..paths.len() {
            if rates[f].is_nan() && paths[f].iter().any(|c| c.link.0 as usize == full) {
                rates[f] = least;
            }
        }
    }
}

/// The finish time of each flow according to a reference that solves all shares at every instant.
fn finish_by_hand(capacities: &[u64], requests: &[FlowRequest], sharing: Sharing) -> Vec<u64> {
    let mut finish = vec![0; requests.len()];
    let mut remaining: Vec<u128> =
        requests.iter().map(|a| u128::from(a.bytes) * u128::from(UNITS_PER_BYTE)).collect();
    let mut now = 0;
    loop {
        let under_way: Vec<usize> =
            (0..requests.len()).filter(|&f| requests[f].begin <= now && finish[f] == 0).collect();
        let coming = requests.iter().map(|a| a.begin).filter(|&begin| begin > now).min();
        let paths: Vec<&[Crossing]> = under_way.iter().map(|&f| &requests[f].path[..]).collect();
        let rates = fill_by_levels(capacities, &paths, sharing);
        let ends = under_way.iter().zip(&rates).map(|(&f, &r)| now + remaining[f].div_ceil(r.into()) as u64);
        let Some(next) = ends.chain(coming).min() else { return finish };
        for (&f, &rate) in under_way.iter().zip(&rates) {
            let moved = u128::from(rate) * u128::from(next - now);
            if moved >= remaining[f] {
                finish[f] = next;
            }
            remaining[f] = remaining[f].saturating_sub(moved);
        }
        now = next;
    }
}

/// The finish time of each flow in a `FlowNetwork`; flows that begin together begin in the order of `requests`, rotated by `turn`.
fn finish_by_network(
    capacities: &[u64],
    requests: &[FlowRequest],
    sharing: Sharing,
    turn: usize,
) -> Vec<u64> {
    let mut network = FlowNetwork::new(capacities.iter().map(|&c| BytesPerSec(c)), sharing);
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.rotate_left(turn % requests.len());
    order.sort_by_key(|&f| requests[f].begin);
    let (mut finish, mut who, mut done) = (vec![0; requests.len()], vec![0; requests.len()], Vec::new());
    let mut order = order.into_iter().peekable();
    loop {
        let next = [network.next_finish(), order.peek().map(|&f| Picos(requests[f].begin))]
            .into_iter()
            .flatten()
            .min();
        let Some(now) = next else { return finish };
        network.take_finished(now, &mut done);
        done.drain(..).for_each(|flow| finish[who[flow.0 as usize]] = now.0);
        while let Some(f) = order.next_if(|&f| requests[f].begin == now.0) {
            let flow = network.begin(now, &requests[f].path, Bytes(requests[f].bytes));
            who[flow.0 as usize] = f;
        }
        network.settle(now);
    }
}

fn traffic() -> impl Strategy<Value = (Vec<u64>, Vec<FlowRequest>)> {
    let capacities =
        prop::collection::vec(prop_oneof![Just(1_000_000u64), 1u64..50, 1u64..1_000_000_000], 1..7);
    capacities.prop_flat_map(|capacities| {
        let links = capacities.len();
        let path = prop::sample::subsequence((0..links as u32).collect::<Vec<_>>(), 1..=links.min(4));
        let path = (path, prop::collection::vec(1u32..4, 4)).prop_map(|(links, weights)| {
            links
                .into_iter()
                .zip(weights)
                .map(|(link, weight)| Crossing { link: LinkId(link), weight })
                .collect()
        });
        let begin = prop_oneof![Just(0u64), Just(1_000_000), 0u64..5_000_000];
        let requests =
            (begin, path, 1u64..100_000).prop_map(|(begin, path, bytes)| FlowRequest { begin, path, bytes });
        (Just(capacities), prop::collection::vec(requests, 1..12))
    })
}

proptest! {
    #[test]
    fn finishes_as_the_obvious_solver_says((capacities, requests) in traffic(), max_min: bool) {
        let sharing = if max_min { Sharing::MaxMin } else { Sharing::Split };
        let by_hand = finish_by_hand(&capacities, &requests, sharing);
        prop_assert_eq!(finish_by_network(&capacities, &requests, sharing, 0), by_hand);
    }

    #[test]
    fn does_not_depend_on_the_order_within_an_instant((capacities, requests) in traffic(), max_min: bool, turn in 0usize..12) {
        let sharing = if max_min { Sharing::MaxMin } else { Sharing::Split };
        let straight = finish_by_network(&capacities, &requests, sharing, 0);
        prop_assert_eq!(finish_by_network(&capacities, &requests, sharing, turn), straight);
    }

    #[test]
    fn max_min_is_water_filling_and_no_link_carries_more_than_it_can((capacities, requests) in traffic()) {
        let mut network = FlowNetwork::new(capacities.iter().map(|&c| BytesPerSec(c)), Sharing::MaxMin);
        let mut split = FlowNetwork::new(capacities.iter().map(|&c| BytesPerSec(c)), Sharing::Split);
        let flows: Vec<FlowId> = requests.iter().map(|a| network.begin(Picos(0), &a.path, Bytes(a.bytes))).collect();
        requests.iter().for_each(|a| { split.begin(Picos(0), &a.path, Bytes(a.bytes)); });
        network.settle(Picos(0));
        split.settle(Picos(0));
        let paths: Vec<&[Crossing]> = requests.iter().map(|a| &a.path[..]).collect();
        let water = fill_by_water(&capacities, &paths);
        for (flow, level) in flows.iter().zip(water) {
            let rate = network.rate(*flow).0 as f64;
            // Shares are floored, at least 1 byte/s, so each of at most 12 flows with weights up to 3 may lose or gain a few bytes
            // per second.
            prop_assert!((rate - level).abs() <= 200.0, "{rate} for a level of {level}");
            // For equal flows, no max-min rate is below the split rate (except for flooring).
            prop_assert!(split.rate(*flow).0 <= network.rate(*flow).0 + 1);
        }
        for (link, &capacity) in capacities.iter().enumerate() {
            let on = requests.iter().zip(&flows).flat_map(|(a, f)| a.path.iter().map(move |c| (c, f)));
            let (mut used, mut floor) = (0, 0);
            for (c, f) in on.filter(|(c, _)| c.link.0 as usize == link) {
                used += network.rate(*f).0 * u64::from(c.weight);
                floor += u64::from(c.weight);
            }
            prop_assert!(used <= capacity + floor, "link {link} carries {used} of {capacity}");
        }
    }
}

fn one_link(sharing: Sharing) -> FlowNetwork {
    FlowNetwork::new([BytesPerSec(1_000)], sharing)
}

const ONE: [Crossing; 1] = [Crossing { link: LinkId(0), weight: 1 }];

#[test]
fn two_flows_share_a_link_and_the_second_speeds_up_when_the_first_is_through() {
    for sharing in [Sharing::MaxMin, Sharing::Split] {
        let (mut network, mut done) = (one_link(sharing), Vec::new());
        let short = network.begin(Picos(0), &ONE, Bytes(500));
        let long = network.begin(Picos(0), &ONE, Bytes(1_000));
        network.settle(Picos(0));
        assert_eq!(network.next_finish(), Some(Picos(1_000_000_000_000)));
        network.take_finished(Picos(1_000_000_000_000), &mut done);
        network.settle(Picos(1_000_000_000_000));
        assert_eq!((done.as_slice(), network.next_finish()), (&[short][..], Some(Picos(1_500_000_000_000))));
        assert_eq!(network.rate(long), BytesPerSec(1_000));
        network.take_finished(Picos(1_500_000_000_000), &mut done);
        assert_eq!(network.next_finish(), None);
        let usage = network.usage(LinkId(0), Picos(2_000_000_000_000));
        assert_eq!(usage, Usage { bytes: 1_500, busy: Picos(1_500_000_000_000) });
    }
}

#[test]
fn a_weight_of_three_gets_a_quarter_beside_a_weight_of_one() {
    let mut network = one_link(Sharing::MaxMin);
    let class = network.begin(Picos(0), &[Crossing { link: LinkId(0), weight: 3 }], Bytes(100));
    network.begin(Picos(0), &ONE, Bytes(100));
    network.settle(Picos(0));
    assert_eq!(network.rate(class), BytesPerSec(250));
}

#[test]
fn nothing_to_move_or_nothing_to_cross_is_through_at_once() {
    let (mut network, mut done) = (one_link(Sharing::Split), Vec::new());
    let empty = network.begin(Picos(7), &ONE, Bytes(0));
    let local = network.begin(Picos(7), &[], Bytes(9));
    network.settle(Picos(7));
    assert_eq!(network.next_finish(), Some(Picos(7)));
    network.take_finished(Picos(7), &mut done);
    assert_eq!(done, [empty, local]);
}

#[test]
fn a_cancelled_flow_gives_its_share_back_and_its_place_is_used_again() {
    let mut network = one_link(Sharing::Split);
    let (first, second) =
        (network.begin(Picos(0), &ONE, Bytes(10)), network.begin(Picos(0), &ONE, Bytes(10)));
    network.settle(Picos(0));
    network.cancel(Picos(0), first);
    network.settle(Picos(0));
    assert_eq!(network.rate(second), BytesPerSec(1_000));
    assert_eq!(network.begin(Picos(0), &ONE, Bytes(10)), first);
}

#[test]
fn a_shift_moves_the_end_and_nothing_else() {
    let mut network = one_link(Sharing::Split);
    let flow = network.begin(Picos(0), &ONE, Bytes(1_000));
    network.settle(Picos(0));
    let half = Picos(500_000_000_000);
    let left = network.remaining(flow, half);
    network.shift(Picos(77));
    assert_eq!(network.remaining(flow, half + Picos(77)), left);
    assert_eq!(network.next_finish(), Some(Picos(1_000_000_000_077)));
}

#[test]
fn more_than_18_megabytes_stay_exact() {
    let mut network = FlowNetwork::new([BytesPerSec(7)], Sharing::Split);
    network.begin(Picos(0), &ONE, Bytes(40_000_000));
    network.settle(Picos(0));
    assert_eq!(network.next_finish(), Some(Picos(5_714_285_714_285_714_286)));
}
