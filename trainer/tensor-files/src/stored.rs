//! A tensor in a file, and the reading of its values.

use crate::error::wrong;
use allfold_kernels::nn::Float;
use allfold_kernels::{bf16, f16};
use safetensors::tensor::Dtype;
use std::io::{Read, Result, Seek, SeekFrom};

/// Bytes of a file that are held at a time.
const WINDOW: u64 = 64 << 10;
/// Neighbouring elements at this distance in bytes or more are read one by one.
const FAR: u64 = 4 << 10;

/// Type, shape and place of a tensor in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTensor {
    /// The type of the elements.
    pub dtype: Dtype,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
    /// For each dimension: the distance from an element to the next, in elements; 0 where there is no next one.
    pub strides: Vec<u64>,
    /// The position of the first element in the file, in bytes.
    pub start: u64,
}

impl StoredTensor {
    /// Whether the type is a floating point or complex number.
    pub fn is_float(&self) -> bool {
        use Dtype::{BOOL, I8, I16, I32, I64, U8, U16, U32, U64};
        !matches!(self.dtype, BOOL | I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64)
    }

    /// Reads all values, the last dimension running fastest, from the file that the tensor is in. `to` has an element per value.
    ///
    /// Memory is 64 KiB, whatever the strides.
    ///
    /// # Errors
    /// The file cannot be read; or, as `InvalidData`, it ends before the tensor does, or the type is no floating point of 16, 32
    /// or 64 bits.
    pub fn read<F: Float>(&self, from: &mut (impl Read + Seek), to: &mut [F]) -> Result<()> {
        match self.dtype {
            Dtype::F64 => self.each(from, to, |bytes| F::from_f64(f64::from_le_bytes(bytes))),
            Dtype::F32 => self.each(from, to, |bytes| F::from_f64(f32::from_le_bytes(bytes).into())),
            Dtype::F16 => self.each(from, to, |bytes| F::from_f64(f16::from_le_bytes(bytes).to_f64())),
            Dtype::BF16 => self.each(from, to, |bytes| F::from_f64(bf16::from_le_bytes(bytes).to_f64())),
            other => Err(wrong(format!("has the type {other:?}; F16, BF16, F32 and F64 are read"))),
        }
    }

    /// [`StoredTensor::read`] of integers and truth values too.
    ///
    /// # Errors
    /// As [`StoredTensor::read`].
    pub fn read_number<F: Float>(&self, from: &mut (impl Read + Seek), to: &mut [F]) -> Result<()> {
        match self.dtype {
            Dtype::BOOL | Dtype::U8 => self.each(from, to, |[byte]| F::from_f64(byte.into())),
            Dtype::I8 => self.each(from, to, |bytes| F::from_f64(i8::from_le_bytes(bytes).into())),
            Dtype::U16 => self.each(from, to, |bytes| F::from_f64(u16::from_le_bytes(bytes).into())),
            Dtype::I16 => self.each(from, to, |bytes| F::from_f64(i16::from_le_bytes(bytes).into())),
            Dtype::U32 => self.each(from, to, |bytes| F::from_f64(u32::from_le_bytes(bytes).into())),
            Dtype::I32 => self.each(from, to, |bytes| F::from_f64(i32::from_le_bytes(bytes).into())),
            Dtype::U64 => self.each(from, to, |bytes| F::from_f64(u64::from_le_bytes(bytes) as f64)),
            Dtype::I64 => self.each(from, to, |bytes| F::from_f64(i64::from_le_bytes(bytes) as f64)),
            Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64 => self.read(from, to),
            other => {
                Err(wrong(format!("has the type {other:?}; BOOL, integers, F16, BF16, F32 and F64 are read")))
            }
        }
    }

    /// The values of a tensor of bytes.
    ///
    /// # Errors
    /// As [`StoredTensor::read`], if the type is U8.
    pub fn read_bytes(&self, from: &mut (impl Read + Seek), to: &mut [u8]) -> Result<()> {
        match self.dtype {
            Dtype::U8 => self.each(from, to, |[byte]| byte),
            other => Err(wrong(format!("has the type {other:?}; U8 is read"))),
        }
    }

    fn each<T: Copy, const N: usize>(
        &self,
        from: &mut (impl Read + Seek),
        to: &mut [T],
        value: impl Fn([u8; N]) -> T,
    ) -> Result<()> {
        // Without elements, the product of some of the sizes may be greater than any number.
        if to.is_empty() {
            return Ok(());
        }
        let dimensions = self.by_stride(N as u64);
        if dimensions.iter().any(|dimension| dimension.size == 0) {
            return Ok(());
        }
        let (outer, inner) = match dimensions.split_last() {
            Some((inner, outer)) => (outer, *inner),
            None => (&[][..], Dimension { size: 1, stride: 0, step: 0 }),
        };
        let ahead = if inner.stride >= FAR { N as u64 } else { WINDOW };
        let mut window = Window { from, start: 0, bytes: Vec::new(), ahead };
        let (mut index, mut at, mut place) = (vec![0; outer.len()], self.start, 0);
        loop {
            for i in 0..inner.size {
                let bytes = window.get(at + i as u64 * inner.stride)?;
                to[place + i * inner.step] = value(bytes);
            }
            // The next index of the outer dimensions, the last one fastest.
            let Some(next) = (0..outer.len()).rev().find(|&d| index[d] + 1 < outer[d].size) else {
                return Ok(());
            };
            for d in next + 1..outer.len() {
                at -= index[d] as u64 * outer[d].stride;
                place -= index[d] * outer[d].step;
                index[d] = 0;
            }
            index[next] += 1;
            at += outer[next].stride;
            place += outer[next].step;
        }
    }

