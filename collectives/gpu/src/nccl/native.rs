//! NCCL's own collectives, over buffers with checked lengths. Calls only issue work on the stream; [`NcclComm::wait`] finishes it.

use super::call::{BYTES, NcclCall};
use super::comm::NcclComm;
use super::numbers::{number, operator};
use crate::driver::failed;
use crate::{DType, Error, Rank, ReduceOp, Result};
use allfold_cuda::Slice;
use std::ffi::c_int;

fn reduced(dtype: DType) -> Result<c_int> {
    number(dtype)
        .ok_or_else(|| Error::Argument(format!("NCCL does not reduce {dtype}; a scheduled collective does")))
}

/// The number of elements of a buffer, as NCCL takes it.
fn elements(dtype: DType, part: Slice<'_>) -> Result<usize> {
    part.elements(dtype.size()).map(|n| n as usize).map_err(failed)
}

fn want(what: &str, part: Slice<'_>, bytes: usize) -> Result<()> {
    match part.len() {
        have if have == bytes => Ok(()),
        have => Err(Error::Argument(format!("{what} has {have} bytes, and needs {bytes}"))),
    }
}

impl NcclComm {
    fn peer(&self, rank: Rank) -> Result<c_int> {
        match rank.0 < self.size() {
            true => Ok(rank.0 as c_int),
            false => Err(Error::Argument(format!(
                "rank {rank} is outside the group, which has {} ranks",
                self.size()
            ))),
        }
    }

    /// All-reduce: `output` of every rank becomes the reduction of all inputs; in place if both are the same buffer.
    ///
    /// # Errors
    /// A length or type that does not fit; a failure of NCCL.
    pub fn all_reduce(
        &mut self,
        dtype: DType,
        op: ReduceOp,
        input: Slice<'_>,
        output: Slice<'_>,
    ) -> Result<()> {
        let (n, number) = (elements(dtype, input)?, reduced(dtype)?);
        want("the output of an all-reduce", output, input.len())?;
        self.enter(Some(("all_reduce", n, number, operator(op))), || {
            format!("all_reduce({n} x {dtype}, {op})")
        })?;
        let (from, into, op) = (input.address(), output.address(), operator(op));
        self.take("issue an all-reduce", NcclCall::AllReduce { from, into, n, dtype: number, op })
    }

    /// Broadcast: copies the root's buffer to all ranks, in place.
    ///
    /// # Errors
    /// The errors of [`NcclComm::all_reduce`].
    pub fn broadcast(&mut self, data: Slice<'_>, root: Rank) -> Result<()> {
        self.broadcast_into(data, data, root)
    }

    /// Broadcast: `output` of every rank becomes the root's `input`.
    ///
    /// # Errors
    /// The errors of [`NcclComm::all_reduce`].
    pub fn broadcast_into(&mut self, input: Slice<'_>, output: Slice<'_>, root: Rank) -> Result<()> {
        let (root, n) = (self.peer(root)?, output.len());
        want("the input of a broadcast", input, n)?;
        self.enter(Some(("broadcast", n, BYTES, root)), || format!("broadcast({n} bytes, root {root})"))?;
        let (from, into) = (input.address(), output.address());
        self.take("issue a broadcast", NcclCall::Broadcast { from, into, bytes: n, root })
    }

    /// Reduce: the root's `output` becomes the reduction of all inputs.
    ///
    /// # Errors
    /// The errors of [`NcclComm::all_reduce`].
    pub fn reduce(
        &mut self,
        dtype: DType,
        op: ReduceOp,
        input: Slice<'_>,
        output: Slice<'_>,
        root: Rank,
    ) -> Result<()> {
        let (n, number, root) = (elements(dtype, input)?, reduced(dtype)?, self.peer(root)?);
        want("the output of a reduce", output, input.len())?;
        self.enter(Some(("reduce", n, number, operator(op) << 16 | root)), || {
            format!("reduce({n} x {dtype}, {op}, root {root})")
        })?;
        let (from, into, op) = (input.address(), output.address(), operator(op));
        self.take("issue a reduce", NcclCall::Reduce { from, into, n, dtype: number, op, root })
    }

    /// All-gather: `output` becomes the `block` of every rank, in order of ranks.
    ///
    /// # Errors
    /// The errors of [`NcclComm::all_reduce`].
    pub fn all_gather(&mut self, block: Slice<'_>, output: Slice<'_>) -> Result<()> {
        let n = block.len();
        want("the output of an all-gather", output, n * self.size() as usize)?;
        self.enter(Some(("all_gather", n, BYTES, 0)), || format!("all_gather({n} bytes)"))?;
        let (from, into) = (block.address(), output.address());
        self.take("issue an all-gather", NcclCall::AllGather { from, into, bytes: n })
    }

    /// Reduce-scatter: `block` becomes this rank's part of the reduction of all inputs.
    ///
    /// # Errors
    /// The errors of [`NcclComm::all_reduce`].
    pub fn reduce_scatter(
        &mut self,
        dtype: DType,
        op: ReduceOp,
        input: Slice<'_>,
        block: Slice<'_>,
    ) -> Result<()> {
        let (n, number) = (elements(dtype, block)?, reduced(dtype)?);
        want("the input of a reduce-scatter", input, block.len() * self.size() as usize)?;
        self.enter(Some(("reduce_scatter", n, number, operator(op))), || {
            format!("reduce_scatter({n} x {dtype} a rank, {op})")
        })?;
        let (from, into, op) = (input.address(), block.address(), operator(op));
        self.take("issue a reduce-scatter", NcclCall::ReduceScatter { from, into, n, dtype: number, op })
    }

