//! Ranks as threads of this process on a virtual clock: the same Python function on each, with real data.

#![allow(unsafe_code, reason = "the memory belongs to Python objects, which are kept alive meanwhile")]

use crate::communicator::Named;
use crate::errors::raised;
use crate::memory::Place;
use allfold_base::lock;
use allfold_collectives::{Buffer, Collective, Communicator, Element, Error, Rank, Result, Work, World};
use allfold_experiments::predict::trace;
use allfold_kernels::for_dtype;
use allfold_sim::{Device, DeviceWork, Topology};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Mutex;

/// One activity of a rank: rank, stream, name, start and end in picoseconds, bytes sent.
type Activity = (u32, u32, String, u64, u64, u64);

/// The outcome of a run.
#[pyclass(frozen)]
pub struct SimulatedRun {
    /// What each rank returned, or the exception that it raised.
    #[pyo3(get)]
    outcomes: Vec<Py<PyAny>>,
    /// Whether each rank returned.
    #[pyo3(get)]
    returned: Vec<bool>,
    /// When each rank was done, in picoseconds.
    #[pyo3(get)]
    finish: Vec<u64>,
    /// The rank that failed first.
    #[pyo3(get)]
    first: Option<u32>,
    /// A hash of all messages with their times.
    #[pyo3(get)]
    event_hash: Option<u64>,
    timeline: Vec<allfold_collectives::Activity>,
}

#[pymethods]
impl SimulatedRun {
    /// What all ranks did, in order of time.
    fn activities(&self) -> Vec<Activity> {
        let row = |done: &allfold_collectives::Activity| {
            (done.rank.0, done.stream, done.what.clone(), done.start.0, done.end.0, done.sent)
        };
        self.timeline.iter().map(row).collect()
    }

    /// Writes a Chrome trace.
    fn trace(&self, path: PathBuf) -> PyResult<()> {
        trace::activities(&path, &self.timeline).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

/// A rank's error: an exception of its Python function, or of the world.
enum Failed {
    Raised(PyErr),
    World(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::World(error)
    }
}

/// The peak of a device in floating-point operations per second.
#[pyfunction]
pub fn device_peak(device: &str) -> PyResult<u64> {
    Ok(Device::named(device).map_err(|error| PyValueError::new_err(error.to_string()))?.peak)
}

/// Runs `body(communicator)` on every rank of a machine, each on a thread of its own.
#[pyfunction]
pub fn simulate_ranks(
    py: Python<'_>,
    topology: &str,
    ranks: u32,
    device: &str,
    body: Py<PyAny>,
) -> PyResult<SimulatedRun> {
    let wrong = |error: allfold_sim::Error| PyValueError::new_err(error.to_string());
    let topology = Topology::named(topology, ranks).map_err(wrong)?;
    let world = World::sim(&topology).device(Device::named(device).map_err(wrong)?).timeline();
    let report = py.detach(|| {
        world.run_each(|communicator| {
            Python::attach(|py| {
                let rank =
                    Bound::new(py, SimulatedCommunicator::new(communicator)).map_err(Failed::Raised)?;
                let result = body.call1(py, (rank.clone(),)).map_err(Failed::Raised);
                rank.get().close(py, result.is_ok());
                result
            })
        })
    });
    let report = report.map_err(raised)?;
    let (mut outcomes, mut returned) = (Vec::new(), Vec::new());
    for outcome in report.ranks {
        returned.push(outcome.is_ok());
        outcomes.push(match outcome {
            Ok(result) => result,
            Err(Failed::Raised(error)) => error.into_value(py).into_any(),
            Err(Failed::World(error)) => raised(error).into_value(py).into_any(),
        });
    }
    Ok(SimulatedRun {
        outcomes,
        returned,
        finish: report.finish.iter().map(|time| time.0).collect(),
        first: report.first.map(|rank| rank.0),
        event_hash: report.event_hash,
        timeline: report.timeline,
    })
}

/// A rank's communicator on virtual time, used by the rank's thread only.
#[pyclass(frozen)]
pub struct SimulatedCommunicator {
    communicator: Mutex<Option<Communicator>>,
    #[pyo3(get)]
    rank: u32,
    #[pyo3(get)]
    size: u32,
}

impl SimulatedCommunicator {
    fn new(communicator: Communicator) -> SimulatedCommunicator {
        let (rank, size) = (communicator.rank().0, communicator.size());
        SimulatedCommunicator { communicator: Mutex::new(Some(communicator)), rank, size }
    }

    fn with<R>(&self, run: impl FnOnce(&Communicator) -> Result<R>) -> Result<R> {
        match &*lock(&self.communicator) {
            Some(communicator) => run(communicator),
            None => Err(Error::Argument("this rank has returned: its communicator is closed".into())),
        }
    }

    /// As [`SimulatedCommunicator::with`], without holding the interpreter.
    fn on<R: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&Communicator) -> Result<R> + Send,
    ) -> PyResult<R> {
        py.detach(|| self.with(run)).map_err(raised)
    }
}

