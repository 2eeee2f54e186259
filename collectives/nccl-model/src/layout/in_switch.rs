//! Reduction in a switch: every GPU's data are sent up once, and the switch adds them and holds the result. In reverse, the schedule is
//! the multicast.
//!
//! ```text
//! 3 GPUs and their switch, rank 3     0 --'     each GPU's data into a scratch copy of its own, all at the same time;
//!                                     1 ---- 3  then the switch adds the copies, which takes no time
//!                                     2 --'
//! ```
//!
//! The switch is a rank that contributes the neutral element, zeros for a sum. Cost of an all-reduce: S up and S down every GPU's
//! port, for any number of GPUs. Order uniform.
//! Source: NVIDIA, "NVLink SHARP" of the third-generation NVSwitch (Hot Chips 34, 2022).

use allfold_schedules::schedule::{Combine, Rank, Schedule, Span, Step};

/// A reduction from `gpus` ranks to the switch, which is the last rank.
#[derive(Clone, Copy, Debug)]
pub struct InSwitch {
    /// The number of GPUs at the switch.
    pub gpus: u32,
}

impl Schedule for InSwitch {
    fn ranks(&self) -> u32 {
        self.gpus + 1
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn rounds(&self) -> u64 {
        2 * u64::from(self.gpus)
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let (switch, gpu) = (Rank(self.gpus), (round % u64::from(self.gpus)) as u32);
        let (data, place) = (Span::data(0, 1), Span::scratch(gpu, 0, 1));
        match (rank == switch, round < u64::from(self.gpus)) {
            (false, true) if rank.0 == gpu => Step { send: Some((switch, data)), recv: None },
            (true, true) => Step { send: None, recv: Some((Rank(gpu), place, Combine::Copy)) },
            (true, false) => Step::local(switch, place, data, Combine::Reduce),
            _ => Step::IDLE,
        }
    }
    fn active(&self, rank: Rank) -> std::ops::Range<u64> {
        let own = u64::from(rank.0);
        if rank.0 == self.gpus { 0..self.rounds() } else { own..own + 1 }
    }
    fn stride(&self) -> u64 {
        1
    }
    fn owner(&self, _chunk: u32) -> Rank {
        Rank(self.gpus)
    }
}
