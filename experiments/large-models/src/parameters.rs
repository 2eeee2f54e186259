//! The physical parameters of a step: named, with priors, fitted to published runs, read from `parameters.toml`.
//!
//! ```toml
//! [[parameter]]
//! name = "products.Hopper"
//! prior = 0.72             # before the fit
//! std_dev = 0.08           # of the prior's logarithm; 0: held
//! varies = 0.06            # of the logarithm between systems
//! value = 0.73             # fitted
//! deviation = 0.04         # of the fitted logarithm
//! unit = "times"
//! source = "share of the peak that large products reach"
//! ```

use allfold_base::suggest;
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

macro_rules! physical {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A physical parameter of a step of a large model; its number in [`StepParameters`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Physical { $($(#[$doc])* $name,)* }

        /// The parameters' names, in order.
        pub const NAMES: &[&str] = &[$($text,)*];
    };
}

physical! {
    /// Share of the peak that large 16-bit products reach, by generation.
    ProductsVolta = "products.Volta",
    /// On A100.
    ProductsAmpere = "products.Ampere",
    /// On H100.
    ProductsHopper = "products.Hopper",
    /// On B200.
    ProductsBlackwell = "products.Blackwell",
    /// On MI300X.
    ProductsCdna = "products.CDNA",
    /// Share of the FP8 peak, Hopper.
    Fp8Hopper = "fp8.Hopper",
    /// Share of the FP8 peak, Blackwell.
    Fp8Blackwell = "fp8.Blackwell",
    /// Share of the FP8 peak, MI300X.
    Fp8Cdna = "fp8.CDNA",
    /// Share of the FP4 peak.
    Fp4 = "fp4",
    /// Speed of a GPU of limited power.
    LimitedPower = "power.limited",
    /// Speed of products whose sizes are no multiples of 64.
    Misaligned = "products.misaligned",
    /// Speed of grouped products of experts.
    Grouped = "grouped",
    /// The same with FP8.
    GroupedFp8 = "grouped.fp8",
    /// Time of each local expert's product beyond its work.
    Expert = "expert",
    /// Share of the peak of FlashAttention, Ampere.
    AttentionAmpere = "attention.Ampere",
    /// Hopper.
    AttentionHopper = "attention.Hopper",
    /// Blackwell.
    AttentionBlackwell = "attention.Blackwell",
    /// MI300X.
    AttentionCdna = "attention.CDNA",
    /// Speed with heads of 64 and fewer elements.
    AttentionNarrow = "attention.narrow",
    /// Speed of FlashAttention 2 on Hopper.
    AttentionOlder = "attention.older",
    /// Speed of the first FlashAttention on Ampere.
    AttentionFirst = "attention.first",
    /// Speed of attention's products where scores are kept in memory, relative to large products.
    AttentionProducts = "attention.products",
    /// Passes of the scores through memory.
    ScorePasses = "attention.passes",
    /// Share of the memory's bandwidth.
    Memory = "memory",
    /// Passes of kernels between products: Megatron's of 2021.
    PassesMegatron = "passes.Megatron",
    /// PyTorch's, one by one.
    PassesEager = "passes.eager",
    /// Compiled by PyTorch.
    PassesCompiled = "passes.compiled",
    /// By XLA.
    PassesXla = "passes.XLA",
    /// Transformer Engine's.
    PassesTransformerEngine = "passes.TransformerEngine",
    /// Passes of the permutation of tokens.
    PassesPermutation = "passes.permutation",
    /// Passes of the loss.
    PassesLoss = "passes.loss",
    /// Passes of FP8's casts.
    PassesCast = "passes.cast",
    /// The same with a scale for each 32 elements.
    PassesCastBlocks = "passes.cast.blocks",
    /// Share of the links' bandwidth.
    Links = "links",
    /// Share of the NICs' bandwidth.
    Network = "network",
    /// The same of Omni-Path.
    NetworkOmniPath = "network.OmniPath",
    /// Exposed share of tensor exchanges where nothing hides them.
    TensorExposed = "tensor",
    /// Of Megatron of 2022.
    TensorExposed2022 = "tensor.2022",
    /// Of Transformer Engine.
    TensorExposedTransformerEngine = "tensor.TransformerEngine",
    /// Of asynchronous tensor parallelism.
    TensorExposedAsynchronous = "tensor.asynchronous",
    /// Time of a step of a tensor exchange.
    Latency = "tensor.latency",
    /// Exposed share of the exchanges of keys and values.
    ContextExposed = "context",
    /// Exposed share of all-to-all.
    ExpertsExposed = "experts",
    /// The network's part of all-to-all.
    ExpertsNetwork = "experts.network",
    /// Exposed share of messages between stages.
    PipelineExposed = "pipeline",
    /// The part of a pass beside which exchanges can be hidden.
    Hidden = "hidden",
    /// What hidden exchanges take from the computation beside them.
    Contention = "contention",
    /// The same of the first FSDP.
    ContentionFirstFsdp = "contention.FSDP1",
    /// The part of a gradients' exchange that is never hidden.
    DataExposed = "data",
    /// The part of the last stage's longer time that others wait for.
    Uneven = "uneven",
    /// The same of Megatron-Bridge.
    UnevenBridge = "uneven.Bridge",
    /// The host's time for a layer.
    HostDense = "host",
    /// The host's time for a layer of experts.
    HostExperts = "host.experts",
    /// Passes of the optimiser.
    Optimizer = "optimizer",
    /// The share computed again where XLA runs do not say.
    UnstatedXla = "unstated.XLA",
    /// The same of Megatron-Bridge.
    UnstatedBridge = "unstated.Bridge",
    /// A step's time beside all that.
    Fixed = "fixed",
    /// The standard deviation of the ranks' speeds.
    Stragglers = "stragglers",
}

/// The number of parameters.
pub const STEP_PARAMETERS: usize = NAMES.len();

/// A value for every parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct StepParameters {
    values: [f64; STEP_PARAMETERS],
}

impl StepParameters {
    /// The parameters that ship with Allfold.
    pub fn published() -> StepParameters {
        StepParameters {
            values: std::array::from_fn(|number| PUBLISHED.get(number).map_or(1.0, |row| row.value)),
        }
    }

    /// Parameters from the logarithms of their values; those that are missing are 1.
    pub fn from_logs(logs: &[f64]) -> StepParameters {
        StepParameters { values: std::array::from_fn(|number| logs.get(number).map_or(1.0, |log| log.exp())) }
    }

    /// The logarithms of all values.
    pub fn logs(&self) -> Vec<f64> {
        self.values.iter().map(|value| value.ln()).collect()
    }

    /// The value of a parameter.
    pub fn at(&self, parameter: Physical) -> f64 {
        self.values.get(parameter as usize).copied().unwrap_or(1.0)
    }

    /// A share: the parameter's value, at most 1.
    pub(crate) fn share(&self, parameter: Physical) -> f64 {
        self.at(parameter).min(1.0)
    }
}

/// A row of `parameters.toml`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepParameterRow {
    /// The parameter's name.
    pub name: String,
    /// The value before the fit.
    pub prior: f64,
    /// The standard deviation of the prior's logarithm; 0: the fit holds the prior.
    pub std_dev: f64,
    /// The standard deviation of the logarithm between systems, by which a known row of a system moves the parameter.
    pub varies: f64,
    /// The fitted value.
    pub value: f64,
    /// The standard deviation of the fitted value's logarithm.
    pub deviation: f64,
    /// The unit: `s` or `times`.
    pub unit: String,
    /// The origin of the prior.
    pub source: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ParameterTable {
    #[serde(default)]
    intervals: IntervalScales,
    #[serde(default)]
    parameter: Vec<StepParameterRow>,
}

/// How many standard deviations the intervals reach either way, so that they hold their share of the rows of systems left out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntervalScales {
    /// The 80 and 95 % interval of dense models.
    pub dense: [f64; 2],
    /// Of mixtures of experts.
    pub experts: [f64; 2],
}

impl Default for IntervalScales {
    /// Those of normally distributed errors.
    fn default() -> IntervalScales {
        IntervalScales { dense: [1.28, 1.96], experts: [1.28, 1.96] }
    }
}

impl IntervalScales {
    /// The shipped scales.
    pub fn published() -> IntervalScales {
        toml::from_str::<ParameterTable>(include_str!("parameters.toml")).unwrap_or_default().intervals
    }

    /// The scales of a model with or without experts.
    pub fn of(&self, experts: bool) -> [f64; 2] {
        if experts { self.experts } else { self.dense }
    }
}

/// The rows of the shipped file in the order of [`NAMES`]. A test rules out a file that cannot be read.
static PUBLISHED: LazyLock<Vec<StepParameterRow>> =
    LazyLock::new(|| StepParameterRow::parse(include_str!("parameters.toml")).unwrap_or_default());

impl StepParameterRow {
    /// The shipped rows.
    pub fn published() -> &'static [StepParameterRow] {
        &PUBLISHED
    }

    /// Reads a file of parameters, in the order of [`NAMES`].
    ///
    /// # Errors
    /// Text that is no such TOML file; an unknown parameter, with the nearest name; a missing one; a value that is not 1e-9 to 1e9.
    pub fn parse(text: &str) -> Result<Vec<StepParameterRow>, String> {
        let table: ParameterTable = toml::from_str(text).map_err(|error| error.message().to_string())?;
        for row in &table.parameter {
            if !NAMES.contains(&&*row.name) {
                return Err(suggest::unknown("parameter", &row.name, NAMES));
            }
            if !(1e-9..=1e9).contains(&row.value) || !(1e-9..=1e9).contains(&row.prior) {
                return Err(format!(
                    "parameter `{}` is {:e}; give a number from 1e-9 to 1e9",
                    row.name, row.value
                ));
            }
            if !(0.0..=3.0).contains(&row.std_dev) || !(0.0..=3.0).contains(&row.varies) {
                return Err(format!("parameter `{}`: std_dev and varies are from 0 to 3", row.name));
            }
        }
        let find = |name: &&str| {
            let row = table.parameter.iter().find(|row| row.name == **name);
            row.cloned().ok_or_else(|| format!("parameter `{name}` is missing"))
        };
        NAMES.iter().map(find).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_parameters_are_whole_and_say_where_they_are_from() {
        let rows = StepParameterRow::parse(include_str!("parameters.toml")).unwrap();
        assert_eq!(rows.len(), STEP_PARAMETERS);
        for (row, name) in rows.iter().zip(NAMES) {
            assert_eq!(row.name, *name);
            assert!(row.source.len() > 3 && ["s", "times"].contains(&&*row.unit), "{name}");
            // A fit that leaves a prior this far behind has found something else than the parameter's meaning.
            assert!(row.std_dev == 0.0 || ((row.value / row.prior).ln() / row.std_dev).abs() < 3.5, "{name}");
        }
        let published = StepParameters::published();
        assert_eq!(published.at(Physical::Stragglers), rows.last().unwrap().value);
        let again = StepParameters::from_logs(&published.logs());
        assert!((again.at(Physical::Links) / published.at(Physical::Links) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_file_that_says_nonsense_is_refused_in_a_line() {
        let whole = include_str!("parameters.toml");
        let said = |from: &str, to: &str| StepParameterRow::parse(&whole.replacen(from, to, 1)).unwrap_err();
        assert!(said("\"products.Volta\"", "\"product.Volta\"").contains("products.Volta"));
        assert!(said("prior = 0.72", "prior = -1.0").contains("1e-9 to 1e9"));
        assert!(said("std_dev = 0.12", "std_dev = 12.0").contains("from 0 to 3"));
        assert!(said("name = \"fixed\"", "name = \"links\"").contains("`fixed` is missing"));
    }
}
