//! Machines of one's own, and NCCL on machines: what is taken, refused and noted, and what the output says.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{allfold, folder, records, refused, said, says};
use std::fs;

const NODES: &str = "kind = \"nodes\"\ndevices = 4\nnics = 2\n[device]\nbandwidth = \"240 GB/s\"\nlatency = \"0.6 us\"\n[nic]\nbandwidth = \"200 Gb/s\"\nlatency = \"1.3 us\"\n";

/// The arguments of a simulation of NCCL on 16 ranks.
fn nccl(topology: &str) -> [&str; 12] {
    let [command, collective, size] = ["simulate", "all_reduce", "1M"];
    [command, collective, "--algo", "nccl", "--ranks", "16", "--topology", topology, "-b", size, "-e", size]
}

/// The error for a file of links contains the description of a machine with the file's nodes, for which NCCL can be simulated.
#[test]
fn a_file_of_links_is_answered_with_a_machine_that_works() {
    let folder = folder();
    let (links, machine) = (folder.path().join("own.toml"), folder.path().join("own.json"));
    fs::write(&links, NODES).unwrap();
    let line = refused(&nccl(links.to_str().unwrap()));
    let (from, to) = (line.find('{').unwrap(), line.find('}').unwrap());
    fs::write(&machine, &line[from..=to]).unwrap();
    let text = said(&nccl(machine.to_str().unwrap()));
    assert!(text.contains("# 4 x 4 A100 SXM, 2 NICs of 200 Gb/s InfiniBand a node"), "{text}");
}

/// If a description gives no speed of its NICs, a speed is assumed, and a note says so when the description is read.
#[test]
fn an_assumed_speed_of_nics_is_a_note_that_says_how_to_give_it() {
    let folder = folder();
    let path = folder.path().join("own.json");
    let notes = |nics: &str| {
        let machine = "\"gpu\": \"A100 SXM\", \"gpus_per_node\": 8, \"nodes\": 2, \"intra_node\": \"NVLink\"";
        fs::write(&path, format!("{{{machine}, \"inter_node\": \"{nics}\"}}")).unwrap();
        let output = allfold(&nccl(path.to_str().unwrap()));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        error.lines().filter(|line| line.starts_with("note: ")).map(String::from).collect::<Vec<_>>()
    };
    let unsaid = notes("8 NICs, Ethernet");
    let [line] = &unsaid[..] else { panic!("{unsaid:?}") };
    assert!(line.contains("does not say how fast a NIC is: NCCL's default is 10 Gb/s"), "{line}");
    assert!(line.contains("give both in `inter_node`, such as \"8x400Gb/s InfiniBand\""), "{line}");
    assert_eq!(notes("8x400Gb/s InfiniBand"), Vec::<String>::new());
}

/// Words of a description that have no effect are named with what was understood; NICs of two speeds are refused.
#[test]
fn words_that_are_not_understood_are_named_or_refused() {
    let folder = folder();
    let path = folder.path().join("own.json");
    let described = |inside: &str, nics: &str| {
        let machine = format!(
            "\"gpu\": \"A100 SXM\", \"gpus_per_node\": 8, \"nodes\": 2, \"intra_node\": \"{inside}\""
        );
        fs::write(&path, format!("{{{machine}, \"inter_node\": \"{nics}\"}}")).unwrap();
        path.to_str().unwrap().to_string()
    };
    let text = said(&nccl(&described("NVLink", "2x200Gb/s Infiniband bananas")));
    assert!(
        text.contains("# assumed: `bananas` in `inter_node`, ") && text.contains("understood: 2 NICs"),
        "{text}"
    );
    says(
        &nccl(&described("NVLink", "1x200Gb/s + 1x100Gb/s InfiniBand")),
        &["gives 2 speeds", "once, such as"],
    );
    says(
        &nccl(&described("bananas", "2x200Gb/s InfiniBand")),
        &["`intra_node` is \"bananas\"", "\"NVLink\""],
    );
}

#[test]
fn a_topology_without_a_machine_is_told_what_is_missing() {
    for topology in ["switch", "nodes8x4"] {
        let keys =
            ["`gpu`", "`gpus_per_node`", "`nodes`", "`intra_node`", "`inter_node`", "allfold machines"];
        says(&nccl(topology), &[&[&*format!("{topology} describes links")][..], &keys].concat());
    }
    says(&nccl("hgx-h1000"), &["no machine is called `hgx-h1000`; did you mean `hgx-h100`"]);
    // A file with a mistake is answered with its own error.
    says(&nccl("nowhere/own.toml"), &["nowhere/own.toml: there is no such file"]);
    let folder = folder();
    let path = folder.path().join("own.toml");
    fs::write(&path, NODES.replace("nics = 2", "nics = 3")).unwrap();
    says(&nccl(path.to_str().unwrap()), &["own.toml:1:8: ", "3 NICs"]);
}

