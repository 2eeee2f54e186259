//! Tests of optim.cu over five tensors, with and without master weights: Adam and SGD are bitwise what the tests compute.

use crate::common::{Trained, near, of, same, units};
use allfold_cuda::Queue;
use allfold_cuda::launch::{self, AdamRule, LarsNorms, LarsRule, Param, Params, SgdRule, StepReads};

const LENGTHS: [usize; 5] = [3, 20_000, 0, 16_384, 77];

pub fn check(queue: &Queue) {
    crate::for_trained!(adam, queue);
    crate::for_trained!(sgd, queue);
    crate::for_trained!(lars, queue);
}

fn adam<T: Trained>(queue: &Queue) {
    for (decoupled, master) in [(false, true), (true, true), (true, false)] {
        let rule =
            |t| AdamRule { factor: 0.25, ..AdamRule::new(t, 1e-2, (0.9, 0.999), 1e-8, 0.1, decoupled) };
        let update = |t: u64, p: f32, grad: f32, m: &mut f32, v: &mut f32| {
            let r = rule(t);
            let g = grad * 0.5 + r.added * p;
            *m += r.from_g * (g - *m);
            *v = r.beta2 * *v + r.from_square * g * g;
            p * r.kept - r.rate * (*m / (v.sqrt() / r.root + r.eps))
        };
        run::<T>(queue, master, &format!("adam_{}", T::DTYPE), update, |params, t, reads| {
            launch::adam(queue, params, rule(t), reads).unwrap();
        });
    }
}

fn sgd<T: Trained>(queue: &Queue) {
    for (momentum, nesterov, master) in [(0.0, 0, true), (0.9, 0, true), (0.9, 1, false)] {
        let rule =
            |t| SgdRule { lr: 0.1, momentum, decay: 1e-2, factor: 0.25, first: u32::from(t == 1), nesterov };
        let update = |t: u64, p: f32, grad: f32, _m: &mut f32, v: &mut f32| {
            let g = grad * 0.5 + 1e-2 * p;
            if momentum == 0.0 {
                return p - 0.1 * g;
            }
            *v = if t == 1 { g } else { momentum * *v + g };
            p - 0.1 * if nesterov == 1 { g + momentum * *v } else { *v }
        };
        run::<T>(queue, master, &format!("sgd_{}", T::DTYPE), update, |params, t, reads| {
            launch::sgd(queue, params, rule(t), reads).unwrap();
        });
    }
}

/// Compares LARS with f64 within rounding: the kernel sums the norms in an order of its own.
fn lars<T: Trained>(queue: &Queue) {
    for (own, master, shared) in [(1, true, false), (0, true, false), (1, false, false), (1, true, true)] {
        let rule =
            LarsRule { lr: 0.5, decay: 0.01, trust: 0.02, momentum: 0.9, factor: 0.25, own, unused: 0 };
        let start: Vec<Vec<f32>> = LENGTHS.iter().map(|n| units(*n, *n as u64)).collect();
        // One tensor's gradient is zero, so its rate is not scaled.
        let grads: Vec<Vec<f32>> = LENGTHS
            .iter()
            .map(|n| if *n == 77 { vec![0.0; 77] } else { units(*n, 50 + *n as u64) })
            .collect();
        let there = |all: &[Vec<f32>]| all.iter().map(|x| queue.upload(x).unwrap()).collect::<Vec<_>>();
        let (masters, grads_there) = (there(&start), there(&grads));
        let velocities = there(&start.iter().map(|x| vec![0.0; x.len()]).collect::<Vec<_>>());
        let narrow: Vec<_> = start.iter().map(|x| queue.upload(&of::<T>(x)).unwrap()).collect();
        let param = |i: usize| Param {
            param: narrow[i].all(),
            grad: grads_there[i].all(),
            master: master.then(|| masters[i].all()),
            m: None,
            v: Some(velocities[i].all()),
        };
        let list: Vec<Param<'_>> = (0..LENGTHS.len()).map(param).collect();
        let params = Params::new(queue, T::DTYPE, &list).unwrap();
        let (stop, twice) = (queue.upload(&[1u32]).unwrap(), queue.upload(&[2.0f32]).unwrap());
        // The norms of the third tensor are counted by another rank.
        let squares =
            |x: &[f32], factor: f64| x.iter().map(|x| (factor * f64::from(*x)).powi(2)).sum::<f64>();
        let mut totals = vec![0.0f64; 2 * LENGTHS.len()];
        let numbers: Vec<u32> = (0..LENGTHS.len() as u32).rev().collect();
        let other = numbers[2] as usize;
        (totals[2 * other], totals[2 * other + 1]) = (squares(&start[2], 1.0), squares(&grads[2], 0.5));
        let numbers: Vec<u32> = numbers
            .iter()
            .map(|n| if *n as usize == other { n | LarsNorms::UNCOUNTED } else { *n })
            .collect();
        let (numbers, totals) = (queue.upload(&numbers).unwrap(), queue.upload(&totals).unwrap());
        let norms = LarsNorms { numbers: numbers.all(), totals: totals.all() };
        for i in 0..2 {
            let (norms, skip) = (shared.then_some(norms), (i == 0).then(|| stop.all()));
            let reads = StepReads { skip, factor: Some(twice.all()) };
            if let Some(norms) = norms {
                launch::lars_norms(queue, &params, rule.factor, norms, reads).unwrap();
            }
            launch::lars(queue, &params, rule, norms, reads).unwrap();
        }
        for (i, (start, grads)) in start.iter().zip(&grads).enumerate() {
            let p: Vec<f64> = match master {
                true => start.iter().map(|p| f64::from(*p)).collect(),
                false => of::<T>(start).iter().map(|p| f64::from(p.wide())).collect(),
            };
            let g: Vec<f64> = grads.iter().map(|g| 0.5 * f64::from(*g)).collect();
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let (size, slope) = (norm(&p), norm(&g));
            let ratio = match own == 1 && size > 0.0 && slope > 0.0 {
                true => 0.02 * size / (slope + 0.01 * size),
                false => 1.0,
            };
            let decay = if own == 1 { 0.01 } else { 0.0 };
            let want: Vec<f64> = p.iter().zip(&g).map(|(p, g)| p - 0.5 * ratio * (g + decay * p)).collect();
            let what = format!("lars_{}, own {own}, tensor {i}", T::DTYPE);
            near::<T>(&what, &queue.download(narrow[i].all()).unwrap(), &want, 1e-6);
            if master {
                near::<f32>(&what, &queue.download(masters[i].all()).unwrap(), &want, 1e-6);
            }
        }
    }
}

