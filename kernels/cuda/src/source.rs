//! The kernels' sources, one file per family, and the kernels' names.

use allfold_kernels::DType;

/// The headers that families include, by their names.
pub const HEADERS: [(&str, &str); 2] =
    [("element.cuh", include_str!("../element.cuh")), ("attention.cuh", include_str!("../attention.cuh"))];

macro_rules! families {
    ($($(#[$doc:meta])* $family:ident = $name:literal),*) => {
        /// A family of kernels: one CUDA source file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Family {
            $($(#[$doc])* $family),*
        }

        impl Family {
            /// All families.
            pub const ALL: &[Family] = &[$(Family::$family),*];

            /// The name of the family's source file.
            pub const fn file(self) -> &'static str {
                match self { $(Family::$family => concat!($name, ".cu")),* }
            }

            /// The CUDA source text of the family.
            pub const fn source(self) -> &'static str {
                match self { $(Family::$family => include_str!(concat!("../", $name, ".cu"))),* }
            }
        }
    };
}

families! {
    /// The reduction of one buffer into another, and the division of an average.
    Reduce = "reduce",
    /// Fused collectives: a whole collective in one kernel.
    Fused = "fused",
    /// Casts between element types.
    Cast = "cast",
    /// Packing of buckets, and the search for infinities.
    Pack = "pack",
    /// Optimiser steps.
    Optim = "optim",
    /// Batch normalisation.
    BatchNorm = "batch_norm",
    /// Layer normalisation.
    LayerNorm = "layer_norm",
    /// Activations and other operations on each element alone.
    Activation = "activation",
    /// Losses.
    Loss = "loss",
    /// Losses of classes that ranks share.
    SplitLoss = "split_loss",
    /// Maximum and mean pooling.
    Pool = "pool",
    /// Embedding tables.
    Embedding = "embedding",
    /// Dropout.
    Dropout = "dropout",
    /// Mixtures of experts.
    Experts = "experts",
    /// Copies of rows between places with other strides.
    Rows = "rows",
    /// Norms of gradients, and clipping by them.
    Norm = "norm",
    /// Attention of several heads in f32, and the part of its gradient that all types share.
    Attention = "attention",
    /// Attention of several heads in 16-bit types, by tensor cores.
    AttentionMma = "attention_mma",
    /// Matrix products and convolutions without a vendor library.
    Matmul = "matmul"
}

/// A kernel: its family, the instance to compile, and its name in the source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kernel {
    /// The family that the kernel belongs to.
    pub family: Family,
    /// The one element type that is compiled; `None` compiles all.
    pub dtype: Option<DType>,
    /// The kernel's name.
    pub name: String,
}

impl Kernel {
    /// The kernel `STEM_DTYPE` of a family.
    pub fn typed(family: Family, stem: &str, dtype: DType) -> Kernel {
        Kernel { family, dtype: Some(dtype), name: format!("{stem}_{dtype}") }
    }

    /// A kernel by its whole name; it is compiled along with the f32 instances.
    pub fn plain(family: Family, name: &str) -> Kernel {
        Kernel { family, dtype: Some(DType::F32), name: name.into() }
    }
}
