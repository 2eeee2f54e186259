//! Runs that cannot continue, and their error messages.

use allfold_collectives::{Communicator, World};
use allfold_tests::training::{run, small};
use allfold_trainer::config::AutocastType;
use allfold_trainer::engine::StepInput;
use allfold_trainer::layers::{BatchNorm, Linear};
use allfold_trainer::{
    Batch, Builder, Config, Error, Model, Network, Observer, RankTrainer, Result, StepReport, data, train,
};

/// The run ends with an error that names the step and the layer.
#[test]
fn a_loss_that_is_no_number_ends_the_run_and_is_named() {
    let config = small().with(|c| c.optimiser.lr = 1e30);
    for ranks in [1, 3] {
        let error = World::threads(ranks).run(|comm| train(&config, &comm, &mut ())).unwrap_err().to_string();
        let named =
            error.contains("the first output that is not finite is that of `") && error.contains("step ");
        assert!(named, "{error}");
    }
}

/// A loss scale does not hide a loss that is not finite: the error names it. In f16 with a loss scale, where single losses may
/// overflow, the run ends after ten of them in a row.
#[test]
fn a_loss_that_is_no_number_is_named_under_a_loss_scale_too() {
    let scaled = small().with(|c| {
        c.optimiser.lr = 1e30;
        c.precision.loss_scale = 1024.0;
    });
    let end = |config: &Config| World::threads(2).run(|comm| train(config, &comm, &mut ()));
    for amp in ["none", "bf16"] {
        let error =
            end(&scaled.clone().with(|c| c.set("precision.amp", amp).unwrap())).unwrap_err().to_string();
        assert!(error.contains("the first output that is not finite is that of `"), "{error}");
    }
    // Each rank's losses, and the run's error: at the tenth overflow in a row, or in the test at the end of a shorter run.
    let ends = |max_steps| {
        let half = scaled.clone().with(|c| {
            c.precision.amp = AutocastType::F16;
            c.training.max_steps = max_steps;
        });
        let body = |comm: Communicator| {
            let mut losses = Losses(Vec::new());
            let error = train(&half, &comm, &mut losses).unwrap_err().to_string();
            Ok::<_, Error>((losses.0, error))
        };
        World::threads(2).run(body).unwrap()
    };
    for (losses, error) in ends(9) {
        let first = losses.iter().position(|loss| !loss.is_finite()).unwrap();
        assert!(losses.len() == 9 && losses[first..].iter().all(|loss| !loss.is_finite()), "{losses:?}");
        assert!(error.contains("step 8: the test loss of rank"), "{error}");
    }
    let long = ends(40);
    let bad = |(losses, _): &(Vec<f64>, String)| losses.iter().position(|loss| !loss.is_finite());
    let first = long.iter().filter_map(bad).min().unwrap();
    for (_, error) in &long {
        assert!(error.contains(&format!("step {}: the loss of rank", first + 9)), "{error}");
    }
}

/// The losses of this rank.
struct Losses(Vec<f64>);

impl Observer for Losses {
    fn step(&mut self, report: &StepReport) {
        self.0.push(report.loss);
    }
}

/// One value per channel over all ranks has no deviation: every rank refuses the batch and names the layer.
#[test]
fn one_sample_of_all_ranks_is_refused_by_a_synchronised_batch_norm() {
    let body = |samples: [usize; 2]| {
        let end = move |comm: Communicator| -> Result<()> {
            let network = || -> Result<Network<f32>> {
                let mut builder = Builder::new(64);
                let a = builder.push("fc", Linear::new(64, 8), &[0])?;
                builder.push("norm", BatchNorm::new(8, 1), &[a])?;
                let mut network = builder.build(1)?;
                assert_eq!(network.synchronise(), 1);
                Ok(network)
            };
            let config = Config::default();
            let mut rank = RankTrainer::new(&config, network()?, &comm)?;
            rank.start(&mut Model::new(network()?, 3)?)?;
            let n = samples[comm.rank().index()];
            let mut batch = Batch { x: vec![0.5; 64 * n], labels: vec![0; n] };
            rank.step(&mut batch, StepInput::default(), None).map(drop)
        };
        World::threads(2).run(end)
    };
    for samples in [[1, 0], [0, 1]] {
        let error = body(samples).unwrap_err().to_string();
        let says = "`norm` normalises over the batch, and the batch has 1 value per channel; all ranks together need 2";
        assert!(error.contains(says), "{error}");
    }
    for samples in [[1, 1], [2, 0]] {
        body(samples).unwrap();
    }
}

/// In a step of several micro-batches, the error names a layer of the first micro-batch that failed, whose activations are
/// checked before the next micro-batch overwrites them.
#[test]
fn the_layer_is_that_of_the_micro_batch_that_went_wrong() {
    let (train, test) = data::digits().unwrap();
    let mut batch = allfold_trainer::Batch::<f32>::default();
    train.gather(&[0, 1, 2, 3], &mut batch).unwrap();
    batch.x[70] = f32::NAN;
    let samples = data::Samples::Numbers(batch.x);
    let train = data::Dataset { samples, labels: batch.labels, ..train };
    let config = small().with(|c| {
        c.data.shuffle = false;
        c.training.accumulate = 2;
        c.data.train_samples = 0;
    });
    let end = World::threads(1).run(|comm| allfold_trainer::train_on(&config, &train, &test, &comm, &mut ()));
    let error = end.unwrap_err().to_string();
    assert!(error.contains("the first output that is not finite is that of `the input`"), "{error}");
}

/// An epoch that has no step is an error.
#[test]
fn an_epoch_without_a_step_is_refused() {
    let config = small().with(|c| {
        c.data.drop_last = true;
        c.data.train_samples = 2;
    });
    let end = World::threads(3).run(|comm| train(&config, &comm, &mut ()));
    let error = end.unwrap_err().to_string();
    assert!(
        error.contains("2 training samples, of which `data.drop_last`") && error.contains("3 ranks"),
        "{error}"
    );
    assert_eq!(run(&World::threads(2), &config.with(|c| c.training.epochs = 1)).losses.len(), 1);
}
