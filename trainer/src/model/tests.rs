use super::*;
use crate::Builder;
use crate::layers::{
    Add, BatchNorm, Conv2d, Dropout, Gelu, GlobalMeanPool, Layer, LayerNorm, Linear, MaxPool, MeanPool, Relu,
};
use crate::models::{Cnn, Gpt, cnn, gpt, mlp};
use allfold_kernels::nn::{self, PoolShape};

/// Remembers who was ready, and that the gradient was the final one.
struct Log(Vec<(usize, Vec<f64>)>, OpCost);

impl Listener<f64> for Log {
    fn on_cost(&mut self, cost: OpCost) {
        self.1 = self.1 + cost;
    }
    fn on_grad(&mut self, param: usize, elements: Range<usize>, grads: &mut Buffer<f64>) -> Result<()> {
        self.0.push((param, grads[elements].to_vec()));
        Ok(())
    }
}

/// Networks that hold every layer between them.
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
        ("mean", Box::new(MeanPool::new(mean))),
        ("global", Box::new(GlobalMeanPool::new(3, 4))),
        ("fc", Box::new(Linear::new(3, 4))),
    ];
    let max = PoolShape { channels: 2, picture, window: 2, stride: 2, padding: 0 };
    let pooled: Vec<(&str, Box<dyn Layer<f64>>)> =
        vec![("max", Box::new(MaxPool::new(max))), ("fc", Box::new(Linear::new(18, 3)))];
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

/// Two branches over grouped convolutions, then rows that are normalised, and draws.
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
    let a = builder.push("conv", Conv2d::new(shape).with_bias(), &[0]).unwrap();
    let b = builder.push("gelu", Gelu::new(36), &[a]).unwrap();
    let c = builder.push("deep", Conv2d::new(shape).normal(), &[b]).unwrap();
    let d = builder.push("add", Add::new(36), &[c, a]).unwrap();
    let e = builder.push("ln", LayerNorm::new(4, 9), &[d]).unwrap();
    let f = builder.push("drop", Dropout::new(0.25, 36), &[e]).unwrap();
    let init = crate::layers::Init::Normal(0.3);
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
    // Not `samples` over the input, `both` over `b`, which `last` reads, or over `relu`, which its own backward pass reads; nor
    // `twice` over `c`, which `sum` reads; nor `sum` over either.
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
        let mut model = Model::new(gpt::<f64>(&parts).unwrap(), 3).unwrap();
        // The usual start is so small that differences drown.
        model.params.iter_mut().zip(0..).for_each(|(p, i)| *p += (i * 37 % 101) as f64 / 101.0 - 0.5);
        let (x, labels) = ([0.0, 3.0, 1.0, 4.0, 4.0, 2.0], [3, 1, 2, 4, 2, 0]);
        let run = |model: &mut Model<f64>| {
            let mut log = Log(Vec::new(), OpCost::default());
            model.forward(&x, &mut log).unwrap();
            model.backward(Objective::mean(&labels), &mut log).unwrap()
        };
        run(&mut model);
        let grads = model.grads.to_vec();
        for (i, grad) in grads.into_iter().enumerate() {
            let (at, step) = (model.params[i], 1e-5);
            let mut shifted = |to: f64| {
                model.params[i] = to;
                run(&mut model)
            };
            let numeric = (shifted(at + step) - shifted(at - step)) / (2.0 * step);
            model.params[i] = at;
            assert!((numeric - grad).abs() < 1e-8, "param {i}: {grad} {numeric}");
        }
    }
}

#[test]
fn frozen_layers_have_no_gradient_and_what_they_alone_need_is_not_computed() {
    let mut network = residual();
    let all = network.backward_phases().len();
    network.freeze(&["conv".into(), "deep.weight".into()]).unwrap();
    assert!(network.backward_phases().len() < all);
    let mut model = Model::new(network, 3).unwrap();
    let mut log = Log(Vec::new(), OpCost::default());
    model.forward(&[0.3; 72], &mut log).unwrap();
    model.backward(Objective::mean(&[0, 1]), &mut log).unwrap();
    let names: Vec<&str> = log.0.iter().map(|(param, _)| &*model.network().params()[*param].name).collect();
    assert_eq!(names, ["fc.bias", "fc.weight", "rows.weight", "ln.bias", "ln.weight"]);
    let error = residual().freeze(&["cov".into()]).unwrap_err().to_string();
    assert_eq!(error, "unknown frozen layer `cov`; the nearest is `conv`");
}

