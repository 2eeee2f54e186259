//! The router: the experts of each token, and their gates.

use super::{ExpertShape, from_experts, to_experts};
use crate::layers::{
    Backward, Forward, Init, Layer, LayerCost, LayerOperation, LayerTraits, PassKind, PeerCall, Tensor,
};
use allfold_kernels::nn::{Float, LinearShape, OpCost, add_to};

/// Chooses the experts of each token and puts the token into their slots: the first layer of a mixture. The router computes in f32
/// or f64 under autocast too, because its outputs contain slot numbers.
///
/// The router's weights have a second objective, the balance loss: for each sample `balance` E times the sum over experts of the
/// share of choices that went to the expert times the expert's mean p. This loss is least if all experts get the same number of
/// tokens. Only its gradient is computed: the loss that a run reports is without it.
pub struct ExpertRouter {
    shape: ExpertShape,
    balance: f64,
    init: Init,
    ranks: usize,
}

impl ExpertRouter {
    /// A router with this weight on the balance loss, at least 0.
    pub fn new(shape: ExpertShape, balance: f64, init: Init) -> ExpertRouter {
        ExpertRouter { shape, balance, init, ranks: 1 }
    }

    fn linear(&self) -> LinearShape {
        LinearShape { inputs: self.shape.width, outputs: self.shape.experts }
    }

    /// The number of experts of a rank.
    fn own(&self) -> usize {
        self.shape.experts / self.ranks
    }

    /// The numbers of the experts with the largest `p`, largest first; of equal ones the first.
    fn best<F: Float>(&self, p: &[F]) -> Vec<usize> {
        let mut best: Vec<usize> = Vec::with_capacity(self.shape.chosen);
        for _ in 0..self.shape.chosen {
            let left = (0..p.len()).filter(|e| !best.contains(e));
            let next = left.reduce(|next, e| if p[e] > p[next] { e } else { next });
            best.extend(next);
        }
        best
    }

    /// The gates of these experts, and the number by which their `p` are divided.
    fn gates<F: Float>(&self, p: &[F], best: &[usize]) -> (Vec<F>, F) {
        let sum = match best {
            [_] => F::ONE,
            _ => best.iter().fold(F::ZERO, |sum, e| sum + p[*e]),
        };
        (best.iter().map(|e| p[*e] / sum).collect(), sum)
    }

    /// The gradient of the loss with respect to the router's logits.
    fn logit_grads<F: Float>(&self, pass: &Backward<F>) -> Vec<F> {
        let ExpertShape { positions, experts, chosen, .. } = self.shape;
        let n = pass.n;
        let first = n * self.shape.slots() * self.shape.width;
        let gate_grads = &pass.dy[first..first + n * self.shape.choices()];
        let choices = &pass.saved.indices[..n * self.shape.choices()];
        // The loss is a mean over samples.
        let balance = pass.scale * F::from_f64(self.balance * experts as f64 / n.max(1) as f64);
        let mut grads = vec![F::ZERO; n * positions * experts];
        let tokens = pass.saved.values.chunks_exact(experts).zip(grads.chunks_exact_mut(experts));
        let tokens = tokens.zip(choices.chunks_exact(chosen).zip(gate_grads.chunks_exact(chosen)));
        let mut shares = vec![F::ZERO; experts];
        for (token, ((p, dp), (best, dgates))) in tokens.enumerate() {
            if token % positions == 0 {
                let sample = &choices[token * chosen..(token + positions) * chosen];
                shares.fill(F::ZERO);
                sample.iter().for_each(|e| shares[*e as usize] += F::from_f64(1.0 / sample.len() as f64));
            }
            let mean = F::from_f64(1.0 / positions as f64);
            dp.iter_mut().zip(&shares).for_each(|(dp, &share)| *dp = balance * share * mean);
            let best: Vec<usize> = best.iter().map(|e| *e as usize).collect();
            let (gates, sum) = self.gates(p, &best);
            // The sum is a constant where one expert is chosen.
            let common = match chosen {
                1 => F::ZERO,
                _ => gates.iter().zip(dgates).fold(F::ZERO, |sum, (&gate, &dgate)| sum + gate * dgate),
            };
            best.iter().zip(dgates).for_each(|(e, &dgate)| dp[*e] += (dgate - common) / sum);
            let dot = p.iter().zip(dp.iter()).fold(F::ZERO, |sum, (&p, &dp)| sum + p * dp);
            dp.iter_mut().zip(p).for_each(|(dp, &p)| *dp = p * (*dp - dot));
        }
        grads
    }

    /// The cost of moving `n` samples into slots, or back.
    fn moved<F: Float>(&self, n: usize) -> OpCost {
        let ExpertShape { positions, width, experts, .. } = self.shape;
        let moved = n * (self.shape.exchanged() + self.shape.choices() * width);
        OpCost::launch(n * positions * 6 * experts, moved, size_of::<F>())
    }
}

