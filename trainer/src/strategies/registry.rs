//! The strategies by name: what each is, which ranks and configurations it takes, and how it is built.

use super::data_parallel::DataParallel;
use super::ddp::Ddp;
use super::driver::{DataSharing, Driver};
use super::parameter_server;
use super::pipeline::PipelineDriver;
use super::plain::Plain;
use super::replicated::Replicated;
use super::single::Single;
use super::zero1::Zero1;
use super::zero2::Zero2;
use super::zero3::Zero3;
use crate::added::{Added, Named};
use crate::engine::{Mesh, MeshAxis, ServingRole};
use crate::unknown::unknown;
use crate::{Config, Error, Result, shares};
use allfold_config::StageSharing;
use std::collections::BTreeMap;

/// The names by which a configuration asks for a strategy.
pub const STRATEGIES: &[(&str, &str)] = &[
    ("single", "one rank, nothing to exchange"),
    ("ddp", "every rank holds the model; gradients are averaged in buckets while backward goes on"),
    ("data_parallel", "the first rank has batch, loss and optimiser; the others compute for it"),
    ("parameter_server", "servers hold weights and optimiser; workers fetch weights and send gradients"),
    ("zero1", "every rank holds the model and a part of the optimiser state"),
    ("zero2", "every rank holds the model and a part of gradients and optimiser state"),
    ("zero3", "every rank holds a part of weights, gradients and optimiser state"),
    ("pipeline", "every stage holds some of the layers; micro-batches pass through all of them"),
    ("tensor", "every rank holds a part of each layer; ranks sum activations"),
    ("context", "every rank computes some positions of each sample; keys and values go round a ring"),
    ("expert", "every rank holds some of the experts; tokens go to their experts' ranks and back"),
];

