//! `data_parallel` on devices: the first rank has batch, loss and optimiser; others compute for it. Compared with the CPU.

use crate::zero::run;
use crate::{assert_near, can_try, cnn, pictures, placed, run as run_on, sentences, small, tolerance_factor};
use allfold_trainer::Config;
use allfold_trainer::config::AutocastType;

#[test]
fn the_first_rank_trains_and_the_others_compute_for_it() {
    let text = (sentences(9, 6, 11), sentences(4, 6, 11));
    let gpt = Config::default().with(|c| {
        c.model.name = "gpt".into();
        c.model.layers = 1;
        c.model.width = 32;
        c.model.heads = 2;
        c.model.dropout = 0.2;
        c.optimiser.name = "adamw".into();
        c.training.batch = 2;
        c.optimiser.lr = 3e-3;
    });
    let adam = small().with(|c| {
        c.optimiser.name = "adam".into();
        c.optimiser.clip_norm = 0.5;
        c.training.epochs = 2;
        c.training.score_train = true;
    });
    let scaled = small().with(|c| {
        c.precision.amp = AutocastType::F16;
        c.precision.loss_scale = 1e30;
    });
    // 32 pictures in steps of 3 x 3, of which the last has less.
    let uneven = small().with(|c| c.training.batch = 3);
    let cases = [
        ("sgd", small(), 2, 1e-5, &["host", "device", "nccl"][..]),
        ("adam, clipped, scored twice", adam, 3, 1e-5, &["device", "nccl"]),
        ("a last step with less", uneven, 3, 1e-5, &["device"]),
        ("f16 from a scale that overflows", scaled, 2, 2e-2, &["nccl"]),
        ("batch norms", cnn().with(|c| c.model.sync_batch_norm = false), 2, 2e-5, &["device"]),
        ("a gpt with dropout", gpt, 2, 5e-5, &["nccl"]),
    ];
    for (what, config, ranks, within, paths) in cases {
        for exchange in paths.iter().copied().filter(|exchange| can_try(exchange, ranks as usize)) {
            println!("{what}, over {exchange}");
            let strategy = "data_parallel".into();
            let config = config.clone().with(|c| {
                c.strategy = strategy;
                c.set("exchange", exchange).unwrap();
            });
            let data = if config.model.name == "gpt" { &text } else { &pictures() };
            let cpu = run_on(&config, data, ranks, false).remove(0);
            let devices = if exchange == "nccl" { ranks as usize } else { 1 };
            let device = run(&config, data, ranks, &placed(devices));
            assert_near(&cpu, &device, within * tolerance_factor());
        }
    }
}
