//! Tests of library versions, and of ranks that share a GPU: each rank gets a one-line error.

use super::*;
use crate::device::{DeviceGroup, ReducePath};
use allfold_cuda::Memory;

/// The errors of two ranks that cannot join a communicator.
fn refused(machine: &Arc<dyn CudaMachine>) -> Vec<String> {
    let report = World::threads(2).deadline(LONG).run_each(|control| {
        let place = (control.rank(), control.size());
        NcclComm::join(queue(machine, place.0.0), place, Box::new(control), LONG, false).map(drop)
    });
    report.unwrap().ranks.into_iter().map(|told| told.unwrap_err().to_string()).collect()
}

#[test]
fn a_library_that_is_too_old_or_of_another_major_version_is_one_line() {
    for (version, says) in
        [((2, 17), "NCCL 2.17.1 is too old"), ((3, 0), "NCCL 3.0.0 is another major version")]
    {
        for text in refused(&shim(2, &[], StandIn { version, ..StandIn::default() })) {
            assert!(text.contains(says) && text.contains("a version 2 from 2.18 on is needed"), "{text}");
            assert!(text.contains("pip install") && !text.contains('\n'), "{text}");
        }
    }
}

#[test]
fn a_library_without_estimates_or_shrinking_says_which_version_has_them() {
    let machine = shim(2, &[], StandIn { version: (2, 21), ..StandIn::default() });
    let told = each(&machine, 2, LONG, |mut comm| {
        sum(&mut comm, 1)?;
        let text = comm.estimate(|_| Ok(())).unwrap_err().to_string();
        assert!(text.contains("2.22 or newer is needed to estimate"), "{text}");
        let other = Rank(1 - comm.rank().0);
        let Err(error) = comm.shrink(&[other]) else { return Ok(()) };
        assert!(error.to_string().contains("2.27 or newer is needed to shrink"), "{error}");
        Ok(())
    });
    told.into_iter().for_each(Result::unwrap);
}

fn one_gpu(seeded: &'static [u8], options: StandIn) -> Arc<dyn CudaMachine> {
    let one = ShimOptions { devices: 2, one_gpu: true, seeded, ..ShimOptions::default() };
    let machine = Shim::with(one).unwrap();
    stand_in(&machine, options);
    machine
}

#[test]
fn two_ranks_on_one_gpu_give_a_one_line_remedy() {
    for text in refused(&one_gpu(&[], StandIn::default())) {
        assert_eq!(
            text,
            "ranks 0 and 1 are on one GPU, which NCCL 2.30.3 refuses here: give each rank a GPU, set \
             NCCL_MULTI_RANK_GPU_ENABLE=1 with NCCL 2.30 or newer, or exchange by `device` or `host`"
        );
    }
    let shared = one_gpu(&[], StandIn { shares: true, ..StandIn::default() });
    let sums = each(&shared, 2, LONG, |mut comm| sum(&mut comm, 2));
    assert_eq!(sums, [Ok(4), Ok(4)]);
}

/// On an H200, NCCL's kernels of four ranks on one GPU waited for each other for ever, because not all of their blocks ran at once.
#[test]
fn defect_23_the_blocks_of_ranks_on_one_gpu_run_at_once() {
    let sharing = StandIn { shares: true, ..StandIn::default() };
    let sums = |seeded| each(&one_gpu(seeded, sharing), 4, LONG, |mut comm| sum(&mut comm, 2));
    assert!(sums(&[23]).iter().all(Result::is_err));
    assert_eq!(sums(&[]), [Ok(8), Ok(8), Ok(8), Ok(8)]);
}

/// A child without its parent's limit of blocks hung as the parent would without one.
#[test]
fn the_child_of_ranks_on_one_gpu_has_its_parents_limit_of_blocks() {
    let sharing = StandIn { shares: true, ..StandIn::default() };
    let sums = each(&one_gpu(&[], sharing), 4, LONG, |mut comm| {
        let mut child = comm.split(0, 0)?.expect("every rank has this colour");
        let summed = sum(&mut child, 2);
        child.finalize()?;
        comm.finalize()?;
        summed
    });
    assert_eq!(sums, [Ok(8), Ok(8), Ok(8), Ok(8)]);
}

/// The reduce paths that `auto` selects for two ranks on one machine.
fn auto(machine: &Arc<dyn CudaMachine>) -> Vec<Result<Option<String>>> {
    let report = World::threads(2).deadline(LONG).run_each(|comm| {
        let link = DeviceGroup::open(
            &comm,
            queue(machine, comm.rank().0),
            ReducePath::Auto,
            Duration::from_secs(5),
        )?;
        Ok(link.described())
    });
    report.unwrap().ranks
}

