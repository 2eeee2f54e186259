//! Reduction trees, each stored once; trees that differ only in the order of children are equal.
//!
//! Reductions are commutative to the bit (`kernels`), and every node rounds to the element's type on every path. The tree therefore
//! determines the result, and the tree's hash identifies it.

use crate::schedule::{Pairs, Rank};
use std::collections::BTreeMap;
use std::fmt;

/// The identity of a reduction tree, equal for trees that differ only in the order of children. Printed as 32 hexadecimal digits.
/// FNV-1a of 128 bits (RFC 9923) over the leaf's rank, or over the children's hashes in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeHash(pub u128);

impl fmt::Display for TreeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl TreeHash {
    /// The hash of a tagged sequence of hashes.
    pub(super) fn of(tag: u8, parts: impl IntoIterator<Item = u128>) -> TreeHash {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let bytes = std::iter::once(tag).chain(parts.into_iter().flat_map(u128::to_le_bytes));
        TreeHash(bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)))
    }
}

/// A tree of a [`Forest`]; equal numbers mean equal trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tree(u32);

#[derive(Clone, Debug)]
struct Node {
    hash: TreeHash,
    children: Option<(Tree, Tree)>,
    /// The number of leaves, and the sum of their hashes, which is equal for equal sets of ranks.
    leaves: u64,
    sum: u128,
}

/// A set of trees, each stored once. The leaf of rank r is tree r.
#[derive(Clone, Debug)]
pub struct Forest {
    ranks: u32,
    nodes: Vec<Node>,
    known: BTreeMap<(Tree, Tree), Tree>,
    /// The sum of the hashes of all ranks' leaves.
    everybody: u128,
}

impl Forest {
    /// A forest with one leaf for each of `ranks` ranks.
    pub fn new(ranks: u32) -> Forest {
        let leaf = |rank: u32| TreeHash::of(0, [u128::from(rank)]);
        let node = |hash: TreeHash| Node { hash, children: None, leaves: 1, sum: hash.0 };
        let nodes: Vec<Node> = (0..ranks).map(leaf).map(node).collect();
        let everybody = nodes.iter().fold(0, |sum: u128, node| sum.wrapping_add(node.sum));
        Forest { ranks, nodes, known: BTreeMap::new(), everybody }
    }

    /// The leaf of a rank, which represents the rank's input.
    pub fn leaf(&self, rank: Rank) -> Tree {
        Tree(rank.0)
    }

    /// The tree that reduces trees `a` and `b`.
    pub fn reduce(&mut self, a: Tree, b: Tree) -> Tree {
        let children = (a.min(b), a.max(b));
        if let Some(tree) = self.known.get(&children) {
            return *tree;
        }
        let (left, right) = (self.node(a), self.node(b));
        let hashes = [left.hash.min(right.hash).0, left.hash.max(right.hash).0];
        let node = Node {
            hash: TreeHash::of(1, hashes),
            children: Some(children),
            leaves: left.leaves.saturating_add(right.leaves),
            sum: left.sum.wrapping_add(right.sum),
        };
        let tree = Tree(self.nodes.len() as u32);
        self.nodes.push(node);
        self.known.insert(children, tree);
        tree
    }

    /// The canonical tree: first the pairs, then the balanced tree over neighbouring ranks.
    pub fn canonical(&mut self) -> Tree {
        let pairs = Pairs::of(self.ranks);
        let mut row: Vec<Tree> = (0..pairs.core)
            .map(|place| {
                let (first, next) = (pairs.first(place), pairs.first(place + 1));
                if next - first == 2 { self.reduce(Tree(first), Tree(first + 1)) } else { Tree(first) }
            })
            .collect();
        while row.len() > 1 {
            row = row.chunks(2).map(|two| self.reduce(two[0], two[1])).collect();
        }
        row[0]
    }

    /// Whether every rank is a leaf exactly once.
    pub fn is_every_rank_once(&self, tree: Tree) -> bool {
        self.node(tree).leaves == u64::from(self.ranks) && self.node(tree).sum == self.everybody
    }

    /// How often each rank is a leaf of the tree, counted up to 2.
    pub fn heard(&self, tree: Tree) -> Vec<u8> {
        let (mut times, mut seen) = (vec![0u8; self.nodes.len()], vec![0u8; self.ranks as usize]);
        times[tree.0 as usize] = 1;
        // A child has a smaller number than its parent, so a sweep from the greatest number visits every node after its parents.
        for at in (0..=tree.0 as usize).rev().filter(|at| *at < self.nodes.len()) {
            match self.nodes[at].children {
                None => seen[at] = times[at],
                Some((a, b)) => {
                    for child in [a, b] {
                        times[child.0 as usize] = times[child.0 as usize].saturating_add(times[at]).min(2);
                    }
                }
            }
        }
        seen
    }

