//! A pipe in each direction between two sides that share memory: one side writes bytes, the other reads them in order.
//!
//! ```text
//! 0     side 0:  bytes put  |  128  bytes taken  |  256  whether side 0 sleeps
//! 512   side 1:  bytes put  |  640  bytes taken  |  768  whether side 1 sleeps
//! 4096  ring of bytes that side 0 has put and side 1 has not taken  |  ring of bytes from side 1 to side 0
//! ```
//!
//! A side with nothing to do announces that it sleeps, checks the pipe once more, and sleeps. After every write or read, a side checks
//! whether the other side sleeps. The caller makes a side sleep and wakes it, by a socket, which also reports a dead peer.

use super::memory::Memory;
use super::sync::{Nap, Word};
use crate::reduce::simd::copy_apart;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The capacity in bytes of each direction, small enough that both directions stay in a core's cache.
const CAPACITY: usize = 256 << 10;
/// After this many bytes the writer updates its count, so that the reader reads them while the writer continues.
const PIECE: usize = 32 << 10;
const LINE: usize = 128;
const SIDE: usize = 4 * LINE;
const DATA: usize = 4096;
const BYTES: usize = DATA + 2 * CAPACITY;

/// One side's end of a pipe.
pub struct Pipe {
    memory: Arc<Memory>,
    side: usize,
    /// The number of bytes written, and `taken` the number read, as this side's words show them to the other side.
    put: u64,
    taken: u64,
}

/// The error for counts of the other side that are impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

/// The events that end a side's sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// Whether the side waits for bytes to take.
    pub bytes: bool,
    /// Whether the side waits for space for more bytes.
    pub room: bool,
}

impl Pipe {
    /// Both ends of a pipe within this process.
    pub fn pair() -> [Pipe; 2] {
        let memory = Arc::new(Memory::own(BYTES));
        [0, 1].map(|side| Pipe { memory: memory.clone(), side, put: 0, taken: 0 })
    }

    /// Makes a pipe in memory without a file name and returns one end. Another process opens the other end by the descriptor.
    ///
    /// # Errors
    /// The system cannot provide the memory.
    pub fn shared(name: &str) -> std::io::Result<(Pipe, OwnedFd)> {
        let (memory, fd) = Memory::shared(name, BYTES)?;
        Ok((Pipe { memory: Arc::new(memory), side: 0, put: 0, taken: 0 }, fd))
    }

    /// Opens the other end of a [`Pipe::shared`] by its descriptor; to be called once.
    ///
    /// # Errors
    /// The descriptor is not a pipe.
    pub fn attach(fd: OwnedFd) -> std::io::Result<Pipe> {
        let memory = Arc::new(Memory::attach(fd, [BYTES, BYTES])?);
        Ok(Pipe { memory, side: 1, put: 0, taken: 0 })
    }

    /// Writes the first of `bytes`, as many as there is space for, and returns their number.
    ///
    /// # Errors
    /// The other side's counts are impossible.
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize, Damaged> {
        let mut done = 0;
        while done < bytes.len() {
            let space = CAPACITY - self.prepared(self.put, self.word(1 - self.side, 1).get())?;
            let at = self.put as usize % CAPACITY;
            let piece = space.min(CAPACITY - at).min(PIECE).min(bytes.len() - done);
            if piece == 0 {
                break;
            }
            // SAFETY: `at` and `piece` lie inside this side's ring; the other side reads none of these bytes before this side's count
            // includes them.
            unsafe {
                let to = self.memory.base().add(DATA + self.side * CAPACITY + at);
                copy_apart(bytes[done..].as_ptr(), to.as_ptr(), piece);
            }
            self.put += piece as u64;
            self.word(self.side, 0).set(self.put);
            done += piece;
        }
        Ok(done)
    }

    /// Reads the bytes that are available, at most as many as `into` holds, and returns their number.
    ///
    /// # Errors
    /// The other side's counts are impossible.
    pub fn take(&mut self, into: &mut [u8]) -> Result<usize, Damaged> {
        let mut done = 0;
        while done < into.len() {
            let there = self.prepared(self.word(1 - self.side, 0).get(), self.taken)?;
            let at = self.taken as usize % CAPACITY;
            let piece = there.min(CAPACITY - at).min(PIECE).min(into.len() - done);
            if piece == 0 {
                break;
            }
            // SAFETY: `at` and `piece` lie inside the other side's ring; that side does not overwrite these bytes before this
            // side's count allows it. A side that breaks this rule only changes the bytes' values, and any value is valid.
            unsafe {
                let from = self.memory.base().add(DATA + (1 - self.side) * CAPACITY + at);
                copy_apart(from.as_ptr(), into[done..].as_mut_ptr(), piece);
            }
            self.taken += piece as u64;
            self.word(self.side, 1).set(self.taken);
            done += piece;
        }
        Ok(done)
    }

