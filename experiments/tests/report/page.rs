//! The report in a browser: no overflow, no overlap, all controls reachable by keyboard, and enough contrast, at the width of a
//! desktop and of a phone, in both colour schemes.

use super::QUICK;
use super::common::folder;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// The widths in CSS pixels.
const WIDTHS: [u32; 2] = [1400, 390];
/// The names of the colour schemes, and how Chromium numbers them.
const SCHEMES: [(&str, u32); 2] = [("dark", 0), ("light", 1)];
/// Chromium makes no network requests: the page is one file, and on a machine without network a request would only time out.
const OFFLINE: [&str; 5] = [
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];
/// The report is one file of at most this size.
const LARGEST: u64 = 3_000_000;

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    names.iter().find_map(|name| std::env::split_paths(&path).map(|at| at.join(name)).find(|at| at.is_file()))
}

/// What `page.js` finds in the page at this width and colour scheme.
fn looked_at(browser: &Path, page: &Path, width: u32, scheme: u32) -> Value {
    let folder = folder();
    let folder = folder.path();
    let text = fs::read_to_string(page).unwrap();
    let script = include_str!("page.js");
    let measured = text.replace("</body>", &format!("<script>{script}</script>\n</body>"));
    assert_ne!(measured.len(), text.len());
    fs::write(folder.join("measured.html"), measured).unwrap();
    // The page is shown in a frame, because a window has a least width and a frame has none.
    let frame = format!(
        "<body style=\"margin:0\"><iframe src=\"measured.html\" style=\"border:0;width:{width}px;height:3000px\"></iframe>\n\
         <pre id=\"found\"></pre><script>addEventListener('message', event => {{\n\
         document.getElementById('found').textContent = event.data; }});</script></body>"
    );
    fs::write(folder.join("frame.html"), frame).unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1500,3100"])
        .args(OFFLINE)
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .args(["--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("file://{}", folder.join("frame.html").display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let found = dom
        .split("<pre id=\"found\">")
        .nth(1)
        .and_then(|rest| rest.split("</pre>").next())
        .unwrap_or_default();
    let found = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_str(&found).unwrap_or_else(|error| panic!("{error}: `{found}`; {errors}"))
}

#[test]
fn the_page_fits_is_reached_by_keyboard_and_can_be_read() {
    let page = QUICK.0.join("report.html");
    assert!(fs::metadata(&page).unwrap().len() < LARGEST);
    let Some(browser) = browser() else {
        println!("SKIP no chromium on the PATH: the page is not looked at (apt-get install chromium)");
        return;
    };
    let looks = WIDTHS.into_iter().flat_map(|width| SCHEMES.map(|scheme| (width, scheme)));
    let (browser, page) = (&*browser, &*page);
    thread::scope(|scope| {
        looks.for_each(|(width, scheme)| drop(scope.spawn(move || fits(browser, page, width, scheme))));
    });
}

/// Fails if the page cannot be read or used at this width and in this colour scheme.
fn fits(browser: &Path, page: &Path, width: u32, (scheme, number): (&str, u32)) {
    let found = looked_at(browser, page, width, number);
    let place = format!("{width} px, {scheme}");
    assert_eq!((&found["width"], &found["scheme"]), (&width.into(), &scheme.into()), "{place}");
    let none = Value::Array(Vec::new());
    for kind in ["overflowing", "overlapping", "unreachable", "faint", "errors"] {
        assert_eq!(found[kind], none, "{place}, {kind}: {:#}", found[kind]);
    }
    let least = |what: &str, least: u64| {
        assert!(found[what].as_u64().unwrap() >= least, "{place}: {} {what}", found[what]);
    };
    let counts = [
        ("focusable", 40),
        ("texts", 200),
        ("boxes", 60),
        ("sorted", 1),
        ("selected", 2),
        ("filtered", 1),
        ("series", 10),
        ("handed", 3),
    ];
    counts.into_iter().for_each(|(what, count)| least(what, count));
}
