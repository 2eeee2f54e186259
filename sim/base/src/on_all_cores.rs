//! Independent jobs on all cores, with their results in order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{available_parallelism, scope};

/// Does `work` for every job on all cores. A job comes with its place among the results, counted from 0; jobs begin in the order of
/// `jobs`. Each result goes to `each` as soon as all results before it have gone there.
///
/// # Errors
/// The first error of `each`, after which no more jobs begin.
pub fn on_all_cores<J: Sync, R: Send, E>(
    jobs: &[(usize, J)],
    work: impl Fn(&J) -> R + Sync,
    mut each: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let cores = available_parallelism().map_or(1, usize::from);
    let (results, done) = mpsc::channel();
    let worker = |results: mpsc::Sender<(usize, R)>| {
        while let Some((place, job)) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
            && results.send((*place, work(job))).is_ok()
        {}
    };
    scope(|threads| {
        for _ in 0..cores.min(jobs.len()) {
            let results = results.clone();
            threads.spawn(|| worker(results));
        }
        drop(results);
        // Results after the first that is missing, by place.
        let (mut waiting, mut given) = (BTreeMap::new(), 0);
        for (place, result) in done {
            waiting.insert(place, result);
            while let Some(result) = waiting.remove(&given) {
                each(result)?;
                given += 1;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Jobs that begin last first.
    fn jobs(count: usize) -> Vec<(usize, usize)> {
        (0..count).rev().map(|place| (place, 10 * place)).collect()
    }

    #[test]
    fn results_come_in_the_order_of_their_places() {
        for count in [0, 1, 2, 100] {
            let mut given = Vec::new();
            on_all_cores(
                &jobs(count),
                |job| job + 1,
                |result| {
                    given.push(result);
                    Ok::<_, Infallible>(())
                },
            )
            .unwrap();
            assert_eq!(given, (0..count).map(|place| 10 * place + 1).collect::<Vec<_>>());
        }
    }

    #[test]
    fn after_an_error_nothing_more_is_given() {
        let mut given = 0;
        let stopped = on_all_cores(
            &jobs(100),
            |job| *job,
            |_| {
                given += 1;
                if given == 3 { Err("enough") } else { Ok(()) }
            },
        );
        assert_eq!((stopped, given), (Err("enough"), 3));
    }
}
