//! The format and the sides of a picture, from the first bytes of its file; and whether a JPEG file is whole.
//!
//! ```text
//! PNG    signature | 13 "IHDR" width height ...
//! JPEG   ff d8 | ff e0 length ... | ... | ff c0 length bits height width ... | ff da length ... data ... | ff d9
//! ```
//!
//! Reading the sides needs a buffer of fixed size: segments before them are skipped, up to a limit. So a picture that is too
//! large is refused before a decoder reserves memory for its pixels.

use super::kind;
use std::io::{BufReader, ErrorKind, Read, Seek};

/// The greatest side of a picture, in pixels.
const MOST_SIDE: u32 = 16_384;
/// The greatest number of pixels of a picture. Decoding takes 3 bytes of each; of a progressive JPEG up to 9 more.
const MOST_PIXELS: u64 = 64 << 20;
/// Segments, and bytes between segments, that are skipped before the sides of a JPEG.
const MOST_SKIPS: usize = 65_536;

/// The formats of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureFormat {
    /// Baseline or progressive JPEG.
    Jpeg,
    /// PNG.
    Png,
}

/// The properties of a picture that its file gives before the pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureHeader {
    /// The format, by the first bytes and not by the file's name.
    pub format: PictureFormat,
    /// The number of columns.
    pub width: u32,
    /// The number of rows.
    pub height: u32,
}

/// Reads the header of a picture.
///
/// # Errors
/// If the file is no picture or ends within its header, or the picture has no pixel or more than are read; or the file cannot be
/// read.
pub fn read(file: impl Read + Seek) -> Result<PictureHeader, String> {
    let mut file = BufReader::with_capacity(1024, file);
    let header = first(&mut file).or_else(|error| match error.kind() {
        ErrorKind::InvalidInput => Err(neither(&mut file)?),
        _ => Err(error),
    });
    let header = header.map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => "ends within its header".into(),
        ErrorKind::InvalidData => {
            error.get_ref().map_or_else(|| error.to_string(), |inner| inner.to_string())
        }
        _ => error.to_string(),
    })?;
    let PictureHeader { width, height, .. } = header;
    if width == 0 || height == 0 {
        return Err(format!("is {width} x {height} pixels; a picture has one at least"));
    }
    if width.max(height) > MOST_SIDE || u64::from(width) * u64::from(height) > MOST_PIXELS {
        return Err(format!(
            "is {width} x {height} pixels; the most are {MOST_SIDE} on a side and {MOST_PIXELS} in all: make it smaller"
        ));
    }
    Ok(header)
}

fn wrong(what: impl Into<String>) -> std::io::Error {
    std::io::Error::new(ErrorKind::InvalidData, what.into())
}

/// The next `N` bytes.
fn take<const N: usize>(file: &mut impl Read) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The error for a file that is no picture, which says what it is.
fn neither<R: Read + Seek>(file: &mut BufReader<R>) -> std::io::Result<std::io::Error> {
    let mut start = Vec::new();
    file.rewind()?;
    file.take(kind::SEEN).read_to_end(&mut start)?;
    Ok(wrong(match kind::other(&start) {
        Some((is, right)) => format!("{is}, neither JPEG nor PNG: {right}"),
        None => "is neither JPEG nor PNG".into(),
    }))
}

fn first<R: Read + Seek>(file: &mut BufReader<R>) -> std::io::Result<PictureHeader> {
    let none = || std::io::Error::from(ErrorKind::InvalidInput);
    let short = |error: std::io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => none(),
        _ => error,
    };
    match take(file).map_err(short)? {
        [0xff, 0xd8] => jpeg(file),
        [0x89, b'P'] => {
            let rest: [u8; 22] = take(file)?;
            if !rest.starts_with(b"NG\r\n\x1a\n\0\0\0\x0dIHDR") {
                return Err(none());
            }
            let side = |at: usize| u32::from_be_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
            Ok(PictureHeader { format: PictureFormat::Png, width: side(14), height: side(18) })
        }
        _ => Err(none()),
    }
}

