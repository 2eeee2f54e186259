//! Messages between two ranks, blocking and asynchronous, and collectives in place.

use crate::worlds;
use allfold_collectives::{Buffer, Collective, Communicator, DType, Error, Rank, ReduceOp, World};
use allfold_sim::{Picos, Topology};
use allfold_tests::training::switch;

#[test]
fn messages_arrive_in_order_beside_collectives() {
    for world in worlds(3) {
        let run = world.run(|comm: Communicator| -> Result<(), Error> {
            let (next, before) = (Rank((comm.rank().0 + 1) % 3), Rank((comm.rank().0 + 2) % 3));
            let mut got = [0i16; 2];
            if comm.rank() == Rank(0) {
                // Rank 0 is one message ahead: without buffering, a second would block.
                comm.send(&[0i16, 7], next)?;
                for k in 0..3i16 {
                    comm.send(&[k + 1, 7], next)?;
                    comm.recv(&mut got, before)?;
                    assert_eq!(got, [k, 9]);
                }
                comm.recv(&mut got, before)?;
                assert_eq!(got, [3, 9]);
            } else {
                for _ in 0..4 {
                    comm.recv(&mut got, before)?;
                    got[1] += 1;
                    comm.send(&got, next)?;
                }
            }
            comm.barrier()
        });
        run.unwrap();
    }
}

/// Both ranks of a pair send before they receive, on a communicator for each direction: no rank waits for the other's send.
#[test]
fn asynchronous_messages_pass_each_other() {
    for world in worlds(2) {
        let run = world.run(|comm: Communicator| -> Result<(), Error> {
            let (up, down) = (comm.split(Some(0), 0)?.unwrap(), comm.split(Some(0), 0)?.unwrap());
            let other = Rank(1 - comm.rank().0);
            let (mine, theirs) = if comm.rank().0 == 0 { (&up, &down) } else { (&down, &up) };
            for k in 0..5i32 {
                let sent: Vec<_> = (0..3)
                    .map(|part| mine.send_async(vec![k, part, comm.rank().0 as i32].into(), other))
                    .collect::<Result<_, _>>()?;
                let got = theirs.recv_async(vec![0i32; 3].into(), other)?;
                // Blocking and asynchronous messages are one sequence.
                let mut second = [0i32; 3];
                theirs.recv(&mut second, other)?;
                let third = theirs.recv_async(vec![0i32; 3].into(), other)?;
                assert_eq!(got.wait()?[..], [k, 0, other.0 as i32]);
                assert_eq!(second, [k, 1, other.0 as i32]);
                assert_eq!(third.wait()?[..], [k, 2, other.0 as i32]);
                for (part, sent) in (0..).zip(sent) {
                    assert_eq!(sent.wait()?[..], [k, part, comm.rank().0 as i32]);
                }
            }
            Ok(())
        });
        run.unwrap();
    }
}

#[test]
fn an_asynchronous_message_of_another_length_is_refused_with_both_calls() {
    for world in worlds(2) {
        let run = world.run(|comm: Communicator| -> Result<(), Error> {
            let other = Rank(1 - comm.rank().0);
            match comm.rank().0 {
                0 => comm.send_async(vec![1i32; 4].into(), other)?.wait().map(drop),
                _ => comm.recv_async(vec![0i32; 5].into(), other)?.wait().map(drop),
            }
        });
        let told = run.unwrap_err().to_string();
        assert!(told.contains("4 x i32") && told.contains("5 x i32"), "{told}");
    }
}

/// The time at which rank 1 has a message of 40,000 bytes that it waited for, with its contents or without.
fn arrival(contents: bool) -> Picos {
    let run = World::sim(&switch(2)).run(|comm: Communicator| -> Result<Picos, Error> {
        match (comm.rank().0, contents) {
            (0, true) => drop(comm.send_async(vec![0u8; 40_000].into(), Rank(1))?.wait()?),
            (0, false) => drop(comm.send_length_async(40_000, Rank(1))?.wait()?),
            (_, true) => drop(comm.recv_async(vec![0u8; 40_000].into(), Rank(0))?.wait()?),
            (_, false) => assert!(comm.recv_length_async(40_000, Rank(0))?.wait()?.is_empty()),
        }
        comm.advance(Picos(17));
        Ok(comm.now())
    });
    run.unwrap()[1]
}

#[test]
fn a_message_without_contents_takes_the_time_of_its_length() {
    let with = arrival(true);
    assert_eq!(arrival(false), with);
    // 40,000 bytes at the switch's bandwidth, and 17 ps.
    assert!(with > Picos(1_000_000) && with.0 % 10 == 7, "{with}");
}

