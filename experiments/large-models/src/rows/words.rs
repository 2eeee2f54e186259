//! Words and numbers in descriptions that people wrote.

/// Whether one of the words occurs in a text of lower case.
pub(super) fn has(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

/// The numbers of a text, each with the byte where it begins and where it ends. A point or comma at the end is not part of a number.
pub(super) fn numbers(text: &str) -> Vec<(f64, usize, usize)> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
        let token = text.get(at..at + length).unwrap_or_default().trim_matches('.');
        if let Ok(number) = token.parse::<f64>() {
            found.push((number, at, at + length));
        }
        at += length.max(1);
    }
    found
}

/// The first number that follows one of the words within a space.
pub(super) fn number_after(text: &str, words: &[&str]) -> Option<f64> {
    words.iter().find_map(|word| {
        text.match_indices(word).find_map(|(at, _)| {
            let rest = text.get(at + word.len()..)?.trim_start();
            numbers(rest).first().filter(|(_, start, _)| *start == 0).map(|(number, ..)| *number)
        })
    })
}

/// A year and month in two digits each (`25.09`), as months since the year 0.
pub(super) fn release(text: &str) -> Option<u32> {
    let (year, month) = text.trim_start().split_once('.')?;
    let month: String = month.chars().take_while(char::is_ascii_digit).collect();
    let (year, month) = (year.parse::<u32>().ok()?, month.parse::<u32>().ok()?);
    ((20..60).contains(&year) && (1..=12).contains(&month)).then_some((2000 + year) * 12 + month)
}

/// The first release that follows a word, such as `release 25.09`.
pub(super) fn release_after(text: &str, words: &[&str]) -> Option<u32> {
    words
        .iter()
        .find_map(|word| text.match_indices(word).find_map(|(at, _)| release(text.get(at + word.len()..)?)))
}

/// The first year from 2015 to 2059 in a text.
pub(super) fn year(text: &str) -> Option<u32> {
    numbers(text)
        .iter()
        .map(|(number, ..)| *number)
        .find(|number| (2015.0..2060.0).contains(number) && number.fract() == 0.0)
        .map(|year| year as u32)
}

/// A text in lower case, with everything but letters and digits as single dashes.
pub(super) fn slug(text: &str) -> String {
    let mut slug = String::with_capacity(text.len());
    for letter in text.to_lowercase().chars() {
        match letter.is_alphanumeric() {
            true => slug.push(letter),
            false if !slug.ends_with('-') && !slug.is_empty() => slug.push('-'),
            false => {}
        }
    }
    slug.trim_end_matches('-').to_string()
}
