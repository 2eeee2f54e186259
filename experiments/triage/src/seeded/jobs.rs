//! The jobs of seeded hangs: groups, and the program of every rank; and the faults.

use super::dice::Dice;
use crate::judge::CauseKind;
use crate::model::MessageEnd;

macro_rules! faults {
    ($($(#[$words:meta])* $name:ident,)*) => {
        /// What goes wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[$words])* $name,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$name),*];
        }
    };
}

faults! {
    /// The job runs.
    Healthy,
    /// The job has hardly begun: ranks compile before their first operation.
    SlowStart,
    /// The job runs, and a rank is late in every step.
    Slow,
    /// The rank's process is killed, and the launcher says so.
    Died,
    /// The rank's process is killed, and nobody says so; or it is stopped.
    Silent,
    /// The rank waits for data, a disk or a lock.
    Elsewhere,
    /// The rank has raised an exception, and goes on without collectives.
    Failed,
    /// The rank calls another operation.
    OtherOperation,
    /// The rank's tensor has another size.
    OtherSize,
    /// The rank's tensor has another type.
    OtherType,
    /// The rank leaves a call out.
    LeftOut,
    /// The rank makes a call more.
    Extra,
    /// The rank calls operations of two groups in the other order.
    Order,
    /// The rank does not send a message.
    MissingSend,
    /// The rank does not receive a message.
    MissingReceive,
    /// The rank made the group with one rank less.
    GroupOfOtherRanks,
    /// The rank does not begin.
    LateStart,
    /// The rank is late by more than the time-out.
    ShortTimeout,
    /// The rank's network is cut.
    Network,
    /// The host of the rank and its neighbour is lost.
    LostNode,
}

impl Fault {
    /// Its name in records.
    pub fn name(self) -> String {
        let words = format!("{self:?}");
        let split = words
            .char_indices()
            .map(|(at, c)| if at > 0 && c.is_uppercase() { format!("_{c}") } else { c.to_string() });
        split.collect::<String>().to_lowercase()
    }

    /// Whether the job does not hang.
    pub fn is_healthy(self) -> bool {
        matches!(self, Fault::Healthy | Fault::SlowStart | Fault::Slow)
    }

    /// The causes that are right: several where dumps cannot tell them apart.
    pub(super) fn causes(self) -> &'static [CauseKind] {
        match self {
            Fault::Healthy | Fault::SlowStart | Fault::Slow => &[],
            Fault::Died => &[CauseKind::Died],
            Fault::Silent => &[CauseKind::NoDump, CauseKind::Died],
            Fault::Elsewhere => &[CauseKind::Elsewhere],
            Fault::Failed => &[CauseKind::Elsewhere, CauseKind::Failed, CauseKind::Died],
            Fault::OtherOperation => &[CauseKind::OtherOperation, CauseKind::Extra],
            // An extra call is another operation, or without lines another size, until the next call shows.
            Fault::Extra => &[CauseKind::OtherOperation, CauseKind::Extra, CauseKind::OtherSize],
            Fault::OtherSize => &[CauseKind::OtherSize],
            Fault::OtherType => &[CauseKind::OtherType],
            // A rank that leaves a call out of one group calls the next group's operation first.
            Fault::LeftOut | Fault::Order => &[CauseKind::LeftOut, CauseKind::Order],
            Fault::MissingSend => &[CauseKind::MissingSend],
            Fault::MissingReceive => &[CauseKind::MissingReceive],
            Fault::GroupOfOtherRanks => &[CauseKind::GroupOfOtherRanks],
            Fault::LateStart => &[CauseKind::LateStart],
            Fault::ShortTimeout => &[CauseKind::ShortTimeout],
            Fault::Network => &[CauseKind::Network],
            Fault::LostNode => &[CauseKind::LostNode],
        }
    }
}

/// A call of a rank's program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Act {
    pub(super) group: usize,
    pub(super) name: &'static str,
    pub(super) count: u64,
    pub(super) dtype: &'static str,
    pub(super) line: u32,
    pub(super) message: Option<MessageEnd>,
}

