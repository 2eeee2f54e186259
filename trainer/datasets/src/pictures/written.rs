//! Files of pictures for tests: this crate's, and those of the trainer and of the command, which include this file.

use jpeg_encoder::{ColorType, Encoder};
use std::path::Path;

/// A JPEG file of grey or of red, green and blue. `pixels` are rows from the top, one byte for each channel of a pixel.
pub fn jpeg(pixels: &[u8], width: u32, colour: ColorType) -> Vec<u8> {
    let mut file = Vec::new();
    let channels = if matches!(colour, ColorType::Luma) { 1 } else { 3 };
    let height = pixels.len() / channels / width as usize;
    Encoder::new(&mut file, 95).encode(pixels, width as u16, height as u16, colour).unwrap();
    file
}

/// A PNG file. `pixels` are rows from the top, one value for each channel of a pixel, of two bytes with the greater first if `depth` is 16.
pub fn png(pixels: &[u8], width: u32, colour: png::ColorType, depth: png::BitDepth) -> Vec<u8> {
    let mut file = Vec::new();
    let height = pixels.len() * 8 / colour.samples() / depth as usize / width as usize;
    let mut encoder = png::Encoder::new(&mut file, width, height as u32);
    encoder.set_color(colour);
    encoder.set_depth(depth);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    file
}

/// Writes a picture of red, green and blue bytes into a new file, in the format that its name ends with, and the folders above it.
pub fn write(path: &Path, pixels: &[u8], width: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = match path.extension().unwrap().to_str().unwrap() {
        "jpg" => jpeg(pixels, width, ColorType::Rgb),
        _ => png(pixels, width, png::ColorType::Rgb, png::BitDepth::Eight),
    };
    std::fs::write(path, file).unwrap();
}