    /// Whether the other side sleeps and has to be woken; call this after a write or read. True once per sleep.
    pub fn must_wake(&self) -> bool {
        Nap(self.word(1 - self.side, 2)).wake_peer()
    }

    /// Announces that this side is going to sleep. Returns false if an event of `wants` has happened: then this side must not
    /// sleep.
    pub fn prepare_sleep(&self, wants: Wants) -> bool {
        Nap(self.word(self.side, 2)).prepare_sleep();
        let there = self.word(1 - self.side, 0).get() != self.taken;
        let full = self.put.wrapping_sub(self.word(1 - self.side, 1).get()) == CAPACITY as u64;
        !(wants.bytes && there || wants.room && !full)
    }

    /// Announces that this side is awake.
    pub fn finish_sleep(&self) {
        Nap(self.word(self.side, 2)).finish_sleep();
    }

    /// The number of unread bytes in a ring.
    fn prepared(&self, put: u64, taken: u64) -> Result<usize, Damaged> {
        let prepared = put.wrapping_sub(taken);
        if prepared <= CAPACITY as u64 { Ok(prepared as usize) } else { Err(Damaged) }
    }

    /// A word of a side: 0 counts the bytes put, 1 the bytes taken, 2 is whether the side sleeps.
    fn word(&self, side: usize, which: usize) -> &AtomicU64 {
        // SAFETY: the offset is a multiple of eight inside the memory, which began as zeros and is accessed here by atomics only.
        unsafe { self.memory.base().add(side * SIDE + which * LINE).cast::<AtomicU64>().as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(seed: usize, len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]
        #[test]
        fn bytes_arrive_in_order_in_both_directions(
            sizes in proptest::collection::vec((1usize..200_000, 1usize..200_000), 1..12)
        ) {
            let mut ends = Pipe::pair();
            let (mut sent, mut got) = ([const { Vec::<u8>::new() }; 2], [const { Vec::<u8>::new() }; 2]);
            let last = [(0, 2 * CAPACITY)];
            for (round, (put, take)) in sizes.into_iter().chain(last).enumerate() {
                for way in 0..2 {
                    let piece = bytes(round + way, put);
                    let done = ends[way].put(&piece).unwrap();
                    sent[way].extend(&piece[..done]);
                    let mut buffer = vec![0; take];
                    let done = ends[1 - way].take(&mut buffer).unwrap();
                    got[way].extend(&buffer[..done]);
                }
            }
            prop_assert!(sent == got);
        }
    }

    #[test]
    fn a_pipe_holds_so_much_and_says_when_there_is_room() {
        let [mut a, mut b] = Pipe::pair();
        let all = bytes(1, CAPACITY + 1);
        let (room, bytes) = (Wants { bytes: false, room: true }, Wants { bytes: true, room: false });
        assert!(b.prepare_sleep(bytes) && !b.prepare_sleep(room));
        assert_eq!(a.put(&all), Ok(CAPACITY));
        assert!(a.must_wake() && !a.must_wake(), "b is woken once");
        assert!(a.prepare_sleep(room));
        assert_eq!(b.take(&mut [0; 10]), Ok(10));
        assert!(b.must_wake());
        assert!(!a.prepare_sleep(room));
        a.finish_sleep();
        assert!(!b.must_wake(), "nobody sleeps");
    }

    #[test]
    fn counts_that_cannot_be_are_refused() {
        let [mut a, mut b] = Pipe::pair();
        a.word(0, 0).set(CAPACITY as u64 + 1);
        assert_eq!(b.take(&mut [0; 8]), Err(Damaged));
        b.word(1, 1).set(9);
        assert_eq!(a.put(&[0; 8]), Err(Damaged));
    }

    #[cfg(target_os = "linux")]
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn the_other_end_is_found_by_the_descriptor() {
        let (mut here, fd) = Pipe::shared("allfold-test").unwrap();
        let mut there = Pipe::attach(fd).unwrap();
        assert_eq!(there.put(b"over here"), Ok(9));
        let mut heard = [0; 16];
        assert_eq!((here.take(&mut heard), &heard[..9]), (Ok(9), &b"over here"[..]));
        let (_, other) = Memory::shared("allfold-test", 4096).unwrap();
        assert!(Pipe::attach(other).is_err(), "of another size");
    }

    #[test]
    fn two_threads_pass_on_everything() {
        let [mut a, mut b] = Pipe::pair();
        let all = bytes(3, if cfg!(miri) { 300_000 } else { 20 << 20 });
        let got = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut left = &all[..];
                while !left.is_empty() {
                    let done = a.put(left).unwrap();
                    left = &left[done..];
                    if done == 0 {
                        std::thread::yield_now();
                    }
                }
            });
            let mut got = vec![0; all.len()];
            let mut done = 0;
            while done < got.len() {
                let more = b.take(&mut got[done..]).unwrap();
                done += more;
                if more == 0 {
                    std::thread::yield_now();
                }
            }
            got
        });
        assert!(got == all);
    }
}
