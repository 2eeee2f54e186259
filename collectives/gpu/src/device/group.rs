//! Sums and gathers over the GPU buffers of ranks that are separate threads or processes, on a stream separate from the computation's.
//!
//! ```text
//! compute   ... | bucket 0 ready | ...             | bucket 1 ready | ...        | join | ...
//! link                  '-> all-reduce of bucket 0 |        '-> all-reduce of 1 -'
//! ```
//!
//! | way | order of the sum | for |
//! |---|---|---|
//! | NCCL | NCCL's own | speed |
//! | scheduled | the order of a schedule, by grouped sends and receives: the bits of the schedule's trees | conformance |
//! | device | the canonical tree, by the fused kernel: the same bits as on the CPU | threads of one process, or processes of one host |
//! | host | the communicator's own: the same bits as between CPUs; the calling thread waits | machines without NCCL, and the shim |

use super::host::over_host;
use super::over_nccl::{join, scheduled, unfit};
use super::shared::{Shared, SharedCall, together};
use crate::driver::failed;
use crate::meaning::{Portion, Side};
use crate::nccl::{self, NcclCall, NcclComm, again};
use crate::{Collective, Communicator, DType, Error, Rank, ReduceOp, Result};
use allfold_cuda::{Mark, Queue, Slice};
use std::ops::Deref;
use std::time::Duration;

/// How ranks on GPUs reduce a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReducePath {
    /// NCCL if every rank has it and a GPU of its own; otherwise the devices if the ranks, at most 64, share a
    /// process and their devices reach each other; otherwise the host.
    #[default]
    Auto,
    /// NCCL's own collectives.
    Nccl,
    /// The schedules of the `direct` algorithms, over NCCL's sends and receives.
    Scheduled,
    /// The fused kernel over all ranks' buffers: of threads of one process, or of processes of one host by CUDA's handles (IPC). Processes
    /// that cannot share memory use the host, and [`DeviceGroup::described`] says why.
    Device,
    /// Copies to host memory and the communicator's own all-reduce.
    Host,
}

/// The communicator of a group: the caller's, or the group's own.
pub enum Grouped<'a> {
    /// A communicator that is also used outside the group.
    Lent(&'a Communicator),
    /// A communicator that was split off for the group.
    Own(Box<Communicator>),
}

impl Grouped<'_> {
    /// Fails a communicator that is used only by this group, so that ranks that wait for this rank get the reason.
    pub(super) fn abort_own(&self, why: &str) {
        if let Grouped::Own(comm) = self {
            comm.abort(why);
        }
    }
}

impl<'a> From<&'a Communicator> for Grouped<'a> {
    fn from(comm: &'a Communicator) -> Grouped<'a> {
        Grouped::Lent(comm)
    }
}

impl From<Communicator> for Grouped<'_> {
    fn from(comm: Communicator) -> Self {
        Grouped::Own(Box::new(comm))
    }
}

impl Deref for Grouped<'_> {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        match self {
            Grouped::Lent(comm) => comm,
            Grouped::Own(comm) => comm,
        }
    }
}

enum Over {
    /// A single rank, which has nothing to reduce.
    Nobody,
    Nccl(Box<NcclComm>),
    Scheduled(Box<NcclComm>),
    Device(Box<Shared>),
    Host,
}

/// A rank's handle for sums over a group of ranks with GPUs.
pub struct DeviceGroup<'a> {
    comm: Grouped<'a>,
    queue: Queue,
    over: Over,
    /// The event after which the input of a sum is ready, and the event after which the sum is done.
    marks: (Mark, Mark),
    /// Whether any sum was queued since the last [`DeviceGroup::join`].
    forked: bool,
    deadline: Duration,
    /// Why `auto` did not take NCCL, or `device` not the devices.
    why: Option<String>,
}

