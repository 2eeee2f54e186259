//! Tests of cast.cu and pack.cu.

use crate::common::{LENGTHS, Trained, raw, same, turned};
use allfold_cuda::{Queue, launch};
use allfold_kernels::{DType, Element, bf16, divide, f16};

pub fn check(queue: &Queue) {
    for n in LENGTHS {
        casts(queue, n);
    }
    crate::for_trained!(turns, queue);
    buckets::<f64>(queue);
    buckets::<f32>(queue);
    buckets::<f16>(queue);
    buckets::<bf16>(queue);
    searches::<f64>(queue, f64::NAN, f64::INFINITY);
    searches::<f32>(queue, f32::NAN, f32::NEG_INFINITY);
    searches::<f16>(queue, f16::NAN, f16::INFINITY);
    searches::<bf16>(queue, bf16::NAN, bf16::NEG_INFINITY);
}

fn turns<T: Trained>(queue: &Queue) {
    // The last value: the elements before the first one in memory. Packs of 4 are in use where a side is a multiple of 4.
    for (batch, rows, columns, before) in [
        (1, 1, 1, 0),
        (3, 5, 70, 0),
        (2, 64, 33, 0),
        (1, 33, 64, 0),
        (1, 40, 1, 0),
        (2, 68, 132, 0),
        (1, 68, 132, 1),
        (2, 130, 67, 0),
    ] {
        let x: Vec<T> = raw(batch * rows * columns, 4);
        let (start, size) = (before * size_of::<T>(), size_of_val(&x[..]));
        let memories = [0; 2].map(|_| queue.memory(start + size).unwrap());
        let [there, into] = memories.each_ref().map(|memory| memory.all().part(start, size).unwrap());
        queue.write(there, &x).unwrap();
        launch::transpose(queue, T::DTYPE, into, there, (rows, columns)).unwrap();
        let what = format!("turn_{} of {batch} x {rows} x {columns}, {before} before", T::DTYPE);
        same(&what, &queue.download(into).unwrap(), &turned(&x, (rows, columns)));
    }
}

/// Narrows f32 to T as `half` rounds, with canonical NaNs.
fn narrow<T: Trained>(x: f32) -> T {
    let quiet: T = bytemuck::pod_read_unaligned(match T::DTYPE {
        DType::F16 => &[0x00, 0x7e],
        DType::Bf16 => &[0xc0, 0x7f],
        _ => &[0x00, 0x00, 0xc0, 0x7f],
    });
    if x.is_nan() { quiet } else { T::of(x) }
}

fn one<A: Element, B: Element>(queue: &Queue, from: &[A], factor: f32, want: &[B]) {
    let x = queue.upload(from).unwrap();
    let y = queue.memory(size_of_val(want)).unwrap();
    launch::cast(queue, (A::DTYPE, x.all()), (B::DTYPE, y.all()), factor).unwrap();
    let what = format!("cast_{}_{} of {}", A::DTYPE, B::DTYPE, from.len());
    same(&what, &queue.download::<B>(y.all()).unwrap(), want);
}

fn casts(queue: &Queue, n: usize) {
    fn pair<A: Trained, B: Trained>(queue: &Queue, n: usize, factor: f32) {
        let from = raw::<A>(n, 3);
        let want: Vec<B> = from.iter().map(|x| narrow(x.wide() * factor)).collect();
        one(queue, &from, factor, &want);
    }
    for factor in [1.0, 0.25, 3.0] {
        pair::<f32, f16>(queue, n, factor);
        pair::<f32, bf16>(queue, n, factor);
        pair::<f16, f32>(queue, n, factor);
        pair::<bf16, f32>(queue, n, factor);
        pair::<f16, bf16>(queue, n, factor);
        pair::<bf16, f16>(queue, n, factor);
    }
    let wide = raw::<f64>(n, 4);
    let want: Vec<f32> = wide.iter().map(|x| narrow(*x as f32)).collect();
    one(queue, &wide, 1.0, &want);
    let single = raw::<f32>(n, 5);
    let canonical = |x: f64| if x.is_nan() { f64::from_bits(0x7ff8 << 48) } else { x };
    let want: Vec<f64> = single.iter().map(|x| canonical(f64::from(*x))).collect();
    one(queue, &single, 1.0, &want);
    let x = queue.memory(8).unwrap();
    assert!(launch::cast(queue, (DType::I32, x.all()), (DType::F32, x.all()), 1.0).is_err());
}

