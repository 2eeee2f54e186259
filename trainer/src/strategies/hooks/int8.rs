//! Eight bits for each element: a scale for the whole bucket, and multiples of it.
//!
//! ```text
//! | scale, f32 | n bytes, each -127..=127 times the scale |       gathered from all ranks, added in their order
//! ```

use allfold_collectives::Buffer;
use allfold_kernels::nn::Float;

/// The size of the scale in bytes.
pub(super) const HEAD: usize = 4;
/// The integer that stands for the largest element.
const TOP: f64 = 127.0;

pub fn encode<F: Float>(values: &[F]) -> Buffer<u8> {
    let largest =
        values.iter().fold(0.0, |max: f64, v| if v.to_f64().abs() > max { v.to_f64().abs() } else { max });
    // A value that is not finite makes the scale, and so the whole sum, NaN: then the loss scaler skips the step.
    let finite = values.iter().all(|v| v.to_f64().is_finite());
    let scale = if finite { (largest / TOP) as f32 } else { f32::NAN };
    let mut bytes = Buffer::<u8>::zeroed(HEAD + values.len());
    bytes[..HEAD].copy_from_slice(&scale.to_le_bytes());
    if scale > 0.0 {
        let inverse = 1.0 / f64::from(scale);
        for (byte, v) in bytes[HEAD..].iter_mut().zip(values) {
            *byte = (v.to_f64() * inverse).round_ties_even().clamp(-TOP, TOP) as i8 as u8;
        }
    }
    bytes
}

pub fn decode<F: Float>(all: &[u8], ranks: usize, sum: &mut [F]) {
    sum.fill(F::ZERO);
    for bytes in all.chunks_exact(all.len() / ranks.max(1)) {
        let (head, bytes) = bytes.split_at(HEAD);
        let scale = f32::from_le_bytes(head.try_into().unwrap_or_default());
        for (sum, &byte) in sum.iter_mut().zip(bytes) {
            *sum += F::from_f64(f64::from(byte as i8) * f64::from(scale));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_half_a_step_and_nothing_hidden() {
        let values: Vec<f32> = (0..1000).map(|i| (i as f32 - 400.0) / 100.0).collect();
        let mut sum = vec![0f32; 1000];
        decode(&encode(&values), 1, &mut sum);
        assert!(values.iter().zip(&sum).all(|(a, b)| (a - b).abs() <= 0.5 * 6.0 / 127.0));
        decode(&encode(&[1.0f32, f32::INFINITY]), 1, &mut sum);
        assert!(sum[0].is_nan() && sum[1].is_nan());
        decode(&encode(&[0.0f32; 4]), 1, &mut sum[..4]);
        assert_eq!(sum[..4], [0.0; 4]);
    }
}
