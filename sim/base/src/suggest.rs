//! The error text for a name that does not exist: the nearest existing name, and the list of all names.

/// The candidate that is spelled most like `word`, if any is similar enough (Jaro-Winkler similarity above 0.7, ignoring case). A name of
/// less than half the length, or more than twice, is another word, unless one begins with the other.
///
/// ```
/// use allfold_base::suggest::nearest;
///
/// assert_eq!(nearest("swich", ["ring", "switch"]), Some("switch"));
/// assert_eq!(nearest("zzzz", ["ring", "switch"]), None);
/// assert_eq!(nearest("color_jitter", ["lr", "flip"]), None);
/// ```
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let is_as_long = |name: &str| {
        let (short, long) = (name.len().min(word.len()), name.len().max(word.len()));
        2 * short >= long || name.starts_with(&word) || word.starts_with(name)
    };
    candidates
        .into_iter()
        .filter(|name| is_as_long(&name.to_lowercase()))
        .map(|name| (strsim::jaro_winkler(&word, &name.to_lowercase()), name))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1)))
        .map(|(_, name)| name)
}

/// The text "no KIND is called `word`", with the nearest of `names` and the list of all of them.
pub fn unknown(kind: &str, word: &str, names: &[&str]) -> String {
    let hint = nearest(word, names.iter().copied())
        .map_or(String::new(), |name| format!("; did you mean `{name}`?"));
    format!("no {kind} is called `{word}`{hint} ({})", listed(names))
}

/// The text "the nearest is `NAME`" if one of `names` resembles `word`; otherwise the list of all.
pub fn suggestion(word: &str, names: &[&str]) -> String {
    match nearest(word, names.iter().copied()) {
        Some(nearest) => format!("the nearest is `{nearest}`"),
        None => listed(names),
    }
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "there are none".into() } else { format!("there are {}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_and_the_list_are_given() {
        let names = ["ring", "mesh", "switch"];
        let said = "no topology is called `Rnig`; did you mean `ring`? (there are ring, mesh, switch)";
        assert_eq!(unknown("topology", "Rnig", &names), said);
        assert_eq!(
            unknown("topology", "qqq", &names),
            "no topology is called `qqq` (there are ring, mesh, switch)"
        );
        assert_eq!(suggestion("Rnig", &names), "the nearest is `ring`");
        assert_eq!(suggestion("qqq", &names), "there are ring, mesh, switch");
        assert_eq!(unknown("topology", "ring", &[]), "no topology is called `ring` (there are none)");
    }
}
