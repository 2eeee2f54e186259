//! Runs an algorithm on real data and compares every rank's result with the exact result, bit for bit.
//!
//! The exact result is evaluated from the reduction tree that [`crate::check::symbolic`] finds: no message is sent for it.

use super::{Case, ConformanceFailure};
use crate::check::symbolic;
use crate::meaning::Portion;
use crate::registry::{Algorithm, Shape};
use crate::{Collective, Communicator, DType, Element, Extent, Geometry, Rank, Result as Ran, World};
use allfold_kernels::{bf16, divide, f16, for_dtype, reduce};
use allfold_sim::Topology;
use std::time::Duration;

/// Runs a case on threads, and on the simulator of nodes of 8. A case of ranks that the algorithm does not take is skipped.
///
/// # Errors
/// An error of a rank, or the first element that is not exactly what it should be.
pub fn runs(algorithm: &'static Algorithm, case: &Case) -> Result<(), ConformanceFailure> {
    if !algorithm.takes(case.ranks) {
        return Ok(());
    }
    for_dtype!(case.dtype, typed(algorithm, case))
}

/// A case with its numbers: the input and the exact result of every rank.
pub struct Exact<'a, T> {
    algorithm: &'a Algorithm,
    case: &'a Case,
    /// The input of every rank.
    pub inputs: Vec<Vec<T>>,
    expected: Vec<Vec<T>>,
}

impl<'a, T: Element> Exact<'a, T> {
    /// Evaluates a case.
    ///
    /// # Errors
    /// The schedule fails the symbolic check.
    pub fn new(algorithm: &'a Algorithm, case: &'a Case) -> Result<Self, ConformanceFailure> {
        let inputs: Vec<Vec<T>> =
            (0..case.ranks).map(|rank| input(algorithm.collective, case, rank)).collect();
        let fail = |what: String| ConformanceFailure::new(algorithm, case.ranks, format!("{case:?}: {what}"));
        let expected = exact(algorithm, case, &inputs).map_err(fail)?;
        Ok(Exact { algorithm, case, inputs, expected })
    }

    /// A failure of this case in the world that `place` names.
    pub fn failed(&self, place: &str, what: impl ToString) -> ConformanceFailure {
        let (case, what) = (self.case, what.to_string());
        ConformanceFailure::new(self.algorithm, case.ranks, format!("{case:?}: on {place}: {what}"))
    }

    /// Checks that every rank has ended with the exact result.
    ///
    /// # Errors
    /// The first element that differs.
    pub fn holds(&self, place: &str, results: &[Vec<T>]) -> Result<(), ConformanceFailure> {
        if results.len() != self.expected.len() {
            return Err(self.failed(place, format!("{} ranks have ended", results.len())));
        }
        (0..).map(Rank).zip(results).try_for_each(|(rank, got)| self.rank_holds(place, rank, got))
    }

    /// Checks that one rank has ended with the exact result.
    ///
    /// # Errors
    /// As [`Exact::holds`].
    pub fn rank_holds(&self, place: &str, rank: Rank, got: &[T]) -> Result<(), ConformanceFailure> {
        let want = &self.expected[rank.index()];
        if got.len() != want.len() {
            return Err(self.failed(place, format!("rank {rank} has {} elements", got.len())));
        }
        let differs = |at: &usize| bytemuck::bytes_of(&got[*at]) != bytemuck::bytes_of(&want[*at]);
        match (0..got.len()).find(differs) {
            None => Ok(()),
            Some(at) => {
                let (got, want) = (got[at], want[at]);
                Err(self.failed(place, format!("element {at} of rank {rank} is {got:?}, not {want:?}")))
            }
        }
    }
}

fn typed<T: Element>(algorithm: &'static Algorithm, case: &Case) -> Result<(), ConformanceFailure> {
    let exact = Exact::<T>::new(algorithm, case)?;
    for (place, world) in worlds(algorithm, case) {
        let results =
            world.run(|rank| call(algorithm.collective, case, &rank, &exact.inputs[rank.rank().index()]));
        exact.holds(place, &results.map_err(|error: crate::Error| exact.failed(place, error))?)?;
    }
    Ok(())
}