/// Reads the segments of a JPEG up to the one with its sides.
fn jpeg<R: Read + Seek>(file: &mut BufReader<R>) -> std::io::Result<PictureHeader> {
    let mut marked = false;
    for _ in 0..MOST_SKIPS {
        let [byte] = take(file)?;
        match (std::mem::take(&mut marked), byte) {
            (_, 0xff) => marked = true,
            // Bytes between segments, and segments without a length.
            (false, _) | (true, 0x00 | 0x01 | 0xd0..=0xd8) => {}
            (true, 0xc0..=0xc2) => {
                let [_, _, _, h0, h1, w0, w1] = take(file)?;
                let side = |high, low| u32::from(u16::from_be_bytes([high, low]));
                return Ok(PictureHeader {
                    format: PictureFormat::Jpeg,
                    width: side(w0, w1),
                    height: side(h0, h1),
                });
            }
            (true, 0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf) => {
                return Err(wrong(format!(
                    "is a JPEG of kind {byte:#x}, lossless or arithmetic; baseline and progressive ones are read"
                )));
            }
            (true, 0xd9 | 0xda) => return Err(wrong("is a JPEG without a size")),
            (true, _) => {
                let length = u16::from_be_bytes(take(file)?);
                file.seek_relative(i64::from(length.saturating_sub(2)))?;
            }
        }
    }
    Err(wrong(format!("is a JPEG without a size in its first {MOST_SKIPS} segments")))
}

