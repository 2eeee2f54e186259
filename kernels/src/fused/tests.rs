//! Tests of every pattern on threads, with random members, sizes and trees, against plainly computed results; and of members that
//! do not arrive or disagree.

#[cfg(not(miri))]
mod orders;
#[cfg(all(target_os = "linux", not(miri)))]
mod shared_memory;

use super::*;
use crate::{DType, Element, ReduceOp, divide, reduce};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A random reduction tree over all members.
#[derive(Clone, Debug)]
enum Tree {
    Leaf(u32),
    Join(Box<Tree>, Box<Tree>),
}

impl Tree {
    fn random(mut leaves: Vec<Tree>, mut seed: u64) -> Tree {
        while leaves.len() > 1 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let a = leaves.swap_remove((seed >> 33) as usize % leaves.len());
            let b = leaves.swap_remove((seed >> 13) as usize % leaves.len());
            leaves.push(Tree::Join(Box::new(a), Box::new(b)));
        }
        leaves.remove(0)
    }

    fn terms(&self) -> Vec<Term> {
        match self {
            Tree::Leaf(member) => vec![Term::Leaf(*member)],
            Tree::Join(a, b) => [a.terms(), b.terms(), vec![Term::Join]].concat(),
        }
    }

    fn value<T: Element>(&self, op: ReduceOp, of: &impl Fn(u32) -> Vec<T>) -> Vec<T> {
        match self {
            Tree::Leaf(member) => of(*member),
            Tree::Join(a, b) => {
                let mut into = a.value(op, of);
                reduce(op, &mut into, &b.value(op, of));
                into
            }
        }
    }
}

/// A wait policy that stops waiting at a given time.
struct Deadline(Instant);

impl WaitPolicy for Deadline {
    type Error = &'static str;
    #[allow(clippy::disallowed_methods)]
    fn wait(&mut self, _absent: &dyn Fn(u32) -> bool) -> Result<Duration, &'static str> {
        let now = Instant::now();
        if now < self.0 { Ok(self.0 - now) } else { Err("late") }
    }
}

#[allow(clippy::disallowed_methods)]
fn deadline(millis: u64) -> Deadline {
    Deadline(Instant::now() + Duration::from_millis(millis))
}

#[derive(Clone, Debug)]
struct Case {
    pattern: Pattern,
    members: u32,
    root: u32,
    op: ReduceOp,
    count: usize,
    slot_bytes: usize,
    in_place: bool,
    one_address_space: bool,
    cut: usize,
    seed: u64,
    /// Between processes: a bit per member that registers its buffers; `None` where buffers cannot be registered.
    registering: Option<u32>,
}

impl Case {
    /// Each member's view of the sync segment.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn sync_segments(&self) -> Vec<Arc<SyncSegment>> {
        let Case { members, slot_bytes, .. } = *self;
        let pace = Pace { looks: 20, yields: 3 };
        if self.registering.is_none() {
            return self.one_sync_segment();
        }
        let (first, fd) = SyncSegment::shared("a case", members, slot_bytes, pace).unwrap();
        let more = (1..members)
            .map(|_| SyncSegment::attach(fd.try_clone().unwrap(), members, slot_bytes, pace).unwrap());
        std::iter::once(first).chain(more).map(Arc::new).collect()
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn sync_segments(&self) -> Vec<Arc<SyncSegment>> {
        self.one_sync_segment()
    }

    fn one_sync_segment(&self) -> Vec<Arc<SyncSegment>> {
        let mut sync_segment = SyncSegment::new(self.members, self.slot_bytes, Pace { looks: 20, yields: 3 });
        sync_segment.one_address_space = self.one_address_space;
        let sync_segment = Arc::new(sync_segment);
        vec![sync_segment; self.members as usize]
    }
}

/// A member's buffer: registered, or an ordinary vector.
enum Home<T> {
    Registered(RegisteredBuffer),
    Own(Vec<T>),
}

impl<T: Element> Home<T> {
    fn of(sync_segment: &Arc<SyncSegment>, member: u32, registering: Option<u32>, len: usize) -> Home<T> {
        let wanted = registering.is_some_and(|members| members >> member & 1 == 1);
        let buffer = wanted.then(|| sync_segment.register(member, len * size_of::<T>())).flatten();
        buffer.map_or_else(|| Home::Own(vec![T::zeroed(); len]), Home::Registered)
    }

    fn get(&mut self) -> &mut [T] {
        match self {
            Home::Registered(buffer) => bytemuck::cast_slice_mut(buffer),
            Home::Own(own) => own,
        }
    }
}

