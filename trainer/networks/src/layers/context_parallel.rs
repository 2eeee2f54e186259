//! Layers in which each rank of the context axis has some positions of every sample: ring attention (H. Liu et al., ICLR 2024) and
//! a table with a row for each position.
//!
//! ```text
//! 8 chunks of positions over 4 ranks     rank 0: 0 and 7     rank 1: 1 and 6     rank 2: 2 and 5     rank 3: 3 and 4
//!
//! round 0   every rank attends from its queries to its own keys, and sends its keys and values to the next rank
//! round r   every rank attends to the keys and values of the rank r places before it, and sends them on unless r is the last
//! ```
//!
//! A query attends to keys up to its own position. With a chunk from the front and one from the back every rank has the same number
//! of pairs of queries and keys (W. Brandon et al., "Striped attention", 2023, compares such orders). A row's softmax is built up
//! round by round from its maximum and its sum so far.

use super::{
    Backward, Cast, Forward, Init, Layer, LayerCost, LayerOperation, LayerTraits, MeshAxis, PassKind,
    PeerCall, Tensor,
};
use allfold_kernels::nn::{
    AttentionDropout, AttentionShape, DropoutKernel, DropoutStream, Float, Matrix, OpCost, Store, add,
    add_cost, add_to, matmul, matmul_within,
};
use std::ops::Range;

/// The positions of rank `index` of `size`, of `positions` in all: a chunk from the front and one from the back.
pub(crate) fn own_positions(positions: usize, index: usize, size: usize) -> [Range<usize>; 2] {
    let chunk = positions / (2 * size);
    [index, 2 * size - 1 - index].map(|at| at * chunk..(at + 1) * chunk)
}

/// Causal attention over the positions of all ranks of the context axis, of which this rank has some.
pub struct RingAttention {
    /// The shape with the positions of all ranks.
    whole: AttentionShape,
    size: usize,
    dropped: f64,
}

/// The part of the softmax that a row of queries has computed so far: for each sample, head and own position, the largest score
/// and the sum of exponentials.
struct Seen<F> {
    largest: Vec<F>,
    total: Vec<F>,
}

/// A block of queries and a block of keys.
#[derive(Clone, Copy)]
struct Block {
    sample: usize,
    head: usize,
    /// Which of the rank's two chunks the queries are, and which of the other rank's two chunks the keys are.
    queries: usize,
    keys: usize,
    /// Whether both are the same chunk: a query then sees no later key.
    diagonal: bool,
    /// The positions of the first query and of the first key.
    positions: [usize; 2],
}

impl RingAttention {
    /// An attention of this shape, whose positions `size` ranks share evenly in two chunks each, and that in training drops this share
    /// of its probabilities.
    pub fn new(whole: AttentionShape, size: usize, dropped: f64) -> RingAttention {
        RingAttention { whole, size, dropped }
    }

    /// The dropout of probabilities, with the draws of the whole attention; `None` where none are dropped.
    fn with(&self, stream: DropoutStream) -> Option<AttentionDropout> {
        let kernel = DropoutKernel { share: self.dropped };
        (self.dropped > 0.0).then_some(AttentionDropout { kernel, stream, first_head: 0 })
    }

    /// Drops some of the probabilities, or of their gradients, of query `r` of a block.
    fn drop<F: Float>(&self, dropping: Option<AttentionDropout>, block: Block, r: usize, row: &mut [F]) {
        let [query, key] = block.positions;
        if let Some(dropping) = dropping {
            dropping.row(self.whole.positions, (block.sample, block.head, query + r), key, row);
        }
    }

    fn chunk(&self) -> usize {
        self.whole.positions / (2 * self.size)
    }

    /// The number of positions of this rank.
    fn own(&self) -> usize {
        2 * self.chunk()
    }

    fn depth(&self) -> usize {
        self.whole.width / self.whole.heads
    }

    fn scale<F: Float>(&self) -> F {
        F::from_f64(1.0 / (self.depth() as f64).sqrt())
    }

