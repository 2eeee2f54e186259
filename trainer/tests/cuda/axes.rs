//! The communicators of NCCL that a mesh takes: the axes share the resources of one.

use crate::ways::by;
use crate::{assert_near, run, sentences};
use allfold_collectives::World;
use allfold_cuda::CudaMachine;
use allfold_gpu::nccl::{NcclCommunicators, communicators};
use allfold_standin::{Shim, ShimOptions};
use allfold_trainer::{Config, train_with};
use std::sync::Arc;

/// Regression: each group of ranks joined a communicator of its own. The stand-in runs the kernels of communicators that share resources
/// in the order of the calls, so that ranks with other orders would wait for each other.
#[test]
fn the_axes_of_a_mesh_share_the_resources_of_one_communicator() {
    let data = (sentences(16, 9, 11), sentences(5, 9, 11));
    let gpt = Config::default().with(|c| {
        c.model.name = "gpt".into();
        c.model.layers = 2;
        c.model.width = 32;
        c.model.heads = 2;
        c.training.batch = 4;
        c.training.max_steps = 2;
        c.optimiser.clip_norm = 0.05;
    });
    for (strategy, messages, axes) in [("tensor", 0, 2), ("zero3", 0, 2), ("pipeline", 2, 2)] {
        let mut config = gpt.clone().with(|c| c.strategy = strategy.into());
        config.parallel.tensor = 2;
        if strategy == "pipeline" {
            (config.training.accumulate, config.parallel.stages) = (2, 2);
        }
        let cpu = run(&config, &data, 4, false).remove(0);
        let machine: Arc<dyn CudaMachine> =
            Shim::with(ShimOptions { devices: 4, ..ShimOptions::default() }).unwrap();
        let config = by("nccl", &config);
        let body = |comm| train_with(&config, &data.0, &data.1, &comm, Some(machine.clone()), &mut ());
        let ran = World::threads(4).run(body).unwrap();
        assert_near(&cpu, &ran[0], 5e-5);
        // Each rank joins that of all ranks, those of messages and that of the tied weights, and has a part of each axis.
        let tied = usize::from(strategy == "pipeline");
        let made = NcclCommunicators { joined: 4 * (1 + messages + tied), separate: 0, shared: 4 * axes };
        assert_eq!(communicators(&machine), made, "{strategy}");
    }
}
