//! A GPU that a user describes by a row of numbers, in place of a name.
//!
//! ```json
//! {"gpu": {"name": "X100", "generation": "Hopper", "pcie": {"links": 1, "gb_per_s": 48.0}, "nvlink": {"links": 4, "gb_per_s": 20.0}}}
//! ```

use super::gpu::{GpuModel, Port};
use allfold_base::lock;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::sync::Mutex;

/// The GPUs of users' descriptions that were read, the latest last.
static OWN: Mutex<Vec<&'static GpuModel>> = Mutex::new(Vec::new());

/// GPUs below slower PCIe than their own.
static SLOWER: Mutex<Vec<&'static GpuModel>> = Mutex::new(Vec::new());

/// What a description says of its GPU.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a GPU's name, or a row such as {\"name\": \"X100\", \"generation\": \"Hopper\", \"pcie\": {\"links\": 1, \"gb_per_s\": 48.0}} \
                 with \"nvlink\" or \"bridge\" like \"pcie\""
)]
enum NameOrRow {
    Name(String),
    Row(Box<GpuModel>),
}

/// Reads a GPU's name, or a row, which is kept under its name.
///
/// # Errors
/// A row with a name that a known GPU has, or with speeds that no link has.
pub(super) fn name_or_row<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    match Option::<NameOrRow>::deserialize(from)? {
        None => Ok(None),
        Some(NameOrRow::Name(name)) => Ok(Some(name)),
        Some(NameOrRow::Row(row)) => keep(*row).map(Some).map_err(D::Error::custom),
    }
}

fn keep(row: GpuModel) -> Result<String, String> {
    let name = row.name.clone();
    if name.is_empty() || name.len() > 40 {
        return Err(format!("`{name}` is no name of a GPU; write 1 to 40 characters"));
    }
    if GpuModel::named(&name).is_some() {
        return Err(format!(
            "`{name}` is a GPU that Allfold knows; give another name, or write \"gpu\": \"{name}\""
        ));
    }
    let ports = [Some(row.pcie), row.nvlink, row.bridge].into_iter().flatten();
    let possible = |port: &Port| (1..=64).contains(&port.links) && (0.1..=1e4).contains(&port.gb_per_s);
    if let Some(port) = ports.clone().find(|port| !possible(port)) {
        return Err(format!(
            "{} links of {} GB/s are not possible; give 1 to 64 links of 0.1 to 10000 GB/s",
            port.links, port.gb_per_s
        ));
    }
    if !(0.1..=10.0).contains(&row.clock) {
        return Err(format!("a clock of {} GHz is not possible; give 0.1 to 10", row.clock));
    }
    latest(&OWN, row);
    Ok(name)
}

/// A row that stays as long as the program runs; equal rows are kept once.
fn latest(rows: &Mutex<Vec<&'static GpuModel>>, row: GpuModel) -> &'static GpuModel {
    let mut rows = lock(rows);
    let known = rows.iter().position(|known| **known == row);
    let gpu = known.map_or_else(|| &*Box::leak(Box::new(row)), |at| rows.remove(at));
    rows.push(gpu);
    gpu
}

/// A GPU whose PCIe link has `gb_per_s` in one direction.
pub(super) fn with_pcie(gpu: &GpuModel, gb_per_s: f64) -> &'static GpuModel {
    let mut slower = gpu.clone();
    slower.pcie.gb_per_s = gb_per_s;
    latest(&SLOWER, slower)
}

/// The GPU of a row that was read before, by its name.
pub(super) fn named(name: &str) -> Option<&'static GpuModel> {
    lock(&OWN).iter().rev().find(|gpu| gpu.name == name).copied()
}

#[cfg(test)]
mod tests {
    use crate::machines::{Description, Machine};

    fn read(gpu: &str) -> Result<Description, String> {
        let text =
            format!("{{\"gpu\": {gpu}, \"gpus_per_node\": 2, \"nodes\": 1, \"intra_node\": \"NVLink\"}}");
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_row_of_numbers_is_a_gpu() {
        let row = r#"{"name": "X100", "generation": "Hopper", "pcie": {"links": 1, "gb_per_s": 48.0}, "nvlink": {"links": 4, "gb_per_s": 20.0}}"#;
        let machine = Machine::understand(&read(row).unwrap()).unwrap();
        assert_eq!((machine.port().bandwidth().0, &*machine.gpu.name), (80_000_000_000, "X100"));
        assert_eq!(Machine::understand(&read("\"H100\"").unwrap()).unwrap().gpu.name, "H100 SXM");
    }

    #[test]
    fn a_row_that_is_no_gpu_is_refused() {
        let pcie = r#""generation": "Hopper", "pcie": {"links": 1, "gb_per_s": 48.0}"#;
        for (row, says) in [
            (format!("{{\"name\": \"H100\", {pcie}}}"), "is a GPU that Allfold knows"),
            (format!("{{\"name\": \"\", {pcie}}}"), "no name of a GPU"),
            (
                format!("{{\"name\": \"X101\", {pcie}, \"nvlink\": {{\"links\": 0, \"gb_per_s\": 1.0}}}}"),
                "0 links of 1 GB/s",
            ),
            ("{\"name\": \"X102\"}".into(), "expected a GPU's name, or a row such as"),
            ("7".into(), "or a row such as"),
        ] {
            let said = read(&row).unwrap_err();
            assert!(
                said.contains(says) || says.starts_with("expected") && said.contains("a row such as"),
                "{row}: {said}"
            );
        }
    }
}
