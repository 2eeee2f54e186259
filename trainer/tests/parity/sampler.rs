//! Samplers compared with PyTorch's `DistributedSampler`, and their own rules.

use allfold_trainer::sampler::exactly_once;
use allfold_trainer::{Config, Sampler};

#[derive(serde::Deserialize)]
struct Row {
    #[serde(rename = "N")]
    samples: usize,
    world: usize,
    drop_last: bool,
    shuffle: bool,
    #[serde(default)]
    seed: u32,
    #[serde(default)]
    epoch: u32,
    indices: Vec<Vec<usize>>,
}
#[derive(serde::Deserialize)]
struct Oracle {
    rows: Vec<Row>,
}

#[test]
fn agrees_with_pytorch_in_the_22_unshuffled_cases() {
    let oracle: Oracle = crate::oracle::json("distributed_sampler.json");
    let rows: Vec<&Row> = oracle.rows.iter().filter(|row| !row.shuffle).collect();
    crate::oracle::counted(rows.len(), 22);
    for row in rows {
        let sampler =
            Sampler { samples: row.samples, world: row.world, drop_last: row.drop_last, shuffle: None };
        let mine: Vec<Vec<usize>> = (0..row.world).map(|rank| sampler.indices(rank, 0)).collect();
        assert_eq!(
            mine, row.indices,
            "{} samples, {} ranks, drop_last {}",
            row.samples, row.world, row.drop_last
        );
    }
}

/// `torch.randperm(n)` after `manual_seed(seed)`: the draws of MT19937 (M. Matsumoto and T. Nishimura, 1998), each taken
/// modulo the number of elements that are left.
fn torch_order(n: usize, seed: u32) -> Vec<usize> {
    let mut state = vec![seed];
    for i in 1..624 {
        let last: u32 = state[i - 1];
        state.push((last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32));
    }
    // Each new word replaces the word of the previous round at the same index.
    let mut next = (0..).map(|i| {
        let [at, after, far] = [i, i + 1, i + 397].map(|i| i % 624);
        let mixed = (state[at] & 0x8000_0000) | (state[after] & 0x7fff_ffff);
        state[at] = state[far] ^ (mixed >> 1) ^ ((mixed & 1) * 0x9908_b0df);
        let y = state[at] ^ (state[at] >> 11);
        let y = y ^ ((y << 7) & 0x9d2c_5680);
        let y = y ^ ((y << 15) & 0xefc6_0000);
        (y ^ (y >> 18)) as usize
    });
    let mut order: Vec<usize> = (0..n).collect();
    for i in 0..n - 1 {
        order.swap(i, i + next.next().unwrap() % (n - i));
    }
    order
}

/// A shuffled order differs from PyTorch's, because the random generators differ. Both are divided among ranks in the same way.
#[test]
fn deals_pytorchs_order_as_pytorch_does_in_the_3_shuffled_cases() {
    let oracle: Oracle = crate::oracle::json("distributed_sampler.json");
    let rows: Vec<Row> = oracle.rows.into_iter().filter(|row| row.shuffle).collect();
    crate::oracle::counted(rows.len(), 3);
    for Row { samples, world, drop_last, seed, epoch, indices, .. } in rows {
        let order = torch_order(samples, seed + epoch);
        let sampler = Sampler { samples, world, drop_last, shuffle: None };
        let dealt = |rank| sampler.indices(rank, 0).into_iter().map(|at| order[at]).collect();
        let mine: Vec<Vec<usize>> = (0..world).map(dealt).collect();
        assert_eq!(mine, indices, "{samples} samples, {world} ranks, seed {seed}, epoch {epoch}");
    }
}

#[test]
fn a_shuffled_epoch_is_one_order_dealt_to_any_number_of_ranks() {
    let deal = |world: usize, epoch: u64| {
        let sampler = Sampler { samples: 24, world, drop_last: false, shuffle: Some(7) };
        let ranks: Vec<Vec<usize>> = (0..world).map(|rank| sampler.indices(rank, epoch)).collect();
        (0..24).map(|i| ranks[i % world][i / world]).collect::<Vec<_>>()
    };
    assert_eq!(deal(1, 3), deal(4, 3));
    assert_ne!(deal(1, 3), deal(1, 4));
    let mut all = deal(3, 0);
    all.sort_unstable();
    assert_eq!(all, (0..24).collect::<Vec<_>>());
}

/// `DistributedSampler(range(11), num_replicas=2, rank=.., shuffle=False, drop_last=..)` of PyTorch 2.15, and the batches of three
/// that a `DataLoader` makes of it.
#[test]
fn eleven_samples_on_two_ranks() {
    let dealt = |drop_last| {
        let sampler = Sampler { samples: 11, world: 2, drop_last, shuffle: None };
        [0, 1].map(|rank| sampler.indices(rank, 0))
    };
    assert_eq!(dealt(false), [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 0]]);
    assert_eq!(dealt(true), [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]);
    let steps = |drop_last, drop_last_batch| {
        let config = Config::default().with(|c| {
            c.training.batch = 3;
            c.data.drop_last = drop_last;
            c.data.drop_last_batch = drop_last_batch;
            c.data.shuffle = false;
        });
        let sampler = Sampler::of(&config, 11, 2);
        let steps = sampler.steps(&config);
        (0..steps).map(|step| sampler.in_step(&config, step)).collect::<Vec<u64>>()
    };
    assert_eq!([steps(false, false), steps(false, true)], [[6, 6], [6, 6]]);
    assert_eq!([steps(true, false), steps(true, true)], [vec![6, 4], vec![6]]);
    let few = Config::default().with(|c| {
        c.training.batch = 7;
        c.data.drop_last_batch = true;
    });
    assert_eq!(Sampler::of(&few, 11, 2).steps(&few), 0);
}

#[test]
fn evaluation_sees_every_sample_once() {
    for (samples, world) in [(10, 4), (3, 8), (0, 2), (360, 7)] {
        let mut all: Vec<usize> = (0..world).flat_map(|rank| exactly_once(samples, world, rank)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..samples).collect::<Vec<_>>());
    }
}
