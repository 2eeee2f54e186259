//! Winograd's transforms of tiles, a vector of channels at a time.
#![allow(clippy::needless_range_loop, reason = "rows and columns of small matrices have numbers")]

use crate::nn::Float;
use crate::nn::simd::vectorised;

/// The number of channels that are transformed together.
pub(super) const VECTOR: usize = 16;

/// The values of [`VECTOR`] neighbouring channels.
type Vector<F> = [F; VECTOR];

// Arrays, not slices: a copy between slices may stay a call of `memmove`.
#[inline(always)]
fn load<F: Float>(from: &[F], at: usize) -> Vector<F> {
    from[at..at + VECTOR].as_chunks().0[0]
}

#[inline(always)]
fn put<F: Float>(to: &mut [F], at: usize, from: &Vector<F>) {
    to[at..at + VECTOR].as_chunks_mut().0[0] = *from;
}

#[inline(always)]
fn plus<F: Float>(a: &Vector<F>, b: &Vector<F>) -> Vector<F> {
    let mut sum = *a;
    for i in 0..VECTOR {
        sum[i] = a[i] + b[i];
    }
    sum
}

#[inline(always)]
fn minus<F: Float>(a: &Vector<F>, b: &Vector<F>) -> Vector<F> {
    let mut sum = *a;
    for i in 0..VECTOR {
        sum[i] = a[i] - b[i];
    }
    sum
}

#[inline(always)]
fn half<F: Float>(a: &Vector<F>) -> Vector<F> {
    let mut product = *a;
    for i in 0..VECTOR {
        product[i] = a[i] * F::from_f64(0.5);
    }
    product
}

/// Applies B' to a column of four vectors.
#[inline(always)]
fn under<F: Float>([a, b, c, d]: [&Vector<F>; 4]) -> [Vector<F>; 4] {
    [minus(a, c), plus(b, c), minus(c, b), minus(b, d)]
}

/// Applies A' to a column of four vectors.
#[inline(always)]
fn two<F: Float>([a, b, c, d]: [&Vector<F>; 4]) -> [Vector<F>; 2] {
    [plus(&plus(a, b), c), minus(&minus(b, c), d)]
}

/// Applies A to a column of two vectors.
#[inline(always)]
fn four<F: Float>([a, b]: [&Vector<F>; 2]) -> [Vector<F>; 4] {
    [*a, plus(a, b), minus(a, b), minus(&[F::ZERO; VECTOR], b)]
}

/// Applies G to a column of three vectors.
#[inline(always)]
fn grown<F: Float>([a, b, c]: [&Vector<F>; 3]) -> [Vector<F>; 4] {
    let ends = plus(a, c);
    [*a, half(&plus(&ends, b)), half(&minus(&ends, b)), *c]
}

/// Applies G' to a column of four vectors.
#[inline(always)]
fn three<F: Float>([a, b, c, d]: [&Vector<F>; 4]) -> [Vector<F>; 3] {
    let (sum, difference) = (half(&plus(b, c)), half(&minus(b, c)));
    [plus(a, &sum), difference, plus(&sum, d)]
}

