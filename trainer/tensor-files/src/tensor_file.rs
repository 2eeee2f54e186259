//! Reads safetensors files. A file's data is read only if its length agrees with its header: a wrong path may lead to a device
//! without an end, or to a file larger than memory.

use crate::error::wrong;
use crate::pickle::shown;
use crate::stored::StoredTensor;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Result, Seek, SeekFrom};
use std::path::Path;

/// The greatest length of a header in bytes.
const HEADER: u64 = 16 << 20;

/// A tensor's entry in a header. The entry `__metadata__` has no offsets.
#[derive(Deserialize)]
struct Entry {
    data_offsets: Option<(u64, u64)>,
}

/// The bytes of a file up to its data: the length of its header, and its header.
///
/// # Errors
/// The file cannot be read; or, as `InvalidData`, it is longer than its header says, or its header is too long.
pub fn head(path: &Path) -> Result<Vec<u8>> {
    begun(&File::open(path)?).map(|(bytes, _)| bytes)
}

/// The bytes of a file up to its data, and how many bytes of data its header describes.
fn begun(mut file: &File) -> Result<(Vec<u8>, u64)> {
    let about = file.metadata()?;
    let length = about.is_file().then_some(about.len());
    let mut bytes = Vec::new();
    file.by_ref().take(8).read_to_end(&mut bytes)?;
    let Some(header) = bytes.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes)) else {
        return Ok((bytes, 0));
    };
    if header > HEADER && length.is_none_or(|length| length > HEADER) {
        return Err(wrong(format!(
            "its first bytes announce a header of {header} bytes; a safetensors file may have at most {} MiB of header",
            HEADER >> 20
        )));
    }
    file.take(header.min(HEADER)).read_to_end(&mut bytes)?;
    let entries: BTreeMap<String, Entry> = serde_json::from_slice(&bytes[8..]).unwrap_or_default();
    let data = entries.values().filter_map(|entry| Some(entry.data_offsets?.1)).max().unwrap_or(0);
    let whole = data.saturating_add(bytes.len() as u64);
    match length.filter(|length| *length > whole && header <= HEADER) {
        Some(length) => Err(wrong(format!("has {length} bytes, and its header describes {whole}"))),
        None => Ok((bytes, data)),
    }
}

/// Reads a whole file. A file that ends early is read too; the parser of its bytes reports where it ends.
///
/// # Errors
/// Those of [`head`].
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let (mut bytes, data) = begun(&file)?;
    let whole = data.saturating_add(bytes.len() as u64);
    (&file).take(data.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > whole {
        true => Err(wrong(format!("goes on after the {whole} bytes that its header describes"))),
        false => Ok(bytes),
    }
}

/// Whether bytes may be the first ones of a safetensors file: the length of a header that is at most as long as its reader accepts,
/// and the header's first byte. Bytes that end before are taken to be cut off.
pub fn begins(bytes: &[u8]) -> bool {
    let plausible = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes) <= 100_000_000;
    bytes.first_chunk().is_none_or(plausible) && bytes.get(8).is_none_or(|first| *first == b'{')
}

/// The defect of a safetensors file of `length` bytes that begins with `bytes`, which have its header if the file does: where it ends,
/// if it ends early, else the message of its reader.
pub fn damage(bytes: &[u8], length: u64, error: &dyn std::fmt::Display) -> String {
    if !begins(bytes) {
        return "is no safetensors file".into();
    }
    let Some(header) = bytes.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes)) else {
        return format!("ends at byte {length} within the length of its header");
    };
    if header == 0 {
        return "is no safetensors file: its header describes nothing".into();
    }
    let Some(text) = usize::try_from(header).ok().and_then(|header| bytes[8..].get(..header)) else {
        return format!("ends at byte {length} within its header of {header} bytes");
    };
    let entries: BTreeMap<String, Entry> = serde_json::from_slice(text).unwrap_or_default();
    let ends = entries.iter().filter_map(|(name, entry)| Some((entry.data_offsets?, name)));
    let cut = ends.filter(|((_, end), _)| 8u64.saturating_add(header).saturating_add(*end) > length).min();
    match cut {
        Some((_, name)) => format!("ends at byte {length} within the tensor `{}`", shown(name)),
        None => shown(&error.to_string()),
    }
}

