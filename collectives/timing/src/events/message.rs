//! The event engine's own data about a message in flight.

/// The two halves of steps that a message connects, and its round and times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halves {
    pub(super) round: u64,
    pub(super) sender: u32,
    pub(super) receiver: u32,
    pub(super) start: u64,
    pub(super) left: u64,
    /// When the message would start if messages had no bytes.
    pub(super) chain: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_sim::transit::InFlight;

    #[test]
    fn a_message_fits_a_line_of_the_cache() {
        assert_eq!(size_of::<InFlight<Halves>>(), 64);
    }
}
