//! Fits and cross-validation on runs whose times are the model's own, with seeded noise.

use crate::bootstrap::intervals;
use crate::cross_validation::{companion, is_telling, with_run, without_system};
use crate::file::ParameterFile;
use crate::fit::{Prior, fit};
use crate::prepare::{Prepared, prepare};
use crate::repeatability::pairs;
use crate::runs;
use allfold_nccl_model::physics::{PARAMETERS, Parameters, Terms, closed};
use std::path::PathBuf;

fn place(name: &str) -> usize {
    PARAMETERS.iter().position(|parameter| parameter.name == name).unwrap()
}

/// A run on nodes of 8 GPUs with the times of `truth`, each changed by up to 3 % either way.
fn made(name: &str, nodes: u32, nics: &str, truth: &Parameters, seed: u64) -> Prepared {
    let ranks = 8 * nodes;
    let rows: Vec<String> = (3..33)
        .map(|log| format!(r#"{{"bytes":{},"time_us":1.0,"algbw_gbps":0,"busbw_gbps":0}}"#, 1u64 << log))
        .collect();
    let text = format!(
        r#"{{"hardware":{{"gpu":"A100-SXM4-40GB","gpus_per_node":8,"nodes":{nodes},"intra_node":"NVLink3 NVSwitch",
        "inter_node":"{nics}"}},"collective":"all_reduce","dtype":"float","ranks":{ranks},"rows":[{}]}}"#,
        rows.join(",")
    );
    // The times are replaced below; with those of the text the run would be refused as contradicting itself.
    let mut run = runs::parse_unchecked(name, &text).unwrap();
    run.notes.clear();
    let mut prepared = prepare(&run, None, false).unwrap();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for row in &mut prepared.rows {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let noise = 0.97 + 0.06 * (state % 1000) as f64 / 1000.0;
        row.measured_us = closed(&row.case, truth, Terms::default()) * noise;
    }
    prepared
}

fn truth() -> Parameters {
    let mut truth = Parameters::default();
    for (name, times) in [("hop.RoCE", 1.6), ("share.RoCE", 0.9), ("link.Ampere", 0.93), ("base.LL", 0.8)] {
        truth.set(place(name), truth.at(place(name)) * times);
    }
    truth
}

#[test]
fn calibration_recovers_what_the_runs_were_made_with() {
    let truth = truth();
    let runs: Vec<Prepared> = [(1, 1), (2, 2), (4, 3), (8, 4)]
        .map(|(nodes, seed)| made("a100_lab_all_reduce", nodes, "8x200Gb/s RoCE", &truth, seed))
        .to_vec();
    let found = fit(runs.iter(), &Prior::default(), Terms::default());
    let hop = |p: &Parameters| p.at(place("hop")) * p.at(place("hop.RoCE"));
    let share = |p: &Parameters| p.at(place("share")) * p.at(place("share.RoCE"));
    assert!((hop(&found.parameters) / hop(&truth)).ln().abs() < 0.25, "{}", hop(&found.parameters));
    assert!((share(&found.parameters) / share(&truth)).ln().abs() < 0.08, "{}", share(&found.parameters));
    // A parameter that no run informs keeps its prior value and its uncertainty.
    let other = place("hop.Slingshot");
    assert!((found.parameters.at(other) - PARAMETERS[other].value).abs() < 1e-9);
    assert!((found.std_dev[other] - PARAMETERS[other].std_dev).abs() < 1e-6);
    assert!(found.std_dev[place("hop.RoCE")] < 0.8 * PARAMETERS[place("hop.RoCE")].std_dev);
}

#[test]
fn a_row_that_is_predicted_has_no_say_in_its_prediction() {
    let truth = truth();
    let ours = |factor: f64| {
        let mut runs = vec![
            made("a100_one_all_reduce", 2, "8x200Gb/s RoCE", &truth, 1),
            made("a100_two_all_reduce", 4, "8x200Gb/s IB HDR", &truth, 2),
            made("a100_two_b_all_reduce", 4, "8x200Gb/s IB HDR", &truth, 3),
        ];
        runs[1].rows.iter_mut().for_each(|row| row.measured_us *= factor);
        runs
    };
    let (plain, changed) = (ours(1.0), ours(3.0));
    let terms = Terms::default();
    let left_out = |runs: &[Prepared]| without_system(runs, "a100 two", terms);
    assert_eq!(left_out(&plain), left_out(&changed), "the system that is left out leaked");
    assert_ne!(without_system(&plain, "a100 one", terms), without_system(&changed, "a100 one", terms));
    // If there is one more run of the same system, that run is the companion.
    let one = companion(&plain, &plain[1]).unwrap();
    assert_eq!(one.name, "a100_two_b_all_reduce");
    assert_eq!(
        with_run(&left_out(&plain), one, terms),
        with_run(&left_out(&changed), companion(&changed, &changed[1]).unwrap(), terms)
    );
    assert!(companion(&plain, &plain[0]).is_none());
}

