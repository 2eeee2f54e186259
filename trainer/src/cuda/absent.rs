//! Replaces `cuda` in a build without GPUs: a configuration that requests a GPU is refused with the reason.

use crate::{Config, Error, Result};
use std::sync::Arc;

/// Replaces the GPUs; nothing implements it.
pub trait CudaMachine: Send + Sync {
    /// The devices in words.
    fn name(&self) -> String;
    /// The number of devices.
    fn devices(&self) -> usize;
}

/// `None`, the CPU.
///
/// # Errors
/// The configuration requests GPUs.
pub fn open(config: &Config) -> Result<Option<Arc<dyn CudaMachine>>> {
    match config.uses_gpus() {
        true => Err(Error::Config(
            "`device` is \"cuda\", and this program was built without GPUs: build it with the feature `cuda`, or \
             set device = \"cpu\""
                .into(),
        )),
        false => Ok(None),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
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
