//! Ranks that are processes of one host: data through memory that all of them have mapped, control by whatever backend
//! connects them.
//!
//! ```text
//! rank 0   makes a segment (a sealed memfd: no name, nothing left behind)
//! all      tell each other host, process and descriptor by a collective of the backend; map the segment of rank 0;
//!          agree by another collective that all have it, or none uses it
//! then     collectives go by the sync segment in the segment; point-to-point messages, faults and departures by the backend as before, which
//!          is asked only by a rank that has to wait: it knows of peers that died, left, failed or called something else
//! ```

mod segment;

pub(crate) use segment::Segment;
