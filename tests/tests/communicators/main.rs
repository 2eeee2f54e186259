#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! The functions of communicators in addition to single collectives: asynchronous work and overlap, splitting, messages,
//! clocks.

mod messages;
mod twice;

use allfold_collectives::{
    Activity, Buffer, Collective, Communicator, DType, Error, Plan, Rank, ReduceOp, Work, World,
};
use allfold_kernels::{bf16, f16};
use allfold_sim::{Device, Faults, Picos, Topology};
use twice::{Event, same_twice};

fn worlds(ranks: u32) -> [World; 3] {
    let threads = World::threads(ranks);
    let sim = World::sim(&Topology::named("nodes8x1", ranks).unwrap());
    [threads.clone().any(), threads.messages().any(), sim.any()]
}

#[test]
fn asynchronous_operations_give_what_blocking_ones_do_in_the_order_of_issue() {
    for world in worlds(5) {
        let run = world.run(|comm: Communicator| -> Result<(), Error> {
            let me = i64::from(comm.rank().0);
            let bucket =
                |k: i64| -> Buffer<i64> { (0..50 + k).map(|i| i * k + me).collect::<Vec<_>>().into() };
            let works: Vec<Work<Buffer<i64>>> =
                (0..8).map(|k| comm.all_reduce_async(bucket(k), ReduceOp::Sum)).collect::<Result<_, _>>()?;
            let gather = comm.all_gather_async(vec![me; 3].into())?;
            let scatter = comm.reduce_scatter_async((0..10).collect::<Vec<i64>>().into(), ReduceOp::Max)?;
            let broadcast = comm.broadcast_async(vec![me; 2].into(), Rank(3))?;
            let shift = comm.shift_async(vec![me; 4].into())?;
            // A dropped operation keeps its position; a blocking operation waits for all that were issued before it.
            drop(comm.all_reduce_async(vec![me].into(), ReduceOp::Sum)?);
            let mut after = [me];
            comm.all_reduce(&mut after, ReduceOp::Min)?;
            assert_eq!(after, [0]);
            for (k, work) in (0..).zip(works) {
                assert!(work.is_done(), "a blocking operation waits for those issued before it");
                let want: Vec<i64> = (0..50 + k).map(|i| 5 * i * k + 10).collect();
                assert_eq!(*work.wait()?, want);
            }
            assert_eq!(*gather.wait()?, [[0; 3], [1; 3], [2; 3], [3; 3], [4; 3]].concat());
            assert_eq!(*scatter.wait()?, [2 * me, 2 * me + 1]);
            assert_eq!(*broadcast.wait()?, [3, 3]);
            assert_eq!(*shift.wait()?, [(me + 4) % 5; 4]);
            Ok(())
        });
        run.unwrap();
    }
}

#[test]
fn polling_ends_and_takes_virtual_time() {
    for world in worlds(3) {
        let run = world.run(|comm: Communicator| -> Result<(), Error> {
            let work = comm.all_reduce_async(vec![1f32; 100_000].into(), ReduceOp::Sum)?;
            while !work.is_done() {
                std::thread::yield_now();
            }
            assert_eq!(work.wait()?[99_999], 3.0);
            Ok(())
        });
        run.unwrap();
    }
}

#[test]
fn a_poll_looks_at_its_own_time_however_far_its_rank_has_computed_ahead() {
    let topology = Topology::named("switch", 2).unwrap();
    let run = World::sim(&topology).run(|comm: Communicator| -> Result<(), Error> {
        let first = comm.all_reduce_async(vec![1f32; 10].into(), ReduceOp::Sum)?;
        let second = comm.all_reduce_async(vec![1f32; 10].into(), ReduceOp::Sum)?;
        comm.charge(&allfold_sim::DeviceWork { flops: 1 << 45, ..Default::default() });
        let now = comm.now();
        assert!(second.is_done() && first.is_done(), "both were done long before {now}");
        assert_eq!(comm.now(), now, "a look that finds something takes no time");
        first.wait()?;
        second.wait()?;
        comm.barrier()
    });
    run.unwrap();
}