impl<'a> DeviceGroup<'a> {
    /// Joins the other ranks of `comm`, all of which must call this with an equal `way`. `queue` is the stream of the sums.
    ///
    /// # Errors
    /// The ranks cannot use the path that `way` names; some rank did not join by the deadline; the driver refused a call.
    pub fn open(
        comm: impl Into<Grouped<'a>>,
        queue: Queue,
        way: ReducePath,
        deadline: Duration,
    ) -> Result<DeviceGroup<'a>> {
        let grouped = comm.into();
        let comm: &Communicator = &grouped;
        let marks = (queue.mark().map_err(failed)?, queue.mark().map_err(failed)?);
        let mut why = match way {
            ReducePath::Auto if comm.size() > 1 => unfit(comm, &queue)?,
            _ => None,
        };
        let over = match way {
            _ if comm.size() == 1 => Over::Nobody,
            ReducePath::Host => Over::Host,
            ReducePath::Auto if why.is_none() => Over::Nccl(Box::new(join(comm, &queue, deadline)?)),
            ReducePath::Device if !comm.of_one_process() => match Shared::across(comm, &queue, deadline)? {
                Ok(shared) => Over::Device(Box::new(shared)),
                Err(reason) => {
                    why = Some(reason);
                    Over::Host
                }
            },
            ReducePath::Auto | ReducePath::Device => match together(comm, &queue)? {
                true => Over::Device(Box::new(Shared::new(comm, &queue, &marks.0)?)),
                false if way == ReducePath::Auto => Over::Host,
                false => {
                    let what = "sums over devices need ranks that are threads of one process, 64 at most, on devices that \
                                reach each other";
                    return Err(Error::Argument(what.into()));
                }
            },
            ReducePath::Nccl => Over::Nccl(Box::new(join(comm, &queue, deadline)?)),
            ReducePath::Scheduled => Over::Scheduled(Box::new(join(comm, &queue, deadline)?)),
        };
        Ok(DeviceGroup { comm: grouped, queue, over, marks, forked: false, deadline, why })
    }

    /// Opens the group of a part of the ranks, by the same path. All ranks must call it, each with the communicator of its part and the
    /// number by which parts are told apart; `queue` is the stream of the sums. Over NCCL the parts share the resources of this group's
    /// communicator, so that a rank's kernels of this group and of its parts run in the order of the calls.
    ///
    /// # Errors
    /// Those of [`DeviceGroup::open`].
    pub fn split<'b>(&mut self, comm: Communicator, part: u32, queue: Queue) -> Result<DeviceGroup<'b>> {
        let (path, deadline, alone) = (self.path(), self.deadline, comm.size() == 1);
        let (Over::Nccl(all) | Over::Scheduled(all)) = &mut self.over else {
            return DeviceGroup::open(comm, queue, path, deadline);
        };
        let control = Box::new(again(&comm)?);
        let color = if alone { -1 } else { part as i32 };
        let over = match all.split_to(&queue, (color, comm.rank().0 as i32), Some(control))?.map(Box::new) {
            None => Over::Nobody,
            Some(made) if path == ReducePath::Scheduled => Over::Scheduled(made),
            Some(made) => Over::Nccl(made),
        };
        let marks = (queue.mark().map_err(failed)?, queue.mark().map_err(failed)?);
        Ok(DeviceGroup { comm: comm.into(), queue, over, marks, forked: false, deadline, why: None })
    }

    /// The stream on which sums run.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Whether kernels of another rank may still use memory that this rank gave to a failed sum. The end of these kernels is unknown, so
    /// such memory must not be freed.
    pub fn is_lent(&self) -> bool {
        matches!(&self.over, Over::Device(shared) if shared.is_lent())
    }

    /// Whether ranks of this group share a GPU over NCCL.
    pub fn shares_gpu(&self) -> bool {
        matches!(&self.over, Over::Nccl(comm) | Over::Scheduled(comm) if comm.shares_gpu())
    }

    /// The number of ranks of the group.
    pub fn ranks(&self) -> u32 {
        self.comm.size()
    }

    /// The path of the sums in words, with the version of NCCL if it is NCCL, and why it was taken; `None` for a single rank.
    pub fn described(&self) -> Option<String> {
        let version = |comm: &NcclComm| match comm.version() {
            Ok((major, minor, patch)) => format!("NCCL {major}.{minor}.{patch}"),
            Err(_) => "NCCL".into(),
        };
        let path = match &self.over {
            Over::Nobody => return None,
            Over::Nccl(comm) => format!("native {}", version(comm)),
            Over::Scheduled(comm) => format!("schedules over {}", version(comm)),
            Over::Device(shared) if shared.is_across() => "device copies between processes".into(),
            Over::Device(_) => "device copies".into(),
            Over::Host => "the host".into(),
        };
        Some(match (&self.why, &self.over) {
            (Some(why), _) => format!("{path}: {why}"),
            (None, Over::Device(_) | Over::Host) => format!("{path}: the configuration chooses it"),
            (None, _) => path,
        })
    }

    /// Whether sums are queued without waiting, so that a stream capture can record them. On the device path, ranks' streams wait for
    /// each other's events, which separate captures cannot record: these sums stay launches.
    pub fn captures(&self) -> bool {
        matches!(self.over, Over::Nobody | Over::Nccl(_))
    }

    /// The path that the ranks use. A single rank, which uses none, gives [`ReducePath::Host`].
    pub fn path(&self) -> ReducePath {
        match self.over {
            Over::Nccl(_) => ReducePath::Nccl,
            Over::Scheduled(_) => ReducePath::Scheduled,
            Over::Device(_) => ReducePath::Device,
            Over::Nobody | Over::Host => ReducePath::Host,
        }
    }

    /// This rank's number in the group.
    pub fn rank(&self) -> Rank {
        self.comm.rank()
    }

    /// Copies the bytes of rank `root` to all ranks, in place; later work of `queue` uses them.
    ///
    /// # Errors
    /// The errors of [`DeviceGroup::all_reduce`].
    pub fn broadcast(&mut self, queue: &Queue, data: Slice<'_>, root: Rank) -> Result<()> {
        let call = SharedCall { root, ..shared_call(Collective::Broadcast, DType::U8, ReduceOp::Sum) };
        self.issue(queue, call, (data, data))?;
        self.join(queue)
    }

    /// Queues the reduction of `data` over all ranks, in place, after all earlier work of `after`.
    ///
    /// # Errors
    /// The error of the path: a lost peer, a deadline, a type that the path cannot reduce.
    pub fn all_reduce(&mut self, after: &Queue, dtype: DType, op: ReduceOp, data: Slice<'_>) -> Result<()> {
        self.run(after, shared_call(Collective::AllReduce, dtype, op), data)
    }

    /// Queues the reduction of `data`, which has a block for each rank, after all earlier work of `after`. Block r of rank r becomes
    /// the reduction of all ranks' blocks r; the values of the other blocks are undefined afterwards.
    ///
    /// # Errors
    /// The errors of [`DeviceGroup::all_reduce`]; elements that do not divide into equal blocks.
    pub fn reduce_scatter(
        &mut self,
        after: &Queue,
        dtype: DType,
        op: ReduceOp,
        data: Slice<'_>,
    ) -> Result<()> {
        self.run(after, shared_call(Collective::ReduceScatter, dtype, op), data)
    }

    /// Copies block r of rank r's `data`, which has a block for each rank, to all ranks, in place, after all earlier work of `after`.
    ///
    /// # Errors
    /// The errors of [`DeviceGroup::reduce_scatter`].
    pub fn all_gather(&mut self, after: &Queue, dtype: DType, data: Slice<'_>) -> Result<()> {
        self.run(after, shared_call(Collective::AllGather, dtype, ReduceOp::Sum), data)
    }

    /// Sends block s of `sent`, which has a block for each rank, to rank s, after all earlier work of `after`. Block r of `received`
    /// comes from rank r.
    ///
    /// # Errors
    /// The errors of [`DeviceGroup::reduce_scatter`]; buffers that differ in length.
    pub fn all_to_all(&mut self, after: &Queue, sent: Slice<'_>, received: Slice<'_>) -> Result<()> {
        self.exchange(after, Collective::AllToAll, sent, received)
    }

    /// Sends `sent` to the next rank, the last rank's to rank 0, after all earlier work of `after`, and receives the previous rank's
    /// buffer.
    ///
    /// # Errors
    /// The errors of [`DeviceGroup::all_to_all`].
    pub fn shift(&mut self, after: &Queue, sent: Slice<'_>, received: Slice<'_>) -> Result<()> {
        self.exchange(after, Collective::SendRecv, sent, received)
    }

    fn exchange(
        &mut self,
        after: &Queue,
        collective: Collective,
        sent: Slice<'_>,
        received: Slice<'_>,
    ) -> Result<()> {
        let ranks = self.ranks() as usize;
        let cut = collective == Collective::AllToAll && !sent.len().is_multiple_of(ranks);
        if sent.len() != received.len() || cut {
            let (sent, received) = (sent.len(), received.len());
            return Err(Error::Argument(format!(
                "{sent} bytes to send and {received} to receive are no equal blocks of {ranks} ranks"
            )));
        }
        if matches!(self.over, Over::Nobody) {
            return after.copy(received, sent).map_err(failed);
        }
        self.issue(after, shared_call(collective, DType::U8, ReduceOp::Sum), (sent, received))
    }

    fn run(&mut self, after: &Queue, call: SharedCall, data: Slice<'_>) -> Result<()> {
        let SharedCall { collective, dtype, .. } = call;
        if matches!(self.over, Over::Nobody) {
            return Ok(());
        }
        let ranks = self.ranks();
        let count = data.elements(dtype.size()).map_err(failed)?;
        if collective.blocked() && !count.is_multiple_of(u64::from(ranks)) {
            return Err(Error::Argument(format!("{count} elements cannot be cut into {ranks} equal blocks")));
        }
        self.issue(after, call, (data, data))
    }

    /// Issues a collective on the group's path, from `from` to `to`, which are one buffer if it is in place, after all earlier work of
    /// `after`. Of each buffer a rank uses the part that the collective's [`crate::meaning`] names.
    pub(super) fn issue(
        &mut self,
        after: &Queue,
        call: SharedCall,
        (from, to): (Slice<'_>, Slice<'_>),
    ) -> Result<()> {
        self.fork(after)?;
        let SharedCall { collective, dtype, op, root } = call;
        let (rank, ranks, meaning) = (self.rank().index(), self.ranks() as usize, collective.meaning());
        let input = part_of(meaning.input, from, rank, ranks)?;
        let output = part_of(meaning.output, to, rank, ranks)?;
        match &mut self.over {
            Over::Nobody => Ok(()),
            // The other collectives have no order that a schedule would preserve.
            Over::Scheduled(comm) if collective.reduces() || collective == Collective::AllGather => {
                scheduled(comm, call, to)
            }
            Over::Nccl(comm) | Over::Scheduled(comm) if collective == Collective::SendRecv => {
                comm.shift(input, output)
            }
            Over::Nccl(comm) | Over::Scheduled(comm) => {
                comm.collective(NcclCall { collective, dtype, op, root, input, output })
            }
            Over::Device(shared) => shared.run(&self.comm, &self.queue, &self.marks.0, call, (from, to)),
            Over::Host => over_host(&self.comm, &self.queue, call, (input, output)),
        }
    }

    /// Makes later work of the stream of sums run after all earlier work of `after`. If `after` is being captured, this work is captured
    /// too.
    fn fork(&mut self, after: &Queue) -> Result<()> {
        self.forked = true;
        self.marks.0.move_to(after).map_err(failed)?;
        self.queue.wait(&self.marks.0).map_err(failed)
    }

    /// Makes later work of `queue` run after all sums queued so far. If no sum was queued since the last call, the queue waits for
    /// nothing: a stream that is being captured must not wait for a stream that is not.
    ///
    /// # Errors
    /// The driver refused a call.
    pub fn join(&mut self, queue: &Queue) -> Result<()> {
        if !self.forked && !queue.machine().seeded(6) || matches!(self.over, Over::Nobody) {
            return Ok(());
        }
        self.marks.1.move_to(&self.queue).map_err(failed)?;
        queue.wait(&self.marks.1).map_err(failed)?;
        self.forked = false;
        Ok(())
    }
}

