//! Machines as data: tables of GPUs and NICs, and a topology from the description of the hardware of a published measurement.
//!
//! ```text
//! "A100-SXM4-40GB", 8 a node, 2 nodes, "16x100Gb/s RoCE CX-5"
//!        |                                   |
//!   gpu table: 12 NVLinks x 20 GB/s     nic rules: 16 NICs of 12.5 GB/s, RoCE
//!        '----------------+------------------'
//!                      Machine --> Topology, and what was understood and what was assumed
//! ```
//!
//! Every figure is listed with its source; only some figures in [`presets::FABRIC_FIGURES`] are fitted. [`Machine::assumed`]
//! lists all assumptions.
//!
//! ```
//! use allfold_sim::machines::{Description, Machine};
//!
//! let words = Description {
//!     gpu: Some("A100-SXM4-40GB".into()),
//!     gpus_per_node: Some(8),
//!     nodes: Some(2),
//!     inter_node: Some("16x100Gb/s RoCE CX-5".into()),
//!     ..Description::default()
//! };
//! let machine = Machine::understand(&words)?;
//! let topology = machine.topology(16)?;
//! assert_eq!(topology.name(), "A100 SXM, 2 nodes of 8, 8 NICs of 25 GB/s RoCE");
//! # Ok::<(), allfold_sim::Error>(())
//! ```

mod amounts;
mod description;
mod form_factor;
mod gpu;
mod inside;
mod lookup;
mod nic;
pub mod node;
mod notes;
mod own_gpu;
pub(crate) mod part;
pub mod presets;
mod rates;
mod words;

pub use description::{Cpu, Description, Machine};
pub use form_factor::FormFactor;
pub use gpu::{Generation, GpuModel, Port, USUAL_CLOCK};
pub use nic::{Fabric, Nics};
pub use rates::GpuRates;
