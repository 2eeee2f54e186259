//! GELU.

use crate::gradcheck::{check, dot, numbers};
use allfold_kernels::nn::GeluKernel;

#[test]
fn gradients_and_known_values() {
    let (x, r) = (numbers(50, 1).iter().map(|x| 4.0 * x).collect::<Vec<_>>(), numbers(50, 2));
    let run = |x: &[f64]| {
        let mut y = vec![0.0; x.len()];
        GeluKernel::forward(x, &mut y);
        y
    };
    let mut dx = vec![9.0; 50];
    GeluKernel::backward(&x, &r, &mut dx);
    check("x", &x, &dx, |x| dot(&run(x), &r));
    // Expected values by PyTorch 2.15: torch.nn.functional.gelu(torch.tensor([-1., 0., 2.], dtype=torch.float64)).
    let want = [-0.158_655_253_931_457_05, 0.0, 1.954_499_736_103_641_8];
    assert!(run(&[-1.0, 0.0, 2.0]).iter().zip(want).all(|(y, want)| (y - want).abs() < 1e-15));
}
