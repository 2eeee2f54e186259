//! The ranks that errors in flight records name as missing: ranks that never entered an operation, or that were lost.

use allfold_collectives::Rank;
use allfold_collectives::flight::{Diagnosis, Entry, Record};

/// The ranks that an error names as missing, numbered as in its communicator; empty if it names none.
fn missing_in(error: &str) -> Vec<Rank> {
    let list = match error.strip_suffix(" never entered it") {
        Some(before) => before.rsplit_once(": ").map(|(_, ranks)| ranks),
        None => error.split_once(" is lost: it ").map(|(rank, _)| rank.split(" (").next().unwrap_or(rank)),
    };
    let numbers = list.and_then(|list| list.strip_prefix("ranks ").or_else(|| list.strip_prefix("rank ")));
    numbers.into_iter().flat_map(|numbers| numbers.split(", ")).flat_map(str::parse).map(Rank).collect()
}

/// How far an error is from the cause. 0: it names a missing rank that has no record. 1: it names a missing rank. 2: it names neither. 3:
/// it says whose message a rank waited for until its deadline, which is often a rank that waits itself. 4: it repeats an earlier error.
fn distance(error: &str, unseen: &[Rank]) -> u8 {
    let missing = missing_in(error);
    match () {
        () if missing.iter().any(|rank| unseen.contains(rank)) => 0,
        () if !missing.is_empty() => 1,
        () if error.starts_with("this communicator has failed before: ") => 4,
        () if error.starts_with("deadline of ") => 3,
        () => 2,
    }
}

/// Puts the error that is nearest to the cause first, which is the error that the diagnosis says. `unseen`: world ranks without a record.
pub(super) fn put_nearest_first(verdict: &mut Diagnosis, unseen: &[Rank]) {
    if let Diagnosis::Unfinished { group, errors, .. } = verdict {
        // Ranks of another communicator than the world have other numbers there.
        let unseen = if *group == 0 { unseen } else { &[] };
        errors.sort_by_key(|(_, error)| distance(error, unseen));
    }
}

/// The error by which another rank's record names this world rank as missing, with the rank that recorded it. `None` if no record names
/// the rank.
pub(super) fn recorded_of(rank: Rank, records: &[Record]) -> Option<(Rank, &str)> {
    let errors = records.iter().flat_map(|record| {
        let entries = record.entries.iter().filter(|entry| entry.group == 0);
        let errors = entries.filter_map(|Entry { error, .. }| error.as_deref());
        errors.chain([&*record.header.reason]).map(|error| (Rank(record.header.rank), error))
    });
    errors.into_iter().find(|(_, error)| missing_in(error).contains(&rank))
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_collectives::{Call, Collective, DType, Error, Lost, Operation};
    use std::time::Duration;

    fn late(waiting_on: &[u32], entered: bool) -> String {
        let call = Call::plain(Operation::Collective(Collective::AllReduce), 4, 8, DType::F32);
        let waiting_on = waiting_on.iter().copied().map(Rank).collect();
        let after = Duration::from_secs(15);
        Error::DeadlineExceeded { rank: Rank(1), waiting_on, entered, call: Box::new(call), round: 3, after }
            .to_string()
    }

    #[test]
    fn missing_ranks_are_read_from_the_texts_of_errors() {
        let lost = |cause| Error::PeerLost { rank: Rank(2), world: Some(Rank(6)), cause, call: None };
        assert_eq!(missing_in(&late(&[2], false)), [Rank(2)]);
        assert_eq!(missing_in(&late(&[2, 5], false)), [Rank(2), Rank(5)]);
        assert_eq!(missing_in(&late(&[2], true)), []);
        assert_eq!(missing_in(&lost(Lost::Panicked("no: it".into())).to_string()), [Rank(2)]);
        let returned = lost(Lost::ReturnedEarly { operations: 3 });
        assert_eq!(missing_in(&returned.to_string()), [Rank(2)]);
        assert_eq!(missing_in("it was asked for its record (SIGUSR2)"), []);
    }

    #[test]
    fn an_error_is_the_nearer_to_the_cause_the_more_it_says_of_missing_ranks() {
        let poisoned = Error::Poisoned { cause: late(&[2], true) }.to_string();
        let errors = [late(&[2], false), late(&[0], false), "no".into(), late(&[2], true), poisoned];
        let distances = errors.map(|error| distance(&error, &[Rank(2)]));
        assert_eq!(distances, [0, 1, 2, 3, 4]);
    }
}
