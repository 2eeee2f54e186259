//! The strategies by name: which ranks and configurations each takes, and the plan of a rank.

use super::driver::Driver;
use super::parameter_server;
use super::table::{Divides, STRATEGIES, Shards, StrategyRow, row};
use crate::added::{Added, Named};
use crate::engine::Mesh;
use crate::unknown::unknown;
use crate::{Config, Error, Result, shares};
use allfold_config::StageSharing;
use std::collections::BTreeMap;

/// A strategy for `strategy = "NAME"`, on the CPU.
#[derive(Clone, Copy, Debug)]
pub struct OwnStrategy {
    /// The name by which a configuration selects the strategy.
    pub name: &'static str,
    /// A description of the strategy in a few words.
    pub about: &'static str,
    /// The plan of one rank (the second argument) of all ranks (the third); an error if the strategy cannot be used so.
    pub plan: fn(&Config, usize, u32) -> Result<EnginePlan>,
}

impl Named for OwnStrategy {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// The strategies that the program added.
pub(crate) static ADDED: Added<OwnStrategy> = Added::to("strategy", STRATEGIES);

/// The names of all strategies, own ones included.
pub fn names() -> impl Iterator<Item = &'static str> {
    ADDED.names()
}

/// PyTorch's names of strategies, and the names here.
const OF_PYTORCH: [(&str, &str); 11] = [
    ("zero", "zero1`, `zero2` or `zero3"),
    ("deepspeed", "zero1`, `zero2` or `zero3"),
    ("pp", "pipeline"),
    ("tp", "tensor"),
    ("cp", "context"),
    ("ep", "expert"),
    ("fsdp", "zero3"),
    ("fsdp2", "zero3"),
    ("fully_shard", "zero3"),
    ("dp", "data_parallel"),
    ("dataparallel", "data_parallel"),
];

/// Whether there is a strategy of this name.
///
/// # Errors
/// There is no such strategy: the error gives the nearest name, or the name here for a name of PyTorch.
pub fn check_name(name: &str) -> Result<()> {
    if names().any(|known| known == name) {
        return Ok(());
    }
    match OF_PYTORCH.iter().find(|(theirs, _)| *theirs == name.to_lowercase()) {
        Some((_, ours)) => {
            Err(Error::Config(format!("unknown strategy `{name}`; here it is called `{ours}`")))
        }
        None => Err(unknown("strategy", name, names())),
    }
}

/// The mesh of `ranks` ranks.
///
/// # Errors
/// If the ranks do not divide evenly among stages, servers or the other axes.
pub(crate) fn mesh(config: &Config, ranks: u32) -> Result<Mesh> {
    if let Some(own) = ADDED.find(&config.strategy) {
        return Ok((own.plan)(config, 0, ranks)?.mesh);
    }
    let divides = row(config).divides;
    let size = |given: usize, what: Divides, all: usize| match given {
        0 if divides == what => all,
        given => given.max(1),
    };
    let tensor = size(config.parallel.tensor, Divides::Layers, ranks as usize);
    let mesh = match divides {
        Divides::Stages => Mesh::of_stages(config.parallel.stages, tensor, ranks)?,
        Divides::Servers => {
            parameter_server::fits(config, ranks)?;
            Mesh::of_servers(config.parallel.servers, ranks)
        }
        _ => Mesh::of_data(tensor, ranks)?,
    };
    let mesh = mesh.sharing_positions(size(config.parallel.context, Divides::Positions, mesh.data))?;
    let expert = size(config.parallel.expert, Divides::Experts, mesh.data);
    Ok(mesh.sharing_experts(expert)?.sharded(config.parallel.shard)?)
}

/// The sizes of the axes along which `ranks` ranks divide the work of `config`: `data`, `server` if there are servers, and others (`shard`
/// if a copy of the weights is cut over a part of the ranks)
/// of size 2 or more. The product of the sizes, without `server`, plus the number of servers is `ranks`.
///
/// # Errors
/// What [`fits`] refuses.
pub fn axes(config: &Config, ranks: u32) -> Result<BTreeMap<&'static str, u32>> {
    fits(config, ranks)?;
    let mesh = mesh(config, ranks)?;
    // The ranks of a shard are neighbours of the data axis, whose other ranks hold copies.
    let shard = if mesh.shard < mesh.data && mesh.context * mesh.expert == 1 { mesh.shard } else { 1 };
    let sizes = [
        ("data", mesh.data / shard / mesh.context / mesh.expert),
        ("shard", shard),
        ("context", mesh.context),
        ("expert", mesh.expert),
        ("pipeline", mesh.pipeline),
        ("tensor", mesh.tensor),
        ("server", mesh.servers),
    ];
    let named =
        sizes.into_iter().filter(|(name, size)| *size > usize::from(!["data", "server"].contains(name)));
    Ok(named.map(|(name, size)| (name, size as u32)).collect())
}

