//! What a file is that is no JPEG and no PNG, by its first bytes.

/// The number of first bytes that are looked at.
pub const SEEN: u64 = 256;

/// What begins with these bytes and is neither JPEG nor PNG, and what would be right; `None` if that is not known.
pub fn other(start: &[u8]) -> Option<(&'static str, &'static str)> {
    const CONVERT: &str = "convert it";
    const AGAIN: &str = "get the picture again";
    let text = String::from_utf8_lossy(start).trim_start_matches('\u{feff}').trim_start().to_lowercase();
    // The name of a format follows four bytes of a length, in the formats that are made as a video's file is.
    let brand = start.get(4..12).unwrap_or_default();
    Some(match start {
        [] => ("is empty", AGAIN),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => ("is a WebP picture", CONVERT),
        [b'G', b'I', b'F', b'8', ..] => ("is a GIF picture", CONVERT),
        [b'B', b'M', ..] => ("is a BMP picture", CONVERT),
        [b'I', b'I', b'*', 0, ..] | [b'M', b'M', 0, b'*', ..] => ("is a TIFF picture", CONVERT),
        _ if brand.starts_with(b"ftypavi") => ("is an AVIF picture", CONVERT),
        _ if brand.starts_with(b"ftyphe") || brand == b"ftypmif1" => ("is a HEIC picture", CONVERT),
        [0xff, 0x0a, ..] | [0, 0, 0, 0x0c, b'J', b'X', b'L', ..] => ("is a JPEG XL picture", CONVERT),
        [0, 0, 0, 0x0c, b'j', b'P', ..] => ("is a JPEG 2000 picture", CONVERT),
        [b'%', b'P', b'D', b'F', ..] => ("is a PDF document", CONVERT),
        [b'P', b'K', 3, 4, ..] | [0x1f, 0x8b, ..] => ("is an archive", "unpack it"),
        _ if text.starts_with("version https://git-lfs") => ("is a pointer of Git LFS", "run `git lfs pull`"),
        _ if text.starts_with("<!doctype html") || text.starts_with("<html") => ("is an HTML page", AGAIN),
        _ if text.starts_with("<svg") || text.starts_with("<?xml") => {
            ("is an SVG picture or other XML", CONVERT)
        }
        _ => return None,
    })
}
