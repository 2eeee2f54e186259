//! What is fitted and what is scored: never the same row.

use super::fit::{Prior, fit};
use super::prepare::Prepared;
use allfold_collectives::time::nccl::physics::{Parameters, Terms};

/// A fit to all other systems.
pub fn without_system(runs: &[Prepared], system: &str, terms: Terms) -> Parameters {
    fit(runs.iter().filter(|run| run.system != system), &Prior::default(), terms).parameters
}

/// The one run of a run's system that tells most of it: over the same kind of NICs, of several nodes if any is, of the
/// most sizes. `None` where there is no other run.
pub fn companion<'a>(runs: &'a [Prepared], of: &Prepared) -> Option<&'a Prepared> {
    let fabric = |run: &Prepared| run.setting.machine.nics.map(|nics| nics.fabric);
    let others = runs.iter().filter(|run| run.system == of.system && run.name != of.name);
    let alike =
        others.filter(|run| fabric(of).is_none() || fabric(run).is_none() || fabric(run) == fabric(of));
    let alike = alike.filter(|run| fabric(of).is_none() || fabric(run).is_some());
    alike.min_by_key(|run| {
        let same = run.setting.machine.nodes == of.setting.machine.nodes;
        (!same && run.setting.machine.nodes == 1, usize::MAX - run.rows.len(), run.name.clone())
    })
}

/// A fit to one run, from what a fit to all other systems found.
pub fn with_run(others: &Parameters, one: &Prepared, terms: Terms) -> Parameters {
    let prior = Prior { means: others.logs(), evenness: 0.3, ..Prior::default() };
    fit(std::iter::once(one), &prior, terms).parameters
}
