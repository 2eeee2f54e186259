//! The layers that ranks of the context axis share, on a device: ring attention, and a table of positions of which each rank adds its
//! rows.
//!
//! ```text
//! own chunks of queries and a rank's chunks of keys    packed [n, chunk, q k v]  ->  attention  ->  merged into y (f32) and lse
//! meanwhile   keys and values are sent to the next rank
//! backward    packed, with y, dy and lse of its queries  ->  gradients, added up: of queries here, of keys as they go round
//! ```
//!
//! A rank's two chunks and the order of rounds are those of [`allfold_networks::layers::RingAttention`].

use super::backward::gone;
use super::passes::{PassContext, Passes, cut};
use crate::Result;
use crate::error::network;
use allfold_cuda::launch::{self, AttentionPart, Dropped, Heads, RowStrides, RowsLaunch};
use allfold_cuda::{Memory, Queue, Slice};
use allfold_kernels::DType;
use allfold_networks::layers::LayerOperation;
use std::ops::Range;

/// A ring attention: the queries of this rank, and the keys of all ranks in turn.
struct Ring<'a> {
    /// The attention of one chunk of queries to one chunk of keys, without dropout.
    heads: Heads<'a>,
    /// Dropout, where there is any.
    dropped: Option<Dropped<'a>>,
    /// The number of tokens of a whole sample.
    positions: usize,
    /// This rank's number, and the number of ranks.
    index: usize,
    size: usize,
}

/// One of this rank's chunks of queries with one of a rank's chunks of keys, each as its index among the rank's two chunks and its number
/// among all chunks.
struct Block {
    queries: (usize, usize),
    keys: (usize, usize),
}

/// Adjacent columns of a chunk's rows: their number, and the first column and the width of a row in a buffer of all of the rank's rows
/// (`whole`) and in a buffer of the chunk's rows alone (`packed`).
struct Columns {
    count: usize,
    whole: (usize, usize),
    packed: (usize, usize),
}

impl<'a> Ring<'a> {
    fn width(&self) -> usize {
        self.heads.heads * self.heads.size
    }

    /// The number of rows of a chunk, over all samples.
    fn rows(&self) -> usize {
        self.heads.batch * self.heads.length
    }

    fn chunks(&self, rank: usize) -> [(usize, usize); 2] {
        [(0, rank), (1, 2 * self.size - 1 - rank)]
    }

    /// The blocks of a round in which queries see keys.
    fn blocks(&self, round: usize) -> Vec<Block> {
        let keys = self.chunks((self.index + self.size - round) % self.size);
        let blocks = self.chunks(self.index).into_iter().flat_map(|queries| {
            keys.into_iter().filter(move |keys| keys.1 <= queries.1).map(move |keys| Block { queries, keys })
        });
        blocks.collect()
    }

