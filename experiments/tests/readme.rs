//! The output that the README and the documents show is what the command prints.
//!
//! A block marked `console` holds commands after `$ `, each followed by its output. A line `...` stands for any lines, `...` within
//! a line for any text. HTML comments on lines before the block are not shown on a web page: `<!-- exit 2 -->` is the exit code of
//! the block's commands, `<!-- varies: 0.1; 12 -->` lists texts that differ from run to run.

use std::collections::BTreeSet;
use std::path::Path;

/// The document as `trycmd` reads it: with exit codes and wildcards in its blocks.
fn session(document: &str) -> String {
    let (mut text, mut exit, mut varies, mut inside, mut last) = (String::new(), "", Vec::new(), false, "");
    for line in document.lines() {
        let comment =
            line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->")).unwrap_or_default();
        if inside && line == "```" {
            // `trycmd` does not count the last line break of a block as output, so a block with output gets one more.
            text += if last.is_empty() { "" } else { "\n" };
            (inside, exit, varies) = (false, "", Vec::new());
        } else if line == "```console" {
            inside = true;
        } else if let Some(code) = comment.strip_prefix("exit ") {
            exit = code;
        } else if let Some(list) = comment.strip_prefix("varies: ") {
            varies = list.split("; ").collect();
        }
        let mut shown = line.to_string();
        if inside && !line.starts_with("$ ") && line != "..." {
            shown =
                varies.iter().fold(shown.replace("...", "[..]"), |shown, text| shown.replace(text, "[..]"));
        }
        text += &format!("{shown}\n");
        if inside && line.starts_with("$ ") && !exit.is_empty() {
            text += &format!("? {exit}\n");
        }
        last = line;
    }
    text
}

#[test]
fn the_examples_in_the_documents_print_what_they_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sessions = Path::new(env!("CARGO_TARGET_TMPDIR")).join("documents");
    let _ = std::fs::remove_dir_all(&sessions);
    std::fs::create_dir_all(&sessions).unwrap();
    let mut documents = vec![root.join("README.md")];
    documents.extend(std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    for document in
        documents.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md"))
    {
        let text = std::fs::read_to_string(document).unwrap();
        std::fs::write(sessions.join(document.file_name().unwrap()), session(&text)).unwrap();
    }
    // The documents' commands are written for the root of the repository.
    std::env::set_current_dir(root).unwrap();
    trycmd::TestCases::new().case(sessions.join("*.md"));
}

#[test]
fn comments_before_a_block_give_its_exit_code_and_what_varies() {
    let document = "<!-- exit 2 -->\n<!-- varies: 17; 0.5 -->\n```console\n$ allfold x\nerror in 0.5 s (there are ...\n...\n```\n```console\n$ allfold y\n17\n```\n";
    let expected = "<!-- exit 2 -->\n<!-- varies: 17; 0.5 -->\n```console\n$ allfold x\n? 2\nerror in [..] s (there are [..]\n...\n\n```\n```console\n$ allfold y\n17\n\n```\n";
    assert_eq!(session(document), expected);
}

/// What only `trycmd` or rustdoc understands would be printed as it is on a web page.
#[test]
fn documents_hold_nothing_that_only_a_tool_understands() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut documents = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    documents.extend(std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    assert!(documents.len() > 5);
    for path in documents {
        let (text, mut block) = (std::fs::read_to_string(&path).unwrap(), "");
        for line in text.lines() {
            if let Some(opened) = line.strip_prefix("```") {
                block = if block.is_empty() { opened } else { "" };
            }
            let exit =
                line.strip_prefix("? ").is_some_and(|code| code.starts_with(|c: char| c.is_ascii_digit()));
            let hidden = block.starts_with("rust") && line.starts_with("# ");
            assert!(!exit && !hidden && !line.contains("[..]"), "{}: {line}", path.display());
        }
    }
}

#[test]
fn the_path_is_explained_before_the_first_example() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let (path, example) = (readme.find("on your `PATH`").unwrap(), readme.find("$ allfold ").unwrap());
    assert!(path < example);
}

#[test]
fn the_readme_lists_the_commands_that_there_are() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_allfold")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let lines =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: BTreeSet<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| `allfold "));
    let listed: BTreeSet<&str> = rows.filter_map(|row| row.split([' ', '`']).next()).collect();
    assert_eq!(listed, commands);
}