/// Failures: how a rank ends its part in sums that another rank does not complete.
impl DeviceGroup<'_> {
    /// Waits until `queue` has finished all its work, sums included; `what` follows "could not" in an error. Polls the queue, and
    /// NCCL for failures, up to the deadline; no call here blocks on the device.
    ///
    /// After an error the group cannot sum any more. The caller first destroys the captured graphs that hold sums of this group,
    /// then calls [`DeviceGroup::abandon`], then frees the memory that the sums use. The order matters, because NCCL's abort waits
    /// for graphs, and kernels may use memory until the abort has ended.
    ///
    /// # Errors
    /// The deadline, with the ranks that may have caused it; a failure that NCCL or the driver reported.
    pub fn wait(&mut self, queue: &Queue, what: &str) -> Result<()> {
        self.wait_watching(queue, what, &mut || Ok(()))
    }

    /// [`DeviceGroup::wait`], which also ends with the first error of `watch`: the failures of other groups that the work needs.
    ///
    /// # Errors
    /// Those of [`DeviceGroup::wait`], and of `watch`.
    pub fn wait_watching(
        &mut self,
        queue: &Queue,
        what: &str,
        watch: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        if let Over::Nccl(comm) | Over::Scheduled(comm) = &mut self.over {
            return comm.wait_watching(queue, what, watch);
        }
        let idle = || match queue.machine().idle(queue.stream()).map_err(failed)? {
            true => Ok(true),
            false => watch().map(|()| false),
        };
        if nccl::until(self.deadline, idle)? {
            return Ok(());
        }
        let rank = self.comm.rank();
        let shared = matches!(self.over, Over::Device(_));
        let suspects = (0..self.comm.size()).map(Rank).filter(|other| shared && *other != rank).collect();
        Err(Error::QueueDeadline { rank, what: what.into(), suspects, after: self.deadline })
    }

    /// Checks once whether NCCL has found a failure of this group.
    ///
    /// # Errors
    /// The failure.
    pub fn poll(&mut self, what: &str) -> Result<()> {
        match &mut self.over {
            Over::Nccl(comm) | Over::Scheduled(comm) => comm.poll(what),
            _ => Ok(()),
        }
    }

    /// Notes that all work of this group that was queued so far is done.
    pub fn settled(&mut self) {
        if let Over::Nccl(comm) | Over::Scheduled(comm) = &mut self.over {
            comm.settled();
        }
    }

    /// Aborts this rank's part in sums in flight, so that no kernel of this rank waits for ever. A communicator that only this group uses
    /// fails because of `why`. The caller must first destroy the captured graphs that hold sums of this group. A second call does
    /// nothing; dropping the group after an error of [`DeviceGroup::wait`] has the same effect.
    pub fn abandon(&mut self, why: &str) {
        self.comm.abort_own(why);
        match &mut self.over {
            Over::Nccl(comm) | Over::Scheduled(comm) => {
                comm.abandon();
            }
            Over::Device(shared) => shared.abandon(),
            Over::Nobody | Over::Host => {}
        }
    }
}

/// The part of a buffer that a rank uses on one side of a collective.
fn part_of(side: Side, buffer: Slice<'_>, rank: usize, ranks: usize) -> Result<Slice<'_>> {
    let block = buffer.len() / ranks;
    match side.part {
        Portion::Block => buffer.part(rank * block, block).map_err(failed),
        _ => Ok(buffer),
    }
}

fn shared_call(collective: Collective, dtype: DType, op: ReduceOp) -> SharedCall {
    SharedCall { collective, dtype, op, root: Rank(0) }
}
