use super::*;
use crate::{BytesPerSec, LinkId, Picos, Rank};

const NODES: &str = "kind = \"nodes\"\ndevices = 8\nnics = 4\n[device]\nbandwidth = \"300 GB/s\"\nlatency = \"0.6 us\"\n[nic]\nbandwidth = \"25 GB/s\"\nlatency = \"2.7 us\"\n";

fn error(text: &str) -> String {
    Topology::from_toml("t.toml", text, 4).unwrap_err().to_string()
}

#[test]
fn nodes_are_the_built_in_ones_with_the_costs_of_the_file() {
    let text = format!("{NODES}[costs]\noverhead = \"0.5 us\"\nmemory = \"2000 GB/s\"\n");
    let (read, built) = (Topology::from_toml("t.toml", &text, 64), Topology::named("nodes8x4", 64).unwrap());
    let read = read.unwrap();
    assert_eq!(read.families(), built.families());
    assert_eq!(read.costs().overhead, Picos(500_000));
    assert_eq!(read.costs().memory, Some(BytesPerSec(2_000_000_000_000)));
    assert_eq!(read.costs().launch, built.costs().launch);
}

#[test]
fn a_graph_joins_ranks_and_switches_both_ways() {
    let text = "kind = \"graph\"\nswitches = [\"leaf\"]\n[[link]]\nfrom = [0, 1, 2, 3]\nto = \"leaf\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n";
    let topology = Topology::from_toml("t.toml", text, 4).unwrap();
    let mut path = Vec::new();
    topology.route(Rank(3), Rank(1), &mut path);
    let names: Vec<String> = path.iter().map(|link: &LinkId| topology.link_name(*link)).collect();
    assert_eq!(names, ["rank3>leaf[0]", "leaf>rank1[0]"]);
    assert_eq!(topology.graph.as_ref().unwrap().ports(4), (25_000_000_000, 100_000_000_000));
}

#[test]
fn what_is_wrong_is_said_with_line_and_column() {
    assert!(
        error("kind = \"swich\"")
            .starts_with("t.toml:1:8: no kind of topology is called `swich`; did you mean `switch`?")
    );
    let error_in = |from: &str, to: &str| error(&NODES.replace(from, to));
    assert!(error_in("nics = 4", "nicks = 4").starts_with("t.toml:3:1: unknown field `nicks`"));
    assert!(error_in("nics = 4", "nics = 3").contains("cannot share 3 NICs evenly"));
    assert!(error_in("nics = 4", "nics = = 3").starts_with("t.toml:3:8"));
    assert!(
        error_in("latency = \"0.6 us\"", "latency = \"-1 us\"")
            .starts_with("t.toml:6:11: `-1 us` is not a possible time")
    );
    assert!(
        error_in("bandwidth = \"25 GB/s\"", "bandwidth = \"0 GB/s\"")
            .starts_with("t.toml:8:13: `0 GB/s` is not a possible bandwidth")
    );
    assert!(error_in("devices = 8", "").contains("needs devices"));
    assert!(error_in("kind = \"nodes\"", "kind = \"nodes\"\nranks = 8").contains("joins 8 ranks, not 4"));
    assert!(error_in("\"nodes\"", "\"switch\"").contains("has no `devices`"));
    let graph = "kind = \"graph\"\nswitches = [\"leaf\"]\n[[link]]\nfrom = 9\nto = \"leaf\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n";
    assert!(error(graph).starts_with("t.toml:4:8: rank 9 does not exist"));
    assert!(
        error(&graph.replace("9", "0").replace("to = \"leaf\"", "to = \"leef\""))
            .contains("did you mean `leaf`?")
    );
    assert!(error(&graph.replace("9", "0")).contains("no links lead from rank 1 to rank 0"));
}

/// A typing error, a key of another program, a list of NICs and a range of ranks are answered with what to write.
#[test]
fn what_others_write_is_answered_with_what_is_written_here() {
    let with = |line: &str| error(&NODES.replace("nics = 4", line));
    assert!(with("nodes = 12").contains("unknown field `nodes`; there are as many nodes as the ranks need"));
    assert!(with("nic_count = 4").contains("; did you mean `nics`? (there are kind, "));
    assert!(
        error(&NODES.replace("bandwidth = \"25", "bandwith = \"25")).contains("did you mean `bandwidth`?")
    );
    let nics = format!(
        "{}[[nic]]\nbandwidth = \"12 GB/s\"\nlatency = \"1 us\"\n",
        NODES.replace("[nic]", "[[nic]]")
    );
    let said = error(&nics);
    assert!(said.contains("write [nic] once") && said.contains("kind = \"graph\""), "{said}");
    let graph = |switches: &str, from: &str| {
        error(&format!(
            "kind = \"graph\"\nswitches = {switches}\n[[link]]\nfrom = {from}\nto = \"leaf\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n"
        ))
    };
    let said = graph("[\"leaf\"]", "\"0-3\"");
    assert!(said.starts_with("t.toml:4:8: ") && said.contains("as a list such as [0, 1, 2, 3]"), "{said}");
    assert!(graph("[\"leaf\", \"leaf\"]", "[0, 1, 2, 3]").contains("two switches are called `leaf`"));
}

