//! The table `[precision]`: the types that numbers have, and the loss scale.

use crate::{Error, Result};
use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// The type of parameters, gradients and activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementType {
    /// 32 bits.
    #[default]
    F32,
    /// 64 bits.
    F64,
}

/// The narrow type of autocast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutocastType {
    /// No autocast.
    #[default]
    None,
    /// IEEE 754's 16 bits.
    F16,
    /// The upper 16 bits of an f32.
    Bf16,
}

/// The types that numbers have, and the loss scale.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct PrecisionConfig {
    /// The type of parameters, gradients and activations: `f32` or `f64`.
    pub dtype: ElementType,
    /// The narrow type of autocast: `none`, `f16` or `bf16`. Parameters stay f32.
    pub amp: AutocastType,
    /// Initial loss scale, against underflow of gradients; 0: no loss scale. A loss that is not finite ends the run; with `precision.amp`
    /// f16 and a loss scale, ten such losses in a row do.
    pub loss_scale: f64,
    /// Factor of the loss scale after `precision.scale_interval` steps without overflow.
    pub scale_growth: f64,
    /// Factor of the loss scale after an overflow. All ranks skip that step; running statistics take only its finite values.
    pub scale_backoff: f64,
    /// Steps without overflow after which the loss scale grows.
    pub scale_interval: u64,
    /// Smallest loss scale.
    pub scale_floor: f64,
}

impl Default for PrecisionConfig {
    fn default() -> PrecisionConfig {
        PrecisionConfig {
            dtype: ElementType::default(),
            amp: AutocastType::default(),
            loss_scale: 0.0,
            scale_growth: 2.0,
            scale_backoff: 0.5,
            scale_interval: 2000,
            scale_floor: 1.0 / 16_384.0,
        }
    }
}

impl PrecisionConfig {
    /// Checks that autocast has element type f32, and that the loss scale does not begin below its floor.
    pub(crate) fn check(&self) -> Result<()> {
        if self.amp != AutocastType::None && self.dtype != ElementType::F32 {
            return Err(Error(format!(
                "`precision.amp` is {} and `precision.dtype` {}; autocast needs dtype f32",
                self.amp, self.dtype
            )));
        }
        let PrecisionConfig { loss_scale, scale_floor, .. } = self;
        match *loss_scale > 0.0 && scale_floor > loss_scale {
            true => Err(Error(format!(
                "`precision.scale_floor` is {scale_floor}, which is above the first scale, `precision.loss_scale` = {loss_scale}"
            ))),
            false => Ok(()),
        }
    }
}
