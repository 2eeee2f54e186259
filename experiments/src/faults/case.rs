//! One fault schedule, drawn from a seed: the machine, the call and the faults.

use super::ended::Ended;
use allfold_collectives::registry::{self, Algorithm};
use allfold_collectives::{Collective, Communicator, Error, Rank, ReduceOp, World};
use allfold_sim::fault::{Draw, Rule};
use allfold_sim::{Faults, Topology};
use std::fmt;
use std::time::Duration;

/// A fault schedule: a collective on a simulated machine with injected faults.
#[derive(Clone, Debug)]
pub struct FaultCase {
    /// The seed of the schedule.
    pub seed: u64,
    /// The links of the simulated machine.
    pub topology: Topology,
    /// The algorithm, called twice in a row.
    pub algorithm: &'static Algorithm,
    /// Elements of each rank's part.
    pub count: usize,
    /// The number of steps of a rank that may be in flight.
    pub window: u32,
    /// The size of a segment in bytes.
    pub segment: u64,
    /// The injected faults.
    pub rules: Vec<Rule>,
}

const COLLECTIVES: [Collective; 6] = [
    Collective::AllReduce,
    Collective::Broadcast,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Reduce,
];

/// The deadline of an operation, in virtual time: far longer than any delay that is drawn.
const DEADLINE: Duration = Duration::from_secs(1);