#[test]
fn communication_overlaps_computation_on_virtual_time() {
    let topology = Topology::named("switch", 4).unwrap();
    let compute = allfold_sim::DeviceWork { flops: 1_000_000_000, ..Default::default() };
    let world = World::sim(&topology).device(Device::default()).timeline();
    let finish = |overlap: bool| {
        let report = world.run_each(|comm: Communicator| -> Result<(Picos, Picos), Error> {
            let start = comm.now();
            let work = comm.all_reduce_async(vec![1f32; 4_000_000].into(), ReduceOp::Sum)?;
            if overlap {
                comm.charge(&compute);
                work.wait()?;
            } else {
                work.wait()?;
                comm.charge(&compute);
            }
            Ok((start, comm.now()))
        });
        report.unwrap()
    };
    let (together, apart) = (finish(true), finish(false));
    let alone = Device::default().time(compute);
    let last = |report: &[Picos]| *report.iter().max().unwrap();
    let sum = last(&apart.finish);
    let communication = sum - alone;
    assert_eq!(last(&together.finish), alone.max(communication), "the longer of the two hides the other");
    let rank0: Vec<&Activity> = together.timeline.iter().filter(|a| a.rank == Rank(0)).collect();
    assert_eq!(rank0.len(), 2, "{rank0:?}");
    assert_eq!((rank0[0].what.as_str(), rank0[0].stream, rank0[0].end), ("compute", 0, alone));
    assert!(rank0[1].what.starts_with("all_reduce(4000000 x f32, sum"), "{rank0:?}");
    assert_eq!((rank0[1].stream, rank0[1].start, rank0[1].end), (1, Picos::ZERO, communication));
}

#[test]
fn the_same_program_has_the_same_times_every_time() {
    let topology = Topology::named("nodes4x2", 12).unwrap();
    let run = || {
        let report = World::sim(&topology).timeline().run_each(|comm: Communicator| -> Result<u64, Error> {
            let me = u64::from(comm.rank().0);
            comm.charge(&allfold_sim::DeviceWork { flops: me * 1_000_000_000, ..Default::default() });
            let half = comm.split(Some(comm.rank().0 % 2), 0)?.unwrap();
            let work = half.all_reduce_async(vec![1f32; 100_000].into(), ReduceOp::Sum)?;
            let other = comm.all_reduce_async(vec![0.5f32; 50_000].into(), ReduceOp::Sum)?;
            comm.charge(&allfold_sim::DeviceWork { flops: 5_000_000_000, ..Default::default() });
            Ok(work.wait()?[0].to_bits() as u64 + other.wait()?[0].to_bits() as u64)
        });
        let report = report.unwrap();
        let results: Vec<u64> = report.ranks.into_iter().map(Result::unwrap).collect();
        (results, report.finish, report.event_hash, report.timeline)
    };
    let first = run();
    for _ in 0..5 {
        assert_eq!(run(), first);
    }
}

#[test]
fn a_split_numbers_by_key_and_the_parts_work_side_by_side() {
    for world in worlds(7) {
        let run = world.run(|comm: Communicator| -> Result<(), Error> {
            let me = comm.rank().0;
            // Rank 6 stays out; the others are split by parity and numbered in reverse order.
            let color = (me < 6).then_some(me % 2);
            let part = comm.split(color, 100 - me)?;
            let Some(part) = part else {
                assert_eq!(me, 6);
                return comm.barrier();
            };
            assert_eq!((part.size(), part.rank().0), (3, 2 - me / 2));
            let mut data = [me as i64];
            part.all_reduce(&mut data, ReduceOp::Sum)?;
            assert_eq!(data[0], if me.is_multiple_of(2) { 6 } else { 9 });
            let single = part.split(Some(part.rank().0), 0)?.unwrap();
            single.all_reduce(&mut data, ReduceOp::Avg)?;
            assert_eq!((single.size(), data[0]), (1, if me.is_multiple_of(2) { 6 } else { 9 }));
            // Equal keys keep the order of ranks.
            let same = part.split(Some(0), 5)?.unwrap();
            assert_eq!(same.rank(), part.rank());
            comm.barrier()
        });
        run.unwrap();
    }
}

