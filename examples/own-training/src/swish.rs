//! A layer with a learned function of each number, y = x sigmoid(b x) with a `b` for each feature, and a model of such layers
//! (P. Ramachandran, B. Zoph and Q. Le, "Searching for activation functions", 2017).

use allfold_kernels::nn::{Float, OpCost};
use allfold_trainer::layers::{Backward, Forward, Init, Layer, LayerCost, LayerTraits, Linear, Tensor};
use allfold_trainer::{Config, Network, Result, SampleForm};

/// The layer over this many features.
pub struct Swish(pub usize);

/// sigmoid(b x), and its derivative with respect to b x.
fn sigmoid(x: f64, b: f64) -> (f64, f64) {
    let s = 1.0 / (1.0 + (-b * x).exp());
    (s, s * (1.0 - s))
}

impl<F: Float> Layer<F> for Swish {
    fn inputs(&self) -> usize {
        self.0
    }

    fn params(&self) -> Vec<Tensor> {
        vec![Tensor::new("beta", &[self.0], Init::Constant(1.0))]
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { free_output: true, ..LayerTraits::default() }
    }

    fn forward(&self, pass: Forward<F>) {
        for (at, (y, x)) in pass.y.iter_mut().zip(pass.x).enumerate() {
            let (x, b) = (x.to_f64(), pass.params[at % self.0].to_f64());
            *y = F::from_f64(x * sigmoid(x, b).0);
        }
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        let mut sums = vec![0.0; self.0];
        for (at, (x, dy)) in pass.x.iter().zip(pass.dy).enumerate() {
            let (x, b) = (x.to_f64(), pass.params[at % self.0].to_f64());
            sums[at % self.0] += dy.to_f64() * x * x * sigmoid(x, b).1;
        }
        grads.iter_mut().zip(sums).for_each(|(to, sum)| *to = F::from_f64(sum));
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        for (at, (to, (x, dy))) in dx.iter_mut().zip(pass.x.iter().zip(pass.dy)).enumerate() {
            let (x, b) = (x.to_f64(), pass.params[at % self.0].to_f64());
            let (s, slope) = sigmoid(x, b);
            *to = F::from_f64(dy.to_f64() * (s + b * x * slope));
        }
    }

    fn cost(&self, n: usize) -> LayerCost {
        let elements = n * self.0;
        let pass =
            |flops: usize, moved: usize| OpCost::launch(flops * elements, moved * elements, size_of::<F>());
        LayerCost {
            forward: pass(5, 2),
            evaluate: pass(5, 2),
            params: pass(8, 2),
            input: pass(9, 3),
            ..LayerCost::default()
        }
    }
}

/// From the samples through layers of the configuration's `hidden` widths to logits, a [`Swish`] after each layer but the
/// last.
pub fn swish_mlp<F: Float>(config: &Config, samples: SampleForm) -> Result<Network<F>> {
    let (channels, height, width) = samples.shape;
    let mut layers: Vec<(String, Box<dyn Layer<F>>)> = Vec::new();
    let mut inputs = channels * height * width;
    for (nth, &outputs) in (1..).zip(&config.model.hidden) {
        layers.push((format!("fc{nth}"), Box::new(Linear::new(inputs, outputs))));
        layers.push((format!("swish{nth}"), Box::new(Swish(outputs))));
        inputs = outputs;
    }
    layers.push((
        format!("fc{}", config.model.hidden.len() + 1),
        Box::new(Linear::new(inputs, samples.classes)),
    ));
    Ok(Network::new(layers)?)
}