#[pymethods]
impl SimulatedCommunicator {
    /// A collective on the elements at two addresses.
    fn run(
        &self,
        py: Python<'_>,
        collective: &str,
        input: Place,
        output: Place,
        op: &str,
        root: u32,
    ) -> PyResult<()> {
        let named = Named::read(collective, op, root)?;
        self.on(py, |communicator| named.run(communicator, &input, &output))
    }

    /// Issues a collective, which runs while the rank continues. `None`: it has no asynchronous form and was run to its end.
    fn issue(
        &self,
        py: Python<'_>,
        collective: &str,
        input: Place,
        output: Place,
        op: &str,
        root: u32,
    ) -> PyResult<Option<SimulatedWork>> {
        let named = Named::read(collective, op, root)?;
        let issued =
            |communicator: &_| for_dtype!(output.span.dtype, issue(communicator, named, &input, &output));
        match self.with(issued).map_err(raised)? {
            Some(work) => Ok(Some(SimulatedWork::new(work, output))),
            None => self.on(py, |communicator| named.run(communicator, &input, &output)).map(|()| None),
        }
    }

    /// Sends the elements at an address, which are copied; returns before they have arrived.
    fn send(&self, to: u32, place: Place) -> PyResult<SimulatedWork> {
        let issued = |communicator: &_| for_dtype!(place.span.dtype, send(communicator, Rank(to), &place));
        self.with(issued).map_err(raised)
    }

    /// Receives as many elements as `place` has; [`SimulatedWork::wait`] takes their destination.
    fn receive(&self, from: u32, place: Place) -> PyResult<SimulatedWork> {
        let issued =
            |communicator: &_| for_dtype!(place.span.dtype, receive(communicator, Rank(from), &place));
        self.with(issued).map_err(raised)
    }

    /// Charges kernels to the rank's clock, one after the other: the operations and the bytes of memory of each.
    fn charge(&self, py: Python<'_>, kernels: Vec<(u64, u64)>) -> PyResult<()> {
        self.on(py, |communicator| {
            for (flops, bytes) in kernels {
                communicator.charge(&DeviceWork { flops, bytes, launches: 1, narrow: false });
            }
            Ok(())
        })
    }

    /// The rank's time in picoseconds.
    fn now(&self, py: Python<'_>) -> PyResult<u64> {
        self.on(py, |communicator| Ok(communicator.now().0))
    }

    /// The communicator of some ranks; only these call it, all with the same list and name.
    fn subgroup(&self, py: Python<'_>, members: Vec<u32>, name: u64) -> PyResult<SimulatedCommunicator> {
        let members: Vec<Rank> = members.into_iter().map(Rank).collect();
        self.on(py, |communicator| communicator.subgroup(&members, name)).map(SimulatedCommunicator::new)
    }

    /// Fails the group, for all of its ranks.
    fn abort(&self, py: Python<'_>, why: String) -> PyResult<()> {
        self.on(py, |communicator| {
            communicator.abort(why);
            Ok(())
        })
    }

    /// Leaves the group; a rank that failed (`well` is false) aborts the group.
    fn close(&self, py: Python<'_>, well: bool) {
        let taken = lock(&self.communicator).take();
        py.detach(|| {
            if let Some(communicator) = taken {
                if !well {
                    communicator.abort("its program raised an exception");
                }
                drop(communicator);
            }
        });
    }
}

