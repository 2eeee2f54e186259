//! The table of strategies: what each is, what it takes, and how it is built.

use super::data_parallel::DataParallel;
use super::ddp::Ddp;
use super::driver::{DataSharing, Driver};
use super::parameter_server;
use super::pipeline::{self, PipelineDriver};
use super::plain::Plain;
use super::replicated::Replicated;
use super::single::Single;
use super::zero1::Zero1;
use super::zero2::Zero2;
use super::zero3::Zero3;
use crate::engine::{Mesh, MeshAxis, ServingRole};
use crate::unknown::unknown;
use crate::{Config, Result};
use allfold_config::StageSharing;

/// What the ranks divide in addition to samples, even if the key of `[parallel]` for it is not set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Divides {
    Samples,
    Stages,
    Servers,
    Layers,
    Positions,
    Experts,
}

/// Whether ranks keep parts of what they update.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shards {
    Never,
    /// By the key `parallel.sharding`.
    ByKey,
    Always,
}

/// The number of communicators that carry messages, and the driver.
type Built = (usize, Box<dyn Driver>);

/// A strategy: what it is, what it takes, and how it is built.
pub(super) struct StrategyRow {
    pub name: &'static str,
    pub about: &'static str,
    pub divides: Divides,
    pub shards: Shards,
    /// Whether the strategy is for one rank alone.
    pub one_rank: bool,
    /// Whether the strategy takes all keys of data-parallel training.
    pub all_keys: bool,
    /// Whether every rank has whole layers, positions and experts, whatever the keys say.
    pub whole: bool,
    /// Refuses what this strategy alone does not take.
    pub fits: fn(&Config, Mesh) -> Result<()>,
    /// Builds the driver of one rank (the last argument) of a mesh.
    pub build: fn(&Config, Mesh, usize) -> Result<Built>,
}

/// A strategy without a row, such as one that a program added.
const NO_ROW: StrategyRow = StrategyRow {
    name: "",
    about: "",
    divides: Divides::Samples,
    shards: Shards::Never,
    one_rank: false,
    all_keys: false,
    whole: false,
    fits: |_, _| Ok(()),
    build: |config, _, _| {
        Err(unknown("strategy", &config.strategy, STRATEGIES.iter().map(|(name, _)| *name)))
    },
};

const TABLE: [StrategyRow; 11] = [
    StrategyRow {
        name: "single",
        about: "one rank, nothing to exchange",
        one_rank: true,
        all_keys: true,
        whole: true,
        build: |config, _, _| plain(config, Box::new(Single)),
        ..NO_ROW
    },
    StrategyRow {
        name: "ddp",
        about: "every rank holds the model; gradients are averaged in buckets while backward goes on",
        all_keys: true,
        whole: true,
        build: |config, _, _| plain(config, Box::new(Ddp::new(config))),
        ..NO_ROW
    },
    StrategyRow {
        name: "data_parallel",
        about: "the first rank has batch, loss and optimiser; the others compute for it",
        whole: true,
        build: |_, _, _| Ok((1, Box::new(DataParallel))),
        ..NO_ROW
    },
    StrategyRow {
        name: "parameter_server",
        about: "servers hold weights and optimiser; workers fetch weights and send gradients",
        divides: Divides::Servers,
        whole: true,
        fits: |config, _| parameter_server::fits_optimiser(config),
        build: |config, mesh, rank| {
            let server = mesh.is_server(rank).then_some(rank);
            let role = ServingRole { servers: mesh.servers, workers: mesh.data, server };
            Ok((0, parameter_server::driver(config, role)))
        },
        ..NO_ROW
    },
    StrategyRow {
        name: "zero1",
        about: "every rank holds the model and a part of the optimiser state",
        shards: Shards::Always,
        build: |config, _, _| plain(config, sharing(config, StageSharing::Zero1)),
        ..NO_ROW
    },
    StrategyRow {
        name: "zero2",
        about: "every rank holds the model and a part of gradients and optimiser state",
        shards: Shards::Always,
        build: |config, _, _| plain(config, sharing(config, StageSharing::Zero2)),
        ..NO_ROW
    },
    StrategyRow {
        name: "zero3",
        about: "every rank holds a part of weights, gradients and optimiser state",
        shards: Shards::Always,
        build: |config, _, _| plain(config, sharing(config, StageSharing::Zero3)),
        ..NO_ROW
    },
    StrategyRow {
        name: "pipeline",
        about: "every stage holds some of the layers; micro-batches pass through all of them",
        divides: Divides::Stages,
        shards: Shards::ByKey,
        fits: pipeline::fits,
        build: |config, mesh, rank| {
            let stage = mesh.position(rank, MeshAxis::Pipeline);
            let driver = PipelineDriver::new(config, stage, sharing(config, config.parallel.sharding))?;
            Ok((driver.channels(), Box::new(driver)))
        },
        ..NO_ROW
    },
    StrategyRow {
        name: "tensor",
        about: "every rank holds a part of each layer; ranks sum activations",
        divides: Divides::Layers,
        ..BY_KEY
    },
    StrategyRow {
        name: "context",
        about: "every rank computes some positions of each sample; keys and values go round a ring",
        divides: Divides::Positions,
        ..BY_KEY
    },
    StrategyRow {
        name: "expert",
        about: "every rank holds some of the experts; tokens go to their experts' ranks and back",
        divides: Divides::Experts,
        ..BY_KEY
    },
];

/// A strategy whose ranks keep whole what they update, or parts of it by `parallel.sharding`.
const BY_KEY: StrategyRow = StrategyRow {
    shards: Shards::ByKey,
    build: |config, _, _| plain(config, sharing(config, config.parallel.sharding)),
    ..NO_ROW
};

const fn names_of<const N: usize>(table: &[StrategyRow; N]) -> [(&'static str, &'static str); N] {
    let (mut names, mut at) = ([("", ""); N], 0);
    while at < N {
        names[at] = (table[at].name, table[at].about);
        at += 1;
    }
    names
}

/// The names by which a configuration selects a strategy, each with a description.
pub const STRATEGIES: &[(&str, &str)] = &names_of(&TABLE);

/// The row of the strategy of `config`.
pub(super) fn row(config: &Config) -> &'static StrategyRow {
    static ROWS: [StrategyRow; 11] = TABLE;
    static OTHER: StrategyRow = NO_ROW;
    ROWS.iter().find(|row| row.name == config.strategy).unwrap_or(&OTHER)
}

/// Every rank runs every layer that it has, one micro-batch after another.
fn plain(config: &Config, sharing: Box<dyn DataSharing>) -> Result<Built> {
    Ok((0, Box::new(Plain { sharing, micro_batches: config.training.accumulate })))
}

fn sharing(config: &Config, kind: StageSharing) -> Box<dyn DataSharing> {
    match kind {
        StageSharing::Ddp => Box::new(Replicated::default()),
        StageSharing::Zero1 => Box::new(Zero1::default()),
        StageSharing::Zero2 => Box::new(Zero2::default()),
        StageSharing::Zero3 => Box::new(Zero3::new(config.parallel.reshard_after_forward)),
    }
}
