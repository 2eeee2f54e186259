//! The contract of a group: all ranks make the same calls in the same order. A rank that breaks it is found and named.
//!
//! ```text
//! call                what a rank calls
//! deadline            how long a rank waits for the others, in real time
//! fingerprint         a call in 16 bytes, for frames
//! call_table          which rank entered which operation with which call, for ranks in one process
//! interrupt           how a rank's own program ends its wait
//! remote_call_table   the same, for a rank that is a process: filled from the messages of its peers
//! ```

mod call;
mod call_table;
pub(crate) mod deadline;
mod fingerprint;
pub(crate) mod interrupt;
mod remote_call_table;

pub use call::{Call, Operation};
pub(crate) use call_table::CallTable;
pub use fingerprint::Fingerprint;
pub use interrupt::{asked as interruption, interruptible};
pub(crate) use remote_call_table::RemoteCallTable;
