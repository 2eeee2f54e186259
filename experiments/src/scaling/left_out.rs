//! Numbers of ranks that a curve has no point of, because they do not fit the machine, the strategy, the network or the algorithm.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_report::format::counted;
use allfold_report::records::SimulatedScale;
use std::collections::BTreeMap;

/// Numbers of ranks without a point, each with the reason.
#[derive(Debug, Default)]
pub struct LeftOut(BTreeMap<u32, String>);

impl LeftOut {
    /// The value of a point; `None` if its number of ranks does not fit, which is an error of usage.
    ///
    /// # Errors
    /// A point that failed.
    pub fn kept<T>(&mut self, ranks: u32, made: CommandResult<T>) -> CommandResult<Option<T>> {
        match made {
            Ok(value) => Ok(Some(value)),
            Err(CommandError::Usage(why)) => {
                self.0.entry(ranks).or_insert(why);
                Ok(None)
            }
            Err(failed) => Err(failed),
        }
    }

    /// What the efficiency of a curve is relative to, if that is not the point of one rank, and why.
    pub fn relative_to(&self, points: &[SimulatedScale]) -> Option<String> {
        let base = points.iter().find(|point| point.excess().is_none())?.setup.ranks;
        let fewest = points.first()?.setup.ranks;
        let why = match self.0.get(&1) {
            _ if base > fewest => ", the fewest that fit in memory".into(),
            Some(why) => format!(", as 1 rank is left out: {why}"),
            None => String::new(),
        };
        (base > 1).then(|| format!("efficiency is relative to {base} ranks{why}"))
    }

    /// Refuses a curve that has a point of none of the `requested` numbers of ranks.
    ///
    /// # Errors
    /// There is no such point: the reason of the first number.
    pub fn check(&self, requested: &[u32], has_point: impl Fn(u32) -> bool) -> CommandResult {
        let first = requested.iter().find_map(|ranks| self.0.get(ranks));
        match first.filter(|_| !requested.iter().any(|&ranks| has_point(ranks))) {
            Some(why) => Err(CommandError::Usage(why.clone())),
            None => Ok(()),
        }
    }

    /// Names those of the `requested` numbers of ranks that were left out, the first ones with the reason. `partly` says what became of
    /// a number that has a point of another kind.
    pub fn say(
        &self,
        requested: &[u32],
        (has_point, partly): (impl Fn(u32) -> bool, &str),
        output: &mut RunOutput,
    ) -> CommandResult {
        const WITH_REASON: usize = 3;
        let left_out: Vec<(&u32, &String)> =
            self.0.iter().filter(|(ranks, _)| requested.contains(ranks)).collect();
        for (ranks, why) in left_out.iter().take(WITH_REASON) {
            let how = if has_point(**ranks) { partly } else { "left out" };
            output.say(format!("{how}: {}: {why}", counted(**ranks as usize, "rank")))?;
        }
        let more: Vec<String> =
            left_out.iter().skip(WITH_REASON).map(|(ranks, _)| ranks.to_string()).collect();
        match more.is_empty() {
            true => Ok(()),
            false => output.say(format!("left out, too: {} ranks", more.join(", "))),
        }
    }
}
