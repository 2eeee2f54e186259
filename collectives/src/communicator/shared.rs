//! Shared memory between ranks that are processes of one host.

use super::Communicator;
use crate::backends::SegmentHandle;
use crate::backends::shm::Segment;
use crate::{Buffer, Element, Error, Rank, ReduceOp, Result};

/// Buffers of at most this many bytes are not registered: they are copied through slots in any case.
const SMALLEST: usize = 4 << 10;

impl Communicator {
    /// Whether the data of this communicator's collectives are exchanged through shared memory.
    pub fn shares_memory(&self) -> bool {
        self.connection.borrow().shares_memory()
    }

    /// A registered buffer of `len` elements, all bits zero, which the other ranks of this communicator access in place.
    /// If they do not share memory, or for at most 4 KiB: the same as [`Buffer::zeroed`].
    ///
    /// If all ranks pass registered buffers, a collective reads and writes them in place instead of copying through slots: the same bits,
    /// about three times as fast for large buffers. The same holds for slices that begin and end at multiples of 64 KiB of the buffer (or
    /// at its end). For other slices, and in other communicators, the buffer is ordinary memory. (Compare NCCL's registered buffers.) The
    /// buffer is freed when dropped; ranks may register different numbers of buffers.
    ///
    /// After a failed collective the content of its output buffer is undefined.
    ///
    /// ```
    /// use allfold_collectives::{Communicator, Error, ReduceOp, World};
    ///
    /// let sums = World::shm(2).run(|comm: Communicator| -> Result<f32, Error> {
    ///     let mut gradient = comm.buffer::<f32>(100_000);
    ///     gradient.fill(comm.rank().0 as f32 + 0.5);
    ///     comm.all_reduce(&mut gradient, ReduceOp::Sum)?;
    ///     Ok(gradient[99_999])
    /// })?;
    /// assert_eq!(sums, [2.0, 2.0]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn buffer<T: Element>(&self, len: usize) -> Buffer<T> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| *bytes > SMALLEST);
        let registered =
            bytes.and_then(|bytes| self.membership.sync_segment.get()?.register(self.rank().0, bytes));
        registered.map_or_else(|| Buffer::zeroed(len), Buffer::shared)
    }

    /// Sends the data of this communicator's collectives through shared memory from now on, if all its ranks are on one host and
    /// can map a segment of rank 0. Returns whether they do: all ranks or none. The results have the same bits.
    /// Communicators that are split off later inherit it.
    ///
    /// Every rank must call it before any asynchronous operation; it costs two small collectives. The segment has no name
    /// and disappears with the last rank, however that ends.
    ///
    /// # Errors
    /// [`Error::Argument`] on virtual time, because only messages take virtual time. Otherwise the errors of any collective.
    pub fn share_memory(&mut self) -> Result<bool> {
        // Threads share all memory anyway, and a single rank has no peer.
        if self.size() == 1 || self.shares_memory() {
            return Ok(self.shares_memory());
        }
        if self.connection.borrow_mut().messages().monitor().is_none() {
            return Err(Error::Argument(
                "ranks on virtual time cannot share memory, because accesses to it would take no virtual time".into(),
            ));
        }
        let segment = (self.rank() == Rank(0)).then(|| Segment::new(self.size())).flatten();
        let mine = Segment::segment_handle(segment.as_ref());
        let mut words = vec![0; SegmentHandle::WORDS * self.size() as usize];
        self.all_gather(&mine.words(), &mut words)?;
        let all: Option<Vec<SegmentHandle>> =
            words.chunks(SegmentHandle::WORDS).map(SegmentHandle::read).collect();
        let all = all.unwrap_or_default();
        let subgroup_of = !all.is_empty() && all.iter().all(|other| other.is_same_host(&mine));
        let sync_segment = match segment {
            _ if !subgroup_of => None,
            Some(segment) => {
                Some(segment.sync_segment.clone()).map(|sync_segment| (sync_segment, Some(segment)))
            }
            None => Segment::accept(&all[0], self.size()).map(|sync_segment| (sync_segment, None)),
        };
        // The segment's descriptor stays open until all ranks have reported whether they have mapped the segment.
        let mut have = [i64::from(sync_segment.is_some() && self.membership.outstanding().is_none())];
        self.all_reduce(&mut have, ReduceOp::Min)?;
        let Some((sync_segment, _segment)) = sync_segment.filter(|_| have == [1]) else { return Ok(false) };
        let _ = self.membership.sync_segment.set(sync_segment);
        self.connection.replace(self.membership.connect(self.membership.task));
        self.prepared.take();
        Ok(true)
    }
}