    /// The attention of a block.
    fn of(&self, block: &Block) -> Heads<'a> {
        let [query, key] = [block.queries.1, block.keys.1].map(|chunk| chunk * self.heads.length);
        let part = AttentionPart { length: self.positions, head: 0, query, key };
        let dropped = self.dropped.map(|dropped| Dropped { part: Some(part), ..dropped });
        Heads { causal: query == key, dropped, ..self.heads }
    }

    /// The columns of a block's queries in a matrix of queries, and in queries, keys and values side by side.
    fn query_columns(&self, whole: usize) -> Columns {
        Columns { count: self.width(), whole: (0, whole), packed: (0, 3 * self.width()) }
    }

    /// The columns of a block's keys and values in a matrix of keys and values, and in queries, keys and values side by side.
    fn key_columns(&self) -> Columns {
        let width = self.width();
        Columns { count: 2 * width, whole: (0, 2 * width), packed: (width, 3 * width) }
    }

    /// Copies columns of the rank's chunk `chunk` (0 or 1) from a buffer of all of the rank's rows to a buffer of the chunk's rows.
    fn take(
        &self,
        queue: &Queue,
        chunk: usize,
        columns: &Columns,
        (whole, packed): (Slice<'_>, Slice<'_>),
    ) -> Result<()> {
        let (s, dtype) = (self.copy(columns), self.heads.dtype);
        let whole = after(whole, chunk * self.heads.length * columns.whole.1 + columns.whole.0, dtype)?;
        launch::rows(queue, dtype, &s, whole, after(packed, columns.packed.0, dtype)?)?;
        Ok(())
    }

    /// The reverse of [`Ring::take`]: adds the columns to rows of f32.
    fn add(
        &self,
        queue: &Queue,
        chunk: usize,
        columns: &Columns,
        (packed, whole): (Slice<'_>, Slice<'_>),
    ) -> Result<()> {
        let (s, dtype) = (self.copy(columns), self.heads.dtype);
        let s = RowsLaunch { from: s.into, into: s.from, ..s };
        let whole = after(whole, chunk * self.heads.length * columns.whole.1 + columns.whole.0, DType::F32)?;
        launch::rows_sum(queue, dtype, &s, after(packed, columns.packed.0, dtype)?, whole)?;
        Ok(())
    }

    fn copy(&self, columns: &Columns) -> RowsLaunch {
        let Heads { batch, length, .. } = self.heads;
        let strides =
            |chunks: usize, row: usize| RowStrides { outer: (chunks * length * row) as u64, row: row as u64 };
        let (from, into) = (strides(2, columns.whole.1), strides(1, columns.packed.1));
        RowsLaunch { outer: batch, rows: length, columns: columns.count, from, into }
    }

    /// Queries, keys and values of a block side by side.
    fn pack(&self, queue: &Queue, block: &Block, x: Slice<'_>, kv: Slice<'_>) -> Result<Memory> {
        let packed = queue.memory(3 * self.rows() * self.width() * self.heads.dtype.size())?;
        let queries = self.query_columns(3 * self.width());
        self.take(queue, block.queries.0, &queries, (x, packed.all()))?;
        self.take(queue, block.keys.0, &self.key_columns(), (kv, packed.all()))?;
        Ok(packed)
    }

    /// Keys and values of `x`, which has queries, keys and values side by side.
    fn keys_values(&self, queue: &Queue, x: Slice<'_>) -> Result<Memory> {
        let (width, dtype) = (self.width(), self.heads.dtype);
        let kv = queue.memory(x.len() / 3 * 2)?;
        let s = table(2 * self.rows(), 2 * width, (3 * width, 2 * width));
        launch::rows(queue, dtype, &s, after(x, width, dtype)?, kv.all())?;
        Ok(kv)
    }

    /// A chunk's rows of the output, of its gradient and of the log-sum-exps.
    fn of_chunk(
        &self,
        queue: &Queue,
        chunk: usize,
        (y, dy, lse): (Slice<'_>, Slice<'_>, Slice<'_>),
    ) -> Result<[Memory; 3]> {
        let (width, Heads { batch, heads, length, .. }) = (self.width(), self.heads);
        let half = |of: Slice<'_>| queue.memory(of.len() / 2);
        let (own, down, norms) = (half(y)?, half(dy)?, half(lse)?);
        let columns = Columns { count: width, whole: (0, width), packed: (0, width) };
        self.take(queue, chunk, &columns, (y, own.all()))?;
        self.take(queue, chunk, &columns, (dy, down.all()))?;
        let s = table(batch * heads, length, (2 * length, length));
        launch::rows(queue, DType::F32, &s, after(lse, chunk * length, DType::F32)?, norms.all())?;
        Ok([own, down, norms])
    }
}

/// Rows of some columns, where a row has as many elements on both sides as `row` says.
fn table(rows: usize, columns: usize, row: (usize, usize)) -> RowsLaunch {
    let strides = |row: usize| RowStrides { outer: 0, row: row as u64 };
    RowsLaunch { outer: 1, rows, columns, from: strides(row.0), into: strides(row.1) }
}

