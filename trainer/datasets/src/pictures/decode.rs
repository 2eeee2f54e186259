//! The pixels of a picture's file as red, green and blue bytes.
//!
//! Grey pictures get three equal colours, and transparency is dropped: as by Pillow's `convert("RGB")`. Of 16-bit values the upper
//! 8 bits are used. Colour profiles and orientations are not applied, as by torchvision's `ImageFolder`.

use super::header::{self, PictureFormat, PictureHeader};
use std::io::Cursor;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// A picture's pixels.
#[derive(Debug, PartialEq)]
pub struct Rgb {
    /// The number of columns.
    pub width: usize,
    /// The number of rows.
    pub height: usize,
    /// The bytes `[row][column][colour]`.
    pub pixels: Vec<u8>,
}

/// Decodes the bytes of a picture's file.
///
/// # Errors
/// The bytes are no picture, or the picture is too large or damaged.
pub fn rgb(bytes: &[u8]) -> Result<Rgb, String> {
    let header = header::read(Cursor::new(bytes))?;
    // A byte of a JPEG encodes at most 8 blocks of 8 x 8 pixels, a byte of a PNG at most 1032 bytes of 8 pixels each.
    let most = match header.format {
        PictureFormat::Jpeg => 8 * 64,
        PictureFormat::Png => 1032 * 8,
    };
    let (width, height) = (u64::from(header.width), u64::from(header.height));
    if width * height > most * bytes.len() as u64 {
        return Err(format!("is cut: {} bytes cannot hold {width} x {height} pixels", bytes.len()));
    }
    match header.format {
        PictureFormat::Jpeg if !header::is_whole(bytes) => {
            Err(format!("is cut: its {} bytes end before the picture does", bytes.len()))
        }
        PictureFormat::Jpeg => jpeg(bytes, header).map_err(damaged),
        PictureFormat::Png => png(bytes, header).map_err(damaged),
    }
}

fn damaged(error: impl std::error::Error) -> String {
    let what = error.to_string();
    format!("is damaged: {}", what.lines().map(str::trim).collect::<Vec<_>>().join("; "))
}

