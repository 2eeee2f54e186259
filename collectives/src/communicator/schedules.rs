//! The schedules that a communicator has built.

use crate::check::on_first_use;
use crate::fused::{self, Trees};
use crate::registry::{self, Algorithm, Shape};
use crate::schedule::{Schedule, Segments};
use crate::{Collective, Rank};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// Built schedules, by the arguments that they were built from.
#[derive(Default)]
pub(super) struct Schedules {
    built: BTreeMap<Key, Arc<dyn Schedule>>,
    /// The reduction trees of each schedule; `None` where they are not known.
    trees: BTreeMap<Key, Option<Trees>>,
}

/// The key of a schedule: collective, root, algorithm, segments.
type Key = (Collective, Option<Rank>, &'static str, u32);

impl Schedules {
    /// The schedule, cut into this many segments that follow each other at this stride. A program's own algorithm is proved first.
    pub fn get(
        &mut self,
        row: &'static Algorithm,
        shape: Shape,
        root: Option<Rank>,
        (segments, stride): (u32, u64),
    ) -> Result<Arc<dyn Schedule>, registry::Error> {
        let key = |segments| (row.collective, root, row.name, segments);
        let whole = match self.built.entry(key(1)) {
            Entry::Occupied(built) => built.get().clone(),
            Entry::Vacant(place) => {
                let whole = row.build(shape)?;
                on_first_use(row, shape, &*whole)?;
                place.insert(whole).clone()
            }
        };
        if segments == 1 || whole.segments() > 1 {
            return Ok(whole);
        }
        let cut = || Arc::new(Segments::with_stride(whole, segments, stride)) as Arc<dyn Schedule>;
        Ok(self.built.entry(key(segments)).or_insert_with(cut).clone())
    }

    /// The reduction trees of an algorithm. If the user did not choose the algorithm (`named` is false) and it reduces, it is canonical,
    /// and its trees are the canonical trees.
    pub fn trees(
        &mut self,
        row: &Algorithm,
        whole: &dyn Schedule,
        root: Option<Rank>,
        named: bool,
    ) -> Option<Trees> {
        let name = if named { row.name } else { "" };
        let key = (row.collective, root, name, 1);
        let trees = self.trees.entry(key).or_insert_with(|| match named {
            true => fused::trees(whole, row.collective, root.unwrap_or(Rank(0))),
            false => fused::canonical(whole.ranks()),
        });
        trees.clone()
    }
}
