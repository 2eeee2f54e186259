//! Flags and values that were renamed: an old name is refused with a line that gives the new name.

/// Renamed flags: the command, the old flag, and what to write now.
const FLAGS: [(&str, &str, &str); 12] = [
    ("train", "--beside", "--compare"),
    ("scale", "--workload", "scale workload NAME"),
    ("scale", "--collective", "scale collective NAME"),
    ("scale", "--against", "scale validate TABLE.."),
    ("scale", "--explain", "scale explain NAME"),
    ("scale", "--carry", "--sim-ranks"),
    ("scale workload", "--measured", "--single-gpu-rate"),
    ("scale workload", "--spread", "--device-variation"),
    ("calibrate", "--output", "--out"),
    ("calibrate", "--from", "--prior"),
    ("calibrate", "--draws", "--resamples"),
    ("validate", "--topology", "--parameters"),
];

/// Renamed values of flags: the command, the flag, the old value, and what to write now.
const VALUES: [(&str, &str, &str, &str); 13] = [
    ("simulate", "--engine", "orbit", "--engine by_symmetry"),
    ("simulate", "--engine", "turns", "--sharing serial_links"),
    ("simulate", "--without", "achieved", "--without link-efficiency"),
    ("simulate", "--without", "copied", "--without host-staging"),
    ("simulate", "--without", "fill", "--without pipeline-fill"),
    ("simulate", "--without", "matching", "--without host-matching"),
    ("simulate", "--without", "scale", "--without congestion"),
    ("validate", "--without", "achieved", "--without link-efficiency"),
    ("validate", "--without", "copied", "--without host-staging"),
    ("validate", "--without", "fill", "--without pipeline-fill"),
    ("validate", "--without", "matching", "--without host-matching"),
    ("validate", "--without", "scale", "--without congestion"),
    ("scale validate", "--without", "spread", "--without device-variation"),
];

/// The new name for an old name in a refused command line, if there is one. `words` is the command line after the program's
/// name.
pub fn refusal(words: &[String]) -> Option<String> {
    let own = words.split(|word| word == "--").next().unwrap_or_default();
    let of = |command: &str| own.iter().zip(command.split(' ')).filter(|(a, b)| a == b).count();
    let is = |command: &str| of(command) == command.split(' ').count();
    let given = |flag: &str| own.iter().any(|word| word.split('=').next() == Some(flag));
    let set = |flag: &str, value: &str| {
        own.windows(2).any(|pair| pair[0] == flag && pair[1] == value)
            || own.contains(&format!("{flag}={value}"))
    };
    let flag = FLAGS.iter().filter(|(command, flag, _)| is(command) && given(flag));
    let mut flag = flag.map(|(command, old, new)| (*command, old.to_string(), *new));
    let value = VALUES.iter().filter(|(command, flag, old, _)| is(command) && set(flag, old));
    let mut value = value.map(|(command, flag, old, new)| (*command, format!("{flag} {old}"), *new));
    let (command, old, new) = flag.next().or_else(|| value.next())?;
    Some(match new.starts_with("--") {
        true => format!("`{old}` of `allfold {command}` was renamed: write `{new}`"),
        false => format!("`{old}` of `allfold {command}` is a command of its own: write `allfold {new} ..`"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> Option<String> {
        refusal(&line.split(' ').map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn an_old_flag_is_refused_by_a_line_with_the_new_one() {
        for (command, old, new) in FLAGS {
            for line in [format!("{command} x {old} y"), format!("{command} {old}=y")] {
                let answer = said(&line).unwrap();
                assert!(answer.contains(&format!("`{old}`")) && answer.contains(new), "{line}: {answer}");
                assert!(!answer.contains('\n'));
            }
        }
    }

    #[test]
    fn an_old_value_is_refused_by_a_line_with_the_new_one() {
        for (command, flag, old, new) in VALUES {
            for line in [format!("{command} x {flag} {old}"), format!("{command} {flag}={old}")] {
                let answer = said(&line).unwrap();
                assert!(
                    answer.contains(&format!("`{flag} {old}`")) && answer.contains(new),
                    "{line}: {answer}"
                );
                assert!(!answer.contains('\n'));
            }
        }
    }

    #[test]
    fn other_commands_and_what_a_launcher_runs_keep_their_words() {
        assert_eq!(said("scale --config x --ranks 1"), None);
        assert_eq!(said("bench --workload x"), None);
        assert_eq!(said("launch -n 2 -- train --beside x"), None);
    }
}
