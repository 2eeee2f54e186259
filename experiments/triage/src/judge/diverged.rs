//! Operations in which ranks made different calls, and which of the ranks left the pattern of its earlier calls.

use super::kinds::{differs, of_wanted};
use super::lanes::Lanes;
use super::order::{Breaks, expected, is_expected};
use super::verdict::CauseKind;
use crate::model::{MessageEnd, Op, OpCall};
use std::collections::BTreeMap;

/// An operation in which ranks made different calls.
pub(super) struct Diverged {
    pub(super) group: u32,
    pub(super) sequence: u64,
    /// The ranks that made another call than expected, each with its part by number in its log.
    pub(super) culprits: Vec<(u32, u32)>,
    /// A rank that made the expected call, and its part.
    pub(super) right: (u32, u32),
    pub(super) kind: CauseKind,
    /// Whether it is clear which of the calls is the wrong one.
    pub(super) clear: bool,
}

/// The first operation of each group in which ranks diverged and stayed apart.
pub(super) fn diverged(lanes: &Lanes<'_>, breaks: &Breaks) -> Vec<Diverged> {
    let groups = lanes.groups().filter_map(|(group, lane)| first(lanes, group, lane));
    groups.chain(messages(lanes, breaks)).collect()
}

fn first(lanes: &Lanes<'_>, group: u32, lane: &BTreeMap<u32, Vec<u32>>) -> Option<Diverged> {
    let ends = lane.iter().filter_map(|(rank, ops)| Some(lanes.op(*rank, *ops.last()?)?.sequence));
    let last_common = ends.min()?;
    let mut by_line = None;
    for (next, parts) in lanes.operations(group) {
        let differ = |of: &dyn Fn(&Op) -> u32| {
            let mut all = parts.iter().filter_map(|(rank, number)| lanes.op(*rank, *number)).map(of);
            all.next().is_some_and(|first| all.any(|other| other != first))
        };
        // Ranks that all ended the operation well, and agree later, may differ in what is no fault.
        let open = parts.iter().any(|(rank, number)| lanes.op(*rank, *number).is_some_and(Op::is_open));
        let stays = |found: &Diverged| {
            let part = |rank: u32| {
                let number = lanes.part(group, rank, last_common)?;
                lanes.op(rank, number).map(|op| (op.call, op.place))
            };
            let apart = || found.culprits.iter().any(|(rank, _)| part(*rank) != part(found.right.0));
            // Other recorders than NCCL's take an operation for ended whose parts do not fit.
            let misfit = found.clear && matches!(found.kind, CauseKind::OtherType | CauseKind::OtherSize);
            let even = |op: &Op| {
                let of = |call: &OpCall| ["all_reduce", "broadcast"].iter().any(|name| call.name == *name);
                lanes.job.calls.get(op.call).is_some_and(of)
            };
            let misfit = misfit && lanes.op(found.right.0, found.right.1).is_some_and(even);
            open || next >= last_common || misfit || apart()
        };
        if differ(&|op| op.call) {
            let found = judged(lanes, group, next, &parts, true).filter(&stays);
            if found.is_some() {
                return found;
            }
        } else if by_line.is_none() && differ(&|op| op.place) {
            // Ranks may make one call at different lines: that counts if some left their pattern there, and never came back to it.
            by_line = judged(lanes, group, next, &parts, false)
                .filter(|found| found.clear && next < last_common && stays(found));
        }
    }
    by_line
}

/// Who of the ranks with these parts made the wrong call.
fn judged(
    lanes: &Lanes<'_>,
    group: u32,
    sequence: u64,
    parts: &[(u32, u32)],
    calls: bool,
) -> Option<Diverged> {
    let op = |(rank, number): &(u32, u32)| lanes.op(*rank, *number);
    let usual =
        |(rank, number): &(u32, u32)| lanes.job.logs.get(rank).and_then(|log| is_expected(log, *number));
    let off: Vec<_> = parts.iter().filter(|part| usual(part) == Some(false)).copied().collect();
    let on: Vec<_> = parts.iter().filter(|part| usual(part) == Some(true)).copied().collect();
    let call = |part: &(u32, u32)| op(part).map_or(0, |op| op.call);
    let (culprits, right, clear) = match (on.first(), off.is_empty()) {
        (Some(right), false) => {
            let culprits: Vec<_> =
                off.into_iter().filter(|part| !calls || call(part) != call(right)).collect();
            (culprits, *right, true)
        }
        _ if calls => {
            let mut classes: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
            parts.iter().for_each(|part| classes.entry(call(part)).or_default().push(*part));
            // A call that no rank has made before is the wrong one, if the other has been made.
            let known = |call: &u32| is_known(lanes, group, sequence, *call);
            let old: Vec<u32> = classes.keys().copied().filter(known).collect();
            if let Some(right) = parts.iter().find(|part| old.contains(&call(part)))
                && old.len() < classes.len()
            {
                let new: Vec<_> = parts.iter().copied().filter(|part| !old.contains(&call(part))).collect();
                let kind = kind(lanes, group, sequence, *new.first()?, *right)?;
                return Some(Diverged { group, sequence, culprits: new, right: *right, kind, clear: true });
            }
            let mut classes: Vec<_> = classes.into_values().collect();
            classes.sort_by_key(|class| std::cmp::Reverse(class.len()));
            let clear = classes.len() > 1 && classes[0].len() > classes[1].len();
            let right = *classes.first()?.first()?;
            (classes.into_iter().skip(1).flatten().collect(), right, clear)
        }
        _ => return None,
    };
    let wrong = *culprits.first()?;
    let kind = kind(lanes, group, sequence, wrong, right)?;
    Some(Diverged { group, sequence, culprits, right, kind, clear })
}

