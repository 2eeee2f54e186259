//! Convolution of pictures, as matrix products that gather their patches on the way.
//!
//! ```text
//! x [N, C, H, W]     w [O, C/G, K, K]     y [N, O, P, Q]     P = (H + 2 pad - K) / stride + 1, Q likewise from W
//! patch (p, q) of a sample: the K x K pixels of every channel under output pixel (p, q), 0 outside the picture
//!
//! y  [O, N P Q]    = w . patches
//! dw [C K K, O]    = patches . dy^T                                   (then transposed)
//! dx [C, N H W]    = w transposed and flipped . patches of dy         stride 1: a convolution too
//! dx               = w^T . dy, each pixel's sum over the patches that contain it        other strides
//! ```
//!
//! With stride 1, patches are never stored for a whole batch: they are copied from a padded picture into the product's panels, so
//! that they stay in the cache (as in M. Dukhan, "The Indirect Convolution Algorithm", 2019, and cuDNN's implicit products, S.
//! Chetlur et al., 2014). With G groups, each of G equal parts of the channels has its own product. A 3 x 3 kernel of stride 1 over
//! many channels uses [`winograd`] instead, which needs fewer multiplications.

mod backward;
mod forward;
mod shape;
#[cfg(test)]
mod tests;
mod transpose;
mod winograd;
mod work;

pub use shape::Conv2dShape;
