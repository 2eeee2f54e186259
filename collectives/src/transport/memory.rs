//! A rank's bytes during an operation, for transports that send and receive in place.

use crate::schedule::{Combine, Span};
use std::ops::Range;

/// A rank's bytes during an operation. A span may lie in several pieces; its bytes are counted from its start.
pub(crate) trait Memory {
    /// The given bytes of a span, if they are contiguous. They are sent immediately, and the parts of a span are requested in order.
    fn source(&mut self, span: Span, part: Range<usize>) -> Option<&[u8]>;
    /// Copies a span's bytes from this offset on; false if not all of them exist.
    fn copy_out(&mut self, span: Span, from: usize, into: &mut [u8]) -> bool;
    /// The given bytes of a span of the buffer for writing, if they are contiguous.
    fn target(&mut self, span: Span, part: Range<usize>) -> Option<&mut [u8]>;
    /// Copies or reduces whole elements into a span of the buffer, from this byte of it on; the parts of a span arrive in
    /// order.
    fn put(&mut self, span: Span, from: usize, how: Combine, bytes: &[u8]);
}

/// Memory without bytes, for messages that carry their own payload.
pub(crate) struct NoMemory;

impl Memory for NoMemory {
    fn source(&mut self, _span: Span, _part: Range<usize>) -> Option<&[u8]> {
        None
    }

    fn copy_out(&mut self, _span: Span, _from: usize, _into: &mut [u8]) -> bool {
        false
    }

    fn target(&mut self, _span: Span, _part: Range<usize>) -> Option<&mut [u8]> {
        None
    }

    fn put(&mut self, _span: Span, _from: usize, _how: Combine, _bytes: &[u8]) {}
}
