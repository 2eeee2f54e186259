//! The report: one HTML file that needs no network and has every part, and the file of records in the same folder.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod page;

use common::{folder, said};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

const PARTS: [&str; 8] =
    ["scaling", "predicted", "accuracy", "measured", "training", "compare", "timeline", "proofs"];

/// The folder of a quick report, which all tests here read, and the output of the command.
static QUICK: LazyLock<(PathBuf, String)> = LazyLock::new(|| {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quick-report");
    let _ = fs::remove_dir_all(&out);
    let text = said(&["report", "--quick", "--out", out.to_str().unwrap()]);
    (out, text)
});

fn check_page(page: &str, parts: &[&str]) {
    for loaded in ["http://", "https://", "src=", "<link", "@import", "url("] {
        assert!(!page.contains(loaded), "the page loads something: {loaded}");
    }
    for part in parts {
        assert!(page.contains(&format!("<section id=\"{part}\">")), "no part {part}");
    }
    assert_eq!(page.matches("<svg class=\"wide\"").count(), page.matches("<svg class=\"narrow\"").count());
    let island = page.split("id=\"records\">").nth(1).unwrap().split("</script>").next().unwrap();
    let records: Vec<serde_json::Value> = serde_json::from_str(island).unwrap();
    assert!(records.iter().all(|record| record["schema"] == 2));
}

#[test]
fn the_quick_report_is_whole_and_can_be_made_again_from_its_records() {
    let (folder, (out, text)) = (folder(), &*QUICK);
    assert!(text.contains("all checks passed") && text.contains("report.html"), "{text}");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    check_page(&page, &PARTS);
    assert!(page.contains("Where the time went") && page.contains("waited for most"));
    assert!(page.contains("Same bits") && page.matches("<svg class=\"wide\"").count() >= 7);
    let answer = page.split("<h1>").nth(1).unwrap().split("</h1>").next().unwrap();
    let first = "64 A100 SXM (dgx-a100) would train ResNet-50 by ddp at ";
    let middle = " % efficient, and hold it (11.9 of 74.5 GiB); published rates ";
    let last = "on 8 GPUs are predicted with a typical error of 3.2 %, nine in ten within 31.0 %";
    assert!(answer.starts_with(first) && answer.ends_with(last), "{answer}");
    assert!(answer.contains(" images/s, ") && answer.contains(middle), "{answer}");
    for question in
        ["Can I trust it?", "How fast is it here?", "How would it scale?", "Known limits", " UTC<"]
    {
        assert!(page.contains(question), "no {question}");
    }
    let order: Vec<usize> =
        PARTS.iter().map(|part| page.find(&format!("<section id=\"{part}\">")).unwrap()).collect();
    assert!(order.is_sorted(), "{order:?}");
    assert!(
        page.contains("<section id=\"proofs\">\n  <h2>Proofs</h2>\n  <details class=\"part\">"),
        "proofs are not folded"
    );
    assert!(page.contains(">NCCL<") && page.contains("bound of bandwidth and latency"));
    for collective in ["all_reduce", "all_gather", "reduce_scatter"] {
        assert!(
            page.contains(&format!("{collective} on 64 ranks of dgx-a100, simulated")),
            "no {collective}"
        );
    }
    assert_eq!(
        page.matches("<figure").count(),
        page.matches("<p class=\"finding\">").count(),
        "a plot has no finding"
    );
    assert!(!page.contains(" bytes on ") && !page.contains(">1073741824<"), "sizes are not for people");
    for command in [
        "allfold verify",
        "allfold train",
        "allfold compare",
        "allfold bench",
        "allfold simulate",
        "allfold scale",
    ] {
        assert!(page.contains(command), "no command {command}");
    }
    let plots: Vec<String> = fs::read_dir(out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".svg"))
        .collect();
    assert_eq!(plots.len(), page.matches("<svg class=\"wide\"").count());
    let scaling = fs::read_to_string(out.join("scaling.svg")).unwrap();
    assert!(scaling.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""), "{scaling}");
    assert!(scaling.contains("fill=\"white\"") && !scaling.contains("var("), "{scaling}");
    let trace: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(out.join("trace.json")).unwrap()).unwrap();
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());

    let (again, records) = (folder.path().join("second"), out.join("records.jsonl"));
    said(&["report", "--from", records.to_str().unwrap(), "--out", again.to_str().unwrap()]);
    let second = fs::read_to_string(again.join("report.html")).unwrap();
    let sections = |page: &str| {
        page.split("<main id=\"content\">").nth(1).unwrap().split("</main>").next().unwrap().to_string()
    };
    assert_eq!(sections(&page), sections(&second), "the parts are made from the records alone");
    assert_eq!(fs::read(records).unwrap(), fs::read(again.join("records.jsonl")).unwrap());
}

#[test]
fn records_of_one_command_make_a_page_of_their_part() {
    let folder = folder();
    let records = folder.path().join("proofs.jsonl");
    said(&["verify", "barrier", "--ranks", "1..3", "--json", records.to_str().unwrap()]);
    let out = folder.path().join("out");
    said(&["report", "--from", records.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    check_page(&fs::read_to_string(out.join("report.html")).unwrap(), &["proofs"]);
}

#[test]
fn a_sweep_on_a_machine_that_nccl_knows_is_drawn_beside_nccl() {
    let folder = folder();
    for (machine, known) in [("dgx-a100", true), ("nodes8", false)] {
        let (records, out) = (folder.path().join(format!("{machine}.jsonl")), folder.path().join(machine));
        let sweep = ["simulate", "all_reduce", "--topology", machine, "--ranks", "16", "--algo", "ring"];
        said(
            &[&sweep[..], &["-b", "64K", "-e", "16M", "-f", "16", "--json", records.to_str().unwrap()]]
                .concat(),
        );
        said(&["report", "--from", records.to_str().unwrap(), "--out", out.to_str().unwrap()]);
        let page = fs::read_to_string(out.join("report.html")).unwrap();
        assert!(page.contains("bound of bandwidth and latency"));
        assert_eq!(page.contains(">NCCL<"), known, "{machine}");
        assert_eq!(page.contains("--topology dgx-a100 --ranks 16 --algo nccl -b 64K"), known, "{machine}");
        assert_eq!(fs::read(&records).unwrap(), fs::read(out.join("records.jsonl")).unwrap());
    }
}
