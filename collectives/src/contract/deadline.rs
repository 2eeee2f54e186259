//! Deadlines of ranks that wait for each other: they count the time in which the ranks run.

pub(crate) use allfold_net::running_time::{LOOK, after, now as clock};
