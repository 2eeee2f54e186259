//! Patterns for names of layers and parameters, such as `layer1.*` or `*.bn1`.

/// Whether a pattern covers a parameter: it matches the parameter's name, or the name of a layer or block that the parameter is
/// in. `*` matches any characters, also none and also dots.
///
/// ```text
/// fc          fc.weight fc.bias                 not fc1.weight
/// layer1      layer1.0.conv1.weight             a block: all its parameters
/// *.bn1       layer1.0.bn1.weight               not bn1.weight
/// *bias       fc.bias layer1.0.bn1.bias
/// ```
///
/// A pattern without `*` takes time in proportion to its length, one with `*` to both lengths multiplied.
pub(crate) fn covers(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = pieces.next_back() else { return ends(rest, first) };
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    // The first match of each piece leaves the most characters for the last one, which alone has to end where a name ends.
    let places = rest.char_indices().map(|(at, _)| &rest[at..]).chain([""]);
    last.is_empty() || places.filter_map(|from| from.strip_prefix(last)).any(|rest| ends(rest, last))
}

/// Whether a name may end between `matched` and `rest`: at the parameter's end, or at a dot.
fn ends(rest: &str, matched: &str) -> bool {
    rest.is_empty() || rest.starts_with('.') || matched.ends_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_a_parameter_by_its_name_or_by_a_layer_or_block_around_it() {
        let cases = [
            ("fc", "fc.weight", true),
            ("fc.weight", "fc.weight", true),
            ("fc.", "fc.weight", true),
            ("fc", "fc1.weight", false),
            ("c", "fc.weight", false),
            ("", "fc.weight", false),
            ("*", "fc.weight", true),
            ("**", "fc.weight", true),
            ("*", "", true),
            ("fc*", "fc1.weight", true),
            ("fc*", "layer1.fc.weight", false),
            ("layer1.*", "layer1.0.conv1.weight", true),
            ("layer1.*", "layer10.0.conv1.weight", false),
            ("layer*.conv1", "layer1.0.conv1.weight", true),
            ("layer*.conv", "layer1.0.conv1.weight", false),
            ("*.bn*", "layer1.0.bn2.bias", true),
            ("*.bn*", "bn1.bias", false),
            ("*bias", "bn1.bias", true),
            ("*bias", "bias.weight", true),
            ("*bias", "bias2.weight", false),
            ("*.0.*.weight", "layer1.0.conv1.weight", true),
            ("*.0.*.weight", "layer1.1.conv1.weight", false),
            // The last piece may match later than where it is found first.
            ("*conv", "conv1.conv.weight", true),
            ("*aa", "aaa.weight", true),
            // No character is matched by two pieces.
            ("fc*c.weight", "fc.weight", false),
            ("ab*ba", "aba", false),
        ];
        for (pattern, name, want) in cases {
            assert_eq!(covers(pattern, name), want, "{pattern} {name}");
        }
    }
}
