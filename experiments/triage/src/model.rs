//! The model of a job, which every kind of dump is read into: groups of ranks, and each rank's operations in the order of its calls.

use std::collections::BTreeMap;
use std::fmt;

/// How far a rank got in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpState {
    /// The rank has called the operation. Recorders without events say no more until the operation has ended.
    Called,
    /// The operation runs.
    Started,
    /// The rank's part succeeded.
    Done,
    /// The rank's part failed or timed out.
    Failed,
}

/// One end of a point-to-point message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageEnd {
    /// To this rank of the job.
    SendTo(u32),
    /// From this rank of the job.
    ReceiveFrom(u32),
}

/// The number of the first message that has not ended, between ranks of which one has lost its oldest entries: from the oldest on, the
/// messages of such ranks cannot be counted.
pub(crate) const FIRST_OPEN: u64 = 1 << 40;

/// A rank's part of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// The group, by number in [`DumpedJob::groups`].
    pub group: u32,
    /// For a collective, its number among those of its group: the ranks' parts of one operation have the same number. For a message,
    /// its number among the messages from its sender to its receiver.
    pub sequence: u64,
    /// The call, by number in [`DumpedJob::calls`].
    pub call: u32,
    /// The line of the program that called it, by number in [`DumpedJob::places`]; 0 if it is not known.
    pub place: u32,
    /// The message; `None` for a collective.
    pub message: Option<MessageEnd>,
    /// How far the rank got.
    pub state: OpState,
    /// When the rank called the operation and when it had ended, in nanoseconds on the rank's clock; 0 if it is not known.
    pub called: i64,
    /// When the operation ended on this rank.
    pub ended: i64,
    /// The time-out in milliseconds; 0 if it is not known.
    pub limit_ms: u32,
}

impl Op {
    /// What operations of the same kind have in common: group, call, line and peer.
    pub fn kind(&self) -> (u32, u32, u32, Option<MessageEnd>) {
        (self.group, self.call, self.place, self.message)
    }

    /// Whether the rank has not succeeded in it.
    pub fn is_open(&self) -> bool {
        self.state != OpState::Done
    }
}

/// What must be equal on the ranks of a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpCall {
    /// The operation: `all_reduce`.
    pub name: String,
    /// Elements; sizes of several tensors are joined by `+`. Empty where ranks may differ.
    pub count: String,
    /// The type of the elements.
    pub dtype: String,
    /// Operator, root and algorithm, each after `, `.
    pub rest: String,
}

/// Operations in which every rank needs every other's part.
const OF_ALL_PARTS: [&str; 5] = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"];

impl OpCall {
    /// Whether every rank needs every other's part, so that none leaves before all have entered.
    pub(crate) fn needs_all_parts(&self) -> bool {
        OF_ALL_PARTS.iter().any(|known| self.name.starts_with(known))
    }
}

impl fmt::Display for OpCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpCall { name, count, dtype, rest } = self;
        match (&**count, &**dtype) {
            ("", _) => write!(f, "{name}"),
            (_, "") => write!(f, "{name}({count}{rest})"),
            _ => write!(f, "{name}({count} x {dtype}{rest})"),
        }
    }
}

/// Values by number, each once. Number 0 is the default value.
#[derive(Clone, Debug, Default)]
pub struct Numbered<T> {
    values: Vec<T>,
    numbers: BTreeMap<T, u32>,
}

impl<T: Clone + Ord + Default> Numbered<T> {
    /// The number of a value.
    pub fn number(&mut self, value: &T) -> u32 {
        if self.values.is_empty() {
            self.values.push(T::default());
            self.numbers.insert(T::default(), 0);
        }
        if let Some(number) = self.numbers.get(value) {
            return *number;
        }
        let number = self.values.len() as u32;
        self.values.push(value.clone());
        self.numbers.insert(value.clone(), number);
        number
    }
}

impl<T> Numbered<T> {
    /// The value of this number.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.values.get(number as usize)
    }
}

