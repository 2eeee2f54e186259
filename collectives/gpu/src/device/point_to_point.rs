//! Messages between GPU buffers of ranks that are separate threads or processes: of a pipeline's stages.
//!
//! | path | a message |
//! |---|---|
//! | NCCL, scheduled | NCCL's send and receive, on a stream of their own |
//! | device, threads of one process | the sender sends address and event; the receiver copies from that address |
//! | host; device between processes | copied to host memory, sent by the communicator, copied to the receiver's GPU; the calling threads wait |
//!
//! A rank that receives waits, on the host, until the sender has sent; a rank that sends waits for nothing. Memory that was sent is
//! retained until [`DeviceMessages::flush`], before which all ranks take part in a sum over the same compute queues: on the device path
//! the sum orders a sender's later work after its receivers' copies. In a ring of stages, answers by messages would not work, as each
//! answer would be queued behind another; a server and a worker answer each other.

use super::group::{Grouped, ReducePath};
use super::over_nccl::join;
use crate::driver::failed;
use crate::nccl::NcclComm;
use crate::{Buffer, Error, Rank, Result};
use allfold_base::lock;
use allfold_collectives::Work;
use allfold_cuda::{Mark, Memory, Queue, Slice};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

enum Over {
    Nccl(Box<NcclComm>),
    Device,
    Host,
}

/// A message that was sent, and that its receiver may still read.
struct Sent {
    by: SentBy,
    _memory: Arc<Memory>,
}

enum SentBy {
    Nccl,
    /// The address and the event.
    Device(Work<Buffer<i64>>),
    /// The bytes.
    Host(Work<Buffer<u8>>),
}

/// A message that this rank receives.
struct Expected {
    by: ExpectedBy,
    data: Arc<Memory>,
    from: Rank,
}

enum ExpectedBy {
    Nccl,
    /// The address and the event.
    Device(Work<Buffer<i64>>),
    /// The bytes.
    Host(Work<Buffer<u8>>),
}

/// A rank's end of the messages of a group. Messages to one peer arrive in order.
pub struct DeviceMessages<'a> {
    comm: Grouped<'a>,
    queue: Queue,
    over: Over,
    /// The event after which NCCL may begin, and the event after which it is done.
    marks: (Mark, Mark),
    sent: Vec<Sent>,
    expected: Vec<Expected>,
}

/// Events that are being handed to another thread, each under a unique number.
static SHOWN: Mutex<BTreeMap<i64, Mark>> = Mutex::new(BTreeMap::new());

fn show(mark: Mark) -> i64 {
    static NUMBERS: AtomicI64 = AtomicI64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    lock(&SHOWN).insert(number, mark);
    number
}

fn shown(number: i64) -> Result<Mark> {
    let found = lock(&SHOWN).remove(&number);
    found.ok_or_else(|| Error::System("a rank showed an event that does not exist".into()))
}

