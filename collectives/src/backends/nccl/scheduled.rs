//! Any schedule of the table, by grouped sends and receives and our own kernels: the bits that its trees say.
//!
//! ```text
//! a round:   pack what is sent (where its chunks do not lie together)
//!            group { send it; receive into a place aside }      both halves posted before either is awaited
//!            copy or reduce what came into its place            so a send carries the value from before its step
//! ```

use super::comm::{NcclComm, failed};
use crate::schedule::{Combine, Place, Schedule, Span};
use crate::{DType, Error, Geometry, Rank, ReduceOp, Result};
use allfold_kernels::cuda::{Memory, Queue, Slice, launch};
use std::collections::BTreeMap;

/// What moves bytes between ranks' devices: NCCL, or a test's stand-in.
pub trait Wire {
    /// The stream that copies and kernels are queued on, in order with what is exchanged.
    fn queue(&self) -> Queue;
    /// Sends and receives at once. Each part is whole and stays as it is until the stream has passed.
    ///
    /// # Errors
    /// What the wire says.
    fn exchange(&mut self, send: Option<(Slice<'_>, Rank)>, recv: Option<(Slice<'_>, Rank)>) -> Result<()>;
}

impl Wire for NcclComm {
    fn queue(&self) -> Queue {
        self.queue.clone()
    }

    fn exchange(&mut self, send: Option<(Slice<'_>, Rank)>, recv: Option<(Slice<'_>, Rank)>) -> Result<()> {
        self.group("exchange a round", |comm| {
            send.map_or(Ok(()), |(data, to)| comm.post_send(data, to))?;
            recv.map_or(Ok(()), |(data, from)| comm.post_recv(data, from))
        })
    }
}

/// A rank's bytes during one collective.
struct Store<'a> {
    queue: Queue,
    data: Slice<'a>,
    geometry: &'a Geometry,
    dtype: DType,
    op: ReduceOp,
    shadows: BTreeMap<u32, Memory>,
}

impl Store<'_> {
    /// The parts of a span in order; empty ones are left out, neighbours joined.
    fn parts(&self, span: Span) -> Result<Vec<Slice<'_>>> {
        let whole = match span.place {
            Place::Data => self.data,
            Place::Scratch(shadow) => {
                let found = self.shadows.get(&shadow).map(Memory::all);
                found.ok_or_else(|| Error::Argument(format!("nothing was written to shadow {shadow}")))?
            }
        };
        let mut ranges: Vec<std::ops::Range<u64>> = Vec::new();
        for range in self.geometry.ranges(span).filter(|range| !range.is_empty()) {
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        let size = self.dtype.size();
        let cut =
            |r: &std::ops::Range<u64>| whole.part(r.start as usize * size, (r.end - r.start) as usize * size);
        ranges.iter().map(|range| cut(range).map_err(failed)).collect()
    }

    /// The bytes of a span in one piece: `aside` if they do not lie so, or must be kept as they are now.
    fn packed<'s>(&'s self, span: Span, keep: bool, aside: &'s Memory) -> Result<Slice<'s>> {
        let parts = self.parts(span)?;
        if let ([part], false) = (&parts[..], keep) {
            return Ok(*part);
        }
        let mut at = 0;
        for part in parts {
            self.queue.copy(aside.all().part(at, part.len()).map_err(failed)?, part).map_err(failed)?;
            at += part.len();
        }
        aside.all().part(0, at).map_err(failed)
    }

    /// Puts what came in its place.
    fn apply(&self, span: Span, how: Combine, came: Slice<'_>) -> Result<()> {
        let mut at = 0;
        for part in self.parts(span)? {
            let from = came.part(at, part.len()).map_err(failed)?;
            match how {
                Combine::Copy => self.queue.copy(part, from).map_err(failed)?,
                Combine::Reduce => {
                    launch::reduce(&self.queue, self.dtype, self.op, part, from).map_err(failed)?;
                }
            }
            at += part.len();
        }
        Ok(())
    }
}

