//! One rank: forward pass, backward pass, optimiser's step. Every other strategy is compared with it.

use super::driver::DataSharing;
use crate::Result;
use crate::engine::{Keep, RankEngine};

/// A rank that keeps everything and exchanges nothing.
pub struct Single;

impl DataSharing for Single {
    fn keep(&self) -> Keep {
        Keep::Whole
    }

    fn is_one_unit(&self) -> bool {
        true
    }

    fn update(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        on.update()
    }
}