/// Issues a collective that has an asynchronous form; `None` for the others.
fn issue<T: Element>(
    communicator: &Communicator,
    named: Named,
    input: &Place,
    output: &Place,
) -> Result<Option<Box<dyn Issued>>> {
    // SAFETY: the caller holds the place during this call, which copies it.
    let copied = |from: &Place| -> Buffer<T> { unsafe { from.span.read::<T>() }.to_vec().into() };
    let given = if input.span.count == 0 { output } else { input };
    let work = match named.collective {
        Collective::AllReduce => communicator.all_reduce_async(copied(given), named.op)?,
        Collective::Broadcast => communicator.broadcast_async(copied(given), named.root)?,
        Collective::AllGather => communicator.all_gather_async(copied(given))?,
        Collective::ReduceScatter => communicator.reduce_scatter_async(copied(given), named.op)?,
        _ => return Ok(None),
    };
    Ok(Some(Box::new(Some(work))))
}

fn send<T: Element>(communicator: &Communicator, to: Rank, place: &Place) -> Result<SimulatedWork> {
    // SAFETY: the caller holds the place during this call, which copies it.
    let copied: Buffer<T> = unsafe { place.span.read::<T>() }.to_vec().into();
    let work = Some(communicator.send_async(copied, to)?);
    Ok(SimulatedWork::new(Box::new(work), Place::none(T::DTYPE)))
}

fn receive<T: Element>(communicator: &Communicator, from: Rank, place: &Place) -> Result<SimulatedWork> {
    let work = Some(communicator.recv_async(Buffer::<T>::zeroed(place.span.count), from)?);
    Ok(SimulatedWork::new(Box::new(work), Place::none(T::DTYPE)))
}

/// An operation on virtual time that was issued, used by the rank's thread only, and the memory for its result.
#[pyclass(frozen)]
pub struct SimulatedWork(Mutex<OnRanksThread<Box<dyn Issued>>>, Place);

/// A pending operation, whatever its element type.
trait Issued {
    fn is_done(&self) -> bool;
    fn wait(&mut self, into: &Place) -> Result<()>;
}

impl<T: Element> Issued for Option<Work<Buffer<T>>> {
    fn is_done(&self) -> bool {
        self.as_ref().is_none_or(Work::is_done)
    }

    fn wait(&mut self, into: &Place) -> Result<()> {
        let Some(work) = self.take() else { return Ok(()) };
        let result = work.wait()?;
        let into = into.span;
        if into.dtype != T::DTYPE || into.count > result.len() {
            let (count, has) = (into.count, result.len());
            return Err(Error::Argument(format!(
                "the memory has {count} x {} and the result {has} x {}: it needs the same type and at most as many elements",
                into.dtype,
                T::DTYPE
            )));
        }
        // SAFETY: the caller holds the place, and nobody else uses its memory until the operation was waited for.
        unsafe { into.write::<T>() }.copy_from_slice(&result[..into.count]);
        Ok(())
    }
}

impl SimulatedWork {
    fn new(work: Box<dyn Issued>, output: Place) -> SimulatedWork {
        SimulatedWork(Mutex::new(OnRanksThread(work)), output)
    }
}

/// A value that only its rank's thread uses. Python may drop it on another thread.
struct OnRanksThread<T>(T);

// SAFETY: a handle is not `Send` because it waits on its rank's behalf. Python's code waits on the rank's thread, and to drop a
// handle waits for nothing.
unsafe impl<T> Send for OnRanksThread<T> {}

#[pymethods]
impl SimulatedWork {
    /// Whether the operation is done; if it is not, the rank's clock advances to its next event.
    fn is_done(&self, py: Python<'_>) -> bool {
        py.detach(|| lock(&self.0).0.is_done())
    }

    /// Waits until the operation is done, and writes the result to `into`, or else to the address given when it was issued.
    #[pyo3(signature = (into=None))]
    fn wait(&self, py: Python<'_>, into: Option<Place>) -> PyResult<()> {
        let into = into.as_ref().unwrap_or(&self.1);
        py.detach(|| lock(&self.0).0.wait(into)).map_err(raised)
    }
}