    /// The hash that identifies a tree.
    #[inline]
    pub fn hash(&self, tree: Tree) -> TreeHash {
        self.node(tree).hash
    }

    /// The two subtrees of a tree, or `None` for a leaf.
    #[inline]
    pub fn children(&self, tree: Tree) -> Option<(Tree, Tree)> {
        self.node(tree).children
    }

    /// The rank of a leaf; meaningless for a reduction.
    #[inline]
    pub fn rank(&self, leaf: Tree) -> Rank {
        Rank(leaf.0)
    }

    /// Evaluates a tree over vectors: `leaf(rank)` returns a rank's input, `op(into, from)` reduces elementwise. The order of
    /// reductions is exactly the tree's; memory is needed for one vector per level of the tree.
    pub fn evaluate<T>(
        &self,
        tree: Tree,
        leaf: &impl Fn(Rank) -> Vec<T>,
        op: &impl Fn(&mut [T], &[T]),
    ) -> Vec<T> {
        enum Todo {
            Visit(Tree),
            Reduce,
        }
        let (mut todo, mut values) = (vec![Todo::Visit(tree)], Vec::<Vec<T>>::new());
        while let Some(next) = todo.pop() {
            match next {
                Todo::Visit(tree) => match self.children(tree) {
                    None => values.push(leaf(Rank(tree.0))),
                    // The child with the greater number is the deeper one in a chain. It is evaluated first, while its sibling takes no
                    // memory.
                    Some((a, b)) => todo.extend([Todo::Reduce, Todo::Visit(a), Todo::Visit(b)]),
                },
                Todo::Reduce => {
                    if let (Some(from), Some(into)) = (values.pop(), values.last_mut()) {
                        op(into, &from);
                    }
                }
            }
        }
        values.pop().unwrap_or_default()
    }

    /// The tree as a formula, shortened if it is long: `((0+1)+(2+3))`.
    pub fn formula(&self, tree: Tree) -> String {
        let mut text = String::new();
        let mut todo = vec![Err(tree)];
        while let Some(next) = todo.pop() {
            match next {
                Ok(sign) => text.push(sign),
                Err(tree) => match self.children(tree) {
                    None => text.push_str(&tree.0.to_string()),
                    Some((a, b)) => todo.extend([Ok(')'), Err(b), Ok('+'), Err(a), Ok('(')]),
                },
            }
            if text.len() > 120 {
                return text + "..";
            }
        }
        text
    }

    fn node(&self, tree: Tree) -> &Node {
        &self.nodes[tree.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_have_no_order_but_trees_have_a_shape() {
        let mut forest = Forest::new(4);
        let leaf = [0, 1, 2, 3].map(Tree);
        let (a, b) = (forest.reduce(leaf[0], leaf[1]), forest.reduce(leaf[1], leaf[0]));
        assert_eq!(a, b);
        let right = forest.reduce(leaf[3], leaf[2]);
        let balanced = forest.reduce(right, a);
        assert_eq!(balanced, forest.canonical());
        let chain = forest.reduce(a, leaf[2]);
        let chain = forest.reduce(chain, leaf[3]);
        assert_ne!(forest.hash(chain), forest.hash(balanced));
        assert!(forest.is_every_rank_once(chain) && !forest.is_every_rank_once(a));
        assert_eq!(forest.formula(balanced), "((0+1)+(2+3))");
    }

    /// These hashes must not change, because they identify trees in records of different versions.
    #[test]
    fn identities_do_not_change() {
        assert_eq!(TreeHash::of(b'a', []).to_string(), "d228cb696f1a8caf78912b704e4a8964", "FNV-1a of `a`");
        for (ranks, starts) in [(1, "f5a"), (2, "132"), (3, "dc5"), (4, "556"), (8, "c28"), (64, "357")] {
            let mut forest = Forest::new(ranks);
            let canonical = forest.canonical();
            assert!(forest.hash(canonical).to_string().starts_with(starts), "{ranks} ranks");
        }
    }

    #[test]
    fn heard_counts_repeats() {
        let mut forest = Forest::new(3);
        let two = forest.reduce(Tree(0), Tree(1));
        let again = forest.reduce(two, Tree(1));
        assert_eq!(forest.heard(again), [1, 2, 0]);
    }

    #[test]
    fn evaluation_follows_the_tree() {
        let mut forest = Forest::new(3);
        let tree = forest.canonical();
        let leaf = |rank: Rank| vec![[1e8f32, 1.0, -1e8][rank.index()]];
        let add = |into: &mut [f32], from: &[f32]| into[0] += from[0];
        assert_eq!(forest.evaluate(tree, &leaf, &add), [(1e8 + 1.0) - 1e8]);
    }
}
