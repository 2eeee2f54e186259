//! Messages with or without copies.

use crate::transport::{Direct, Transport};

/// The route of all messages of an execution, chosen before the first step.
pub(crate) enum Route<'a> {
    /// Frames: sent data are copied, received data are copied or reduced into the buffer.
    Frames(&'a mut dyn Transport),
    /// In place; only data in scratch copies go as frames.
    Direct(&'a mut dyn Direct),
}

impl Route<'_> {
    /// The transport of both routes.
    pub fn transport(&mut self) -> &mut dyn Transport {
        match self {
            Route::Frames(transport) => *transport,
            Route::Direct(direct) => *direct,
        }
    }
}