/// The times at which each rank has an operation's result and all messages have been sent, with contents or without.
fn ends(collective: Collective, contents: bool) -> Vec<Picos> {
    let world = World::sim(&Topology::named("nodes8x1", 6).unwrap());
    let body = |comm: Communicator| -> Result<Picos, Error> {
        let count = 6 * 7000;
        comm.advance(Picos(u64::from(comm.rank().0) * 100_000));
        // The first one is under way when the second is issued.
        let first = comm.collective_length_async(Collective::AllReduce, 100, DType::F32)?;
        if !contents {
            comm.collective_length_async(
                collective,
                count / if collective.blocked() { 6 } else { 1 },
                DType::F32,
            )?
            .wait()?;
        } else {
            let data: Buffer<f32> = vec![0.0; count].into();
            match collective {
                Collective::AllReduce => comm.all_reduce_async(data, ReduceOp::Avg)?.wait()?,
                Collective::AllGather => comm.all_gather_in_place_async(data)?.wait()?,
                Collective::ReduceScatter => comm.reduce_scatter_async(data, ReduceOp::Sum)?.wait()?,
                Collective::Broadcast => comm.broadcast_async(data, Rank(0))?.wait()?,
                Collective::SendRecv => comm.shift_async(data)?.wait()?,
                _ => unreachable!("not compared"),
            };
        }
        first.wait()?;
        Ok(comm.now())
    };
    world.run(body).unwrap()
}

#[test]
fn a_collective_without_contents_takes_the_time_of_its_lengths() {
    for collective in [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::SendRecv,
    ] {
        let (with, without) = (ends(collective, true), ends(collective, false));
        assert_eq!(with, without, "{collective}");
        assert!(with.iter().all(|time| *time > Picos(1_000_000)), "{with:?}");
    }
}

#[test]
fn a_collective_without_contents_is_refused_where_it_makes_no_sense() {
    let sum = |comm: &Communicator| {
        comm.collective_length_async(Collective::AllReduce, 8, DType::F32)?.wait().map(drop)
    };
    for world in [World::threads(2), World::threads(2).messages()] {
        let real = world.run(|comm: Communicator| sum(&comm)).unwrap_err();
        assert!(real.to_string().contains("for ranks on virtual time"), "{real}");
    }
    let sent = World::sim(&switch(2)).run(|comm: Communicator| match comm.rank().0 {
        0 => sum(&comm),
        _ => comm.all_reduce(&mut [0f32; 8], ReduceOp::Sum),
    });
    let told = sent.unwrap_err().to_string();
    assert!(told.contains("expected 32 bytes of round 0, got 0 bytes"), "{told}");
}

#[test]
fn a_message_without_contents_is_refused_where_it_makes_no_sense() {
    let alone = |comm: &Communicator| match comm.rank().0 {
        0 => comm.send_length_async(8, Rank(1))?.wait().map(drop),
        _ => comm.recv_length_async(8, Rank(0))?.wait().map(drop),
    };
    let real = World::threads(2).messages().run(|comm: Communicator| alone(&comm)).unwrap_err();
    assert!(real.to_string().contains("for ranks on virtual time"), "{real}");
    let sent = |receive: fn(&Communicator) -> Result<(), Error>| {
        let run = World::sim(&switch(2)).run(|comm: Communicator| match comm.rank().0 {
            0 => comm.send_length_async(8, Rank(1))?.wait().map(drop),
            _ => receive(&comm),
        });
        run.unwrap_err().to_string()
    };
    let wanted = sent(|comm| comm.recv(&mut [0u8; 8], Rank(0)));
    assert!(wanted.contains("receive it by `recv_length_async`"), "{wanted}");
    let shorter = sent(|comm| comm.recv_length_async(7, Rank(0))?.wait().map(drop));
    assert!(shorter.contains("8 x u8") && shorter.contains("7 x u8"), "{shorter}");
}

#[test]
fn collectives_in_place_equal_those_that_copy() {
    for world in worlds(3) {
        let run = world.run(|comm: Communicator| -> Result<(), Error> {
            let mine: Vec<f32> = (0..6).map(|i| (i * i) as f32 + comm.rank().0 as f32 / 3.0).collect();
            let own = 2 * comm.rank().index()..2 * comm.rank().index() + 2;
            let copied = comm.reduce_scatter_async(mine.clone().into(), ReduceOp::Sum)?.wait()?;
            let whole = comm.reduce_scatter_in_place_async(mine.clone().into(), ReduceOp::Sum)?.wait()?;
            assert_eq!(whole[own.clone()], copied[..]);
            let mut all = vec![f32::NAN; 6];
            all[own.clone()].copy_from_slice(&mine[own.clone()]);
            let gathered = comm.all_gather_async(mine[own].to_vec().into())?.wait()?;
            assert_eq!(comm.all_gather_in_place_async(all.into())?.wait()?[..], gathered[..]);
            let refused = comm.all_gather_in_place_async(vec![0f32; 7].into()).err().unwrap();
            assert!(refused.to_string().contains("7 elements do not divide among 3 ranks"), "{refused}");
            Ok(())
        });
        run.unwrap();
    }
}