/// The worlds in which a case is run, each with its name.
fn worlds(algorithm: &'static Algorithm, case: &Case) -> Vec<(&'static str, World)> {
    let threads = World::threads(case.ranks).buffered(case.buffered).deadline(Duration::from_secs(60)).any();
    let simulated = Topology::named("nodes8", case.ranks).map(|topology| World::sim(&topology).any());
    let planned = |world: World| {
        let world = world.with(algorithm).window(case.window);
        case.segment.into_iter().fold(world, World::segment)
    };
    let places = [("threads", Some(threads)), ("the simulator", simulated.ok())];
    places.into_iter().filter_map(|(place, world)| Some((place, planned(world?)))).collect()
}

/// A case as the ranks of a collective see it.
pub fn extent(collective: Collective, case: &Case) -> Extent {
    Extent { collective, ranks: case.ranks, root: case.root, count: case.count }
}

/// The input of a rank: the whole buffer, in which blocks that the rank does not contribute are zero.
fn input<T: Element>(collective: Collective, case: &Case, rank: u32) -> Vec<T> {
    let extent = extent(collective, case);
    let own = match collective.meaning().input.part {
        Portion::Block => extent.block(Rank(rank)),
        _ => 0..extent.whole(),
    };
    let value =
        |at: usize| if own.contains(&at) { sample(u64::from(rank) << 32 | at as u64) } else { T::zeroed() };
    (0..extent.whole()).map(value).collect()
}

/// A value of any type, drawn from a number. Floats are of similar size, so that the order of a sum affects its bits; some floats are
/// NaN, infinite or -0.
fn sample<T: Element>(number: u64) -> T {
    let bits = allfold_base::hash::splitmix(number);
    let real = (bits % 4001) as f64 / 1000.0 - 2.0;
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0];
    let real = if bits.is_multiple_of(83) { special[(bits >> 20) as usize % 4] } else { real };
    let bytes = match T::DTYPE {
        DType::F64 => real.to_le_bytes().to_vec(),
        DType::F32 => (real as f32).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(real).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f64(real).to_le_bytes().to_vec(),
        integer => bits.to_le_bytes()[..integer.size()].to_vec(),
    };
    bytemuck::pod_read_unaligned(&bytes)
}

/// The exact result of every rank, in the form in which [`call`] returns it.
fn exact<T: Element>(algorithm: &Algorithm, case: &Case, inputs: &[Vec<T>]) -> Result<Vec<Vec<T>>, String> {
    let collective = algorithm.collective;
    let shape = Shape::new(case.ranks).and_then(|shape| shape.rooted(case.root));
    let schedule = shape.and_then(|shape| algorithm.build(shape)).map_err(|error| error.to_string())?;
    let geometry = match collective.blocked() {
        true => Geometry::blocked(&schedule, case.count as u64),
        false => Geometry::whole(&schedule, case.count as u64),
    };
    let proof = symbolic(&schedule, collective, case.root).map_err(|flaw| flaw.to_string())?;
    let op = |into: &mut [T], from: &[T]| reduce(case.op, into, from);
    let result = |rank: u32| {
        let mut data = proof.evaluate(Rank(rank), &geometry, inputs, &op);
        if collective.reduces() && case.op == crate::ReduceOp::Avg {
            divide(&mut data, case.ranks);
        }
        data[extent(collective, case).output(Rank(rank))].to_vec()
    };
    Ok((0..case.ranks).map(result).collect())
}

/// Calls the collective; returns the result of this rank.
fn call<T: Element>(collective: Collective, case: &Case, comm: &Communicator, input: &[T]) -> Ran<Vec<T>> {
    let (extent, rank) = (extent(collective, case), comm.rank());
    let output = extent.output(rank);
    if collective.in_place() {
        let mut data = input.to_vec();
        comm.collective(collective, &[], &mut data, case.op, case.root)?;
        return Ok(data[output].to_vec());
    }
    let mut result = vec![T::zeroed(); output.len()];
    comm.collective(collective, &input[extent.input(rank)], &mut result, case.op, case.root)?;
    Ok(result)
}
