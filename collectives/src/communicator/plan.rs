//! The algorithm, segments and window that a communicator uses for each collective.

use crate::registry::{self, Algorithm, Shape};
use crate::schedule::Schedule;
use crate::{Collective, Error, Geometry, Result};
use std::sync::Arc;

/// The choices of a communicator. All ranks must make the same choices, except for the window. The registry chooses by size what the user
/// does not choose. For reductions it always chooses a canonical algorithm, so that the size affects the speed and never the bits.
#[derive(Clone, Copy, Default)]
pub struct Plan {
    choices: [Choice; Collective::ALL.len()],
}

/// The choices for one collective: its algorithm, segments and window.
#[derive(Clone, Copy, Default)]
struct Choice {
    algorithm: Option<&'static Algorithm>,
    segment: Option<u64>,
    window: Option<u32>,
}

/// The schedule of one collective, how it cuts the buffer, and its window.
#[derive(Clone)]
pub struct Planned {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// The schedule, cut into segments.
    pub schedule: Arc<dyn Schedule>,
    /// How the schedule cuts the buffer into chunks and segments.
    pub geometry: Geometry,
    /// How many steps of a rank may be in flight.
    pub window: u32,
    /// Whether the backend's own collective, such as MPI's, runs instead of the schedule.
    pub native: bool,
}

impl Plan {
    /// Runs one collective by the algorithm of this name.
    ///
    /// # Errors
    /// [`Error::Registry`] where there is no algorithm of that name; the error suggests the nearest name.
    pub fn algorithm(mut self, collective: Collective, name: &str) -> Result<Plan> {
        self.choices[collective as usize].algorithm = Some(registry::find(collective, name)?);
        Ok(self)
    }

    /// Runs a collective by an algorithm that need not be in the registry: a user's own.
    pub fn with(mut self, algorithm: &'static Algorithm) -> Plan {
        self.choices[algorithm.collective as usize].algorithm = Some(algorithm);
        self
    }

    /// Cuts every chunk into segments of at most this many bytes, in every collective.
    ///
    /// # Errors
    /// [`Error::Argument`] for zero bytes.
    pub fn segment(mut self, bytes: u64) -> Result<Plan> {
        if bytes == 0 {
            return Err(Error::Argument("the segment size is 0 bytes; it must be 1 byte or more".into()));
        }
        self.choices.iter_mut().for_each(|choice| choice.segment = Some(bytes));
        Ok(self)
    }

    /// Lets every rank have this many steps in flight, in every collective.
    ///
    /// # Errors
    /// [`Error::Argument`] for 0 steps.
    pub fn window(mut self, steps: u32) -> Result<Plan> {
        if steps == 0 {
            return Err(Error::Argument("the window is 0 steps; it must be 1 or more".into()));
        }
        self.choices.iter_mut().for_each(|choice| choice.window = Some(steps));
        Ok(self)
    }

    /// The algorithm for a buffer of this many bytes in all.
    pub(crate) fn pick(&self, collective: Collective, shape: Shape, bytes: u64) -> &'static Algorithm {
        self.choices[collective as usize]
            .algorithm
            .unwrap_or_else(|| registry::auto(collective, shape, bytes))
    }

    /// Whether the user chose the algorithm of a collective.
    pub(crate) fn names(&self, collective: Collective) -> bool {
        self.choices[collective as usize].algorithm.is_some()
    }

    /// The number of segments that a chunk of at most `chunk` elements of `size` bytes each is cut into.
    pub(crate) fn segments(&self, of: &Algorithm, bytes: u64, chunk: u64, size: u64) -> u32 {
        let wanted = match self.choices[of.collective as usize].segment {
            Some(segment) => (chunk * size).div_ceil(segment),
            None => u64::from(of.segments(bytes)),
        };
        u32::try_from(wanted.min(chunk)).unwrap_or(u32::MAX).max(1)
    }

    /// Whether an algorithm's chunks stay whole and its steps run one at a time, because the algorithm is not pipelined and the user
    /// chose neither segments nor a window.
    pub(crate) fn leaves_whole(&self, of: &Algorithm) -> bool {
        let choice = self.choices[of.collective as usize];
        !of.pipelined && choice.segment.is_none() && choice.window.is_none()
    }

    /// The number of steps that a rank may have in flight.
    pub(crate) fn window_of(&self, of: &Algorithm) -> u32 {
        self.choices[of.collective as usize].window.unwrap_or_else(|| of.window())
    }
}