/// Runs one rank's part of a schedule in place over its whole data, which has the geometry's count of elements. Queued
/// on the wire's stream when it returns; an average is divided at the end.
///
/// # Errors
/// Lengths that do not fit, a schedule that cannot be run, or what the wire says.
pub fn run_scheduled(
    wire: &mut dyn Wire,
    rank: Rank,
    schedule: &dyn Schedule,
    geometry: &Geometry,
    (dtype, op): (DType, ReduceOp),
    divide: bool,
    data: Slice<'_>,
) -> Result<()> {
    let queue = wire.queue();
    if data.elements(dtype.size()).map_err(failed)? != geometry.count() {
        return Err(Error::Argument(format!("{} bytes for {} x {dtype}", data.len(), geometry.count())));
    }
    let (out, came) = (queue.memory(data.len()).map_err(failed)?, queue.memory(data.len()).map_err(failed)?);
    let mut store = Store { queue: queue.clone(), data, geometry, dtype, op, shadows: BTreeMap::new() };
    let mut next = schedule.next(rank, 0);
    while let Some(round) = next {
        next = schedule.next(rank, round + 1);
        let step = schedule.step(rank, round);
        if let Some((_, Span { place: Place::Scratch(shadow), .. }, _)) = step.recv
            && !store.shadows.contains_key(&shadow)
        {
            store.shadows.insert(shadow, queue.memory(data.len()).map_err(failed)?);
        }
        let local = step.send.is_some_and(|(to, _)| to == rank);
        let packed = |(to, span)| Ok::<_, Error>((store.packed(span, local, &out)?, to));
        let send: Option<(Slice<'_>, Rank)> = step.send.map(packed).transpose()?;
        if let (true, Some((value, _)), Some((_, into, how))) = (local, send, step.recv) {
            store.apply(into, how, value)?;
            continue;
        }
        let bytes = |span| store.geometry.elements(span) as usize * dtype.size();
        let aside =
            |(from, span, _)| Ok::<_, Error>((came.all().part(0, bytes(span)).map_err(failed)?, from));
        let recv: Option<(Slice<'_>, Rank)> = step.recv.map(aside).transpose()?;
        // Chunks may be empty; both sides know, and pass no message then.
        let some = |half: Option<(Slice<'_>, Rank)>| half.is_some_and(|(part, _)| !part.is_empty());
        if some(send) || some(recv) {
            wire.exchange(send.filter(|half| some(Some(*half))), recv.filter(|half| some(Some(*half))))?;
        }
        if let (Some((_, span, how)), Some((value, _))) = (step.recv, recv) {
            store.apply(span, how, value)?;
        }
    }
    if divide {
        launch::divide(&queue, dtype, data, schedule.ranks()).map_err(failed)?;
    }
    // The places aside are given back when all that was queued has run.
    queue.finish().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::symbolic;
    use crate::registry::{ALGORITHMS, Shape};
    use allfold_kernels::cuda::{Order, Shim};
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Bytes between threads, by way of the host.
    struct Mail {
        queue: Queue,
        rank: Rank,
        out: BTreeMap<Rank, Sender<Vec<u8>>>,
        inbox: BTreeMap<Rank, Receiver<Vec<u8>>>,
    }

    impl Wire for Mail {
        fn queue(&self) -> Queue {
            self.queue.clone()
        }

        fn exchange(
            &mut self,
            send: Option<(Slice<'_>, Rank)>,
            recv: Option<(Slice<'_>, Rank)>,
        ) -> Result<()> {
            let lost = |_| Error::System("the peer is gone".into());
            if let Some((part, to)) = send {
                assert_ne!(to, self.rank, "a local step is no message");
                let bytes = self.queue.download::<u8>(part).map_err(failed)?;
                self.out[&to].send(bytes).map_err(|_| Error::System("the peer is gone".into()))?;
            }
            if let Some((part, from)) = recv {
                let bytes =
                    self.inbox[&from].recv_timeout(std::time::Duration::from_secs(60)).map_err(lost)?;
                self.queue.write(part, &bytes).map_err(failed)?;
            }
            Ok(())
        }
    }

    fn mails(ranks: u32) -> Vec<Mail> {
        let machine = Shim::open(Order::Upwards).unwrap();
        let queue = || Queue::new(machine.clone(), 0).unwrap();
        let mail = |rank| Mail { queue: queue(), rank, out: BTreeMap::new(), inbox: BTreeMap::new() };
        let mut mails: Vec<Mail> = (0..ranks).map(|rank| mail(Rank(rank))).collect();
        for from in 0..ranks {
            for to in 0..ranks {
                let (sender, receiver) = channel();
                mails[from as usize].out.insert(Rank(to), sender);
                mails[to as usize].inbox.insert(Rank(from), receiver);
            }
        }
        mails
    }

    /// What NCCL will be asked for, with threads in its place: every algorithm, to the bit.
    #[test]
    fn every_algorithm_by_exchanges() {
        for algorithm in ALGORITHMS {
            for (ranks, per) in [(1, 3), (2, 5), (3, 4), (6, 7), (8, 16)] {
                let root = Rank(ranks / 2);
                let schedule = algorithm.build(Shape::new(ranks).unwrap().rooted(root).unwrap());
                let geometry = match algorithm.collective.blocked() {
                    true => Geometry::blocked(&*schedule, per),
                    false => Geometry::whole(&*schedule, 4 * per + 1),
                };
                let inputs: Vec<Vec<f32>> = (0..ranks)
                    .map(|rank| {
                        (0..geometry.count())
                            .map(|i| 1.0 + (i * 7 + u64::from(rank) * 13) as f32 / 31.0)
                            .collect()
                    })
                    .collect();
                let proof = symbolic(&*schedule, algorithm.collective, root).unwrap();
                let results: Vec<Vec<f32>> = std::thread::scope(|scope| {
                    let run = |mut mail: Mail| {
                        let (schedule, geometry, inputs) = (&schedule, &geometry, &inputs);
                        scope.spawn(move || {
                            let (rank, queue) = (mail.rank, mail.queue.clone());
                            let data = queue.upload(&inputs[rank.index()]).unwrap();
                            let kind = (DType::F32, ReduceOp::Sum);
                            run_scheduled(&mut mail, rank, &**schedule, geometry, kind, false, data.all())
                                .unwrap();
                            queue.download(data.all()).unwrap()
                        })
                    };
                    let threads: Vec<_> = mails(ranks).into_iter().map(run).collect();
                    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
                });
                for rank in (0..ranks).map(Rank) {
                    let add =
                        |into: &mut [f32], from: &[f32]| allfold_kernels::reduce(ReduceOp::Sum, into, from);
                    let want = proof.evaluate(rank, &geometry, &inputs, &add);
                    for chunk in 0..schedule.chunks() {
                        if proof.value(rank, chunk, 0).is_some() {
                            let range = geometry.piece(chunk, 0);
                            let range = range.start as usize..range.end as usize;
                            let got = &results[rank.index()][range.clone()];
                            assert_eq!(
                                got, &want[range],
                                "{algorithm:?}, {ranks} ranks, rank {rank}, chunk {chunk}"
                            );
                        }
                    }
                }
            }
        }
    }
}
