//! Test data for kernels, and comparisons of results.

use allfold_base::hash::SplitMix;
use allfold_kernels::{DType, Element, bf16, f16};

/// Lengths around every boundary (words of 16 bytes, warps, blocks, the grid's stride), and 0 and 1.
pub const LENGTHS: [usize; 9] = [0, 1, 3, 7, 31, 64, 257, 1000, 4101];

/// A small random generator, equal on all machines.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        let mut words = SplitMix(self.0);
        let word = words.word();
        self.0 = words.0;
        word
    }

    /// The next random number from -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
}

/// Ordinary numbers between -1 and 1.
pub fn units(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..n).map(|_| random.unit()).collect()
}

/// Elements of any bits: ordinary numbers, and sometimes zeros of both signs, NaN, infinities, subnormals.
pub fn raw<T: Element>(n: usize, seed: u64) -> Vec<T> {
    let mut random = Random(seed);
    let size = size_of::<T>();
    let special: &[u64] = match T::DTYPE {
        DType::F64 => &[
            0,
            1 << 63,
            0x7ff8 << 48,
            0xfff0 << 48,
            0x7ff0 << 48,
            1,
            0x7fef_ffff_ffff_ffff,
            0xfff8_0000_0000_0001,
        ],
        DType::F32 => &[0, 1 << 31, 0x7fc0_0000, 0xff80_0000, 0x7f80_0000, 1, 0x7f7f_ffff, 0xffc0_0001],
        DType::F16 => &[0, 0x8000, 0x7e00, 0xfc00, 0x7c00, 1, 0x7bff, 0xfe01],
        DType::Bf16 => &[0, 0x8000, 0x7fc0, 0xff80, 0x7f80, 1, 0x7f7f, 0xffc1],
        _ => &[0, 1, u64::MAX, 0x80, 0x8000, 1 << 31, 1 << 63, 0x7f],
    };
    let mut bytes = Vec::with_capacity(n * size);
    for _ in 0..n {
        let bits = match random.below(8) {
            0 => special[random.below(special.len())],
            // Any bits: mostly numbers of very different sizes, among them NaNs with payloads.
            1 | 2 => random.bits(),
            _ => {
                let x = random.unit() * 100.0;
                match T::DTYPE {
                    DType::F64 => f64::from(x).to_bits(),
                    DType::F32 => u64::from(x.to_bits()),
                    DType::F16 => u64::from(f16::from_f32(x).to_bits()),
                    DType::Bf16 => u64::from(bf16::from_f32(x).to_bits()),
                    _ => x as i64 as u64,
                }
            }
        };
        bytes.extend(&bits.to_le_bytes()[..size]);
    }
    bytes.chunks_exact(size).map(bytemuck::pod_read_unaligned).collect()
}

/// A type that models are trained in, converted through f32.
pub trait Trained: Element {
    fn of(x: f32) -> Self;
    fn wide(self) -> f32;
    /// Half a unit in the last place, relative to the value: the error of one rounding.
    const HALF: f32;
}

impl Trained for f32 {
    fn of(x: f32) -> f32 {
        x
    }
    fn wide(self) -> f32 {
        self
    }
    const HALF: f32 = 6e-8;
}
impl Trained for f16 {
    fn of(x: f32) -> f16 {
        f16::from_f32(x)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
    const HALF: f32 = 4.9e-4;
}
impl Trained for bf16 {
    fn of(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
    const HALF: f32 = 3.91e-3;
}

pub fn of<T: Trained>(x: &[f32]) -> Vec<T> {
    x.iter().map(|x| T::of(*x)).collect()
}

pub fn wide<T: Trained>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| f64::from(x.wide())).collect()
}

/// Asserts that results are bitwise equal, NaNs too.
#[track_caller]
pub fn same<T: Element>(what: &str, got: &[T], want: &[T]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let (a, b): (&[u8], &[u8]) = (bytemuck::cast_slice(got), bytemuck::cast_slice(want));
    if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
        let i = at / size_of::<T>();
        panic!("{what}: element {i} of {} is {:?}, not {:?}", got.len(), got[i], want[i]);
    }
}

/// Asserts that results are equal within `rel` of the largest value plus the rounding of T; NaN equals only NaN.
#[track_caller]
pub fn near<T: Trained>(what: &str, got: &[T], want: &[f64], rel: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().filter(|x| x.is_finite()).fold(1e-3f64, |most, x| most.max(x.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let got = f64::from(got.wide());
        let close = (got - want).abs() <= rel * size + f64::from(T::HALF) * want.abs() * 1.01;
        assert!(
            close || got.is_nan() && want.is_nan() || got == *want,
            "{what}: element {i} is {got}, not {want}"
        );
    }
}

/// Runs a body for each trained type.
#[macro_export]
macro_rules! for_trained {
    ($function:ident, $queue:expr) => {
        $function::<f32>($queue);
        $function::<allfold_kernels::f16>($queue);
        $function::<allfold_kernels::bf16>($queue);
    };
}

/// Runs a body for each element type.
#[macro_export]
macro_rules! for_elements {
    ($function:ident, $queue:expr) => {
        $crate::for_elements!(@ $function, $queue, f64 f32 allfold_kernels::f16 allfold_kernels::bf16 i8 i16 i32 i64 u8)
    };
    (@ $function:ident, $queue:expr, $($element:ty)*) => {
        $($function::<$element>($queue);)*
    };
}

/// Transposes consecutive matrices of `rows` by `columns`, as from pictures to channels last.
pub fn turned<T: Copy>(x: &[T], (rows, columns): (usize, usize)) -> Vec<T> {
    let each = rows * columns;
    (0..x.len()).map(|i| x[i / each * each + i % rows * columns + i % each / rows]).collect()
}