    /// The dimensions of other sizes than 1, the one with the longest stride first: in this order the file is read from front to
    /// back, also if the tensor is transposed.
    fn by_stride(&self, element: u64) -> Vec<Dimension> {
        let mut step = 1;
        let mut dimensions: Vec<Dimension> = (self.shape.iter().zip(&self.strides).rev())
            .map(|(&size, stride)| {
                let dimension = Dimension { size, stride: stride.saturating_mul(element), step };
                step *= size;
                dimension
            })
            .collect();
        dimensions.reverse();
        dimensions.retain(|dimension| dimension.size != 1);
        dimensions.sort_by_key(|dimension| std::cmp::Reverse(dimension.stride));
        dimensions
    }
}

/// A dimension: its size; the distance of neighbours in the file, in bytes; and in the result, in elements.
#[derive(Clone, Copy)]
struct Dimension {
    size: usize,
    stride: u64,
    step: usize,
}

/// The part of a file that is in memory.
struct Window<'a, R> {
    from: &'a mut R,
    start: u64,
    bytes: Vec<u8>,
    /// How many bytes are read at once.
    ahead: u64,
}

impl<R: Read + Seek> Window<'_, R> {
    /// The bytes of the element at a position.
    fn get<const N: usize>(&mut self, at: u64) -> Result<[u8; N]> {
        if let Some(bytes) = self.held(at) {
            return Ok(bytes);
        }
        (self.start, self.bytes) = (at, std::mem::take(&mut self.bytes));
        self.bytes.clear();
        self.from.seek(SeekFrom::Start(at))?;
        self.from.by_ref().take(self.ahead).read_to_end(&mut self.bytes)?;
        self.held(at).ok_or_else(|| wrong(format!("goes on after byte {at}, where the file ends")))
    }

    fn held<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let at = usize::try_from(at.checked_sub(self.start)?).ok()?;
        self.bytes.get(at..)?.first_chunk().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    /// A file of 3 bytes and then the numbers from 0 as f32.
    fn file(count: usize) -> Cursor<Vec<u8>> {
        let numbers = (0..count).flat_map(|i| (i as f32).to_le_bytes());
        Cursor::new([7, 7, 7].into_iter().chain(numbers).collect())
    }

    fn values(shape: &[usize], strides: &[u64], count: usize) -> Vec<f64> {
        let mut to = vec![-1.0; shape.iter().product()];
        let tensor =
            StoredTensor { dtype: Dtype::F32, shape: shape.to_vec(), strides: strides.to_vec(), start: 3 };
        tensor.read(&mut file(count), &mut to).unwrap();
        to
    }

    #[test]
    fn values_come_in_the_order_of_the_shape_whatever_the_strides() {
        assert_eq!(values(&[], &[], 1), [0.0]);
        assert_eq!(values(&[2, 3], &[3, 1], 6), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(values(&[3, 2], &[1, 3], 6), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(values(&[2, 2], &[0, 5], 6), [0.0, 5.0, 0.0, 5.0]);
        assert_eq!(values(&[2, 1, 2], &[2, 0, 1], 4), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(values(&[3, 3], &[1, 1], 5), [0.0, 1.0, 2.0, 1.0, 2.0, 3.0, 2.0, 3.0, 4.0]);
        assert_eq!(values(&[0, 3], &[3, 1], 0), [0.0; 0]);
        // The definition, for a tensor of three dimensions in every order of strides.
        let shape = [4, 3, 5];
        for strides in [[15, 5, 1], [3, 1, 12], [1, 4, 12], [5, 20, 1], [15, 1, 3], [1, 20, 4]] {
            let want: Vec<f64> = (0..60)
                .map(|i: u64| i / 15 * strides[0] + i / 5 % 3 * strides[1] + i % 5 * strides[2])
                .map(|at| at as f64)
                .collect();
            assert_eq!(values(&shape, &strides, 60), want, "{strides:?}");
        }
    }

    #[test]
    fn tensors_larger_than_the_window_are_read_whole_and_transposed() {
        let (rows, columns) = (300, 200);
        let all: Vec<f64> = (0..rows * columns).map(|i| i as f64).collect();
        assert_eq!(values(&[rows, columns], &[columns as u64, 1], rows * columns), all);
        let transposed: Vec<f64> =
            (0..columns * rows).map(|i| (i % rows * columns + i / rows) as f64).collect();
        assert_eq!(values(&[columns, rows], &[1, columns as u64], rows * columns), transposed);
        // Elements far from each other are read one by one.
        let stride = FAR + 1;
        let far = values(&[7], &[stride], 7 * stride as usize);
        assert_eq!(far, (0..7).map(|i| (i * stride) as f64).collect::<Vec<_>>());
    }

    #[test]
    fn a_file_that_ends_early_and_a_type_without_values_are_refused() {
        let tensor = |dtype| StoredTensor { dtype, shape: vec![3], strides: vec![1], start: 3 };
        let mut to = [0.0f32; 3];
        let error = tensor(Dtype::F32).read(&mut file(2), &mut to).unwrap_err().to_string();
        assert_eq!(error, "goes on after byte 11, where the file ends");
        let error = tensor(Dtype::I64).read(&mut file(9), &mut to).unwrap_err().to_string();
        assert_eq!(error, "has the type I64; F16, BF16, F32 and F64 are read");
    }
}
