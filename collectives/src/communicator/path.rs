//! The path of a call to the other ranks, chosen once when the call is prepared.

use crate::exec::Route;
use crate::fused::Trees;
use crate::transport::Connection;
use crate::{Call, Error, Result};

/// The paths; the first available path is taken. `F` is the operation that a call in shared memory runs.
pub(super) enum Path<F> {
    /// A collective that the backend itself provides, such as MPI's.
    Native,
    /// Shared memory: all ranks compute the result together, without messages.
    Fused(F),
    /// Messages without copies, and the best size of a piece in bytes.
    Direct(u64),
    /// Messages that are copied.
    Frames,
}

impl Path<Trees> {
    /// The path of a call over this connection. `named` is true if the caller named the algorithm; otherwise the algorithm was chosen for
    /// its speed. `trees` returns the algorithm's reduction trees; an algorithm whose trees are not known runs by messages.
    pub fn choose(
        connection: &mut Connection,
        call: &Call,
        named: bool,
        trees: impl FnOnce() -> Option<Trees>,
    ) -> Path<Trees> {
        if !named && connection.messages().native().is_some_and(|native| native.provides(call)) {
            return Path::Native;
        }
        if connection.shares_memory()
            && let Some(trees) = trees()
        {
            return Path::Fused(trees);
        }
        match connection.messages().direct() {
            Some(direct) => Path::Direct(direct.piece()),
            None => Path::Frames,
        }
    }
}

impl<F> Path<F> {
    /// This path, with the content of [`Path::Fused`] mapped by `change`.
    pub fn map_fused<G>(self, change: impl FnOnce(F) -> G) -> Path<G> {
        match self {
            Path::Native => Path::Native,
            Path::Fused(by) => Path::Fused(change(by)),
            Path::Direct(piece) => Path::Direct(piece),
            Path::Frames => Path::Frames,
        }
    }

    /// The route of the messages of this path.
    pub fn route<'a>(&self, connection: &'a mut Connection) -> Result<Route<'a>> {
        match self {
            Path::Direct(_) => {
                let gone = || Error::System("this connection cannot send without copies".into());
                connection.messages().direct().map(Route::Direct).ok_or_else(gone)
            }
            _ => Ok(Route::Frames(connection.messages())),
        }
    }
}