/// A slice from element `first` on.
fn after(of: Slice<'_>, first: usize, dtype: DType) -> Result<Slice<'_>> {
    let [_, rest] = cut(of, (first * dtype.size()).min(of.len()))?;
    Ok(rest)
}

impl Passes {
    fn ring(&self, l: usize, with: &PassContext<'_, '_>, train: bool) -> Result<Ring<'_>> {
        let LayerOperation::RingAttention { positions, width, heads, dropped } = self.operations[l] else {
            return Err(network(format!("layer `{}` is no ring attention", self.network.names()[l])));
        };
        let group = with.axes.context.as_ref();
        let (index, size) = group.map_or((0, 1), |group| (group.rank().index(), group.ranks() as usize));
        let draws = Dropped { stream: self.slot.stream.all(), layer: l as u32, share: dropped, part: None };
        Ok(Ring {
            heads: Heads {
                dtype: self.precision.layers[l],
                batch: with.n,
                length: positions / (2 * size),
                heads,
                size: width / heads.max(1),
                causal: false,
                dropped: None,
            },
            dropped: (train && dropped > 0.0).then_some(draws),
            positions,
            index,
            size,
        })
    }

    /// Computes ring attention `l` from its input to `y`. Returns the rows' log-sum-exps.
    pub(crate) fn forward_ring(
        &self,
        l: usize,
        with: &mut PassContext<'_, '_>,
        train: bool,
        y: &Memory,
    ) -> Result<Vec<Memory>> {
        let (ring, queue) = (self.ring(l, with, train)?, with.queue);
        let (Heads { dtype, heads, length, .. }, elements) = (ring.heads, ring.rows() * ring.width());
        let x = self.x(l, with.n)?;
        let lse = queue.memory(4 * 2 * ring.rows() * heads)?;
        let sums = if dtype == DType::F32 { None } else { Some(queue.memory(4 * 2 * elements)?) };
        let merged = (sums.as_ref().unwrap_or(y).all(), lse.all());
        let mut kv = ring.keys_values(queue, x)?;
        for round in 0..ring.size {
            let next = with.begin_shift(round + 1 < ring.size, &kv)?;
            for block in ring.blocks(round) {
                let (s, packed) = (ring.of(&block), ring.pack(queue, &block, x, kv.all())?);
                let part = queue.memory(elements * dtype.size())?;
                let part_lse = queue.memory(4 * ring.rows() * heads)?;
                launch::attention(queue, &s, packed.all(), part.all(), part_lse.all())?;
                // In round 0 both chunks of queries see the front chunk of keys first.
                let begins = round == 0 && block.keys.0 == 0;
                let place = (2 * length, block.queries.0 * length, begins);
                launch::attention_merge(queue, &s, (part.all(), part_lse.all()), place, merged)?;
            }
            kv = with.end_shift(next, kv)?;
        }
        if let Some(sums) = &sums {
            launch::cast(queue, (DType::F32, sums.all()), (dtype, y.all()), 1.0)?;
        }
        Ok(vec![lse])
    }

    /// Computes the gradient `dx` of ring attention `l`'s input from that of its output.
    pub(crate) fn ring_input(
        &self,
        l: usize,
        with: &mut PassContext<'_, '_>,
        (dy, dx): (&Memory, &Memory),
    ) -> Result<()> {
        let (ring, queue) = (self.ring(l, with, true)?, with.queue);
        let (dtype, width) = (ring.heads.dtype, ring.width());
        let (x, y) = (self.x(l, with.n)?, self.act(l + 1, with.n)?);
        let lse = self.slot.saved[l].first().ok_or_else(|| gone(&self.network.names()[l]))?;
        let zeros = |columns: usize| {
            let memory = queue.memory(4 * 2 * ring.rows() * columns)?;
            queue.fill(memory.all(), 0)?;
            Ok::<_, crate::Error>(memory)
        };
        let (dq, mut dkv) = (zeros(width)?, zeros(2 * width)?);
        let of = (y, dy.all(), lse.all());
        let own = [ring.of_chunk(queue, 0, of)?, ring.of_chunk(queue, 1, of)?];
        let mut kv = ring.keys_values(queue, x)?;
        for round in 0..ring.size {
            let next = with.begin_shift(round + 1 < ring.size, &kv)?;
            for block in ring.blocks(round) {
                let (s, packed) = (ring.of(&block), ring.pack(queue, &block, x, kv.all())?);
                let [y, dy, lse] = &own[block.queries.0];
                let part = queue.memory(packed.len())?;
                launch::attention_back(queue, &s, packed.all(), (y.all(), dy.all()), lse.all(), part.all())?;
                ring.add(queue, block.queries.0, &ring.query_columns(width), (part.all(), dq.all()))?;
                ring.add(queue, block.keys.0, &ring.key_columns(), (part.all(), dkv.all()))?;
            }
            kv = with.end_shift(next, kv)?;
            // The gradients of keys are sent along with their keys, and are back at their rank after the last round.
            let home = with.begin_shift(true, &dkv)?;
            dkv = with.end_shift(home, dkv)?;
        }
        for (from, columns, first) in [(&dq, width, 0), (&dkv, 2 * width, width)] {
            let s = table(2 * ring.rows(), columns, (columns, 3 * width));
            launch::rows_round(queue, dtype, &s, from.all(), after(dx.all(), first, dtype)?)?;
        }
        Ok(())
    }

    /// This rank's two runs of rows of the table of layer `l`, in bytes: where each is in a sample's activation, and in the table.
    fn own_positions(&self, l: usize) -> Result<[(usize, Range<usize>); 2]> {
        let LayerOperation::PositionsPart { rows, width } = &self.operations[l] else {
            return Err(network(format!("layer `{}` has no part of a table", self.network.names()[l])));
        };
        let [front, back] = rows.clone().map(|rows| 4 * rows.start * width..4 * rows.end * width);
        Ok([(0, front.clone()), (front.len(), back)])
    }

    /// Adds this rank's rows of the table of layer `l` to its input.
    pub(crate) fn add_positions(&self, l: usize, with: &PassContext<'_, '_>, y: &Memory) -> Result<()> {
        let (queue, runs) = (with.queue, self.own_positions(l)?);
        let (table, own) = (self.wide_param(l, 0, with.weights)?, queue.memory(runs[1].0 + runs[1].1.len())?);
        for (at, run) in runs {
            queue.copy(own.all().part(at, run.len())?, table.part(run.start, run.len())?)?;
        }
        queue.copy(y.all(), self.x(l, with.n)?)?;
        launch::bias(queue, self.precision.layers[l], y.all(), own.all(), 1)?;
        Ok(())
    }

    /// Computes the gradient of the table of layer `l`: zeros in the rows of other ranks.
    pub(crate) fn positions_params(&self, l: usize, with: &PassContext<'_, '_>, dy: &Memory) -> Result<()> {
        let (queue, runs, dtype) = (with.queue, self.own_positions(l)?, self.precision.layers[l]);
        self.wide(l, 0, with, |dw| {
            let own = queue.memory(runs[1].0 + runs[1].1.len())?;
            launch::bias_back(queue, dtype, dy.all(), own.all(), 1)?;
            queue.fill(dw, 0)?;
            runs.into_iter().try_for_each(|(at, run)| {
                queue.copy(dw.part(run.start, run.len())?, own.all().part(at, run.len())?)
            })
        })
    }
}

impl PassContext<'_, '_> {
    /// If `continues`, begins to send `values` to the next rank of the context axis, and to receive as many from the previous rank.
    fn begin_shift(&mut self, continues: bool, values: &Memory) -> Result<Option<Memory>> {
        let Some(group) = self.axes.context.as_mut().filter(|_| continues) else { return Ok(None) };
        let next = self.queue.memory(values.len())?;
        group.shift(self.queue, values.all(), next.all())?;
        Ok(Some(next))
    }

    /// Ends the exchange. Returns the received values, or `values` if there is no exchange.
    fn end_shift(&mut self, next: Option<Memory>, values: Memory) -> Result<Memory> {
        let (Some(group), Some(next)) = (&mut self.axes.context, next) else { return Ok(values) };
        group.join(self.queue)?;
        Ok(next)
    }
}
