//! Tests of the kernels for ranks that share samples: rows.cu, parts of an attention and of a dropout, experts.cu.

use crate::common::{Random, Trained, near, of, units, wide};
use allfold_cuda::Queue;
use allfold_cuda::launch::{
    self, AttentionPart, DropoutLaunch, Dropped, Heads, MixtureLaunch, RowStrides, RowsLaunch,
};
use allfold_kernels::nn::{DropoutKernel, DropoutStream};

pub fn check(queue: &Queue) {
    crate::for_trained!(rows, queue);
    crate::for_trained!(parts_of_attention, queue);
    crate::for_trained!(parts_of_dropout, queue);
    experts(queue);
}

const STREAM: DropoutStream =
    DropoutStream { seed: 0x1234_5678_9abc, step: 3, layer: 5, first: 4, stride: 7 };

fn rows<T: Trained>(queue: &Queue) {
    for (outer, rows, columns) in [(1, 1, 1), (2, 3, 16), (3, 5, 7), (4, 2, 64), (2, 0, 8)] {
        // Strides of whole groups of elements, and others.
        for slack in [0, 1, 16] {
            let s = RowsLaunch {
                outer,
                rows,
                columns,
                from: RowStrides { outer: (columns + slack) as u64, row: (outer * (columns + slack)) as u64 },
                into: RowStrides { outer: (rows * (columns + slack)) as u64, row: (columns + slack) as u64 },
            };
            let len = outer * rows.max(1) * (columns + slack);
            let (x, sums) = (of::<T>(&units(len, 1)), units(len, 2));
            let (mut copied, mut summed, mut rounded) = (vec![T::of(0.0); len], wide(&sums), vec![0.0; len]);
            for (o, r, c) in
                (0..outer).flat_map(|o| (0..rows).flat_map(move |r| (0..columns).map(move |c| (o, r, c))))
            {
                let from = o * s.from.outer as usize + r * s.from.row as usize + c;
                let into = o * s.into.outer as usize + r * s.into.row as usize + c;
                copied[into] = x[from];
                summed[into] += f64::from(x[from].wide());
                rounded[into] = f64::from(T::of(sums[from]).wide());
            }
            let what = format!("{outer} x {rows} rows of {columns} with {slack} more, {}", T::DTYPE);
            let (gx, gsums) = (queue.upload(&x).unwrap(), queue.upload(&sums).unwrap());
            let zeros = queue.upload(&vec![T::of(0.0); len]).unwrap();
            launch::rows(queue, T::DTYPE, &s, gx.all(), zeros.all()).unwrap();
            near::<T>(&what, &queue.download(zeros.all()).unwrap(), &wide(&copied), 0.0);
            queue.fill(zeros.all(), 0).unwrap();
            launch::rows_round(queue, T::DTYPE, &s, gsums.all(), zeros.all()).unwrap();
            near::<T>(&format!("{what}, rounded"), &queue.download(zeros.all()).unwrap(), &rounded, 0.0);
            launch::rows_sum(queue, T::DTYPE, &s, gx.all(), gsums.all()).unwrap();
            near::<f32>(&format!("{what}, sums"), &queue.download(gsums.all()).unwrap(), &summed, 2e-7);
        }
    }
    let strides = RowStrides { outer: 0, row: 8 };
    let s = RowsLaunch { outer: 1, rows: 3, columns: 8, from: strides, into: strides };
    let short = queue.memory(23 * size_of::<T>()).unwrap();
    assert!(launch::rows(queue, T::DTYPE, &s, short.all(), short.all()).is_err());
}