/// The tensors of a file by name, from its header; their values are not read. A name of tied weights that the file keeps in its
/// metadata, as `safetensors.torch.save_model` writes it there, is another name of the tensor that is in the file.
///
/// # Errors
/// The file cannot be read; or, as `InvalidData`, it is no safetensors file, or is longer or shorter than its header
/// says.
pub fn tensors(from: &mut (impl Read + Seek)) -> Result<BTreeMap<String, StoredTensor>> {
    let length = from.seek(SeekFrom::End(0))?;
    let mut bytes = Vec::new();
    from.rewind()?;
    from.by_ref().take(8).read_to_end(&mut bytes)?;
    let header = bytes.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let damaged = |bytes: &[u8], error: &dyn std::fmt::Display| wrong(damage(bytes, length, error));
    if header > HEADER && length > HEADER {
        return Err(wrong(format!(
            "is no safetensors file: it announces a header of {header} bytes; at most {HEADER} are possible"
        )));
    }
    from.by_ref().take(header.min(HEADER)).read_to_end(&mut bytes)?;
    let about: Metadata = serde_json::from_slice(bytes.get(8..).unwrap_or_default())
        .map_err(|error| damaged(&bytes, &error))?;
    let whole = (8 + header).saturating_add(about.data_len() as u64);
    if length < whole {
        return Err(damaged(&bytes, &"ends early"));
    }
    if length > whole {
        return Err(wrong(format!("has {length} bytes, and its header describes {whole}")));
    }
    let tensors = about.tensors().into_iter();
    let mut tensors: BTreeMap<_, _> = tensors.map(|(name, info)| (name, stored(info, 8 + header))).collect();
    for (tied, kept) in about.metadata().iter().flatten() {
        if let Some(kept) = tensors.get(kept).cloned() {
            tensors.entry(tied.clone()).or_insert(kept);
        }
    }
    Ok(tensors)
}

/// A tensor in a file whose values begin at byte `start`.
pub fn stored(info: &TensorInfo, start: u64) -> StoredTensor {
    let shape = info.shape.clone();
    let mut strides = vec![1u64; shape.len()];
    for at in (1..shape.len()).rev() {
        // Saturates only if a size is 0, where no stride is used.
        strides[at - 1] = strides[at].saturating_mul(shape[at] as u64);
    }
    StoredTensor { dtype: info.dtype, shape, strides, start: start + info.data_offsets.0 as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::ErrorKind;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
    }

    #[test]
    fn a_file_is_read_if_its_length_is_what_its_header_says() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let good = file(
            r#"{"__metadata__":{"a":"b"},"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
            b"abcd",
        );
        let read_of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read(&path)
        };
        assert_eq!(read_of(&good).unwrap(), good);
        // A file that ends early is read as it is.
        for length in [0, 5, 8, 20, good.len() - 1] {
            assert_eq!(read_of(&good[..length]).unwrap(), good[..length], "{length}");
        }
        assert_eq!(read_of(b"another run's").unwrap(), b"another run's");
        let error = read_of(&[&good[..], b"e"].concat()).unwrap_err().to_string();
        assert_eq!(error, format!("has {} bytes, and its header describes {}", good.len() + 1, good.len()));
        // Sparse files of a gigabyte: the first begins with a good file, the second has only zeros.
        for begins in [&good[..], b""] {
            std::fs::write(&path, begins).unwrap();
            OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
            let error = read(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(
                error.to_string().starts_with("has 1073741824 bytes, and its header describes "),
                "{error}"
            );
        }
    }

    #[test]
    fn a_device_without_an_end_is_refused() {
        let error = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "goes on after the 8 bytes that its header describes");
    }
}