/// Replaces each row of `width` values by its softmax.
fn softmax<F: Float>(values: &mut [F], width: usize) {
    for row in values.chunks_exact_mut(width) {
        let largest = row.iter().fold(row[0], |largest, &x| if x > largest { x } else { largest });
        row.iter_mut().for_each(|x| *x = (*x - largest).exp_fast());
        let sum = row.iter().fold(F::ZERO, |sum, &x| sum + x);
        row.iter_mut().for_each(|x| *x = *x / sum);
    }
}

impl<F: Float> Layer<F> for ExpertRouter {
    fn inputs(&self) -> usize {
        self.shape.positions * self.shape.width
    }

    fn outputs(&self) -> usize {
        self.shape.exchanged()
    }

    fn params(&self) -> Vec<Tensor> {
        vec![Tensor::new("weight", &[self.shape.experts, self.shape.width], self.init)]
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits::of_exchanged(self.shape.experts, self.ranks)
    }

    fn peer_calls(&self, pass: PassKind, n: usize) -> Vec<PeerCall> {
        let slots = PeerCall::AllToAll(n * self.shape.slots() * self.shape.width);
        let cost = Layer::<F>::cost(self, n);
        match pass {
            PassKind::Forward => vec![PeerCall::Charge(cost.forward), slots],
            PassKind::WeightGrad => vec![PeerCall::Charge(cost.params)],
            PassKind::InputGrad => vec![slots, PeerCall::Charge(cost.input)],
            PassKind::GatherGradient => Vec::new(),
        }
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::ExpertRouter { shape: self.shape, balance: self.balance, ranks: self.ranks }
    }

    fn sharing_experts(&self, ranks: usize) -> Option<Box<dyn Layer<F>>> {
        Some(Box::new(ExpertRouter { ranks, ..*self }))
    }

    /// The p of every token and expert; the experts and the slots of every token.
    fn saved(&self, n: usize) -> (usize, usize) {
        (n * self.shape.positions * self.shape.experts, 2 * n * self.shape.choices())
    }

    fn forward(&self, pass: Forward<F>) {
        let ExpertShape { positions, width, experts, chosen, capacity } = self.shape;
        let (n, choices) = (pass.n, self.shape.choices());
        let p = &mut pass.saved.values[..];
        self.linear().forward(n * positions, pass.x, pass.params, &[], p);
        softmax(p, experts);
        let (slots, tail) = pass.y.split_at_mut(n * self.shape.slots() * width);
        let (gates, numbers) = tail.split_at_mut(n * choices);
        let (best, places) = pass.saved.indices.split_at_mut(n * choices);
        slots.fill(F::ZERO);
        let mut filled = vec![0; experts];
        for (token, (p, x)) in p.chunks_exact(experts).zip(pass.x.chunks_exact(width)).enumerate() {
            let sample = token / positions;
            if token % positions == 0 {
                filled.fill(0);
            }
            let own = self.best(p);
            let (values, _) = self.gates(p, &own);
            for (j, (expert, gate)) in own.into_iter().zip(values).enumerate() {
                let at = token * chosen + j;
                let number = match filled[expert] < capacity {
                    true => expert * capacity + filled[expert],
                    false => self.shape.slots(),
                };
                filled[expert] += 1;
                if let Some(slot) = self.shape.slot(number, sample, n) {
                    slots[slot].copy_from_slice(x);
                }
                (best[at], places[at]) = (expert as u32, number as u32);
                (gates[at], numbers[at]) = (gate, F::from_f64(number as f64));
            }
        }
        if self.ranks > 1 {
            pass.peers.charge(Layer::<F>::cost(self, n).forward);
            to_experts(pass.peers, slots, self.own());
        }
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        if self.ranks > 1 {
            pass.peers.charge(Layer::<F>::cost(self, pass.n).params);
        }
        let logits = self.logit_grads(pass);
        self.linear().backward_params(pass.n * self.shape.positions, pass.x, &logits, grads, &mut []);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        let ExpertShape { positions, width, chosen, .. } = self.shape;
        let n = pass.n;
        let mut slots = pass.dy[..n * self.shape.slots() * width].to_vec();
        if self.ranks > 1 {
            from_experts(pass.peers, &mut slots, self.own());
            pass.peers.charge(Layer::<F>::cost(self, n).input);
        }
        let logits = self.logit_grads(pass);
        self.linear().backward_input(n * positions, pass.params, &logits, dx);
        let places = &pass.saved.indices[n * self.shape.choices()..];
        for (token, (places, dx)) in places.chunks_exact(chosen).zip(dx.chunks_exact_mut(width)).enumerate() {
            let kept = places.iter().filter_map(|at| self.shape.slot(*at as usize, token / positions, n));
            kept.for_each(|slot| add_to(dx, &slots[slot]));
        }
    }

    fn cost(&self, n: usize) -> LayerCost {
        let (tokens, linear, moved) = (n * self.shape.positions, self.linear(), self.moved::<F>(n));
        let forward = linear.forward_cost::<F>(tokens) + moved;
        LayerCost {
            forward,
            evaluate: forward,
            params: linear.backward_params_cost::<F>(tokens),
            input: linear.backward_input_cost::<F>(tokens) + moved,
            ..LayerCost::default()
        }
    }
}