/// Attention chunk by chunk of queries and of keys, merged, equals attention in one call; so do its gradients.
fn parts_of_attention<T: Trained>(queue: &Queue) {
    for (batch, chunk, heads, size, share) in
        [(1, 4, 1, 32, 0.0), (2, 12, 2, 32, 0.3), (1, 36, 2, 64, 0.2), (1, 40, 1, 80, 0.0)]
    {
        let (length, width) = (2 * chunk, heads * size);
        let stream = queue.upload(&STREAM.words()).unwrap();
        let dropped = |part| (share > 0.0).then_some(Dropped { stream: stream.all(), layer: 5, share, part });
        let whole =
            Heads { dtype: T::DTYPE, batch, length, heads, size, causal: true, dropped: dropped(None) };
        let (x, dy) =
            (of::<T>(&units(batch * length * 3 * width, 1)), of::<T>(&units(batch * length * width, 2)));
        let (gx, gdy) = (queue.upload(&x).unwrap(), queue.upload(&dy).unwrap());
        let (y, dx) = (queue.memory(gdy.len()).unwrap(), queue.memory(gx.len()).unwrap());
        let lse = queue.memory(4 * batch * heads * length).unwrap();
        launch::attention(queue, &whole, gx.all(), y.all(), lse.all()).unwrap();
        launch::attention_back(queue, &whole, gx.all(), (y.all(), gdy.all()), lse.all(), dx.all()).unwrap();

        let merged = queue.upload(&vec![f32::NAN; batch * length * width]).unwrap();
        let norms = queue.upload(&vec![f32::NAN; batch * heads * length]).unwrap();
        let mut sums = vec![0.0f64; x.len()];
        // Of each sequence: rows of a chunk of `wide` values, from value `first` on.
        let cut = |of: &[T], wide: usize, rows: usize, columns: std::ops::Range<usize>| -> Vec<Vec<T>> {
            let samples = of.chunks_exact(length * wide);
            samples
                .flat_map(|sample| sample[rows * chunk * wide..(rows + 1) * chunk * wide].chunks_exact(wide))
                .map(|row| row[columns.clone()].to_vec())
                .collect()
        };
        let own: Vec<T> = queue.download(y.all()).unwrap();
        let all: Vec<f32> = queue.download(lse.all()).unwrap();
        for (queries, keys) in [(0, 0), (1, 0), (1, 1)] {
            let part = AttentionPart { length, head: 0, query: queries * chunk, key: keys * chunk };
            let s = Heads { length: chunk, causal: queries == keys, dropped: dropped(Some(part)), ..whole };
            let q = cut(&x, 3 * width, queries, 0..width);
            let kv = cut(&x, 3 * width, keys, width..3 * width);
            let packed: Vec<T> = q.iter().zip(&kv).flat_map(|(q, kv)| [&q[..], &kv[..]].concat()).collect();
            let packed = queue.upload(&packed).unwrap();
            let (py, plse) = (queue.memory(y.len() / 2).unwrap(), queue.memory(lse.len() / 2).unwrap());
            launch::attention(queue, &s, packed.all(), py.all(), plse.all()).unwrap();
            let places = (length, queries * chunk, keys == 0);
            launch::attention_merge(queue, &s, (py.all(), plse.all()), places, (merged.all(), norms.all()))
                .unwrap();

            let rows = |of: &[T]| queue.upload(&cut(of, width, queries, 0..width).concat()).unwrap();
            let (py, pdy) = (rows(&own), rows(&dy));
            let plse: Vec<f32> = all
                .chunks_exact(length)
                .flat_map(|row| row[queries * chunk..(queries + 1) * chunk].to_vec())
                .collect();
            let (plse, pdx) = (queue.upload(&plse).unwrap(), queue.memory(packed.len()).unwrap());
            launch::attention_back(queue, &s, packed.all(), (py.all(), pdy.all()), plse.all(), pdx.all())
                .unwrap();
            let came: Vec<T> = queue.download(pdx.all()).unwrap();
            for (at, came) in came.iter().enumerate() {
                let (row, column) = (at / (3 * width), at % (3 * width));
                let chunk_of = if column < width { queries } else { keys };
                let into = row / chunk * length + chunk_of * chunk + row % chunk;
                sums[into * 3 * width + column] += f64::from(came.wide());
            }
        }
        let what = format!("{batch} x 2 x {chunk} x {heads} x {size}, dropping {share}, {}", T::DTYPE);
        let half = f64::from(T::HALF);
        let (got, got_norms): (Vec<f32>, Vec<f32>) =
            (queue.download(merged.all()).unwrap(), queue.download(norms.all()).unwrap());
        near::<f32>(&format!("{what}: merged"), &got, &wide(&own), 2e-6 + 4.0 * half);
        near::<f32>(&format!("{what}: norms"), &got_norms, &wide(&all), 2e-6);
        let dx: Vec<T> = queue.download(dx.all()).unwrap();
        let sums: Vec<f32> = sums.iter().map(|x| *x as f32).collect();
        near::<f32>(&format!("{what}: gradient"), &sums, &wide(&dx), 4e-6 + 8.0 * half);
    }
}

