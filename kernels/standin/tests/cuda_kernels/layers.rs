//! Tests of activation.cu, dropout.cu, loss.cu, norm.cu, pool.cu and embedding.cu, against f64 or the CPU's layers.

use crate::common::{LENGTHS, Random, Trained, near, of, same, turned, units, wide};
use allfold_cuda::launch::{self, DropoutLaunch, EmbeddingLaunch, Function, PoolLaunch, TensorLayout};
use allfold_cuda::{Memory, Queue};
use allfold_kernels::nn;

pub fn check(queue: &Queue) {
    crate::for_trained!(activations, queue);
    crate::for_trained!(biases, queue);
    crate::for_trained!(dropouts, queue);
    norms(queue);
    crate::for_trained!(losses, queue);
    crate::for_trained!(pools, queue);
    crate::for_trained!(embeddings, queue);
}

fn activations<T: Trained>(queue: &Queue) {
    for n in LENGTHS {
        let mut x: Vec<T> = of(&units(n, 1).iter().map(|x| 5.0 * x).collect::<Vec<_>>());
        let dy: Vec<T> = of(&units(n, 2));
        for (at, special) in
            [f32::NAN, 0.0, -0.0, f32::INFINITY].into_iter().enumerate().filter(|(at, _)| *at < n)
        {
            x[at] = T::of(special);
        }
        let (gx, gdy) = (queue.upload(&x).unwrap(), queue.upload(&dy).unwrap());
        let y = queue.memory(gx.len()).unwrap();
        let relu = |x: f64| if x < 0.0 { 0.0 } else { x };
        let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        let gelu = |x: f64| 0.5 * x * (1.0 + inner(x).tanh());
        let gelu_slope = |x: f64| {
            let t = inner(x).tanh();
            let dinner = (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x);
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * dinner
        };
        let relu_slope = |x: f64| f64::from(u8::from(x > 0.0));
        type F<'a> = &'a dyn Fn(f64) -> f64;
        let both: [(Function, F<'_>, F<'_>); 2] =
            [(Function::Relu, &relu, &relu_slope), (Function::Gelu, &gelu, &gelu_slope)];
        for (f, value, slope) in both {
            let what = format!("{f:?} of {n} {}", T::DTYPE);
            launch::activate(queue, f, T::DTYPE, gx.all(), y.all()).unwrap();
            let want: Vec<f64> = wide(&x).into_iter().map(value).collect();
            near::<T>(&what, &queue.download(y.all()).unwrap(), &want, 1e-6);
            launch::activate_back(queue, f, T::DTYPE, (gx.all(), gdy.all()), y.all()).unwrap();
            let want: Vec<f64> = wide(&x).into_iter().zip(wide(&dy)).map(|(x, dy)| dy * slope(x)).collect();
            // At infinity GELU's slope is a difference of infinities, so its value is not specified.
            let skip = |i: usize| f == Function::Gelu && x[i].wide().is_infinite();
            let got: Vec<T> = queue.download(y.all()).unwrap();
            let (got, want): (Vec<T>, Vec<f64>) =
                (0..n).filter(|i| !skip(*i)).map(|i| (got[i], want[i])).unzip();
            near::<T>(&format!("{what}, backwards"), &got, &want, 2e-6);
        }
        let want: Vec<f64> = wide(&x).iter().zip(wide(&dy)).map(|(x, dy)| x + dy).collect();
        for into in [&y, &gdy] {
            launch::add(queue, T::DTYPE, (gdy.all(), gx.all()), into.all()).unwrap();
            near::<T>("a sum", &queue.download(into.all()).unwrap(), &want, 1e-7);
        }
        let a = queue.upload(&wide(&dy).iter().map(|x| *x as f32).collect::<Vec<_>>()).unwrap();
        launch::add_wide(queue, T::DTYPE, (a.all(), gx.all()), a.all()).unwrap();
        near::<f32>("a sum in f32", &queue.download(a.all()).unwrap(), &want, 1e-7);
    }
}

