//! Messages with or without copies.

use crate::transport::{Direct, Transport};

/// The route of all messages of an execution, chosen before the first step.
pub(crate) enum Route<'a> {
    /// Frames: sent data are copied, received data are copied or reduced into the buffer.
    Frames(&'a mut dyn Transport),
    /// Data are sent and received in place where possible: not into scratch copies, and not out of spans that the same step writes.
    Direct(&'a mut dyn Direct),
}

impl Route<'_> {
    /// The transport, which both routes have.
    pub fn transport(&mut self) -> &mut dyn Transport {
        match self {
            Route::Frames(transport) => *transport,
            Route::Direct(direct) => *direct,
        }
    }
}
