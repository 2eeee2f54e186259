//! A collective as one exchange between ranks that share memory, with the reduction trees of its schedule. No message is sent,
//! and the result has the bits of the schedule.
//!
//! ```text
//! schedule --symbolic--> the tree of every chunk --> formulas --\
//! none chosen ---------> the canonical tree -----> one formula ---> Exchange --> kernels::fused
//! ```

use crate::check::{Forest, Tree, symbolic};
use crate::meaning::{Meaning, On, Portion, Value};
use crate::schedule::{Rank, Schedule};
use crate::{Collective, DType, Geometry, ReduceOp};
use allfold_kernels::fused::{Exchange, Formula, Pattern, Term};
use std::sync::Arc;

/// Limit on ranks times chunks for running a schedule on symbols.
const PROVABLE: u64 = 1 << 16;

/// The reduction trees of a collective.
#[derive(Clone)]
pub(crate) enum Trees {
    /// One tree for all chunks, also for a collective that reduces nothing.
    One(Formula),
    /// A tree for each chunk.
    Chunks(Arc<Vec<Formula>>),
}

/// The canonical tree, which every automatically chosen algorithm uses.
pub(crate) fn canonical(ranks: u32) -> Option<Trees> {
    let mut forest = Forest::new(ranks);
    let tree = forest.canonical();
    formula(&forest, tree).map(Trees::One)
}

/// The reduction trees of a schedule, from its symbolic proof. `None` if the proof fails, if ranks end with different trees of one chunk,
/// or if the schedule is too large for the proof: such a schedule runs by messages.
pub(crate) fn trees(schedule: &dyn Schedule, collective: Collective, root: Rank) -> Option<Trees> {
    let (ranks, chunks) = (schedule.ranks(), schedule.chunks());
    if u64::from(ranks) * u64::from(chunks) > PROVABLE {
        return None;
    }
    let proof = symbolic(schedule, collective, root).ok()?;
    if !collective.reduces() {
        return canonical(1);
    }
    if let Some(tree) = proof.tree() {
        return formula(proof.forest(), tree).map(Trees::One);
    }
    let of = |chunk: u32| {
        let Meaning { output, .. } = collective.meaning();
        let holders = match (output.on, output.part) {
            (On::Root, _) => root.0..root.0 + 1,
            (On::All, Portion::Block) => schedule.owner(chunk).0..schedule.owner(chunk).0 + 1,
            (On::All, _) => 0..ranks,
        };
        let mut trees = holders.map(|rank| proof.value(Rank(rank), chunk, 0).map(|(tree, _)| tree));
        let first = trees.next()??;
        trees.all(|tree| tree == Some(first)).then_some(first)
    };
    let formulas = (0..chunks).map(|chunk| formula(proof.forest(), of(chunk)?));
    formulas.collect::<Option<Vec<_>>>().map(|all| Trees::Chunks(Arc::new(all)))
}

/// The exchange of a collective; `count` is the number of elements of the whole buffer, or of one block if the collective has blocks.
pub(crate) fn exchange(
    collective: Collective,
    ranks: u32,
    root: Option<Rank>,
    (dtype, op): (DType, ReduceOp),
    count: usize,
    trees: &Trees,
    geometry: &Geometry,
) -> Exchange {
    let pattern = pattern(collective.meaning());
    let formulas = match trees {
        _ if !collective.reduces() => Vec::new(),
        Trees::One(formula) => vec![(0..geometry.count() as usize, formula.clone())],
        Trees::Chunks(formulas) => {
            let range = |chunk| geometry.chunk(chunk).start as usize..geometry.chunk(chunk).end as usize;
            let mut all: Vec<_> =
                (0..).zip(formulas.iter()).map(|(chunk, formula)| (range(chunk), formula.clone())).collect();
            all.sort_by_key(|(range, _)| (range.start, range.end));
            all
        }
    };
    Exchange::new(pattern, ranks, root.unwrap_or(Rank(0)).0, (dtype, op), count, formulas)
}

/// The exchange pattern of a collective with this row of the table of meanings.
fn pattern(row: &Meaning) -> Pattern {
    match (row.value, row.output.on, row.output.part) {
        (Value::Reduced, On::Root, _) => Pattern::Reduce,
        (Value::Reduced, On::All, Portion::Block) => Pattern::ReduceScatter,
        (Value::Reduced, On::All, _) => Pattern::AllReduce,
        (Value::Root, _, Portion::Block) => Pattern::Scatter,
        (Value::Root, _, _) => Pattern::Broadcast,
        (Value::Owner, On::Root, _) => Pattern::Gather,
        (Value::Owner, On::All, _) => Pattern::AllGather,
        (Value::Exchanged, _, _) => Pattern::AllToAll,
        (Value::Previous, _, _) => Pattern::Shift,
        (Value::Heard, _, _) => Pattern::Meet,
    }
}

/// The formula of a tree, with the later child first: in a chain this is the deeper child, so little scratch is needed.
fn formula(forest: &Forest, tree: Tree) -> Option<Formula> {
    enum Todo {
        Visit(Tree),
        Join,
    }
    let (mut todo, mut terms) = (vec![Todo::Visit(tree)], Vec::new());
    while let Some(next) = todo.pop() {
        match next {
            Todo::Join => terms.push(Term::Join),
            Todo::Visit(tree) => match (forest.children(tree), forest.rank(tree)) {
                (Some((a, b)), _) => todo.extend([Todo::Join, Todo::Visit(a), Todo::Visit(b)]),
                (None, rank) => terms.push(Term::Leaf(rank.0)),
            },
        }
    }
    Formula::new(terms)
}
