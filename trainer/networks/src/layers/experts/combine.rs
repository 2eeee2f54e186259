//! The weighted sum of the outputs of a token's experts.

use super::{ExpertShape, from_experts, to_experts};
use crate::layers::{Backward, Forward, Layer, LayerCost, LayerOperation, LayerTraits, PassKind, PeerCall};
use allfold_kernels::nn::{Float, OpCost};

/// Adds up the outputs of each token's experts by their gates: the last layer of a mixture.
pub struct ExpertCombine {
    shape: ExpertShape,
    ranks: usize,
}

impl ExpertCombine {
    /// The last layer of a mixture of this shape.
    pub fn new(shape: ExpertShape) -> ExpertCombine {
        ExpertCombine { shape, ranks: 1 }
    }

    fn own(&self) -> usize {
        self.shape.experts / self.ranks
    }

    /// Where the slots end in an activation of `n` samples, and where the gates after them end.
    fn ends(&self, n: usize) -> (usize, usize) {
        let slots = n * self.shape.slots() * self.shape.width;
        (slots, slots + n * self.shape.choices())
    }
}

impl<F: Float> Layer<F> for ExpertCombine {
    fn inputs(&self) -> usize {
        self.shape.exchanged()
    }

    fn outputs(&self) -> usize {
        self.shape.positions * self.shape.width
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits::of_exchanged(self.shape.experts, self.ranks)
    }

    fn peer_calls(&self, pass: PassKind, n: usize) -> Vec<PeerCall> {
        let (slots, cost) = (PeerCall::AllToAll(self.ends(n).0), Layer::<F>::cost(self, n));
        match pass {
            PassKind::Forward => vec![slots, PeerCall::Charge(cost.forward)],
            PassKind::InputGrad => vec![PeerCall::Charge(cost.input), slots],
            PassKind::GatherGradient | PassKind::WeightGrad => Vec::new(),
        }
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::ExpertCombine { shape: self.shape, ranks: self.ranks }
    }

    fn sharing_experts(&self, ranks: usize) -> Option<Box<dyn Layer<F>>> {
        Some(Box::new(ExpertCombine { ranks, ..*self }))
    }

    /// The outputs of all experts, once ranks have exchanged them; nothing if this rank has all experts.
    fn saved(&self, n: usize) -> (usize, usize) {
        (if self.ranks > 1 { self.ends(n).0 } else { 0 }, 0)
    }

    fn forward(&self, pass: Forward<F>) {
        let ExpertShape { positions, width, chosen, .. } = self.shape;
        let (slots, gates) = self.ends(pass.n);
        if self.ranks > 1 {
            pass.saved.values.copy_from_slice(&pass.x[..slots]);
            from_experts(pass.peers, &mut pass.saved.values, self.own());
            pass.peers.charge(Layer::<F>::cost(self, pass.n).forward);
        }
        let outputs = if self.ranks > 1 { &pass.saved.values[..] } else { &pass.x[..slots] };
        let choices = pass.x[slots..gates].chunks_exact(chosen).zip(pass.x[gates..].chunks_exact(chosen));
        for (token, ((gates, numbers), y)) in choices.zip(pass.y.chunks_exact_mut(width)).enumerate() {
            y.fill(F::ZERO);
            for (&gate, number) in gates.iter().zip(numbers) {
                if let Some(slot) = self.shape.slot(number.to_f64() as usize, token / positions, pass.n) {
                    y.iter_mut().zip(&outputs[slot]).for_each(|(y, &output)| *y += gate * output);
                }
            }
        }
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        let ExpertShape { positions, width, chosen, .. } = self.shape;
        let (slots, gates) = self.ends(pass.n);
        let outputs = if self.ranks > 1 { &pass.saved.values[..] } else { &pass.x[..slots] };
        let choices = pass.x[slots..gates].chunks_exact(chosen).zip(pass.x[gates..].chunks_exact(chosen));
        let (dslots, rest) = dx.split_at_mut(slots);
        let (dgates, dnumbers) = rest.split_at_mut(gates - slots);
        dslots.fill(F::ZERO);
        dnumbers.fill(F::ZERO);
        let tokens = choices.zip(dgates.chunks_exact_mut(chosen)).zip(pass.dy.chunks_exact(width));
        for (token, (((gates, numbers), dgates), dy)) in tokens.enumerate() {
            for ((&gate, number), dgate) in gates.iter().zip(numbers).zip(dgates) {
                *dgate = F::ZERO;
                if let Some(slot) = self.shape.slot(number.to_f64() as usize, token / positions, pass.n) {
                    let output = &outputs[slot.clone()];
                    *dgate = output.iter().zip(dy).fold(F::ZERO, |sum, (&output, &dy)| sum + output * dy);
                    dslots[slot].iter_mut().zip(dy).for_each(|(d, &dy)| *d = gate * dy);
                }
            }
        }
        if self.ranks > 1 {
            pass.peers.charge(Layer::<F>::cost(self, pass.n).input);
            to_experts(pass.peers, dslots, self.own());
        }
    }

    fn cost(&self, n: usize) -> LayerCost {
        let work = n * self.shape.choices() * self.shape.width;
        let forward =
            OpCost::launch(2 * work, work + n * self.shape.positions * self.shape.width, size_of::<F>());
        let input = OpCost::launch(3 * work, 2 * work + n * self.shape.exchanged(), size_of::<F>());
        LayerCost { forward, evaluate: forward, input, ..LayerCost::default() }
    }
}
