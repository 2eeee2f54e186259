//! The trainer's execution rule, with no buffer at all.
//!
//! A stage runs its actions in order. Before an action the stage posts the receive of what the action reads and waits for
//! the message. After the action the stage posts the send of the result and continues at once. The operations that a stage has
//! posted on one communicator are executed one at a time, in order. A send and its receive are executed together, when each is
//! the oldest of its stage on that communicator; that takes no time.
//!
//! Which events come first cannot change the outcome: every queue has one writer, and every message a fixed sender and receiver.
//! A schedule that completes here completes on any machine, with buffers or without.

use super::bubble::ChunkCosts;
use super::channels::count;
use super::{Action, BoundaryChannels, PipelineSchedule};
use std::collections::VecDeque;
use std::fmt;

/// The actions, communicators and costs that are executed.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    pub(super) schedule: PipelineSchedule,
    pub(super) micros: usize,
    /// For each stage, its actions.
    pub(super) actions: &'a [Vec<Action>],
    /// For each chunk, the communicators of its boundary.
    pub(super) channels: &'a [Option<BoundaryChannels>],
    pub(super) costs: ChunkCosts,
}

/// An activation or a gradient between chunk `boundary - 1` and chunk `boundary`, which is at least 1.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Message {
    backward: bool,
    boundary: usize,
    micro: usize,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Message { backward, boundary, micro } = *self;
        let (what, from, to) = if backward {
            ("gradient", boundary, boundary - 1)
        } else {
            ("activation", boundary - 1, boundary)
        };
        write!(f, "the {what} from chunk {from} to chunk {to} of micro-batch {micro}")
    }
}

/// A send or a receive that a stage has posted.
#[derive(Clone, Copy)]
struct Posted {
    send: bool,
    peer: usize,
    message: Message,
    time: u64,
}

/// One communicator at one stage.
#[derive(Clone, Default)]
struct Queue {
    /// Operations that are not executed yet, oldest first.
    posted: VecDeque<Posted>,
    /// When the last operation was executed.
    free: u64,
}

/// The progress of a stage.
struct Stage {
    actions_done: usize,
    clock: u64,
    /// The receive that the stage waits for, and its communicator.
    waits: Option<(usize, Message)>,
    /// Whether the message for the next action has arrived.
    received: bool,
    queues: Vec<Queue>,
}

/// The execution of a case.
pub(super) struct Execution<'a> {
    case: Case<'a>,
    stages: Vec<Stage>,
    /// Stages that may be able to continue.
    ready: Vec<usize>,
    /// Whether a chunk's [forward, backward] pass of a micro-batch is done.
    passed: Vec<[bool; 2]>,
}