/// A job.
pub(super) struct SeededJob {
    pub(super) name: &'static str,
    pub(super) ranks: u32,
    /// Name, description and ranks of each group.
    pub(super) groups: Vec<(String, &'static str, Vec<u32>)>,
    /// The calls of each rank in one step.
    pub(super) step: Vec<Vec<Act>>,
    /// How many steps the ranks make at most.
    pub(super) steps: usize,
    /// After so many steps all ranks evaluate the model, with a call of its own.
    pub(super) evaluates: usize,
    /// Whether ranks call operations ahead, as on GPUs; otherwise each call waits for its end.
    pub(super) ahead: bool,
    /// Whether each group has a stream of its own: operations of different groups do not wait for each other.
    pub(super) streams: bool,
}

impl SeededJob {
    /// The rank with the fault: one that has what the fault needs.
    pub(super) fn faulty(&self, dice: &mut Dice, fault: Fault) -> u32 {
        let needs = |rank: &u32| {
            let has = |wanted: fn(&MessageEnd) -> bool| {
                self.step[*rank as usize].iter().filter_map(|act| act.message).any(|m| wanted(&m))
            };
            match fault {
                Fault::MissingSend => has(|message| matches!(message, MessageEnd::SendTo(_))),
                Fault::MissingReceive => has(|message| matches!(message, MessageEnd::ReceiveFrom(_))),
                Fault::LostNode => rank.is_multiple_of(2) && rank + 1 < self.ranks,
                _ => true,
            }
        };
        let able: Vec<u32> = (0..self.ranks).filter(needs).collect();
        dice.of(&able)
    }

    /// Where a step begins in a rank's program.
    pub(super) fn begin(&self, rank: u32, step: usize) -> usize {
        step * self.step[rank as usize].len() + step / self.evaluates
    }