fn biases<T: Trained>(queue: &Queue) {
    for (rows, columns, plane) in [(0, 3, 1), (1, 1, 1), (5, 7, 1), (300, 70, 1), (3, 5, 9), (40, 2, 33)] {
        let n = rows * columns * plane;
        let (x, b): (Vec<T>, Vec<f32>) = (of(&units(n, 1)), units(columns, 2));
        let what = format!("bias of {rows} x {columns} x {plane} {}", T::DTYPE);
        let channel = |i: usize| i / plane % columns;
        let mut sums = vec![0.0f64; columns];
        wide(&x).iter().enumerate().for_each(|(i, x)| sums[channel(i)] += x);
        let (gx, gb) = (queue.upload(&x).unwrap(), queue.upload(&b).unwrap());
        let db = queue.memory(4 * columns).unwrap();
        launch::bias_back(queue, T::DTYPE, gx.all(), db.all(), plane).unwrap();
        near::<f32>(&format!("{what}, gradient"), &queue.download(db.all()).unwrap(), &sums, 1e-6);
        launch::bias(queue, T::DTYPE, gx.all(), gb.all(), plane).unwrap();
        let want: Vec<f64> = wide(&x).iter().enumerate().map(|(i, x)| x + f64::from(b[channel(i)])).collect();
        near::<T>(&what, &queue.download(gx.all()).unwrap(), &want, 1e-7);
    }
    let odd = queue.memory(7 * size_of::<T>()).unwrap();
    assert!(launch::bias(queue, T::DTYPE, odd.all(), queue.memory(8).unwrap().all(), 1).is_err());
}

/// The GPU makes the CPU's draws, so zeros are at the same places.
fn dropouts<T: Trained>(queue: &Queue) {
    // As one sample, as samples of four values, and of other widths.
    let shared = [(3 * 64, 64), (5 * 4, 4), (7 * 6, 6), (9, 3), (4 * 1001, 1001)];
    for (n, width) in LENGTHS.into_iter().map(|n| (n, n.max(1))).chain(shared) {
        let x: Vec<T> = of(&units(n, 1));
        let stream =
            nn::DropoutStream { seed: 0x1234_5678_9abc_def0, step: 7, layer: 3, first: 9, stride: 2 };
        let mut want = vec![0.0f64; n];
        nn::DropoutKernel { share: 0.3 }.apply(stream, width, &wide(&x), &mut want);
        let (gx, y) = (queue.upload(&x).unwrap(), queue.memory(n * size_of::<T>()).unwrap());
        let place = queue.upload(&stream.words()).unwrap();
        let whole = 0..width;
        let s = DropoutLaunch { runs: std::slice::from_ref(&whole), share: 0.3 };
        launch::dropout(queue, T::DTYPE, (gx.all(), y.all()), (place.all(), 3), &s).unwrap();
        near::<T>(
            &format!("dropout of {n} by {width}, {}", T::DTYPE),
            &queue.download(y.all()).unwrap(),
            &want,
            2e-7,
        );
    }
}

fn norms(queue: &Queue) {
    for (n, slices) in [(0, 1), (1, 1), (1000, 3), (4101, 64)] {
        let x = units(n, 1);
        let norm = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        for limit in [0.5, 1e6] {
            let (gx, parts) = (queue.upload(&x).unwrap(), queue.memory(8 * slices).unwrap());
            let told = queue.memory(8).unwrap();
            launch::squares(queue, gx.all(), parts.all()).unwrap();
            launch::clip(queue, parts.all(), limit, told.all()).unwrap();
            let by = (limit / (norm + 1e-6)).min(1.0);
            let want = [norm, by];
            near::<f32>("the norm and its factor", &queue.download(told.all()).unwrap(), &want, 1e-6);
        }
    }
    let (x, parts, told) =
        (queue.upload(&[1.0, f32::NAN]).unwrap(), queue.memory(8).unwrap(), queue.memory(8).unwrap());
    launch::squares(queue, x.all(), parts.all()).unwrap();
    launch::clip(queue, parts.all(), 1.0, told.all()).unwrap();
    assert!(queue.download::<f32>(told.all()).unwrap().iter().all(|x| x.is_nan()), "NaN spoils all");
}

/// Equal logits, and labels that are no class.
fn odd_labels<T: Trained>(queue: &Queue, (n, classes): (usize, usize), [gx, gdx, loss]: [&Memory; 3]) {
    // With equal logits the first wins.
    let (level, first) =
        (queue.upload(&vec![T::of(0.5); n * classes]).unwrap(), queue.upload(&vec![0u32; n]).unwrap());
    let all = queue.memory(4 * n).unwrap();
    launch::correct(queue, T::DTYPE, (level.all(), classes), first.all(), all.all()).unwrap();
    assert!(queue.download::<u32>(all.all()).unwrap().iter().all(|hit| *hit == 1));
    // A label that is no class gives NaN and no gradient, and writes nothing outside the buffers.
    let wrong = queue.upload(&vec![classes as u32; n]).unwrap();
    launch::cross_entropy(
        queue,
        T::DTYPE,
        (gx.all(), classes),
        wrong.all(),
        1.0,
        Some(gdx.all()),
        loss.all(),
    )
    .unwrap();
    assert!(queue.download::<f32>(loss.all()).unwrap().iter().all(|x| x.is_nan()));
    assert!(queue.download::<T>(gdx.all()).unwrap().iter().all(|x| x.wide() == 0.0));
}

