//! Shares of a whole on the command line: `0.02` or `2%`.

/// Reads a share of 0 or more and less than 1, for clap. Refuses any other text.
pub fn share(text: &str) -> Result<f64, String> {
    let (number, whole) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 100.0),
        None => (text.trim(), 1.0),
    };
    match number.parse::<f64>().map(|number| (number, number / whole)) {
        Ok((_, share)) if (0.0..1.0).contains(&share) => Ok(share),
        Ok((percent, _)) if whole == 1.0 && (1.0..100.0).contains(&percent) => {
            Err(format!("that is {} %; write {percent}% or {}", 100.0 * percent, percent / 100.0))
        }
        _ => Err("write a share from 0 to less than 1, such as 0.02 or 2%".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_number_below_one_or_a_percentage() {
        for (text, wanted) in [("0", 0.0), ("0.02", 0.02), ("2%", 0.02), (" 2 % ", 0.02), ("99.5%", 0.995)] {
            assert_eq!(share(text), Ok(wanted), "{text}");
        }
        assert_eq!(share("2").unwrap_err(), "that is 200 %; write 2% or 0.02");
        for wrong in ["", "%", "x", "-0.1", "100%", "200%", "1e9", "inf", "nan", "2%%"] {
            assert!(share(wrong).unwrap_err().starts_with("write a share from 0 to less than 1"), "{wrong}");
        }
    }
}
