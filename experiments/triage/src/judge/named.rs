//! Ranks and groups as words of a sentence.

use crate::model::DumpedJob;
use allfold_base::Rank;

/// Ranks as words of a sentence.
pub(crate) fn ranks(of: &[u32]) -> String {
    let more = of.len().saturating_sub(16);
    let named: Vec<Rank> = of.iter().take(16).copied().map(Rank).collect();
    Rank::list(&named) + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

/// A group in a message, after an operation's number: ` of tp`, ` of the communicator of ranks 0, 2`; empty for the only one.
pub(crate) fn of_group(job: &DumpedJob, group: u32) -> String {
    let Some(group) = job.groups.get(group as usize) else { return String::new() };
    match &*group.name {
        "" => String::new(),
        name if group.members.len() as u32 == job.size => format!(" of {name}"),
        name => {
            let known: Vec<u32> = group.members.iter().copied().filter(|rank| *rank != u32::MAX).collect();
            format!(" of {name} ({})", ranks(&known))
        }
    }
}