fn jpeg(bytes: &[u8], header: PictureHeader) -> Result<Rgb, zune_jpeg::errors::DecodeErrors> {
    let (width, height) = (header.width as usize, header.height as usize);
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        // A file may contain a second size, which the decoder uses.
        .set_max_width(width)
        .set_max_height(height);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers()?;
    let grey = matches!(decoder.input_colorspace(), Some(ColorSpace::Luma));
    let colours = if grey { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder.set_options(options.jpeg_set_out_colorspace(colours));
    let pixels = decoder.decode()?;
    let (width, height) = decoder.dimensions().unwrap_or((width, height));
    Ok(Rgb { width, height, pixels: three_colours(pixels, if grey { 1 } else { 3 }) })
}

fn png(bytes: &[u8], header: PictureHeader) -> Result<Rgb, png::DecodingError> {
    let (width, height) = (header.width as usize, header.height as usize);
    // 16-bit pixels of four channels, and some memory for the decoder's own use.
    let limits = png::Limits { bytes: 8 * width * height + (16 << 20) };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info()?;
    let mut pixels = vec![0; reader.output_buffer_size().ok_or(png::DecodingError::LimitsExceeded)?];
    let frame = reader.next_frame(&mut pixels)?;
    pixels.truncate(frame.buffer_size());
    let (width, height) = (frame.width as usize, frame.height as usize);
    Ok(Rgb { width, height, pixels: three_colours(pixels, frame.color_type.samples()) })
}

/// Pixels of one to four channels of a byte as red, green and blue.
fn three_colours(pixels: Vec<u8>, channels: usize) -> Vec<u8> {
    if channels == 3 {
        return pixels;
    }
    let step = usize::from(channels > 3);
    pixels.chunks_exact(channels).flat_map(|pixel| [0, step, 2 * step].map(|at| pixel[at])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pictures::written::{jpeg, png};
    use jpeg_encoder::ColorType;
    use png::BitDepth::{Eight, Sixteen};
    use png::ColorType::{Grayscale, GrayscaleAlpha, Rgb, Rgba};

    #[test]
    fn any_picture_becomes_red_green_and_blue() {
        let of = |pixels: &[u8], colour, depth| rgb(&png(pixels, 2, colour, depth)).unwrap().pixels;
        assert_eq!(of(&[1, 2, 3, 4, 5, 6], Rgb, Eight), [1, 2, 3, 4, 5, 6]);
        assert_eq!(of(&[1, 2, 3, 0, 4, 5, 6, 9], Rgba, Eight), [1, 2, 3, 4, 5, 6]);
        assert_eq!(of(&[7, 9], Grayscale, Eight), [7, 7, 7, 9, 9, 9]);
        assert_eq!(of(&[7, 0, 9, 1], GrayscaleAlpha, Eight), [7, 7, 7, 9, 9, 9]);
        let wide = [1, 2, 3, 4, 5, 0xff, 0xff, 0xff, 0, 0, 0, 0x80];
        assert_eq!(of(&wide, Rgb, Sixteen), [1, 3, 5, 255, 0, 0]);
        assert_eq!(of(&wide[..4], Grayscale, Sixteen), [1, 1, 1, 3, 3, 3]);
    }

    /// A picture of one colour.
    fn plain(width: usize, height: usize) -> Vec<u8> {
        jpeg(&[200, 40, 120].repeat(width * height), width as u32, ColorType::Rgb)
    }

    /// A picture of one grey.
    fn grey(width: usize, height: usize) -> Vec<u8> {
        jpeg(&vec![90; width * height], width as u32, ColorType::Luma)
    }

    #[test]
    fn a_jpeg_is_read_or_said_to_be_cut() {
        let file = plain(40, 24);
        let picture = rgb(&file).unwrap();
        assert_eq!((picture.width, picture.height, picture.pixels.len()), (40, 24, 40 * 24 * 3));
        let near = |pixel: &[u8]| pixel.iter().zip([200u8, 40, 120]).all(|(a, b)| a.abs_diff(b) <= 3);
        assert!(picture.pixels.chunks_exact(3).all(near));
        let grey = rgb(&grey(5, 3)).unwrap().pixels;
        assert!(grey.len() == 45 && grey.chunks_exact(3).all(|pixel| pixel == [pixel[0]; 3]));

        let end = file.len();
        assert_eq!(
            rgb(&file[..end - 20]).unwrap_err(),
            format!("is cut: its {} bytes end before the picture does", end - 20)
        );
        for cut in (0..end).step_by(7) {
            let error = rgb(&file[..cut]).unwrap_err();
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_size_that_the_file_cannot_hold_is_refused() {
        let mut file = plain(40, 24);
        let at = file.windows(2).position(|mark| mark == [0xff, 0xc0]).unwrap();
        file[at + 5..at + 9].copy_from_slice(&[0x20, 0, 0x20, 0]);
        let error = format!("is cut: {} bytes cannot hold 8192 x 8192 pixels", file.len());
        assert_eq!(rgb(&file).unwrap_err(), error);
        // A picture of one colour has few bytes, and is whole.
        assert!(rgb(&png(&vec![9; 2000 * 2000], 2000, Grayscale, Eight)).is_ok());
        assert!(rgb(&grey(2000, 2000)).is_ok());
    }

    #[test]
    fn a_damaged_png_is_refused_in_one_line() {
        let file = png(&[50; 32 * 32 * 3], 32, Rgb, Eight);
        for cut in 24..file.len() - 12 {
            let error = rgb(&file[..cut]).unwrap_err();
            assert!(error.starts_with("is damaged: ") && !error.contains('\n'), "{cut}: {error}");
        }
    }

    /// A second size, which is the one that counts for the decoder, may not be larger than the first, which was checked.
    #[test]
    fn a_second_size_does_not_pass_the_limit() {
        let mut file = grey(16, 16);
        let at = file.windows(2).position(|mark| mark == [0xff, 0xc0]).unwrap();
        let length = 2 + usize::from(file[at + 3]);
        let mut second = file[at..at + length].to_vec();
        second[5..9].copy_from_slice(&[0xea, 0x60, 0xea, 0x60]);
        file.splice(at + length..at + length, second);
        assert!(rgb(&file).unwrap_err().starts_with("is damaged: "));
    }
}
