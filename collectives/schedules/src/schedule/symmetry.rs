//! Renumberings of the ranks that leave a schedule unchanged, so that one rank can represent several in simulated time.

/// A renumbering of the ranks that maps a schedule to itself, with its chunks renumbered accordingly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permutation {
    /// Rank r becomes r + d, modulo the number of ranks.
    Rotate(u32),
    /// Rank r becomes r ^ mask; the number of ranks is a power of two.
    Xor(u32),
}

impl Permutation {
    /// Generators of the renumberings that two sets have in common: the xor masks that are in both sets, and the least common
    /// multiple of the sets' (first) rotations.
    pub fn common(a: &[Permutation], b: &[Permutation]) -> Vec<Permutation> {
        let rotation = |set: &[Permutation]| {
            set.iter().find_map(|by| if let Permutation::Rotate(d) = by { Some(u64::from(*d)) } else { None })
        };
        let both = rotation(a).zip(rotation(b)).and_then(|(a, b)| u32::try_from(lcm(a, b)).ok());
        let masks = a.iter().filter(|by| matches!(by, Permutation::Xor(_)) && b.contains(by)).copied();
        both.map(Permutation::Rotate).into_iter().chain(masks).collect()
    }
}

/// The least common multiple of two numbers; 0 if both are 0.
pub(super) fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a.checked_div(x).map_or(0, |part| part * b)
}

#[cfg(test)]
mod tests {
    use super::Permutation::{Rotate, Xor};
    use super::*;

    #[test]
    fn common_renumberings_of_two_sets() {
        assert_eq!(Permutation::common(&[Rotate(4)], &[Rotate(6)]), [Rotate(12)]);
        assert_eq!(Permutation::common(&[Xor(1), Xor(2)], &[Xor(2), Rotate(1)]), [Xor(2)]);
        assert_eq!(Permutation::common(&[Rotate(1)], &[]), []);
    }
}
