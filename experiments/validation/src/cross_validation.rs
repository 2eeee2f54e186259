//! What is fitted and what is scored: never the same row.

use crate::fit::{Prior, fit};
use crate::prepare::Prepared;
use crate::score::{factor, median};
use allfold_nccl_model::physics::{Parameters, Terms, closed};

/// The runs that are left out together and predicted from a fit to all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// A cluster.
    System,
    /// All GPUs of a generation.
    Generation,
    /// All that goes over a kind of NICs; all single nodes.
    Fabric,
}

impl Group {
    /// The group that a run is of.
    pub fn of(self, run: &Prepared) -> String {
        let machine = &run.setting.machine;
        match self {
            Group::System => run.system.clone(),
            Group::Generation => format!("{:?}", machine.gpu.generation),
            Group::Fabric => machine.nics.map_or("one node", |nics| nics.fabric.name()).into(),
        }
    }
}

/// A fit to all other systems.
pub fn without_system(runs: &[Prepared], system: &str, terms: Terms) -> Parameters {
    without(runs, Group::System, system, terms)
}

/// A fit to all runs of other groups.
pub fn without(runs: &[Prepared], by: Group, group: &str, terms: Terms) -> Parameters {
    fit(runs.iter().filter(|run| by.of(run) != group), &Prior::default(), terms).parameters
}

/// Beyond this median factor a run of another shape tells of its own circumstances, and not of its system.
const ODD: f64 = 3.0;

/// The one run of a run's system that tells most of it: over the same kind of NICs, of several nodes if any is, of the
/// same shape (GPUs of a node, nodes) if one is, of the most sizes. `None` where there is no other run.
pub fn companion<'a>(runs: &'a [Prepared], of: &Prepared) -> Option<&'a Prepared> {
    let fabric = |run: &Prepared| run.setting.machine.nics.map(|nics| nics.fabric);
    let others = runs.iter().filter(|run| run.system == of.system && run.name != of.name);
    let alike =
        others.filter(|run| fabric(of).is_none() || fabric(run).is_none() || fabric(run) == fabric(of));
    let alike = alike.filter(|run| fabric(of).is_none() || fabric(run).is_some());
    alike.min_by_key(|run| {
        let (ours, theirs) = (&of.setting.machine, &run.setting.machine);
        let inside = ours.nodes > 1 && theirs.nodes == 1;
        let unlike = u8::from(theirs.devices != ours.devices) + u8::from(theirs.nodes != ours.nodes);
        (inside, unlike, usize::MAX - run.rows.len(), run.name.clone())
    })
}

/// Whether a companion tells of the system: not if it has another number of GPUs a node and is far from anything that
/// the other systems say.
pub fn is_telling(others: &Parameters, one: &Prepared, of: &Prepared, terms: Terms) -> bool {
    if one.setting.machine.devices == of.setting.machine.devices {
        return true;
    }
    let factors = one.rows.iter().map(|row| factor(closed(&row.case, others, terms), row.measured_us));
    median(factors.collect()).is_none_or(|median| median <= ODD)
}

/// A fit to one run, from what a fit to all other systems found.
pub fn with_run(others: &Parameters, one: &Prepared, terms: Terms) -> Parameters {
    let prior = Prior { means: others.logs(), evenness: 0.3, ..Prior::default() };
    fit(std::iter::once(one), &prior, terms).parameters
}
