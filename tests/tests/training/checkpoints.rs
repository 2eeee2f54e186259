//! Checkpoints: runs that continue, and files that are refused.

use allfold_collectives::World;
use allfold_tests::training::{bits, run, small, switch};
use allfold_trainer::config::LrScheduleName;
use allfold_trainer::models::mlp;
use allfold_trainer::{Config, EpochReport, Model, Observer, Sgd, StepReport, checkpoint, train};
use std::path::Path;

/// Six steps in two epochs, with a checkpoint after each step. Resuming from any checkpoint gives the bits of the whole run.
#[test]
fn a_resumed_run_has_the_bits_of_one_that_never_stopped() {
    for optimiser in ["sgd", "adamw"] {
        let directory = tempfile::tempdir().unwrap();
        let config = small().with(|c| {
            c.optimiser.name = optimiser.into();
            c.data.train_samples = 24;
            c.data.crop_padding = 1;
            c.data.flip = true;
            c.precision.loss_scale = 8.0;
            c.precision.scale_interval = 4;
            c.checkpoint.dir = directory.path().display().to_string();
            c.checkpoint.every = 1;
            c.checkpoint.keep = 5;
        });
        let want = run(&World::threads(2), &config);
        let mut kept: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        kept.sort();
        assert_eq!((want.losses.len(), kept.len()), (6, 5));
        assert!(kept[4].ends_with("step-00000006.safetensors"));
        let resumed = config.clone().with(|c| {
            c.checkpoint.resume = true;
            c.checkpoint.every = 0;
            c.ddp.bucket_kib = 4;
            c.data.workers = 2;
        });
        for newest in kept.iter().rev() {
            for world in [World::threads(2).any(), World::sim(&switch(2)).any()] {
                let got = run(&world, &resumed);
                assert_eq!((bits(&got), got.test), (bits(&want), want.test), "{}", newest.display());
            }
            std::fs::remove_file(newest).unwrap();
        }
        // Without a checkpoint, the run starts from the beginning.
        assert_eq!(bits(&run(&World::threads(2), &resumed)), bits(&want));
    }
}

#[test]
fn checkpoints_that_do_not_fit_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = small().with(|c| {
        c.checkpoint.dir = directory.path().display().to_string();
        c.checkpoint.every = 6;
        c.checkpoint.resume = true;
    });
    run(&World::threads(2), &config);
    let path = directory.path().join("step-00000006.safetensors");
    let refused = |ranks, config: &Config| {
        let world = World::threads(ranks);
        let each = world.run_each(|comm| train(config, &comm, &mut ())).unwrap().ranks;
        let errors: Vec<String> = each.into_iter().map(|rank| rank.unwrap_err().to_string()).collect();
        assert!(errors[0].starts_with(&format!("checkpoint: {}: ", path.display())), "{errors:?}");
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        errors[0].clone()
    };
    let fewer = refused(1, &config);
    assert!(
        fewer.contains("was made by 2 ranks with batches of 4") && fewer.contains("this run has 1 with 4"),
        "{fewer}"
    );
    let other = config.clone().with(|c| c.training.batch = 5);
    let more = refused(2, &other);
    assert!(more.contains("with batches of 4") && more.contains("this run has 2 with 5"), "{more}");
    let other = config.clone().with(|c| c.model.weights = path.display().to_string());
    assert!(
        refused(2, &other)
            .contains("was made with `model.weights = \"\"` and this run has `model.weights = \"")
    );
    let whole = std::fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let with = |from: &str, to: &str| {
        let at = whole.windows(from.len()).position(|bytes| bytes == from.as_bytes()).unwrap();
        [&whole[..at], to.as_bytes(), &whole[at + from.len()..]].concat()
    };
    for (bytes, says) in [
        (&flipped[..], "checksum"),
        (&with("optimiser_steps = 6", "optimiser_steps = 0"), "checksum"),
        (&with("good = 0", "good = 7"), "checksum"),
        (&with("optimiser.m", "optimiser.n"), "checksum"),
        (&with("version = 2", "version = 1"), "is of format 1 and this version reads 2"),
        (&with("version = 2", "versioa = 2"), "is of format 1 and this version reads 2"),
        (&whole[..whole.len() - 9], ""),
        (&whole[..5], ""),
        (&[], ""),
    ] {
        std::fs::write(&path, bytes).unwrap();
        assert!(refused(2, &config).contains(says), "{says}");
    }
}

