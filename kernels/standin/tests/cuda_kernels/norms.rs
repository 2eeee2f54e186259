//! Tests of batch_norm.cu and layer_norm.cu against f64.

use crate::common::{Trained, near, of, units, wide};
use allfold_cuda::launch::{self, BatchNormLaunch, InputGradient, LayerNormLaunch, Saved, TensorLayout};
use allfold_cuda::{Memory, Queue, Slice};
use allfold_kernels::{DType, nn};

pub fn check(queue: &Queue) {
    crate::for_trained!(batch_norm, queue);
    crate::for_trained!(layer_norm, queue);
}

/// Moves values of `[N, C, P]` to `[N, P, C]` if `layout` is channels last.
fn arrange(x: &[f64], (n, c, p): (usize, usize, usize), layout: TensorLayout) -> Vec<f64> {
    let source = |i: usize| match layout {
        TensorLayout::Planes => i,
        TensorLayout::ChannelsLast => (i / (p * c) * c + i % c) * p + i / c % p,
    };
    (0..n * c * p).map(|i| x[source(i)]).collect()
}

/// N, C, P, the layout, the mean of the values, whose deviation is near 2, and the elements before the first value in memory. Packs
/// of 4 are in use where the plane (channels last: the number of channels) is a multiple of 4 and the first value is aligned.
const BATCH_NORMS: [(usize, usize, usize, TensorLayout, f32, usize); 13] = {
    use TensorLayout::{ChannelsLast, Planes};
    [
        (5, 3, 49, Planes, 1.0, 0),
        (2, 7, 700, Planes, 1.0, 0),
        (1, 1, 1, Planes, 1.0, 0),
        (30, 2, 196, Planes, 1.0, 4),
        (2, 3, 3136, Planes, 500.0, 0),
        (2, 3, 784, Planes, 1.0, 1),
        (400, 5, 1, Planes, 1.0, 0),
        (4, 6, 25, ChannelsLast, 1.0, 0),
        (3, 45, 36, ChannelsLast, 1.0, 0),
        (9, 45, 49, ChannelsLast, 500.0, 0),
        (9, 68, 49, ChannelsLast, 500.0, 4),
        (3, 36, 100, ChannelsLast, 1.0, 1),
        (1, 4, 3136, ChannelsLast, 1.0, 0),
    ]
};

