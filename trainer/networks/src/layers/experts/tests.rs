use super::*;
use crate::layers::{Backward, Forward, Init, Layer, NoPeers, SavedTensors};
use allfold_kernels::nn::{DropoutStream, GeluKernel};

const N: usize = 2;
const SHAPE: ExpertShape = ExpertShape { positions: 5, width: 4, experts: 3, chosen: 2, capacity: 5 };
const HIDDEN: usize = 6;

/// The layers of a mixture, in order.
fn layers(shape: ExpertShape, balance: f64) -> Vec<Box<dyn Layer<f64>>> {
    let (init, tail) = (Init::Constant(0.0), 2 * shape.choices());
    let (width, of) = (shape.width, (shape.experts, shape.capacity));
    vec![
        Box::new(ExpertRouter::new(shape, balance, init)),
        Box::new(ExpertLinear::new((width, HIDDEN), of, tail, init)),
        Box::new(ExpertGelu::new(shape.slots() * HIDDEN, tail)),
        Box::new(ExpertLinear::new((HIDDEN, width), of, tail, init)),
        Box::new(ExpertCombine::new(shape)),
    ]
}

/// `count` numbers between -1 and 1 without a pattern.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn params(layers: &[Box<dyn Layer<f64>>], seed: u64) -> Vec<Vec<f64>> {
    let len = |layer: &dyn Layer<f64>| layer.params().iter().map(|tensor| tensor.len()).sum::<usize>();
    (seed..).zip(layers).map(|(seed, layer)| numbers(len(&**layer), seed)).collect()
}

/// What a forward pass leaves: the activations, and what each layer saved.
struct Passed {
    acts: Vec<Vec<f64>>,
    saved: Vec<SavedTensors<f64>>,
}

fn forward(layers: &[Box<dyn Layer<f64>>], params: &[Vec<f64>], x: &[f64]) -> Passed {
    let mut passed = Passed { acts: vec![x.to_vec()], saved: Vec::new() };
    for (layer, params) in layers.iter().zip(params) {
        let (values, places) = layer.saved(N);
        let mut saved = SavedTensors { values: vec![0.0; values], indices: vec![0; places] };
        let mut y = vec![f64::NAN; N * layer.outputs()];
        layer.forward(Forward {
            n: N,
            train: true,
            params,
            buffers: &mut [],
            x: passed.acts.last().unwrap(),
            other: &[],
            y: &mut y,
            saved: &mut saved,
            totals: &[],
            stream: DropoutStream::default(),
            peers: &mut NoPeers,
        });
        passed.acts.push(y);
        passed.saved.push(saved);
    }
    passed
}

/// The gradients of the parameters of each layer, and of the input.
fn backward(
    layers: &[Box<dyn Layer<f64>>],
    params: &[Vec<f64>],
    mut passed: Passed,
    dy: &[f64],
) -> (Vec<Vec<f64>>, Vec<f64>) {
    let (mut grads, mut dy) = (Vec::new(), dy.to_vec());
    for (l, layer) in layers.iter().enumerate().rev() {
        let mut own = vec![f64::NAN; params[l].len()];
        let mut dx = vec![f64::NAN; N * layer.inputs()];
        let mut pass = Backward {
            n: N,
            scale: 1.0,
            params: &params[l],
            x: &passed.acts[l],
            y: &passed.acts[l + 1],
            dy: &dy,
            saved: &mut passed.saved[l],
            totals: &[],
            peers: &mut NoPeers,
        };
        layer.backward_params(&mut pass, &mut own);
        layer.backward_input(&mut pass, &own, &mut dx);
        grads.push(own);
        dy = dx;
    }
    grads.reverse();
    (grads, dy)
}

/// The mixture by its formula, token by token, with a token's experts that have free slots: the outputs, and the
/// balance loss.
fn dense(shape: ExpertShape, params: &[Vec<f64>], x: &[f64]) -> (Vec<f64>, f64) {
    let ExpertShape { positions, width, experts, chosen, capacity } = shape;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let linear = |params: &[f64], e: usize, x: &[f64], outputs: usize| -> Vec<f64> {
        let (inputs, weights) = (x.len(), experts * x.len() * outputs);
        let row = |o: usize| &params[(e * outputs + o) * inputs..][..inputs];
        (0..outputs).map(|o| dot(row(o), x) + params[weights + e * outputs + o]).collect()
    };
    let (mut y, mut balance) = (Vec::new(), 0.0);
    for sample in x.chunks_exact(positions * width) {
        let (mut taken, mut shares, mut means) = (vec![0; experts], vec![0.0; experts], vec![0.0; experts]);
        for x in sample.chunks_exact(width) {
            let logits = (0..experts).map(|e| dot(&params[0][e * width..(e + 1) * width], x));
            let p: Vec<f64> = logits.map(f64::exp).collect();
            let sum: f64 = p.iter().sum();
            let p: Vec<f64> = p.iter().map(|p| p / sum).collect();
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
            let best = &order[..chosen];
            let sum = if chosen == 1 { 1.0 } else { best.iter().map(|e| p[*e]).sum::<f64>() };
            let mut out = vec![0.0; width];
            for &e in best {
                shares[e] += 1.0 / (positions * chosen) as f64;
                taken[e] += 1;
                if taken[e] <= capacity {
                    let h = linear(&params[1], e, x, HIDDEN);
                    let mut active = vec![0.0; HIDDEN];
                    GeluKernel::forward(&h, &mut active);
                    let says = linear(&params[3], e, &active, width);
                    out.iter_mut().zip(says).for_each(|(out, says)| *out += p[e] / sum * says);
                }
            }
            means.iter_mut().zip(&p).for_each(|(mean, p)| *mean += p / positions as f64);
            y.extend(out);
        }
        balance += experts as f64 * dot(&shares, &means) / (x.len() / (positions * width)) as f64;
    }
    (y, balance)
}