/// Whether a rank has made a call as another operation of the group or of a like group.
fn is_known(lanes: &Lanes<'_>, group: u32, sequence: u64, call: u32) -> bool {
    let name = |group: u32| lanes.job.groups.get(group as usize).map(|group| &group.name);
    let mut all = lanes.job.logs.values().flat_map(|log| &log.ops);
    all.any(|op| {
        op.call == call && name(op.group) == name(group) && (op.group, op.sequence) != (group, sequence)
    })
}

/// How a wrong call differs from the right one.
fn kind(
    lanes: &Lanes<'_>,
    group: u32,
    sequence: u64,
    wrong: (u32, u32),
    right: (u32, u32),
) -> Option<CauseKind> {
    let like = |(rank, number): (u32, u32)| lanes.op(rank, number).map(|op| (op.call, op.place));
    let (wrong_op, right_op) = (lanes.op(wrong.0, wrong.1)?, lanes.op(right.0, right.1)?);
    let call = |op: &Op| lanes.job.calls.get(op.call);
    let (elsewhere, differs) = (
        wrong_op.place != right_op.place && wrong_op.place > 0 && right_op.place > 0,
        differs(call(wrong_op)?, call(right_op)?),
    );
    // Another tensor in the same line, and not one that the line has elsewhere.
    let same_line = wrong_op.place == right_op.place && wrong_op.place > 0;
    if same_line && differs != CauseKind::OtherOperation && !is_known(lanes, group, sequence, wrong_op.call) {
        return Some(differs);
    }
    let after = |rank: u32| lanes.part(group, rank, sequence + 1).map(|number| (rank, number));
    let log = lanes.job.logs.get(&right.0)?;
    // What the right rank calls next in the group, or would call by its pattern.
    let next = after(right.0).and_then(like).or_else(|| {
        let from = expected(log, right.1 as usize + 1)?;
        log.ops[from..]
            .iter()
            .find(|op| op.group == group && op.message.is_none())
            .map(|op| (op.call, op.place))
    });
    if next.is_some() && next == like(wrong) && like(wrong) != like(right) {
        return Some(CauseKind::LeftOut);
    }
    if after(wrong.0).and_then(like) == like(right) {
        return Some(CauseKind::Extra);
    }
    Some(if elsewhere { CauseKind::OtherOperation } else { differs })
}

/// Messages whose two ends have different sizes.
fn messages(lanes: &Lanes<'_>, breaks: &Breaks) -> Option<Diverged> {
    let whole = lanes.job.logs.iter().filter(|(_, log)| log.whole);
    let mut sends = BTreeMap::new();
    let mut receives = Vec::new();
    for (rank, log) in whole {
        for (number, op) in (0..).zip(&log.ops) {
            match op.message {
                Some(MessageEnd::SendTo(peer)) => {
                    sends.insert((*rank, peer, op.group, op.sequence), (*rank, number));
                }
                Some(MessageEnd::ReceiveFrom(peer)) => {
                    receives.push(((peer, *rank, op.group, op.sequence), (*rank, number)))
                }
                None => {}
            }
        }
    }
    let call =
        |(rank, number): (u32, u32)| lanes.op(rank, number).and_then(|op| lanes.job.calls.get(op.call));
    // The end whose rank broke the order of its calls before left a message out, or called the wrong size.
    let broke = |(rank, number): (u32, u32)| breaks.get(&rank).filter(|(at, _)| *at <= number as usize);
    receives.into_iter().find_map(|(key, receive)| {
        let send = *sends.get(&key)?;
        let (sent, got) = (call(send)?, call(receive)?);
        // PyTorch's hook writes no type of a receive.
        if sent.count == got.count && (sent.dtype == got.dtype || got.dtype.is_empty()) {
            return None;
        }
        let (wrong, right) = if broke(receive).is_some() { (receive, send) } else { (send, receive) };
        let found = broke(wrong).filter(|_| broke(right).is_none());
        let (mut kind, mut culprit) = (CauseKind::OtherSize, wrong);
        if let Some((at, wanted)) = found
            && let Some(log) = lanes.job.logs.get(&wrong.0)
        {
            kind = of_wanted(&log.ops[*at], &log.ops[*wanted]);
            culprit = (wrong.0, *at as u32);
        }
        let clear = found.is_some();
        Some(Diverged { group: key.2, sequence: key.3, culprits: vec![culprit], right, kind, clear })
    })
}
