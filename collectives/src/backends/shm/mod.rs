//! Ranks that are processes of one host: data are exchanged through memory that all of them have mapped, control messages through the
//! backend that connects them.
//!
//! ```text
//! rank 0   makes a segment (a sealed memfd: no name, nothing left behind)
//! all      exchange host, process and descriptor by a collective of the backend; map the segment of rank 0; agree by another
//!          collective whether all have mapped it: otherwise no rank uses it
//! then     collectives use the sync segment in that segment; point-to-point messages, failures and departures are sent
//!          through the backend as before. Only a rank that has to wait checks the backend for peers that died,
//!          left, failed or made another call
//! ```

mod segment;

pub(crate) use segment::Segment;