impl<'a> DeviceMessages<'a> {
    /// Joins the other ranks of `comm`, all of which must call this with an equal `path`, which is a group's
    /// [`super::DeviceGroup::path`]. `queue` is the stream of NCCL's messages.
    ///
    /// # Errors
    /// Some rank did not join by the deadline; the driver refused a call.
    pub fn open(
        comm: impl Into<Grouped<'a>>,
        queue: Queue,
        path: ReducePath,
        deadline: Duration,
    ) -> Result<DeviceMessages<'a>> {
        let comm = comm.into();
        let marks = (queue.mark().map_err(failed)?, queue.mark().map_err(failed)?);
        let over = match path {
            ReducePath::Nccl | ReducePath::Scheduled => Over::Nccl(Box::new(join(&comm, &queue, deadline)?)),
            ReducePath::Device if comm.of_one_process() => Over::Device,
            ReducePath::Auto | ReducePath::Device | ReducePath::Host => Over::Host,
        };
        Ok(DeviceMessages { comm, queue, over, marks, sent: Vec::new(), expected: Vec::new() })
    }

    /// Checks once whether NCCL has found a failure of this group.
    ///
    /// # Errors
    /// The failure.
    pub fn poll(&mut self, what: &str) -> Result<()> {
        match &mut self.over {
            Over::Nccl(comm) => comm.poll(what),
            Over::Device | Over::Host => Ok(()),
        }
    }

    /// Notes that all messages that were queued so far are done.
    pub fn settled(&mut self) {
        if let Over::Nccl(comm) = &mut self.over {
            comm.settled();
        }
    }

    /// The stream of NCCL's messages.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Sends `data`, as it is after all earlier work of `after`, without waiting until it has arrived.
    ///
    /// # Errors
    /// A lost peer, a deadline, a call that the driver refused.
    pub fn send(&mut self, after: &Queue, data: Arc<Memory>, to: Rank) -> Result<()> {
        let by = match &mut self.over {
            Over::Nccl(comm) => {
                self.marks.0.move_to(after).map_err(failed)?;
                self.queue.wait(&self.marks.0).map_err(failed)?;
                comm.send(data.all(), to)?;
                SentBy::Nccl
            }
            Over::Device => {
                let number = show(after.mark().map_err(failed)?);
                let message = vec![data.address() as i64, data.device() as i64, data.len() as i64, number];
                SentBy::Device(self.comm.send_async(message.into(), to)?)
            }
            Over::Host => {
                let values: Vec<u8> = after.download(data.all()).map_err(failed)?;
                SentBy::Host(self.comm.send_async(values.into(), to)?)
            }
        };
        self.sent.push(Sent { by, _memory: data });
        Ok(())
    }

    /// Receives into `data`; later work of `before` uses it.
    ///
    /// # Errors
    /// The errors of [`DeviceMessages::send`]; a message of another length.
    pub fn receive(&mut self, before: &Queue, data: Slice<'_>, from: Rank) -> Result<()> {
        match &self.over {
            Over::Nccl(_) => {
                let expected = self.begin(before, data, from)?;
                self.end(before, expected, data, from)
            }
            Over::Device => {
                let mut shown = [0i64; 4];
                self.comm.recv(&mut shown, from)?;
                copy_shown(before, shown, data, from)
            }
            Over::Host => {
                let mut values = vec![0u8; data.len()];
                self.comm.recv(&mut values, from)?;
                before.write(data, &values).map_err(failed)
            }
        }
    }

    /// Begins to receive into `data`, which [`DeviceMessages::take`] returns.
    ///
    /// # Errors
    /// The errors of [`DeviceMessages::receive`].
    pub fn expect(&mut self, before: &Queue, data: Arc<Memory>, from: Rank) -> Result<()> {
        let by = self.begin(before, data.all(), from)?;
        self.expected.push(Expected { by, data, from });
        Ok(())
    }

    /// Whether all expected messages have arrived.
    ///
    /// # Errors
    /// The errors of [`DeviceMessages::receive`].
    pub fn have_come(&self) -> Result<bool> {
        let come = |expected: &Expected| match &expected.by {
            ExpectedBy::Nccl => self.queue.machine().idle(self.queue.stream()).map_err(failed),
            ExpectedBy::Device(work) => Ok(work.is_done()),
            ExpectedBy::Host(work) => Ok(work.is_done()),
        };
        // Messages of one peer arrive in order.
        self.expected.last().map_or(Ok(true), come)
    }

    /// Waits for all expected messages; later work of `before` uses them. They are returned in the order in which they were expected.
    ///
    /// # Errors
    /// The errors of [`DeviceMessages::receive`].
    pub fn take(&mut self, before: &Queue) -> Result<Vec<Arc<Memory>>> {
        let mut came = Vec::new();
        for Expected { by, data, from } in std::mem::take(&mut self.expected) {
            self.end(before, by, data.all(), from)?;
            came.push(data);
        }
        Ok(came)
    }

    fn begin(&mut self, before: &Queue, data: Slice<'_>, from: Rank) -> Result<ExpectedBy> {
        match &mut self.over {
            Over::Nccl(comm) => {
                self.marks.0.move_to(before).map_err(failed)?;
                self.queue.wait(&self.marks.0).map_err(failed)?;
                comm.recv(data, from)?;
                Ok(ExpectedBy::Nccl)
            }
            Over::Device => Ok(ExpectedBy::Device(self.comm.recv_async(vec![0i64; 4].into(), from)?)),
            Over::Host => Ok(ExpectedBy::Host(self.comm.recv_async(vec![0u8; data.len()].into(), from)?)),
        }
    }

    fn end(&mut self, before: &Queue, expected: ExpectedBy, data: Slice<'_>, from: Rank) -> Result<()> {
        match expected {
            ExpectedBy::Nccl => {
                self.marks.1.move_to(&self.queue).map_err(failed)?;
                before.wait(&self.marks.1).map_err(failed)
            }
            ExpectedBy::Device(work) => {
                let message = work.wait()?;
                copy_shown(before, [0, 1, 2, 3].map(|at| message[at]), data, from)
            }
            ExpectedBy::Host(work) => before.write(data, &work.wait()?).map_err(failed),
        }
    }

    /// Returns the memory of all messages that were sent, after a sum over all ranks' compute queues, of which `queue` is this rank's; or
    /// after a message that each receiver has sent back after it took these messages.
    ///
    /// # Errors
    /// The errors of [`DeviceMessages::send`].
    pub fn flush(&mut self, queue: &Queue) -> Result<()> {
        if let (Over::Nccl(_), false) = (&self.over, self.sent.is_empty()) {
            self.marks.1.move_to(&self.queue).map_err(failed)?;
            queue.wait(&self.marks.1).map_err(failed)?;
        }
        for Sent { by, .. } in self.sent.drain(..) {
            match by {
                SentBy::Nccl => {}
                SentBy::Device(work) => drop(work.wait()?),
                SentBy::Host(work) => drop(work.wait()?),
            }
        }
        Ok(())
    }

    /// Aborts this rank's part in NCCL's messages in flight, as [`super::DeviceGroup::abandon`] does for sums.
    pub fn abandon(&mut self, why: &str) {
        self.comm.abort_own(why);
        if let Over::Nccl(comm) = &mut self.over {
            comm.abandon();
        }
    }
}

/// Copies memory that rank `from` has announced, by its address, its device, its bytes and the event after which it is ready.
fn copy_shown(
    before: &Queue,
    [address, device, bytes, ready]: [i64; 4],
    data: Slice<'_>,
    from: Rank,
) -> Result<()> {
    let ready = shown(ready)?;
    if bytes != data.len() as i64 {
        return Err(Error::Argument(format!(
            "rank {from} sent {bytes} bytes, and this rank receives {}",
            data.len()
        )));
    }
    #[allow(unsafe_code, reason = "threads of one process show each other addresses")]
    // SAFETY: the sender retains the memory until its compute queue waits for work that is queued after this copy.
    let lent = unsafe { Memory::lent(before.machine(), device as usize, address as u64, bytes as usize) };
    before.wait(&ready).map_err(failed)?;
    before.copy(data, lent.all()).map_err(failed)
}