fn parts_of_dropout<T: Trained>(queue: &Queue) {
    for runs in [vec![3..7, 7..10], vec![8..16, 24..32], vec![0..5, 7..9], vec![4..4, 8..12]] {
        let width: usize = runs.iter().map(|run| run.len()).sum();
        let x: Vec<T> = of(&units(3 * width, 1));
        let mut want = vec![0.0f64; x.len()];
        DropoutKernel { share: 0.3 }.apply_to(STREAM, &runs, &wide(&x), &mut want);
        let (gx, stream) = (queue.upload(&x).unwrap(), queue.upload(&STREAM.words()).unwrap());
        let y = queue.memory(gx.len()).unwrap();
        let s = DropoutLaunch { runs: &runs, share: 0.3 };
        launch::dropout(queue, T::DTYPE, (gx.all(), y.all()), (stream.all(), 5), &s).unwrap();
        let got: Vec<T> = queue.download(y.all()).unwrap();
        near::<T>(&format!("dropout of {runs:?}, {}", T::DTYPE), &got, &want, 2e-7);
    }
    let none = queue.memory(0).unwrap();
    let stream = queue.upload(&STREAM.words()).unwrap();
    for runs in [vec![], vec![4..8, 0..4], vec![0..1, 1..2, 2..3]] {
        let s = DropoutLaunch { runs: &runs, share: 0.3 };
        assert!(launch::dropout(queue, T::DTYPE, (none.all(), none.all()), (stream.all(), 5), &s).is_err());
    }
}

/// A mixture token by token, in f64.
struct Wanted {
    p: Vec<f64>,
    best: Vec<u32>,
    places: Vec<u32>,
    gates: Vec<f64>,
    slots: Vec<f64>,
    y: Vec<f64>,
    dslots: Vec<f64>,
    dgates: Vec<f64>,
    dlogits: Vec<f64>,
}

fn wanted(m: &MixtureLaunch, logits: &[f32], x: &[f32], dy: &[f32], balance: f64) -> Wanted {
    let MixtureLaunch { samples, tokens, experts, chosen, capacity, width } = *m;
    let all = samples * tokens;
    let mut w = Wanted {
        p: Vec::new(),
        best: Vec::new(),
        places: Vec::new(),
        gates: Vec::new(),
        slots: vec![0.0; experts * samples * capacity * width],
        y: vec![0.0; all * width],
        dslots: vec![0.0; experts * samples * capacity * width],
        dgates: vec![0.0; all * chosen],
        dlogits: Vec::new(),
    };
    let mut taken = vec![0; samples * experts];
    for token in 0..all {
        let sample = token / tokens;
        let row: Vec<f64> =
            logits[token * experts..][..experts].iter().map(|x| f64::from(*x).exp()).collect();
        let total: f64 = row.iter().sum();
        let p: Vec<f64> = row.iter().map(|x| x / total).collect();
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
        let sum: f64 = if chosen == 1 { 1.0 } else { order[..chosen].iter().map(|e| p[*e]).sum() };
        for (j, &e) in order[..chosen].iter().enumerate() {
            let at = token * chosen + j;
            let turn = &mut taken[sample * experts + e];
            *turn += 1;
            w.best.push(e as u32);
            w.gates.push(p[e] / sum);
            if *turn > capacity {
                w.places.push((experts * capacity) as u32);
                continue;
            }
            w.places.push((e * capacity + *turn - 1) as u32);
            let slot = ((e * samples + sample) * capacity + *turn - 1) * width;
            for c in 0..width {
                let (x, dy) = (f64::from(x[token * width + c]), f64::from(dy[token * width + c]));
                w.slots[slot + c] = x;
                w.y[token * width + c] += p[e] / sum * x;
                w.dslots[slot + c] = p[e] / sum * dy;
                w.dgates[at] += x * dy;
            }
        }
        w.p.extend(p);
    }
    for token in 0..all {
        let p = &w.p[token * experts..][..experts];
        let own = &w.best[token * chosen..][..chosen];
        let sample = token / tokens * tokens * chosen..(token / tokens + 1) * tokens * chosen;
        let share = |e: usize| w.best[sample.clone()].iter().filter(|b| **b == e as u32).count() as f64;
        let mut d: Vec<f64> =
            (0..experts).map(|e| balance * share(e) / (tokens * chosen) as f64 / tokens as f64).collect();
        let (sum, common) = match chosen {
            1 => (1.0, 0.0),
            _ => {
                let sum: f64 = own.iter().map(|e| p[*e as usize]).sum();
                let dgates = own.iter().zip(&w.dgates[token * chosen..]);
                (sum, dgates.map(|(e, d)| p[*e as usize] / sum * d).sum())
            }
        };
        own.iter().zip(&w.dgates[token * chosen..]).for_each(|(e, dg)| d[*e as usize] += (dg - common) / sum);
        let dot: f64 = p.iter().zip(&d).map(|(p, d)| p * d).sum();
        w.dlogits.extend(p.iter().zip(&d).map(|(p, d)| p * (d - dot)));
    }
    w
}

