//! A reduction tree as the steps that evaluate it on one block, with the fewest scratch blocks that the order of its terms allows.
//!
//! ```text
//! (0+1)+(2+3)     slot 0 = source 0 (+) source 1
//!                 slot 1 = source 2 (+) source 3
//!                 slot 0 = slot 0   (+) slot 1
//! ```

/// A term of a tree in postfix order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// The source buffer of the member with this number.
    Leaf(u32),
    /// The reduction of the two preceding values.
    Join,
}

/// The place of a step's operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Source(u32),
    Slot(usize),
}

/// One reduction, `slot into = a (+) b`; if `a` is a slot, it is slot `into`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub into: usize,
    pub a: Operand,
    pub b: Operand,
}

/// A reduction tree as a list of steps, ready to be evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formula {
    pub(super) steps: Vec<Step>,
    pub(super) slots: usize,
    pub(super) result: Operand,
    /// The greatest member number among the leaves.
    pub(super) last: u32,
}

impl Formula {
    /// The formula of these postfix terms; `None` if they do not form one tree.
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
                    // Reduction is bitwise commutative: a slot takes the result, whichever operand it is.
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
