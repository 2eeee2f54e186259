//! How the messages of an execution go.

use crate::transport::{Direct, Transport};

/// Chosen before the first step, for all of them.
pub(crate) enum Route<'a> {
    /// As frames: what is sent is copied, what comes is copied or reduced into its place.
    Frames(&'a mut dyn Transport),
    /// From and to where the bytes lie; only what passes through scratch goes as frames.
    Direct(&'a mut dyn Direct),
}

impl Route<'_> {
    /// The transport under either.
    pub fn transport(&mut self) -> &mut dyn Transport {
        match self {
            Route::Frames(transport) => *transport,
            Route::Direct(direct) => *direct,
        }
    }
}
