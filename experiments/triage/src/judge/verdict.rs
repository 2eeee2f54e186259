//! What a triage finds.

use serde::Serialize;

/// A kind of cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CauseKind {
    /// The rank's process ended.
    Died,
    /// The rank left no dump, and others wait for it.
    NoDump,
    /// Several ranks of one host left no dump.
    LostNode,
    /// The rank is in no operation: it waits or works elsewhere.
    Elsewhere,
    /// The rank has begun no operation at all.
    LateStart,
    /// The rank stopped after an error of its own.
    Failed,
    /// The rank called another operation.
    OtherOperation,
    /// The rank called the operation with another size.
    OtherSize,
    /// The rank called the operation with another type.
    OtherType,
    /// The rank left a call out, or made a later one first.
    LeftOut,
    /// The rank made a call that the others did not make.
    Extra,
    /// The rank called operations of two groups in another order.
    Order,
    /// The rank did not send a message that another rank waits for.
    MissingSend,
    /// The rank did not receive a message.
    MissingReceive,
    /// Ranks disagree about who is in the group.
    GroupOfOtherRanks,
    /// The rank came, but later than the time-out allows.
    ShortTimeout,
    /// All ranks entered the operation, and it does not end.
    Network,
}

/// Whether the job hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hung {
    /// Operations failed, or ranks wait much longer than they ever did.
    Yes,
    /// All operations have ended, or ranks wait for no longer than before.
    No,
    /// The dumps do not say for how long ranks have waited.
    Unknown,
}

/// A possible cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HangCause {
    /// What happened.
    pub kind: CauseKind,
    /// The ranks that caused it.
    pub ranks: Vec<u32>,
    /// The cause in a sentence.
    pub said: String,
    /// The evidence for it.
    pub evidence: Vec<String>,
    /// The evidence against it.
    pub against: Vec<String>,
    /// Whether the dumps leave open which rank it is.
    #[serde(skip)]
    pub(super) open: bool,
    /// How likely it is: higher is likelier.
    #[serde(skip)]
    pub(super) weight: i64,
}

impl HangCause {
    /// A cause with nothing for it and nothing against it.
    pub(super) fn new(kind: CauseKind, ranks: Vec<u32>, said: String, weight: i64) -> HangCause {
        HangCause { kind, ranks, said, evidence: Vec::new(), against: Vec::new(), open: false, weight }
    }
}

/// What a triage finds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Whether the job hangs.
    pub hung: Hung,
    /// Why that is known, in a sentence.
    pub why: String,
    /// The possible causes, most likely first.
    pub causes: Vec<HangCause>,
    /// Whether the first cause is clearly the likeliest. If not, the causes are candidates.
    pub decided: bool,
    /// What cannot be known from these dumps, and what would tell.
    pub unknown: Vec<String>,
}
