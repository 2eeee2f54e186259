//! Parts of training in a crate outside of Allfold: a dataset, a layer, a model, an optimiser, a hook and a strategy.
//!
//! | file | part | what it is |
//! |---|---|---|
//! | `spirals.rs` | `data.name = "spirals"` | points of two spirals, drawn from the seed |
//! | `swish.rs` | `model.name = "swish_mlp"` | fully connected layers with a learned x sigmoid(b x) between them |
//! | `lion.rs` | `optimiser.name = "lion"` | moves by the sign of a momentum |
//! | `majority.rs` | `ddp.hook = "majority"` | ranks vote on the sign of each gradient, a byte each |
//! | `late.rs` | `strategy = "late_ddp"` | data parallelism that exchanges after the backward pass |
//!
//! [`PARTS`] names them all. A program passes it to [`allfold_trainer::own::add`], or to `allfold_experiments::run_with` for the
//! whole command; then configurations find the parts by name, on every backend, like Allfold's own. So a new method can be tried, and
//! compared with the built-in methods, without a change of Allfold.
//!
//! ```
//! use allfold_collectives::{Communicator, World};
//! use allfold_trainer::{Config, own, train};
//!
//! own::add(own_training::PARTS)?;
//! let parts = "data.name = 'spirals'\nmodel.name = 'swish_mlp'\noptimiser.name = 'lion'\nstrategy = 'late_ddp'";
//! let mut config = allfold_trainer::config::parse(parts, "spirals.toml")?;
//! (config.training.epochs, config.model.hidden) = (60, vec![32, 32]);
//! (config.optimiser.lr, config.optimiser.weight_decay) = (0.003, 0.1);
//! let ranks = World::threads(4).run(|comm: Communicator| train(&config, &comm, &mut ()))?;
//! assert!(ranks[0].test.accuracy() > 0.95);
//! # Ok::<(), allfold_trainer::Error>(())
//! ```

mod late;
mod lion;
mod majority;
mod spirals;
mod swish;

pub use lion::Lion;
pub use majority::Majority;
pub use swish::Swish;

use allfold_trainer::own::{OwnDataset, OwnHook, OwnModel, OwnOptimiser, OwnParts, OwnStrategy};

/// The parts of this crate.
pub const PARTS: OwnParts = OwnParts {
    models: &[OwnModel {
        name: "swish_mlp",
        about: "fully connected layers with learned swishes between them",
        f32: swish::swish_mlp,
        f64: swish::swish_mlp,
    }],
    optimisers: &[OwnOptimiser {
        name: "lion",
        about: "moves by the sign of a momentum",
        f32: lion::build,
        f64: lion::build,
    }],
    hooks: &[OwnHook {
        name: "majority",
        about: "ranks vote on the sign of each gradient",
        f32: majority::build,
        f64: majority::build,
    }],
    strategies: &[OwnStrategy {
        name: "late_ddp",
        about: "data parallelism that exchanges after the backward pass",
        plan: late::plan,
    }],
    datasets: &[OwnDataset { name: "spirals", about: "points of two spirals", load: spirals::load }],
};
