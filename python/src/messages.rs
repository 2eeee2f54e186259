//! Tagged messages: sent at once, received by source and tag.

use crate::engine::own_process;
use crate::errors::raised;
use crate::interrupt::guarded;
use crate::memory::{Place, Span};
use allfold_base::lock;
use allfold_collectives::tcp::{Messages, Receive, TaggedMessage};
use allfold_collectives::{Element, Error, Rank};
use allfold_kernels::for_dtype;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A rank's tagged messages in its group.
#[pyclass(frozen)]
pub struct NativeMessages {
    messages: Messages,
    /// The process that joined; a process that was forked from it cannot use the group.
    process: u32,
}

impl NativeMessages {
    pub fn new(messages: Messages) -> NativeMessages {
        NativeMessages { messages, process: std::process::id() }
    }
}

impl Drop for NativeMessages {
    fn drop(&mut self) {
        if own_process(self.process).is_err() {
            // The messages share state with threads of another process: it must not be dropped here.
            std::mem::forget(self.messages.clone());
        }
    }
}

/// A receive that was posted.
#[pyclass(frozen)]
pub struct PostedReceive {
    receive: Mutex<Option<Receive>>,
    process: u32,
}

impl Drop for PostedReceive {
    fn drop(&mut self) {
        if own_process(self.process).is_err() {
            let receive = self.receive.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(receive.take());
        }
    }
}

#[pymethods]
impl NativeMessages {
    /// Sends the elements at an address. They are copied before the call returns.
    fn send(&self, py: Python<'_>, to: u32, tag: u64, place: Place) -> PyResult<()> {
        let span = place.span;
        own_process(self.process).map_err(raised)?;
        py.detach(|| {
            let send = |bytes: &[u8]| self.messages.send(Rank(to), tag, span.dtype, bytes);
            for_dtype!(span.dtype, send_span(span, &send))
        })
        .map_err(raised)
    }

    /// Posts a receive from a rank, or from any. `_place` is for ranks on virtual time, which must know the length in advance.
    #[pyo3(signature = (from, tag, _place=None))]
    fn receive(&self, from: Option<u32>, tag: u64, _place: Option<Place>) -> PyResult<PostedReceive> {
        own_process(self.process).map_err(raised)?;
        let receive = self.messages.receive(from.map(Rank), tag).map_err(raised)?;
        Ok(PostedReceive { receive: Mutex::new(Some(receive)), process: self.process })
    }

    /// Holds at most this many bytes of each rank's messages that no receive has taken; a rank that sends more fails the group.
    fn hold_at_most(&self, bytes: usize) {
        self.messages.hold_at_most(bytes);
    }
}

fn send_span<T: Element>(
    span: Span,
    send: &dyn Fn(&[u8]) -> allfold_collectives::Result<()>,
) -> allfold_collectives::Result<()> {
    #[allow(unsafe_code, reason = "the place of Python's method keeps the memory")]
    // SAFETY: the caller holds the place of this memory during the call.
    send(bytemuck::cast_slice(unsafe { span.read::<T>() }))
}

fn write_message<T: Element>(span: Span, message: &TaggedMessage) {
    #[allow(unsafe_code, reason = "the place of Python's method keeps the memory")]
    // SAFETY: the caller holds the place of this memory during the call, and nobody else writes it.
    bytemuck::cast_slice_mut(unsafe { span.write::<T>() }).copy_from_slice(&message.bytes)
}

#[pymethods]
impl PostedReceive {
    /// Whether the message has arrived.
    fn is_ready(&self) -> PyResult<bool> {
        own_process(self.process).map_err(raised)?;
        let receive = lock(&self.receive);
        Ok(receive.as_ref().is_none_or(Receive::is_ready))
    }

    /// Waits for the message, at most this many seconds, and writes it to an address. Returns its source.
    fn wait(&self, py: Python<'_>, place: Place, timeout: f64) -> PyResult<u32> {
        let span = place.span;
        let message = self.take(py, timeout)?;
        if message.dtype != span.dtype || message.bytes.len() != span.count * span.dtype.size() {
            let TaggedMessage { from, tag, dtype, bytes } = message;
            let sent = bytes.len() / dtype.size();
            return Err(raised(Error::Argument(format!(
                "rank {from} sent {sent} x {dtype} with tag {tag}, but this rank receives {} x {}",
                span.count, span.dtype
            ))));
        }
        for_dtype!(span.dtype, write_message(span, &message));
        Ok(message.from.0)
    }

    /// Waits for the message, at most this many seconds. Returns its source and its bytes.
    fn bytes(&self, py: Python<'_>, timeout: f64) -> PyResult<(u32, Vec<u8>)> {
        let message = self.take(py, timeout)?;
        Ok((message.from.0, message.bytes))
    }
}

impl PostedReceive {
    fn take(&self, py: Python<'_>, timeout: f64) -> PyResult<TaggedMessage> {
        own_process(self.process).map_err(raised)?;
        let receive = lock(&self.receive).take();
        let receive =
            receive.ok_or_else(|| raised(Error::Argument("this receive was waited for before".into())))?;
        let limit = Duration::try_from_secs_f64(timeout.max(0.0)).unwrap_or(Duration::MAX);
        guarded(py, || receive.wait(limit))
    }
}
