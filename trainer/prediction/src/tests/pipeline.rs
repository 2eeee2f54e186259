//! Pipelines on the clock: bubbles as published, and one rank of each stage that represents all ranks of the stage.

use crate::clock::StepRules;
use crate::step::{RankClass, step_of, unlike_step};
use crate::{
    ElementPass, ExchangeModel, GroupedCollective, MessageTimes, SimulatedExchange, StepCosts, StepPrediction,
};
use allfold_collectives::{Plan, Rank};
use allfold_sim::{Picos, Sharing, Topology};
use allfold_trainer::config::ScheduleName;
use allfold_trainer::layers::Init;
use allfold_trainer::pipeline::ChunkCosts;
use allfold_trainer::{Config, Outline, ParamSpec, Phase, Result, strategies};
use std::sync::Arc;

/// Layers in a row, each of which takes equally long and has a parameter of a few elements.
struct Row {
    params: Vec<ParamSpec>,
    costs: ChunkCosts,
    /// The time of everything else, and the elements of an activation of a sample.
    rest: Picos,
    activation: usize,
}

impl Row {
    fn new(layers: usize, costs: ChunkCosts, rest: Picos, activation: usize) -> Row {
        const ELEMENTS: usize = 96;
        let param = |layer: usize| ParamSpec {
            name: format!("layer{layer}"),
            shape: vec![ELEMENTS],
            range: layer * ELEMENTS..(layer + 1) * ELEMENTS,
            init: Init::Constant(0.0),
        };
        Row { params: (0..layers).map(param).collect(), costs, rest, activation }
    }
}

impl StepCosts for Row {
    fn outline(&self) -> Arc<Outline> {
        let layers = self.params.len();
        let names = self.params.iter().map(|param| param.name.clone()).collect();
        let of = |l: usize| [Phase::WeightGrad(l), Phase::Ready(l), Phase::InputGrad(l)];
        let backward = [Phase::Loss].into_iter().chain((0..layers).rev().flat_map(of));
        let phases = ((0..layers).map(Phase::Forward).collect(), backward.collect());
        let values = self.params.iter().map(|param| param.range.clone()).collect();
        Arc::new(Outline::in_a_row(names, phases, values, vec![1; layers]))
    }
    fn params(&self) -> &[ParamSpec] {
        &self.params
    }
    fn takes(&self, phase: Phase, _: usize) -> Picos {
        match phase {
            Phase::Forward(_) => Picos(self.costs.forward),
            Phase::InputGrad(_) => Picos(self.costs.input_grad),
            Phase::WeightGrad(_) => Picos(self.costs.weight_grad),
            _ => Picos::ZERO,
        }
    }
    fn data(&self, _: usize) -> Picos {
        self.rest
    }
    fn over(&self, _: ElementPass, _: usize) -> Picos {
        self.rest
    }
    fn element(&self) -> usize {
        4
    }
    fn activation(&self, _: usize) -> usize {
        self.activation
    }
}

/// Exchanges that take no time.
struct Free;

impl ExchangeModel for Free {
    fn collective(&mut self, _: GroupedCollective) -> Result<Picos> {
        Ok(Picos::ZERO)
    }
    fn message(&mut self, _: &[(Rank, Rank)], _: u32, _: u64) -> Result<MessageTimes> {
        Ok(MessageTimes::default())
    }
    fn engines(&self) -> Vec<String> {
        Vec::new()
    }
}

fn rules() -> StepRules {
    let (views, scaler) = (true, true);
    let (uneven, clip, norms, parts, staleness, period) = (false, false, false, false, 0, 1);
    StepRules { uneven, views, scaler, clip, norms, parts, staleness, period }
}

fn pipeline(schedule: ScheduleName, stages: usize, micros: usize) -> Config {
    Config::default().with(|c| {
        c.strategy = "pipeline".into();
        (c.parallel.schedule, c.parallel.stages) = (schedule, stages);
        (c.training.accumulate, c.training.batch) = (micros, micros);
    })
}