    /// The blocks in which rank `index` attends to the keys of rank `from`, for `n` samples.
    fn blocks(&self, n: usize, index: usize, from: usize) -> Vec<Block> {
        let chunks = |rank: usize| [rank, 2 * self.size - 1 - rank];
        let mut blocks = Vec::new();
        for (sample, head) in (0..n).flat_map(|sample| (0..self.whole.heads).map(move |head| (sample, head)))
        {
            for (queries, q) in chunks(index).into_iter().enumerate() {
                for (keys, k) in chunks(from).into_iter().enumerate().filter(|(_, k)| *k <= q) {
                    let positions = [q, k].map(|chunk| chunk * self.chunk());
                    blocks.push(Block { sample, head, queries, keys, diagonal: k == q, positions });
                }
            }
        }
        blocks
    }

    /// The cost of `blocks`. A pair of a query and a key takes `products` operations per element of a head, and `others` more.
    fn cost_of<F: Float>(&self, blocks: &[Block], (products, others): (usize, usize)) -> OpCost {
        let (chunk, AttentionShape { width, heads, .. }) = (self.chunk(), self.whole);
        let pairs = |block: &Block| if block.diagonal { chunk * (chunk + 1) / 2 } else { chunk * chunk };
        let pairs: usize = blocks.iter().map(pairs).sum();
        let moved = blocks.len() * chunk * 4 * self.depth() * products / 4;
        OpCost::launch(pairs * (products * width + others * heads) / heads, moved, size_of::<F>())
    }

    /// One head's part of a chunk's rows in x, dy, or a buffer of keys and values: `width` numbers per row, the head at `first`.
    fn rows<'a, F: Float>(
        &self,
        of: &'a [F],
        sample: usize,
        (chunk, first): (usize, usize),
        width: usize,
    ) -> Matrix<'a, F> {
        let start = (sample * self.own() + chunk * self.chunk()) * width + first;
        Matrix::within(&of[start..], self.chunk(), self.depth(), width)
    }

    /// The scores of a block before the softmax, not scaled.
    fn scores<F: Float>(&self, block: Block, x: &[F], kv: &[F], s: &mut [F]) {
        let (width, at) = (self.whole.width, block.head * self.depth());
        let q = self.rows(x, block.sample, (block.queries, at), 3 * width);
        let k = self.rows(kv, block.sample, (block.keys, at), 2 * width);
        matmul(s, Store::Replace, q, k.t());
    }

    /// Where a block's queries are in vectors with a value for each sample, head and own position.
    fn lines(&self, block: Block) -> Range<usize> {
        let start =
            (block.sample * self.whole.heads + block.head) * self.own() + block.queries * self.chunk();
        start..start + self.chunk()
    }

    /// Adds to `y` and `seen` the attention of the block's queries to its keys. `y` is not yet divided by the sums of exponentials.
    fn attend<F: Float>(
        &self,
        block: Block,
        (x, kv): (&[F], &[F]),
        (seen, y): (&mut Seen<F>, &mut [F]),
        (s, dropping): (&mut [F], Option<AttentionDropout>),
    ) {
        let (chunk, width, depth) = (self.chunk(), self.whole.width, self.depth());
        let (at, scale) = (block.head * depth, self.scale::<F>());
        self.scores(block, x, kv, s);
        let start = (block.sample * self.own() + block.queries * chunk) * width + at;
        let lines = self.lines(block);
        let largest = seen.largest[lines.clone()].iter_mut().zip(&mut seen.total[lines]);
        for (r, (s, (largest, total))) in s.chunks_exact_mut(chunk).zip(largest).enumerate() {
            let (s, hidden) = s.split_at_mut(if block.diagonal { r + 1 } else { chunk });
            hidden.fill(F::ZERO);
            let max = s.iter().fold(*largest, |max, &s| if s * scale > max { s * scale } else { max });
            let before = (*largest - max).exp_fast();
            let mut sum = F::ZERO;
            for s in s.iter_mut() {
                *s = (*s * scale - max).exp_fast();
                sum += *s;
            }
            (*largest, *total) = (max, *total * before + sum);
            self.drop(dropping, block, r, s);
            y[start + r * width..][..depth].iter_mut().for_each(|y| *y = *y * before);
        }
        let v = self.rows(kv, block.sample, (block.keys, width + at), 2 * width);
        matmul_within(&mut y[start..], width, Store::Add, Matrix::new(s, chunk, chunk), v);
    }

    /// Adds a block's part to the gradients of queries, keys and values. `d` is the sum of dy * y over each row.
    fn attend_backward<F: Float>(
        &self,
        block: Block,
        pass: (&[F], &[F], &[F], &[F]),
        (kv, dkv): (&[F], &mut [F]),
        (dx, p, dp): (&mut [F], &mut [F], &mut [F]),
        dropping: Option<AttentionDropout>,
    ) {
        let (x, dy, logs, d) = pass;
        let (chunk, width, depth) = (self.chunk(), self.whole.width, self.depth());
        let (at, scale, lines) = (block.head * depth, self.scale::<F>(), self.lines(block));
        self.scores(block, x, kv, p);
        let dy = self.rows(dy, block.sample, (block.queries, at), width);
        let v = self.rows(kv, block.sample, (block.keys, width + at), 2 * width);
        matmul(dp, Store::Replace, dy, v.t());
        let rows = p.chunks_exact_mut(chunk).zip(dp.chunks_exact_mut(chunk)).enumerate();
        for ((r, (p, dp)), (&log, &d)) in rows.zip(logs[lines.clone()].iter().zip(&d[lines])) {
            let sees = if block.diagonal { r + 1 } else { chunk };
            p[sees..].fill(F::ZERO);
            dp[sees..].fill(F::ZERO);
            self.drop(dropping, block, r, &mut dp[..sees]);
            for (p, dp) in p[..sees].iter_mut().zip(&mut dp[..sees]) {
                *p = (*p * scale - log).exp_fast();
                *dp = *p * (*dp - d) * scale;
            }
            self.drop(dropping, block, r, &mut p[..sees]);
        }
        let (p, ds) = (Matrix::new(p, chunk, chunk), Matrix::new(dp, chunk, chunk));
        let key_row = (block.sample * self.own() + block.keys * chunk) * 2 * width + at;
        let q = self.rows(x, block.sample, (block.queries, at), 3 * width);
        matmul_within(&mut dkv[key_row..], 2 * width, Store::Add, ds.t(), q);
        matmul_within(&mut dkv[key_row + width..], 2 * width, Store::Add, p.t(), dy);
        let query_row = (block.sample * self.own() + block.queries * chunk) * 3 * width + at;
        let k = self.rows(kv, block.sample, (block.keys, at), 2 * width);
        matmul_within(&mut dx[query_row..], 3 * width, Store::Add, ds, k);
    }

    /// The keys and values of `x`.
    fn keys_values<F: Float>(&self, x: &[F]) -> Vec<F> {
        let width = self.whole.width;
        x.chunks_exact(3 * width).flat_map(|row| row[width..].iter().copied()).collect()
    }
}

