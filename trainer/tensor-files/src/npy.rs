//! NumPy's files of one array, `.npy`.
//!
//! ```text
//! \x93NUMPY 1 0  118 0   {'descr': '<f4', 'fortran_order': False, 'shape': (60, 3, 8, 8), }  spaces, line feed    values
//! ```
//!
//! Source: the specification of the format in NumPy's documentation (`numpy.lib.format`), versions 1.0, 2.0 and 3.0.

use crate::error::wrong;
use crate::stored::StoredTensor;
use safetensors::tensor::Dtype;
use std::io::{Read, Result, Seek, SeekFrom};

/// The first bytes of a file.
const MAGIC: &[u8] = b"\x93NUMPY";
/// The greatest length of a header in bytes.
const HEADER: u32 = 64 << 10;

/// The array in a file: its type, shape and place. The file has the length that follows from them.
///
/// # Errors
/// The file cannot be read; or, as `InvalidData`, it is no `.npy` file, it is cut, or its elements are no little-endian numbers.
pub fn array(from: &mut (impl Read + Seek)) -> Result<StoredTensor> {
    let mut start = [0; 12];
    let no_file = || wrong("is no `.npy` file; write it by `numpy.save`".into());
    let length = from.seek(SeekFrom::End(0))?;
    from.rewind()?;
    if length < start.len() as u64 {
        return Err(no_file());
    }
    from.read_exact(&mut start)?;
    if !start.starts_with(MAGIC) {
        return Err(no_file());
    }
    let (begins, header) = match start[6] {
        1 => (10, u32::from(u16::from_le_bytes([start[8], start[9]]))),
        2 | 3 => (12, u32::from_le_bytes([start[8], start[9], start[10], start[11]])),
        other => return Err(wrong(format!("is of version {other} of the format; versions 1 to 3 are read"))),
    };
    let values = begins + u64::from(header);
    if header > HEADER || values > length {
        let most = u64::from(HEADER).min(length - begins);
        return Err(wrong(format!("announces a header of {header} bytes; at most {most} are possible")));
    }
    from.seek(SeekFrom::Start(begins))?;
    let mut text = vec![0; header as usize];
    from.read_exact(&mut text)?;
    let text = String::from_utf8(text).map_err(|_| wrong("has a header that is no text".into()))?;
    let tensor = described(text.trim_end(), values).map_err(wrong)?;
    let (has, wants) = (length - values, bytes_of(&tensor));
    if Some(has) != wants {
        let wants = wants.map_or("too many".into(), |bytes| bytes.to_string());
        return Err(wrong(format!("has {has} bytes of values, and shape {:?} wants {wants}", tensor.shape)));
    }
    Ok(tensor)
}

/// Reads bytes as a file, and drops the result: for fuzzers.
pub fn read_any(bytes: &[u8]) {
    let mut from = std::io::Cursor::new(bytes);
    if let Ok(tensor) = array(&mut from) {
        let count = tensor.shape.iter().product();
        let mut values = vec![0.0f64; count];
        let _ = tensor.read_number(&mut from, &mut values);
    }
}

fn bytes_of(tensor: &StoredTensor) -> Option<u64> {
    let count = tensor.shape.iter().try_fold(1u64, |count, &size| count.checked_mul(size as u64))?;
    count.checked_mul(tensor.dtype.bitsize() as u64 / 8)
}

/// The array that a header describes, whose values begin at byte `start`.
fn described(header: &str, start: u64) -> std::result::Result<StoredTensor, String> {
    let mut rest = Literal(header);
    let (mut dtype, mut fortran, mut shape) = (None, None, None);
    rest.expect('{')?;
    while !rest.next_is('}') {
        let key = rest.string()?;
        rest.expect(':')?;
        match key {
            "descr" => dtype = Some(dtype_of(&mut rest)?),
            "fortran_order" => fortran = Some(rest.boolean()?),
            "shape" => shape = Some(rest.tuple()?),
            other => return Err(format!("has the unknown entry `{}` in its header", short(other))),
        }
        if !rest.next_is('}') {
            rest.expect(',')?;
        }
    }
    rest.expect('}')?;
    rest.end()?;
    let missing = |key: &str| format!("has no entry `{key}` in its header");
    let dtype = dtype.ok_or_else(|| missing("descr"))?;
    let fortran = fortran.ok_or_else(|| missing("fortran_order"))?;
    let shape: Vec<usize> = shape.ok_or_else(|| missing("shape"))?;
    let mut strides = vec![1u64; shape.len()];
    let mut step = 1u64;
    // Saturates only where the size of the file is checked, or if a size is 0, where no stride is used.
    let mut set = |at: usize| {
        strides[at] = step;
        step = step.saturating_mul(shape[at] as u64);
    };
    match fortran {
        true => (0..shape.len()).for_each(&mut set),
        false => (0..shape.len()).rev().for_each(&mut set),
    }
    Ok(StoredTensor { dtype, shape, strides, start })
}

fn dtype_of(rest: &mut Literal) -> std::result::Result<Dtype, String> {
    if rest.next_is('[') {
        return Err("has records of several fields; arrays of numbers are read".into());
    }
    let descr = rest.string()?;
    Ok(match descr {
        "|b1" => Dtype::BOOL,
        "|u1" => Dtype::U8,
        "|i1" => Dtype::I8,
        "<u2" => Dtype::U16,
        "<i2" => Dtype::I16,
        "<u4" => Dtype::U32,
        "<i4" => Dtype::I32,
        "<u8" => Dtype::U64,
        "<i8" => Dtype::I64,
        "<f2" => Dtype::F16,
        "<f4" => Dtype::F32,
        "<f8" => Dtype::F64,
        other => {
            return Err(format!(
                "has elements of type `{}`; bool, little-endian integers and floats of at most 8 bytes are read",
                short(other)
            ));
        }
    })
}