    /// The program of a rank.
    pub(super) fn program(&self, rank: u32) -> Vec<Act> {
        let mut acts = Vec::new();
        for step in 1..=self.steps {
            acts.extend(&self.step[rank as usize]);
            let evaluates = step.is_multiple_of(self.evaluates);
            acts.extend(evaluates.then(|| act(0, "all_gather", 12, 97)));
        }
        acts
    }
}

/// What the calls of a step depend on.
struct Shape {
    name: &'static str,
    ranks: u32,
    layers: u64,
    size: u64,
    /// The difference between the sizes of layers: many models have layers of one size.
    apart: u64,
}

/// Draws a job that can have this fault.
pub(super) fn job(dice: &mut Dice, fault: Fault) -> SeededJob {
    let name = match fault {
        Fault::MissingSend | Fault::MissingReceive => dice.of(&["pipeline", "tensor_pipeline"]),
        Fault::Order => dice.of(&["mesh", "groups", "hsdp"]),
        // A message has no end that could come late.
        Fault::ShortTimeout => dice.of(&["ddp", "fsdp", "mesh", "groups", "hsdp", "experts"]),
        _ => dice.of(&["ddp", "fsdp", "mesh", "pipeline", "groups", "hsdp", "experts", "tensor_pipeline"]),
    };
    let ranks = match name {
        "ddp" | "fsdp" | "pipeline" if fault != Fault::LostNode => {
            dice.of(&[2, 3, 4, 5, 6, 7, 8, 8, 12, 16, 24])
        }
        _ => dice.of(&[4, 6, 8, 8, 12, 16]),
    };
    // One job in sixteen is large.
    let ranks = if dice.below(16) == 0 { dice.of(&[32, 64]) } else { ranks };
    let mut groups = vec![("0".to_string(), "default_pg", (0..ranks).collect::<Vec<u32>>())];
    let mut of: Vec<Vec<usize>> = vec![Vec::new(); ranks as usize];
    for (desc, members) in parts(name, ranks) {
        members.iter().for_each(|rank| of[*rank as usize].push(groups.len()));
        groups.push((groups.len().to_string(), desc, members));
    }
    let (size, layers) = (1000 * (1 + dice.below(50)), 2 + dice.below(5));
    let shape = Shape { name, ranks, layers, size, apart: dice.of(&[0, 1, 10, 100]) };
    let step = (0..ranks).map(|rank| shape.step(rank, &of[rank as usize])).collect();
    let steps = 4 + dice.below(20) as usize;
    let ahead = !name.ends_with("pipeline") && dice.below(2) == 0;
    let streams = ahead && fault != Fault::Order && dice.below(2) == 0;
    SeededJob { name, ranks, groups, step, steps, evaluates: 3 + dice.below(8) as usize, ahead, streams }
}

/// The groups of a job beside the one of all ranks: for each rank two, or one for pipelines, in the order in which the job makes them.
fn parts(name: &str, ranks: u32) -> Vec<(&'static str, Vec<u32>)> {
    let pairs = |desc| (0..ranks / 2).map(move |row| (desc, vec![2 * row, 2 * row + 1]));
    let columns = |desc| {
        (0..2).map(move |column| (desc, (0..ranks / 2).map(|row| 2 * row + column).collect::<Vec<_>>()))
    };
    let halves =
        |desc| (0..2).map(move |half| (desc, (half * ranks / 2..(half + 1) * ranks / 2).collect::<Vec<_>>()));
    match name {
        "mesh" => pairs("mesh_tp").chain(columns("mesh_dp")).collect(),
        "tensor_pipeline" => pairs("mesh_tp").chain(columns("mesh_pp")).collect(),
        "groups" => halves("half").chain(columns("parity")).collect(),
        "hsdp" => halves("shard").chain(columns("replicate")).collect(),
        "experts" => pairs("expert").chain(columns("expert_data")).collect(),
        _ => Vec::new(),
    }
}

fn act(group: usize, name: &'static str, count: u64, line: u32) -> Act {
    Act { group, name, count, dtype: "Float", line, message: None }
}

impl Shape {
    /// The calls of a rank in one step.
    fn step(&self, rank: u32, own: &[usize]) -> Vec<Act> {
        let (layers, size) = (self.layers, |layer: u64| self.size + self.apart * layer);
        let mut acts = Vec::new();
        match self.name {
            "ddp" => acts.extend((0..layers).map(|bucket| act(0, "all_reduce", size(bucket), 40))),
            "fsdp" | "hsdp" => {
                let shard = own.first().copied().unwrap_or(0);
                acts.extend((0..layers).map(|layer| act(shard, "_all_gather_base", size(layer), 50)));
                for layer in (0..layers).rev() {
                    acts.push(act(shard, "_all_gather_base", size(layer), 60));
                    acts.push(act(shard, "_reduce_scatter_base", size(layer), 61));
                    acts.extend(own.get(1).map(|replicas| act(*replicas, "all_reduce", size(layer), 62)));
                }
            }
            "pipeline" | "tensor_pipeline" => self.microbatches(rank, own, &mut acts),
            "experts" => {
                for layer in 0..layers {
                    // How many tokens a rank sends to another differs between ranks.
                    acts.push(act(own[0], "all_to_all", size(layer) + u64::from(rank) * 7, 85));
                    acts.push(act(own[0], "all_to_all", size(layer) + u64::from(rank) * 5, 86));
                }
                acts.push(act(own[1], "all_reduce", 4 * self.size, 87));
            }
            name => {
                for layer in 0..layers {
                    acts.push(act(own[0], "all_reduce", size(layer), 80));
                    acts.extend((name == "groups").then(|| act(own[1], "all_reduce", size(layer) + 1, 81)));
                }
                acts.push(act(own[1], "all_reduce", 4 * self.size, 82));
            }
        }
        acts.push(act(0, "all_reduce", 1, 90));
        acts
    }

    /// The messages of a pipeline's rank: activations to the next stage, gradients to the one before.
    fn microbatches(&self, rank: u32, own: &[usize], acts: &mut Vec<Act>) {
        let tensor = !own.is_empty();
        let (stride, group) = if tensor { (2, own[1]) } else { (1, 0) };
        let message = |line, micro, message| {
            let name = if matches!(message, MessageEnd::SendTo(_)) { "send" } else { "recv" };
            Act { message: Some(message), ..act(group, name, self.size + self.apart * micro, line) }
        };
        let (before, after) =
            (rank.checked_sub(stride), Some(rank + stride).filter(|next| *next < self.ranks));
        for micro in 0..self.layers.min(3) {
            acts.extend(before.map(|peer| message(70, micro, MessageEnd::ReceiveFrom(peer))));
            acts.extend(tensor.then(|| act(own[0], "all_reduce", self.size, 75)));
            acts.extend(after.map(|peer| message(71, micro, MessageEnd::SendTo(peer))));
        }
        for micro in 0..self.layers.min(3) {
            acts.extend(after.map(|peer| message(72, micro, MessageEnd::ReceiveFrom(peer))));
            acts.extend(tensor.then(|| act(own[0], "all_reduce", self.size, 76)));
            acts.extend(before.map(|peer| message(73, micro, MessageEnd::SendTo(peer))));
        }
    }
}
