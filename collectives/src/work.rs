//! The handle of an asynchronous operation.

use crate::backends::GateId;
use crate::communicator::Membership;
use crate::{Error, Result};
use allfold_base::lock;
use allfold_sim::Picos;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// An operation under way, and the buffer that it gives back. Dropping the handle detaches: the operation is still
/// done, in its place of the sequence, and the buffer is freed after it.
#[must_use = "an operation that is not waited for may fail unseen"]
pub struct Work<B> {
    membership: Arc<Membership>,
    done: GateId,
    number: u64,
    result: Slot<B>,
    /// A handle belongs to the rank's own thread: it waits in that thread's name.
    own: PhantomData<Rc<()>>,
}

/// Where the communication thread leaves the result, and when it was there.
pub(crate) type Slot<B> = Arc<Mutex<Option<Result<(B, Picos)>>>>;

impl<B> Work<B> {
    pub(crate) fn new(membership: Arc<Membership>, done: GateId, number: u64, result: Slot<B>) -> Work<B> {
        Work { membership, done, number, result, own: PhantomData }
    }

    /// Waits for the operation and returns its buffer.
    ///
    /// # Errors
    /// As the blocking form of the operation; the buffer is then lost, for its content has no meaning.
    pub fn wait(self) -> Result<B> {
        self.wait_timed().map(|(buffer, _)| buffer)
    }

    /// Waits for the operation and returns its buffer, with the time at which it was done: on this rank's clock, and
    /// before now if this rank was busy until later.
    ///
    /// # Errors
    /// As [`Work::wait`].
    pub fn wait_timed(self) -> Result<(B, Picos)> {
        let passed = self.membership.backend.clock().pass(self.membership.task, self.done, self.number);
        let result = passed.and_then(|()| {
            let lost = || Err(Error::System("the communication thread panicked".into()));
            lock(&self.result).take().unwrap_or_else(lost)
        });
        self.membership.tell(result)
    }

    /// Whether [`Work::wait`] would return at once. On virtual time a `false` takes time: until the next thing that
    /// happens to one of this rank's operations.
    pub fn is_done(&self) -> bool {
        self.membership.backend.clock().passed(self.membership.task, self.done, self.number)
    }
}
