//! Text and names of files that hold characters which a terminal obeys: no command prints them as they are, and no picture holds them.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(target_os = "linux")]

mod common;

use common::{allfold, folder};
use std::fs;

/// Clears the screen, rings the bell, sets a colour, turns the direction of writing.
const HOSTILE: &str = "\u{1b}[2J\u{7}\u{9b}31m\u{202e}\u{2066}gnp";

const MLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/runs/v100x1_2n_p3dn_all_reduce.json");

fn is_obeyed(c: char) -> bool {
    c.is_control() && !"\n\t".contains(c)
        || ('\u{202a}'..='\u{202e}').contains(&c)
        || ('\u{2066}'..='\u{2069}').contains(&c)
}

/// Runs a command that prints some of [`HOSTILE`], and checks that it prints its characters as their codes.
fn harmless(args: &[&str]) {
    let output = allfold(args);
    for stream in [&output.stdout, &output.stderr] {
        let text = String::from_utf8(stream.clone()).unwrap();
        assert!(!text.contains(is_obeyed), "{args:?}: {text:?}");
    }
    let all = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    // Clap drops sequences that begin with an escape from its own messages.
    assert!(all.contains(r"\u{202e}"), "{args:?}: {all}");
}

#[test]
fn names_and_texts_of_files_reach_a_terminal_as_plain_characters() {
    let folder = folder();
    let named = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let toml = named(&format!("{HOSTILE}.toml"), "x = = 1\n");
    let json = named(&format!("{HOSTILE}.json"), "{");
    let key = named("key.toml", "\"\u{202e}gnp\" = 1\n");
    let lines = named(&format!("{HOSTILE}.jsonl"), "{}");
    let missing = format!("no/such/{HOSTILE}");
    let run =
        fs::read_to_string(RUN).unwrap().replace("\"all_reduce\"", &serde_json::to_string(HOSTILE).unwrap());
    let run = named("run.json", &run);
    let simulate = ["simulate", "all_reduce", "--ranks", "4", "-b", "8", "--topology"];
    let train = ["train", "--config", MLP, "--steps", "1", "--set"];
    let (set, weights) = (format!("{HOSTILE}=1"), format!("model.weights={missing}"));
    let [name, word, dir] = ["model.name", "training.loss", "data.dir"].map(|key| format!("{key}={HOSTILE}"));
    for args in [
        &[HOSTILE][..],
        &["verify", HOSTILE],
        &["verify", "--algo", HOSTILE],
        &["verify", "--ranks", HOSTILE],
        &["show", "all_reduce", "--ranks", "2", "--algo", HOSTILE],
        &["doctor", &format!("--{HOSTILE}")],
        &["machines", HOSTILE],
        &[&simulate[..], &[HOSTILE]].concat(),
        &[&simulate[..], &[&toml]].concat(),
        &[&simulate[..], &[&json, "--algo", "nccl"]].concat(),
        &[&simulate[..], &["switch", "--fault", HOSTILE]].concat(),
        &["scale", "workload", &toml, "--ranks", "2"],
        &["train", "--config", &toml],
        &["train", "--config", &key],
        &["train", "--config", &missing],
        &[&train[..], &[&set]].concat(),
        &[&train[..], &[&name]].concat(),
        &[&train[..], &[&word]].concat(),
        &[&train[..], &[&weights]].concat(),
        &[&train[..], &["data.name=mnist", "--set", &dir]].concat(),
        &["report", "--from", &lines],
        &["report", "--from", &missing],
        &["diff", &lines, &lines],
        &["validate", &json],
        &["validate", &run],
        &["calibrate", &json, "--out", "o.toml"],
        &["launch", "--", &missing],
        &["launch", "--rdzv", HOSTILE, "--", "true"],
        &["triage", &missing],
        &["triage", &lines],
    ] {
        harmless(args);
    }
}

/// The diagnosis quotes the records' own words.
#[test]
fn flight_records_reach_a_terminal_as_plain_characters() {
    let folder = folder();
    let text = serde_json::to_string(HOSTILE).unwrap();
    for rank in 0..2 {
        let header = format!(
            "{{\"flight\":1,\"rank\":{rank},\"size\":2,\"reason\":{text},\"host\":{text},\"pid\":1,\"time\":{text}}}\n"
        );
        let entry = format!(
            "{{\"group\":0,\"rank\":{rank},\"size\":2,\"sequence\":0,\"operation\":{text},\"count\":{rank},\"dtype\":{text},\"state\":\"failed\",\"issued_us\":0.0,\"error\":{text}}}\n"
        );
        fs::write(folder.path().join(format!("flight-rank-{rank}.jsonl")), header + &entry).unwrap();
    }
    fs::write(folder.path().join(format!("flight-rank-{HOSTILE}.jsonl")), "no record").unwrap();
    harmless(&["triage", folder.path().to_str().unwrap()]);
}

#[test]
fn pictures_of_hostile_names_are_xml() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = "kind = \"nodes\"\ndevices = 8\nnics = 4\n[device]\nbandwidth = \"300 GB/s\"\nlatency = \"0.6 us\"\n[nic]\nbandwidth = \"25 GB/s\"\nlatency = \"2.7 us\"\n";
    let (topology, plot, timeline) = (path(&format!("{HOSTILE}.toml")), path("p.svg"), path("t.svg"));
    fs::write(&topology, text).unwrap();
    let collective =
        ["scale", "collective", "all_reduce", "--algo", "ring", "--ranks", "2,4,8", "--topology", &topology];
    harmless(&[&collective[..], &["--plot", &plot]].concat());
    let simulate =
        ["simulate", "all_reduce", "--algo", "ring", "--ranks", "8", "-b", "8K", "-e", "8K", "--topology"];
    harmless(&[&simulate[..], &[&topology, "--timeline", &timeline]].concat());
    for file in [plot, timeline] {
        let drawn = fs::read_to_string(&file).unwrap();
        assert!(drawn.contains("\u{fffd}[2J"), "{file} does not name the topology");
        assert!(!drawn.contains(|c: char| c.is_control() && !"\n\t\r".contains(c)), "{file}");
    }
}

/// A file may be one long line, and an error that quotes it would be as long.
#[test]
fn errors_that_quote_a_long_text_are_cut() {
    let folder = folder();
    let long = "x".repeat(1_000_000);
    let path = folder.path().join("long.toml");
    fs::write(&path, format!("[model]\nname = \"{long}\"\n")).unwrap();
    let path = path.to_str().unwrap();
    for args in [
        &["train", "--config", path][..],
        &["train", "--config", MLP, "--set", &format!("model.name={}", &long[..100_000])],
    ] {
        let output = allfold(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with("error: ") && said.contains("characters left out"), "{said}");
        assert!(said.len() < 5_000, "{} bytes", said.len());
    }
}