/// Checks that the strategy of `config` takes this number of ranks and the other keys.
///
/// # Errors
/// What the strategy does not take, and what would be right.
pub fn fits(config: &Config, ranks: u32) -> Result<()> {
    let (row, name) = (row(config), &config.strategy);
    if row.one_rank && ranks > 1 {
        return Err(Error::Config(format!(
            "strategy `{name}` trains on 1 rank and there are {ranks}; use `ddp`"
        )));
    }
    shares_work(config, ranks)?;
    let mesh = mesh(config, ranks)?;
    shares::fits(config, &mesh)?;
    config.check_devices(ranks)?;
    if !row.all_keys {
        takes_keys(config)?;
    }
    (row.fits)(config, mesh)
}

/// Checks the keys of data-parallel training and of sharding for a strategy that does not take all of them.
fn takes_keys(config: &Config) -> Result<()> {
    let name = &config.strategy;
    let refused = [
        (config.ddp.hook != "none", "`ddp.hook`", "none"),
        (!config.ddp.groups.is_empty(), "`ddp.groups`", "empty"),
        (config.ddp.find_unused, "`ddp.find_unused`", "false"),
        (config.ddp.static_graph, "`ddp.static_graph`", "false"),
        (config.ddp.broadcast_buffers, "`ddp.broadcast_buffers`", "false"),
        (config.data.uneven, "`data.uneven`", "false"),
    ];
    if let Some((_, key, right)) = refused.iter().find(|(wrong, ..)| *wrong) {
        return Err(Error::Config(format!(
            "strategy `{name}` needs {key} to be {right}; `ddp` takes other values"
        )));
    }
    let shards = match row(config).shards {
        Shards::Never => false,
        Shards::ByKey => config.parallel.sharding != StageSharing::Ddp,
        Shards::Always => true,
    };
    if !shards && config.parallel.shard != 0 {
        return Err(Error::Config(format!(
            "`parallel.shard` is for strategies that shard, and `{name}` keeps everything whole; leave it out, or use zero1, \
             zero2 or zero3"
        )));
    }
    Ok(())
}

/// Checks that the strategy allows the sharing of layers, positions or experts that `config` requests.
fn shares_work(config: &Config, ranks: u32) -> Result<()> {
    let StrategyRow { whole, divides, .. } = *row(config);
    let parallel = &config.parallel;
    let keys = [
        ("tensor", parallel.tensor, "layers"),
        ("context", parallel.context, "positions"),
        ("expert", parallel.expert, "mixtures of experts"),
    ];
    if let Some((key, given, what)) = keys.into_iter().find(|(_, given, _)| whole && *given > 1) {
        return Err(Error::Config(format!(
            "`parallel.{key}` is {given}, and strategy `{}` gives every rank whole {what}; use `{key}`, `pipeline`, `zero1`, `zero2` \
             or `zero3`",
            config.strategy
        )));
    }
    let mesh = mesh(config, ranks)?;
    if parallel.sequence_parallel && mesh.tensor == 1 && divides != Divides::Layers {
        return Err(Error::Config(format!(
            "`parallel.sequence_parallel` is for ranks that share layers, and with strategy `{}` none do here; use `tensor`, or \
             `parallel.tensor` 2 or more, or leave it out",
            config.strategy
        )));
    }
    if mesh.tensor > 1 && mesh.context > 1 {
        return Err(Error::Config(format!(
            "ranks that share layers (`parallel.tensor` {}) cannot share positions too (`parallel.context` {}); use one of the two",
            mesh.tensor, mesh.context
        )));
    }
    let other = [("tensor", mesh.tensor, "layers"), ("context", mesh.context, "positions")];
    if let Some((key, size, what)) = other.into_iter().find(|(_, size, _)| *size > 1 && mesh.expert > 1) {
        return Err(Error::Config(format!(
            "ranks that share experts (`parallel.expert` {}) cannot share {what} too (`parallel.{key}` {size}); use one of the two",
            mesh.expert
        )));
    }
    if mesh.expert > 1 && parallel.shard != 0 {
        return Err(Error::Config(format!(
            "`parallel.shard` is {} and `parallel.expert` {}: ranks with the same experts are no neighbours; leave `parallel.shard` out",
            parallel.shard, mesh.expert
        )));
    }
    Ok(())
}

/// The mesh, the channels and the driver of a strategy of the engine.
pub struct EnginePlan {
    /// The axes along which the ranks are arranged.
    pub mesh: Mesh,
    /// The number of communicators that carry messages.
    pub channels: usize,
    /// The driver that owns the step.
    pub driver: Box<dyn Driver>,
}

/// The plan of `config` for one of `ranks` ranks.
///
/// # Errors
/// What [`fits`] refuses.
pub fn plan(config: &Config, rank: usize, ranks: u32) -> Result<EnginePlan> {
    fits(config, ranks)?;
    if let Some(own) = ADDED.find(&config.strategy) {
        return (own.plan)(config, rank, ranks);
    }
    let mesh = mesh(config, ranks)?;
    let (channels, driver) = (row(config).build)(config, mesh, rank)?;
    Ok(EnginePlan { mesh, channels, driver })
}