/// A graph has a name for each link: the error lists eight of them, and suggests one of all.
#[test]
fn a_link_that_a_graph_does_not_have_is_answered_with_the_nearest() {
    let text = "kind = \"graph\"\nswitches = [\"leaf\"]\n[[link]]\nfrom = [0, 1, 2, 3, 4, 5, 6, 7]\nto = \"leaf\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n";
    let topology = Topology::from_toml("t.toml", text, 8).unwrap();
    let said = topology.find_link("rank7>laef[0]").unwrap_err().to_string();
    assert!(said.contains("did you mean `rank7>leaf`?") && said.contains(" and 8 more"), "{said}");
    let said = topology.find_link("up0").unwrap_err().to_string();
    assert!(said.contains("such as rank0>leaf[0]"), "{said}");
    for (link, example) in [("up0", "such as rank0>leaf[0]"), ("rank7>leaf", "such as rank7>leaf[0]")] {
        let rule = format!("slow_link={link}:x10");
        let said = crate::Faults::parse([rule.as_str()], &topology).unwrap_err().to_string();
        assert!(said.contains(example) && !said.contains("up[0]"), "{said}");
    }
}

#[test]
fn a_number_without_a_unit_is_refused_with_both_readings() {
    let bare = NODES.replace("\"25 GB/s\"", "200");
    assert_eq!(
        error(&bare),
        "t.toml:8:13: `200` has no unit; write \"200 GB/s\" (1600 Gb/s) or \"200 Gb/s\" (25 GB/s)"
    );
    let bare = NODES.replace("\"2.7 us\"", "2.7");
    assert!(error(&bare).starts_with("t.toml:9:11: `2.7` has no unit; write for example \"2.7 us\""));
    let bits = NODES.replace("25 GB/s", "200 Gb/s");
    let families = |text: &str| Topology::from_toml("t.toml", text, 4).unwrap().families().to_vec();
    assert_eq!(families(&bits), families(NODES));
}

#[test]
fn the_files_that_the_documents_show_are_read() {
    let page = include_str!("../../../../docs/TOPOLOGY.md");
    let files: Vec<&str> =
        page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(files.len(), 3);
    files.iter().for_each(|text| drop(Topology::from_toml("own.toml", text, 4).unwrap()));
    let bare = files[0].replace("\"200 Gb/s\"", "200");
    let said = Topology::from_toml("own.toml", &bare, 4).unwrap_err().to_string();
    assert!(page.contains(&said), "{said}");
}

#[test]
fn a_file_that_is_not_there_is_an_error_with_its_name() {
    let error = Topology::named("nowhere/t.toml", 4).unwrap_err().to_string();
    assert!(error.starts_with("nowhere/t.toml: "), "{error}");
}

/// A user's own GPU is a device by its name; a known GPU may be named. What is wrong is said at the table's line.
#[test]
fn a_file_names_or_describes_its_gpu() {
    let gpu = |text: &str| File::read(text).and_then(|file| file.gpu());
    let own = |rest: &str| {
        format!("{NODES}[gpu]\nname = \"Own X7\"\nf32 = 80\nf16 = 1200.0\nmemory = \"4 TB/s\"\n{rest}")
    };
    let read = gpu(&own("capacity = 96\n")).ok().flatten().unwrap();
    assert_eq!((&*read.name, read.tf32, read.efficiency), ("Own X7", None, 0.4));
    let device = crate::Device::named("own x7_f32").unwrap();
    assert_eq!(
        (device.name, device.peak, device.memory.0),
        ("ownx7_f32", 80_000_000_000_000, 4_000_000_000_000)
    );
    let again = gpu(&own("capacity = 96\n")).ok().flatten().unwrap();
    assert!(std::ptr::eq(read, again), "the same GPU is kept once");
    let known = gpu(&format!("gpu = \"h200\"\n{NODES}")).ok().flatten().unwrap();
    assert_eq!(known.name, "H200");
    for (text, says) in [
        (own(""), "10:1: gpu: missing field `capacity`"),
        (own("capacity = 0\n"), "gpu: capacity = 0 is not possible; give 0.001 to 1000000"),
        (own("capacity = 96\nnvlinks = 3\n"), "gpu: unknown field `nvlinks`"),
        (own("capacity = 96\n").replace("Own X7", "H100"), "`H100` is a GPU that Allfold knows"),
        (own("capacity = 96\n").replace("Own X7", "../x"), "`../x` is no name of a GPU"),
        (own("capacity = 96\n").replace("\"4 TB/s\"", "4"), "`4` has no unit; write \"4 GB/s\""),
        (format!("gpu = \"H10\"\n{NODES}"), "1:7: gpu: device: no GPU is called `H10`"),
    ] {
        let said = Topology::from_toml("own.toml", &text, 8).unwrap_err().to_string();
        assert!(said.starts_with("own.toml:") && said.contains(says), "{text}: {said}");
    }
}
