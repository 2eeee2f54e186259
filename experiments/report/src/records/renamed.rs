//! Fields and values of records that were renamed: a record with an old one is refused by a line that gives the new one.

use serde_json::Value;

/// Kind of record, old field, new field. A dot leads into an object.
const FIELDS: [(&str, &str, &str); 26] = [
    ("collective", "tree", "tree_hash"),
    ("collective", "order", "order_class"),
    ("collective", "wrong", "wrong_elements"),
    ("collective", "estimate_us", "nccl_estimate_us"),
    ("collective", "folded_lanes", "merged_lanes"),
    ("collective", "folded_ranks", "ranks_per_class"),
    ("verify", "tree", "tree_hash"),
    ("verify", "order", "order_class"),
    ("show", "tree", "tree_hash"),
    ("show", "order", "order_class"),
    ("time_spent", "longest", "longest_wait"),
    ("time_spent", "busiest", "busiest_link"),
    ("faults", "injected", "faults"),
    ("faults", "told", "attributed"),
    ("faults", "wrong", "wrong_results"),
    ("faults", "unnamed", "misattributed"),
    ("validate", "choice", "nccl_choice"),
    ("validate", "factor", "error_factor"),
    ("train", "memory.saved", "memory.saved_for_backward"),
    ("train", "memory.down", "memory.activation_gradients"),
    ("machine", "devices", "gpus_per_node"),
    ("machine", "nics", "nics_per_node"),
    ("machine", "nic_gbits", "nic_gbit_per_s"),
    ("validate_scaling", "published", "published_samples_per_s"),
    ("validate_scaling", "predicted", "predicted_samples_per_s"),
    ("validate_scaling", "error", "relative_error"),
];

/// Old and new names of engines in the field `engine`.
const ENGINES: [(&str, &str); 4] = [
    ("orbit_clocks", "clocks_by_symmetry"),
    ("orbit_events", "events_by_symmetry"),
    ("carried", "real_data"),
    ("closed form", "closed_form"),
];

/// The refusal of a record that uses an old name; `None` if it uses none.
pub(super) fn refusal(record: &Value) -> Option<String> {
    let kind = record.get("kind").and_then(Value::as_str)?;
    let has = |field: &str| field.split('.').try_fold(record, |value, name| value.get(name)).is_some();
    if let Some((_, old, new)) = FIELDS.iter().find(|(of, old, _)| *of == kind && has(old)) {
        return Some(format!("the field `{old}` of a record of kind `{kind}` is now called `{new}`"));
    }
    let engine = record.get("engine").and_then(Value::as_str)?;
    let (old, new) = ENGINES.iter().find(|(old, _)| *old == engine)?;
    Some(format!("the engine `{old}` is now called `{new}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Records;

    fn refused(mut record: Value) -> String {
        record["schema"] = super::super::lines::SCHEMA.into();
        let line = Records::parse(&format!("\n{record}")).unwrap_err();
        assert!(line.starts_with("line 2: ") && !line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn an_old_field_is_refused_by_a_line_with_the_new_one() {
        for (kind, old, new) in FIELDS {
            let mut record = serde_json::json!({ "kind": kind });
            match old.split_once('.') {
                Some((object, field)) => record[object][field] = 1.into(),
                None => record[old] = 1.into(),
            }
            let line = refused(record);
            assert!(line.contains(&format!("`{old}`")) && line.ends_with(&format!("`{new}`")), "{line}");
        }
    }

    #[test]
    fn an_old_engine_is_refused_by_a_line_with_the_new_one() {
        for (old, new) in ENGINES {
            let line = refused(serde_json::json!({ "kind": "collective", "engine": old }));
            assert!(line.contains(&format!("`{old}`")) && line.ends_with(&format!("`{new}`")), "{line}");
        }
    }
}