/// Whether a JPEG file has all bytes up to its end marker. A decoder fills missing pixels with grey.
pub fn is_whole(jpeg: &[u8]) -> bool {
    let mut rest = jpeg.get(2..).unwrap_or_default();
    loop {
        let Some(at) = rest.iter().position(|&byte| byte == 0xff) else { return false };
        rest = &rest[at + 1..];
        match rest {
            [0xd9, ..] => return true,
            // A byte 0xff of the data, filling, and marks within the data.
            [0x00 | 0x01 | 0xd0..=0xd8, after @ ..] => rest = after,
            [0xff, ..] => {}
            [_, high, low, ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                rest = rest.get(1 + length..).unwrap_or_default();
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn png(width: u32, height: u32) -> Vec<u8> {
        let sides = [width.to_be_bytes(), height.to_be_bytes()];
        [b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", sides.as_flattened(), &[8, 2, 0, 0, 0]].concat()
    }

    /// A JPEG with a thumbnail, which is a JPEG itself, in its first segment.
    fn jpeg(width: u16, height: u16) -> Vec<u8> {
        let frame = |width: u16, height: u16| {
            let sides = [height.to_be_bytes(), width.to_be_bytes()];
            [&[0xff, 0xd8, 0xff, 0xc0, 0, 11, 8], sides.as_flattened(), &[1, 1, 0x11, 0]].concat()
        };
        let thumbnail = [frame(8, 8), vec![0xff, 0xd9]].concat();
        let length = (thumbnail.len() as u16 + 2).to_be_bytes();
        let own = frame(width, height);
        [&own[..2], &[0xff, 0xff, 0xe1], &length, &thumbnail, &own[2..]].concat()
    }

    fn sides(bytes: &[u8]) -> Result<(PictureFormat, u32, u32), String> {
        read(Cursor::new(bytes)).map(|header| (header.format, header.width, header.height))
    }

    #[test]
    fn sides_are_read_from_the_header_alone() {
        assert_eq!(sides(&png(500, 375)), Ok((PictureFormat::Png, 500, 375)));
        assert_eq!(sides(&jpeg(500, 375)), Ok((PictureFormat::Jpeg, 500, 375)));
        for (bytes, least) in [(png(3, 4), 24), (jpeg(3, 4), 0)] {
            for cut in least..bytes.len().min(30) {
                let read = sides(&bytes[..cut]);
                assert!(read.is_ok() || read == Err("ends within its header".into()) || cut < 2, "{read:?}");
            }
        }
        assert_eq!(sides(&jpeg(3, 4)[..20]).unwrap_err(), "ends within its header");
        for bytes in [&b"\xff"[..], b"notes", b"\x89PNX\r\n\x1a\n\0\0\0\x0dIHDR0123456789"] {
            assert_eq!(sides(bytes).unwrap_err(), "is neither JPEG nor PNG");
        }
    }

    #[test]
    fn a_file_of_another_kind_is_said_to_be_of_that_kind() {
        for (bytes, says) in [
            (&b""[..], "is empty, neither JPEG nor PNG: get the picture again"),
            (b"GIF89a", "is a GIF picture, neither JPEG nor PNG: convert it"),
            (b"RIFF\x10\0\0\0WEBPVP8 ", "is a WebP picture, neither JPEG nor PNG: convert it"),
            (b"\0\0\0\x1cftypavif\0\0", "is an AVIF picture, neither JPEG nor PNG: convert it"),
            (b"\0\0\0\x18ftypheic\0\0", "is a HEIC picture, neither JPEG nor PNG: convert it"),
            (b"BM6\x02", "is a BMP picture, neither JPEG nor PNG: convert it"),
            (b"II*\0\x08", "is a TIFF picture, neither JPEG nor PNG: convert it"),
            (b"\n <!DOCTYPE html><html>", "is an HTML page, neither JPEG nor PNG: get the picture again"),
            (b"<svg xmlns=", "is an SVG picture or other XML, neither JPEG nor PNG: convert it"),
            (b"PK\x03\x04", "is an archive, neither JPEG nor PNG: unpack it"),
            (
                b"version https://git-lfs.github.com/spec/v1\noid sha256:",
                "is a pointer of Git LFS, neither JPEG nor PNG: run `git lfs pull`",
            ),
        ] {
            assert_eq!(sides(bytes).unwrap_err(), says);
        }
    }

    #[test]
    fn pictures_without_pixels_and_too_large_ones_are_refused() {
        let error = sides(&png(60_000, 60_000)).unwrap_err();
        assert_eq!(
            error,
            "is 60000 x 60000 pixels; the most are 16384 on a side and 67108864 in all: make it smaller"
        );
        assert!(sides(&jpeg(60_000, 60_000)).unwrap_err().contains("60000 x 60000"));
        assert!(sides(&png(16_384, 4_096)).is_ok());
        for (width, height) in [(16_385, 1), (16_384, 4_097), (u32::MAX, u32::MAX)] {
            assert!(sides(&png(width, height)).unwrap_err().ends_with("make it smaller"));
        }
        assert_eq!(sides(&jpeg(0, 9)).unwrap_err(), "is 0 x 9 pixels; a picture has one at least");
        assert!(sides(&[0xff, 0xd8, 0xff, 0xc9, 0, 11]).unwrap_err().contains("of kind 0xc9"));
        assert_eq!(sides(&[0xff, 0xd8, 0xff, 0xd9]).unwrap_err(), "is a JPEG without a size");
    }

    /// Skipping ends even in a file that never ends.
    #[test]
    fn a_search_for_the_sides_ends() {
        let endless = std::fs::File::open("/dev/zero").unwrap();
        assert_eq!(read(endless).unwrap_err(), "is neither JPEG nor PNG");
        let zeros = [vec![0xff, 0xd8], vec![0; 1 << 20]].concat();
        assert!(sides(&zeros).unwrap_err().contains("first 65536 segments"));
    }

    #[test]
    fn an_end_marker_counts_only_where_it_ends_the_picture() {
        let whole = [&jpeg(8, 8)[..], &[0xff, 0xda, 0, 3, 1, 5, 0xff, 0, 0xff, 0xd3, 7, 0xff, 0xff, 0xd9, 1]]
            .concat();
        assert!(is_whole(&whole));
        // Before the last but one byte every cut is seen, the thumbnail's end marker notwithstanding.
        assert!((0..whole.len() - 1).all(|cut| !is_whole(&whole[..cut])));
    }
}
