//! Algorithms whose steps a Python function returns.

use allfold_base::lock;
use allfold_collectives::registry::{self, Algorithm, Shape};
use allfold_collectives::schedule::{Combine, Schedule, Span, Step};
use allfold_collectives::{Collective, Rank, registry as names};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The most steps that are kept of the schedules of one Python function.
const STEPS: u64 = 20_000_000;

/// The exception that a Python function raised when a command requested its steps.
static FAILED: Mutex<Option<PyErr>> = Mutex::new(None);

/// Takes the exception that a Python function raised, if any did.
pub fn failed_step() -> Option<PyErr> {
    lock(&FAILED).take()
}

/// The steps of all ranks in all rounds.
struct Steps {
    ranks: u32,
    chunks: u32,
    rounds: u64,
    steps: Vec<Step>,
}

impl Schedule for Steps {
    fn ranks(&self) -> u32 {
        self.ranks
    }
    fn chunks(&self) -> u32 {
        self.chunks
    }
    fn rounds(&self) -> u64 {
        self.rounds
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        self.steps[rank.index() * self.rounds as usize + round as usize]
    }
}

/// An algorithm's Python functions, and the schedules made by them: one for each number of ranks and root, made once.
struct Source {
    shape: Py<PyAny>,
    step: Py<PyAny>,
    /// Whether the collective has a root; without one, `step` is called with root 0.
    rooted: bool,
    made: Mutex<BTreeMap<(u32, u32), Arc<Steps>>>,
}

impl Source {
    fn schedule(&self, of: Shape) -> Arc<dyn Schedule> {
        let (ranks, root) = (of.ranks(), if self.rooted { of.root().0 } else { 0 });
        if let Some(made) = lock(&self.made).get(&(ranks, root)) {
            return made.clone();
        }
        // Not under the lock: a thread that holds the interpreter may wait for the lock meanwhile.
        match Python::attach(|py| self.tabulate(py, ranks, root)) {
            Ok(steps) => {
                let (steps, mut made) = (Arc::new(steps), lock(&self.made));
                let kept: usize = made.values().map(|steps| steps.steps.len()).sum();
                if (kept + steps.steps.len()) as u64 > STEPS {
                    made.clear();
                }
                made.insert((ranks, root), steps.clone());
                steps
            }
            Err(error) => {
                lock(&FAILED).get_or_insert(error);
                Arc::new(Steps { ranks, chunks: ranks, rounds: 0, steps: Vec::new() })
            }
        }
    }

    fn tabulate(&self, py: Python<'_>, ranks: u32, root: u32) -> PyResult<Steps> {
        let (chunks, rounds): (u32, u64) = self.shape.bind(py).call1((ranks,))?.extract()?;
        let wrong = PyValueError::new_err::<String>;
        if chunks == 0 {
            let at = format!("the schedule over {ranks} ranks has 0 chunks; it must have 1 or more");
            return Err(wrong(at));
        }
        if rounds.checked_mul(ranks.into()).is_none_or(|steps| steps > STEPS) {
            return Err(wrong(format!(
                "{ranks} ranks and {rounds} rounds are more than {STEPS} steps, the most of a Python schedule"
            )));
        }
        let step = self.step.bind(py);
        let mut steps = Vec::with_capacity(ranks as usize * rounds as usize);
        for rank in 0..ranks {
            for round in 0..rounds {
                if round % 4096 == 0 {
                    py.check_signals()?;
                }
                let given = step.call1((rank, round, ranks, root))?;
                steps.push(read(&given, ranks, chunks).map_err(|what| {
                    let root = if self.rooted { format!(", root={root}") } else { String::new() };
                    wrong(format!("step(rank={rank}, round={round}, ranks={ranks}{root}): {what}"))
                })?);
            }
        }
        Ok(Steps { ranks, chunks, rounds, steps })
    }
}