#[test]
fn a_checkpoint_of_another_number_of_losses_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = small().with(|c| c.checkpoint.dir = directory.path().display().to_string());
    let mut model = Model::new(mlp::<f32>(4, &[3], 2).unwrap(), 3).unwrap();
    let mut sgd = Sgd::new(0.0, 0.0, false);
    let run = checkpoint::Snapshot {
        config: &config,
        data: &checkpoint::TrainedOn::default(),
        step: 2,
        ranks: 1,
        model: &model,
        scaler: None,
        losses: &[0.5],
        epochs: &[],
        own: &Vec::new(),
    };
    let path = checkpoint::save(run, &mut sgd, checkpoint::Files { step: true, best: false }).unwrap();
    let (model, optimiser, own) = (&mut model, &mut sgd, &mut Vec::new());
    let into = checkpoint::Restored {
        config: &config,
        data: &checkpoint::TrainedOn::default(),
        ranks: 1,
        model,
        optimiser,
        own,
    };
    let error = checkpoint::load(&path, into).unwrap_err();
    assert!(error.to_string().ends_with("has 1 losses of 2 steps"), "{error}");
}

/// The weights after the last step are checked too: by the test loss, and before their checkpoint would replace an older one. The
/// error names the older checkpoint, which may have caused the divergence.
#[test]
fn a_run_that_diverged_in_its_last_step_ends_badly_and_keeps_what_it_had() {
    let end = |config: &Config| {
        let each = World::threads(2).run_each(|comm| train(config, &comm, &mut ())).unwrap();
        let first = each.first.unwrap().index();
        each.ranks.into_iter().nth(first).unwrap().unwrap_err().to_string()
    };
    let plain = small().with(|c| {
        c.optimiser.lr = 1e38;
        c.optimiser.momentum = 0.0;
        c.training.max_steps = 1;
    });
    let says = end(&plain);
    assert!(says.contains("step 0: the test loss of rank ") && !says.contains("checkpoint"), "{says}");
    let directory = tempfile::tempdir().unwrap();
    let kept = plain.with(|c| {
        c.checkpoint.dir = directory.path().display().to_string();
        c.checkpoint.every = 1;
        c.checkpoint.keep = 1;
        c.lr_schedule.name = LrScheduleName::Milestones;
        c.lr_schedule.milestones = vec![2];
        c.lr_schedule.factor = 1e41;
        c.optimiser.lr = 0.1;
        c.training.max_steps = 3;
    });
    let says = end(&kept);
    assert!(says.contains("step 2: a weight of rank 0 is ") && says.contains("step-00000002"), "{says}");
    let names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["step-00000002.safetensors"]);
}

/// A new run is refused in a folder that has another run's checkpoints; a resumed run that has all its steps trains no further.
#[test]
fn another_run_s_checkpoints_are_neither_lost_nor_gone_past() {
    let directory = tempfile::tempdir().unwrap();
    let fresh = small().with(|c| {
        c.checkpoint.dir = directory.path().display().to_string();
        c.checkpoint.every = 6;
    });
    let want = run(&World::threads(2), &fresh);
    let refused = |config: &Config| {
        World::threads(2).run(|comm| train(config, &comm, &mut ())).unwrap_err().to_string()
    };
    assert!(refused(&fresh.clone().with(|c| c.training.max_steps = 4)).ends_with(
        "has checkpoints already: set `checkpoint.resume` to go on from the newest, or name another folder"
    ));
    let resumed = fresh.clone().with(|c| c.checkpoint.resume = true);
    assert!(
        refused(&resumed.clone().with(|c| c.training.max_steps = 5))
            .contains("has 6 steps and this run ends at 5")
    );
    assert_eq!(bits(&run(&World::threads(2), &resumed)), bits(&want));
    // A run that writes no checkpoints is not refused.
    assert_eq!(bits(&run(&World::threads(2), &fresh.with(|c| c.checkpoint.every = 0))), bits(&want));
}

/// A file named with too high a step would count as the newest, and every new checkpoint would be removed as older.
#[test]
fn a_checkpoint_under_another_step_s_name_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = small().with(|c| {
        c.checkpoint.dir = directory.path().display().to_string();
        c.checkpoint.every = 2;
        c.training.max_steps = 2;
    });
    run(&World::threads(2), &config);
    let own = directory.path().join("step-00000002.safetensors");
    std::fs::copy(&own, directory.path().join("step-99999999.safetensors")).unwrap();
    let resumed = config.with(|c| {
        c.checkpoint.resume = true;
        c.checkpoint.keep = 1;
        c.training.max_steps = 6;
    });
    let error = World::threads(2).run(|comm| train(&resumed, &comm, &mut ())).unwrap_err().to_string();
    let says = "step-99999999.safetensors: is named as of step 99999999 and holds step 2: remove it, or name it \
                step-00000002.safetensors";
    assert!(error.contains(says), "{error}");
    assert!(own.exists());
}

