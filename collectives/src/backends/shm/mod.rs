//! Ranks that are processes of one host: data through memory that all of them have mapped, control by whatever backend
//! connects them.
//!
//! ```text
//! rank 0   makes a segment (a sealed memfd: no name, nothing left behind)
//! all      exchange host, process and descriptor by a collective of the backend; map the segment of rank 0; agree by another
//!          collective whether all have mapped it: otherwise none uses it
//! then     collectives go through the sync segment in that segment; point-to-point messages, failures and departures go
//!          through the backend as before. Only a rank that has to wait asks the backend, which knows of peers that died,
//!          left, failed or made another call
//! ```

mod segment;

pub(crate) use segment::Segment;