/// NCCL decides from this file, which gives the GPU by its compute capability and its NVLinks.
#[test]
fn a_topology_file_of_nccl_is_the_machine_of_nccl_s_choice() {
    let gpu = |sm: &str, at: u32| {
        format!(
            "<pci busid=\"0000:0{at}:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"><gpu dev=\"{at}\" {sm}>\
             <nvlink target=\"0000:c0:00.0\" count=\"18\" tclass=\"0x068000\"/></gpu></pci>\
             <nic><net name=\"mlx5_{at}\" dev=\"{at}\" speed=\"400000\"/></nic>"
        )
    };
    let text = |sm: &str| {
        let gpus: String = (0..8).map(|at| gpu(sm, at)).collect();
        format!("<system version=\"1\"><cpu numaid=\"0\">{gpus}</cpu></system>")
    };
    let folder = folder();
    let path = folder.path().join("topo.xml");
    let file = path.to_str().unwrap();
    fs::write(&path, text("sm=\"90\"")).unwrap();
    let call = |topology: &str| {
        let call = ["simulate", "all_reduce", "--algo", "nccl", "--ranks", "16", "-b", "64M", "-e", "64M"];
        said(&[&call[..], &["--topology", topology]].concat())
    };
    let row = |text: &str| text.lines().find(|line| !line.starts_with('#')).unwrap().to_string();
    let own = call(file);
    assert!(own.contains("# 2 x 8 H100 SXM, 8 NICs of 400 Gb/s InfiniBand a node"), "{own}");
    assert!(own.contains("compute capability 90 with 18 NVLinks is taken as H100 SXM"), "{own}");
    assert_eq!(row(&own), row(&call("hgx-h100")), "the same machine by its name");
    for lacks in ["", "sm=\"61\""] {
        fs::write(&path, text(lacks)).unwrap();
        let line = refused(&nccl(file));
        assert!(
            line.contains("compute capability") && line.contains(",machine=") && !line.contains("A100"),
            "{line}"
        );
    }
    assert!(call(&format!("{file},machine=hgx-h200")).contains("# 2 x 8 H200, 8 NICs of 400 Gb/s"));
}

#[test]
fn what_nccl_does_not_run_on_or_with_is_answered_with_what_is_right() {
    let dgx = ["simulate", "all_reduce", "--ranks", "12", "--topology", "dgx-a100", "--algo", "nccl"];
    says(&dgx, &["12 ranks are not a whole number of nodes of 8; take a multiple of 8, or devices=N"]);
    let folder = folder();
    let path = folder.path().join("own.json");
    fs::write(&path, "{}").unwrap();
    let own =
        ["simulate", "all_reduce", "--ranks", "4", "--algo", "ring", "--topology", path.to_str().unwrap()];
    says(&own, &["own.json: a JSON file describes a machine for `allfold simulate --algo nccl` alone"]);
    let right = ["`allfold simulate`", "`allfold bench --backend nccl`"];
    says(&["scale", "collective", "all_reduce", "--algo", "nccl", "--ranks", "8"], &right);
    says(&["bench", "all_reduce", "--backend", "threads", "--ranks", "2", "--algo", "nccl"], &right);
}

/// GPUs are named in the form factors in which they are made.
#[test]
fn a_gpu_in_a_form_factor_in_which_it_is_not_made_is_refused() {
    let folder = folder();
    let path = folder.path().join("own.json");
    let described = |gpu: &str| {
        let text =
            format!("{{\"gpu\": \"{gpu}\", \"gpus_per_node\": 16, \"nodes\": 1, \"intra_node\": \"PCIe\"}}");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    says(&nccl(&described("T4 SXM")), &["`T4 SXM`", "write `T4` or `T4 PCIe`"]);
    said(&nccl(&described("T4 PCIe")));
    let scale = ["scale", "workload", "resnet18", "--topology", "pcie8", "--ranks", "1", "--accelerator"];
    says(&[&scale[..], &["T4 SXM"]].concat(), &["write `T4` or `T4 PCIe`"]);
    said(&[&scale[..], &["T4 PCIe"]].concat());
}

/// Each time that `simulate --algo nccl` prints is explained in the output.
#[test]
fn the_three_times_of_nccl_have_a_legend() {
    let call = [
        "simulate",
        "all_reduce",
        "--topology",
        "dgx-a100",
        "--ranks",
        "16",
        "--algo",
        "nccl",
        "-b",
        "1M",
        "-e",
        "1M",
    ];
    let text = said(&call);
    for word in ["# Three predictions. Table: ", "physical: ", "README's table of accuracy", "closed-form: "]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// A fat tree of one pod limits nothing, and a note says so.
#[test]
fn a_fat_tree_of_one_pod_is_a_note() {
    let call =
        ["simulate", "all_reduce", "--algo", "ring", "--ranks", "64", "-b", "1M", "-e", "1M", "--topology"];
    for (pod, noted) in [("", true), (",pod=4", false)] {
        let machine = format!("dgx-a100:16,devices=4,nics=2,fat-tree=2:1{pod}");
        let output = allfold(&[&call[..], &[&machine]].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(error.contains("the fat tree limits nothing; give pod=16"), noted, "{error}");
    }
}

/// NCCL composes an all-to-all of sends and receives, which the model predicts.
#[test]
fn an_all_to_all_by_nccl_is_predicted() {
    let flags = ["simulate", "all_to_all", "--topology", "hgx-h100", "--ranks", "8", "--algo", "nccl"];
    let all = records(&[&flags[..], &["-b", "1G", "-e", "1G"]].concat());
    let call = all.iter().find(|record| record["kind"] == "collective").unwrap();
    assert_eq!(call["algorithm"], "NCCL sends and receives/Simple");
    // Below the 371 GB/s of a GPU's links; H100s of one host were measured at 320 (aiconfigurator, NCCL 2.23, 512 MiB).
    let busbw = call["busbw_gbps"].as_f64().unwrap();
    assert!((240.0..371.0).contains(&busbw), "{busbw} GB/s");
}