fn patterns() -> Vec<Pattern> {
    use Pattern::*;
    vec![Meet, AllReduce, Reduce, ReduceScatter, Broadcast, AllGather, Gather, Scatter, AllToAll, Shift]
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = match cfg!(miri) {
        true => prop_oneof![0..40usize, 40..100usize, Just(300usize)],
        false => prop_oneof![0..40usize, 40..3000usize, Just(20_000usize)],
    };
    let op = prop::sample::select(ReduceOp::ALL.to_vec());
    let slot_bytes = prop::sample::select(vec![64usize, 1024, 1 << 16]);
    let pattern = prop::sample::select(patterns());
    let registering =
        prop_oneof![3 => Just(None), 3 => Just(Some(u32::MAX)), 1 => any::<u32>().prop_map(Some)];
    let flags = (any::<[bool; 2]>(), registering);
    (pattern, 1..7u32, any::<u32>(), op, sizes, slot_bytes, flags, any::<usize>(), any::<u64>()).prop_map(
        |(
            pattern,
            members,
            root,
            op,
            count,
            slot_bytes,
            ([in_place, one_address_space], registering),
            cut,
            seed,
        )| {
            let count = if pattern == Pattern::Meet { 0 } else { count };
            Case {
                pattern,
                members,
                root: root % members,
                op,
                count,
                slot_bytes,
                in_place,
                one_address_space,
                cut,
                seed,
                registering,
            }
        },
    )
}

fn noise<T: Element>(seed: u64, count: usize) -> Vec<T> {
    let mut noise = vec![T::zeroed(); count];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut noise);
    bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = (exchange::mix(seed, i as u64 / 3) >> 7) as u8);
    noise
}

/// The buffers of a member in one exchange: made by `buffer`, filled from `from`, and read into `result`.
struct Buffers<'a, T, B> {
    buffer: B,
    from: &'a [T],
    result: &'a mut [T],
}

impl<T: Element, B: Fn(usize) -> Home<T>> Buffers<'_, T, B> {
    fn in_place(&mut self, member: &mut Member, exchange: &Exchange, p: u32) {
        let (at, to) = exchange.offsets(p);
        let (at, to, size) = (at / size_of::<T>(), to / size_of::<T>(), self.from.len());
        let mut both = (self.buffer)((at + size).max(to + self.result.len()));
        both.get()[at..at + size].copy_from_slice(self.from);
        let buffers = CallBuffers::InPlace(bytemuck::cast_slice_mut(both.get()));
        member.run(7, exchange, buffers, &mut deadline(20_000)).unwrap();
        self.result.copy_from_slice(&both.get()[to..to + self.result.len()]);
    }

    fn out_of_place(&mut self, member: &mut Member, exchange: &Exchange) {
        let (mut input, mut output) = ((self.buffer)(self.from.len()), (self.buffer)(self.result.len()));
        input.get().copy_from_slice(self.from);
        let (from, to) = (bytemuck::cast_slice(input.get()), bytemuck::cast_slice_mut(output.get()));
        member.run(7, exchange, CallBuffers::OutOfPlace(from, to), &mut deadline(20_000)).unwrap();
        self.result.copy_from_slice(output.get());
        assert!(bytemuck::cast_slice::<T, u8>(input.get()) == bytemuck::cast_slice::<T, u8>(self.from));
    }
}