#[test]
fn two_communicators_may_be_used_in_different_orders() {
    for world in worlds(4) {
        let run = world.run(|comm: Communicator| -> Result<(), Error> {
            let other = comm.split(Some(0), 0)?.unwrap();
            let ask = |comm: &Communicator| comm.all_reduce_async(vec![1i32; 9].into(), ReduceOp::Sum);
            let works = match comm.rank().0 % 2 {
                0 => [ask(&comm)?, ask(&other)?],
                _ => [ask(&other)?, ask(&comm)?],
            };
            works.into_iter().try_for_each(|work| work.wait().map(|sum| assert_eq!(*sum, [4; 9])))
        });
        run.unwrap();
    }
}

#[test]
fn every_collective_works_on_nothing_and_on_one_rank() {
    for ranks in [1, 2, 5] {
        for world in worlds(ranks) {
            let run = world.run(|comm: Communicator| -> Result<(), Error> {
                let empty: &mut [f32] = &mut [];
                comm.all_reduce(empty, ReduceOp::Sum)?;
                comm.broadcast(empty, Rank(0))?;
                comm.all_gather(&[0f32; 0], empty)?;
                comm.reduce_scatter(&[0f32; 0], empty, ReduceOp::Avg)?;
                comm.reduce(empty, ReduceOp::Max, Rank(0))?;
                comm.gather(&[0f32; 0], empty, Rank(0))?;
                comm.scatter(&[0f32; 0], empty, Rank(0))?;
                comm.all_to_all(&[0f32; 0], empty)?;
                comm.shift(empty)?;
                comm.barrier()
            });
            run.unwrap();
        }
    }
}

#[test]
fn a_slow_link_delays_real_data_and_changes_no_bit() {
    let topology = Topology::named("nodes8x1", 16).unwrap();
    let run = |rules: &[&str]| {
        let faults = Faults::parse(rules.iter().copied(), &topology).unwrap();
        let world = World::sim(&topology).faults(faults).algorithm(Collective::AllReduce, "ring");
        let report = world.run_each(|comm: Communicator| -> Result<Vec<u32>, Error> {
            let mut data: Vec<f32> = (0..4_000).map(|i| 0.1 * (i + comm.rank().0) as f32).collect();
            comm.all_reduce(&mut data, ReduceOp::Sum)?;
            Ok(data.into_iter().map(f32::to_bits).collect())
        });
        let report = report.unwrap();
        let bits: Vec<Vec<u32>> = report.ranks.into_iter().map(Result::unwrap).collect();
        (bits, report.finish.into_iter().max().unwrap())
    };
    let (healthy, soon) = run(&[]);
    for rule in ["slow_link=nic_out[1]:x10", "slow_link=nic_in[0]:+20us"] {
        let (bits, late) = run(&[rule]);
        assert_eq!(bits, healthy, "{rule}");
        assert!(late > soon, "{rule}: {late} after {soon}");
    }
}

/// The determinism self-test runs a program twice and compares every activity of every rank as an event.
#[test]
fn carrying_runs_repeat_event_by_event_and_the_first_difference_is_named() {
    let topology = Topology::named("nodes8x1", 12).unwrap();
    let run = |flops: u64, tell: &mut dyn FnMut(Event)| {
        let report = World::sim(&topology).timeline().run_each(|comm: Communicator| -> Result<(), Error> {
            let works: Result<Vec<_>, Error> = (0..3)
                .map(|bucket| {
                    let me = u64::from(comm.rank().0);
                    comm.charge(&allfold_sim::DeviceWork {
                        flops: (me * 7 + bucket) * flops,
                        ..Default::default()
                    });
                    comm.all_reduce_async(vec![1f32; 30_000 + bucket as usize].into(), ReduceOp::Sum)
                })
                .collect();
            works?.into_iter().try_for_each(|work| work.wait().map(drop))
        });
        for (sequence, done) in (0..).zip(report.unwrap().timeline) {
            let Activity { rank, stream, end, start, .. } = done;
            tell(Event { time: end, rank, stream, sequence, what: start.0 });
        }
    };
    let same = same_twice(|tell| run(1_000_000_000, tell));
    assert_eq!(same, same_twice(|tell| run(1_000_000_000, tell)));
    let mut turn = 0;
    let divergence = same_twice(|tell| {
        turn += 1;
        run(if turn == 1 { 1_000_000_000 } else { 1_000_000_007 }, tell)
    });
    assert!(divergence.unwrap_err().to_string().contains("rank 0, stream 0"));
}

