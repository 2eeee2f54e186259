//! The communicator of an axis, as the pass of a layer uses it.

use super::observed::Observed;
use crate::Error;
use crate::layers::Peers;
use crate::timing::{StepSpan, StepWork, work};
use allfold_collectives::{Buffer, Communicator, ReduceOp, Work};
use allfold_kernels::nn::{Float, OpCost};
use allfold_sim::{DeviceWork, Picos};

/// The ranks along the axis of a layer, during one of its phases. Counts the time spent waiting, and stores the first
/// error.
pub(super) struct AxisPeers<'a, F: Float> {
    /// The communicator, unless the rank is alone on the axis.
    pub group: Option<&'a Communicator>,
    pub world: &'a Communicator,
    pub observed: &'a mut Observed,
    /// The work of the phase, and its micro-batch.
    pub work: (StepWork, Option<usize>),
    /// Whether the layer computes in autocast's narrow type.
    pub narrow: bool,
    /// The exchange with the next and the previous rank, while it is in progress.
    pub shift: Option<Work<Buffer<F>>>,
    pub failed: Option<Error>,
}

impl<F: Float> AxisPeers<'_, F> {
    fn exchange(&mut self, go: impl FnOnce(&Communicator) -> allfold_collectives::Result<()>) {
        let Some(group) = self.group.filter(|_| self.failed.is_none()) else { return };
        let start = self.world.now();
        let done = go(group);
        self.waited(start);
        self.failed = done.err().map(Error::from);
    }

    /// Counts the time since `start` as spent waiting.
    fn waited(&mut self, start: Picos) {
        let end = self.world.now();
        let (work, micro) = self.work;
        self.observed.waited += end - start;
        self.observed.add(StepSpan { work, micro, start: self.observed.since, end: start });
        self.observed.add(StepSpan { work: StepWork::Waiting, micro: None, start, end });
        self.observed.since = end;
    }
}

impl<F: Float> Peers<F> for AxisPeers<'_, F> {
    fn index(&self) -> usize {
        self.group.map_or(0, |group| group.rank().index())
    }

    fn size(&self) -> usize {
        self.group.map_or(1, |group| group.size() as usize)
    }

    fn sum(&mut self, values: &mut [F]) {
        self.exchange(|group| group.all_reduce(values, ReduceOp::Sum));
    }

    fn max(&mut self, values: &mut [F]) {
        self.exchange(|group| group.all_reduce(values, ReduceOp::Max));
    }

    fn gather(&mut self, own: &[F], all: &mut [F]) {
        self.exchange(|group| group.all_gather(own, all));
    }

    fn sum_scattered(&mut self, all: &[F], own: &mut [F]) {
        self.exchange(|group| group.reduce_scatter(all, own, ReduceOp::Sum));
    }

    fn all_to_all(&mut self, sent: &[F], received: &mut [F]) {
        self.exchange(|group| group.all_to_all(sent, received));
    }

    fn begin_shift(&mut self, values: &[F]) {
        let Some(group) = self.group.filter(|_| self.failed.is_none()) else { return };
        match group.shift_async(values.to_vec().into()) {
            Ok(shift) => self.shift = Some(shift),
            Err(error) => self.failed = Some(error.into()),
        }
    }

    fn end_shift(&mut self, values: &mut [F]) {
        let Some(shift) = self.shift.take() else { return };
        let start = self.world.now();
        let done = shift.wait().map(|received| values.copy_from_slice(&received));
        self.waited(start);
        self.failed = done.err().map(Error::from);
    }

    fn charge(&mut self, cost: OpCost) {
        self.world.charge(&DeviceWork { narrow: self.narrow, ..work(cost) });
    }
}
