//! Replaces `cuda` in a build without GPUs: a configuration that requests a GPU is refused with the reason.

#[path = "cuda/outcome.rs"]
mod outcome;

pub use outcome::StepOutcome;

use crate::engine::StepInput;
use crate::evaluate::EvaluationPlace;
use crate::optim::Optimiser;
use crate::{Batch, Config, Error, MemoryUse, Result, SampleForm};
use allfold_collectives::Communicator;
use allfold_kernels::nn::Float;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;

/// Replaces the GPUs; cannot be constructed.
pub trait CudaMachine: Send + Sync {
    /// The number of devices.
    fn devices(&self) -> usize;
    /// The devices in words.
    fn name(&self) -> String;
}

/// Replaces a rank's model on a GPU; cannot be constructed.
pub struct Replica<'a>(Infallible, PhantomData<&'a Communicator>);

fn absent() -> Error {
    Error::Config(
        "`device` is \"cuda\", and this program was built without GPUs: build it with the feature `cuda`, or \
         set device = \"cpu\""
            .into(),
    )
}

/// `None`, the CPU.
///
/// # Errors
/// The configuration requests GPUs.
pub fn open(config: &Config) -> Result<Option<Arc<dyn CudaMachine>>> {
    if config.uses_gpus() { Err(absent()) } else { Ok(None) }
}

/// No rank has a device.
///
/// # Errors
/// Always.
pub fn device_of(_: &Config, _: &Communicator, _: &dyn CudaMachine) -> Result<usize> {
    Err(absent())
}

#[allow(missing_docs, clippy::missing_errors_doc, reason = "no value has these: `cuda` says what they do")]
impl<'a> Replica<'a> {
    pub fn new(
        _: &Config,
        _: SampleForm,
        _: &'a Communicator,
        _: (Arc<dyn CudaMachine>, usize),
    ) -> Result<Replica<'a>> {
        Err(absent())
    }

    pub fn upload<F: Float>(&mut self, _: &[F], _: &[F], _: &mut dyn Optimiser<F>) -> Result<()> {
        match self.0 {}
    }

    pub fn download<F: Float>(&mut self, _: &mut [F], _: &mut [F], _: &mut dyn Optimiser<F>) -> Result<()> {
        match self.0 {}
    }

    pub fn hook_state<F: Float>(&mut self) -> Vec<(&'static str, Vec<F>)> {
        match self.0 {}
    }

    pub fn load_hook_state<F: Float>(&mut self, _: &[Vec<F>]) {
        match self.0 {}
    }

    pub fn undo(&mut self) {
        match self.0 {}
    }

    pub fn rescale(&mut self, _: f32) {
        match self.0 {}
    }

    pub fn memory(&self) -> MemoryUse {
        match self.0 {}
    }

    pub fn is_sharded(&self) -> bool {
        match self.0 {}
    }

    pub fn evaluates(&self) -> EvaluationPlace {
        match self.0 {}
    }

    pub fn share_statistics(&mut self) -> Result<()> {
        match self.0 {}
    }

    pub fn open(&mut self) -> Result<()> {
        match self.0 {}
    }

    pub fn close(&mut self) -> Result<()> {
        match self.0 {}
    }

    pub fn stage<F: Float>(&mut self, _: &Batch<F>) -> Result<()> {
        match self.0 {}
    }

    pub fn is_staged(&self) -> bool {
        match self.0 {}
    }

    pub fn start(&mut self, _: StepInput, _: u64, _: bool) -> Result<usize> {
        match self.0 {}
    }

    pub fn finish(&mut self, _: usize) -> Result<StepOutcome> {
        match self.0 {}
    }

    pub fn evaluate<F: Float>(&mut self, _: &Batch<F>) -> Result<(f64, u64)> {
        match self.0 {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_gpus_says_so_and_what_would_do() {
        let config = Config::default().with(|c| c.device = "cuda".into());
        let error = open(&config).err().unwrap().to_string();
        assert!(error.contains("feature `cuda`") && error.contains("device = \"cpu\""), "{error}");
        assert!(open(&Config::default()).unwrap().is_none());
    }
}