/// Adds an algorithm to those that every command and communicator takes by name. `shape(ranks)` gives the number of chunks and of
/// rounds; `step(rank, round, ranks, root)` gives `None`, or a pair: what is sent (to, first chunk, chunks) and what is received
/// (from, first chunk, chunks, whether it is added), each or `None`.
#[pyfunction]
pub fn add_algorithm(
    collective: &str,
    name: String,
    about: String,
    shape: Py<PyAny>,
    step: Py<PyAny>,
) -> PyResult<()> {
    let collective = named(collective)?;
    let source = Source { shape, step, rooted: rooted(collective), made: Mutex::default() };
    let build = move |of: Shape| source.schedule(of);
    // An algorithm lasts as long as the program, as those of the table do.
    let (name, about) = (&*name.leak(), &*about.leak());
    registry::add(Box::leak(Box::new([Algorithm::made_by(
        collective,
        name,
        about,
        Box::leak(Box::new(build)),
    )])))
    .map_err(wrong)
}

/// Makes the schedules of an algorithm for `ranks` ranks, so that an exception of its function is raised here, and not in a
/// collective that needs the schedule.
#[pyfunction]
pub fn prepare_algorithm(py: Python<'_>, collective: &str, name: &str, ranks: u32) -> PyResult<()> {
    let collective = named(collective)?;
    let algorithm = registry::find(collective, name).map_err(wrong)?;
    let shape = Shape::new(ranks).map_err(wrong)?;
    let roots = if rooted(collective) { ranks } else { 1 };
    // An exception that is still there belongs to an earlier call.
    drop(failed_step());
    for root in (0..roots).map(Rank) {
        let shape = shape.rooted(root).map_err(wrong)?;
        let built = py.detach(|| algorithm.build(shape));
        if let Some(raised) = failed_step() {
            return Err(raised);
        }
        built.map_err(wrong)?;
    }
    Ok(())
}

/// The names of the algorithms of a collective.
#[pyfunction]
pub fn algorithm_names(collective: &str) -> PyResult<Vec<&'static str>> {
    Ok(names::of(named(collective)?).map(|algorithm| algorithm.name).collect())
}

/// Whether a collective has a root.
#[pyfunction]
pub fn has_root(collective: &str) -> PyResult<bool> {
    Ok(rooted(named(collective)?))
}

fn wrong(error: names::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn named(collective: &str) -> PyResult<Collective> {
    names::collective(collective).map_err(wrong)
}

fn rooted(collective: Collective) -> bool {
    use Collective::{Broadcast, Gather, Reduce, Scatter};
    matches!(collective, Broadcast | Gather | Reduce | Scatter)
}

type Sent = (u32, u32, u32);
type Received = (u32, u32, u32, bool);

/// One step as Python gives it; the error says what is wrong with it.
fn read(given: &Bound<'_, PyAny>, ranks: u32, chunks: u32) -> Result<Step, String> {
    if given.is_none() {
        return Ok(Step { send: None, recv: None });
    }
    let (send, recv): (Option<Sent>, Option<Received>) = given.extract().map_err(|_| {
        let shown = given.repr().map_or_else(|_| "something else".into(), |text| text.to_string());
        format!(
            "it gives {shown}; it must give None, or a pair (Send(to, chunk, chunks), Recv(source, chunk, chunks, reduce)) \
             of which each may be None"
        )
    })?;
    let inside = |peer: u32, first: u32, count: u32| {
        if peer >= ranks {
            return Err(format!("its peer {peer} is outside the group: its ranks are 0 to {}", ranks - 1));
        }
        if count == 0 || first.checked_add(count).is_none_or(|end| end > chunks) {
            return Err(format!(
                "{count} chunks from {first} on are not among the {chunks} chunks of the schedule"
            ));
        }
        Ok((Rank(peer), Span::data(first, count)))
    };
    let send = send.map(|(peer, first, count)| inside(peer, first, count)).transpose()?;
    let recv = match recv {
        Some((peer, first, count, added)) => {
            let (peer, span) = inside(peer, first, count)?;
            Some((peer, span, if added { Combine::Reduce } else { Combine::Copy }))
        }
        None => None,
    };
    Ok(Step { send, recv })
}
