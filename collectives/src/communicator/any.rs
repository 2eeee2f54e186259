//! Any collective by its [`Collective`]: for tests, benchmarks and programs that choose a collective at run time.

use super::request::Request;
use super::{Communicator, expect, in_place, out_of_place};
use crate::meaning::{On, Portion, Side};
use crate::{Collective, Element, Error, Extent, Rank, ReduceOp, Result};

impl Communicator {
    /// Calls a collective: the rank gives `input` and gets `output`, of the lengths in [`crate::meaning`]. A collective on one buffer
    /// ([`Collective::in_place`]) takes an empty input, and `output` holds the rank's input before the call. If the collective does not
    /// use this rank's input or output, any slice may be passed for it.
    ///
    /// `op` is used only if the collective reduces, `root` only if it has a root.
    ///
    /// ```
    /// use allfold_collectives::{Collective, Communicator, Error, Rank, ReduceOp, World};
    ///
    /// let gathered = World::threads(3).run(|comm: Communicator| -> Result<Vec<u8>, Error> {
    ///     let mut all = [0; 3];
    ///     comm.collective(Collective::AllGather, &[comm.rank().0 as u8], &mut all, ReduceOp::Sum, Rank(0))?;
    ///     Ok(all.to_vec())
    /// })?;
    /// assert_eq!(gathered, [[0, 1, 2]; 3]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for lengths that do not fit; otherwise the errors of the collective's own method.
    pub fn collective<T: Element>(
        &self,
        collective: Collective,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let mut request = self.request::<T>(collective, output.len());
        if collective.reduces() {
            request = request.reduced(op);
        }
        if collective.rooted() {
            request = request.rooted(self.root(root)?);
        }
        if !input.is_empty() || !collective.in_place() {
            return self.over_two_buffers(request, input, output, root);
        }
        match collective.meaning().input.part {
            Portion::Nothing => self.barrier(),
            _ => self.blocking(request, in_place(output)),
        }
    }

    /// Calls a collective with two buffers.
    fn over_two_buffers<T: Element>(
        &self,
        mut request: Request,
        input: &[T],
        output: &mut [T],
        root: Rank,
    ) -> Result<()> {
        let (collective, rank) = (request.collective, self.rank());
        let row = collective.meaning();
        if !row.out_of_place {
            return Err(Error::Argument(format!("{collective} takes one buffer, its output; pass no input")));
        }
        let whole = |side: Side| side.on == On::All && side.part == Portion::Whole;
        if whole(row.input) && whole(row.output) && input.len() == output.len() {
            // Input and output are whole buffers of one length, so no block size has to be found, which would cost time in a call
            // of 8 bytes.
            request.count = output.len();
            return self.blocking(request, out_of_place(input, output));
        }
        request.count = self.count_of(collective, input.len(), output.len(), root)?;
        let extent = Extent { collective, ranks: self.size(), root, count: request.count };
        let holds = |side: Side| side.on == On::All || rank == root;
        let input = if holds(row.input) { input } else { &[] };
        let output = if holds(row.output) { output } else { &mut [] };
        let fits = |what: &str, got: usize, want: usize| match got == want {
            true => Ok(()),
            false => expect(&format!("the {what} of {collective}"), got, want),
        };
        fits("input", input.len(), extent.input(rank).len())?;
        fits("output", output.len(), extent.output(rank).len())?;
        self.blocking(request, out_of_place(input, output))
    }

    /// The count of a call with two buffers, from their lengths: the elements of the whole buffer, or of one block.
    fn count_of(&self, collective: Collective, input: usize, output: usize, root: Rank) -> Result<usize> {
        let row = collective.meaning();
        let n = self.size() as usize;
        let of = |side: Side, len: usize| match side.part {
            _ if side.on == On::Root && self.rank() != root => None,
            Portion::Nothing => Some(0),
            Portion::Blocks if !len.is_multiple_of(n) => None,
            Portion::Blocks => Some(len / n),
            Portion::Block | Portion::Whole => Some(len),
        };
        of(row.input, input).or_else(|| of(row.output, output)).ok_or_else(|| {
            Error::Argument(format!(
                "{collective} takes one block per rank: its buffers do not divide among {n} ranks"
            ))
        })
    }
}
