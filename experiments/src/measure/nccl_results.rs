//! The results that NCCL's collectives must have, made again part by part, and their comparison up to rounding.

use super::inputs::{self, Sample};
use crate::call::plan::Choice;
use allfold_collectives::{Collective, DType, Rank, ReduceOp};
use allfold_kernels::{self as kernels, bf16, f16};
use std::ops::Range;

/// The most elements that are made, copied and compared at once.
const PART: usize = 1 << 20;

/// The places from 0 to `all`, in parts that no block of `block` places is in two of, unless it is larger than [`PART`].
pub(super) fn parts(all: usize, block: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = block.max(1) - at % block.max(1);
        let part = at..(at + left.min(PART)).min(all);
        at = part.end;
        (!part.is_empty()).then_some(part)
    })
}

/// These places, within one block, of a rank's result.
pub(super) fn expected_part<T: Sample>(
    choice: &Choice,
    seed: u64,
    (count, rank): (usize, Rank),
    places: &Range<usize>,
) -> Vec<T> {
    let (root, own) = (choice.shape.root().0, rank.index() * count);
    let (block, shifted) = (places.start / count.max(1), |by: usize| places.start + by..places.end + by);
    let reduced = |places: Range<usize>| {
        let mut sum: Vec<T> = inputs::part(seed, 0, places.clone());
        let others = (1..choice.shape.ranks()).map(|rank| inputs::part(seed, rank, places.clone()));
        others.for_each(|other| kernels::reduce(choice.op, &mut sum, &other));
        if choice.op == ReduceOp::Avg {
            kernels::divide(&mut sum, choice.shape.ranks());
        }
        sum
    };
    match choice.collective {
        Collective::AllReduce | Collective::Reduce => reduced(places.clone()),
        Collective::ReduceScatter => reduced(shifted(own)),
        Collective::Broadcast => inputs::part(seed, root, places.clone()),
        Collective::Scatter => inputs::part(seed, root, shifted(own)),
        Collective::AllToAll => {
            let within = places.start - block * count;
            inputs::part(seed, block as u32, own + within..own + within + places.len())
        }
        _ => inputs::part(seed, block as u32, places.clone()),
    }
}

/// Elements that differ by more than one rounding per rank, if the collective reduces; otherwise, and of integers, those that differ.
pub(super) fn far<T: Sample>(got: &[T], want: &[T], choice: &Choice) -> (u64, Option<usize>) {
    let step = match T::DTYPE {
        _ if !choice.collective.reduces() => return inputs::differing(got, want),
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => 2f64.powi(-10),
        DType::Bf16 => 2f64.powi(-7),
        _ => return inputs::differing(got, want),
    };
    let ranks = f64::from(choice.shape.ranks());
    let bad = |at: &usize| {
        let (got, want) = (number(&got[*at]), number(&want[*at]));
        (got - want).abs() > ranks * step * want.abs() || got.is_nan() != want.is_nan()
    };
    let mut places = (0..got.len().min(want.len())).filter(bad);
    let first = places.next();
    let missing = got.len().abs_diff(want.len()) as u64;
    (u64::from(first.is_some()) + places.count() as u64 + missing, first)
}

fn number<T: Sample>(value: &T) -> f64 {
    let bytes = bytemuck::bytes_of(value);
    match T::DTYPE {
        DType::F64 => bytemuck::pod_read_unaligned::<f64>(bytes),
        DType::F32 => f64::from(bytemuck::pod_read_unaligned::<f32>(bytes)),
        DType::F16 => bytemuck::pod_read_unaligned::<f16>(bytes).to_f64(),
        DType::Bf16 => bytemuck::pod_read_unaligned::<bf16>(bytes).to_f64(),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_collectives::registry::Shape;

    #[test]
    fn a_sum_in_another_order_is_near_and_a_wrong_one_is_not() {
        let choice =
            |dtype| Choice { dtype, ..Choice::new(Collective::AllReduce, None, Shape::new(4).unwrap()) };
        let (a, b) = ([1.0f32, 2.0], [1.0 + 2.0 * f32::EPSILON, 2.0]);
        assert_eq!(far(&a, &b, &choice(DType::F32)), (0, None));
        assert_eq!(far(&a, &[1.1, 2.0], &choice(DType::F32)), (1, Some(0)));
        assert_eq!(far(&[1i32, 2], &[1, 3], &choice(DType::I32)), (1, Some(1)));
        assert_eq!(far(&[f32::NAN], &[1.0], &choice(DType::F32)), (1, Some(0)));
    }

    #[test]
    fn parts_cover_all_places_once_and_no_two_blocks() {
        let all: Vec<Range<usize>> = parts(3 * PART, PART + 1).collect();
        assert_eq!(
            all,
            [
                0..PART,
                PART..PART + 1,
                PART + 1..2 * PART + 1,
                2 * PART + 1..2 * PART + 2,
                2 * PART + 2..3 * PART
            ]
        );
        assert_eq!(parts(0, 0).count(), 0);
    }
}