/// The rest of a header: a dict of Python with strings, booleans and tuples of integers.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    fn next_is(&mut self, c: char) -> bool {
        self.0 = self.0.trim_start();
        self.0.starts_with(c)
    }

    fn expect(&mut self, c: char) -> std::result::Result<(), String> {
        match self.next_is(c) {
            true => self.0 = &self.0[c.len_utf8()..],
            false => return Err(self.wants(&format!("`{c}`"))),
        }
        Ok(())
    }

    fn string(&mut self) -> std::result::Result<&'a str, String> {
        let quote = if self.next_is('"') { '"' } else { '\'' };
        self.expect(quote)?;
        let (string, rest) = self.0.split_once(quote).ok_or_else(|| self.wants("the end of a string"))?;
        self.0 = rest;
        Ok(string)
    }

    fn boolean(&mut self) -> std::result::Result<bool, String> {
        for (word, value) in [("True", true), ("False", false)] {
            if self.next_is(word.chars().next().unwrap_or_default()) && self.0.starts_with(word) {
                self.0 = &self.0[word.len()..];
                return Ok(value);
            }
        }
        Err(self.wants("`True` or `False`"))
    }

    fn tuple(&mut self) -> std::result::Result<Vec<usize>, String> {
        let mut sizes = Vec::new();
        self.expect('(')?;
        while !self.next_is(')') {
            let digits = self.0.len() - self.0.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            sizes.push(self.0[..digits].parse().map_err(|_| self.wants("a size"))?);
            self.0 = &self.0[digits..];
            if !self.next_is(')') {
                self.expect(',')?;
            }
        }
        self.expect(')')?;
        Ok(sizes)
    }

    fn end(&self) -> std::result::Result<(), String> {
        if self.0.trim().is_empty() { Ok(()) } else { Err(self.wants("the end")) }
    }

    fn wants(&self, what: &str) -> String {
        format!("has `{}` in its header where {what} belongs", short(self.0))
    }
}

/// The first characters of a part of a header, with control characters escaped.
fn short(text: &str) -> String {
    text.escape_debug().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn file(version: u8, header: &str, values: &[u8]) -> Vec<u8> {
        let mut bytes = [MAGIC, &[version, 0]].concat();
        match version {
            1 => bytes.extend((header.len() as u16).to_le_bytes()),
            _ => bytes.extend((header.len() as u32).to_le_bytes()),
        }
        [&bytes, header.as_bytes(), values].concat()
    }

    fn values_of(bytes: &[u8]) -> (Vec<usize>, Vec<f64>) {
        let mut from = Cursor::new(bytes);
        let tensor = array(&mut from).unwrap();
        let mut values = vec![-1.0; tensor.shape.iter().product()];
        tensor.read_number(&mut from, &mut values).unwrap();
        (tensor.shape, values)
    }

    #[test]
    fn arrays_of_every_version_and_order_are_read() {
        let bytes: Vec<u8> = [0i16, 1, 2, 3, 4, -5].into_iter().flat_map(i16::to_le_bytes).collect();
        for version in 1..=3 {
            let rows = "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }  \n";
            assert_eq!(
                values_of(&file(version, rows, &bytes)),
                (vec![2, 3], vec![0.0, 1.0, 2.0, 3.0, 4.0, -5.0])
            );
        }
        let columns = "{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3)}";
        assert_eq!(values_of(&file(1, columns, &bytes)), (vec![2, 3], vec![0.0, 2.0, 4.0, 1.0, 3.0, -5.0]));
        let one = "{'descr': '|u1', 'fortran_order': False, 'shape': (), }";
        assert_eq!(values_of(&file(1, one, &[200])), (vec![], vec![200.0]));
        let none = "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 7), }";
        assert_eq!(values_of(&file(1, none, &[])), (vec![0, 7], vec![]));
        read_any(&file(
            1,
            "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 8589934592, 8589934592)}",
            &[],
        ));
    }

    #[test]
    fn other_files_are_refused() {
        let refused = |bytes: &[u8]| array(&mut Cursor::new(bytes)).unwrap_err().to_string();
        let of = |header: &str| refused(&file(1, header, &[0; 8]));
        assert_eq!(refused(b"PK\x03\x04 and more bytes"), "is no `.npy` file; write it by `numpy.save`");
        assert_eq!(refused(b""), "is no `.npy` file; write it by `numpy.save`");
        assert_eq!(refused(&file(9, "{}", b"")), "is of version 9 of the format; versions 1 to 3 are read");
        let long = file(2, "{}", &[0; 100]);
        let cut = [&long[..8], &u32::MAX.to_le_bytes(), &long[12..]].concat();
        assert_eq!(refused(&cut), "announces a header of 4294967295 bytes; at most 102 are possible");
        assert_eq!(
            of("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"),
            "has 8 bytes of values, and shape [3] wants 12"
        );
        let most = "18446744073709551615";
        let huge = of(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({most}, 2), }}"));
        assert!(huge.ends_with("wants too many"), "{huge}");
        let objects = of("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }");
        assert!(objects.starts_with("has elements of type `|O`; bool, little-endian"), "{objects}");
        let fields = of("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }");
        assert_eq!(fields, "has records of several fields; arrays of numbers are read");
        assert_eq!(of("{'descr': '<f8', 'shape': (1,)}"), "has no entry `fortran_order` in its header");
        assert_eq!(of("{'descr': '<f8', 'shape': (x,)}"), "has `x,)}` in its header where a size belongs");
        assert_eq!(of("{'a': 1}"), "has the unknown entry `a` in its header");
    }
}
