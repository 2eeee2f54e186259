//! The ranks that a symmetry makes equal, in closed form: no table is needed for any number of ranks.
//!
//! ```text
//! rotations by multiples of 4     0 1 2 3 0 1 2 3 0 1 2 3     class = rank mod 4
//! masks spanned by 001, 110       0 0 1 1 1 1 0 0             class = the bits left when pivots are cleared
//! ```

/// The orbits of ranks (or of equal blocks of ranks) under a group of renumberings in which only the identity leaves a rank in
/// place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Classes {
    /// Rotations: r becomes r + any multiple of `step`, modulo `ranks`, which `step` divides.
    Rotations { ranks: u32, step: u32 },
    /// Xor masks: r becomes r ^ any sum of masks of the basis.
    Masks { ranks: u32, basis: Basis },
}

impl Classes {
    /// The number of classes.
    pub fn count(&self) -> u32 {
        match self {
            Classes::Rotations { step, .. } => *step,
            Classes::Masks { ranks, basis } => ranks >> basis.dimension(),
        }
    }

    /// The class of a rank, below [`Classes::count`].
    pub fn class(&self, rank: u32) -> u32 {
        match self {
            Classes::Rotations { step, .. } => rank % step,
            Classes::Masks { basis, .. } => basis.compress(basis.reduce(rank)),
        }
    }

    /// The least rank of a class.
    pub fn representative(&self, class: u32) -> u32 {
        match self {
            Classes::Rotations { .. } => class,
            Classes::Masks { basis, .. } => basis.expand(class),
        }
    }

    /// The rank that `to` becomes under the renumbering that maps `from` to the representative of its class.
    pub fn carry(&self, from: u32, to: u32) -> u32 {
        match self {
            Classes::Rotations { ranks, step } => (to + ranks - (from - from % step)) % ranks,
            Classes::Masks { basis, .. } => to ^ from ^ basis.reduce(from),
        }
    }

    /// The classes of blocks of consecutive ranks, and the number of renumberings that map a block to itself. `None` if a
    /// renumbering maps a block onto parts of several blocks.
    pub fn of_blocks(&self, block: u32) -> Option<(Classes, u32)> {
        match self {
            Classes::Rotations { ranks, step } if step % block == 0 => {
                Some((Classes::Rotations { ranks: ranks / block, step: step / block }, 1))
            }
            Classes::Masks { ranks, basis } if block.is_power_of_two() && ranks % block == 0 => {
                let blocks = Basis::spanned_by(basis.masks().map(|mask| mask / block));
                let within = basis.dimension() - blocks.dimension();
                Some((Classes::Masks { ranks: ranks / block, basis: blocks }, 1 << within))
            }
            _ => None,
        }
    }
}

/// A reduced basis of a space of bit masks: each mask's highest bit, its pivot, is in no other mask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Basis {
    masks: Vec<u32>,
    pivots: u32,
}

impl Basis {
    /// A basis of all sums of these masks.
    pub fn spanned_by(masks: impl IntoIterator<Item = u32>) -> Basis {
        let mut basis = Basis::default();
        for mask in masks {
            let mask = basis.reduce(mask);
            if mask != 0 {
                let pivot = 1 << mask.ilog2();
                for other in basis.masks.iter_mut().filter(|other| **other & pivot != 0) {
                    *other ^= mask;
                }
                basis.masks.push(mask);
                basis.pivots |= pivot;
            }
        }
        basis
    }

    pub fn masks(&self) -> impl Iterator<Item = u32> + '_ {
        self.masks.iter().copied()
    }

    pub fn dimension(&self) -> u32 {
        self.masks.len() as u32
    }

    /// The least element of `rank`'s coset, in which every pivot bit is cleared.
    pub fn reduce(&self, rank: u32) -> u32 {
        self.masks().fold(rank, |rank, mask| if rank >> mask.ilog2() & 1 == 1 { rank ^ mask } else { rank })
    }

    /// The bits of `reduced` that are not pivots, packed together.
    fn compress(&self, reduced: u32) -> u32 {
        let free = (0..32).filter(|bit| self.pivots >> bit & 1 == 0);
        (0..).zip(free).fold(0, |class, (place, bit)| class | (reduced >> bit & 1) << place)
    }

    fn expand(&self, class: u32) -> u32 {
        let free = (0..32).filter(|bit| self.pivots >> bit & 1 == 0);
        (0..).zip(free).fold(0, |rank, (place, bit): (u32, u32)| rank | (class >> place & 1) << bit)
    }
}

#[cfg(test)]
pub(crate) mod test_support {
    use super::Classes;

    /// Every renumbering of the group, as a function.
    pub fn group(classes: &Classes) -> Vec<Box<dyn Fn(u32) -> u32>> {
        match classes.clone() {
            Classes::Rotations { ranks, step } => (0..ranks / step)
                .map(|k| Box::new(move |r| (r + k * step) % ranks) as Box<dyn Fn(u32) -> u32>)
                .collect(),
            Classes::Masks { basis, .. } => (0..1u32 << basis.dimension())
                .map(|chosen| {
                    let mask = basis.masks().enumerate().filter(|(i, _)| chosen >> i & 1 == 1);
                    let mask = mask.fold(0, |sum, (_, mask)| sum ^ mask);
                    Box::new(move |r| r ^ mask) as Box<dyn Fn(u32) -> u32>
                })
                .collect(),
        }
    }

    pub fn ranks(classes: &Classes) -> u32 {
        match classes {
            Classes::Rotations { ranks, .. } | Classes::Masks { ranks, .. } => *ranks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::test_support::{group, ranks};
    use super::*;
    use proptest::prelude::*;

    fn any_classes() -> impl Strategy<Value = Classes> {
        let rotations = (1u32..9, 1u32..9)
            .prop_map(|(step, k)| Classes::Rotations { ranks: 8 * step * k, step: 8 * step });
        let masks = prop::collection::vec(0u32..64, 0..5)
            .prop_map(|masks| Classes::Masks { ranks: 64, basis: Basis::spanned_by(masks) });
        prop_oneof![rotations, masks]
    }

    proptest! {
        #[test]
        fn classes_are_the_orbits_of_the_group(classes in any_classes(), a in 0u32..64, b in 0u32..64) {
            let n = ranks(&classes);
            let (a, b) = (a % n, b % n);
            let group = group(&classes);
            let same = group.iter().any(|g| g(a) == b);
            prop_assert_eq!(classes.class(a) == classes.class(b), same);
            prop_assert!(classes.class(a) < classes.count());
            prop_assert_eq!(group.len() as u32 * classes.count(), n);
            let least = group.iter().map(|g| g(a)).min().unwrap();
            prop_assert_eq!(classes.representative(classes.class(a)), least);
            let mover = group.iter().find(|g| g(a) == least).unwrap();
            prop_assert_eq!(classes.carry(a, b), mover(b));
        }

        #[test]
        fn blocks_have_the_orbits_of_the_group_too(classes in any_classes(), log in 0u32..4, a in 0u32..64, b in 0u32..64) {
            let (n, block) = (ranks(&classes), 1 << log);
            let (a, b) = (a % n / block, b % n / block);
            let group = group(&classes);
            let (blocks, stabiliser) = classes.of_blocks(block).unwrap();
            let same = group.iter().any(|g| g(a * block) / block == b);
            prop_assert_eq!(blocks.class(a) == blocks.class(b), same);
            let fixed = group.iter().filter(|g| g(a * block) / block == a).count();
            prop_assert_eq!(stabiliser as usize, fixed);
        }
    }
}
