//! The NCCL stand-in's finalize, destroy and abort.

use super::super::api::{Answer, RawComm, SUCCESS};
use super::world::{Comm, find, on};
use super::{INTERNAL_ERROR, INVALID_ARGUMENT, group};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whether a communicator's work is done and no captured graph holds any of it.
fn quiet(comm: &Comm) -> bool {
    comm.outstanding.load(Ordering::Acquire) == 0 && Arc::strong_count(&comm.graphs) == 1
}

pub(super) unsafe extern "C" fn finalize(comm: RawComm) -> Answer {
    on(comm, |comm| {
        if comm.finalized.swap(true, Ordering::AcqRel) {
            return INVALID_ARGUMENT;
        }
        let of = comm.clone();
        comm.work(move || {
            of.until(|| quiet(&of) || of.is_aborted());
            if of.is_aborted() { INTERNAL_ERROR } else { SUCCESS }
        })
    })
}

/// Destroys a communicator: returns when its work is done and all other ranks of the host have been destroyed, aborted or have died.
pub(super) unsafe extern "C" fn destroy(comm: RawComm) -> Answer {
    if comm.is_null() {
        return SUCCESS;
    }
    on(comm, |comm| {
        comm.until(|| quiet(&comm) || comm.is_aborted());
        comm.leave();
        let size = comm.group.size;
        if comm.await_all(|state| (state.gone.len() == size).then_some(())).is_err() {
            return INTERNAL_ERROR;
        }
        comm.forget();
        SUCCESS
    })
}

/// Aborts a communicator: kernels end immediately. The call returns when no graph holds work of the communicator; within a group it
/// returns immediately, and the end of the group waits for the graphs.
pub(super) unsafe extern "C" fn abort(comm: RawComm) -> Answer {
    if comm.is_null() {
        return SUCCESS;
    }
    let Some(comm) = find(comm) else { return INVALID_ARGUMENT };
    comm.family.abort(true);
    comm.leave();
    let reclaim = move || {
        comm.until(|| quiet(&comm));
        comm.forget();
    };
    group::at_its_end(Box::new(reclaim));
    SUCCESS
}
