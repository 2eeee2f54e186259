//! Symbolic execution of a schedule, which finds the inputs and the order of reductions of every chunk of every rank.
//!
//! A value is a reduction tree over ranks, with the chunk that its leaves come from. The rules are those of execution: all sends of a
//! round carry the values from before the round, `Copy` replaces, `Reduce` joins two trees. At the end every rank must hold the values
//! that its collective defines; the first chunk that differs is the counterexample.

use super::{Counterexample, Forest, Tree, TreeHash, walk};
use crate::meaning::{Meaning, On, Portion, Value as Reached};
use crate::schedule::{Combine, Rank, Region, Schedule, Span};
use crate::{Collective, Geometry};
use std::collections::BTreeMap;
use std::fmt;

/// The order of an algorithm's reductions, which determines the inputs that the bits of a result depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// Every chunk has the canonical tree ([`Forest::canonical`]): all canonical algorithms agree to the bit.
    Canonical,
    /// Every chunk has the same tree, which is not the canonical one.
    Uniform,
    /// The tree depends on the chunk, so an element's bits depend on its position in the buffer.
    Positional,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Canonical => "canonical",
            Order::Uniform => "uniform",
            Order::Positional => "positional",
        })
    }
}

/// The value of a chunk: a tree, and the chunk `from` that its leaves come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    tree: Tree,
    from: u32,
}

/// The proof that a schedule computes its collective, with the trees of the result.
#[derive(Clone, Debug)]
pub struct Proof {
    forest: Forest,
    state: State,
    order: Option<Order>,
    hash: Option<TreeHash>,
    tree: Option<Tree>,
}

impl Proof {
    /// The order of the reductions; `None` if nothing is reduced.
    pub fn order(&self) -> Option<Order> {
        self.order
    }

    /// The identity of the result: the hash of its single tree, or of all chunks' trees in order; `None` if nothing is reduced.
    pub fn hash(&self) -> Option<TreeHash> {
        self.hash
    }

    /// The tree of every chunk; `None` if nothing is reduced, or chunks have different trees.
    pub fn tree(&self) -> Option<Tree> {
        self.tree
    }

    /// The forest that contains the trees of the proof.
    pub fn forest(&self) -> &Forest {
        &self.forest
    }

    /// The final value of a segment of a data chunk on a rank: its tree, and the chunk that its leaves come from. `None` if the
    /// value is undefined.
    pub fn value(&self, rank: Rank, chunk: u32, segment: u32) -> Option<(Tree, u32)> {
        self.state.data[self.state.at(rank, chunk, segment)].map(|value| (value.tree, value.from))
    }

    /// The data that a rank ends with, exactly as any correct execution leaves them. `inputs[r]` is the whole initial data of rank r,
    /// with the geometry's count of elements; `op(into, from)` reduces elementwise. Undefined elements keep the value of the rank's
    /// input.
    pub fn evaluate<T: Copy>(
        &self,
        rank: Rank,
        geometry: &Geometry,
        inputs: &[Vec<T>],
        op: &impl Fn(&mut [T], &[T]),
    ) -> Vec<T> {
        let mut result = inputs[rank.index()].clone();
        for chunk in 0..self.state.chunks {
            for segment in 0..self.state.segments {
                let Some((tree, from)) = self.value(rank, chunk, segment) else { continue };
                let (source, into) = (geometry.piece(from, segment), geometry.piece(chunk, segment));
                let (source, into) =
                    (source.start as usize..source.end as usize, into.start as usize..into.end as usize);
                let leaf = |rank: Rank| inputs[rank.index()][source.clone()].to_vec();
                result[into].copy_from_slice(&self.forest.evaluate(tree, &leaf, op));
            }
        }
        result
    }
}

/// The values of every rank's data and scratch copies.
#[derive(Clone, Debug)]
struct State {
    chunks: u32,
    segments: u32,
    data: Vec<Option<Value>>,
    scratch: BTreeMap<(Rank, u32, u32, u32), Value>,
}

impl State {
    fn at(&self, rank: Rank, chunk: u32, segment: u32) -> usize {
        (rank.index() * self.chunks as usize + chunk as usize) * self.segments as usize + segment as usize
    }

    fn get(&self, rank: Rank, place: Region, chunk: u32, segment: u32) -> Option<Value> {
        match place {
            _ if chunk >= self.chunks || segment >= self.segments => None,
            Region::Data => self.data[self.at(rank, chunk, segment)],
            Region::Scratch(number) => self.scratch.get(&(rank, number, chunk, segment)).copied(),
        }
    }

    fn put(&mut self, rank: Rank, place: Region, chunk: u32, segment: u32, value: Option<Value>) {
        match (place, value) {
            _ if chunk >= self.chunks || segment >= self.segments => {}
            (Region::Data, value) => {
                let at = self.at(rank, chunk, segment);
                self.data[at] = value;
            }
            (Region::Scratch(number), Some(value)) => {
                self.scratch.insert((rank, number, chunk, segment), value);
            }
            (Region::Scratch(number), None) => {
                self.scratch.remove(&(rank, number, chunk, segment));
            }
        }
    }
}

