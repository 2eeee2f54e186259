//! What no simulated time may beat, whatever the engine.

use allfold_sim::Picos;

/// The bounds of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The bytes that crossed each link, over its bandwidth: the slowest link.
    pub links: Picos,
    /// The longest chain of messages that wait for each other, with links of infinite bandwidth.
    pub chain: Picos,
    /// What any algorithm for this collective must move through the ranks' and nodes' ports; zero where it is not
    /// known.
    pub collective: Picos,
}