fn losses<T: Trained>(queue: &Queue) {
    // Rows may lie further apart than their classes: what is between them is not read, and its gradient is 0.
    for (n, classes, more) in [(1, 1, 0), (3, 10, 6), (7, 257, 7), (2, 5000, 0)] {
        let mut x: Vec<T> = of(&units(n * classes, 1).iter().map(|x| 20.0 * x).collect::<Vec<_>>());
        if classes > 20 {
            x[0] = T::of(f32::NEG_INFINITY);
            x[classes - 2] = T::of(f32::NEG_INFINITY);
        }
        let labels: Vec<u32> = (0..n).map(|i| ((i * 7 + 1) % classes) as u32).collect();
        let mut dx = vec![0.0f64; n * classes];
        let f64s = wide(&x);
        let mut each = Vec::new();
        for (i, (row, dx)) in f64s.chunks(classes).zip(dx.chunks_mut(classes)).enumerate() {
            let (label, max) = (labels[i] as usize, row.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            let total: f64 = row.iter().map(|x| (x - max).exp()).sum();
            dx.iter_mut().zip(row).for_each(|(dx, x)| *dx = (x - max).exp() / total / n as f64);
            dx[label] -= 1.0 / n as f64;
            each.push(total.ln() - (row[label] - max));
        }
        let mean = each.iter().sum::<f64>() / n as f64;
        let apart = |x: &[T]| -> Vec<T> {
            x.chunks(classes).flat_map(|row| row.iter().copied().chain(vec![T::of(f32::NAN); more])).collect()
        };
        let spread = |dx: &[f64]| -> Vec<f64> {
            dx.chunks(classes).flat_map(|row| row.iter().copied().chain(vec![0.0; more])).collect()
        };
        let (gx, glabels) = (queue.upload(&apart(&x)).unwrap(), queue.upload(&labels).unwrap());
        let (gdx, loss, out) =
            (queue.memory(gx.len()).unwrap(), queue.memory(4 * n).unwrap(), queue.memory(4).unwrap());
        let what = format!("cross entropy of {n} x {classes} {}", T::DTYPE);
        launch::cross_entropy(
            queue,
            T::DTYPE,
            (gx.all(), classes),
            glabels.all(),
            n as f32,
            Some(gdx.all()),
            loss.all(),
        )
        .unwrap();
        near::<f32>(&what, &queue.download(loss.all()).unwrap(), &each, 2e-6);
        near::<T>(&format!("{what}, dx"), &queue.download(gdx.all()).unwrap(), &spread(&dx), 2e-6);
        launch::cross_entropy(queue, T::DTYPE, (gx.all(), classes), glabels.all(), 1.0, None, loss.all())
            .unwrap();
        launch::mean(queue, loss.all(), out.all()).unwrap();
        near::<f32>("the mean", &queue.download(out.all()).unwrap(), &[mean], 2e-6);
        let hits = queue.memory(4 * n).unwrap();
        launch::correct(queue, T::DTYPE, (gx.all(), classes), glabels.all(), hits.all()).unwrap();
        let hits: Vec<u32> = queue.download(hits.all()).unwrap();
        let cpu = nn::Loss { classes, kind: nn::LossKind::Mse };
        assert_eq!(hits.iter().sum::<u32>() as u64, cpu.correct(&f64s, &labels), "{what}");
        if f64s.iter().all(|x| x.is_finite()) {
            let want = cpu.forward_backward(&f64s, &labels, 1.0, &mut dx);
            launch::mse(
                queue,
                T::DTYPE,
                (gx.all(), classes),
                glabels.all(),
                n as f32,
                Some(gdx.all()),
                loss.all(),
            )
            .unwrap();
            launch::mean(queue, loss.all(), out.all()).unwrap();
            near::<f32>("mse", &queue.download(out.all()).unwrap(), &[want], 2e-6);
            near::<T>("mse, dx", &queue.download(gdx.all()).unwrap(), &spread(&dx), 2e-6);
        }
        odd_labels::<T>(queue, (n, classes), [&gx, &gdx, &loss]);
    }
    let (empty, out) = (queue.memory(0).unwrap(), queue.memory(4).unwrap());
    launch::mean(queue, empty.all(), out.all()).unwrap();
    assert_eq!(queue.download::<f32>(out.all()).unwrap(), [0.0]);
}

fn pools<T: Trained>(queue: &Queue) {
    for (planes, picture, window, stride, padding) in [
        (3, (4, 6), 2, 2, 0),
        (1, (5, 5), 3, 1, 0),
        (5, (7, 4), 2, 3, 0),
        (2, (30, 17), 3, 2, 0),
        (1, (1, 1), 1, 1, 0),
        (2, (6, 9), 3, 2, 1),
        (1, (5, 4), 5, 3, 4),
    ] {
        let layout = TensorLayout::Planes;
        let (cpu, s) = (
            nn::PoolShape { channels: 1, picture, window, stride, padding },
            PoolLaunch { planes, channels: planes, layout, picture, window, stride, padding },
        );
        let (p, q) = cpu.output_picture();
        let (area, out) = (picture.0 * picture.1, p * q);
        let (inputs, outputs) = (planes * area, planes * out);
        let mut x: Vec<T> = of(&units(inputs, 1));
        // Windows of equal values, and a NaN in the last plane.
        (0..inputs).step_by(3).for_each(|i| x[i] = T::of(0.25));
        x[inputs - 1] = T::of(f32::NAN);
        let dy: Vec<T> = of(&units(outputs, 2));
        let (mut y, mut winners, mut dx) = (vec![0.0; outputs], vec![0; outputs], vec![0.0; inputs]);
        cpu.max_forward(planes, &wide(&x), &mut y, &mut winners);
        cpu.max_backward(planes, &winners, &wide(&dy), &mut dx);
        let (mut means, mut dmeans) = (y.clone(), dx.clone());
        if padding == 0 {
            cpu.mean_forward(planes, &wide(&x), &mut means);
            cpu.mean_backward(planes, &wide(&dy), &mut dmeans);
        }
        for layout in [TensorLayout::Planes, TensorLayout::ChannelsLast] {
            // All planes are channels of a single sample.
            let (s, last) = (PoolLaunch { layout, ..s }, layout == TensorLayout::ChannelsLast);
            let (of_x, of_y) = ((planes, area), (planes, out));
            let lies = |values: &[T], of| if last { turned(values, of) } else { values.to_vec() };
            let wanted = |values: &[f64], of| if last { turned(values, of) } else { values.to_vec() };
            let what = format!("pooling {s:?} {}", T::DTYPE);
            let (gx, gdy) = (queue.upload(&lies(&x, of_x)).unwrap(), queue.upload(&lies(&dy, of_y)).unwrap());
            let gwinners = queue.memory(4 * outputs).unwrap();
            let (gy, gdx) = (queue.memory(gdy.len()).unwrap(), queue.memory(gx.len()).unwrap());
            launch::max_pool(queue, T::DTYPE, &s, gx.all(), gy.all(), gwinners.all()).unwrap();
            near::<T>(&what, &queue.download(gy.all()).unwrap(), &wanted(&y, of_y), 0.0);
            // Indices in memory: with channels last, plane and pixel change places.
            let moved =
                |at: u32| if last { at as usize % area * planes + at as usize / area } else { at as usize };
            let place: Vec<u32> = winners.iter().map(|at| moved(*at) as u32).collect();
            let place = if last { turned(&place, of_y) } else { place };
            assert_eq!(queue.download::<u32>(gwinners.all()).unwrap(), place, "{what}");
            launch::max_pool_back(queue, T::DTYPE, &s, gwinners.all(), gdy.all(), gdx.all()).unwrap();
            near::<T>(&format!("{what}, dx"), &queue.download(gdx.all()).unwrap(), &wanted(&dx, of_x), 1e-6);
            if padding > 0 {
                assert!(launch::mean_pool(queue, T::DTYPE, &s, gx.all(), gy.all()).is_err());
                continue;
            }
            launch::mean_pool(queue, T::DTYPE, &s, gx.all(), gy.all()).unwrap();
            near::<T>(
                &format!("mean {what}"),
                &queue.download(gy.all()).unwrap(),
                &wanted(&means, of_y),
                1e-6,
            );
            launch::mean_pool_back(queue, T::DTYPE, &s, gdy.all(), gdx.all()).unwrap();
            let want = wanted(&dmeans, of_x);
            near::<T>(&format!("mean {what}, dx"), &queue.download(gdx.all()).unwrap(), &want, 1e-6);
        }
    }
    plane_means::<T>(queue);
}

/// The mean of each whole plane, and its gradient.
fn plane_means<T: Trained>(queue: &Queue) {
    for (planes, plane) in [(1, 1), (9, 49), (300, 5)] {
        let (x, dy): (Vec<T>, Vec<T>) = (of(&units(planes * plane, 1)), of(&units(planes, 2)));
        let (mut y, mut dx) = (vec![0.0; planes], vec![0.0; planes * plane]);
        nn::PoolShape::global_mean(plane, &wide(&x), &mut y);
        nn::PoolShape::global_mean_backward(plane, &wide(&dy), &mut dx);
        // Planes (`None`), then channels last with three samples or one.
        for channels in [None, Some(if planes % 3 == 0 { planes / 3 } else { planes })] {
            let shape = channels.map(|channels| (channels, plane));
            let x = shape.map_or(x.clone(), |shape| turned(&x, shape));
            let want = shape.map_or(dx.clone(), |shape| turned(&dx, shape));
            let (gx, gdy) = (queue.upload(&x).unwrap(), queue.upload(&dy).unwrap());
            let (gy, gdx) = (queue.memory(gdy.len()).unwrap(), queue.memory(gx.len()).unwrap());
            launch::plane_mean(queue, T::DTYPE, gx.all(), gy.all(), channels).unwrap();
            near::<T>("plane means", &queue.download(gy.all()).unwrap(), &y, 1e-6);
            launch::plane_mean_back(queue, T::DTYPE, gdy.all(), gdx.all(), channels).unwrap();
            near::<T>("plane means, dx", &queue.download(gdx.all()).unwrap(), &want, 1e-6);
        }
    }
}

fn embeddings<T: Trained>(queue: &Queue) {
    for (vocabulary, columns, length, sequences) in [(5, 3, 4, 2), (40, 300, 70, 9), (1, 1, 1, 1)] {
        let (n, mut random) = (length * sequences, Random(3));
        let tokens: Vec<u32> = (0..n).map(|_| random.below(vocabulary) as u32).collect();
        let table: Vec<T> = of(&units(vocabulary * columns, 1));
        let places: Vec<T> = of(&units(length * columns, 2));
        let dy: Vec<T> = of(&units(n * columns, 3));
        let s = EmbeddingLaunch { dtype: T::DTYPE, vocabulary, part_from: None, columns, length };
        let mut y = Vec::new();
        let (mut dtable, mut dplaces) = (vec![0.0f32; vocabulary * columns], vec![0.0f32; length * columns]);
        for (i, token) in tokens.iter().enumerate() {
            for c in 0..columns {
                let (row, place) = (*token as usize * columns + c, i % length * columns + c);
                y.push(T::of(table[row].wide() + places[place].wide()));
                dtable[row] += dy[i * columns + c].wide();
                dplaces[place] += dy[i * columns + c].wide();
            }
        }
        let (gtable, gplaces) = (queue.upload(&table).unwrap(), queue.upload(&places).unwrap());
        let (gtokens, gdy) = (queue.upload(&tokens).unwrap(), queue.upload(&dy).unwrap());
        let gy = queue.memory(gdy.len()).unwrap();
        launch::embedding(queue, &s, (gtable.all(), Some(gplaces.all())), gtokens.all(), gy.all()).unwrap();
        same("embedding", &queue.download::<T>(gy.all()).unwrap(), &y);
        let both = (gtable.all(), Some(gplaces.all()));
        launch::embedding_back(queue, &s, gtokens.all(), gdy.all(), both, false).unwrap();
        // The sum is in the order of the tokens, so the gradients are bitwise equal.
        same("the table's gradient", &queue.download::<T>(gtable.all()).unwrap(), &of::<T>(&dtable));
        launch::embedding_back(queue, &s, gtokens.all(), gdy.all(), (gtable.all(), None), true).unwrap();
        let twice: Vec<f32> =
            of::<T>(&dtable).iter().zip(&dtable).map(|(own, sum)| own.wide() + sum).collect();
        same("the table's gradient, twice", &queue.download::<T>(gtable.all()).unwrap(), &of::<T>(&twice));
        same("the places' gradient", &queue.download::<T>(gplaces.all()).unwrap(), &of::<T>(&dplaces));
        let stray = queue.upload(&vec![vocabulary as u32; n]).unwrap();
        launch::embedding(queue, &s, (gtable.all(), None), stray.all(), gy.all()).unwrap();
        assert!(queue.download::<T>(gy.all()).unwrap().iter().all(|x| x.wide().is_nan()));
    }
}