fn shapes() -> impl Iterator<Item = ExpertShape> {
    let choices = [(1, 5), (2, 5), (3, 5), (1, 2), (2, 2), (2, 1)];
    choices.into_iter().map(|(chosen, capacity)| ExpertShape { chosen, capacity, ..SHAPE })
}

#[test]
fn a_mixture_equals_its_dense_evaluation() {
    for shape in shapes() {
        let layers = layers(shape, 0.1);
        let (params, x) = (params(&layers, 3), numbers(N * 20, 9));
        let got = forward(&layers, &params, &x).acts.pop().unwrap();
        let (want, _) = dense(shape, &params, &x);
        let far = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(got.len() == want.len() && far < 1e-14, "{shape:?}: {far:e}");
    }
}

/// The gradients of outputs plus balance loss with respect to router, weights and tokens, against finite differences.
#[test]
fn the_gradients_match_differences_with_drops_and_without() {
    const BALANCE: f64 = 0.7;
    for shape in shapes() {
        let layers = layers(shape, BALANCE);
        let (params, x, r) = (params(&layers, 3), numbers(N * 20, 9), numbers(N * 20, 10));
        let value = |params: &[Vec<f64>], x: &[f64]| {
            let (y, balance) = dense(shape, params, x);
            y.iter().zip(&r).map(|(y, r)| y * r).sum::<f64>() + BALANCE * balance
        };
        let (grads, dx) = backward(&layers, &params, forward(&layers, &params, &x), &r);
        let close = |what: String, gradient: f64, above: f64, below: f64| {
            let numeric = (above - below) / 2e-6;
            assert!((numeric - gradient).abs() < 1e-7, "{shape:?} {what}: {gradient} and {numeric}");
        };
        let mut moved = params.clone();
        for (l, grads) in grads.iter().enumerate() {
            for (i, &gradient) in grads.iter().enumerate() {
                let mut at = |step: f64| {
                    moved[l][i] = params[l][i] + step;
                    value(&moved, &x)
                };
                let (above, below) = (at(1e-6), at(-1e-6));
                moved[l][i] = params[l][i];
                close(format!("layer {l}, weight {i}"), gradient, above, below);
            }
        }
        let mut moved = x.clone();
        for (i, &gradient) in dx.iter().enumerate() {
            let mut at = |step: f64| {
                moved[i] = x[i] + step;
                value(&params, &moved)
            };
            let (above, below) = (at(1e-6), at(-1e-6));
            moved[i] = x[i];
            close(format!("input {i}"), gradient, above, below);
        }
    }
}

/// A full expert drops all later tokens, and a token changes no output of an earlier token.
#[test]
fn the_first_tokens_of_a_sample_are_kept() {
    let shape = ExpertShape { chosen: 1, capacity: 2, ..SHAPE };
    let layers = layers(shape, 0.0);
    let mut params = params(&layers, 3);
    // Every token with a positive first number goes to expert 1.
    params[0].fill(0.0);
    params[0][shape.width] = 50.0;
    let mut x = numbers(N * 20, 9);
    x.iter_mut().step_by(shape.width).for_each(|x| *x = 1.0);
    let y = forward(&layers, &params, &x).acts.pop().unwrap();
    let said: Vec<bool> = y.chunks_exact(shape.width).map(|y| y.iter().any(|y| *y != 0.0)).collect();
    assert_eq!(said, [[true, true, false, false, false]; N].concat());
    x[3 * shape.width..5 * shape.width].fill(-1.0);
    let after = forward(&layers, &params, &x).acts.pop().unwrap();
    assert_eq!(after[..3 * shape.width], y[..3 * shape.width]);
    assert_ne!(after[3 * shape.width..], y[3 * shape.width..]);
}

/// Steps against the gradient of the balance loss alone make that loss smaller.
#[test]
fn the_balance_loss_evens_the_experts_out() {
    let layers = layers(ExpertShape { chosen: 1, ..SHAPE }, 1.0);
    let (mut params, x) = (params(&layers, 3), numbers(N * 20, 9));
    let shape = ExpertShape { chosen: 1, ..SHAPE };
    let before = dense(shape, &params, &x).1;
    for _ in 0..50 {
        let (grads, _) = backward(&layers, &params, forward(&layers, &params, &x), &[0.0; N * 20]);
        params[0].iter_mut().zip(&grads[0]).for_each(|(p, g)| *p -= 0.1 * g);
    }
    let after = dense(shape, &params, &x).1;
    assert!(after < before && before > 1.0, "{before} {after}");
}
