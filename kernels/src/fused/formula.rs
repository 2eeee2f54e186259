//! A reduction tree as the steps that evaluate it on one block, with as few blocks of scratch as its shape allows.
//!
//! ```text
//! (0+1)+(2+3)     slot 0 = source 0 (+) source 1
//!                 slot 1 = source 2 (+) source 3
//!                 slot 0 = slot 0   (+) slot 1
//! ```

/// A piece of a tree in postfix order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// The source buffer of the member with this number.
    Leaf(u32),
    /// The reduction of the two values before it.
    Join,
}

/// The place of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Source(u32),
    Slot(usize),
}

/// `slot into = a (+) b`; where `a` is a slot it is `into`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub into: usize,
    pub a: Operand,
    pub b: Operand,
}

/// A reduction tree, ready to be evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formula {
    pub(super) steps: Vec<Step>,
    pub(super) slots: usize,
    pub(super) result: Operand,
    /// The greatest leaf.
    pub(super) last: u32,
}

impl Formula {
    /// The tree of these terms; none where they are not one tree.
    pub fn new(terms: impl IntoIterator<Item = Term>) -> Option<Formula> {
        let (mut stack, mut free, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        let (mut slots, mut last) = (0, 0);
        for term in terms {
            match term {
                Term::Leaf(member) => {
                    last = last.max(member);
                    stack.push(Operand::Source(member));
                }
                Term::Join => {
                    let (b, a) = (stack.pop()?, stack.pop()?);
                    // Reduction commutes to the bit: a slot takes the result, whichever side it is on.
                    let (a, b) = if matches!(a, Operand::Slot(_)) { (a, b) } else { (b, a) };
                    if let (Operand::Slot(_), Operand::Slot(other)) = (a, b) {
                        free.push(other);
                    }
                    let into = match a {
                        Operand::Slot(slot) => slot,
                        Operand::Source(_) => free.pop().unwrap_or_else(|| {
                            slots += 1;
                            slots - 1
                        }),
                    };
                    steps.push(Step { into, a, b });
                    stack.push(Operand::Slot(into));
                }
            }
        }
        let result = stack.pop().filter(|_| stack.is_empty())?;
        Some(Formula { steps, slots, result, last })
    }
}