fn experts(queue: &Queue) {
    for (samples, tokens, experts, chosen, capacity, width) in [
        (1, 1, 1, 1, 1, 4),
        (2, 5, 3, 2, 5, 7),
        (3, 9, 4, 1, 2, 8),
        (2, 33, 8, 3, 4, 40),
        (1, 300, 5, 2, 90, 3),
    ] {
        let m = MixtureLaunch { samples, tokens, experts, chosen, capacity, width };
        let what = format!("{m:?}");
        let all = samples * tokens;
        let (logits, x, dy) = (units(all * experts, 1), units(all * width, 2), units(all * width, 3));
        let w = wanted(&m, &logits, &x, &dy, 0.7);
        let (p, gx, gdy) =
            (queue.upload(&logits).unwrap(), queue.upload(&x).unwrap(), queue.upload(&dy).unwrap());
        let memory = |elements: usize| queue.upload(&vec![0.0f32; elements]).unwrap();
        let [best, places, gates, numbers, dgates] = [(); 5].map(|()| memory(all * chosen));
        let [slots, dslots] = [(); 2].map(|()| memory(w.slots.len()));
        let (y, dp) = (memory(all * width), memory(all * experts));
        let far = |name: &str, of: &allfold_cuda::Memory, want: &[f64]| {
            near::<f32>(&format!("{what}: {name}"), &queue.download(of.all()).unwrap(), want, 4e-6);
        };
        let tail = (gates.all(), numbers.all());
        m.route(queue, p.all(), [best.all(), places.all()], tail).unwrap();
        far("p", &p, &w.p);
        assert_eq!(queue.download::<u32>(best.all()).unwrap(), w.best, "{what}");
        assert_eq!(queue.download::<u32>(places.all()).unwrap(), w.places, "{what}");
        far("gates", &gates, &w.gates);
        far("numbers", &numbers, &w.places.iter().map(|at| f64::from(*at)).collect::<Vec<_>>());
        m.dispatch(queue, gx.all(), places.all(), slots.all()).unwrap();
        far("slots", &slots, &w.slots);
        m.combine(queue, slots.all(), tail, y.all()).unwrap();
        far("y", &y, &w.y);
        m.combine_back(queue, (slots.all(), gdy.all()), tail, (dslots.all(), dgates.all())).unwrap();
        far("gradients of slots", &dslots, &w.dslots);
        far("gradients of gates", &dgates, &w.dgates);
        m.logits_back(queue, (p.all(), best.all()), dgates.all(), 0.7, dp.all()).unwrap();
        // A difference of gradients of gates, which are larger.
        let most = |of: &[f64]| of.iter().fold(1e-3f64, |most, x| most.max(x.abs()));
        let rel = 4e-6 * (most(&w.dgates) / most(&w.dlogits)).max(1.0);
        let got: Vec<f32> = queue.download(dp.all()).unwrap();
        near::<f32>(&format!("{what}: gradients of logits"), &got, &w.dlogits, rel);
        // A token receives the values in its slots, as often as it was put in one.
        let mut random = Random(7);
        let start: Vec<f32> = (0..x.len()).map(|_| random.unit()).collect();
        let into = queue.upload(&start).unwrap();
        m.collect(queue, slots.all(), places.all(), into.all()).unwrap();
        let kept = |token: usize| {
            let own = &w.places[token * chosen..][..chosen];
            own.iter().filter(|place| **place < (experts * capacity) as u32).count() as f64
        };
        let back: Vec<f64> =
            (0..x.len()).map(|at| f64::from(start[at]) + kept(at / width) * f64::from(x[at])).collect();
        far("collected", &into, &back);
    }
    let m = MixtureLaunch { samples: 1, tokens: 1, experts: 2, chosen: 3, capacity: 1, width: 1 };
    let some = queue.memory(4).unwrap();
    assert!(m.dispatch(queue, some.all(), some.all(), some.all()).is_err());
}
