//! The handle of an asynchronous operation.

use crate::backends::GateId;
use crate::communicator::Membership;
use crate::{Error, Result};
use allfold_base::lock;
use allfold_sim::Picos;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// An operation in flight and the buffer that it returns. Dropping the handle detaches the operation: it still runs in its position of
/// the sequence, and its buffer is freed afterwards.
#[must_use = "an operation that is not waited for may fail unseen"]
pub struct Work<B> {
    membership: Arc<Membership>,
    done: GateId,
    number: u64,
    result: Slot<B>,
    /// Makes the handle not `Send`: the rank's own thread waits for the operation.
    own: PhantomData<Rc<()>>,
}

/// The result and its time, stored by the communication thread.
pub(crate) type Slot<B> = Arc<Mutex<Option<Result<(B, Picos)>>>>;

impl<B> Work<B> {
    pub(crate) fn new(membership: Arc<Membership>, done: GateId, number: u64, result: Slot<B>) -> Work<B> {
        Work { membership, done, number, result, own: PhantomData }
    }

    /// Waits for the operation and returns its buffer.
    ///
    /// # Errors
    /// The errors of the operation's blocking form. After an error the buffer is dropped, because its content is undefined.
    pub fn wait(self) -> Result<B> {
        self.wait_timed().map(|(buffer, _)| buffer)
    }

    /// Waits for the operation and returns its buffer and the time at which it finished, by this rank's clock. The time is in the
    /// past if this rank was busy.
    ///
    /// # Errors
    /// As [`Work::wait`].
    pub fn wait_timed(self) -> Result<(B, Picos)> {
        let passed = self.membership.backend.clock().pass(self.membership.task, self.done, self.number);
        let result = passed.and_then(|()| {
            let lost = || Err(Error::System("the communication thread panicked".into()));
            lock(&self.result).take().unwrap_or_else(lost)
        });
        self.membership.report(result)
    }

    /// Whether [`Work::wait`] would return at once. On virtual time a call that returns `false` advances the clock to the next
    /// event of one of this rank's operations.
    pub fn is_done(&self) -> bool {
        self.membership.backend.clock().passed(self.membership.task, self.done, self.number)
    }
}
