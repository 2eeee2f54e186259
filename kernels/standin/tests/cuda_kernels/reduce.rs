//! Tests of reduce.cu: bitwise equal to the CPU, for every type and operator, at any alignment.

use crate::common::{LENGTHS, raw, same};
use allfold_cuda::{Queue, launch};
use allfold_kernels::{Element, ReduceOp, bf16, divide, f16, reduce};

pub fn check(queue: &Queue) {
    crate::for_elements!(typed, queue);
    every_half_is_divided_right(queue);
}

fn typed<T: Element>(queue: &Queue) {
    let size = size_of::<T>();
    for (nth, n) in LENGTHS.into_iter().enumerate() {
        for op in ReduceOp::ALL {
            let (a, b) = (raw::<T>(n, 1 + nth as u64), raw::<T>(n, 100 + nth as u64));
            let mut want = a.clone();
            reduce(op, &mut want, &b);
            // Offsets: both aligned, both unaligned equally, each unaligned differently.
            for (left, right) in [(0, 0), (size, size), (size, 2 * size)] {
                let what = format!("reduce_{op}_{} of {n}, offsets {left} {right}", T::DTYPE);
                let (x, y) =
                    (queue.memory(n * size + left).unwrap(), queue.memory(n * size + right).unwrap());
                let (x, y) = (x.all().part(left, n * size).unwrap(), y.all().part(right, n * size).unwrap());
                queue.write(x, &a).unwrap();
                queue.write(y, &b).unwrap();
                launch::reduce(queue, T::DTYPE, op, x, y).unwrap();
                same(&what, &queue.download::<T>(x).unwrap(), &want);
                same("the other operand", &queue.download::<T>(y).unwrap(), &b);
            }
        }
        for parts in [1, 3, 8, 2047, 100_003] {
            let a = raw::<T>(n, 7 * u64::from(parts));
            let mut want = a.clone();
            divide(&mut want, parts);
            let x = queue.upload(&a).unwrap();
            launch::divide(queue, T::DTYPE, x.all(), parts).unwrap();
            let what = format!("divide_{} of {n} by {parts}", T::DTYPE);
            same(&what, &queue.download::<T>(x.all()).unwrap(), &want);
        }
    }
    let x = queue.memory(3 * size).unwrap();
    let y = queue.memory(4 * size).unwrap();
    assert!(launch::reduce(queue, T::DTYPE, ReduceOp::Sum, x.all(), y.all()).is_err());
    assert!(launch::divide(queue, T::DTYPE, x.all(), 0).is_err());
}

/// All 65,536 values of f16 and bf16, divided by numbers of parts for which f32 is exact enough and for which it is not.
fn every_half_is_divided_right(queue: &Queue) {
    fn all<T: Element>(queue: &Queue) {
        let every: Vec<u16> = (0..=u16::MAX).collect();
        let every: Vec<T> = bytemuck::cast_slice(&every).to_vec();
        for parts in [3, 1000, 2047, 2048, 2049, 65_535, u32::MAX] {
            let mut want = every.clone();
            divide(&mut want, parts);
            let x = queue.upload(&every).unwrap();
            launch::divide(queue, T::DTYPE, x.all(), parts).unwrap();
            let what = format!("every {} by {parts}", T::DTYPE);
            same(&what, &queue.download::<T>(x.all()).unwrap(), &want);
        }
    }
    all::<f16>(queue);
    all::<bf16>(queue);
}
