//! A communicator over the memory of Python objects.

use crate::engine::{Engine, Mark};
use crate::errors::raised;
use crate::interrupt::guarded;
use crate::memory::{Place, Span, lend};
use crate::messages::NativeMessages;
use crate::work::NativeWork;
use allfold_base::lock;
use allfold_collectives::tcp::{Host, PeerOptions};
use allfold_collectives::{
    Buffer, Collective, Communicator, DType, Element, Error, Joining, Rank, ReduceOp, Result, registry,
};
use allfold_kernels::for_dtype;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Mutex;
use std::time::Duration;

/// A listening socket, whose address a rank sends to the others before they join.
#[pyclass(frozen)]
pub struct Endpoint(Mutex<Option<TcpListener>>);

#[pymethods]
impl Endpoint {
    /// Listens at a free port of this address.
    #[new]
    fn new(address: &str) -> PyResult<Endpoint> {
        let address: IpAddr =
            address.parse().map_err(|_| PyValueError::new_err(format!("{address} is not an IP address")))?;
        Ok(Endpoint(Mutex::new(Some(TcpListener::bind((address, 0))?))))
    }

    /// The address with its port.
    #[getter]
    fn address(&self) -> PyResult<String> {
        let listener = lock(&self.0);
        let listener =
            listener.as_ref().ok_or_else(|| PyValueError::new_err("this endpoint was used to join"))?;
        Ok(listener.local_addr()?.to_string())
    }
}

/// A rank's communicator.
#[pyclass(frozen)]
pub struct NativeCommunicator {
    engine: Engine,
    #[pyo3(get)]
    rank: u32,
    #[pyo3(get)]
    size: u32,
    #[pyo3(get)]
    shares_memory: bool,
}

impl NativeCommunicator {
    fn new(communicator: Communicator) -> NativeCommunicator {
        let (rank, size, shares_memory) =
            (communicator.rank().0, communicator.size(), communicator.shares_memory());
        NativeCommunicator { engine: Engine::new(communicator), rank, size, shares_memory }
    }

    /// Issues a collective, which holds its memory until it is done.
    fn issued(&self, mark: Option<Mark>, named: Named, input: Place, output: Place) -> PyResult<NativeWork> {
        // The closure owns both places: it borrows them as wholes.
        let operation = move |communicator: &Communicator| named.run(communicator, &input, &output);
        self.engine.issue(mark, operation).map(NativeWork::new).map_err(raised)
    }
}

/// The arguments of a call besides its memory.
#[derive(Clone, Copy)]
pub struct Named {
    pub collective: Collective,
    pub op: ReduceOp,
    pub root: Rank,
}

impl Named {
    pub fn read(collective: &str, op: &str, root: u32) -> PyResult<Named> {
        let collective = registry::collective(collective).map_err(|error| raised(error.into()))?;
        let op = ReduceOp::ALL.into_iter().find(|known| known.name() == op).ok_or_else(|| {
            let names = ReduceOp::ALL.map(ReduceOp::name).join(", ");
            PyValueError::new_err(format!("there is no operator {op}; there are {names}"))
        })?;
        Ok(Named { collective, op, root: Rank(root) })
    }

    /// Runs the collective. `input` and `output` have one type; they may share memory.
    pub fn run(self, communicator: &Communicator, input: &Place, output: &Place) -> Result<()> {
        for_dtype!(output.span.dtype, run(self, communicator, input.span, output.span))
    }
}

#[allow(unsafe_code, reason = "the memory belongs to Python objects, which the caller's places keep alive")]
fn run<T: Element>(named: Named, communicator: &Communicator, input: Span, output: Span) -> Result<()> {
    let Named { collective, op, root } = named;
    // SAFETY: the caller holds the places until the operation is done, and Python's side gives memory that nobody else uses meanwhile.
    let written = unsafe { output.write::<T>() };
    if input.count == 0 || !input.overlaps(&output) {
        // SAFETY: as above, and the input shares no byte with what is written.
        return communicator.collective(collective, unsafe { input.read::<T>() }, written, op, root);
    }
    let in_block = input.is_block_of(&output, communicator.rank().index());
    if collective == Collective::AllGather
        && in_block
        && input.count * communicator.size() as usize == output.count
    {
        return communicator.all_gather_in_place(written);
    }
    let within = (input.address() - output.address().min(input.address())) / size_of::<T>();
    if collective.in_place() && within == 0 && input.count == output.count {
        return communicator.collective(collective, &[], written, op, root);
    }
    // SAFETY: the input is copied before anything is written.
    let copy = unsafe { input.read::<T>() }.to_vec();
    communicator.collective(collective, &copy, written, op, root)
}

#[pymethods]
impl NativeCommunicator {
    /// This process as a rank of the world that its launcher has started.
    #[staticmethod]
    fn from_env(py: Python<'_>) -> PyResult<NativeCommunicator> {
        guarded(py, Communicator::from_env).map(NativeCommunicator::new)
    }

