//! What every crate of Allfold needs, and nothing else: [`Rank`], the units of time and data, the error text for an unknown name
//! ([`suggest`]), [hashes](hash), [dates](utc), a mutex helper, [enums with names](named!), the [message](panic_message) of a panic,
//! [reading](read_at_most) of input files up to a limit, their errors [in words](expected), the [memory] that is left, and
//! independent jobs [on all cores](on_all_cores()).
//!
//! This crate depends on no other crate of Allfold. The feature `serde` makes ranks and units serialisable as plain
//! numbers.
//!
//! ```
//! use allfold_base::{Bytes, BytesPerSec, Picos, suggest};
//!
//! assert_eq!(BytesPerSec::from_gb(50.0).time(Bytes(1_000)), Picos::from_nanos(20));
//! assert_eq!(suggest::nearest("rnig", ["mesh", "ring"]), Some("ring"));
//! ```

mod date;
mod file_errors;
pub mod hash;
mod lock;
pub mod memory;
mod named;
mod on_all_cores;
mod panics;
mod read;
pub mod suggest;
mod units;

pub use date::utc;
pub use file_errors::{expected, json_error, line_and_column, located};
pub use hash::fnv1a;
pub use lock::lock;
pub use on_all_cores::on_all_cores;
pub use panics::panic_message;
pub use read::{read_at_most, read_text_at_most};
pub use units::{Bytes, BytesPerSec, Picos, Rank};