fn batch_norm<T: Trained>(queue: &Queue) {
    for (n, c, p, layout, mean, before) in BATCH_NORMS {
        let what =
            format!("batch norm of {n} x {c} x {p}, {layout:?}, mean {mean}, {before} before, {}", T::DTYPE);
        // A mean is saved in f32, so differences from it lose the digits by which the mean exceeds the deviation.
        let loss = f64::from(mean);
        // Expected values in f64 like the CPU's, in the order of planes; `arrange` converts them to the layout.
        let x: Vec<T> = of(&units(n * c * p, 1).iter().map(|x| x * 3.0 + mean).collect::<Vec<_>>());
        let dy: Vec<T> = of(&units(n * c * p, 2));
        let (w, b) = (units(c, 3), units(c, 4));
        let start: Vec<f32> = units(2 * c, 5).iter().map(|x| x + 2.0).collect();
        let f64s = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let cpu = nn::BatchNormShape { channels: c, plane: p };
        let (mut running, mut saved, mut y) = (f64s(&start), vec![0.0; 2 * c], vec![0.0; n * c * p]);
        cpu.forward(n, &wide(&x), &f64s(&w), &f64s(&b), &mut running, &mut saved, &mut y);
        let (mut dw, mut db, mut dx) = (vec![0.0; c], vec![0.0; c], vec![0.0; n * c * p]);
        cpu.backward_params(n, &wide(&x), &saved, &wide(&dy), &mut dw, &mut db);
        let whole = ((n * p) as f64, &dw[..], &db[..]);
        cpu.backward_input(n, &wide(&x), &f64s(&w), &saved, &wide(&dy), whole, &mut dx);

        let there =
            |x: &[f64]| of::<T>(&arrange(x, (n, c, p), layout).iter().map(|x| *x as f32).collect::<Vec<_>>());
        let bytes = |elements: usize| elements * size_of::<T>();
        let memories = [0; 4].map(|_| queue.memory(bytes(before + n * c * p)).unwrap());
        let [gx, gdy, gy, gdx] =
            memories.each_ref().map(|memory| memory.all().part(bytes(before), bytes(n * c * p)).unwrap());
        queue.write(gx, &there(&wide(&x))).unwrap();
        queue.write(gdy, &there(&wide(&dy))).unwrap();
        let (gw, gb, grunning) =
            (queue.upload(&w).unwrap(), queue.upload(&b).unwrap(), queue.upload(&start).unwrap());
        let (means, rs) = (queue.memory(4 * c).unwrap(), queue.memory(4 * c).unwrap());
        let saved_there = Saved { means: means.all(), rs: rs.all() };
        let shape = BatchNormLaunch { dtype: T::DTYPE, n, channels: c, plane: p, layout };
        let expect = |what: &str| {
            near::<f32>(what, &queue.download(means.all()).unwrap(), &saved[..c], 2e-6);
            near::<f32>(what, &queue.download(rs.all()).unwrap(), &saved[c..], 4e-6);
            near::<f32>(what, &queue.download(grunning.all()).unwrap(), &running, 4e-6);
        };
        shape.statistics(queue, gx, grunning.all(), saved_there).unwrap();
        expect(&format!("{what}: statistics"));
        shape.apply(queue, gx, (gw.all(), gb.all()), saved_there, gy).unwrap();
        near::<T>(
            &format!("{what}: y"),
            &queue.download(gy).unwrap(),
            &arrange(&y, (n, c, p), layout),
            4e-6 * loss,
        );
        // Batch normalisation by totals, as several ranks would sum them.
        let totals = queue.memory(8 * (1 + 2 * c)).unwrap();
        queue.write(grunning.all(), &start).unwrap();
        shape.sums(queue, gx, totals.all()).unwrap();
        shape.by_totals(queue, totals.all(), grunning.all(), saved_there).unwrap();
        expect(&format!("{what}: by totals"));
        let (gdw, gdb) = (queue.memory(4 * c).unwrap(), queue.memory(4 * c).unwrap());
        let (both, params) = ((gx, gdy), (gdw.all(), gdb.all()));
        shape.backward_params(queue, both, saved_there, params, None).unwrap();
        near::<f32>(&format!("{what}: dw"), &queue.download(gdw.all()).unwrap(), &dw, 1e-5 * loss);
        near::<f32>(&format!("{what}: db"), &queue.download(gdb.all()).unwrap(), &db, 1e-5);
        // The count from the host, then the count as ranks have summed it on the device.
        for count in [((n * p) as f32, None), (f32::NAN, Some(totals.all().part(0, 8).unwrap()))] {
            let weight = (gw.all(), None);
            shape.backward_input(queue, both, weight, saved_there, params, count, gdx).unwrap();
            near::<T>(
                &format!("{what}: dx"),
                &queue.download(gdx).unwrap(),
                &arrange(&dx, (n, c, p), layout),
                2e-5 * loss,
            );
        }
        rectified::<T>(queue, &shape, [gx, gdy], (gw.all(), gb.all()), saved_there, &what);
        shape.running(queue, grunning.all(), saved_there).unwrap();
        let moved: Vec<f32> = queue.download(grunning.all()).unwrap();
        let rs: Vec<f64> = moved[c..].iter().map(|var| 1.0 / (f64::from(*var) + 1e-5).sqrt()).collect();
        near::<f32>("running means", &queue.download(saved_there.means).unwrap(), &f64s(&moved[..c]), 0.0);
        near::<f32>("running rs", &queue.download(saved_there.rs).unwrap(), &rs, 1e-6);
    }
}