#[test]
fn averages_of_narrow_floats_round_once_for_the_sum_and_once_for_the_quotient() {
    // 256 + 1 is no bf16, so the sum of three is 256 by any order of rounding to even; a third of it rounds to 85.5.
    for world in worlds(3) {
        let run = world.run(|comm: Communicator| -> Result<(), Error> {
            let mine = [256.0, 0.5, 0.5][comm.rank().index()];
            let mut wide = [bf16::from_f64(mine)];
            comm.all_reduce(&mut wide, ReduceOp::Avg)?;
            assert_eq!(wide[0], bf16::from_f64(85.5));
            let mut narrow = [f16::from_f64(1.0 + mine)];
            comm.all_reduce(&mut narrow, ReduceOp::Avg)?;
            assert_eq!(narrow[0], f16::from_f64(260.0 / 3.0));
            let mut block = [f16::ZERO];
            comm.reduce_scatter(&[narrow[0]; 3], &mut block, ReduceOp::Avg)?;
            let thrice = f16::from_f64(narrow[0].to_f64() * 3.0);
            assert_eq!(block[0], f16::from_f64(thrice.to_f64() / 3.0));
            let mut rooted = [bf16::from_f64(f64::from(comm.rank().0))];
            comm.reduce(&mut rooted, ReduceOp::Avg, Rank(2))?;
            assert!(comm.rank() != Rank(2) || rooted[0] == bf16::from_f64(1.0));
            Ok(())
        });
        run.unwrap();
    }
}

#[test]
fn counts_beyond_memory_are_refused_in_one_line() {
    let refused = |collective: Collective, ranks: u32, count: usize| {
        Plan::default().of(collective, ranks, count, DType::F64).err().unwrap().to_string()
    };
    let says = "is more than memory can address";
    for collective in [Collective::AllReduce, Collective::Broadcast, Collective::Reduce] {
        for count in [usize::MAX, usize::MAX / 8 + 1, isize::MAX as usize / 8 + 1] {
            let error = refused(collective, 2, count);
            assert!(error.contains(says) && error.contains(&count.to_string()), "{error}");
        }
        assert!(Plan::default().of(collective, 2, isize::MAX as usize / 8, DType::F64).is_ok());
    }
    // One rank's block would fit into memory; the blocks of all ranks do not.
    for collective in [Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll] {
        let error = refused(collective, 1 << 20, 1 << 41);
        assert!(
            error.contains("2199023255552 x f64 per rank over 1048576 ranks") && error.contains(says),
            "{error}"
        );
    }
}

#[test]
fn an_average_is_the_sum_divided_once() {
    for world in worlds(3) {
        let run =
            world.algorithm(Collective::AllReduce, "ring").run(|comm: Communicator| -> Result<(), Error> {
                let mut data = [i8::try_from(comm.rank().0).unwrap() - 3, 1];
                comm.all_reduce(&mut data, ReduceOp::Avg)?;
                assert_eq!(data, [-2, 1]);
                Ok(())
            });
        run.unwrap();
    }
}

