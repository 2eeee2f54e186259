//! Which runs are of one system: a cluster counts as one system, however many of its runs were published.
//!
//! ```text
//! gh200x4_2n_alps_ofi192_all_reduce     gh200, alps        the GPU and the first word of the place;
//! a100x8_2n_aws_p4de_all_reduce         a100, p4de         of a cloud, what follows its name
//! ```

use crate::runs::Run;
use allfold_schedules::Collective;

/// Names of clouds, which do not name the machine; the next word does.
const CLOUDS: [&str; 3] = ["aws", "azure", "gcp"];
/// Places that are one cluster under two names: CSCS documents runs on its machine Alps.
const SAME: [(&str, &str); 1] = [("cscsdocs", "alps")];

/// The system that a run was measured on: the run's own `system`, or else by the words of its name.
pub fn system(run: &Run) -> String {
    run.system.clone().unwrap_or_else(|| by_name(&run.name))
}

fn by_name(name: &str) -> String {
    let name = name.split('#').next().unwrap_or(name);
    let stem = Collective::ALL.iter().find_map(|what| name.strip_suffix(&format!("_{}", what.name())));
    let words: Vec<&str> = stem.unwrap_or(name).split('_').collect();
    let gpu = words.first().map_or("", |word| word.split_once('x').map_or(*word, |(gpu, _)| gpu));
    let gpu = if gpu == "rt" { words[0].trim_end_matches('x') } else { gpu };
    let mut places = words.iter().skip(1).copied().filter(|word| !is_count(word));
    let first = places.next().unwrap_or("");
    let place = match CLOUDS.contains(&first) {
        true => places.next().unwrap_or(first),
        false => first,
    };
    let place = SAME.iter().find(|(other, _)| *other == place).map_or(place, |(_, one)| one);
    if place.is_empty() { gpu.into() } else { format!("{gpu} {place}") }
}

/// Whether a word counts nodes, GPUs or racks: `2n`, `x8`, `g4`, `1rack`.
fn is_count(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let after = ["x", "g"].iter().any(|letter| word.strip_prefix(letter).is_some_and(digits));
    after || ["n", "rack"].iter().any(|unit| word.strip_suffix(unit).is_some_and(digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_cluster_are_one_system() {
        for (name, system) in [
            ("gh200x4_2n_alps_ofi192_all_reduce", "gh200 alps"),
            ("gh200x4_2n_cscsdocs_nohook_all_reduce", "gh200 alps"),
            ("h100_10n_g1_xxrjun_all_gather", "h100 xxrjun"),
            ("h100x8_xxrjun_reduce_scatter", "h100 xxrjun"),
            ("a100x8_2n_aws_p4de_all_reduce", "a100 p4de"),
            ("a100x8_2n_oci_oke_all_reduce", "a100 oci"),
            ("a100x8_oci_all_reduce_10g", "a100 oci"),
            ("h100x8_2n_gcp_a3mega_gke_all_gather", "h100 a3mega"),
            ("rtx2080ti_x8_pcie_all_reduce", "rtx2080ti pcie"),
            ("mine#2", "mine"),
        ] {
            assert_eq!(by_name(name), system, "{name}");
        }
    }
}
