//! Ranks that are processes of one host: each has memory and two events that the others open by CUDA's handles (IPC).
//!
//! ```text
//! rank r    copy data to own memory, event "ready" | compare calls | wait for all | own part, as threads do | event "done" | wait for all
//!           | copy own memory to data
//! ```
//!
//! The memory grows with the largest buffer. It is freed after all other ranks have closed it, which the driver asks for; after a failure,
//! when that is unknown, it is left to the end of the process.

use super::reach::MOST_RANKS;
use crate::driver::failed;
use crate::nccl::{again, host, until};
use crate::{Communicator, Error, Result};
use allfold_cuda::{IpcHandle, Mark, Memory, Queue, Slice};
use std::time::Duration;

/// The bytes of the text by which a rank says why it cannot take part; blank if it can.
const TEXT: usize = 160;

/// A rank's memory, and its events.
pub(super) struct Place {
    memory: Memory,
    pub ready: Mark,
    pub done: Mark,
}

/// The places of all ranks: this rank's own, and the others' as it has opened them.
pub(super) struct Across {
    pub comm: Communicator,
    pub queue: Queue,
    deadline: Duration,
    pub places: Vec<Place>,
    /// Whether a rank may still use what another one has, so that nothing is freed.
    pub broken: bool,
}

/// The first rank that says why it cannot take part, in words. Every rank must call it.
fn trouble(comm: &Communicator, own: &str) -> Result<Option<String>> {
    let mut mine = [b' '; TEXT];
    mine.iter_mut().zip(own.bytes()).for_each(|(place, byte)| *place = byte);
    let mut all = vec![0u8; TEXT * comm.size() as usize];
    comm.all_gather(&mine, &mut all)?;
    let words = all.chunks(TEXT).map(|text| String::from_utf8_lossy(text).trim_end().to_string());
    Ok(words
        .enumerate()
        .find(|(_, text)| !text.is_empty())
        .map(|(rank, text)| format!("rank {rank}: {text}")))
}

/// Why the ranks cannot share memory whatever their GPUs; `None` if they may. Every rank must call it.
fn apart(comm: &Communicator) -> Result<Option<String>> {
    let (mine, ranks) = (host(), comm.size());
    let mut all = vec![0u8; mine.len() * ranks as usize];
    comm.all_gather(&mine, &mut all)?;
    let other = all.chunks(mine.len()).position(|host| host != &all[..mine.len()]);
    Ok(match other {
        Some(other) => Some(format!("ranks 0 and {other} are on different hosts")),
        None if ranks > MOST_RANKS => Some(format!("{ranks} ranks; {MOST_RANKS} at most share memory")),
        None => None,
    })
}

/// This rank's place with memory for `bytes` bytes, and the handles of its memory and events.
fn own_place(queue: &Queue, bytes: usize) -> allfold_cuda::Result<(Place, [IpcHandle; 3])> {
    let (memory, by) = Memory::shared(queue, bytes)?;
    let ((ready, is_ready), (done, is_done)) = (Mark::shared(queue)?, Mark::shared(queue)?);
    Ok((Place { memory, ready, done }, [by, is_ready, is_done]))
}

/// The places of all ranks; or why a rank has none, or cannot open another's.
fn places(
    comm: &Communicator,
    queue: &Queue,
    bytes: usize,
) -> Result<std::result::Result<Vec<Place>, String>> {
    let made = own_place(queue, bytes);
    let (said, mine) = match &made {
        Ok((_, handles)) => (String::new(), *handles),
        Err(error) => (error.to_string(), [[0; 64]; 3]),
    };
    let mut all = vec![0u8; size_of_val(&mine) * comm.size() as usize];
    comm.all_gather(mine.as_flattened(), &mut all)?;
    if let Some(why) = trouble(comm, &said)? {
        return Ok(Err(why));
    }
    let (own, _) = made.map_err(failed)?;
    let (size, rank) = (own.memory.len(), comm.rank().index());
    let (handles, _) = all.as_chunks::<64>();
    let mut opened = Vec::new();
    let mut said = String::new();
    for (_, by) in handles.chunks(3).enumerate().filter(|(other, _)| *other != rank) {
        #[allow(unsafe_code, reason = "another process's memory")]
        // SAFETY: all ranks made memory of this size, and free it after all have dropped what they opened, or not at all.
        let memory = unsafe { Memory::opened(queue, &by[0], size) };
        let place = memory.and_then(|memory| {
            Ok(Place { memory, ready: Mark::opened(queue, &by[1])?, done: Mark::opened(queue, &by[2])? })
        });
        match place {
            Ok(place) => opened.push(place),
            Err(error) => said = error.to_string(),
        }
    }
    match trouble(comm, &said)? {
        None => {
            opened.insert(rank, own);
            Ok(Ok(opened))
        }
        Some(why) => {
            drop(opened);
            comm.barrier()?;
            Ok(Err(why))
        }
    }
}

impl Across {
    /// Joins the ranks of `comm`, all of which must call it; or says why they share no memory.
    pub fn open(
        comm: &Communicator,
        queue: &Queue,
        deadline: Duration,
    ) -> Result<std::result::Result<Across, String>> {
        if let Some(why) = apart(comm)? {
            return Ok(Err(why));
        }
        let comm = again(comm)?;
        let made = places(&comm, queue, 1)?;
        let queue = queue.clone();
        Ok(made.map(|places| Across { comm, queue, deadline, places, broken: false }))
    }

    fn own(&self) -> &Place {
        &self.places[self.comm.rank().index()]
    }

    /// The event after which this rank's part is done.
    pub fn done(&self) -> Mark {
        self.own().done.clone()
    }

    /// Whether the ranks' memory holds so many bytes.
    pub fn holds(&self, bytes: usize) -> bool {
        bytes <= self.own().memory.len()
    }

    /// Queues the copy of this rank's data to its memory.
    pub fn fill(&self, data: Slice<'_>) -> Result<()> {
        let Place { memory, ready, .. } = self.own();
        self.queue.copy(memory.all().part(0, data.len()).map_err(failed)?, data).map_err(failed)?;
        ready.move_to(&self.queue).map_err(failed)
    }

    /// Closes what other ranks have, and gives back this rank's place when all have closed it.
    fn close(&mut self) -> Result<()> {
        let idle = || self.queue.machine().idle(self.queue.stream()).map_err(failed);
        if !until(self.deadline, idle)? {
            return Err(Error::System("work of other ranks did not end".into()));
        }
        let own = self.places.swap_remove(self.comm.rank().index());
        self.places.clear();
        let closed = self.comm.barrier();
        if closed.is_err() {
            std::mem::forget(own);
        }
        closed
    }

    /// Replaces all ranks' memory by memory for `bytes` bytes.
    pub fn grow(&mut self, bytes: usize) -> Result<()> {
        self.close()?;
        self.places = places(&self.comm, &self.queue, bytes)?.map_err(Error::System)?;
        Ok(())
    }

    /// Views of the first `bytes` bytes of all ranks' memory.
    pub fn views(&self, bytes: usize) -> Vec<Memory> {
        let view = |place: &Place| {
            let (address, device) = (place.memory.address(), place.memory.device());
            #[allow(unsafe_code, reason = "views of the same memory")]
            // SAFETY: the memory has so many bytes, and stays until all work on it has run.
            unsafe {
                Memory::lent(self.queue.machine(), device, address, bytes)
            }
        };
        self.places.iter().map(view).collect()
    }
}

impl Drop for Across {
    fn drop(&mut self) {
        if self.broken || std::thread::panicking() || self.close().is_err() {
            std::mem::forget(std::mem::take(&mut self.places));
        }
    }
}
