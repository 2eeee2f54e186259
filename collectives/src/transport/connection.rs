//! A rank's connection to its peers in one group.

use super::capabilities::CallHeader;
use super::messages::Transport;
use super::shared_memory::SharedMemory;
use crate::{Error, Result};
use allfold_kernels::fused::{CallBuffers, Exchange};

/// Messages, and shared memory if all ranks share it.
pub(crate) struct Connection {
    messages: Box<dyn Transport>,
    shared: Option<SharedMemory>,
}

impl Connection {
    /// A connection by messages only.
    pub fn by_messages(messages: impl Transport + 'static) -> Connection {
        Connection { messages: Box::new(messages), shared: None }
    }

    /// This connection, with collectives in shared memory from now on.
    pub fn sharing(self, shared: SharedMemory) -> Connection {
        Connection { shared: Some(shared), ..self }
    }

    /// The transport of messages.
    pub fn messages(&mut self) -> &mut dyn Transport {
        &mut *self.messages
    }

    /// Whether all ranks share memory.
    pub fn shares_memory(&self) -> bool {
        self.shared.is_some()
    }

    /// Runs an operation in shared memory.
    pub fn run_fused(
        &mut self,
        header: CallHeader<'_>,
        exchange: &Exchange,
        buffers: CallBuffers<'_>,
    ) -> Result<()> {
        match &mut self.shared {
            Some(shared) => shared.run(&mut *self.messages, header, exchange, buffers),
            None => Err(Error::System(format!("{}: the ranks do not share memory", header.call))),
        }
    }

    /// Runs an operation by a collective that the backend provides.
    pub fn run_native(&mut self, header: CallHeader<'_>, buffers: CallBuffers<'_>) -> Result<()> {
        match self.messages.native() {
            Some(native) => native.run_native(header, buffers),
            None => Err(Error::System(format!(
                "{}: this backend has no native collective of that kind",
                header.call
            ))),
        }
    }
}
