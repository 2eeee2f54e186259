//! `scale` over the ranks of a job.

use super::*;

#[test]
fn a_job_of_four_ranks_measures_the_points_of_its_curve_beside_the_prediction() {
    let folder = tempfile::tempdir().unwrap();
    let [json, page] = ["records", "page.html"].map(|name| folder.path().join(name));
    let config = config("digits-mlp.toml");
    let words = ["launch", "-n", "4", "--", "scale", "--config", &config, "--set", "device=\"cuda\""];
    let (records_to, page_to) = (json.display().to_string(), page.display().to_string());
    let points = ["--ranks", "1,2,4", "--steps", "4", "--json", &records_to, "--html", &page_to];
    let text = said(&[&words[..], &points].concat());
    let heading = "measured in this job, a process per rank, gradients summed by native NCCL 2.30.3";
    assert!(text.contains(heading) && text.contains("modeled"), "{text}");
    let all = records(&json);
    let of = |measured: bool| -> Vec<u64> {
        let scale = all.iter().filter(|record| record["kind"] == "scale" && record["measured"] == measured);
        scale.map(|record| record["ranks"].as_u64().unwrap()).collect()
    };
    assert_eq!((of(true), of(false)), (vec![1, 2, 4], vec![1, 2, 4]), "{all:?}");
    for point in all.iter().filter(|record| record["kind"] == "scale" && record["measured"] == true) {
        let ranks = point["ranks"].as_u64().unwrap();
        let exchange = (ranks > 1).then_some("native NCCL 2.30.3");
        assert_eq!(point["exchange"].as_str(), exchange, "{point}");
        assert!(point["time_us"].as_f64().unwrap() > 0.0 && point["exposed_us"].is_null(), "{point}");
        assert!(point["time_error_us"].as_f64().unwrap() >= 0.0 && point["efficiency"].is_f64(), "{point}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("fficiency") && page.contains("<svg"), "the page has no plot");
}

#[test]
fn ranks_on_cpus_measure_their_curve_too() {
    let config = config("digits-mlp.toml");
    let words = ["launch", "-n", "2", "--", "scale", "--config", &config, "--ranks", "1,2", "--steps", "4"];
    let text = said(&words);
    assert!(text.contains("measured in this job, a process per rank"), "{text}");
}
