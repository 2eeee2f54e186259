//! Attention of several heads.

use super::{blocks, holds, run, trained};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::DType;
use allfold_kernels::nn::DropoutStream;
use bytemuck::{Pod, Zeroable};

/// The shape of an attention: B sequences of T tokens, H heads of D columns. D is at most 128; 32, 64 and 128 waste no work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads<'a> {
    /// The element type of all matrices.
    pub dtype: DType,
    /// The number of sequences, B.
    pub batch: usize,
    /// The number of tokens of a sequence, T.
    pub length: usize,
    /// The number of heads, H.
    pub heads: usize,
    /// The number of columns of a head, D.
    pub size: usize,
    /// Whether a token attends only to itself and to earlier tokens.
    pub causal: bool,
    /// The dropout of probabilities, if any.
    pub dropped: Option<Dropped<'a>>,
}

/// Dropout of attention probabilities, with the random draws of [`allfold_kernels::nn::AttentionDropout`].
#[derive(Clone, Copy, Debug)]
pub struct Dropped<'a> {
    /// The words (u32) of a [`DropoutStream`], as for [`super::dropout`].
    pub stream: Slice<'a>,
    /// The layer's number, which is part of the counter of the random draws.
    pub layer: u32,
    /// The dropped share of probabilities, at least 0 and less than 1.
    pub share: f64,
    /// The attention that this one is a part of, and whose draws it uses; `None` for a whole attention.
    pub part: Option<AttentionPart>,
}

/// The position of the heads, queries and keys of an attention in a larger attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionPart {
    /// The number of tokens of a whole sequence.
    pub length: usize,
    /// The first head.
    pub head: usize,
    /// The first query.
    pub query: usize,
    /// The first key; with 16-bit types a multiple of 4.
    pub key: usize,
}

impl PartialEq for Dropped<'_> {
    fn eq(&self, other: &Self) -> bool {
        let by = |d: &Self| (d.stream.address(), d.layer, d.share.to_bits(), d.part);
        by(self) == by(other)
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Shape {
    batch: u64,
    heads: u64,
    length: u64,
    stride: u64,
    y_stride: u64,
    causal: u32,
    scale: f32,
    stream: u64,
    size: u32,
    layer: u32,
    bound: u32,
    keep: f32,
    whole: u32,
    head: u32,
    query: u32,
    key: u32,
}

impl Heads<'_> {
    fn tokens(&self) -> u64 {
        (self.batch * self.length) as u64
    }

    fn width(&self) -> u64 {
        (self.heads * self.size) as u64
    }

    fn shape(&self) -> Result<Shape> {
        trained(self.dtype)?;
        if !(1..=128).contains(&self.size) || self.batch * self.heads > 65_535 {
            let (size, pairs) = (self.size, self.batch * self.heads);
            return Err(Error::Argument(format!(
                "attention has {pairs} heads of {size} columns; the kernel takes at most 65535 heads of 1 to 128 columns"
            )));
        }
        let (mut stream, mut layer, mut bound, mut keep) = (0, 0, 0, 1.0);
        let mut part = AttentionPart { length: self.length, head: 0, query: 0, key: 0 };
        if let Some(dropped) = self.dropped {
            holds("a stream of draws", dropped.stream, DropoutStream::WORDS as u64, 4)?;
            if !(0.0..1.0).contains(&dropped.share) {
                return Err(Error::Argument(format!(
                    "the dropout probability is {}; it must be at least 0 and less than 1",
                    dropped.share
                )));
            }
            part = dropped.part.unwrap_or(part);
            if self.dtype != DType::F32 && !part.key.is_multiple_of(4) {
                return Err(Error::Argument(format!(
                    "the keys of a part of an attention in {} begin at {}; with dropout they must begin at a multiple of 4",
                    self.dtype, part.key
                )));
            }
            (stream, layer) = (dropped.stream.address(), dropped.layer);
            (bound, keep) = ((dropped.share * 4_294_967_296.0) as u32, (1.0 / (1.0 - dropped.share)) as f32);
        }
        let (stride, y_stride) = (3 * self.width(), self.width());
        let (batch, heads, length) = (self.batch as u64, self.heads as u64, self.length as u64);
        let (causal, size, scale) =
            (u32::from(self.causal), self.size as u32, 1.0 / (self.size as f32).sqrt());
        let [whole, head, query, key] =
            [part.length, part.head, part.query, part.key].map(|place| place as u32);
        Ok(Shape {
            batch,
            heads,
            length,
            stride,
            y_stride,
            causal,
            scale,
            stream,
            size,
            layer,
            bound,
            keep,
            whole,
            head,
            query,
            key,
        })
    }

    /// Addresses of q, k and v in their common matrix `[B T, 3 H D]`.
    fn thirds(&self, qkv: Slice<'_>) -> [u64; 3] {
        [0, 1, 2].map(|third| qkv.address() + third * self.width() * self.dtype.size() as u64)
    }

    /// Adds the stream of random draws to the memory that the kernel reads; its address is in the shape.
    fn drawn(&self, arguments: Arguments) -> Arguments {
        self.dropped.iter().fold(arguments, |arguments, dropped| arguments.touches(dropped.stream, false))
    }

    /// The columns that the kernel computes: D, rounded up to a power of two that is at least 32.
    fn columns(&self) -> usize {
        self.size.next_power_of_two().max(32)
    }

    fn kernel(&self, stem: &str) -> Kernel {
        let family = if self.dtype == DType::F32 { Family::Attention } else { Family::AttentionMma };
        Kernel::typed(family, &format!("{stem}_{}", self.columns()), self.dtype)
    }

    /// The grid with a block for every `rows` tokens (128 of a 16-bit type) of every pair of sequence and head.
    fn grid(&self, rows: usize) -> [u32; 3] {
        let rows = if self.dtype == DType::F32 { rows } else { 128 };
        [self.length.div_ceil(rows) as u32, (self.batch * self.heads) as u32, 1]
    }
}

