//! Tests of matmul.cu: products and convolutions against their definitions in f64.

use crate::common::{Trained, near, of, turned, units, wide};
use allfold_cuda::launch::{self, Conv, DeviceMatrix, ProductOutput, TensorLayout};
use allfold_cuda::{Memory, Queue};
use allfold_kernels::DType;
use allfold_kernels::nn::Conv2dShape;

pub fn check(queue: &Queue) {
    crate::for_trained!(products, queue);
    crate::for_trained!(convolutions, queue);
    rows(queue);
}

/// Rows whose first elements are on words or between them, copied there and back; zeros fill the rest, rows included.
fn rows(queue: &Queue) {
    for (rows, columns, apart, more) in [(3, 5, 8, 0), (2, 4, 7, 2), (1, 1, 2, 0), (2, 2051, 2056, 1)] {
        let x: Vec<u16> = (0..rows * columns).map(|i| i as u16 + 1).collect();
        let (from, back) = (queue.upload(&x).unwrap(), queue.upload(&vec![0u16; x.len()]).unwrap());
        let there = queue.upload(&vec![9u16; (rows + more) * apart]).unwrap();
        let sides = (rows, columns);
        launch::restride(queue, (from.all(), columns), (there.all(), apart), sides).unwrap();
        let copied: Vec<u16> = queue.download(there.all()).unwrap();
        for (row, copied) in copied.chunks(apart).enumerate() {
            let own = if row < rows { &x[row * columns..(row + 1) * columns] } else { &[] };
            assert_eq!(&copied[..own.len()], own, "{sides:?}");
            assert!(copied[own.len()..].iter().all(|rest| *rest == 0), "{sides:?}");
        }
        let within = there.all().part(0, 2 * rows * apart).unwrap();
        launch::restride(queue, (within, apart), (back.all(), columns), sides).unwrap();
        assert_eq!(queue.download::<u16>(back.all()).unwrap(), x);
        assert!(launch::restride(queue, (from.all(), apart), (back.all(), columns), sides).is_err());
        assert!(
            launch::restride(queue, (from.all(), columns), (back.all(), columns), (rows, columns + 1))
                .is_err()
        );
    }
}

fn products<T: Trained>(queue: &Queue) {
    for (m, n, k) in [(1, 1, 1), (5, 3, 0), (65, 70, 17), (3, 130, 40), (128, 64, 33)] {
        for (ta, tb, keep) in [(false, false, 0.0), (true, false, 1.0), (false, true, 0.5), (true, true, 0.0)]
        {
            let (a, b, c): (Vec<T>, Vec<T>, Vec<T>) =
                (of(&units(m * k, 1)), of(&units(k * n, 2)), of(&units(m * n, 3)));
            // A bias may have the operands' type.
            let (bias, narrow): (Vec<f32>, Vec<T>) = (units(n, 4), of(&units(n, 4)));
            let has_narrow = tb && keep != 0.0;
            let (wa, wb, wc) = (wide(&a), wide(&b), wide(&c));
            let at = |i: usize, j: usize, (rows, columns): (usize, usize), turned: bool| {
                if turned { j * rows + i } else { i * columns + j }
            };
            let mut want = Vec::new();
            for i in 0..m {
                for j in 0..n {
                    let dot: f64 = (0..k).map(|l| wa[at(i, l, (m, k), ta)] * wb[at(l, j, (k, n), tb)]).sum();
                    let own = if has_narrow { f64::from(narrow[j].wide()) } else { f64::from(bias[j]) };
                    let shift = if tb { own } else { 0.0 };
                    want.push(dot + f64::from(keep) * wc[i * n + j] + shift);
                }
            }
            let (ga, gb, gc) =
                (queue.upload(&a).unwrap(), queue.upload(&b).unwrap(), queue.upload(&c).unwrap());
            let left = DeviceMatrix::new(ga.all(), [m, k], ta);
            let right = DeviceMatrix::new(gb.all(), [k, n], tb);
            let (gbias, gnarrow) = (queue.upload(&bias).unwrap(), queue.upload(&narrow).unwrap());
            let shift = tb.then(|| if has_narrow { gnarrow.all() } else { gbias.all() });
            let into = ProductOutput { keep, ..ProductOutput::new(gc.all(), T::DTYPE) };
            launch::matmul(queue, T::DTYPE, (left, right), into, shift).unwrap();
            let what = format!("product {m} x {k} x {n}, {ta} {tb} {keep}, {}", T::DTYPE);
            near::<T>(&what, &queue.download(gc.all()).unwrap(), &want, 2e-6);
            // The same product in f32, to rows apart, of a matrix with rows apart.
            let far = |x: &[T], columns: usize| -> Vec<T> {
                x.chunks(columns.max(1)).flat_map(|row| row.iter().copied().chain([T::of(0.0); 3])).collect()
            };
            let far_a = queue.upload(&far(&a, if ta { m } else { k })).unwrap();
            if keep == 0.0 && k > 0 && T::DTYPE != DType::F32 {
                let left = DeviceMatrix { data: far_a.all(), apart: if ta { m } else { k } + 3, ..left };
                let wide = queue.memory(4 * m * (n + 2)).unwrap();
                let into = ProductOutput { apart: n + 2, ..ProductOutput::new(wide.all(), DType::F32) };
                launch::matmul(queue, T::DTYPE, (left, right), into, shift).unwrap();
                let got: Vec<f32> = queue.download(wide.all()).unwrap();
                let got: Vec<f32> = got.chunks(n + 2).flat_map(|row| row[..n].to_vec()).collect();
                near::<f32>(&what, &got, &want, 2e-6);
            }
            if m != n {
                assert!(launch::matmul(queue, T::DTYPE, (right, left), into, None).is_err());
            }
        }
    }
}

