//! What a file of another tool is that describes no topology which Allfold reads, and what to use in its place.

/// The kind of `text`, and what would be right; `None` for a text that nothing is known about.
pub(super) fn named(path: &str, text: &str) -> Option<String> {
    let start = text.trim_start();
    if start.contains("<graphs") {
        return Some(format!(
            "is NCCL's graph file, the rings and trees that NCCL found, and lists no links: `allfold machines {path}` shows it; give the \
             topology file, which NCCL_TOPO_DUMP_FILE writes"
        ));
    }
    if start.starts_with('{') && start.contains("\"dimensions-count\"") {
        return Some(astra_1(text).unwrap_or_else(|| {
            "is a network of ASTRA-sim 1; give it as ASTRA-sim 2 reads it, a YAML file".into()
        }));
    }
    let mut lines = text
        .lines()
        .map(str::split_whitespace)
        .map(Iterator::collect::<Vec<_>>)
        .filter(|words| !words.is_empty());
    let counts = lines.next()?;
    let is_count = |word: &&str| word.parse::<u32>().is_ok();
    let link = lines.find(|words| words.len() >= 4 && !words.iter().all(is_count));
    let is_link = link.is_some_and(|words| {
        words[..2].iter().all(is_count) && words[2].to_ascii_lowercase().ends_with("bps")
    });
    if (2..=3).contains(&counts.len()) && counts.iter().all(is_count) && is_link {
        return Some(format!(
            "is a network of ns-3 as ASTRA-sim takes it ({} nodes, {} links); write the links as [[link]] in a topology file (.toml), or \
             give ASTRA-sim's YAML file of the same network",
            counts[0],
            counts.last().copied().unwrap_or_default()
        ));
    }
    start.starts_with('<').then(|| "is no topology file of NCCL, which has <system> as its root".into())
}

/// The YAML file of ASTRA-sim 2 that says what a JSON file of ASTRA-sim 1 says.
fn astra_1(text: &str) -> Option<String> {
    let list = |key: &str| {
        let (_, rest) = text.split_once(&format!("\"{key}\""))?;
        let (list, _) = rest.split_once('[')?.1.split_once(']')?;
        Some(list.split(',').map(|word| word.trim().trim_matches('"').to_string()).collect::<Vec<_>>())
    };
    let numbers =
        |key: &str| list(key)?.iter().map(|word| word.parse::<f64>().ok()).collect::<Option<Vec<f64>>>();
    let speeds: Vec<String> = numbers("link-bandwidth")?
        .iter()
        .zip(numbers("links-count")?)
        .map(|(each, links)| (each * links).to_string())
        .collect();
    Some(format!(
        "is a network of ASTRA-sim 1; Allfold reads that of ASTRA-sim 2: write into a file NAME.yml the lines `topology: [ {} ]`, \
         `npus_count: [ {} ]`, `bandwidth: [ {} ]` and `latency: [ {} ]`",
        list("topologies-per-dim")?.join(", "),
        list("units-count")?.join(", "),
        speeds.join(", "),
        list("link-latency")?.join(", ")
    ))
}
