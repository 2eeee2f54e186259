//! Embedding lookup and its gradient.

use super::{blocks, holds, reads_if, run, trained};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::DType;

/// The shape of an embedding: a table of V rows of C columns, and sequences of T tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingLaunch {
    /// The element type of the tables and of the result.
    pub dtype: DType,
    /// The number of rows of the table, V.
    pub vocabulary: usize,
    /// The token of the first row, if the table is a part of a table that several ranks share: tokens of other ranks' rows give 0. `None`
    /// for a whole table.
    pub part_from: Option<u32>,
    /// The number of columns, C.
    pub columns: usize,
    /// The number of tokens of a sequence, T; at least 1.
    pub length: usize,
}

impl EmbeddingLaunch {
    fn checks(
        &self,
        table: Slice<'_>,
        tokens: Slice<'_>,
        places: Option<Slice<'_>>,
        y: Slice<'_>,
    ) -> Result<u64> {
        trained(self.dtype)?;
        if self.length == 0 {
            return Err(Error::Argument("a sequence has 1 token or more".into()));
        }
        let (n, c, size) = (tokens.elements(4)?, self.columns as u64, self.dtype.size());
        holds("an embedding's table", table, self.vocabulary as u64 * c, size)?;
        holds("the embedded tokens", y, n * c, size)?;
        places
            .map_or(Ok(()), |places| holds("the table of positions", places, self.length as u64 * c, size))?;
        Ok(n)
    }
}

/// `y[i] = table[tokens[i]] + places[i % T]`; tokens are u32, and a token beyond a whole table gives NaN.
///
/// # Errors
/// A buffer of the wrong length.
pub fn embedding(
    queue: &Queue,
    s: &EmbeddingLaunch,
    (table, places): (Slice<'_>, Option<Slice<'_>>),
    tokens: Slice<'_>,
    y: Slice<'_>,
) -> Result<()> {
    let n = s.checks(table, tokens, places, y)?;
    if y.is_empty() {
        return Ok(());
    }
    let arguments = Arguments::new().reads(table).reads(tokens);
    let arguments = reads_if(arguments, places);
    let arguments = arguments.with(s.part_from.unwrap_or(0)).with(s.vocabulary as u64);
    let arguments = arguments.with(s.columns as u64).with(s.length as u64).with(n);
    let arguments = arguments.with(if s.part_from.is_some() { 0.0 } else { f32::NAN });
    let grid = [blocks(queue, n * s.columns as u64, 1), 1, 1];
    let kernel = Kernel::typed(Family::Embedding, "embedding", s.dtype);
    run(queue, kernel, grid, arguments.writes(y))
}

/// Replaces the gradients of both tables, or adds to that of the first if `adds` is true; each row is summed in the order of the tokens.
///
/// # Errors
/// A buffer of the wrong length.
pub fn embedding_back(
    queue: &Queue,
    s: &EmbeddingLaunch,
    tokens: Slice<'_>,
    dy: Slice<'_>,
    (dtable, dplaces): (Slice<'_>, Option<Slice<'_>>),
    adds: bool,
) -> Result<()> {
    let n = s.checks(dtable, tokens, dplaces, dy)?;
    if s.columns == 0 {
        return Ok(());
    }
    if !adds {
        queue.fill(dtable, 0)?;
    }
    if n > 0 {
        let arguments = Arguments::new().reads(tokens).reads(dy);
        let arguments = arguments.with(s.part_from.unwrap_or(0)).with(s.vocabulary as u64);
        let arguments = arguments.with(s.columns as u64).with(n).with(u32::from(adds));
        let kernel = Kernel::typed(Family::Embedding, "embedding_back", s.dtype);
        let grid = [blocks(queue, n * 256, 1), 1, 1];
        let arguments = if adds { arguments.updates(dtable) } else { arguments.writes(dtable) };
        run(queue, kernel, grid, arguments)?;
    }
    if let Some(dplaces) = dplaces {
        let arguments = Arguments::new().reads(dy).with(s.columns as u64).with(s.length as u64).with(n);
        let kernel = Kernel::typed(Family::Embedding, "places_back", s.dtype);
        let grid = [blocks(queue, s.length as u64 * s.columns as u64, 1), 1, 1];
        run(queue, kernel, grid, arguments.writes(dplaces))?;
    }
    Ok(())
}
