use super::*;
use crate::engine::StepInput;
use crate::layers::{
    Add, BatchNorm, Conv2d, Dropout, Gelu, GlobalMeanPool, Init, Layer, LayerNorm, Linear, Pool, Relu,
};
use crate::models::{Bert, Cnn, Gpt, Llama, bert, cnn, gpt, llama, mlp};
use crate::{Builder, Config, RankTrainer};
use allfold_collectives::World;
use allfold_kernels::nn::{self, PoolShape};

/// The seed of weights and draws.
const SEED: u64 = 3;

/// Runs `body` with a model of `network` and a single rank that trains it.
fn alone<T: Send>(
    network: impl Fn() -> Network<f64> + Sync,
    config: &Config,
    body: impl Fn(&mut Model<f64>, &mut RankTrainer<'_, f64>) -> T + Sync,
) -> T {
    let config = config.clone().with(|c| c.strategy = "single".into());
    let all = World::threads(1).run(|comm| {
        let mut model = Model::new(network(), SEED)?;
        let mut rank = RankTrainer::new(&config, network(), &comm)?;
        Ok::<_, crate::Error>(body(&mut model, &mut rank))
    });
    all.unwrap().remove(0)
}

/// The loss and the gradients of the model's parameters.
fn pass(
    model: &mut Model<f64>,
    rank: &mut RankTrainer<'_, f64>,
    x: &[f64],
    labels: &[u32],
) -> (f64, Vec<f64>) {
    rank.start(model).unwrap();
    let draw_key = DrawKey { seed: SEED, ..DrawKey::default() };
    let mut batch = Batch { x: x.to_vec(), labels: labels.to_vec() };
    let done = rank.step(&mut batch, StepInput { draw_key, ..StepInput::default() }, None);
    (done.unwrap().loss, rank.gradients().unwrap())
}

/// Checks that the gradient of every `stride`th parameter is within `near` of a central difference over `step`.
fn match_differences(
    (model, rank): (&mut Model<f64>, &mut RankTrainer<'_, f64>),
    (x, labels): (&[f64], &[u32]),
    (stride, step, near): (usize, f64, f64),
) {
    let (_, grads) = pass(model, rank, x, labels);
    for (i, grad) in grads.into_iter().enumerate().step_by(stride) {
        let at = model.params[i];
        let mut shifted = |to: f64| {
            model.params[i] = to;
            pass(model, rank, x, labels).0
        };
        let numeric = (shifted(at + step) - shifted(at - step)) / (2.0 * step);
        model.params[i] = at;
        assert!((numeric - grad).abs() < near, "param {i}: {grad} {numeric}");
    }
}

/// Networks that together contain every layer but embeddings, attention, experts and layers that ranks share.
fn networks() -> Vec<Network<f64>> {
    let picture = (6, 6);
    let conv = |inputs, outputs, stride| {
        Conv2d::new(nn::Conv2dShape { inputs, outputs, picture, kernel: 3, stride, padding: 1, groups: 1 })
    };
    let mean = PoolShape { channels: 3, picture: (3, 3), window: 2, stride: 1, padding: 0 };
    let every: Vec<(&str, Box<dyn Layer<f64>>)> = vec![
        ("conv", Box::new(conv(2, 3, 2))),
        ("bn", Box::new(BatchNorm::new(3, 9))),
        ("relu", Box::new(Relu::new(27))),
        ("mean", Box::new(Pool::mean(mean))),
        ("global", Box::new(GlobalMeanPool::new(3, 4))),
        ("fc", Box::new(Linear::new(3, 4))),
    ];
    let max = PoolShape { channels: 2, picture, window: 2, stride: 2, padding: 0 };
    let pooled: Vec<(&str, Box<dyn Layer<f64>>)> =
        vec![("max", Box::new(Pool::max(max))), ("fc", Box::new(Linear::new(18, 3)))];
    let named = |layers: Vec<(&str, Box<dyn Layer<f64>>)>| {
        Network::new(layers.into_iter().map(|(name, layer)| (name.to_string(), layer)).collect()).unwrap()
    };
    let parts = Cnn { shape: (1, 4, 4), channels: &[2, 3], batch_norm: true, classes: 3 };
    vec![
        named(every),
        named(pooled),
        residual(),
        rewriting(),
        mlp(7, &[6, 5], 4).unwrap(),
        cnn(&parts).unwrap(),
    ]
}

/// Two branches over grouped convolutions, then a layer norm, dropout, and a linear layer over rows.
fn residual() -> Network<f64> {
    let shape = nn::Conv2dShape {
        inputs: 4,
        outputs: 4,
        picture: (3, 3),
        kernel: 3,
        stride: 1,
        padding: 1,
        groups: 2,
    };
    let mut builder = Builder::new(36);
    let a = builder.push("conv", Conv2d::new(shape).with_bias(Init::Uniform(0.3)), &[0]).unwrap();
    let b = builder.push("gelu", Gelu::new(36), &[a]).unwrap();
    let c = builder.push("deep", Conv2d::new(shape).normal(), &[b]).unwrap();
    let d = builder.push("add", Add::new(36), &[c, a]).unwrap();
    let e = builder.push("ln", LayerNorm::new(4, 9), &[d]).unwrap();
    let f = builder.push("drop", Dropout::new(0.25, 36), &[e]).unwrap();
    let init = Init::Normal(0.3);
    let g = builder.push("rows", Linear::rows(4, (9, 3), init, None), &[f]).unwrap();
    builder.push("fc", Linear::new(12, 3), &[g]).unwrap();
    builder.build(1).unwrap()
}

/// Layers that work in place, on activations that may be overwritten and on others that may not.
fn rewriting() -> Network<f64> {
    let mut builder = Builder::new(6);
    let linear = || Linear::new(6, 6);
    let samples = builder.push("samples", Relu::new(6), &[0]).unwrap();
    let a = builder.push("a", linear(), &[samples]).unwrap();
    let relu = builder.push("relu", Relu::new(6), &[a]).unwrap();
    let b = builder.push("b", linear(), &[0]).unwrap();
    let both = builder.push("both", Add::new(6), &[relu, b]).unwrap();
    let over = builder.push("over", Relu::new(6), &[both]).unwrap();
    let c = builder.push("c", linear(), &[over]).unwrap();
    let twice = builder.push("twice", Relu::new(6), &[c]).unwrap();
    let sum = builder.push("sum", Add::new(6), &[c, twice]).unwrap();
    builder.push("last", Add::new(6), &[sum, b]).unwrap();
    builder.build(1).unwrap()
}

#[test]
fn a_layer_writes_over_what_nobody_reads_again() {
    let network = rewriting();
    let name = |act: usize| act.checked_sub(1).map_or("input", |layer| &*network.names()[layer]);
    let over = |act: &usize| network.storage_of(*act) != *act;
    let storages: Vec<_> = (0..=network.layers().len())
        .filter(over)
        .map(|act| (name(act), name(network.storage_of(act))))
        .collect();
    // The input is never overwritten. `both` may not overwrite `b`, which `last` reads, nor `relu`, which `relu`'s backward pass
    // reads; `twice` may not overwrite `c`, which `sum` reads; `sum` may overwrite neither of its inputs.
    assert_eq!(storages, [("relu", "a"), ("over", "both"), ("last", "sum")]);
}

/// The head's weight is the token table: its gradient is the sum of both uses.
#[test]
fn gradients_of_a_tied_gpt_match_differences() {
    for tied in [true, false] {
        let parts = Gpt {
            vocabulary: 5,
            positions: 3,
            layers: 2,
            width: 4,
            heads: 2,
            dropout: 0.25,
            attention_dropout: 0.25,
            tied,
        };
        let network = || gpt::<f64>(&parts).unwrap();
        alone(network, &Config::default(), |model, rank| {
            // The usual initial weights are so small that rounding would hide the differences.
            model.params.iter_mut().zip(0..).for_each(|(p, i)| *p += (i * 37 % 101) as f64 / 101.0 - 0.5);
            let (x, labels) = ([0.0, 3.0, 1.0, 4.0, 4.0, 2.0], [3, 1, 2, 4, 2, 0]);
            match_differences((model, rank), (&x, &labels), (1, 1e-5, 1e-8));
        });
    }
}

#[test]
fn gradients_of_a_llama_match_differences() {
    for tied in [true, false] {
        let parts = Llama {
            vocabulary: 5,
            positions: 3,
            layers: 2,
            width: 8,
            heads: 4,
            kv_heads: 2,
            ffn: 6,
            rope_base: 10.0,
            attention_dropout: 0.25,
            tied,
        };
        alone(
            || llama::<f64>(&parts).unwrap(),
            &Config::default(),
            |model, rank| {
                model.params.iter_mut().zip(0..).for_each(|(p, i)| *p += (i * 37 % 101) as f64 / 101.0 - 0.5);
                let (x, labels) = ([0.0, 3.0, 1.0, 4.0, 4.0, 2.0], [3, 1, 2, 4, 2, 0]);
                match_differences((model, rank), (&x, &labels), (1, 1e-5, 1e-7));
            },
        );
    }
}

#[test]
fn gradients_of_a_bert_match_differences() {
    let parts = Bert {
        vocabulary: 5,
        positions: 3,
        most_positions: 4,
        layers: 2,
        width: 4,
        heads: 2,
        dropout: 0.25,
        attention_dropout: 0.25,
        classes: 3,
    };
    alone(
        || bert::<f64>(&parts).unwrap(),
        &Config::default(),
        |model, rank| {
            model.params.iter_mut().zip(0..).for_each(|(p, i)| *p += (i * 37 % 101) as f64 / 101.0 - 0.5);
            let (x, labels) = ([0.0, 3.0, 1.0, 4.0, 4.0, 2.0], [2, 1]);
            match_differences((model, rank), (&x, &labels), (1, 1e-5, 1e-7));
        },
    );
}

/// A bert ends its blocks with norms, of which the backward pass reads what they saved in the forward pass.
#[test]
fn recomputed_blocks_of_a_bert_have_the_same_gradients() {
    let parts = Bert {
        vocabulary: 5,
        positions: 3,
        most_positions: 4,
        layers: 3,
        width: 4,
        heads: 2,
        dropout: 0.25,
        attention_dropout: 0.25,
        classes: 3,
    };
    let of = |every: usize| {
        let network = || {
            let mut network = bert::<f64>(&parts).unwrap();
            network.recompute(every).unwrap();
            network
        };
        let again =
            network().backward_phases().iter().filter(|p| matches!(p, crate::Phase::Recompute(_))).count();
        let (x, labels) = ([0.0, 3.0, 1.0, 4.0, 4.0, 2.0], [2, 1]);
        (again, alone(network, &Config::default(), |model, rank| pass(model, rank, &x, &labels)))
    };
    let (kept, all, some) = (of(0), of(1), of(2));
    // Of the twelve layers of a block all but its last norm run again.
    assert_eq!([kept.0, all.0, some.0], [0, 3 * 11, 2 * 11]);
    assert!(all.1 == kept.1 && some.1 == kept.1);
}

#[test]
fn frozen_layers_have_no_gradient_and_what_they_alone_need_is_not_computed() {
    let mut network = residual();
    let all = network.backward_phases().len();
    network.freeze(&["conv".into(), "deep.weight".into()], &[]).unwrap();
    assert!(network.backward_phases().len() < all);
    let names: Vec<&str> = network.order().iter().map(|param| &*network.params()[*param].name).collect();
    assert_eq!(names, ["fc.bias", "fc.weight", "rows.weight", "ln.bias", "ln.weight"]);
    let error = residual().freeze(&["cov".into()], &[]).unwrap_err().to_string();
    assert_eq!(error, "unknown frozen layer `cov`; the nearest is `conv`");
}

/// Of a block that has many layers, the block's own name is the nearest.
#[test]
fn a_misspelt_block_is_answered_with_the_block() {
    let config = Config::default().with(|c| c.model.name = "resnet18".into());
    let form = crate::SampleForm::new((3, 8, 8), 10);
    let error = |pattern: &str| {
        let mut network = crate::models::build::<f32>(&config, form).unwrap();
        network.freeze(&[pattern.into()], &[]).unwrap_err().to_string()
    };
    for (got, nearest) in [("layr1", "layer1"), ("layer2.0.convv1", "layer2.0.conv1")] {
        assert_eq!(error(got), format!("unknown frozen layer `{got}`; the nearest is `{nearest}`"));
    }
}

#[test]
fn patterns_freeze_all_but_what_is_trained() {
    let trained = |frozen: &[&str], trained: &[&str]| {
        let words = |words: &[&str]| words.iter().map(|word| (*word).into()).collect::<Vec<String>>();
        let mut network = residual();
        network.freeze(&words(frozen), &words(trained)).map_err(|error| error.to_string())?;
        let params = network.params().iter().enumerate().filter(|(param, _)| !network.frozen(*param));
        Ok::<_, String>(params.map(|(_, place)| place.name.clone()).collect::<Vec<_>>())
    };
    assert_eq!(trained(&["*"], &["fc"]).unwrap(), ["fc.weight", "fc.bias"]);
    assert_eq!(trained(&["*"], &["l*.weight", "rows"]).unwrap(), ["ln.weight", "rows.weight"]);
    assert_eq!(trained(&["*weight"], &[]).unwrap(), ["conv.bias", "ln.bias", "fc.bias"]);
    let error = |frozen, but| trained(frozen, but).unwrap_err();
    assert_eq!(
        error(&["*"], &[]),
        "`model.frozen` names every parameter; leave some to train, or name them in `model.trained`"
    );
    assert_eq!(error(&["*"], &["rowz*"]), "unknown trained layer `rowz*`; the nearest is `rows`");
    // A layer without parameters cannot be frozen, and is no suggestion.
    assert_eq!(error(&["gelu"], &[]), "unknown frozen layer `gelu`; there are conv, deep, ln, rows, fc");
}

#[test]
fn autocast_rounds_what_it_lists_and_nothing_else() {
    let x: Vec<f64> = (0..72).map(|i| (i * 37 % 101) as f64 / 50.0 - 1.0).collect();
    let narrow = |values: &[f64]| {
        let mut rounded = values.to_vec();
        Narrow::F16.round(&mut rounded);
        rounded == values
    };
    let mut half = Model::new(residual(), SEED).unwrap();
    half.autocast(Narrow::F16);
    half.evaluate(&Batch { x: x.clone(), labels: vec![0, 1] }, |_| ());
    // Activations: the input, conv, gelu, deep, add | ln, drop | rows, fc.
    let narrows: Vec<bool> = half.pass.acts.iter().map(|act| narrow(act)).collect();
    assert_eq!(narrows, [false, true, true, true, true, false, false, true, true]);
    assert!(!narrow(&half.params));
    let grads = |amp: &str| {
        let config = Config::default().with(|c| c.set("precision.amp", amp).unwrap());
        alone(residual, &config, |model, rank| pass(model, rank, &x, &[0, 1]).1)
    };
    let (half, plain) = (grads("f16"), grads("none"));
    for place in residual().params() {
        let (half, plain) = (&half[place.range.clone()], &plain[place.range.clone()]);
        assert_eq!(narrow(half), !place.name.starts_with("ln"), "{}", place.name);
        let size = plain.iter().fold(0.0, |max: f64, g| max.max(g.abs()));
        assert!(half.iter().zip(plain).all(|(a, b)| (a - b).abs() < 0.02 * size), "{}", place.name);
    }
}

#[test]
fn gradients_of_whole_networks_match_differences() {
    const N: usize = 4;
    for (at, synchronised) in (0..networks().len()).flat_map(|at| [(at, false), (at, true)]) {
        let network = || {
            let mut network = networks().swap_remove(at);
            if synchronised {
                network.synchronise();
            }
            network
        };
        let (inputs, classes) = (network().inputs(), network().classes());
        let x: Vec<_> = (0..N * inputs).map(|i| ((i * 37 % 101) as f64 / 50.0) - 1.0).collect();
        let labels: Vec<u32> = (0..N as u32).map(|i| i % classes as u32).collect();
        alone(network, &Config::default(), |model, rank| {
            let stride = model.params.len().div_ceil(60);
            match_differences((model, rank), (&x, &labels), (stride, 1e-6, 1e-6));
        });
    }
}

#[test]
fn gradients_are_announced_last_first() {
    for network in networks() {
        let count = network.params().len();
        assert_eq!(network.order(), (0..count).rev().collect::<Vec<_>>());
    }
}

#[test]
fn memory_is_what_a_step_holds() {
    for at in 0..networks().len() {
        let network = || networks().swap_remove(at);
        let (inputs, params, told) = (network().inputs(), network().param_count(), network().memory(2));
        let held = alone(network, &Config::default(), |model, rank| {
            rank.observe(true);
            pass(model, rank, &vec![0.3; 2 * inputs], &[0, 1]);
            // `memory` counts buckets, one more value per parameter; strategy `single` has none.
            rank.peak().unwrap().total() + 8 * params as u64
        });
        println!("{at}: {told} for {held}");
        assert!(held <= told && told <= 2 * held, "{told} for {held}");
    }
}

#[test]
fn layers_that_do_not_fit_are_refused() {
    let layers: Vec<(String, Box<dyn Layer<f32>>)> =
        vec![("a".into(), Box::new(Linear::new(3, 4))), ("b".into(), Box::new(Linear::new(5, 2)))];
    let error = Network::new(layers).err().unwrap();
    assert_eq!(error.to_string(), "network: a outputs 4 numbers per sample but layer b takes 5");
}

/// Regression: micro-batches were counted in 16 bits, and `accumulate` may be 65,536.
#[test]
fn every_sample_of_the_largest_step_draws_apart() {
    let place = |rank, sample| DrawKey { first: rank, stride: 4, ..DrawKey::default() }.after(sample).first;
    let places: std::collections::BTreeSet<u32> =
        (0..4).flat_map(|rank| (0..65_536).map(move |sample| place(rank, sample))).collect();
    assert_eq!((places.len(), places.last()), (4 * 65_536, Some(&(4 * 65_536 - 1))));
}
