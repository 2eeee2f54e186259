//! What the ranks of a group agree on, and how a rank that breaks it is found.
//!
//! ```text
//! call            what a rank calls
//! deadline        until when a rank waits for the others, in real time
//! fingerprint     the same in 16 bytes, for frames
//! ledger          who entered which operation with which call: of ranks that share a process
//! remote_ledger   the same as one of several processes knows it
//! ```

mod call;
mod call_ledger;
pub(crate) mod deadline;
mod fingerprint;
mod remote_ledger;

pub use call::{Call, Operation};
pub(crate) use call_ledger::CallLedger;
pub use fingerprint::Fingerprint;
pub(crate) use remote_ledger::RemoteLedger;