/// Executes a schedule symbolically and compares the final values with those that the collective defines.
///
/// # Errors
/// A reduction of an undefined value or of two different chunks, chunks with a wrong owner, or the first chunk whose final value is
/// wrong.
pub fn symbolic(
    schedule: &(impl Schedule + ?Sized),
    collective: Collective,
    root: Rank,
) -> Result<Proof, Counterexample> {
    let mut promise = Promise::new(schedule, collective, root)?;
    let (chunks, segments) = (schedule.chunks(), schedule.segments());
    let mut state = State { chunks, segments, data: Vec::new(), scratch: BTreeMap::new() };
    for rank in (0..schedule.ranks()).map(Rank) {
        for chunk in 0..chunks {
            let value = promise.starts_with(rank, chunk);
            state.data.extend((0..segments).map(|_| value));
        }
    }
    let mut arriving = Vec::new();
    walk(schedule, |round, acting| {
        arriving.clear();
        for (rank, step) in acting {
            let Some((peer, into, how)) = step.recv else { continue };
            let sent = if peer.0 < schedule.ranks() { schedule.step(peer, round).send } else { None };
            let span = sent.filter(|(to, _)| to == rank).map(|(_, span)| span);
            let value = |i| {
                span.and_then(|s: Span| state.get(peer, s.region, s.first_chunk.checked_add(i)?, s.segment))
            };
            arriving.extend((0..into.chunks).map(|i| (*rank, into, i, how, value(i))));
        }
        for (rank, into, i, how, incoming) in arriving.drain(..) {
            let chunk = into.first_chunk.saturating_add(i);
            let local = state.get(rank, into.region, chunk, into.segment);
            let value = match how {
                Combine::Copy => incoming,
                Combine::Reduce => promise.join(incoming, local).map_err(|what| Counterexample {
                    rank,
                    round: Some(round),
                    chunk: Some(chunk),
                    what,
                })?,
            };
            state.put(rank, into.region, chunk, into.segment, value);
        }
        Ok(())
    })?;
    promise.kept(state)
}

/// The initial values of a collective, and the final values that it defines.
struct Promise {
    collective: Collective,
    ranks: u32,
    root: Rank,
    forest: Forest,
    owners: Vec<Rank>,
    /// Each rank's chunks, in order, if the collective has blocks.
    blocks: Vec<Vec<u32>>,
}

impl Promise {
    fn new(
        schedule: &(impl Schedule + ?Sized),
        collective: Collective,
        root: Rank,
    ) -> Result<Promise, Counterexample> {
        let (ranks, chunks) = (schedule.ranks(), schedule.chunks());
        let mut promise = Promise {
            collective,
            ranks,
            root,
            forest: Forest::new(ranks),
            owners: Vec::new(),
            blocks: Vec::new(),
        };
        if !collective.blocked() {
            return Ok(promise);
        }
        promise.blocks = vec![Vec::new(); ranks as usize];
        for chunk in 0..chunks {
            let owner = schedule.owner(chunk);
            let fail = |what| Counterexample { rank: owner, round: None, chunk: Some(chunk), what };
            let block = promise.blocks.get_mut(owner.index());
            block
                .ok_or_else(|| fail("is named the owner of a chunk, but no such rank exists".into()))?
                .push(chunk);
            promise.owners.push(owner);
        }
        let counts: Vec<usize> = promise.blocks.iter().map(Vec::len).collect();
        let exchanged = collective.meaning().value == Reached::Exchanged;
        let uneven = |r: &usize| counts[*r] == 0 || (exchanged && counts[*r] != counts[0]);
        match (0..counts.len()).find(uneven) {
            None => Ok(promise),
            Some(r) => {
                let what = format!("owns {} chunks, but rank 0 owns {}", counts[r], counts[0]);
                Err(Counterexample { rank: Rank(r as u32), round: None, chunk: None, what })
            }
        }
    }

    fn starts_with(&self, rank: Rank, chunk: u32) -> Option<Value> {
        let input = self.collective.meaning().input;
        let has = (input.on == On::All || rank == self.root)
            && (input.part != Portion::Block || self.owners[chunk as usize] == rank);
        has.then(|| Value { tree: self.forest.leaf(rank), from: chunk })
    }

    fn join(&mut self, incoming: Option<Value>, local: Option<Value>) -> Result<Option<Value>, String> {
        match (incoming, local) {
            (Some(a), Some(b)) if a.from == b.from => {
                Ok(Some(Value { tree: self.forest.reduce(a.tree, b.tree), from: a.from }))
            }
            (Some(a), Some(b)) => Err(format!("reduces chunk {} into chunk {}", a.from, b.from)),
            (None, _) => Err("reduces a chunk that holds no data".into()),
            (_, None) => Err("reduces into a chunk that holds no data".into()),
        }
    }