#[test]
fn defect_7_auto_takes_nccl_only_where_ranks_have_gpus_of_their_own() {
    let offered = StandIn { offered: true, ..StandIn::default() };
    let careless = auto(&one_gpu(&[7], offered));
    assert!(careless.iter().all(Result::is_err), "{careless:?}");
    let device = Ok(Some("device copies: ranks 0 and 1 share a GPU".to_string()));
    assert_eq!(auto(&one_gpu(&[], offered)), [device.clone(), device.clone()]);
    let nccl = Ok(Some("native NCCL 2.30.3".to_string()));
    assert_eq!(auto(&shim(2, &[], offered)), [nccl.clone(), nccl]);
    // Even where NCCL lets ranks share a GPU.
    let sharing = StandIn { shares: true, ..offered };
    assert_eq!(auto(&one_gpu(&[], sharing)), [device.clone(), device]);
    // On the shim, `auto` selects NCCL only if a test enables it.
    let device = Ok(Some("device copies: rank 0 has no NCCL; `allfold doctor` there says why".to_string()));
    assert_eq!(auto(&shim(2, &[], StandIn::default())), [device.clone(), device]);
}

#[test]
fn every_path_exchanges_blocks_and_shifts_buffers() {
    for way in [ReducePath::Nccl, ReducePath::Scheduled, ReducePath::Device, ReducePath::Host] {
        let machine = shim(3, &[], StandIn { offered: true, ..StandIn::default() });
        let report = World::threads(3).deadline(LONG).run_each(|comm| {
            let (me, compute) = (comm.rank().0, queue(&machine, comm.rank().0));
            let mut link = DeviceGroup::open(&comm, queue(&machine, me), way, Duration::from_secs(5))?;
            let sent = compute.upload(&[0, 1, 2].map(|to| 10 * me + to)).unwrap();
            let [blocks, previous] = [(); 2].map(|()| compute.memory(sent.len()).unwrap());
            for _ in 0..2 {
                link.all_to_all(&compute, sent.all(), blocks.all())?;
                link.shift(&compute, sent.all(), previous.all())?;
                link.join(&compute)?;
            }
            let uneven = compute.memory(4).unwrap();
            assert!(link.all_to_all(&compute, uneven.all(), uneven.all()).is_err(), "{way:?}");
            assert!(link.shift(&compute, sent.all(), uneven.all()).is_err(), "{way:?}");
            link.wait(&compute, "exchange")?;
            let read = |memory: &Memory| compute.download::<u32>(memory.all()).unwrap();
            Ok::<_, Error>((read(&blocks), read(&previous)))
        });
        for (rank, got) in (0u32..).zip(report.unwrap().ranks) {
            let before = (rank + 2) % 3;
            let wanted = ([0, 10, 20].map(|from| from + rank), [0, 1, 2].map(|to| 10 * before + to));
            assert_eq!(got, Ok((wanted.0.to_vec(), wanted.1.to_vec())), "{way:?}, rank {rank}");
        }
    }
}

/// Each of three ranks in turn is the root of a reduce, a gather and a scatter, on every path.
#[test]
fn every_path_has_the_collectives_with_a_root() {
    for way in [ReducePath::Nccl, ReducePath::Scheduled, ReducePath::Device, ReducePath::Host] {
        let machine = shim(3, &[], StandIn { offered: true, ..StandIn::default() });
        let report = World::threads(3).deadline(LONG).run_each(|comm| {
            let (me, compute) = (comm.rank().0, queue(&machine, comm.rank().0));
            let mut link = DeviceGroup::open(&comm, queue(&machine, me), way, Duration::from_secs(5))?;
            for root in (0..3).map(Rank) {
                let values: Vec<f32> = (0..7).map(|at| (at + 10 * me) as f32).collect();
                let sums = compute.upload(&values).unwrap();
                link.reduce(&compute, (DType::F32, ReduceOp::Sum), sums.all(), root)?;
                let blocks = [0, 1, 2].map(|block| 100 * me + block);
                let [gathered, scattered] = [(); 2].map(|()| compute.upload(&blocks).unwrap());
                link.gather(&compute, gathered.all(), root)?;
                link.scatter(&compute, scattered.all(), root)?;
                link.join(&compute)?;
                link.wait(&compute, "exchange")?;
                let read = |memory: &Memory| compute.download::<u32>(memory.all()).unwrap();
                if root.0 == me {
                    let wanted: Vec<f32> = (0..7).map(|at| (3 * at + 30) as f32).collect();
                    assert_eq!(compute.download::<f32>(sums.all()).unwrap(), wanted, "{way:?}, root {root}");
                    assert_eq!(read(&gathered), [0, 101, 202], "{way:?}, root {root}");
                    assert_eq!(read(&scattered), blocks, "{way:?}, root {root}");
                } else {
                    assert_eq!(read(&gathered), blocks, "{way:?}, root {root}");
                    let own = read(&scattered)[me as usize];
                    assert_eq!(own, 100 * root.0 + me, "{way:?}, root {root}");
                }
            }
            let (four, all) = (compute.memory(4).unwrap(), compute.memory(12).unwrap());
            let uneven = link.gather(&compute, four.all(), Rank(0)).unwrap_err().to_string();
            assert!(uneven.contains("4 bytes cannot be cut into 3 equal blocks"), "{way:?}: {uneven}");
            let outside = link.scatter(&compute, all.all(), Rank(3)).unwrap_err().to_string();
            assert!(outside.contains("its ranks are 0 to 2"), "{way:?}: {outside}");
            Ok::<_, Error>(())
        });
        assert_eq!(report.unwrap().ranks, [Ok(()), Ok(()), Ok(())], "{way:?}");
    }
}