/// Calls every collective and returns all results. Ranks whose bit is set in `who` use registered buffers, others plain memory.
fn with_buffers(comm: &Communicator, who: u32) -> Result<Vec<Vec<f32>>, Error> {
    const LEN: usize = 70_000;
    let (n, me) = (comm.size() as usize, comm.rank().0);
    let mine = |salt: usize, len: usize| {
        let mut buffer = if who >> me & 1 == 1 { comm.buffer(len) } else { Buffer::zeroed(len) };
        for (at, x) in buffer.iter_mut().enumerate() {
            *x = ((at * 31 + salt * 7 + me as usize * 13) % 1009) as f32 * 0.37 - 100.0;
        }
        buffer
    };
    let mut ends = Vec::new();
    let mut keep = |buffer: &[f32]| ends.push(buffer.to_vec());
    // Twice, so that the memory of dropped buffers is used again.
    for turn in 0..2 {
        let (mut a, mut b) = (mine(turn, LEN), mine(turn + 1, LEN));
        comm.all_reduce(&mut a, ReduceOp::Sum)?;
        keep(&a);
        comm.all_reduce_into(&a, &mut b, ReduceOp::Max)?;
        keep(&b);
        // A slice that begins at a multiple of 64 KiB, and one that does not.
        comm.all_reduce(&mut a[16 << 10..], ReduceOp::Avg)?;
        keep(&a);
        comm.all_reduce(&mut b[100..60_000], ReduceOp::Sum)?;
        keep(&b);
        comm.broadcast(&mut b, Rank(1))?;
        keep(&b);
        let mut all = mine(turn + 2, n * LEN);
        comm.all_gather(&a, &mut all)?;
        keep(&all);
        comm.reduce_scatter(&all, &mut a, ReduceOp::Sum)?;
        keep(&a);
        let mut exchanged = mine(turn + 3, n * LEN);
        comm.all_to_all(&all, &mut exchanged)?;
        keep(&exchanged);
        comm.gather(&a, &mut all, Rank(0))?;
        if me == 0 {
            keep(&all);
        }
        comm.scatter(&all, &mut a, Rank(0))?;
        keep(&a);
        comm.shift(&mut a)?;
        keep(&a);
        // A buffer is split while one part is in an asynchronous operation.
        let rest = comm.all_reduce_async(a.split_off(999), ReduceOp::Sum)?;
        a.iter_mut().for_each(|x| *x = 0.5);
        a.join(rest.wait()?);
        keep(&a);
        comm.reduce(&mut a, ReduceOp::Sum, Rank(1))?;
        if me == 1 {
            keep(&a);
        }
        let (first, second) =
            (comm.all_reduce_async(mine(9, LEN), ReduceOp::Sum)?, comm.all_gather_async(b)?);
        keep(&second.wait()?);
        keep(&first.wait()?);
    }
    Ok(ends)
}

#[test]
fn registered_buffers_hold_what_any_memory_would_whoever_has_some() {
    let want = World::threads(3).run(|comm: Communicator| with_buffers(&comm, 0)).unwrap();
    for who in [0b111, 0, 0b101, 0b010] {
        let got = World::shm(3).run(|comm: Communicator| with_buffers(&comm, who)).unwrap();
        for (rank, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.len(), want.len());
            let differs = got.iter().zip(want).position(|(got, want)| got != want);
            assert_eq!(differs, None, "rank {rank} of {who:b}: which result differs");
        }
    }
}

#[test]
fn blocks_larger_than_fragments_go_over_sockets_from_and_to_the_places_where_they_lie() {
    // With four ranks, halving-doubling sends every other block; with three, the blocks of a folded rank are neighbours.
    for ranks in [3, 4] {
        let of = |world: World| world.run(|comm: Communicator| with_buffers(&comm, 0)).unwrap();
        let (want, got) = (of(World::threads(ranks).any()), of(World::tcp(ranks).any()));
        for (rank, (got, want)) in got.iter().zip(&want).enumerate() {
            let differs = got.iter().zip(want).position(|(got, want)| got != want);
            assert_eq!(differs, None, "rank {rank} of {ranks}: which result differs");
        }
    }
}

#[test]
fn a_process_has_room_for_many_ranks_that_share_memory() {
    let run = World::shm(60).run(|comm: Communicator| -> Result<i64, Error> {
        let mut one = [1i64];
        comm.all_reduce(&mut one, ReduceOp::Sum)?;
        Ok(one[0])
    });
    assert_eq!(run.unwrap(), vec![60; 60]);
}

#[test]
fn a_registered_buffer_outlives_its_communicator_and_is_any_memory_to_others() {
    let run = World::shm(2).run(|comm: Communicator| -> Result<(), Error> {
        let mut buffer = comm.buffer::<i64>(10_000);
        assert!(buffer.is_shared() && buffer.iter().all(|x| *x == 0));
        assert!(!comm.buffer::<i64>(10).is_shared(), "a small one gains nothing");
        let half = comm.split(Some(0), 1 - comm.rank().0)?.expect("a colour");
        buffer.fill(4);
        half.all_reduce(&mut buffer, ReduceOp::Sum)?;
        assert!(buffer.iter().all(|x| *x == 8));
        drop((comm, half));
        buffer.fill(1);
        assert_eq!(buffer.clone(), buffer);
        assert_eq!(buffer.into_vec(), vec![1; 10_000]);
        Ok(())
    });
    run.unwrap();
}