/// Two runs would remove each other's files: the second is refused, on all of its ranks alike, until the first has ended.
#[test]
fn a_folder_that_another_run_holds_is_refused_on_all_ranks() {
    let directory = tempfile::tempdir().unwrap();
    let take = || checkpoint::FolderLock::take(directory.path()).unwrap();
    let held = take().unwrap();
    assert!(take().is_none() && directory.path().read_dir().unwrap().next().is_none(), "the lock is no file");
    let config = |resume| {
        small().with(|c| {
            c.checkpoint.dir = directory.path().display().to_string();
            c.checkpoint.every = 6;
            c.checkpoint.resume = resume;
        })
    };
    for resume in [false, true] {
        let each = World::threads(2).run_each(|comm| train(&config(resume), &comm, &mut ())).unwrap();
        for error in each.ranks.into_iter().map(|rank| rank.unwrap_err().to_string()) {
            assert!(
                error.contains(": another run writes its checkpoints there; wait until it has ended"),
                "{error}"
            );
        }
    }
    // A run that only reads checkpoints is not refused.
    let reads = config(true).with(|c| c.checkpoint.every = 0);
    run(&World::threads(2), &reads);
    drop(held);
    run(&World::threads(2), &config(false));
}

/// Regression: checkpoints were written, and old ones removed, wherever the path led by then.
#[test]
fn a_folder_that_is_replaced_during_a_run_is_not_followed() {
    struct Replaces<'a>(&'a Path, &'a Path);
    impl Observer for Replaces<'_> {
        fn step(&mut self, report: &StepReport<'_>) {
            if report.step == 2 {
                std::fs::rename(self.0, self.0.with_extension("moved")).unwrap();
                std::os::unix::fs::symlink(self.1, self.0).unwrap();
            }
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let [own, other] = ["own", "other"].map(|name| directory.path().join(name));
    std::fs::create_dir(&other).unwrap();
    for step in 1..5 {
        std::fs::write(other.join(format!("step-0000000{step}.safetensors")), "of another run").unwrap();
    }
    let config = small().with(|c| {
        c.checkpoint.dir = own.display().to_string();
        c.checkpoint.every = 1;
        c.checkpoint.keep = 2;
    });
    let ends = World::threads(1).run(|comm| train(&config, &comm, &mut Replaces(&own, &other)));
    let error = ends.unwrap_err().to_string();
    assert!(error.contains("own: is no longer the folder in which this run began"), "{error}");
    let files = |folder: &Path| folder.read_dir().unwrap().count();
    assert_eq!((files(&other), files(&own.with_extension("moved"))), (4, 2));
}

/// An epoch is reported with the number of steps of the whole run, also after a resume.
#[test]
fn a_resumed_run_tells_epochs_by_the_steps_of_the_whole() {
    struct Epochs(Vec<(u64, u64)>);
    impl Observer for Epochs {
        fn epoch(&mut self, report: &EpochReport) {
            self.0.push((report.epoch, report.steps));
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let config = small().with(|c| {
        c.data.train_samples = 12;
        c.training.max_steps = 4;
        c.checkpoint.dir = directory.path().display().to_string();
        c.checkpoint.every = 1;
        c.checkpoint.resume = true;
    });
    run(&World::threads(1), &config);
    let longer = config.with(|c| c.training.max_steps = 8);
    let epochs = World::threads(1).run(|comm| {
        let mut epochs = Epochs(Vec::new());
        train(&longer, &comm, &mut epochs).map(|_| epochs.0)
    });
    assert_eq!(epochs.unwrap()[0], [(1, 6), (2, 8)]);
}

/// A later end would change the learning rate of every step, also of those that are done.
#[test]
fn a_run_whose_rates_depend_on_its_end_is_not_made_longer() {
    for (schedule, refused) in [("cosine", true), ("polynomial", true), ("one_cycle", true), ("step", false)]
    {
        let directory = tempfile::tempdir().unwrap();
        let config = small().with(|c| {
            c.set("lr_schedule.name", schedule).unwrap();
            c.training.max_steps = 2;
            c.checkpoint.dir = directory.path().display().to_string();
            c.checkpoint.every = 1;
            c.checkpoint.resume = true;
        });
        run(&World::threads(1), &config);
        let longer = config.clone().with(|c| c.training.max_steps = 3);
        let end = World::threads(1).run(|comm| train(&longer, &comm, &mut ()));
        assert_eq!(end.is_err(), refused, "{schedule}");
        if let Err(error) = end {
            let error = error.to_string();
            let says = "`training.max_steps = 2` and this run has `training.epochs = 4` and `training.max_steps = 3`: its rates, of `";
            assert!(error.contains(says) && error.contains(schedule), "{error}");
            assert_eq!(run(&World::threads(1), &config).losses.len(), 2);
        }
    }
}