#[test]
fn what_cannot_be_predicted_says_what_is_missing() {
    let text = r#"{"collective":"all_reduce","dtype":"float","ranks":8,"hardware":{"gpu":"H100"},
        "rows":[{"bytes":1048576,"time_us":100.0,"algbw_gbps":10.49,"busbw_gbps":18.35}]}"#;
    let run = &runs::parse("x_all_reduce", text).unwrap()[0];
    let said = prepare(run, None, false).unwrap_err();
    assert!(said.contains("gpus_per_node") && said.contains("nodes"), "{said}");
    let suspect = runs::Run { suspect: true, ..run.clone() };
    assert!(prepare(&suspect, None, false).unwrap_err().contains("doubted"));
}

#[test]
fn hardware_of_other_ranks_or_with_an_unknown_key_is_refused() {
    let text = |hardware: &str| {
        format!(
            r#"{{"collective":"all_reduce","dtype":"float","ranks":16,"hardware":{{"gpu":"H100 SXM","nodes":2,
            "intra_node":"NVLink4 NVSwitch","inter_node":"8x400Gb/s IB NDR",{hardware}}},
            "rows":[{{"bytes":1048576,"time_us":100.0}}]}}"#
        )
    };
    let run = &runs::parse("x_all_reduce", &text(r#""gpus_per_node":4"#)).unwrap()[0];
    let said = prepare(run, None, false).unwrap_err();
    assert!(said.contains("2 nodes of 4 GPUs, and it has 16 ranks"), "{said}");
    let said = runs::parse("x_all_reduce", &text(r#""gpus_per_nodes":8"#)).unwrap_err().to_string();
    assert!(said.contains("unknown field `gpus_per_nodes`") && said.contains("`gpus_per_node`"), "{said}");
}

#[test]
fn what_the_environment_turns_off_is_not_used() {
    let machine = |env: &str| {
        let text = format!(
            r#"{{"collective":"all_reduce","dtype":"float","ranks":16,"env":{{{env}}},"hardware":{{"gpu":"H100 SXM",
            "gpus_per_node":8,"nodes":2,"intra_node":"NVLink4 NVSwitch","inter_node":"8x400Gb/s IB NDR"}},
            "rows":[{{"bytes":1048576,"time_us":100.0,"algbw_gbps":10.49,"busbw_gbps":19.66}}]}}"#
        );
        prepare(&runs::parse("x_all_reduce", &text).unwrap()[0], None, false).unwrap().setting
    };
    assert!(machine("").machine.nvlink);
    let copied = machine(r#""NCCL_P2P_DISABLE":"1""#).machine;
    assert!(!copied.nvlink && !copied.peer && !copied.switched);
    let nics = |hca: &str| machine(&format!(r#""NCCL_IB_HCA":"{hca}""#)).machine.nics.unwrap().count;
    assert_eq!([nics("=mlx5_0,mlx5_1:1"), nics("mlx5"), nics("^mlx5_0"), nics("mlx5_3")], [2, 8, 8, 1]);
    let cxi = r#""FI_CXI_RX_MATCH_MODE":"software""#;
    assert_eq!(machine(cxi).host_stores, None, "InfiniBand has no such provider");
}

#[test]
fn a_run_of_another_shape_that_is_far_from_all_others_tells_nothing_of_its_system() {
    let (truth, others, terms) = (truth(), Parameters::default(), Terms::default());
    let mut one = made("a100_lab_all_reduce", 2, "8x200Gb/s RoCE", &truth, 1);
    let alike = made("a100_lab_b_all_reduce", 4, "8x200Gb/s RoCE", &truth, 2);
    let mut other = alike.clone();
    other.setting.machine.devices = 1;
    assert!(is_telling(&others, &one, &other, terms));
    one.rows.iter_mut().for_each(|row| row.measured_us *= 9.0);
    assert!(is_telling(&others, &one, &alike, terms), "of the same shape it is taken at its word");
    assert!(!is_telling(&others, &one, &other, terms));
    // Among companions the one of the same shape comes first, though it has fewer sizes.
    let mut few = made("a100_lab_few_all_reduce", 4, "8x200Gb/s RoCE", &truth, 3);
    few.rows.truncate(5);
    let runs = [one, alike, few];
    assert_eq!(companion(&runs, &runs[1]).unwrap().name, "a100_lab_few_all_reduce");
}

#[test]
fn intervals_hold_the_value_and_are_the_same_twice() {
    let truth = truth();
    let names = ["a_all_reduce", "b_all_reduce", "c_all_reduce", "d_all_reduce", "e_all_reduce"];
    let runs: Vec<Prepared> = (1..)
        .zip(names)
        .map(|(seed, name)| made(&format!("a100_{name}"), 2, "8x200Gb/s RoCE", &truth, seed))
        .collect();
    let prior = Prior::default();
    let found = fit(runs.iter(), &prior, Terms::default());
    assert_eq!(found.systems.len(), 5);
    let once = intervals(&runs, &prior, Terms::default(), &found, 8, || ());
    assert_eq!(once, intervals(&runs, &prior, Terms::default(), &found, 8, || ()));
    for (number, &(low, high)) in once.iter().enumerate() {
        let value = found.parameters.at(number);
        assert!(low < value && value < high, "{}: {low} {value} {high}", PARAMETERS[number].name);
    }
    let few = fit(runs[..4].iter(), &prior, Terms::default());
    let few = intervals(&runs[..4], &prior, Terms::default(), &few, 8, || ());
    assert_eq!(few.len(), once.len());
}

#[test]
fn what_is_said_twice_is_compared_at_the_sizes_that_both_have() {
    let truth = truth();
    let one = made("a100_lab_all_reduce", 2, "8x200Gb/s RoCE", &truth, 1);
    let mut other = made("a100_lab_b_all_reduce", 2, "8x200Gb/s RoCE", &truth, 1);
    other.rows.iter_mut().for_each(|row| row.measured_us *= 2.0);
    other.rows.retain(|row| row.bytes < 1 << 20);
    let wider = made("a100_lab_c_all_reduce", 4, "8x200Gb/s RoCE", &truth, 1);
    let runs = [one, other, wider];
    let found = pairs(&runs);
    assert_eq!(found.len(), 1, "of one shape are two only");
    assert!(
        (found[0].median(0).unwrap() - 2.0).abs() < 1e-9 && (found[0].most(1).unwrap() - 2.0).abs() < 1e-9
    );
    assert_eq!((found[0].median(2), found[0].most(3)), (None, None));
}

/// The parameters that ship are the fit to the published runs, which lie in `nccl-tests` below `ALLFOLD_DATA`.
#[test]
fn the_parameters_that_ship_are_the_fit_to_the_published_runs() {
    let folder = std::env::var_os("ALLFOLD_DATA").map(|data| PathBuf::from(data).join("nccl-tests"));
    let Some(folder) = folder.filter(|folder| folder.is_dir()) else {
        println!("SKIP: ALLFOLD_DATA names no folder with `nccl-tests` in it, the published runs");
        return;
    };
    let file = ParameterFile::published().unwrap();
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = files.iter().flat_map(|file| runs::read(file, None).unwrap_or_default().runs);
    // Runs that were published after the fit are no part of it.
    let read = read.filter(|run| file.runs.contains(&run.name));
    let fitted: Vec<Prepared> = read.filter_map(|run| prepare(&run, None, false).ok()).collect();
    let mut names: Vec<&str> = fitted.iter().map(|run| &*run.name).collect();
    let mut said: Vec<&str> = file.runs.iter().map(|name| &**name).collect();
    names.sort_unstable();
    said.sort_unstable();
    assert_eq!(names, said);
    // A copy under another name took part in the fit, too.
    let copies = fitted.iter().map(|run| Prepared { name: "copy".into(), ..run.clone() });
    let unknown: Vec<Prepared> = copies.filter(|run| !file.has(run)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let found = fit(fitted.iter(), &Prior::default(), Terms::default()).parameters;
    for (number, known) in PARAMETERS.iter().enumerate() {
        let (found, shipped) = (found.at(number), file.parameters().at(number));
        assert!((found - shipped).abs() < 0.01 * found + 1e-4, "{}: {found}, shipped {shipped}", known.name);
    }
}
