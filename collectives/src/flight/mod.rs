//! The flight recorder: stores each rank's last operations and writes them to a file after a failure.
//!
//! ```text
//! rank 0   .. | 40 all_reduce done | 41 all_reduce done | 42 barrier started          |   ring of the last 512
//! rank 1   .. | 40 all_reduce done | 41 all_reduce done | 42 barrier started          |
//! rank 2   .. | 40 all_reduce done |                                                  |   never entered 41
//! ```
//!
//! An operation costs two writes under an uncontended lock, an asynchronous operation three; between ranks that share memory the first
//! write overlaps with the announcement of the operation. A record is a file per rank. `allfold triage` compares the files of a run and
//! names the operation at which ranks diverge, and the rank that the others waited for longest.

mod record;
mod ring;

pub use record::{Entry, Header, Record, State, Writer};
pub(crate) use ring::{Recorder, Ticket};

/// The variable that names the folder for records of processes that a launcher has started.
pub const FOLDER: &str = "ALLFOLD_FLIGHT_DIR";

/// How the reason of a record begins that a rank without progress has written.
pub const STALLED: &str = "no operation began or ended for";