impl<F: Float> Layer<F> for RingAttention {
    fn inputs(&self) -> usize {
        3 * self.own() * self.whole.width
    }

    fn outputs(&self) -> usize {
        self.own() * self.whole.width
    }

    fn operation(&self) -> LayerOperation {
        let AttentionShape { positions, width, heads, .. } = self.whole;
        LayerOperation::RingAttention { positions, width, heads, dropped: self.dropped }
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits {
            axis: Some(MeshAxis::Context),
            charges_itself: true,
            cast: Cast::Narrow,
            ..LayerTraits::default()
        }
    }

    fn peer_calls(&self, pass: PassKind, n: usize) -> Vec<PeerCall> {
        let (backward, work) = match pass {
            PassKind::Forward => (false, (4, 5)),
            PassKind::InputGrad => (true, (10, 8)),
            PassKind::GatherGradient | PassKind::WeightGrad => return Vec::new(),
        };
        let keys_values = 2 * n * Layer::<F>::outputs(self);
        let mut calls = Vec::new();
        for round in 0..self.size {
            let continues = round + 1 < self.size;
            calls.extend(continues.then_some(PeerCall::BeginShift(keys_values)));
            let blocks = self.blocks(n, 0, (self.size - round) % self.size);
            calls.push(PeerCall::Charge(self.cost_of::<F>(&blocks, work)));
            calls.extend(continues.then_some(PeerCall::EndShift));
            if backward {
                calls.extend([PeerCall::BeginShift(keys_values), PeerCall::EndShift]);
            }
        }
        calls
    }

