//! MPI's own collectives. MPI chooses the order of arithmetic, so the bits are not defined. While a collective runs, the rank reads
//! control messages and checks the deadline. MPI gets copies, so that after a failed call it holds no memory of the caller.

use super::endpoint::Endpoint;
use super::foreign::{Native, Request};
use crate::transport::{Payload, Transport};
use crate::{Call, Error, ReduceOp, Result};
use allfold_kernels::divide_bytes;
use allfold_kernels::fused::CallBuffers;
use std::sync::Arc;

impl Endpoint {
    fn copy(&self, bytes: &[u8]) -> Payload {
        let mut copy = self.alloc(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }

    /// Runs a call by MPI's own collective.
    pub(super) fn collective(&mut self, call: &Arc<Call>, buffers: CallBuffers<'_>) -> Result<()> {
        let what = Native::of(call).ok_or_else(|| {
            Error::Argument(format!("MPI has no collective for {call}; choose a scheduled algorithm"))
        })?;
        self.enter(call)?;
        let typed = matches!(what, Native::AllReduce(..) | Native::Reduce(..) | Native::ReduceScatter(..));
        let block = call.count as usize * if typed { 1 } else { call.dtype.size() };
        let (given, result): (Option<&[u8]>, &mut [u8]) = match buffers {
            CallBuffers::InPlace(data) => (None, data),
            CallBuffers::OutOfPlace(from, to) => (Some(from), to),
        };
        let (from, to) = match what {
            Native::Broadcast(_) | Native::Barrier => (None, self.copy(result)),
            _ => (Some(self.copy(given.unwrap_or(result))), self.alloc(result.len())),
        };
        let request = self.group.comm().and_then(|comm| comm.collective(what, from, to, block));
        let done = request.and_then(|request| self.finish(request));
        let done = done.map_err(|error| self.group.fail(error))?;
        let holds = match what {
            Native::Reduce(.., root) | Native::Gather(root) => root == self.group.me(),
            _ => true,
        };
        if holds {
            result.copy_from_slice(&done);
            if call.op == Some(ReduceOp::Avg) {
                divide_bytes(call.dtype, result, self.group.comm()?.size());
            }
        }
        self.done();
        Ok(())
    }

    fn finish(&mut self, mut request: Request) -> Result<Payload> {
        self.stir();
        while request.test()?.is_none() {
            self.rest(0)?;
        }
        request
            .into_payload()
            .ok_or_else(|| Error::System("MPI still holds the buffer of a collective".into()))
    }
}