/// A sequence of random numbers: the seed, and how many were drawn.
struct Dice(u64, u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.1 += 1;
        Draw::of(self.0, &[self.1]).word(0) % end.max(1)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

impl FaultCase {
    /// Draws the schedule of a seed.
    #[allow(clippy::expect_used, reason = "a thousand of them are drawn in a test: all that is drawn exists")]
    pub fn drawn(seed: u64) -> FaultCase {
        let mut dice = Dice(seed, 0);
        let ranks = 2 + dice.below(7) as u32;
        let name = dice.of(&["switch", "ring", "mesh", "nodes2", "nodes4x2", "nodes8x1"]);
        let topology = Topology::named(name, ranks).expect("these are built in");
        let collective = dice.of(&COLLECTIVES);
        let algorithms: Vec<&'static Algorithm> = registry::of(collective).collect();
        let algorithm = dice.of(&algorithms);
        let count = dice.of(&[1, 7, 64, 500, 3000]) as usize + dice.below(5) as usize;
        let (window, segment) = (dice.of(&[1, 2, 8, 64]), dice.of(&[64, 512, 1 << 20]));
        let faults = 1 + dice.below(3);
        let rules = (0..faults).map(|_| {
            let text = rule(&mut dice, &topology);
            text.parse().expect("the texts of this file are rules")
        });
        let rules = rules.collect();
        FaultCase { seed, algorithm, count, window, segment, rules, topology }
    }

    /// The faults of the schedule, with random ones drawn from its seed too.
    ///
    /// # Errors
    /// A rule names a rank or a link that the machine does not have.
    pub fn faults(&self) -> Result<Faults, Error> {
        Ok(Faults::new(self.rules.clone(), &self.topology)?.seeded(self.seed))
    }

    /// The world that the schedule runs in.
    ///
    /// # Errors
    /// As [`FaultCase::faults`].
    pub fn world(&self) -> Result<World, Error> {
        let world = World::sim(&self.topology).faults(self.faults()?).deadline(DEADLINE);
        let world = world.algorithm(self.algorithm.collective, self.algorithm.name);
        Ok(world.window(self.window).segment(self.segment).any())
    }

    /// The program of one rank: it calls the collective twice, with other numbers the second time.
    pub fn run(&self, comm: &Communicator) -> Vec<Ended> {
        let mut ended = Vec::new();
        for round in 0..2 {
            ended.push(self.once(comm, round));
            if matches!(ended.last(), Some(Ended::Told(_))) {
                break;
            }
        }
        ended
    }

    fn once(&self, comm: &Communicator, round: i64) -> Ended {
        let (n, me, count) = (i64::from(comm.size()), i64::from(comm.rank().0), self.count as i64);
        let own = |rank: i64, at: i64| (rank + 1) * 1_000_003 + at * 7 + round;
        let part = |rank: i64, len: i64| (0..len).map(|at| own(rank, at)).collect::<Vec<i64>>();
        let sum = |at: i64| (0..n).map(|rank| own(rank, at)).sum::<i64>();
        let root = Rank((self.seed % n as u64) as u32);
        let (result, got, right): (Result<(), Error>, Vec<i64>, Vec<i64>) = match self.algorithm.collective {
            Collective::Broadcast => {
                let mut data = part(me, count);
                let result = comm.broadcast(&mut data, root);
                (result, data, part(root.0.into(), count))
            }
            Collective::AllGather => {
                let mut all = vec![0; (n * count) as usize];
                let result = comm.all_gather(&part(me, count), &mut all);
                (result, all, (0..n).flat_map(|rank| part(rank, count)).collect())
            }
            Collective::ReduceScatter => {
                let mut block = vec![0; self.count];
                let result = comm.reduce_scatter(&part(me, n * count), &mut block, ReduceOp::Sum);
                (result, block, (me * count..(me + 1) * count).map(sum).collect())
            }
            Collective::AllToAll => {
                let mut all = vec![0; (n * count) as usize];
                let result = comm.all_to_all(&part(me, n * count), &mut all);
                let right = (0..n).flat_map(|rank| (me * count..(me + 1) * count).map(move |at| (rank, at)));
                (result, all, right.map(|(rank, at)| own(rank, at)).collect())
            }
            Collective::Reduce => {
                let mut data = part(me, count);
                let result = comm.reduce(&mut data, ReduceOp::Sum, root);
                let right = if comm.rank() == root { (0..count).map(sum).collect() } else { data.clone() };
                (result, data, right)
            }
            Collective::AllReduce => {
                let mut data = part(me, count);
                let result = comm.all_reduce(&mut data, ReduceOp::Sum);
                (result, data, (0..count).map(sum).collect())
            }
            // Every collective is listed, so that a new one is not run as another.
            other @ (Collective::Gather
            | Collective::Scatter
            | Collective::Barrier
            | Collective::SendRecv) => {
                let why =
                    format!("fault schedules do not call {other}; add its call, and add it to `COLLECTIVES`");
                (Err(Error::Argument(why)), Vec::new(), Vec::new())
            }
        };
        match result {
            Err(error) => Ended::Told(error),
            Ok(()) if got == right => Ended::Right,
            Ok(()) => Ended::Wrong,
        }
    }
}

/// Draws a fault, as text. Its times are of the order of the collective's own time, and no delay is close to the deadline. Some
/// faults keep the collective from ending.
fn rule(dice: &mut Dice, topology: &Topology) -> String {
    let ranks = u64::from(topology.ranks());
    let rank = dice.below(ranks);
    let other = (rank + 1 + dice.below(ranks - 1)) % ranks;
    let link = topology.link_name(allfold_sim::LinkId(dice.below(topology.links().into()) as u32));
    let nth = 1 + dice.below(4);
    let (early, late) = (dice.below(40), 50 + dice.below(400));
    let window = dice
        .of(&[String::new(), format!("@{early}us..{late}us"), format!("@{early}us..")].each_ref())
        .clone();
    let noise = dice.of(&["+20us", "uniform(1us,30us)", "exp(5us)", "lognormal(3us,0.8)", "pareto(1us,1.5)"]);
    let which = dice.of(&[format!("#{nth}"), "20%".into(), "all".into()].each_ref()).clone();
    match dice.below(18) {
        0 => format!("slow_rank={rank}:x{}{window}", 2 + dice.below(9)),
        1 => format!("jitter_rank=*:{noise}{window}"),
        2 => format!("slow_link={link}:x{}{window}", 2 + dice.below(20)),
        3 => format!("slow_link={link}:+{late}us{window}"),
        4 => format!("jitter_link={link}:{noise}{window}"),
        5 => format!("flap={link}:{}us/{}us", 1 + early, 2 + early + late),
        6 => format!("stop_rank={rank}@{early}us..{late}us"),
        7 => format!("partition={rank}|{other}@{early}us..{late}us"),
        8 => format!("delay={rank}>{other}:{which}:{noise}"),
        9 => format!("duplicate={rank}>{other}:{which}"),
        10 => format!("reorder={rank}>{other}:{which}:+{late}us"),
        11 => format!("corrupt={rank}<>{other}:#{nth}"),
        12 => format!("drop={rank}>{other}:#{nth}"),
        13 => format!("drop=*>*:{}%", dice.of(&["0.5", "2", "10"])),
        14 => format!("cut={rank}>{other}@{early}us.."),
        15 => format!("partition={rank}|{other}@{early}us.."),
        16 => format!("dead_rank={rank}@{early}us"),
        _ => format!("dead_rank={rank}:op{}.round{}", dice.below(2), dice.below(4)),
    }
}

impl fmt::Display for FaultCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<String> = self.rules.iter().map(Rule::to_string).collect();
        write!(
            f,
            "{} by {}, {} x i64 over {} ranks of {}, window {}, segments of {} bytes; {}",
            self.algorithm.collective,
            self.algorithm.name,
            self.count,
            self.topology.ranks(),
            self.topology.name(),
            self.window,
            self.segment,
            rules.join(" ")
        )
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    /// Every collective is run as itself: collectives that can be drawn give the right result, and the others are refused.
    #[test]
    fn no_collective_runs_as_another() {
        for collective in Collective::ALL {
            let algorithm = registry::of(collective).next().unwrap();
            let case = FaultCase { algorithm, rules: Vec::new(), ..FaultCase::drawn(1) };
            let ended = case.world().unwrap().run(|comm| Ok::<_, Error>(case.run(&comm))).unwrap();
            for ended in ended.iter().flatten() {
                match ended {
                    Ended::Right => assert!(COLLECTIVES.contains(&collective), "{collective}"),
                    Ended::Told(error) => {
                        assert!(!COLLECTIVES.contains(&collective), "{collective}: {error}");
                        assert!(error.to_string().contains(collective.name()), "{error}");
                    }
                    Ended::Wrong => panic!("{collective} gave a wrong result"),
                }
            }
        }
    }
}
