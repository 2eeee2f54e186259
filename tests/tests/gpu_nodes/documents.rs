//! The page on GPU nodes shows what the commands print on stand-ins: in its blocks marked `text`, a line `$ allfold ..` is a command, and
//! its output follows. A line `...` stands for any lines, `...` within a line for any text.

use super::*;
use std::path::Path;

/// Whether a text is what a pattern shows, in which `...` stands for any text.
fn fits(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split("...");
    let (first, mut rest) = (parts.next().unwrap_or_default(), text);
    let Some(after) = rest.strip_prefix(first) else { return false };
    rest = after;
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Whether lines are what a block shows.
fn shows(lines: &[&str], shown: &[&str]) -> bool {
    match shown.split_first() {
        None => lines.is_empty(),
        Some((&"...", more)) => (0..=lines.len()).any(|at| shows(&lines[at..], more)),
        Some((line, more)) => {
            lines.split_first().is_some_and(|(one, rest)| fits(one, line) && shows(rest, more))
        }
    }
}

#[test]
fn lines_and_texts_that_are_left_out_are_any() {
    assert!(shows(&["a 1 b", "x", "y", "end"], &["a ... b", "...", "end"]));
    assert!(!shows(&["a 1 c", "end"], &["a ... b", "...", "end"]));
    assert!(!shows(&["a", "b"], &["a"]) && !shows(&["a"], &["a", "b"]));
}

#[test]
fn the_page_on_gpu_nodes_shows_what_commands_print() {
    let root: PathBuf = [env!("CARGO_MANIFEST_DIR"), ".."].iter().collect();
    let page = std::fs::read_to_string(root.join("docs/gpu-nodes.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let stand_in = Path::new(env!("CARGO_BIN_EXE_allfold-on-stand-ins"));
    std::os::unix::fs::symlink(stand_in, folder.path().join("allfold")).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut blocks = 0;
    for block in page.split("```text\n").skip(1) {
        let block: Vec<&str> = block.lines().take_while(|line| *line != "```").collect();
        let Some(command) = block.first().and_then(|line| line.strip_prefix("$ ")) else { continue };
        let mut shell = super::command(&[]);
        let output = std::process::Command::new("sh")
            .args(["-c", command])
            .current_dir(&root)
            .envs(shell.env("PATH", &path).get_envs().filter_map(|(name, value)| Some((name, value?))))
            .output()
            .unwrap();
        let Ended { text, errors, .. } = ended(output);
        let lines: Vec<&str> = text.lines().collect();
        assert!(shows(&lines, &block[1..]), "{command} prints:\n{text}{errors}");
        blocks += 1;
    }
    assert!(blocks > 3, "{blocks} commands with output");
}
