//! Prices, powers and counts with their units.

/// A price of a GPU's hour.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// The amount.
    pub amount: f64,
    /// `USD`, `EUR`, ..
    pub currency: String,
}

/// The number at the start of a text and the words after it.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c))).unwrap_or(text.len());
    let number = text.get(..end)?.parse().ok()?;
    Some((number, text.get(end..)?.trim()))
}

/// An amount of money: `200000 USD`; `$` is `USD`.
pub fn money(text: &str) -> Result<Price, String> {
    let wrong = || format!("`{text}` is no amount; write it with its currency, for example \"200000 USD\"");
    let plain = text.replace('$', " USD ");
    let plain = plain.trim().strip_prefix("USD").map_or(plain.clone(), |rest| format!("{rest} USD"));
    let (amount, currency) = split(&plain).ok_or_else(wrong)?;
    let is_currency = currency.len() == 3 && currency.chars().all(|c| c.is_ascii_alphabetic());
    match is_currency && (1e-6..=1e15).contains(&amount) {
        true => Ok(Price { amount, currency: currency.to_uppercase() }),
        false => Err(wrong()),
    }
}

/// A price of one GPU for an hour: `2.5 USD/h`.
pub fn hourly(text: &str) -> Result<Price, String> {
    let unit = ["/h", "/hour", "/GPU-hour", "/GPUh"].iter().find_map(|unit| text.trim().strip_suffix(unit));
    unit.and_then(|rest| money(rest).ok()).ok_or_else(|| {
        format!("`{text}` is no price; write it with its unit, for example \"2.5 USD/h\" for a GPU's hour")
    })
}

/// A power in watts: `700 W`, `1 kW`.
pub fn watts(text: &str) -> Result<f64, String> {
    let watts = split(text).and_then(|(number, unit)| match unit {
        "W" => Some(number),
        "kW" => Some(number * 1e3),
        _ => None,
    });
    watts.filter(|watts| (1.0..=1e5).contains(watts)).ok_or_else(|| {
        format!("`{text}` is no power of a GPU; write it with its unit, for example \"700 W\"")
    })
}

/// A number of tokens: `15e12`, `15T`, `300B`.
pub fn tokens(text: &str) -> Result<f64, String> {
    let ends = [("T", 1e12), ("B", 1e9), ("M", 1e6)];
    let (number, factor) = ends
        .iter()
        .find_map(|(end, factor)| Some((text.trim().strip_suffix(end)?, *factor)))
        .unwrap_or((text.trim(), 1.0));
    let tokens = number.parse().map(|number: f64| number * factor);
    tokens.ok().filter(|tokens| (1.0..=1e18).contains(tokens)).ok_or_else(|| {
        format!("`{text}` is no number of tokens from 1 to 1e18; write for example 15e12 or 15T")
    })
}

/// A number within a range, with the reason if it is outside.
pub fn within(text: &str, low: f64, high: f64) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| (low..=high).contains(number));
    number.ok_or_else(|| format!("write a number from {low} to {high}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_and_numbers_without_one_are_refused() {
        let usd = |amount: f64| Ok(Price { amount, currency: "USD".into() });
        assert_eq!(hourly("2.5 USD/h"), usd(2.5));
        assert_eq!(hourly("$2.5/h"), usd(2.5));
        assert_eq!(hourly("2 eur/hour").unwrap().currency, "EUR");
        assert_eq!(money("200000 USD"), usd(200_000.0));
        assert_eq!((watts("700 W"), watts("1.2kW")), (Ok(700.0), Ok(1200.0)));
        assert_eq!((tokens("15e12"), tokens("15T"), tokens("300B")), (Ok(15e12), Ok(15e12), Ok(3e11)));
        for price in ["2.5", "2.5 USD", "USD/h", "-1 USD/h", "2.5 /h", "NaN USD/h", ""] {
            assert!(hourly(price).unwrap_err().contains("2.5 USD/h"), "{price}");
        }
        for power in ["700", "0 W", "700 Wh", "W"] {
            assert!(watts(power).unwrap_err().contains("700 W"), "{power}");
        }
        for count in ["0", "inf", "NaN", "-1", "15X", ""] {
            assert!(tokens(count).is_err(), "{count}");
        }
        assert!(money("5").is_err() && within("NaN", 0.0, 1.0).is_err());
    }
}
