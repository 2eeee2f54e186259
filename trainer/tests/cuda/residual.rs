//! A residual block, whose steps become graphs.

use crate::{machine, tolerance_factor};
use allfold_collectives::World;
use allfold_kernels::nn::{self, PoolShape};
use allfold_trainer::Builder;
use allfold_trainer::cuda::Replica;
use allfold_trainer::engine::StepInput;
use allfold_trainer::layers::{
    Add, BatchNorm, Conv2d, Gelu, GlobalMeanPool, Init, LayerNorm, Linear, Pool, Relu,
};
use allfold_trainer::optim::{Optimiser, Sgd};
use allfold_trainer::{Batch, Config, Model, Network, RankTrainer, Result};

/// A small residual network: two branches, pooling with padding, a grouped convolution, mean pooling of windows and of planes.
fn block() -> Network<f32> {
    let grouped = |inputs, outputs, picture, kernel, stride, groups| {
        let padding = kernel / 2;
        Conv2d::new(nn::Conv2dShape { inputs, outputs, picture, kernel, stride, padding, groups })
    };
    let conv =
        |inputs, outputs, picture, kernel, stride| grouped(inputs, outputs, picture, kernel, stride, 1);
    let mut builder = Builder::new(2 * 8 * 7);
    let a = builder.push("stem", conv(2, 4, (8, 7), 3, 1).with_bias(Init::Uniform(0.3)), &[0]).unwrap();
    let pool = PoolShape { channels: 4, picture: (8, 7), window: 3, stride: 2, padding: 1 };
    let b = builder.push("pool", Pool::max(pool), &[a]).unwrap();
    let c = builder.push("conv1", conv(4, 6, (4, 4), 3, 2), &[b]).unwrap();
    let d = builder.push("bn1", BatchNorm::new(6, 4), &[c]).unwrap();
    let e = builder.push("relu", Relu::new(24), &[d]).unwrap();
    let f =
        builder.push("conv2", grouped(6, 6, (2, 2), 3, 1, 3).with_bias(Init::Uniform(0.3)), &[e]).unwrap();
    let g = builder.push("short", conv(4, 6, (4, 4), 1, 2), &[b]).unwrap();
    let f = builder.push("bn2", BatchNorm::new(6, 4), &[f]).unwrap();
    let h = builder.push("add", Add::new(24), &[f, g]).unwrap();
    // Two layers read this rectifier, so two gradients arrive at it.
    let h = builder.push("relu2", Relu::new(24), &[h]).unwrap();
    let i = builder.push("ln", LayerNorm::new(6, 4), &[h]).unwrap();
    let j = builder.push("gelu", Gelu::new(24), &[i]).unwrap();
    let j = builder.push("add2", Add::new(24), &[j, h]).unwrap();
    let mean = PoolShape { channels: 6, picture: (2, 2), window: 2, stride: 1, padding: 0 };
    let k = builder.push("mean", Pool::mean(mean), &[j]).unwrap();
    let l = builder.push("again", Linear::new(6, 12), &[k]).unwrap();
    let m = builder.push("planes", GlobalMeanPool::new(3, 4), &[l]).unwrap();
    builder.push("fc", Linear::new(3, 4), &[m]).unwrap();
    builder.build(1).unwrap()
}

/// The network has every layer but GPT's. It trains for enough steps to capture and replay graphs, in batches of two sizes.
#[test]
fn a_residual_block_trains_as_on_the_cpu_and_becomes_graphs() {
    residual(Config::default().with(|c| {
        c.optimiser.lr = 0.02;
        c.optimiser.momentum = 0.9;
        c.training.batch = 5;
    }));
}

/// Pictures have their channels last between the convolutions; layer norm and the linear layer need planes.
#[test]
fn a_residual_block_with_channels_last_trains_as_on_the_cpu() {
    residual(Config::default().with(|c| {
        c.optimiser.lr = 0.02;
        c.optimiser.momentum = 0.9;
        c.training.batch = 5;
        c.channels_last = true;
    }));
}

fn residual(config: Config) {
    let batch = |n: usize, seed: usize| Batch::<f32> {
        x: (0..n * 112).map(|i| ((i + seed) * 37 % 101) as f32 / 50.0 - 1.0).collect(),
        labels: (0..n as u32).map(|i| (i + seed as u32) % 4).collect(),
    };
    let cpu = config.clone().with(|c| c.strategy = "single".into());
    let host = World::threads(1).run(|comm| {
        let mut model = Model::new(block(), 3)?;
        let mut rank = RankTrainer::new(&cpu, block(), &comm)?;
        rank.start(&mut model)?;
        let input = StepInput { lr: cpu.optimiser.lr, ..StepInput::default() };
        let step = |step: usize| rank.step(&mut batch(if step % 3 == 2 { 3 } else { 5 }, step), input, None);
        let losses = (0..9).map(step).map(|done| done.map(|done| done.loss)).collect::<Result<Vec<_>>>()?;
        rank.download(&mut model.params, &mut model.buffers)?;
        Ok::<_, allfold_trainer::Error>((losses, model.params, model.buffers))
    });
    let (losses, host_params, host_buffers) = host.unwrap().remove(0);
    let config = &config;
    let device = World::threads(1).run(|comm| {
        let mut replica = Replica::of(config, block(), &comm, (machine(), 0))?;
        let (mut start, mut memory) = (Model::new(block(), 3)?, Sgd::<f32>::new(0.9, 0.0, false));
        replica.upload(&start.params, &start.buffers, &mut memory)?;
        // A resumed run whose checkpoint is of its last step evaluates first, in larger batches than it trains in.
        assert!(replica.evaluate(&batch(7, 1))?.0.is_finite());
        let (mut losses, mut peak) = (Vec::new(), 0);
        for step in 0..9 {
            let n = if step % 3 == 2 { 3 } else { 5 };
            replica.stage(&batch(n, step))?;
            let samples = replica.start(
                StepInput { lr: config.optimiser.lr, ..StepInput::default() },
                n as u64,
                false,
            )?;
            losses.push(replica.finish(samples)?.loss);
            if step == 5 {
                peak = replica.memory().activations;
            }
        }
        // Batches of two sizes: each runs uncaptured once and then as a graph, which takes no more memory.
        assert_eq!(replica.graphs(), 2);
        assert!(peak > 0 && replica.memory().activations == peak);
        replica.download(&mut start.params, &mut start.buffers, &mut memory)?;
        assert_eq!(*memory.state().steps, 9);
        Ok::<_, allfold_trainer::Error>((losses, start.params, start.buffers))
    });
    let (device, params, buffers) = device.unwrap().remove(0);
    for (step, (a, b)) in losses.iter().zip(&device).enumerate() {
        assert!((a - b).abs() < 2e-5 * tolerance_factor() * b.abs(), "step {step}: {a} {b}");
    }
    let near = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .all(|(a, b)| f64::from((a - b).abs()) < 1e-3 * tolerance_factor() * f64::from(b.abs().max(0.1)))
    };
    for place in block().params() {
        let (got, want) = (&params[place.range.clone()], &host_params[place.range.clone()]);
        assert!(near(got, want), "{}: {got:?} {want:?}", place.name);
    }
    assert!(near(&buffers, &host_buffers), "{buffers:?} {host_buffers:?}");
}