/// A strategy for `strategy = "NAME"`, on the CPU.
#[derive(Clone, Copy, Debug)]
pub struct OwnStrategy {
    /// The name by which a configuration asks for the strategy.
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

/// Names that PyTorch's users know strategies by, and the names here.
const OF_PYTORCH: [(&str, &str); 5] = [
    ("fsdp", "zero3"),
    ("fsdp2", "zero3"),
    ("fully_shard", "zero3"),
    ("dp", "data_parallel"),
    ("dataparallel", "data_parallel"),
];

/// Whether there is a strategy of this name.
///
/// # Errors
/// There is none: the error names the nearest, or what PyTorch's name stands for.
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

/// Whether the strategy of `config` takes all keys of data-parallel training.
fn takes_all_keys(config: &Config) -> bool {
    matches!(config.strategy.as_str(), "single" | "ddp")
}

/// The mesh of `ranks` ranks.
///
/// # Errors
/// If the ranks do not divide evenly among stages, servers or the other axes.
pub(crate) fn mesh(config: &Config, ranks: u32) -> Result<Mesh> {
    if let Some(own) = ADDED.find(&config.strategy) {
        return Ok((own.plan)(config, 0, ranks)?.mesh);
    }
    let tensor = match (config.parallel.tensor, config.strategy.as_str()) {
        (0, "tensor") => ranks as usize,
        (given, _) => given.max(1),
    };
    let mesh = match config.strategy.as_str() {
        "pipeline" => Mesh::of_stages(config.parallel.stages, tensor, ranks)?,
        "parameter_server" => {
            parameter_server::fits(config, ranks)?;
            Mesh::of_servers(config.parallel.servers, ranks)
        }
        _ => Mesh::of_data(tensor, ranks)?,
    };
    let context = match (config.parallel.context, config.strategy.as_str()) {
        (0, "context") => mesh.data,
        (given, _) => given.max(1),
    };
    let mesh = mesh.sharing_positions(context)?;
    let expert = match (config.parallel.expert, config.strategy.as_str()) {
        (0, "expert") => mesh.data,
        (given, _) => given.max(1),
    };
    Ok(mesh.sharing_experts(expert)?.sharded(config.parallel.shard)?)
}

/// The sizes of the axes along which `ranks` ranks divide the work of `config`: `data`, `server` if there are servers, and others
/// of size 2 or more. The product of the sizes, without `server`, plus the number of servers is `ranks`.
///
/// # Errors
/// What [`fits`] refuses.
pub fn axes(config: &Config, ranks: u32) -> Result<BTreeMap<&'static str, u32>> {
    fits(config, ranks)?;
    let mesh = mesh(config, ranks)?;
    let sizes = [
        ("data", mesh.data / mesh.context / mesh.expert),
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
/// What it does not take, and what would be right.
pub fn fits(config: &Config, ranks: u32) -> Result<()> {
    if config.strategy == "single" && ranks > 1 {
        return Err(Error::Config(format!(
            "strategy `single` trains on 1 rank and there are {ranks}; use `ddp`"
        )));
    }
    shares_work(config, ranks)?;
    shares::fits(config, &mesh(config, ranks)?)?;
    config.check_devices(ranks)?;
    if takes_all_keys(config) {
        return Ok(());
    }
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
    let shards = config.strategy.starts_with("zero")
        || takes_sharding(config) && config.parallel.sharding != StageSharing::Ddp;
    if !shards && config.parallel.shard != 0 {
        return Err(Error::Config(format!(
            "`parallel.shard` is for strategies that shard, and `{name}` keeps everything whole; leave it out, or use zero1, \
             zero2 or zero3"
        )));
    }
    if config.strategy == "parameter_server" && config.parallel.servers > 1 && config.optimiser.name == "lars"
    {
        return Err(Error::Config(
            "optimiser `lars` needs the norm of each whole parameter, and servers that have parts of it do not step together; use \
             `parallel.servers` 1, or another optimiser"
                .into(),
        ));
    }
    super::pipeline::fits(config, mesh(config, ranks)?)
}

/// Whether the strategy uses the key `parallel.sharding`.
fn takes_sharding(config: &Config) -> bool {
    matches!(config.strategy.as_str(), "pipeline" | "tensor" | "context" | "expert")
}

/// Checks that the strategy allows the sharing of layers, positions or experts that `config` asks for.
fn shares_work(config: &Config, ranks: u32) -> Result<()> {
    let whole =
        takes_all_keys(config) || ["data_parallel", "parameter_server"].contains(&config.strategy.as_str());
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
    if parallel.sequence_parallel && mesh.tensor == 1 && config.strategy != "tensor" {
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
    let plain = |sharing: Box<dyn DataSharing>| -> (usize, Box<dyn Driver>) {
        (0, Box::new(Plain { sharing, micro_batches: config.training.accumulate }))
    };
    let (channels, driver) = match config.strategy.as_str() {
        "single" => plain(Box::new(Single)),
        "ddp" => plain(Box::new(Ddp::new(config))),
        "data_parallel" => (1, Box::new(DataParallel) as Box<dyn Driver>),
        "parameter_server" => {
            let server = mesh.is_server(rank).then_some(rank);
            let role = ServingRole { servers: mesh.servers, workers: mesh.data, server };
            (0, parameter_server::driver(config, role))
        }
        "tensor" | "context" | "expert" => plain(sharing(config, config.parallel.sharding)),
        "zero1" => plain(sharing(config, StageSharing::Zero1)),
        "zero2" => plain(sharing(config, StageSharing::Zero2)),
        "zero3" => plain(sharing(config, StageSharing::Zero3)),
        _ => {
            let stage = mesh.position(rank, MeshAxis::Pipeline);
            let pipeline = PipelineDriver::new(config, stage, sharing(config, config.parallel.sharding))?;
            (pipeline.channels(), Box::new(pipeline) as Box<dyn Driver>)
        }
    };
    Ok(EnginePlan { mesh, channels, driver })
}

fn sharing(config: &Config, kind: StageSharing) -> Box<dyn DataSharing> {
    match kind {
        StageSharing::Ddp => Box::new(Replicated::default()),
        StageSharing::Zero1 => Box::new(Zero1::default()),
        StageSharing::Zero2 => Box::new(Zero2::default()),
        StageSharing::Zero3 => Box::new(Zero3::new(config.parallel.reshard_after_forward)),
    }
}