fn holds<T: Element>(case: &Case) -> Result<(), TestCaseError> {
    let Case { pattern, members, root, op, count, .. } = *case;
    let blocks = if pattern == Pattern::ReduceScatter { members as usize } else { 1 };
    let elements = count * blocks;
    let cut = if elements == 0 { 0 } else { case.cut % elements };
    let leaves: Vec<Tree> = (0..members).map(Tree::Leaf).collect();
    let trees = [
        (0..cut, Tree::random(leaves.clone(), case.seed)),
        (cut..elements, Tree::random(leaves, !case.seed)),
    ];
    let formulas: Vec<(Range<usize>, Formula)> =
        trees.iter().map(|(range, tree)| (range.clone(), Formula::new(tree.terms()).unwrap())).collect();
    let exchange = Exchange::new(pattern, members, root, (T::DTYPE, op), count, formulas);
    let in_place = case.in_place && exchange.may_be_in_place();
    let source = |p: u32| noise::<T>(case.seed ^ u64::from(p), exchange.source_blocks(p) * count);

    // The expected results, computed plainly from the sources.
    let reduced = |range: Range<usize>| {
        let all: Vec<T> = trees
            .iter()
            .flat_map(|(part, tree)| tree.value(op, &|p| source(p)[part.clone()].to_vec()))
            .collect();
        let mut all = all[range].to_vec();
        if op == ReduceOp::Avg {
            divide(&mut all, members);
        }
        all
    };
    let block = |p: u32| p as usize * count..(p as usize + 1) * count;
    let want = |p: u32| -> Vec<T> {
        match pattern {
            Pattern::Meet => Vec::new(),
            Pattern::AllReduce => reduced(0..count),
            Pattern::Reduce if p == root => reduced(0..count),
            Pattern::ReduceScatter => reduced(block(p)),
            Pattern::Broadcast if p != root => source(root),
            Pattern::AllGather => (0..members).flat_map(source).collect(),
            Pattern::Gather if p == root => (0..members).flat_map(source).collect(),
            Pattern::Scatter => source(root)[block(p)].to_vec(),
            Pattern::AllToAll => (0..members).flat_map(|q| source(q)[block(p)].to_vec()).collect(),
            Pattern::Shift => source((p + members - 1) % members),
            _ => Vec::new(),
        }
    };

    let sync_segments = case.sync_segments();
    let results: Vec<Vec<T>> = std::thread::scope(|scope| {
        let one = |p: u32| {
            let (sync_segment, exchange) = (sync_segments[p as usize].clone(), &exchange);
            move || {
                let buffer = |len: usize| Home::<T>::of(&sync_segment, p, case.registering, len);
                let mut member = Member::new(sync_segment.clone(), p);
                let mut result = Vec::new();
                // Five exchanges over two slots, so that each slot is used again.
                for _ in 0..5 {
                    let from = source(p);
                    let len = exchange.result_blocks(p) * count;
                    result = vec![T::zeroed(); len];
                    let mut buffers = Buffers { buffer: &buffer, from: &from, result: &mut result };
                    match in_place {
                        true => buffers.in_place(&mut member, exchange, p),
                        false => buffers.out_of_place(&mut member, exchange),
                    }
                }
                result
            }
        };
        let threads: Vec<_> = (0..members).map(|p| scope.spawn(one(p))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (p, result) in (0..).zip(results) {
        let (got, want): (&[u8], Vec<T>) = (bytemuck::cast_slice(&result), want(p));
        prop_assert!(got == bytemuck::cast_slice::<T, u8>(&want), "member {p} of {case:?}, {}", T::DTYPE);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 3 } else { 200 }, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_pattern_gives_its_defined_result(case in cases(), dtype in prop::sample::select(DType::ALL.to_vec())) {
        match dtype {
            DType::F64 => holds::<f64>(&case)?,
            DType::F32 => holds::<f32>(&case)?,
            DType::F16 => holds::<crate::f16>(&case)?,
            DType::Bf16 => holds::<crate::bf16>(&case)?,
            DType::I8 => holds::<i8>(&case)?,
            DType::I16 => holds::<i16>(&case)?,
            DType::I32 => holds::<i32>(&case)?,
            DType::I64 => holds::<i64>(&case)?,
            DType::U8 => holds::<u8>(&case)?,
        }
    }
}

#[test]
fn an_all_reduce_by_shares_gives_its_defined_result() {
    let (pattern, slot_bytes, one_address_space, registering) = (Pattern::AllReduce, 1 << 14, false, None);
    // The cases have two, three, four and two pieces; the last piece of each is smaller than its others.
    for (members, count) in [(3, 8192), (4, 10_001), (5, 16384), (6, 8192 + 10)] {
        for in_place in [false, true] {
            let (op, seed) = (ReduceOp::Avg, u64::from(members));
            let (root, cut) = (0, count / 3);
            let case = Case {
                pattern,
                members,
                root,
                op,
                count,
                slot_bytes,
                in_place,
                one_address_space,
                cut,
                seed,
                registering,
            };
            holds::<f32>(&case).unwrap();
        }
    }
}

fn sums(members: u32, count: usize) -> Exchange {
    let terms = (0..members).flat_map(|p| [Some(Term::Leaf(p)), (p > 0).then_some(Term::Join)]).flatten();
    let formula = Formula::new(terms).unwrap();
    Exchange::new(
        Pattern::AllReduce,
        members,
        0,
        (DType::I64, ReduceOp::Sum),
        count,
        vec![(0..count, formula)],
    )
}

/// Element counts of a small exchange, by slots, and of a large one, directly on the buffers.
const COUNTS: [usize; 2] = [4, 4000];

#[test]
fn a_timed_out_member_and_later_members_get_an_error() {
    for count in COUNTS {
        let sync_segment = Arc::new(SyncSegment::new(2, 1024, Pace { looks: 1, yields: 1 }));
        let exchange = sums(2, count);
        let mut data = vec![1i64; count];
        let run = |p: u32, data: &mut [i64], millis| {
            let buffers = CallBuffers::InPlace(bytemuck::cast_slice_mut(data));
            Member::new(sync_segment.clone(), p).run(0, &exchange, buffers, &mut deadline(millis))
        };
        assert_eq!(run(0, &mut data, 20), Err(Stopped::TimedOut("late")), "{count}");
        let later = run(1, &mut data, 20);
        // An exchange through slots stays readable for members that arrive later; a large exchange was cancelled.
        assert_eq!(later, if count == 4 { Ok(()) } else { Err(Stopped::GivenUp) });
    }
}

#[test]
fn other_labels_and_other_lengths_are_found_by_all() {
    for (counts, labels) in
        [([4, 4], [1, 2]), ([4000, 4000], [1, 2]), ([4, 5], [1, 1]), ([4000, 4001], [1, 1])]
    {
        let sync_segment = Arc::new(SyncSegment::new(2, 1024, Pace { looks: 20, yields: 3 }));
        let one = |p: usize| {
            let (sync_segment, count, label) = (sync_segment.clone(), counts[p], labels[p]);
            move || {
                let mut data = vec![5i64; count];
                let buffers = CallBuffers::InPlace(bytemuck::cast_slice_mut(&mut data));
                let stopped = Member::new(sync_segment, p as u32).run(
                    label,
                    &sums(2, count),
                    buffers,
                    &mut deadline(20_000),
                );
                assert!(
                    matches!(stopped, Err(Stopped::Disagrees(other)) if other != p as u32),
                    "{stopped:?}"
                );
                assert!(data.iter().all(|x| *x == 5), "nothing was written");
            }
        };
        let threads = [std::thread::spawn(one(0)), std::thread::spawn(one(1))];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_sleeping_member_is_woken_and_calls_its_wait_policy() {
    struct Told<'a>(&'a std::sync::atomic::AtomicBool);
    impl WaitPolicy for Told<'_> {
        type Error = ();
        fn wait(&mut self, absent: &dyn Fn(u32) -> bool) -> Result<Duration, ()> {
            assert!(absent(1) && !absent(0));
            match self.0.load(std::sync::atomic::Ordering::SeqCst) {
                true => Err(()),
                false => Ok(Duration::from_secs(60)),
            }
        }
    }
    let sync_segment = Arc::new(SyncSegment::new(2, 1024, Pace { looks: 1, yields: 1 }));
    let on_arrival = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut data = [0i64; 4];
            let buffers = CallBuffers::InPlace(bytemuck::cast_slice_mut(&mut data));
            Member::new(sync_segment.clone(), 0).run(0, &sums(2, 4), buffers, &mut Told(&on_arrival))
        });
        on_arrival.store(true, std::sync::atomic::Ordering::SeqCst);
        while !waits.is_finished() {
            sync_segment.wake();
            std::thread::yield_now();
        }
        assert_eq!(waits.join().unwrap(), Err(Stopped::TimedOut(())));
    });
}