/// The time of a step in which no stage computes, of the stage that computes the most, in the units of the costs.
#[test]
fn bubbles_on_the_clock_are_as_published() {
    use ScheduleName::{Gpipe, Interleaved, OneFOneB, ZbH1, ZbV};
    for schedule in [Gpipe, OneFOneB, Interleaved, ZbH1, ZbV] {
        for (p, m) in [2, 3, 4, 8].into_iter().flat_map(|p| [p, 2 * p, 3 * p].map(|m| (p, m))) {
            for (f, b, w) in [(1, 1, 1), (3, 3, 3), (2, 3, 1), (4, 4, 2), (1, 2, 2)] {
                let chunks = if [Interleaved, ZbV].contains(&schedule) { 2 } else { 1 };
                // The publication gives a condition for each.
                let published = match schedule {
                    Gpipe | OneFOneB | Interleaved => f + b + w,
                    ZbH1 if w <= f && w <= b => f + b - w,
                    // Stages agree on the loss in every step, so that what remains is the time until the last stage starts.
                    ZbV if f == b && b == w && m >= 2 * p - 1 => f,
                    _ => continue,
                };
                let costs = ChunkCosts { forward: f, input_grad: b, weight_grad: w };
                let row = Row::new(p * chunks, costs, Picos::ZERO, 1);
                let config = pipeline(schedule, p, m);
                let ranks = p as u32;
                let mesh = strategies::plan(&config, 0, ranks).unwrap().mesh;
                let driver = |rank| Ok(strategies::plan(&config, rank, ranks)?.driver);
                let class = RankClass { costs: &row, batch: m };
                let step = unlike_step((&|_| class, rules(), mesh), &driver, &mut Free).unwrap();
                let busy = (m * chunks) as u64 * (f + b + w);
                let bubble = step.time.total().0 - busy;
                // A stage costs as much as its chunks, so the formula's number of chunks cancels.
                let want = (p as u64 - 1) * published;
                assert_eq!(bubble, want, "{schedule}, {p} stages, {m} micro-batches, {costs:?}");
            }
        }
    }
}

/// The prediction for 1,024 GPUs steps one rank of each stage. Here, of 64 ranks, all are stepped once for comparison.
#[test]
fn a_rank_of_each_stage_is_equal_to_all_of_sixty_four() {
    let costs = ChunkCosts { forward: 2_000_000, input_grad: 3_000_000, weight_grad: 1_000_000 };
    let row = Row::new(16, costs, Picos(700_000), 4_096);
    let class_of = |_: usize| RankClass { costs: &row, batch: 8 };
    let topology = Topology::named("dgx-a100", 64).unwrap();
    for (schedule, sharing) in [
        (ScheduleName::OneFOneB, "zero1"),
        (ScheduleName::Interleaved, "zero1"),
        (ScheduleName::ZbH1, "zero3"),
    ] {
        let mut config = pipeline(schedule, 4, 8);
        config.set("parallel.tensor", "4").unwrap();
        config.set("parallel.sharding", sharing).unwrap();
        let mesh = strategies::plan(&config, 0, 64).unwrap().mesh;
        let driver = |rank| Ok(strategies::plan(&config, rank, 64)?.driver);
        let plan = Plan::default();
        let exchange = || SimulatedExchange::new(&topology, topology.costs(), Sharing::default(), &plan);
        let few: StepPrediction = unlike_step((&class_of, rules(), mesh), &driver, &mut exchange()).unwrap();
        let every: Vec<usize> = (0..64).collect();
        let all = step_of(&every, (&class_of, rules(), mesh), &driver, &mut exchange()).unwrap();
        assert_eq!((few.spans.len(), all.spans.len()), (4, 64));
        assert_eq!(few.time.total(), all.time.total(), "{schedule}");
        assert!(few.time.exposed > Picos::ZERO, "nothing is exchanged");
    }
}