    fn saved(&self, n: usize) -> (usize, usize) {
        let places = if self.dropped > 0.0 { DropoutStream::WORDS } else { 0 };
        (n * self.whole.heads * self.own(), places)
    }

    fn forward(&self, pass: Forward<F>) {
        let Forward { n, train, x, y, saved, stream, peers, .. } = pass;
        let dropping = self.with(stream).filter(|_| train);
        if dropping.is_some() {
            saved.indices.copy_from_slice(&stream.words());
        }
        let (index, size, lines) = (peers.index(), peers.size(), saved.values.len());
        let (mut kv, mut next) = (self.keys_values(x), vec![F::ZERO; 2 * y.len()]);
        let mut seen =
            Seen { largest: vec![F::from_f64(f64::NEG_INFINITY); lines], total: vec![F::ZERO; lines] };
        let mut s = vec![F::ZERO; self.chunk() * self.chunk()];
        y.fill(F::ZERO);
        for round in 0..size {
            let continues = round + 1 < size;
            if continues {
                peers.begin_shift(&kv);
            }
            let blocks = self.blocks(n, index, (index + size - round) % size);
            for block in &blocks {
                self.attend(*block, (x, &kv), (&mut seen, y), (&mut s, dropping));
            }
            peers.charge(self.cost_of::<F>(&blocks, (4, 5)));
            if continues {
                peers.end_shift(&mut next);
                std::mem::swap(&mut kv, &mut next);
            }
        }
        let (own, depth, heads) = (self.own(), self.depth(), self.whole.heads);
        for (line, (log, (largest, total))) in
            saved.values.iter_mut().zip(seen.largest.iter().zip(&seen.total)).enumerate()
        {
            *log = *largest + total.ln();
            let (sample, head, position) = (line / own / heads, line / own % heads, line % own);
            let row = &mut y[(sample * own + position) * self.whole.width + head * depth..][..depth];
            let share = F::ONE / *total;
            row.iter_mut().for_each(|y| *y = *y * share);
        }
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        let (index, size, width) = (pass.peers.index(), pass.peers.size(), self.whole.width);
        let (own, depth, heads, logs) = (self.own(), self.depth(), self.whole.heads, &pass.saved.values);
        let dot = |line: usize| {
            let (sample, head, position) = (line / own / heads, line / own % heads, line % own);
            let start = (sample * own + position) * width + head * depth;
            let pairs = pass.dy[start..start + depth].iter().zip(&pass.y[start..start + depth]);
            pairs.fold(F::ZERO, |sum, (&dy, &y)| sum + dy * y)
        };
        let d: Vec<F> = (0..logs.len()).map(dot).collect();
        let dropping = DropoutStream::of_words(&pass.saved.indices).and_then(|stream| self.with(stream));
        let mut kv = self.keys_values(pass.x);
        let (mut next, mut dkv) = (vec![F::ZERO; kv.len()], vec![F::ZERO; kv.len()]);
        let [mut p, mut dp] = [(); 2].map(|()| vec![F::ZERO; self.chunk() * self.chunk()]);
        dx.fill(F::ZERO);
        for round in 0..size {
            let continues = round + 1 < size;
            if continues {
                pass.peers.begin_shift(&kv);
            }
            let blocks = self.blocks(pass.n, index, (index + size - round) % size);
            for block in &blocks {
                let given = (pass.x, pass.dy, &logs[..], &d[..]);
                self.attend_backward(*block, given, (&kv, &mut dkv), (dx, &mut p, &mut dp), dropping);
            }
            pass.peers.charge(self.cost_of::<F>(&blocks, (10, 8)));
            if continues {
                pass.peers.end_shift(&mut next);
                std::mem::swap(&mut kv, &mut next);
            }
            // The gradients are sent along with their keys and values, and are back at their rank after the last round.
            if size > 1 {
                pass.peers.begin_shift(&dkv);
                pass.peers.end_shift(&mut dkv);
            }
        }
        for (dx, dkv) in dx.chunks_exact_mut(3 * width).zip(dkv.chunks_exact(2 * width)) {
            dx[width..].copy_from_slice(dkv);
        }
    }

