//! Unequal shares of a step's samples, and unlike devices.

use crate::{ROWS, Row, SAMPLES, digits, distance, gpt, on, predicted, trained};
use allfold_collectives::{Plan, World};
use allfold_prediction::{ModeledMachine, predict, shares_by_speed};
use allfold_sim::{Costs, Device, Faults};
use allfold_tests::training::{bits, run, switch};
use allfold_trainer::{Config, data};

/// Whether ranks of the row can have unequally many samples.
fn shares(row: &Row) -> bool {
    let fixed = ["data_parallel", "parameter_server"].contains(&row.strategy) || row.name.contains("expert");
    !fixed && (row.data)(4).is_some_and(|data| data > 1)
}

/// The row's configuration on four ranks with these shares, as many as have samples of their own.
fn unequal(row: &Row, base: &Config, shares: &[u32]) -> Config {
    let data = (row.data)(4).unwrap();
    let mut config = on(row, base, data);
    config.parallel.shares = shares[..data as usize].to_vec();
    config
}

/// The last step has 4 samples, of which some ranks have none.
#[test]
fn ten_steps_with_unequal_shares_equal_one_rank_s() {
    println!("\ndistance of the weights from one rank's, shares 5 1 1 2");
    for base in [
        digits(),
        gpt().with(|c| {
            c.optimiser.clip_norm = 0.5;
            c.precision.loss_scale = 64.0;
        }),
    ] {
        let base = base.with(|c| {
            c.data.train_samples = 8 * SAMPLES + 4;
            c.training.epochs = 2;
        });
        let whole = base.clone().with(|c| {
            c.strategy = "single".into();
            c.training.batch = SAMPLES;
        });
        let alone = trained(&World::threads(1), &whole);
        for row in ROWS.iter().filter(|row| shares(row) && row.takes(&base)) {
            let config = unequal(row, &base, &[5, 1, 1, 2]);
            let far = distance(&alone, &trained(&World::threads(4), &config));
            println!("| {:<16} | {} | {far:6.0e} |", row.name, base.model.name);
            assert!(far < 1e-12, "{}: {far:e}", row.name);
        }
    }
}

#[test]
fn losses_dropout_and_batch_norms_of_unequal_shares_are_those_of_one_rank() {
    let channels = vec![4, 6];
    let norms = digits().with(|c| {
        c.model.name = "cnn".into();
        c.model.channels = channels;
        c.model.batch_norm = true;
        c.model.sync_batch_norm = true;
    });
    let ddp = ROWS.iter().find(|row| row.name == "ddp").unwrap();
    for base in [norms.with(|c| c.model.hidden = Vec::new()), gpt().with(|c| c.model.dropout = 0.2)] {
        let base = base.with(|c| {
            c.data.train_samples = 2 * SAMPLES + 12;
            c.training.epochs = 3;
            c.training.max_steps = 9;
        });
        let whole = base.clone().with(|c| {
            c.strategy = "single".into();
            c.training.batch = SAMPLES;
        });
        let alone = run(&World::threads(1), &whole);
        let config = unequal(ddp, &base, &[1, 4, 2, 3]);
        let shared = run(&World::threads(4), &config);
        for (step, (one, four)) in alone.losses.iter().zip(&shared.losses).enumerate() {
            assert!((one - four).abs() < 1e-12 * one.abs(), "step {step}: {one} and {four}");
        }
        assert_eq!((alone.losses.len(), alone.samples), (9, shared.samples));
        assert_eq!(bits(&shared), bits(&run(&World::sim(&switch(4)), &config)), "on virtual time");
        assert_eq!(bits(&shared), bits(&run(&World::tcp(4), &config)), "over TCP");
    }
}

/// The clock's time of the slowest rank is that of a run, also of ranks that share layers and wait for one another.
#[test]
fn the_clock_has_the_time_of_unlike_ranks() {
    let topology = switch(4);
    let cases = [
        ("device=2-3:a100_f32", [1, 3, 4, 4]),
        ("device=2-3:a100_f32", [4, 1, 3, 1]),
        // Unlike ranks share layers, if the strategy shares layers.
        ("device=1:a100_f32", [1, 1, 1, 1]),
    ];
    for row in ROWS.iter().filter(|row| shares(row)) {
        for base in [digits(), gpt()].into_iter().filter(|base| row.takes(base)) {
            let base = base.with(|c| {
                c.training.max_steps = 4;
                c.training.epochs = 4;
            });
            for (rule, shares) in cases {
                let devices = Faults::parse([rule], &topology).unwrap();
                let config = unequal(row, &base, &shares);
                let on = (Device::CPU_CORE, &devices);
                let slowest = predicted::run(&config, 4, on).into_iter().max().unwrap();
                let found = predicted::predicted(&config, 4, on).time.total();
                let what = format!("{:<16} | {:<4} | {shares:?}", row.name, base.model.name);
                println!("| {what} | {slowest} | {found}");
                assert_eq!(slowest, found, "{what}");
            }
        }
    }
}

#[test]
fn shares_by_speed_are_the_fastest() {
    let (topology, base) = (
        switch(4),
        digits().with(|c| {
            c.training.batch = 64;
            c.data.train_samples = 0;
        }),
    );
    let devices = Faults::parse(["device=1:rtx3090_f32", "device=2-3:v100_f32"], &topology).unwrap();
    let plan = Plan::default();
    let (train, _) = data::load(&base).unwrap();
    let samples = train.form();
    let wide = base.with(|c| {
        c.model.name = "mlp".into();
        c.model.hidden = vec![512; 4];
        c.strategy = "ddp".into();
    });
    let costs = Costs::default();
    let machine = |device, devices| {
        let alike = ModeledMachine::new(&topology, device, &plan);
        ModeledMachine { devices, costs, ..alike }
    };
    let time = |shares: Vec<u32>| {
        let mut config = wide.clone();
        config.parallel.shares = shares;
        predict(&config, samples, &machine(Device::CPU_CORE, &devices)).unwrap().time.total()
    };
    let by_speed = shares_by_speed(&wide, samples, &machine(Device::CPU_CORE, &devices)).unwrap();
    let (equal, chosen) = (time(Vec::new()), time(by_speed.clone()));
    // Every other way to give the four ranks at least one sample each, in steps of eight.
    let ways = (0..=8).flat_map(|a| (0..=8).map(move |b| [1 + 4 * a, 1 + 28 * b]));
    let others =
        ways.filter(|[a, b]| a + b < 250).map(|[a, b]| vec![a, b, (256 - a - b) / 2, (256 - a - b) / 2]);
    let best = others.map(time).min().unwrap();
    println!("equal {equal}, by speed {chosen} {by_speed:?}, the best of others {best}");
    assert!(chosen.as_secs() < 0.5 * equal.as_secs() && chosen.as_secs() < 1.02 * best.as_secs());
    assert!(
        shares_by_speed(&wide, samples, &machine(Device::named("h100").unwrap(), &Faults::NONE))
            .unwrap()
            .is_empty()
    );
}
