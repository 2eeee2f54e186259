//! `data_parallel` on devices: the first rank's batch, loss and optimiser; the others compute for it. Compared with the CPU.

use crate::zero::run;
use crate::{assert_near, can_try, cnn, pictures, placed, room, run as run_on, sentences, small};
use allfold_trainer::Config;

#[test]
fn the_first_rank_trains_and_the_others_compute_for_it() {
    let text = (sentences(9, 6, 11), sentences(4, 6, 11));
    let gpt = Config {
        model: "gpt".into(),
        layers: 1,
        width: 32,
        heads: 2,
        dropout: 0.2,
        optimiser: "adamw".into(),
        batch: 2,
        lr: 3e-3,
        ..Config::default()
    };
    let adam = Config { optimiser: "adam".into(), clip_norm: 0.5, epochs: 2, score_train: true, ..small() };
    let scaled = Config { amp: "f16".into(), loss_scale: 1e30, ..small() };
    // 32 pictures in steps of 3 x 3, of which the last has less.
    let uneven = Config { batch: 3, ..small() };
    let cases = [
        ("sgd", small(), 2, 1e-5, &["host", "device", "nccl"][..]),
        ("adam, clipped, scored twice", adam, 3, 1e-5, &["device", "nccl"]),
        ("a last step with less", uneven, 3, 1e-5, &["device"]),
        ("f16 from a scale that overflows", scaled, 2, 2e-2, &["nccl"]),
        ("batch norms", Config { sync_batch_norm: false, ..cnn() }, 2, 2e-5, &["device"]),
        ("a gpt with dropout", gpt, 2, 5e-5, &["nccl"]),
    ];
    for (what, config, ranks, within, paths) in cases {
        for exchange in paths.iter().copied().filter(|exchange| can_try(exchange, ranks as usize)) {
            println!("{what}, over {exchange}");
            let strategy = "data_parallel".into();
            let config = Config { strategy, exchange: exchange.into(), ..config.clone() };
            let data = if config.model == "gpt" { &text } else { &pictures() };
            let cpu = run_on(&config, data, ranks, false).remove(0);
            let devices = if exchange == "nccl" { ranks as usize } else { 1 };
            let device = run(&config, data, ranks, &placed(devices));
            assert_near(&cpu, &device, within * room());
        }
    }
}