    /// What `rank` must hold in `chunk` at the end: one rank's chunk, or a value over all ranks; `None` if any value is allowed.
    fn ends_with(&self, rank: Rank, chunk: u32) -> Option<Expected> {
        let Meaning { output, value, .. } = self.collective.meaning();
        let owner = |chunk: u32| self.owners[chunk as usize];
        if output.on == On::Root && rank != self.root || output.part == Portion::Block && rank != owner(chunk)
        {
            return None;
        }
        let leaf = |rank| Some(Expected::Leaf(rank, chunk));
        match value {
            Reached::Reduced => Some(Expected::Everybody),
            Reached::Root => leaf(self.root),
            Reached::Owner => leaf(owner(chunk)),
            Reached::Exchanged => {
                let from = owner(chunk);
                let nth = self.blocks[from.index()].iter().position(|c| *c == chunk)?;
                Some(Expected::Leaf(from, self.blocks[rank.index()][nth]))
            }
            Reached::Previous => leaf(Rank((rank.0 + self.ranks - 1) % self.ranks)),
            Reached::Heard => Some(Expected::Heard),
        }
    }

    fn kept(mut self, state: State) -> Result<Proof, Counterexample> {
        let mut reduced: Vec<(u32, Tree)> = Vec::new();
        for rank in (0..self.ranks).map(Rank) {
            for chunk in 0..state.chunks {
                let Some(expected) = self.ends_with(rank, chunk) else { continue };
                for segment in 0..state.segments {
                    let value = state.data[state.at(rank, chunk, segment)];
                    if let Some(what) = self.differs(expected, chunk, value) {
                        return Err(Counterexample { rank, round: None, chunk: Some(chunk), what });
                    }
                    reduced
                        .extend(value.filter(|_| expected == Expected::Everybody).map(|v| (chunk, v.tree)));
                }
            }
        }
        let tree = reduced.first().map(|(_, tree)| *tree);
        let (order, hash) = self.class(reduced).unzip();
        let tree = tree.filter(|_| order != Some(Order::Positional));
        Ok(Proof { forest: self.forest, state, order, hash, tree })
    }

    /// The order and the identity of the results, from each result's chunk and tree.
    fn class(&mut self, mut reduced: Vec<(u32, Tree)>) -> Option<(Order, TreeHash)> {
        reduced.sort_unstable_by_key(|(chunk, tree)| (*chunk, self.forest.hash(*tree)));
        reduced.dedup();
        let (_, first) = *reduced.first()?;
        if reduced.iter().any(|(_, tree)| *tree != first) {
            let all = reduced.iter().map(|(_, tree)| self.forest.hash(*tree).0);
            return Some((Order::Positional, TreeHash::of(2, all)));
        }
        let order = if first == self.forest.canonical() { Order::Canonical } else { Order::Uniform };
        Some((order, self.forest.hash(first)))
    }

    /// Compares a value with the expected one; returns a description of the difference, or `None`.
    fn differs(&self, expected: Expected, chunk: u32, value: Option<Value>) -> Option<String> {
        let Some(Value { tree, from }) = value else {
            return Some(format!("expected {expected}, found no data"));
        };
        match expected {
            Expected::Leaf(rank, of) if (self.forest.leaf(rank), of) == (tree, from) => None,
            Expected::Everybody if from == chunk && self.forest.is_every_rank_once(tree) => None,
            Expected::Heard if self.forest.heard(tree).iter().all(|times| *times > 0) => None,
            _ => Some(format!(
                "expected {expected}, found {} of chunk {from}{}",
                self.forest.formula(tree),
                if matches!(expected, Expected::Leaf(..)) {
                    String::new()
                } else {
                    self.amiss(expected, tree)
                }
            )),
        }
    }

    /// Describes the first rank that is missing from a tree and the first rank that the tree contains more than once.
    fn amiss(&self, expected: Expected, tree: Tree) -> String {
        let heard = self.forest.heard(tree);
        let first = |times: u8| heard.iter().position(|t| *t == times);
        let missing = first(0).map(|rank| format!("; rank {rank} is missing"));
        let twice = first(2).filter(|_| expected != Expected::Heard);
        let twice = twice.map(|rank| format!("; rank {rank} is counted more than once"));
        missing.unwrap_or_default() + &twice.unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// This rank's input chunk, unreduced.
    Leaf(Rank, u32),
    /// The reduction of this chunk over all ranks, each exactly once.
    Everybody,
    /// A value that depends on every rank.
    Heard,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Leaf(rank, chunk) => write!(f, "chunk {chunk} of rank {rank}"),
            Expected::Everybody => f.write_str("the reduction over all ranks, each counted once"),
            Expected::Heard => f.write_str("a value that depends on every rank"),
        }
    }
}