fn convolutions<T: Trained>(queue: &Queue) {
    let none = queue.memory(0).unwrap();
    for (n, channels, picture, filters, side, stride, padding, groups) in [
        (2, 3, (8, 7), 4, 3, 1, 1, 1),
        (1, 2, (9, 9), 3, 3, 2, 1, 1),
        (3, 1, (5, 6), 2, 1, 1, 0, 1),
        (1, 3, (11, 11), 2, 7, 2, 3, 1),
        (2, 4, (5, 4), 6, 3, 1, 1, 2),
        (1, 3, (6, 5), 3, 3, 2, 1, 3),
    ] {
        let layout = TensorLayout::Planes;
        let s =
            Conv { dtype: T::DTYPE, n, channels, picture, filters, side, stride, padding, groups, layout };
        let (inputs, outputs, kernel) = (channels, filters, side);
        let cpu = Conv2dShape { inputs, outputs, picture, kernel, stride, padding, groups };
        let (p, q) = s.output_picture().unwrap();
        assert_eq!((p, q), cpu.output_picture());
        let x: Vec<T> = of(&units(n * channels * picture.0 * picture.1, 1));
        let (per, each) = (channels / groups, filters / groups);
        let w: Vec<T> = of(&units(filters * per * side * side, 2));
        let dy: Vec<T> = of(&units(n * filters * p * q, 3));
        let (wx, ww, wdy) = (wide(&x), wide(&w), wide(&dy));
        // The sum of the definition of a convolution; the gradients follow term by term.
        let (mut y, mut dx, mut dw) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
        let (h, v) = picture;
        for i in 0..dy.len() {
            let (column, row, f, sample) = (i % q, i / q % p, i / q / p % filters, i / q / p / filters);
            for c in 0..per {
                for (r, t) in (0..side).flat_map(|r| (0..side).map(move |t| (r, t))) {
                    let (Some(a), Some(b)) =
                        ((row * stride + r).checked_sub(padding), (column * stride + t).checked_sub(padding))
                    else {
                        continue;
                    };
                    if a < h && b < v {
                        let (from, by) = (
                            ((sample * channels + f / each * per + c) * h + a) * v + b,
                            ((f * per + c) * side + r) * side + t,
                        );
                        y[i] += wx[from] * ww[by];
                        dx[from] += wdy[i] * ww[by];
                        dw[by] += wdy[i] * wx[from];
                    }
                }
            }
        }
        for layout in [TensorLayout::Planes, TensorLayout::ChannelsLast] {
            let s = Conv { layout, ..s };
            let last = layout == TensorLayout::ChannelsLast;
            // Every operand as matrices of channels by pixels, transposed if channels are last.
            let (of_x, of_w, of_y) = ((channels, h * v), (per, side * side), (filters, p * q));
            let lies =
                |values: &[T], of: (usize, usize)| if last { turned(values, of) } else { values.to_vec() };
            let [gx, gw, gdy] = [(&x, of_x), (&w, of_w), (&dy, of_y)]
                .map(|(values, of)| queue.upload(&lies(values, of)).unwrap());
            let [gy, gdx, gdw] = [&gdy, &gx, &gw].map(|like| queue.memory(like.len()).unwrap());
            let what = format!("{s:?}");
            let check = |what: &str, got: &Memory, want: &[f64], of| {
                let want = if last { turned(want, of) } else { want.to_vec() };
                near::<T>(what, &queue.download(got.all()).unwrap(), &want, 2e-6);
            };
            launch::conv(queue, &s, gx.all(), gw.all(), gy.all()).unwrap();
            check(&what, &gy, &y, of_y);
            launch::conv_input(queue, &s, gdy.all(), gw.all(), gdx.all()).unwrap();
            check(&format!("{what}, dx"), &gdx, &dx, of_x);
            launch::conv_weight(queue, &s, gx.all(), gdy.all(), gdw.all()).unwrap();
            check(&format!("{what}, dw"), &gdw, &dw, of_w);
        }
        assert!(launch::conv(queue, &Conv { groups: 5, ..s }, none.all(), none.all(), none.all()).is_err());
    }
}
