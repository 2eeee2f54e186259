//! The kind of cause that one call instead of another is.

use super::verdict::CauseKind;
use crate::model::{MessageEnd, Op, OpCall};

/// How two calls differ.
pub(super) fn differs(wrong: &OpCall, right: &OpCall) -> CauseKind {
    match () {
        () if wrong.name != right.name => CauseKind::OtherOperation,
        () if wrong.dtype != right.dtype => CauseKind::OtherType,
        () if wrong.count != right.count => CauseKind::OtherSize,
        () => CauseKind::OtherOperation,
    }
}

/// What it means that a rank called `op` where `wanted` was expected.
pub(super) fn of_wanted(op: &Op, wanted: &Op) -> CauseKind {
    match wanted.message {
        Some(MessageEnd::SendTo(_)) => CauseKind::MissingSend,
        Some(MessageEnd::ReceiveFrom(_)) => CauseKind::MissingReceive,
        None if wanted.group != op.group => CauseKind::Order,
        None => CauseKind::LeftOut,
    }
}
