//! Writes archives for tests.

/// A member to write: name, data, and the method by which they are said to be compressed.
pub(super) type Member<'a> = (&'a str, &'a [u8], u16);

/// An archive of these members. With `zip64` all lengths and places are in ZIP64's fields.
pub(super) fn archive(members: &[Member<'_>], zip64: bool) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    let wide = |value: usize| if zip64 { u32::MAX } else { value as u32 }.to_le_bytes();
    for &(name, data, method) in members {
        let header = file.len();
        let length = data.len();
        let about = [0u16.to_le_bytes(), method.to_le_bytes(), [0; 2], [0; 2], [0; 2], [0; 2]].concat();
        let name_length = (name.len() as u16).to_le_bytes();
        let sizes = [wide(length), wide(length)].concat();
        // Padding as PyTorch's, which aligns the data by an extra field.
        let padding = b"FB\x03\0ZZZ";
        let begin: [&[u8]; 5] = [b"PK\x03\x04\0\0", &about, &sizes, &name_length, &[padding.len() as u8, 0]];
        file.extend(begin.concat());
        file.extend([name.as_bytes(), padding, data].concat());
        let numbers = [length, length, header].map(|value| (value as u64).to_le_bytes()).concat();
        let more = if zip64 { [&[9, 0, 2, 0, 7, 7, 1, 0, 24, 0][..], &numbers].concat() } else { Vec::new() };
        let begin: [&[u8]; 6] =
            [b"PK\x01\x02\0\0\0\0", &about, &sizes, &name_length, &[more.len() as u8, 0], b"\x02\0"];
        directory.extend(begin.concat());
        directory.extend([&[0; 8][..], &wide(header), name.as_bytes(), &more, b"ab"].concat());
    }
    let (place, size, count) = (file.len(), directory.len(), members.len());
    file.extend(&directory);
    if zip64 {
        let end = file.len() as u64;
        let about = [b"PK\x06\x06\x2c\0\0\0\0\0\0\0", &[0; 12][..]].concat();
        let numbers = [count, count, size, place].map(|value| (value as u64).to_le_bytes()).concat();
        file.extend([about, numbers].concat());
        file.extend([b"PK\x06\x07\0\0\0\0", &end.to_le_bytes()[..], b"\x01\0\0\0"].concat());
    }
    let count = if zip64 { u16::MAX } else { count as u16 }.to_le_bytes();
    let numbers = [&count[..], &count, &wide(size), &wide(place)].concat();
    file.extend([b"PK\x05\x06\0\0\0\0", &numbers[..], b"\x07\0comment"].concat());
    file
}