impl<'a> Execution<'a> {
    /// The execution before its first action.
    pub(super) fn new(case: Case<'a>) -> Execution<'a> {
        let queues = vec![Queue::default(); count(case.channels)];
        let stage =
            |_| Stage { actions_done: 0, clock: 0, waits: None, received: false, queues: queues.clone() };
        let stages = (0..case.actions.len()).map(stage).collect();
        let passed = vec![[false; 2]; case.channels.len() * case.micros];
        Execution { case, stages, ready: (0..case.actions.len()).collect(), passed }
    }

    /// Runs to the end and returns the makespan.
    ///
    /// # Errors
    /// The first stage that is stuck, or a send that is matched with the receive of another message.
    pub(super) fn run(mut self) -> Result<u64, String> {
        while let Some(stage) = self.ready.pop() {
            while self.advance(stage)? {}
        }
        (0..self.stages.len()).try_for_each(|stage| self.finished(stage))?;
        Ok(self.stages.iter().map(|stage| stage.clock).max().unwrap_or(0))
    }

    /// The message that an action reads, if the chunk that sends the message exists.
    fn input(&self, action: Action) -> Option<Message> {
        match action {
            Action::Forward { chunk, micro } => self.message(false, chunk, micro),
            Action::Backward { chunk, micro } | Action::InputGrad { chunk, micro } => {
                self.message(true, chunk + 1, micro)
            }
            Action::WeightGrad { .. } => None,
        }
    }

    /// The message that an action writes, if the chunk that receives the message exists.
    fn output(&self, action: Action) -> Option<Message> {
        match action {
            Action::Forward { chunk, micro } => self.message(false, chunk + 1, micro),
            Action::Backward { chunk, micro } | Action::InputGrad { chunk, micro } => {
                self.message(true, chunk, micro)
            }
            Action::WeightGrad { .. } => None,
        }
    }

    fn message(&self, backward: bool, boundary: usize, micro: usize) -> Option<Message> {
        (1..self.case.channels.len()).contains(&boundary).then_some(Message { backward, boundary, micro })
    }

    /// The communicator of a message, its sender and its receiver. Nothing where both are one stage.
    fn route(&self, message: Message) -> Option<(usize, usize, usize)> {
        let channels = self.case.channels[message.boundary]?;
        let stage_of = |chunk| self.case.schedule.stage_of(chunk, self.stages.len());
        let (before, after) = (stage_of(message.boundary - 1), stage_of(message.boundary));
        Some(if message.backward {
            (channels.backward, after, before)
        } else {
            (channels.forward, before, after)
        })
    }

    /// Runs a stage's next action, or posts the receive for it. False where the stage is done or has to wait.
    fn advance(&mut self, stage: usize) -> Result<bool, String> {
        let state = &self.stages[stage];
        let Some(&action) = self.case.actions[stage].get(state.actions_done) else { return Ok(false) };
        if state.waits.is_some() {
            return Ok(false);
        }
        if let Some(message) = self.input(action) {
            match self.route(message) {
                Some((channel, peer, _)) if !state.received => {
                    self.stages[stage].waits = Some((channel, message));
                    self.post(stage, channel, false, peer, message)?;
                    return Ok(self.stages[stage].waits.is_none());
                }
                None if !self.written(message) => return Ok(false),
                _ => {}
            }
        }
        self.run_action(stage, action);
        if let Some(message) = self.output(action)
            && let Some((channel, _, peer)) = self.route(message)
        {
            self.post(stage, channel, true, peer, message)?;
        }
        Ok(true)
    }

    /// Whether the pass that writes a message is done.
    fn written(&self, message: Message) -> bool {
        let chunk = if message.backward { message.boundary } else { message.boundary - 1 };
        self.passed[chunk * self.case.micros + message.micro][usize::from(message.backward)]
    }

    fn run_action(&mut self, stage: usize, action: Action) {
        let state = &mut self.stages[stage];
        state.received = false;
        state.actions_done += 1;
        state.clock += self.case.costs.of(action);
        let passed = &mut self.passed[action.chunk() * self.case.micros + action.micro()];
        match action {
            Action::Forward { .. } => passed[0] = true,
            Action::Backward { .. } | Action::InputGrad { .. } => passed[1] = true,
            Action::WeightGrad { .. } => {}
        }
    }

    /// Posts a send or a receive, then executes all that can be executed on its communicator.
    fn post(
        &mut self,
        stage: usize,
        on: usize,
        send: bool,
        peer: usize,
        message: Message,
    ) -> Result<(), String> {
        let time = self.stages[stage].clock;
        self.stages[stage].queues[on].posted.push_back(Posted { send, peer, message, time });
        let mut open = vec![stage];
        while let Some(stage) = open.pop() {
            let Some(&own) = self.stages[stage].queues[on].posted.front() else { continue };
            let Some(&other) = self.stages[own.peer].queues[on].posted.front() else { continue };
            if other.peer != stage || other.send == own.send {
                continue;
            }
            let (send, receive) = if own.send { (own, other) } else { (other, own) };
            if send.message != receive.message {
                let (from, to) = (receive.peer, send.peer);
                return Err(format!(
                    "stage {from} sends {}, but stage {to} receives {}",
                    send.message, receive.message
                ));
            }
            let ends = [stage, own.peer];
            let free = ends.map(|end| self.stages[end].queues[on].free);
            let time = own.time.max(other.time).max(free[0]).max(free[1]);
            for end in ends {
                let queue = &mut self.stages[end].queues[on];
                queue.posted.pop_front();
                queue.free = time;
            }
            let receiver = &mut self.stages[send.peer];
            (receiver.waits, receiver.received) = (None, true);
            receiver.clock = receiver.clock.max(time);
            self.ready.push(send.peer);
            open.extend(ends);
        }
        Ok(())
    }

    /// # Errors
    /// The stage has an action or a send left.
    fn finished(&self, stage: usize) -> Result<(), String> {
        let state = &self.stages[stage];
        if let Some(action) = self.case.actions[stage].get(state.actions_done) {
            let behind = |channel: usize| state.queues[channel].posted.front().filter(|first| first.send);
            let why = match state.waits {
                None => "what it reads is computed later on the same stage".to_string(),
                Some((channel, message)) => match behind(channel) {
                    Some(first) => {
                        format!("its receive is behind the send of {} to stage {}", first.message, first.peer)
                    }
                    None => format!("{message} is never sent"),
                },
            };
            return Err(format!("stage {stage} is stuck before {action:?}: {why}"));
        }
        match state.queues.iter().find_map(|queue| queue.posted.front()) {
            Some(left) => {
                Err(format!("stage {stage} is stuck: stage {} does not receive {}", left.peer, left.message))
            }
            None => Ok(()),
        }
    }
}
