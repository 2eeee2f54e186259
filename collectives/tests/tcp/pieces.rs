//! Large buffers are sent in pipelined pieces, and the results have the same bits as without pieces.

use allfold_collectives::tcp::{Secret, Security};
use allfold_collectives::{Communicator, Error, ReduceOp, World};

/// Numbers whose sum depends on the order of additions.
fn values(rank: u32, count: usize) -> Vec<f32> {
    let at = |i: usize| (i * 7 + rank as usize * 13) % 1009;
    (0..count).map(|i| (at(i) as f32 - 500.0) * 1.1f32.powi((at(i) % 41) as i32 - 20)).collect()
}

/// The results of all-reduce, all-gather and reduce-scatter on a rank.
fn all(comm: &Communicator, count: usize) -> Result<Vec<Vec<f32>>, Error> {
    let (n, rank) = (comm.size() as usize, comm.rank().0);
    let mut summed = values(rank, count);
    comm.all_reduce(&mut summed, ReduceOp::Sum)?;
    let mut gathered = vec![-1.0; n * count];
    comm.all_gather(&values(rank, count), &mut gathered)?;
    let mut scattered = vec![vec![-1.0; count]; 2];
    let input = values(rank, n * count);
    comm.reduce_scatter(&input, &mut scattered[0], ReduceOp::Sum)?;
    comm.reduce_scatter(&input, &mut scattered[1], ReduceOp::Avg)?;
    assert_eq!(input, values(rank, n * count), "what is only given stays as it is");
    Ok([vec![summed, gathered], scattered].concat())
}

#[test]
fn pieces_have_the_bits_of_the_whole() {
    let tls = || World::tcp(2).security(Security::Tls(Secret::random().unwrap()));
    for ranks in [2u32, 3, 4, 5] {
        // One element; one piece per chunk and one element more; several pieces per chunk.
        for count in [1, 131_073 * ranks as usize, 700_001] {
            let body = |comm: Communicator| all(&comm, count);
            let expected = World::threads(ranks).run(body).unwrap();
            let tcp = World::tcp(ranks).run(body).unwrap();
            assert!(tcp == expected, "{ranks} ranks, {count} elements");
            if ranks == 2 {
                assert!(tls().run(body).unwrap() == expected, "TLS, {count} elements");
            }
        }
    }
}

#[test]
fn every_algorithm_gathers_all_inputs() {
    use allfold_collectives::{Collective, registry};
    let count = 300_001;
    for row in registry::of(Collective::AllGather) {
        let world = World::tcp(3).algorithm(Collective::AllGather, row.name);
        let gathered = world.run(|comm: Communicator| -> Result<Vec<f32>, Error> {
            let mut gathered = vec![-1.0; 3 * count];
            comm.all_gather(&values(comm.rank().0, count), &mut gathered)?;
            Ok(gathered)
        });
        let expected: Vec<f32> = (0..3).flat_map(|rank| values(rank, count)).collect();
        assert!(gathered.unwrap().iter().all(|one| *one == expected), "{}", row.name);
    }
}

#[test]
fn a_planned_schedule_has_the_pieces_of_the_run() {
    use allfold_collectives::{Collective, DType, Plan};
    let plan = Plan::default().algorithm(Collective::AllReduce, "direct").unwrap();
    let planned = |comm: Communicator| -> Result<(u32, u32), Error> {
        let planned = comm.with_plan(plan).planned(Collective::AllReduce, 1 << 20, DType::F32)?;
        Ok((planned.schedule.segments(), planned.window))
    };
    let whole = plan.of(Collective::AllReduce, 2, 1 << 20, DType::F32).unwrap();
    let shared = World::threads(2).run(planned).unwrap();
    assert!(shared.iter().all(|&found| found == (whole.schedule.segments(), whole.window)), "{shared:?}");
    // A chunk is half of 4 MiB, in pieces of half a MiB; the next piece is in flight before the one before it is complete.
    let sent = World::tcp(2).run(planned).unwrap();
    assert!(sent.iter().all(|&(segments, window)| segments == 4 && window > 1), "{sent:?}");
}
