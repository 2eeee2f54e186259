//! From messages to shared memory, where all ranks are processes of one host.

use super::Communicator;
use crate::backends::SegmentHandle;
use crate::backends::shm::Segment;
use crate::{Buffer, Element, Error, Rank, ReduceOp, Result};

/// Smaller buffers go by slots either way.
const SMALLEST: usize = 4 << 10;

impl Communicator {
    /// Whether the data of its collectives goes through memory that all of its ranks share.
    pub fn shares_memory(&self) -> bool {
        self.connection.borrow().shares_memory()
    }

    /// `len` elements, all bits zero, that the other ranks of this communicator can reach where they are, if they are
    /// processes that share memory; else as [`Buffer::zeroed`].
    ///
    /// A collective whose buffers all ranks got this way reads and writes them in place of copies through slots: the same
    /// bits, some three times as soon where the buffers are large. It takes the buffer, or slices of it that begin and end
    /// at multiples of 64 KiB of it (the last one ends with it); other slices, and other communicators, take it as any
    /// memory. What NCCL calls registered buffers. Freed when dropped; ranks need not agree on how many they have.
    ///
    /// After an error of a collective that works in place, the buffer that it was to write holds nothing of meaning.
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

    /// Lets the data of this communicator's collectives go through shared memory from now on, if all its ranks are on
    /// one host and can map a segment of rank 0's. Whether they do: all of them, or none. The results are the same bits.
    /// Communicators split off later do the same.
    ///
    /// Every rank must call it, before any asynchronous operation; it is two small collectives. The segment has no name
    /// and is gone with the last rank, however that ends.
    ///
    /// # Errors
    /// [`Error::Argument`] on virtual time: there only messages take time. Else as of any collective.
    pub fn share_memory(&mut self) -> Result<bool> {
        // Threads share all memory anyway; and one rank has nobody to share with.
        if self.size() == 1 || self.shares_memory() {
            return Ok(self.shares_memory());
        }
        if self.connection.borrow_mut().messages().monitor().is_none() {
            return Err(Error::Argument(
                "ranks on virtual time share no memory: what they do there would take no time".into(),
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
        // The segment's descriptor stays open until all have said whether they have mapped it.
        let mut have = [i64::from(sync_segment.is_some() && self.membership.outstanding().is_none())];
        self.all_reduce(&mut have, ReduceOp::Min)?;
        let Some((sync_segment, _segment)) = sync_segment.filter(|_| have == [1]) else { return Ok(false) };
        let _ = self.membership.sync_segment.set(sync_segment);
        self.connection.replace(self.membership.connect(self.membership.task));
        self.prepared.take();
        Ok(true)
    }
}
