//! The kernels' sources, a family a file, and how a kernel is named.

use crate::DType;

/// What every family includes.
pub const HEADER: &str = include_str!("../../cuda/element.cuh");

macro_rules! families {
    ($($(#[$doc:meta])* $family:ident = $name:literal),*) => {
        /// One source file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Family {
            $($(#[$doc])* $family),*
        }

        impl Family {
            /// All of them.
            pub const ALL: &[Family] = &[$(Family::$family),*];

            /// The file's name.
            pub const fn file(self) -> &'static str {
                match self { $(Family::$family => concat!($name, ".cu")),* }
            }

            /// The CUDA source text of the family.
            pub const fn source(self) -> &'static str {
                match self { $(Family::$family => include_str!(concat!("../../cuda/", $name, ".cu"))),* }
            }
        }
    };
}

families! {
    /// A schedule's reductions.
    Reduce = "reduce",
    /// Whole collectives in one kernel.
    Fused = "fused",
    /// Casts between types.
    Cast = "cast",
    /// Buckets, and the search for infinities.
    Pack = "pack",
    /// Optimisers.
    Optim = "optim",
    /// Batch normalisation.
    BatchNorm = "batch_norm",
    /// Layer normalisation.
    LayerNorm = "layer_norm",
    /// Element by element.
    Activation = "activation",
    /// Softmax cross-entropy.
    Loss = "loss",
    /// Pooling.
    Pool = "pool",
    /// Embeddings.
    Embedding = "embedding",
    /// Dropout.
    Dropout = "dropout",
    /// Norms of gradients, and clipping by them.
    Norm = "norm",
    /// Attention.
    Attention = "attention",
    /// Matrix products and convolutions, plain.
    Matmul = "matmul"
}

/// A kernel: where its source is, which instances to compile, and its name there.
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
    /// The instance `STEM_DTYPE` of a family.
    pub fn typed(family: Family, stem: &str, dtype: DType) -> Kernel {
        Kernel { family, dtype: Some(dtype), name: format!("{stem}_{dtype}") }
    }

    /// A kernel that has one form; it is compiled along with the instances of f32.
    pub fn plain(family: Family, name: &str) -> Kernel {
        Kernel { family, dtype: Some(DType::F32), name: name.into() }
    }
}
