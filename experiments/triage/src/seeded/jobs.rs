//! The jobs of seeded hangs: groups, and the program of every rank; and the faults.

use super::dice::Dice;
use crate::judge::CauseKind;
use crate::model::MessageEnd;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
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
    /// All of them.
    pub const ALL: [Fault; 20] = {
        use Fault::*;
        [
            Healthy,
            SlowStart,
            Slow,
            Died,
            Silent,
            Elsewhere,
            Failed,
            OtherOperation,
            OtherSize,
            OtherType,
            LeftOut,
            Extra,
            Order,
            MissingSend,
            MissingReceive,
            GroupOfOtherRanks,
            LateStart,
            ShortTimeout,
            Network,
            LostNode,
        ]
    };

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
            // An extra call is another operation until the next call shows.
            Fault::OtherOperation | Fault::Extra => &[CauseKind::OtherOperation, CauseKind::Extra],
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
    /// Whether ranks call operations ahead, as on GPUs; otherwise each call waits for its end.
    pub(super) ahead: bool,
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
}

/// Draws a job that can have this fault.
pub(super) fn job(dice: &mut Dice, fault: Fault) -> SeededJob {
    let name = match fault {
        Fault::MissingSend | Fault::MissingReceive => "pipeline",
        Fault::Order => dice.of(&["mesh", "groups"]),
        // A message has no end that could come late.
        Fault::ShortTimeout => dice.of(&["ddp", "fsdp", "mesh", "groups"]),
        _ => dice.of(&["ddp", "fsdp", "mesh", "pipeline", "groups"]),
    };
    let ranks = match name {
        "mesh" => dice.of(&[4, 6, 8]),
        "groups" => dice.of(&[4, 6, 8]),
        _ if fault == Fault::LostNode => dice.of(&[4, 6, 8]),
        "pipeline" => 3 + dice.below(4) as u32,
        _ => 3 + dice.below(6) as u32,
    };
    let mut groups = vec![("0".to_string(), "default_pg", (0..ranks).collect::<Vec<u32>>())];
    let mut add = |desc, members: Vec<u32>| {
        groups.push((groups.len().to_string(), desc, members));
        groups.len() - 1
    };
    let mut of: Vec<Vec<usize>> = vec![Vec::new(); ranks as usize];
    let mut parts: Vec<(&'static str, Vec<u32>)> = Vec::new();
    match name {
        "mesh" => {
            parts.extend((0..ranks / 2).map(|row| ("mesh_tp", vec![2 * row, 2 * row + 1])));
            parts.extend(
                (0..2).map(|column| ("mesh_dp", (0..ranks / 2).map(|row| 2 * row + column).collect())),
            );
        }
        "groups" => {
            parts.extend((0..2).map(|half| ("half", (half * ranks / 2..(half + 1) * ranks / 2).collect())));
            parts.extend((0..2).map(|odd| ("parity", (0..ranks / 2).map(|at| 2 * at + odd).collect())));
        }
        _ => {}
    }
    for (desc, members) in parts {
        let number = add(desc, members.clone());
        members.iter().for_each(|rank| of[*rank as usize].push(number));
    }
    let size = 1000 * (1 + dice.below(50));
    let layers = 2 + dice.below(5);
    let act = |group, name, count, line| Act { group, name, count, dtype: "Float", line, message: None };
    let step =
        (0..ranks).map(|rank| steps_of(name, rank, ranks, layers, size, &of[rank as usize], &act)).collect();
    let steps = 4 + dice.below(20) as usize;
    SeededJob { name, ranks, groups, step, steps, ahead: name != "pipeline" && dice.below(2) == 0 }
}

/// The calls of a rank in one step.
fn steps_of(
    name: &str,
    rank: u32,
    ranks: u32,
    layers: u64,
    size: u64,
    own: &[usize],
    act: &dyn Fn(usize, &'static str, u64, u32) -> Act,
) -> Vec<Act> {
    let mut acts = Vec::new();
    let message = |count, line, message| Act {
        message: Some(message),
        ..act(0, if matches!(message, MessageEnd::SendTo(_)) { "send" } else { "recv" }, count, line)
    };
    match name {
        "ddp" => acts.extend((0..layers).map(|bucket| act(0, "all_reduce", size + 100 * bucket, 40))),
        "fsdp" => {
            acts.extend((0..layers).map(|layer| act(0, "_all_gather_base", size + 10 * layer, 50)));
            for layer in (0..layers).rev() {
                acts.push(act(0, "_all_gather_base", size + 10 * layer, 60));
                acts.push(act(0, "_reduce_scatter_base", size + 10 * layer, 61));
            }
        }
        "pipeline" => {
            for micro in 0..layers.min(3) {
                if rank > 0 {
                    acts.push(message(size + micro, 70, MessageEnd::ReceiveFrom(rank - 1)));
                }
                if rank + 1 < ranks {
                    acts.push(message(size + micro, 71, MessageEnd::SendTo(rank + 1)));
                }
            }
            for micro in 0..layers.min(3) {
                if rank + 1 < ranks {
                    acts.push(message(size + micro, 72, MessageEnd::ReceiveFrom(rank + 1)));
                }
                if rank > 0 {
                    acts.push(message(size + micro, 73, MessageEnd::SendTo(rank - 1)));
                }
            }
        }
        _ => {
            for layer in 0..layers {
                acts.push(act(own[0], "all_reduce", size + 10 * layer, 80));
                if name == "groups" {
                    acts.push(act(own[1], "all_reduce", size + 10 * layer + 1, 81));
                }
            }
            acts.push(act(own[1], "all_reduce", 4 * size, 82));
        }
    }
    acts.push(act(0, "all_reduce", 1, 90));
    acts
}