/// Regression: every arrival woke all members that slept, so that 1,000 members on two cores were woken 1,000 times each.
#[test]
fn only_the_last_arrival_wakes_the_members_that_sleep() {
    const MEMBERS: u32 = 8;
    let sync_segment = Arc::new(SyncSegment::new(MEMBERS, 1024, Pace { looks: 1, yields: 1 }));
    let asleep = || sync_segment.waker().sleepers.load(std::sync::atomic::Ordering::SeqCst);
    std::thread::scope(|scope| {
        for me in 0..MEMBERS {
            let sync_segment = sync_segment.clone();
            scope.spawn(move || {
                let mut data = [0i64; 4];
                let buffers = CallBuffers::InPlace(bytemuck::cast_slice_mut(&mut data));
                Member::new(sync_segment, me)
                    .run(0, &sums(MEMBERS, 4), buffers, &mut deadline(20_000))
                    .unwrap();
            });
            while me + 1 < MEMBERS && asleep() <= me {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(sync_segment.waker().rung.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
#[should_panic(expected = "cover a source to its end")]
fn formulas_must_cover_their_source() {
    let formula = Formula::new([Term::Leaf(0)]).unwrap();
    Exchange::new(Pattern::AllReduce, 2, 0, (DType::I64, ReduceOp::Sum), 5, vec![(0..4, formula)]);
}

#[test]
fn terms_that_are_no_tree_are_no_formula() {
    assert_eq!(Formula::new([]), None);
    assert_eq!(Formula::new([Term::Leaf(0), Term::Leaf(1)]), None);
    assert_eq!(Formula::new([Term::Leaf(0), Term::Join]), None);
}