fn buckets<T: Element>(queue: &Queue) {
    let size = size_of::<T>();
    // Lengths: longer than a block's share, empty, and several that make the next tensor unaligned.
    let lengths = [5, 40_000, 0, 1, 16_384, 333];
    let tensors: Vec<Vec<T>> = lengths.iter().enumerate().map(|(nth, n)| raw(*n, 40 + nth as u64)).collect();
    let memories: Vec<_> = tensors.iter().map(|tensor| queue.upload(tensor).unwrap()).collect();
    let slices: Vec<_> = memories.iter().map(|memory| memory.all()).collect();
    let bucket = launch::BucketLaunch::new(queue, T::DTYPE, &slices).unwrap();
    let mut flat = tensors.concat();
    let memory = queue.memory(flat.len() * size).unwrap();
    assert_eq!(bucket.elements(), flat.len() as u64);
    bucket.pack(queue, memory.all(), 0).unwrap();
    same(&format!("pack_{}", T::DTYPE), &queue.download::<T>(memory.all()).unwrap(), &flat);
    bucket.pack(queue, memory.all(), 7).unwrap();
    divide(&mut flat, 7);
    same(&format!("pack_{} by 7", T::DTYPE), &queue.download::<T>(memory.all()).unwrap(), &flat);
    bucket.unpack(queue, memory.all(), 1.0).unwrap();
    let back: Vec<T> = slices.iter().flat_map(|slice| queue.download::<T>(*slice).unwrap()).collect();
    same(&format!("unpack_{}", T::DTYPE), &back, &flat);
    bucket.unpack(queue, memory.all(), 0.5).unwrap();
    bucket.pack(queue, memory.all(), 0).unwrap();
    let half: Vec<T> = queue.download(memory.all()).unwrap();
    let mut want = flat;
    // Halving is exact except for subnormals, and there division and multiplication round alike.
    divide(&mut want, 2);
    same(&format!("unpack_{} by a half", T::DTYPE), &half, &want);
    assert!(bucket.pack(queue, memory.all().part(0, size).unwrap(), 0).is_err());
}

fn searches<T: Element>(queue: &Queue, nan: T, infinity: T) {
    let tame: Vec<T> =
        raw::<T>(4101, 9).into_iter().map(|x| if is_finite(x) { x } else { T::zeroed() }).collect();
    for n in LENGTHS {
        for (what, bad) in [("nothing", None), ("NaN", Some(nan)), ("infinity", Some(infinity))] {
            let mut x = tame[..n].to_vec();
            let at = n * 5 / 7;
            let Some(found) = (match bad {
                Some(bad) if n > 0 => {
                    x[at] = bad;
                    Some(1u32)
                }
                Some(_) => None,
                None => Some(0),
            }) else {
                continue;
            };
            let (x, flag) = (queue.upload(&x).unwrap(), queue.upload(&[0u32]).unwrap());
            launch::found_inf(queue, T::DTYPE, x.all(), flag.all()).unwrap();
            assert_eq!(queue.download::<u32>(flag.all()).unwrap(), [found], "{what} among {n} {}", T::DTYPE);
            queue.fill(flag.all(), 0).unwrap();
            launch::unscale(queue, T::DTYPE, x.all(), 0.5, flag.all()).unwrap();
            assert_eq!(queue.download::<u32>(flag.all()).unwrap(), [found], "{what} among {n} {}", T::DTYPE);
            if found == 0 {
                let mut want = tame[..n].to_vec();
                divide(&mut want, 2);
                same("unscaled", &queue.download::<T>(x.all()).unwrap(), &want);
            }
        }
    }
}

fn is_finite<T: Element>(x: T) -> bool {
    let bytes = bytemuck::bytes_of(&x);
    let top = u16::from_le_bytes([bytes[bytes.len() - 2], bytes[bytes.len() - 1]]);
    let exponent = match T::DTYPE {
        DType::F64 => 0x7ff0,
        DType::F16 => 0x7c00,
        _ => 0x7f80,
    };
    top & exponent != exponent
}