    fn cost(&self, n: usize) -> LayerCost {
        let blocks: Vec<Block> = (0..self.size).flat_map(|from| self.blocks(n, 0, from)).collect();
        let [forward, input] = [(4, 5), (10, 8)].map(|work| self.cost_of::<F>(&blocks, work));
        LayerCost { forward, evaluate: forward, input, ..LayerCost::default() }
    }
}

/// Adds to each of this rank's positions the position's own row of a table. Every rank has the whole table.
pub struct PositionsPart {
    positions: usize,
    width: usize,
    own: [Range<usize>; 2],
    /// Whether the ranks of the tensor axis share positions, and gather the gradients of each other's rows. Those of the context axis sum
    /// all gradients anyway.
    gathers: bool,
}

impl PositionsPart {
    /// A table of `positions` rows of `width` numbers, of which rank `index` of `size` adds its own.
    pub fn new(positions: usize, width: usize, (index, size): (usize, usize)) -> PositionsPart {
        PositionsPart { positions, width, own: own_positions(positions, index, size), gathers: false }
    }

    /// A table of `positions` rows of `width` numbers, of which this rank of the tensor axis adds the rows `own`. The ranks have equally
    /// many rows, in order of ranks.
    pub fn of_sequence(positions: usize, width: usize, own: Range<usize>) -> PositionsPart {
        let end = own.end;
        PositionsPart { positions, width, own: [own, end..end], gathers: true }
    }

    /// For each of this rank's two runs of rows: the offset in a sample's activation, and the elements of the table.
    fn runs(&self) -> [(usize, Range<usize>); 2] {
        let [front, back] = self.own.clone().map(|rows| rows.start * self.width..rows.end * self.width);
        [(0, front.clone()), (front.len(), back)]
    }

    fn outputs(&self) -> usize {
        self.own.iter().map(|rows| rows.len() * self.width).sum()
    }
}

impl<F: Float> Layer<F> for PositionsPart {
    fn inputs(&self) -> usize {
        self.outputs()
    }

    fn operation(&self) -> LayerOperation {
        let PositionsPart { positions, width, ref own, gathers } = *self;
        match gathers {
            true => LayerOperation::SequencePositions { positions, rows: own[0].clone(), width },
            false => LayerOperation::PositionsPart { rows: own.clone(), width },
        }
    }

    fn params(&self) -> Vec<Tensor> {
        vec![Tensor::new("weight", &[self.positions, self.width], Init::Constant(0.0))]
    }

    fn traits(&self) -> LayerTraits {
        let axis = self.gathers.then_some(MeshAxis::Tensor);
        LayerTraits { axis, identity_backward: true, ..LayerTraits::default() }
    }

    fn peer_calls(&self, pass: PassKind, _n: usize) -> Vec<PeerCall> {
        let gathers = self.gathers && pass == PassKind::WeightGrad;
        gathers.then_some(PeerCall::Gather(self.outputs())).into_iter().collect()
    }

    fn forward(&self, pass: Forward<F>) {
        for (x, y) in pass.x.chunks_exact(self.outputs()).zip(pass.y.chunks_exact_mut(self.outputs())) {
            for (at, rows) in self.runs() {
                let place = at..at + rows.len();
                add(&x[place.clone()], &pass.params[rows], &mut y[place]);
            }
        }
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        if self.gathers {
            let mut own = vec![F::ZERO; self.outputs()];
            pass.dy.chunks_exact(own.len()).for_each(|dy| add_to(&mut own, dy));
            return pass.peers.gather(&own, grads);
        }
        grads.fill(F::ZERO);
        for dy in pass.dy.chunks_exact(self.outputs()) {
            self.runs().into_iter().for_each(|(at, rows)| {
                let len = rows.len();
                add_to(&mut grads[rows], &dy[at..at + len]);
            });
        }
    }

    fn cost(&self, n: usize) -> LayerCost {
        let once = add_cost::<F>(n * self.outputs());
        LayerCost { forward: once, evaluate: once, params: once, ..LayerCost::default() }
    }
}
