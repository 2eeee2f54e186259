//! The native half of the Python package `allfold`: communicators over a program's own memory, the `allfold` command, and
//! algorithms written in Python.
//!
//! ```text
//! allfold/communicator.py, allfold/torch --> communicator -> engine -> allfold_collectives::Communicator
//!                                              |             '-- memory: what Python objects lend
//!                                              '-- work, messages
//! allfold/command.py --> command -> allfold_experiments, allfold_report
//! allfold/schedule.py --> schedule -> allfold_collectives::registry
//! ```
//!
//! This crate exports plain functions and classes. Users import the Python code in `allfold/`, which has types and documentation.

mod command;
mod communicator;
mod engine;
mod errors;
mod interrupt;
mod memory;
mod messages;
mod schedule;
mod simulated;
mod work;

use pyo3::prelude::*;

#[pymodule]
mod _allfold {
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::command::{capture, main, plots};
    #[pymodule_export]
    use super::communicator::{Endpoint, NativeCommunicator, Registered};
    #[pymodule_export]
    use super::errors::{AbortedError, AllfoldError, DeadlineError, MismatchError, PeerLostError};
    #[pymodule_export]
    use super::messages::{NativeMessages, PostedReceive};
    #[pymodule_export]
    use super::schedule::{add_algorithm, algorithm_names, has_root, prepare_algorithm};
    #[pymodule_export]
    use super::simulated::{SimulatedCommunicator, SimulatedRun, SimulatedWork, device_peak, simulate_ranks};
    #[pymodule_export]
    use super::work::NativeWork;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        allfold_experiments::begin_log().map_err(PyValueError::new_err)
    }
}