vectorised! {
    /// Transforms one tile of pixels at `from` to `v`. Two neighbouring elements of a transformed tile are `plane` elements
    /// apart.
    pub(super) fn pixels<F>(xs: &[F], from: &[usize; 16], channels: usize, plane: usize, v: &mut [F]) {
        let mut c = 0;
        while c < channels {
            let mut rows = [[[F::ZERO; VECTOR]; 4]; 4];
            for j in 0..4 {
                let column = [
                    &load(xs, from[j] + c), &load(xs, from[4 + j] + c),
                    &load(xs, from[8 + j] + c), &load(xs, from[12 + j] + c),
                ];
                let [a, b, d, e] = under(column);
                (rows[0][j], rows[1][j], rows[2][j], rows[3][j]) = (a, b, d, e);
            }
            for i in 0..4 {
                let [a, b, d, e] = under([&rows[i][0], &rows[i][1], &rows[i][2], &rows[i][3]]);
                put(v, 4 * i * plane + c, &a);
                put(v, (4 * i + 1) * plane + c, &b);
                put(v, (4 * i + 2) * plane + c, &d);
                put(v, (4 * i + 3) * plane + c, &e);
            }
            c += VECTOR;
        }
    }

    /// Transforms one tile of products `m`, whose places are `plane` elements apart, to the output pixels at `to`.
    pub(super) fn inner<F>(m: &[F], plane: usize, channels: usize, to: &[usize; 4], ys: &mut [F]) {
        let mut c = 0;
        while c < channels {
            let mut rows = [[[F::ZERO; VECTOR]; 4]; 2];
            for j in 0..4 {
                let column = [
                    &load(m, j * plane + c), &load(m, (4 + j) * plane + c),
                    &load(m, (8 + j) * plane + c), &load(m, (12 + j) * plane + c),
                ];
                let [a, b] = two(column);
                (rows[0][j], rows[1][j]) = (a, b);
            }
            for i in 0..2 {
                let [a, b] = two([&rows[i][0], &rows[i][1], &rows[i][2], &rows[i][3]]);
                if to[2 * i] < usize::MAX {
                    put(ys, to[2 * i] + c, &a);
                }
                if to[2 * i + 1] < usize::MAX {
                    put(ys, to[2 * i + 1] + c, &b);
                }
            }
            c += VECTOR;
        }
    }

    /// Transforms one tile of output gradients at `from` to `z`. Two neighbouring elements of a transformed tile are `plane`
    /// elements apart.
    pub(super) fn outer<F>(ys: &[F], from: &[usize; 4], channels: usize, plane: usize, z: &mut [F]) {
        let mut c = 0;
        while c < channels {
            let left = four([&load(ys, from[0] + c), &load(ys, from[2] + c)]);
            let right = four([&load(ys, from[1] + c), &load(ys, from[3] + c)]);
            for i in 0..4 {
                let [a, b, d, e] = four([&left[i], &right[i]]);
                put(z, 4 * i * plane + c, &a);
                put(z, (4 * i + 1) * plane + c, &b);
                put(z, (4 * i + 2) * plane + c, &d);
                put(z, (4 * i + 3) * plane + c, &e);
            }
            c += VECTOR;
        }
    }

    /// Transforms nine lines of the kernel for each channel to one line of U at each place.
    pub(super) fn kernels<F>(transposed: &[F], outputs: usize, u: &mut [&mut [F]]) {
        let (lines, mut line) = (transposed.len() / (9 * outputs), 0);
        while line < lines {
            let mut o = 0;
            while o < outputs {
                let at = line * 9 * outputs + o;
                let mut rows = [[[F::ZERO; VECTOR]; 4]; 3];
                for i in 0..3 {
                    let at = at + 3 * i * outputs;
                    rows[i] = grown([
                        &load(transposed, at), &load(transposed, at + outputs), &load(transposed, at + 2 * outputs),
                    ]);
                }
                for j in 0..4 {
                    let column = grown([&rows[0][j], &rows[1][j], &rows[2][j]]);
                    for i in 0..4 {
                        put(u[4 * i + j], line * outputs + o, &column[i]);
                    }
                }
                o += VECTOR;
            }
            line += 1;
        }
    }

    /// Transforms `p`, whose places are `plane` elements apart, to nine lines of `outputs` elements for each channel.
    pub(super) fn gradients<F>(p: &[F], plane: usize, outputs: usize, transposed: &mut [F]) {
        let (lines, mut line) = (plane / outputs, 0);
        while line < lines {
            let mut o = 0;
            while o < outputs {
                let at = line * outputs + o;
                let mut rows = [[[F::ZERO; VECTOR]; 3]; 4];
                for i in 0..4 {
                    let at = at + 4 * i * plane;
                    rows[i] = three([
                        &load(p, at), &load(p, at + plane), &load(p, at + 2 * plane), &load(p, at + 3 * plane),
                    ]);
                }
                for j in 0..3 {
                    let column = three([&rows[0][j], &rows[1][j], &rows[2][j], &rows[3][j]]);
                    for i in 0..3 {
                        put(transposed, (line * 9 + 3 * i + j) * outputs + o, &column[i]);
                    }
                }
                o += VECTOR;
            }
            line += 1;
        }
    }
}
