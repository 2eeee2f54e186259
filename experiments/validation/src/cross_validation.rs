//! Divides the runs into those that are fitted and those that are scored, so that no row is both.

use crate::fit::{Prior, fit};
use crate::prepare::Prepared;
use crate::score::{factor, median};
use allfold_nccl_model::physics::{Parameters, Terms, closed};

/// The runs that are left out together and predicted from a fit to all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// One cluster is left out at a time.
    System,
    /// All GPUs of one generation are left out at a time.
    Generation,
    /// All runs over one kind of NICs are left out at a time, and all runs on a single node.
    Fabric,
}

impl Group {
    /// The group that a run belongs to.
    pub fn of(self, run: &Prepared) -> String {
        let machine = &run.setting.machine;
        match self {
            Group::System => run.system.clone(),
            Group::Generation => format!("{:?}", machine.gpu.generation),
            Group::Fabric => machine.nics.map_or("one node", |nics| nics.fabric.name()).into(),
        }
    }

    /// The kind of group, in the singular.
    pub fn name(self) -> &'static str {
        match self {
            Group::System => "system",
            Group::Generation => "GPU generation",
            Group::Fabric => "network kind",
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

/// Beyond this median factor to its prediction, a run with another number of GPUs per node is taken as untypical of its system.
const ODD: f64 = 3.0;

/// The other run of a run's system that is most like it: over the same kind of NICs (any if `of` has none), of several nodes if
/// `of` has several, if possible of the same GPUs per node and nodes, then with the most rows. `None` where there is no such run.
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

/// Whether a companion is typical of its system: not if it has another number of GPUs per node and its times are far from
/// those that a fit to the other systems predicts.
pub fn is_telling(others: &Parameters, one: &Prepared, of: &Prepared, terms: Terms) -> bool {
    if one.setting.machine.devices == of.setting.machine.devices {
        return true;
    }
    let factors = one.rows.iter().map(|row| factor(closed(&row.case, others, terms), row.measured_us));
    median(factors.collect()).is_none_or(|median| median <= ODD)
}

/// A fit to one run, whose prior is the fit to all other systems.
pub fn with_run(others: &Parameters, one: &Prepared, terms: Terms) -> Parameters {
    let prior = Prior { means: others.logs(), evenness: 0.3, ..Prior::default() };
    fit(std::iter::once(one), &prior, terms).parameters
}