#[test]
fn autocast_rounds_what_it_lists_and_nothing_else() {
    let mut plain = Model::new(residual(), 3).unwrap();
    let mut half = Model::new(residual(), 3).unwrap();
    half.autocast(Narrow::F16);
    let x: Vec<f64> = (0..72).map(|i| (i * 37 % 101) as f64 / 50.0 - 1.0).collect();
    let mut log = Log(Vec::new(), OpCost::default());
    for model in [&mut plain, &mut half] {
        model.forward(&x, &mut log).unwrap();
        model.backward(Objective::mean(&[0, 1]), &mut log).unwrap();
    }
    let narrow = |values: &[f64]| {
        let mut rounded = values.to_vec();
        Narrow::F16.round(&mut rounded);
        rounded == values
    };
    // Activations: the input, conv, gelu, deep, add | ln, drop | rows, fc.
    let narrows: Vec<bool> = half.pass.acts.iter().map(|act| narrow(act)).collect();
    assert_eq!(narrows, [false, true, true, true, true, false, false, true, true]);
    assert!(!narrow(&half.params) && half.params == plain.params);
    for place in half.network().params() {
        let (half, plain) = (&half.grads[place.range.clone()], &plain.grads[place.range.clone()]);
        assert_eq!(narrow(half), !place.name.starts_with("ln"), "{}", place.name);
        let size = plain.iter().fold(0.0, |max: f64, g| max.max(g.abs()));
        assert!(half.iter().zip(plain).all(|(a, b)| (a - b).abs() < 0.02 * size), "{}", place.name);
    }
}

#[test]
fn gradients_of_whole_networks_match_differences() {
    const N: usize = 4;
    let synchronised = networks().into_iter().map(|mut network| {
        network.synchronise();
        network
    });
    for network in networks().into_iter().chain(synchronised) {
        let (inputs, classes) = (network.inputs(), network.classes());
        let mut model = Model::new(network, 3).unwrap();
        let places: Vec<_> = (0..N * inputs).map(|i| ((i * 37 % 101) as f64 / 50.0) - 1.0).collect();
        let labels: Vec<u32> = (0..N as u32).map(|i| i % classes as u32).collect();
        let run = |model: &mut Model<f64>| {
            let mut log = Log(Vec::new(), OpCost::default());
            model.forward(&places, &mut log).unwrap();
            model.backward(Objective::mean(&labels), &mut log).unwrap()
        };
        run(&mut model);
        let grads = model.grads.to_vec();
        for i in (0..grads.len()).step_by(grads.len().div_ceil(60)) {
            let (at, step) = (model.params[i], 1e-6);
            let mut shifted = |to: f64| {
                model.params[i] = to;
                run(&mut model)
            };
            let numeric = (shifted(at + step) - shifted(at - step)) / (2.0 * step);
            model.params[i] = at;
            assert!((numeric - grads[i]).abs() < 1e-6, "param {i}: {} {numeric}", grads[i]);
        }
    }
}

#[test]
fn gradients_are_announced_last_first_and_final() {
    for network in networks() {
        let (inputs, count) = (network.inputs(), network.params().len());
        let mut model = Model::new(network, 3).unwrap();
        let mut log = Log(Vec::new(), OpCost::default());
        model.forward(&vec![0.3; 2 * inputs], &mut log).unwrap();
        model.backward(Objective::mean(&[0, 1]), &mut log).unwrap();
        assert_eq!(
            log.0.iter().map(|(param, _)| *param).collect::<Vec<_>>(),
            (0..count).rev().collect::<Vec<_>>()
        );
        for (param, gradient) in &log.0 {
            assert_eq!(gradient[..], model.grads[model.network().params()[*param].range.clone()]);
        }
        assert_eq!(log.1, model.network().step_cost(2));
    }
}

/// A listener that keeps the gradients it is given, and fails.
struct Thief;

impl Listener<f64> for Thief {
    fn on_cost(&mut self, _: OpCost) {}
    fn on_grad(&mut self, _: usize, elements: Range<usize>, grads: &mut Buffer<f64>) -> Result<()> {
        drop(grads.split_off(elements.start));
        Err(crate::Error::Data("enough".into()))
    }
}

