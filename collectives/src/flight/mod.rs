//! The flight recorder: what each rank did last, kept always, written when something goes wrong.
//!
//! ```text
//! rank 0   .. | 40 all_reduce done | 41 all_reduce done | 42 barrier started          |   ring of the last 512
//! rank 1   .. | 40 all_reduce done | 41 all_reduce done | 42 barrier started          |
//! rank 2   .. | 40 all_reduce done |                                                  |   never entered 41
//! ```
//!
//! An operation costs two entries' worth of writing under a lock that nobody else takes; between ranks that share memory the
//! first is written while word of the operation is on its way. A record is a file per rank; [`triage`] holds the files of a
//! run against each other and names where they part, [`straggler`] for whom the others waited before.

mod record;
mod ring;
mod straggler;
mod triage;

pub use record::{Entry, Header, Record, State};
pub(crate) use ring::{Recorder, Ticket};
pub use straggler::{Straggler, straggler};
pub use triage::{Diagnosis, triage};

/// The variable that names the folder for records of processes that a launcher has started.
pub const FOLDER: &str = "ALLFOLD_FLIGHT_DIR";
