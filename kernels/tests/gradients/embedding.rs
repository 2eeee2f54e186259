//! Embeddings.

use crate::gradcheck::{check, dot, numbers};
use allfold_kernels::nn::EmbeddingShape;

#[test]
fn gradients_of_repeated_rows_add_up() {
    let shape = EmbeddingShape { rows: 4, width: 3 };
    let (x, w, r) = ([2.0, 0.0, 2.0, 3.0, 2.0], numbers(12, 1), numbers(15, 2));
    let run = |w: &[f64]| {
        let mut y = vec![0.0; 15];
        shape.forward(&x, w, &mut y);
        dot(&y, &r)
    };
    let mut dw = vec![9.0; 12];
    shape.backward_params(&x, &r, &mut dw);
    check("w", &w, &dw, run);
}

#[test]
#[should_panic(expected = "4.0 is no row of 4")]
fn a_number_beyond_the_table_is_refused() {
    EmbeddingShape { rows: 4, width: 1 }.forward(&[4.0], &[0.0; 4], &mut [0.0]);
}