/// A group of ranks: a communicator.
#[derive(Clone, Debug, Default)]
pub struct RankGroup {
    /// Its name in messages.
    pub name: String,
    /// Its ranks as numbers of the job, in the order of the group, as most of its ranks list them.
    pub members: Vec<u32>,
    /// Other lists of its ranks, and who has them.
    pub other_lists: BTreeMap<Vec<u32>, Vec<u32>>,
}

/// What one rank left.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The rank's operations, in the order of its calls.
    pub ops: Vec<Op>,
    /// Whether `ops` begins with the rank's first operation: no operation has been overwritten.
    pub whole: bool,
    /// When the dump was written, in nanoseconds on a clock that `ops` use; 0 if it is not known.
    pub written: i64,
    /// Why the record was written, if the dump says so.
    pub reason: String,
    /// Whether the record was written because it was asked for, while the rank went on.
    pub asked: bool,
    /// The process that wrote it and when, for messages.
    pub writer: String,
    /// The training step, if the dump says so.
    pub step: Option<u64>,
    /// Errors, by the number of the operation in `ops`.
    pub errors: BTreeMap<u32, String>,
    /// Whether the recorder takes an operation that failed for one that ended, as Gloo's does.
    pub retires_failed: bool,
    /// For each operation, how many calls that the recorder does not record came before it, since the one before of its group: Gloo's
    /// numbers sends and receives, and does not record them. Empty if there are none.
    pub unrecorded: Vec<u64>,
}

impl Log {
    /// The time of the last event on record; 0 if there is none.
    pub fn last_event(&self) -> i64 {
        self.ops.iter().map(|op| op.called.max(op.ended)).max().unwrap_or(0)
    }
}

/// What a file other than a dump says of a rank: a launcher's report, an error file, a log.
#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    /// The rank; `None` if the file does not say.
    pub rank: Option<u32>,
    /// What is said.
    pub fact: Fact,
    /// The words themselves.
    pub said: String,
}

/// A kind of fact in logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fact {
    /// The rank's process has ended by an exception, a signal or an exit code.
    Died,
    /// The process answers no longer, or its host is lost.
    Unresponsive,
    /// The process ended by SIGABRT or SIGTERM: after an error that may be of another rank, as PyTorch's watchdog and launchers do.
    Aborted,
    /// An operation of the rank timed out.
    TimedOut,
    /// The rank's network failed.
    Network,
    /// The rank has launched fewer operations than most.
    Behind,
}

/// A job: what its ranks left.
#[derive(Clone, Debug, Default)]
pub struct DumpedJob {
    /// The number of ranks.
    pub size: u32,
    /// The ranks' dumps.
    pub logs: BTreeMap<u32, Log>,
    /// The groups.
    pub groups: Vec<RankGroup>,
    /// The calls by number.
    pub calls: Numbered<OpCall>,
    /// The lines of the program by number.
    pub places: Numbered<String>,
    /// What other files say.
    pub words: Vec<Word>,
    /// The host of a rank, where it is known.
    pub hosts: BTreeMap<u32, String>,
    /// The ranks of processes, by host and process number, where they are known.
    pub processes: BTreeMap<(String, u64), u32>,
    /// Notes to print about the files.
    pub notes: Vec<String>,
}

impl DumpedJob {
    /// The ranks that left no dump.
    pub fn unseen(&self) -> impl Iterator<Item = u32> {
        (0..self.size).filter(|rank| !self.logs.contains_key(rank))
    }

    /// A call in words, with its line.
    pub fn told(&self, op: &Op) -> String {
        let call = self.calls.get(op.call).map(OpCall::to_string).unwrap_or_default();
        let message = match op.message {
            Some(MessageEnd::SendTo(peer)) => format!(" to rank {peer}"),
            Some(MessageEnd::ReceiveFrom(peer)) => format!(" from rank {peer}"),
            None => String::new(),
        };
        format!("{call}{message}{}", self.at(op.place))
    }

    /// A line of the program in words: ` at train.py:41 in step`; empty if it is not known.
    pub fn at(&self, place: u32) -> String {
        self.places
            .get(place)
            .filter(|place| !place.is_empty())
            .map_or(String::new(), |place| format!(" at {place}"))
    }
}