/// A batch norm with its rectifier, and with a sum in between, gives the bits of the kernels one after another.
fn rectified<T: Trained>(
    queue: &Queue,
    shape: &BatchNormLaunch,
    [x, dy]: [Slice<'_>; 2],
    (w, b): (Slice<'_>, Slice<'_>),
    saved: Saved<'_>,
    what: &str,
) {
    let c = shape.channels;
    let fresh = || queue.memory(x.len()).unwrap();
    let bits = |memory: &Memory| {
        queue.download::<T>(memory.all()).unwrap().iter().map(|x| x.wide().to_bits()).collect::<Vec<_>>()
    };
    let relu = launch::Function::Relu;
    let [plain, sum, y, fused, dz, own, more] = [(); 7].map(|()| fresh());
    shape.apply(queue, x, (w, b), saved, plain.all()).unwrap();
    let params = |x: Slice<'_>, dy: Slice<'_>, relu| {
        let both = queue.memory(8 * c).unwrap();
        let (dw, db) = (both.all().part(0, 4 * c).unwrap(), both.all().part(4 * c, 4 * c).unwrap());
        shape.backward_params(queue, (x, dy), saved, (dw, db), relu).unwrap();
        both
    };
    let values = |memory: &Memory| queue.download::<f32>(memory.all()).unwrap();
    let wide = |memory: &Memory| values(memory).into_iter().map(f64::from).collect::<Vec<_>>();

    launch::activate(queue, relu, T::DTYPE, plain.all(), y.all()).unwrap();
    shape.apply_relu(queue, (x, None), (w, b), saved, fused.all()).unwrap();
    assert_eq!(bits(&y), bits(&fused), "{what}: relu");
    launch::activate_back(queue, relu, T::DTYPE, (y.all(), dy), dz.all()).unwrap();
    let [apart, together] = [params(x, dz.all(), None), params(x, dy, Some((w, b)))];
    near::<f32>(&format!("{what}: dw, db behind relu"), &values(&together), &wide(&apart), 4e-6);
    let halves = (apart.all().part(0, 4 * c).unwrap(), apart.all().part(4 * c, 4 * c).unwrap());
    let count = ((shape.n * shape.plane) as f32, None);
    let ([one, two], weight) = ([(); 2].map(|()| fresh()), |bias| (w, bias));
    shape.backward_input(queue, (x, dz.all()), weight(None), saved, halves, count, one.all()).unwrap();
    shape.backward_input(queue, (x, dy), weight(Some(b)), saved, halves, count, two.all()).unwrap();
    assert_eq!(bits(&one), bits(&two), "{what}: dx behind relu");

    launch::add(queue, T::DTYPE, (plain.all(), dy), sum.all()).unwrap();
    launch::activate(queue, relu, T::DTYPE, sum.all(), y.all()).unwrap();
    shape.apply_relu(queue, (x, Some(dy)), (w, b), saved, fused.all()).unwrap();
    assert_eq!(bits(&y), bits(&fused), "{what}: sum and relu");
    // The second gradient is the norm's output: any values do.
    launch::add(queue, T::DTYPE, (dy, plain.all()), more.all()).unwrap();
    for (second, arrived) in [(None, dy), (Some(plain.all()), more.all())] {
        launch::activate_back(queue, relu, T::DTYPE, (y.all(), arrived), dz.all()).unwrap();
        let parts = shape.backward_add_relu(queue, (x, y.all()), (dy, second), saved, own.all()).unwrap();
        assert_eq!(bits(&dz), bits(&own), "{what}: the gradient before the sum");
        let (apart, together) = (params(x, dz.all(), None), queue.memory(8 * c).unwrap());
        let (dw, db) = (together.all().part(0, 4 * c).unwrap(), together.all().part(4 * c, 4 * c).unwrap());
        shape.params_of_sums(queue, parts.all(), saved, (dw, db)).unwrap();
        near::<f32>(&format!("{what}: dw, db before the sum"), &values(&together), &wide(&apart), 4e-6);
    }
}

fn layer_norm<T: Trained>(queue: &Queue) {
    // The last has more columns than a block keeps sums of.
    for (rows, c) in [(1, 1), (5, 33), (40, 768), (3, 1000), (2, 2100)] {
        let what = format!("layer norm of {rows} x {c}, {}", T::DTYPE);
        let x: Vec<T> = of(&units(rows * c, 1).iter().map(|x| x * 2.0 + 0.5).collect::<Vec<_>>());
        let dy: Vec<T> = of(&units(rows * c, 2));
        let (w, b) = (units(c, 3), units(c, 4));
        let (mut y, mut dx) = (Vec::new(), Vec::new());
        let mut dwb = vec![0.0f64; 2 * c];
        for (x, dy) in wide(&x).chunks(c).zip(wide(&dy).chunks(c)) {
            let mean = x.iter().sum::<f64>() / c as f64;
            let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / c as f64;
            let r = 1.0 / (var + 1e-5).sqrt();
            let hat: Vec<f64> = x.iter().map(|x| (x - mean) * r).collect();
            let g: Vec<f64> = dy.iter().zip(&w).map(|(dy, w)| dy * f64::from(*w)).collect();
            let (sum, product) = (
                g.iter().sum::<f64>() / c as f64,
                g.iter().zip(&hat).map(|(g, hat)| g * hat).sum::<f64>() / c as f64,
            );
            for i in 0..c {
                y.push(hat[i] * f64::from(w[i]) + f64::from(b[i]));
                dx.push(r * (g[i] - sum - hat[i] * product));
                dwb[i] += dy[i] * hat[i];
                dwb[c + i] += dy[i];
            }
        }
        let s = LayerNormLaunch { dtype: T::DTYPE, output: T::DTYPE, rows, columns: c, eps: 1e-5 };
        let (gx, gdy) = (queue.upload(&x).unwrap(), queue.upload(&dy).unwrap());
        let (gw, gb) = (queue.upload(&w).unwrap(), queue.upload(&b).unwrap());
        let (means, rs) = (queue.memory(4 * rows).unwrap(), queue.memory(4 * rows).unwrap());
        let (gy, gdx) = (queue.memory(gx.len()).unwrap(), queue.memory(gx.len()).unwrap());
        let saved = (means.all(), rs.all());
        launch::layer_norm(queue, &s, (gx.all(), None), (gw.all(), gb.all()), saved, gy.all()).unwrap();
        near::<T>(&format!("{what}: y"), &queue.download(gy.all()).unwrap(), &y, 4e-6);
        let gdwb = queue.memory(8 * c).unwrap();
        let into = InputGradient { more: None, dx: gdx.all(), thin: None };
        launch::layer_norm_back(queue, &s, (gx.all(), gdy.all()), gw.all(), saved, into, gdwb.all()).unwrap();
        // One column has no variance: r is 316, and dx is a difference of equal numbers.
        near::<T>(
            &format!("{what}: dx"),
            &queue.download(gdx.all()).unwrap(),
            &dx,
            if c == 1 { 1.0 } else { 2e-5 },
        );
        near::<f32>(&format!("{what}: dw, db"), &queue.download(gdwb.all()).unwrap(), &dwb, 1e-5);
        // From f32 to T, with a gradient that has arrived before: the values of T widen to f32 exactly.
        let wide_x: Vec<f32> = x.iter().map(|x| x.wide()).collect();
        let more = units(rows * c, 5);
        let (gx, gmore) = (queue.upload(&wide_x).unwrap(), queue.upload(&more).unwrap());
        let (s, gdx) = (LayerNormLaunch { dtype: DType::F32, ..s }, queue.memory(gx.len()).unwrap());
        queue.fill(gy.all(), 0).unwrap();
        launch::layer_norm(queue, &s, (gx.all(), None), (gw.all(), gb.all()), saved, gy.all()).unwrap();
        near::<T>(&format!("{what}: y from f32"), &queue.download(gy.all()).unwrap(), &y, 4e-6);
        let thin = queue.memory(gy.len()).unwrap();
        let into = InputGradient { more: Some(gmore.all()), dx: gdx.all(), thin: Some(thin.all()) };
        launch::layer_norm_back(queue, &s, (gx.all(), gdy.all()), gw.all(), saved, into, gdwb.all()).unwrap();
        let sum: Vec<f64> = dx.iter().zip(&more).map(|(dx, more)| dx + f64::from(*more)).collect();
        let within = if c == 1 { 1.0 } else { 2e-5 };
        near::<f32>(&format!("{what}: dx + more"), &queue.download(gdx.all()).unwrap(), &sum, within);
        near::<T>(&format!("{what}: dx of T"), &queue.download(thin.all()).unwrap(), &sum, within);
        // The input is a sum, of which one summand has the type of the output.
        let parts: Vec<f32> = wide_x.iter().zip(&dy).map(|(x, dy)| x - dy.wide()).collect();
        let (parts, whole) = (queue.upload(&parts).unwrap(), queue.memory(gx.len()).unwrap());
        queue.fill(gy.all(), 0).unwrap();
        let x = (parts.all(), Some((gdy.all(), whole.all())));
        launch::layer_norm(queue, &s, x, (gw.all(), gb.all()), saved, gy.all()).unwrap();
        let total: Vec<f64> = wide_x.iter().map(|x| f64::from(*x)).collect();
        near::<f32>(&format!("{what}: the sum"), &queue.download(whole.all()).unwrap(), &total, 4e-6);
        let within = if c == 1 { 1.0 } else { 2e-5 };
        near::<T>(&format!("{what}: y of the sum"), &queue.download(gy.all()).unwrap(), &y, within);
        near::<f32>(&format!("{what}: dw, db from f32"), &queue.download(gdwb.all()).unwrap(), &dwb, 1e-5);
    }
}