    /// All-to-all: sends block r of every rank's input to rank r, by grouped sends and receives.
    ///
    /// # Errors
    /// The errors of [`NcclComm::all_reduce`].
    pub fn all_to_all(&mut self, input: Slice<'_>, output: Slice<'_>) -> Result<()> {
        let ranks = self.size() as usize;
        want("the output of an all-to-all", output, input.len())?;
        if !input.len().is_multiple_of(ranks) {
            return Err(Error::Argument(format!(
                "{} bytes cannot be cut into {ranks} equal blocks",
                input.len()
            )));
        }
        let block = input.len() / ranks;
        self.enter(Some(("all_to_all", block, BYTES, 0)), || format!("all_to_all({block} bytes a rank)"))?;
        self.group("issue an all-to-all", |comm| {
            (0..ranks).try_for_each(|rank| {
                let peer = Rank(rank as u32);
                comm.post_send(input.part(rank * block, block).map_err(failed)?, peer)?;
                comm.post_recv(output.part(rank * block, block).map_err(failed)?, peer)
            })
        })
    }

    /// Shift: sends every rank's input to the next rank, the last rank's to rank 0, by a grouped send and receive.
    ///
    /// # Errors
    /// The errors of [`NcclComm::all_reduce`].
    pub fn shift(&mut self, input: Slice<'_>, output: Slice<'_>) -> Result<()> {
        let (rank, ranks, bytes) = (self.rank().0, self.size(), input.len());
        want("the output of a shift", output, bytes)?;
        self.enter(Some(("shift", bytes, BYTES, 0)), || format!("shift({bytes} bytes)"))?;
        self.group("issue a shift", |comm| {
            comm.post_send(input, Rank((rank + 1) % ranks))?;
            comm.post_recv(output, Rank((rank + ranks - 1) % ranks))
        })
    }

    /// Gather: copies every rank's block to the root's `output`.
    ///
    /// # Errors
    /// The errors of [`NcclComm::all_reduce`].
    pub fn gather(&mut self, block: Slice<'_>, output: Option<Slice<'_>>, root: Rank) -> Result<()> {
        let n = block.len();
        self.rooted("gather", n, root, output)?;
        self.group("issue a gather", |comm| {
            comm.post_send(block, root)?;
            output.map_or(Ok(()), |output| {
                (0..comm.size()).try_for_each(|rank| {
                    comm.post_recv(output.part(rank as usize * n, n).map_err(failed)?, Rank(rank))
                })
            })
        })
    }

    /// Scatter: copies one block of the root's `input` to every rank.
    ///
    /// # Errors
    /// The errors of [`NcclComm::all_reduce`].
    pub fn scatter(&mut self, input: Option<Slice<'_>>, block: Slice<'_>, root: Rank) -> Result<()> {
        let n = block.len();
        self.rooted("scatter", n, root, input)?;
        self.group("issue a scatter", |comm| {
            comm.post_recv(block, root)?;
            input.map_or(Ok(()), |input| {
                (0..comm.size()).try_for_each(|rank| {
                    comm.post_send(input.part(rank as usize * n, n).map_err(failed)?, Rank(rank))
                })
            })
        })
    }

    fn rooted(
        &mut self,
        what: &'static str,
        block: usize,
        root: Rank,
        whole: Option<Slice<'_>>,
    ) -> Result<()> {
        self.peer(root)?;
        match whole {
            Some(whole) => want("the root's buffer", whole, block * self.size() as usize)?,
            None if self.rank() == root => {
                return Err(Error::Argument(format!("the root of a {what} needs a buffer")));
            }
            None => {}
        }
        self.enter(Some((what, block, BYTES, root.0 as c_int)), || {
            format!("{what}({block} bytes a rank, root {root})")
        })
    }

    /// Waits until every rank has called this, and until all work issued before is done.
    ///
    /// # Errors
    /// The errors of [`NcclComm::wait`].
    pub fn barrier(&mut self) -> Result<()> {
        let one = match self.one.take() {
            Some(one) => one,
            None => self.queue.upload(&[0u8]).map_err(failed)?,
        };
        let passed = self.all_reduce(DType::U8, ReduceOp::Max, one.all(), one.all());
        // The buffer is kept even after an error, because it must not be freed before an abort.
        self.one = Some(one);
        passed?;
        self.wait("pass a barrier")
    }

    /// Sends to a peer, which must receive the same number of bytes.
    ///
    /// # Errors
    /// The errors of [`NcclComm::all_reduce`].
    pub fn send(&mut self, data: Slice<'_>, to: Rank) -> Result<()> {
        self.whole()?;
        self.post_send(data, to)
    }

    /// Receives from a peer, which must send the same number of bytes.
    ///
    /// # Errors
    /// The errors of [`NcclComm::all_reduce`].
    pub fn recv(&mut self, data: Slice<'_>, from: Rank) -> Result<()> {
        self.whole()?;
        self.post_recv(data, from)
    }

    pub(super) fn post_send(&mut self, data: Slice<'_>, to: Rank) -> Result<()> {
        let to = self.peer(to)?;
        self.take("issue a send", NcclCall::Send { from: data.address(), bytes: data.len(), to })
    }

    pub(super) fn post_recv(&mut self, data: Slice<'_>, of: Rank) -> Result<()> {
        let of = self.peer(of)?;
        self.take("issue a receive", NcclCall::Recv { into: data.address(), bytes: data.len(), of })
    }
}