fn run<T: Trained>(
    queue: &Queue,
    master: bool,
    what: &str,
    update: impl Fn(u64, f32, f32, &mut f32, &mut f32) -> f32,
    step: impl Fn(&Params<'_>, u64, StepReads<'_>),
) {
    let upload = |x: &[f32]| queue.upload(x).unwrap();
    let start: Vec<Vec<f32>> = LENGTHS.iter().map(|n| units(*n, *n as u64)).collect();
    let grads: Vec<Vec<f32>> = LENGTHS.iter().map(|n| units(*n, 50 + *n as u64)).collect();
    let narrow: Vec<_> = start.iter().map(|x| queue.upload(&of::<T>(x)).unwrap()).collect();
    let grads_there: Vec<_> = grads.iter().map(|x| queue.upload(x).unwrap()).collect();
    let masters: Vec<_> = start.iter().map(|x| upload(x)).collect();
    let zeros: Vec<_> =
        start.iter().map(|x| (upload(&vec![0.0; x.len()]), upload(&vec![0.0; x.len()]))).collect();
    let list: Vec<Param<'_>> = (0..LENGTHS.len())
        .map(|i| Param {
            param: narrow[i].all(),
            grad: grads_there[i].all(),
            master: master.then(|| masters[i].all()),
            m: Some(zeros[i].0.all()),
            v: Some(zeros[i].1.all()),
        })
        .collect();
    let params = Params::new(queue, T::DTYPE, &list).unwrap();
    let (go, stop) = (queue.upload(&[0u32]).unwrap(), queue.upload(&[1u32]).unwrap());
    // The rules have the half of the tests' factor.
    let twice = queue.upload(&[2.0f32]).unwrap();
    let reads = |skip| StepReads { skip, factor: Some(twice.all()) };
    let wide = |i: usize| {
        if master { start[i].clone() } else { of::<T>(&start[i]).iter().map(|x| x.wide()).collect() }
    };
    let mut want: Vec<Vec<f32>> = (0..LENGTHS.len()).map(wide).collect();
    let mut moments: Vec<Vec<(f32, f32)>> = want.iter().map(|x| vec![(0.0, 0.0); x.len()]).collect();
    for t in 1..=3 {
        step(&params, t, reads(Some(stop.all())));
        step(&params, t, reads(if t == 1 { None } else { Some(go.all()) }));
        for ((p, g), s) in want.iter_mut().zip(&grads).zip(&mut moments) {
            for ((p, g), (m, v)) in p.iter_mut().zip(g).zip(s) {
                *p = update(t, *p, *g, m, v);
                if !master {
                    *p = T::of(*p).wide();
                }
            }
        }
    }
    for i in 0..LENGTHS.len() {
        same(what, &queue.download::<T>(narrow[i].all()).unwrap(), &of::<T>(&want[i]));
        if master {
            same(&format!("{what}, master"), &queue.download::<f32>(masters[i].all()).unwrap(), &want[i]);
        }
        let v: Vec<f32> = moments[i].iter().map(|moments| moments.1).collect();
        same(&format!("{what}, v"), &queue.download::<f32>(zeros[i].1.all()).unwrap(), &v);
    }
}
