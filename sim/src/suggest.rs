//! One line for a name that does not exist: what there is, and the nearest.

/// "no KIND is called `NAME`; did you mean `...`? There are ..."
pub(crate) fn unknown(kind: &str, name: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), *candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= candidate.len().max(3) / 2);
    let hint = nearest.map_or(String::new(), |(_, candidate)| format!(" did you mean `{candidate}`?"));
    format!("no {kind} is called `{name}`;{hint} there are {}", known.join(", "))
}