    /// This process as a rank of a world whose ranks have exchanged their addresses. `job`: 16 bytes, equal on all ranks. Security,
    /// deadlines other than `timeout`, shared memory and flight records are as the environment sets them.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        endpoint: &Endpoint,
        rank: u32,
        addresses: Vec<String>,
        job: [u8; 16],
        timeout: f64,
    ) -> PyResult<NativeCommunicator> {
        let joining = Joining::from_env().map_err(raised)?;
        let addresses =
            addresses.iter().map(|text| text.parse::<SocketAddr>()).collect::<std::result::Result<_, _>>();
        let addresses = addresses.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let listener = lock(&endpoint.0).take();
        let listener = listener.ok_or_else(|| PyValueError::new_err("this endpoint was used to join"))?;
        let mut deadlines = joining.deadlines;
        deadlines.operation = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX);
        let host = if joining.share { Host::here() } else { None };
        let security = joining.security;
        let peers =
            PeerOptions { rank: Rank(rank), job, epoch: 0, listener, addresses, host, security, deadlines };
        guarded(py, || Communicator::with_peers(peers, joining.share, joining.flight))
            .map(NativeCommunicator::new)
    }

    /// A collective on the elements at two addresses; returns when this rank's part is done. `call` is the number by which the
    /// program knows this call, `limit` the operation's deadline in seconds.
    #[allow(clippy::too_many_arguments, reason = "the arguments of a collective")]
    fn run(
        &self,
        py: Python<'_>,
        collective: &str,
        input: Place,
        output: Place,
        op: &str,
        root: u32,
        call: u64,
        limit: f64,
    ) -> PyResult<()> {
        let named = Named::read(collective, op, root)?;
        let mark = Some(mark(call, limit));
        guarded(py, || self.engine.run(mark, |communicator| named.run(communicator, &input, &output)))
    }

    /// Issues a collective, which runs after those issued before.
    #[allow(clippy::too_many_arguments, reason = "the arguments of a collective")]
    fn issue(
        &self,
        collective: &str,
        input: Place,
        output: Place,
        op: &str,
        root: u32,
        call: u64,
        limit: f64,
    ) -> PyResult<NativeWork> {
        self.issued(Some(mark(call, limit)), Named::read(collective, op, root)?, input, output)
    }

    /// A collective on objects that lend their memory. Without `input` the collective works in place.
    fn run_objects(
        &self,
        py: Python<'_>,
        collective: &str,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        root: u32,
    ) -> PyResult<()> {
        let named = Named::read(collective, op, root)?;
        let (input, output) = lent(input, output)?;
        guarded(py, || self.engine.run(None, |communicator| named.run(communicator, &input, &output)))
    }

    /// Issues the collective of [`NativeCommunicator::run_objects`], which runs after those issued before.
    fn issue_objects(
        &self,
        collective: &str,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        op: &str,
        root: u32,
    ) -> PyResult<NativeWork> {
        let named = Named::read(collective, op, root)?;
        let (input, output) = lent(input, output)?;
        self.issued(None, named, input, output)
    }

    /// The address, count and type of the memory that an object lends, and what keeps the memory valid.
    #[staticmethod]
    fn place(
        object: &Bound<'_, PyAny>,
        writes: bool,
    ) -> PyResult<(usize, usize, &'static str, Option<Py<PyAny>>)> {
        let Place { span, owner } = lend(object, writes)?;
        Ok((span.address(), span.count, span.dtype.name(), owner))
    }

    /// The number of operations so far, which is the number of the next one in errors.
    fn operations(&self, py: Python<'_>) -> PyResult<u64> {
        guarded(py, || self.engine.run(None, |communicator| Ok(communicator.operations())))
    }

    /// This rank's tagged messages.
    fn messages(&self, py: Python<'_>) -> PyResult<NativeMessages> {
        guarded(py, || self.engine.run(None, Communicator::messages)).map(NativeMessages::new)
    }

    /// Registered memory: bytes that the other ranks of one host read and write in place.
    fn register(&self, py: Python<'_>, bytes: usize) -> PyResult<Registered> {
        let buffer = |communicator: &Communicator| Ok(communicator.buffer::<u8>(bytes));
        let mut buffer = guarded(py, || self.engine.run(None, buffer))?;
        Ok(Registered { address: buffer.as_mut_ptr() as usize, bytes, _buffer: Mutex::new(buffer) })
    }

    /// The program's number of the call that ran as this operation; `None` if it is not remembered any more.
    fn called(&self, operation: u64) -> Option<u64> {
        self.engine.called(operation)
    }

    /// Runs the collective by the algorithm of this name from now on. Every rank must call this.
    fn use_algorithm(&self, py: Python<'_>, collective: &str, name: &str) -> PyResult<()> {
        let named = Named::read(collective, "sum", 0)?;
        guarded(py, || self.engine.choose(named.collective, name))
    }

    /// Fails the group, for all of its ranks.
    fn abort(&self, why: String) {
        self.engine.abort(why);
    }

    /// Leaves the group.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.engine.close());
    }
}

fn mark(call: u64, limit: f64) -> Mark {
    Mark { call, limit: Duration::try_from_secs_f64(limit).unwrap_or(Duration::MAX) }
}

/// The memory of a collective's input and output; an object that is not given has no elements.
fn lent(input: Option<&Bound<'_, PyAny>>, output: Option<&Bound<'_, PyAny>>) -> PyResult<(Place, Place)> {
    let input = input.map(|input| lend(input, false)).transpose()?;
    let output = output.map(|output| lend(output, true)).transpose()?;
    let dtype = output.as_ref().or(input.as_ref()).map_or(DType::U8, |place| place.span.dtype);
    let none = || Place::none(dtype);
    let (input, output) = (input.unwrap_or_else(none), output.unwrap_or_else(none));
    if input.span.dtype != output.span.dtype {
        let (from, to) = (input.span.dtype, output.span.dtype);
        return Err(raised(Error::Argument(format!(
            "the input has elements of {from}, and the output of {to}"
        ))));
    }
    Ok((input, output))
}

/// Memory that the ranks of one host share.
#[pyclass(frozen)]
pub struct Registered {
    #[pyo3(get)]
    address: usize,
    #[pyo3(get)]
    bytes: usize,
    _buffer: Mutex<Buffer<u8>>,
}