#[test]
fn a_pass_that_failed_leaves_a_model_that_can_go_on() {
    let mut model = Model::new(mlp::<f64>(7, &[6, 5], 4).unwrap(), 3).unwrap();
    let mut log = Log(Vec::new(), OpCost::default());
    model.forward(&[0.3; 14], &mut log).unwrap();
    model.backward(Objective::mean(&[0, 1]), &mut log).unwrap();
    let want = model.grads.to_vec();
    model.backward(Objective::mean(&[0, 1]), &mut Thief).unwrap_err();
    model.forward(&[0.3; 14], &mut log).unwrap();
    model.backward(Objective::mean(&[0, 1]), &mut log).unwrap();
    assert_eq!(model.grads[..], want);
}

#[test]
fn memory_is_what_a_step_holds() {
    for network in networks() {
        let (inputs, params) = (network.inputs(), network.param_count());
        let told = network.memory(2);
        let mut model = Model::new(network, 3).unwrap();
        let mut log = Log(Vec::new(), OpCost::default());
        model.forward(&vec![0.3; 2 * inputs], &mut log).unwrap();
        model.backward(Objective::mean(&[0, 1]), &mut log).unwrap();
        let values = |vectors: &[Vec<f64>]| vectors.iter().map(Vec::len).sum::<usize>();
        let saved: usize = model.pass.saved.iter().map(|s| 8 * s.values.len() + 4 * s.places.len()).sum();
        let act_grads: usize =
            model.pass.act_grads.iter().flatten().chain(&model.on.pool.0).map(Vec::len).sum();
        // Velocities and buckets are the strategy's and the optimiser's: two more of every parameter.
        let accumulated =
            8 * (4 * params + model.buffers.len() + values(&model.pass.acts) + act_grads) + saved;
        assert!(accumulated as u64 <= told && told <= 2 * accumulated as u64, "{told} for {accumulated}");
    }
}

#[test]
fn layers_that_do_not_fit_are_refused() {
    let layers: Vec<(String, Box<dyn Layer<f32>>)> =
        vec![("a".into(), Box::new(Linear::new(3, 4))), ("b".into(), Box::new(Linear::new(5, 2)))];
    let error = Network::new(layers).err().unwrap();
    assert_eq!(error.to_string(), "network: a outputs 4 numbers per sample but layer b takes 5");
}

/// The identity, which counts how often it is asked what the ranks add up: once whenever the phases of a pass are listed.
struct Counted(std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl Layer<f64> for Counted {
    fn inputs(&self) -> usize {
        3
    }
    fn outputs(&self) -> usize {
        3
    }
    fn sync_len(&self) -> (usize, usize) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (0, 0)
    }
    fn passes_on(&self) -> bool {
        true
    }
    fn forward(&self, pass: crate::layers::Forward<f64>) {
        pass.y.copy_from_slice(pass.x);
    }
    fn cost(&self, _n: usize) -> crate::layers::LayerCost {
        crate::layers::LayerCost::default()
    }
}

/// Which parameters the loss does not reach was found anew in every backward pass, by listing the phases a second time.
#[test]
fn a_backward_pass_lists_its_phases_once() {
    let asked = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
    let layers: Vec<(String, Box<dyn Layer<f64>>)> = vec![
        ("fc".into(), Box::new(Linear::new(2, 3))),
        ("counted".into(), Box::new(Counted(asked.clone()))),
    ];
    let mut model = Model::new(Network::new(layers).unwrap(), 1).unwrap();
    model.forward(&[0.5, 0.25], &mut Log(Vec::new(), OpCost::default())).unwrap();
    let before = asked.load(std::sync::atomic::Ordering::Relaxed);
    model.backward(Objective::mean(&[1]), &mut Log(Vec::new(), OpCost::default())).unwrap();
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed) - before, 1);
}

/// Micro-batches were counted in 16 bits, and `accumulate` may be 65,536.
#[test]
fn every_micro_batch_of_the_largest_step_draws_apart() {
    let keys: std::collections::BTreeSet<[u32; 2]> =
        (1..=65_536).map(|micro| DrawKey { micro, rank: 7, ..DrawKey::default() }.key()).collect();
    assert_eq!(keys.len(), 65_536);
    assert!(!keys.contains(&DrawKey { micro: 1, rank: 8, ..DrawKey::default() }.key()));
}