/// `y = softmax(q k' / sqrt(D)) v` of every head; `qkv [B T, 3 H D]`, `y [B T, H D]`, `lse [B H T]` of f32.
///
/// # Errors
/// A buffer of the wrong length.
pub fn attention(queue: &Queue, s: &Heads<'_>, qkv: Slice<'_>, y: Slice<'_>, lse: Slice<'_>) -> Result<()> {
    let (shape, size) = (s.shape()?, s.dtype.size());
    holds("queries, keys and values", qkv, 3 * s.tokens() * s.width(), size)?;
    holds("the result of an attention", y, s.tokens() * s.width(), size)?;
    holds("the rows' log-sum-exps", lse, s.tokens() * s.heads as u64, 4)?;
    if y.is_empty() {
        return Ok(());
    }
    let arguments =
        s.drawn(s.thirds(qkv).into_iter().fold(Arguments::new().touches(qkv, false), Arguments::with));
    let arguments = arguments.with(shape).writes(y).writes(lse);
    run(queue, s.kernel("attention"), s.grid(if s.columns() > 64 { 16 } else { 32 }), arguments)
}

/// Replaces `dqkv` by the gradient of [`attention`].
///
/// # Errors
/// A buffer of the wrong length.
pub fn attention_back(
    queue: &Queue,
    s: &Heads<'_>,
    qkv: Slice<'_>,
    (y, dy): (Slice<'_>, Slice<'_>),
    lse: Slice<'_>,
    dqkv: Slice<'_>,
) -> Result<()> {
    let (shape, size) = (s.shape()?, s.dtype.size());
    for qkv in [qkv, dqkv] {
        holds("queries, keys and values", qkv, 3 * s.tokens() * s.width(), size)?;
    }
    for y in [y, dy] {
        holds("the result of an attention", y, s.tokens() * s.width(), size)?;
    }
    let rows = s.tokens() * s.heads as u64;
    holds("the rows' log-sum-exps", lse, rows, 4)?;
    if y.is_empty() {
        return Ok(());
    }
    let delta = queue.memory(rows as usize * 4)?;
    let arguments = Arguments::new().reads(y).reads(dy).with(shape);
    let arguments = arguments.with(s.size as u32).writes(delta.all());
    let kernel = Kernel::typed(Family::Attention, "attention_delta", s.dtype);
    run(queue, kernel, [blocks(queue, rows * 32, 1), 1, 1], arguments)?;
    let [dq, dk, dv] = s.thirds(dqkv);
    let head = s.drawn(s.thirds(qkv).into_iter().fold(Arguments::new().touches(qkv, false), Arguments::with));
    // q, k and v are columns of one matrix: each kernel writes some of the columns, and records the whole matrix as written.
    let head = head.reads(dy).reads(lse).reads(delta.all()).with(shape).touches(dqkv, true);
    run(queue, s.kernel("attention_query"), s.grid(8), head.clone().with(dq))?;
    run(queue, s.kernel("attention_key"), s.grid(8), head.with(dk).with(dv))
}

/// Merges the attention `part` of the queries in rows `first` on of `own` rows per sequence to some keys into their attention `merged`
/// to other keys: `part` is the result and the log-sum-exps of [`attention`], `merged` f32 `[B own, H D]` and `[B H own]`. If the keys
/// are the rows' first (`begins`), `merged` has no values of these rows yet.
///
/// # Errors
/// A buffer of the wrong length.
pub fn attention_merge(
    queue: &Queue,
    s: &Heads<'_>,
    part: (Slice<'_>, Slice<'_>),
    (own, first, begins): (usize, usize, bool),
    merged: (Slice<'_>, Slice<'_>),
) -> Result<()> {
    let (shape, rows) = (s.shape()?, (s.batch * own) as u64);
    holds("the attention to some keys", part.0, s.tokens() * s.width(), s.dtype.size())?;
    holds("its rows' log-sum-exps", part.1, s.tokens() * s.heads as u64, 4)?;
    holds("the attention to all keys", merged.0, rows * s.width(), 4)?;
    holds("its rows' log-sum-exps", merged.1, rows * s.heads as u64, 4)?;
    if first + s.length > own {
        return Err(Error::Argument(format!("rows {first} on do not hold {} of {own} rows", s.length)));
    }
    let arguments = Arguments::new()
        .reads(part.0)
        .reads(part.1)
        .with(shape)
        .with(own as u64)
        .with(first as u64)
        .with(u32::from(begins));
    let arguments = arguments.writes(merged.0).writes(merged.1);
    let kernel = Kernel::typed(Family::Attention, "attention_merge", s.dtype);
    let rows = s.tokens() * s.heads as u64;
    run(queue, kernel, [blocks(queue, rows * 32, 1), 1, 1], arguments)
}
