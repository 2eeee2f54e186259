use super::*;
use crate::machines::node::Fabrics;
use crate::{BytesPerSec, Rank};
use std::path::PathBuf;

/// The path of a file in this crate's `fixtures` folder.
fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    path.display().to_string()
}

/// The folder of public topology files in the data that `ALLFOLD_DATA` names; `None`, with a line that says so, if `ALLFOLD_DATA`
/// names no such folder.
fn public_files() -> Option<PathBuf> {
    let folder = std::env::var_os("ALLFOLD_DATA").map(|data| PathBuf::from(data).join("topo"));
    if folder.as_ref().is_none_or(|folder| !folder.is_dir()) {
        println!("SKIP: ALLFOLD_DATA names no folder with `topo` in it, the public topology files of clouds");
        return None;
    }
    folder
}

/// The XML of a node with two sockets as NCCL dumps it: `gpus` GPUs with the text of `inside` in each `<gpu>`, and a NIC next to
/// each GPU.
fn dump(gpus: u32, sm: u32, inside: impl Fn(u32) -> String) -> String {
    let mut text = String::from("<system version=\"1\">\n");
    for socket in 0..2 {
        text += &format!("<cpu numaid=\"{socket}\" arch=\"x86_64\" vendor=\"AuthenticAMD\">\n");
        for gpu in socket * gpus / 2..(socket + 1) * gpus / 2 {
            let pci = "link_speed=\"32 GT/s\" link_width=\"16\"";
            text += &format!("<pci busid=\"{gpu}:0\" class=\"0x060400\" {pci}>\n");
            text += &format!("<pci busid=\"{gpu}:1\" class=\"0x030200\" {pci}>");
            text += &format!("<gpu dev=\"{gpu}\" sm=\"{sm}\">{}</gpu></pci>\n", inside(gpu));
            let net = format!("<nic><net dev=\"{gpu}\" speed=\"200000\"/></nic>");
            text += &format!("<pci busid=\"{gpu}:2\" class=\"0x020700\" {pci}>{net}</pci>\n</pci>\n");
        }
        text += "</cpu>\n";
    }
    text + "</system>\n"
}

/// The XML of a node as cloud providers write it: eight GPUs and eight NICs on PCI Express, without elements inside them.
fn listed() -> String {
    let mut text = String::from("<system version=\"1\">\n");
    for socket in 0..4 {
        text += &format!("<cpu numaid=\"{socket}\" arch=\"x86_64\" vendor=\"AuthenticAMD\">\n");
        let pci = "link_speed=\"16 GT/s\" link_width=\"16\"";
        text += &format!("<pci busid=\"s{socket}\" class=\"0x060400\" {pci}>\n");
        for device in [2 * socket, 2 * socket + 1] {
            text += &format!("<pci busid=\"{device}:1\" class=\"0x030200\" {pci}/>\n");
            text += &format!("<pci busid=\"{device}:2\" class=\"0x020700\" {pci}/>\n");
        }
        text += "</pci>\n</cpu>\n";
    }
    text + "</system>\n"
}

fn read(text: &str, machine: &str) -> Result<NcclTopology> {
    let preset = (!machine.is_empty()).then(|| Preset::named(machine).unwrap());
    NcclTopology::read("own.xml", text, preset.as_ref())
}

#[test]
fn every_file_that_clouds_publish_is_read_and_says_what_it_lacks() {
    let Some(folder) = public_files() else { return };
    for (name, machine, devices, nvlink, network, notes) in [
        ("Azure_azhpc-images__ndv2-topo.xml", "ndv2", 8, 120.0, 12.5, 3),
        ("Azure_azhpc-images__ndv4-topo.xml", "nd-a100-v4", 8, 240.0, 200.0, 3),
        ("Azure_azhpc-images__ndv5-topo.xml", "nd-h100-v5", 8, 370.8, 400.0, 3),
        ("Azure_azhpc-images__ncv4-topo.xml", "ncv4", 4, 240.0, 12.5, 3),
        ("aws_aws-ofi-nccl__p4d-24xl-topo.xml", "p4d", 8, 240.0, 50.0, 3),
        ("aws_aws-ofi-nccl__p4de-24xl-topo.xml", "p4d", 8, 240.0, 50.0, 3),
        ("aws_aws-ofi-nccl__g5.48xl-topo.xml", "g5", 8, 0.0, 12.5, 1),
        ("aws_aws-ofi-nccl__p5.48xl-topo.xml", "p5", 8, 370.8, 400.0, 1),
        ("oracle_oci-hpc__H100-topology.xml", "", 8, 370.8, 360.0, 0),
        ("magnate3_custom_allreduce_system.xml", "", 4, 370.8, 100.0, 0),
        ("magnate3_nccl_topo.xml", "", 4, 60.0, 100.0, 1),
    ] {
        let file = folder.join(name).display().to_string();
        let read = read(&load(&file).unwrap(), machine).unwrap();
        assert_eq!(read.node.devices, devices, "{name}");
        let port = read.node.nvlink_gb_per_s(0);
        assert!((port - nvlink).abs() < 1e-9, "{name}: {port} GB/s of NVLink");
        assert_eq!(read.node.network_gb_per_s(), network, "{name}");
        assert_eq!(read.notes.len(), notes, "{name}: {:#?}", read.notes);
        for ranks in [devices, 3 * devices] {
            let text = if machine.is_empty() { file.clone() } else { format!("{file},machine={machine}") };
            let topology = Topology::named(&text, ranks).unwrap();
            assert_eq!(topology.notes().len(), notes);
            for (from, to) in (0..ranks).flat_map(|a| (0..ranks).map(move |b| (a, b))) {
                let mut path = Vec::new();
                topology.route(Rank(from), Rank(to), &mut path);
                assert_eq!(path.is_empty(), from == to, "{name}");
            }
        }
    }
}

#[test]
fn what_clouds_and_clusters_publish_is_the_machine_of_that_name() {
    let Some(folder) = public_files() else { return };
    for (name, machine) in [
        ("Azure_azhpc-images__ndv4-topo.xml", "nd-a100-v4"),
        ("Azure_azhpc-images__ndv5-topo.xml", "nd-h100-v5"),
        ("aws_aws-ofi-nccl__p4d-24xl-topo.xml", "p4d"),
    ] {
        same_figures(&load(&folder.join(name).display().to_string()).unwrap(), machine);
    }
    let dumped = |name: &str, machine: &str| {
        let node = read(&load(&folder.join(name).display().to_string()).unwrap(), "").unwrap().node;
        let preset = Preset::named(machine).unwrap().node(&Spec::read(machine).unwrap()).unwrap();
        assert!((node.bisection_gb_per_s() - preset.bisection_gb_per_s()).abs() < 1e-9, "{name}");
        node
    };
    let h100 = dumped("oracle_oci-hpc__H100-topology.xml", "hgx-h100");
    // Each card has two ports: the file has 16 ports of 180 Gb/s, two for each GPU.
    let topology = h100.topology(16, Fabrics::FLAT).unwrap();
    let nic = topology.families().iter().find(|family| family.name == "nic_out").unwrap();
    assert_eq!((nic.count, nic.link.bandwidth), (16, BytesPerSec(45_000_000_000)));
    dumped("magnate3_custom_allreduce_system.xml", "gh200x4");
}

#[test]
fn graphs_that_nccl_found_on_a_public_machine_are_read() {
    let Some(folder) = public_files() else { return };
    let text = load(&folder.join("Azure_azhpc-images__ncv4-graph.xml").display().to_string()).unwrap();
    let read = NcclGraphs::read("graph.xml", &text).unwrap();
    assert_eq!(read.graphs.iter().map(|graph| graph.id).collect::<Vec<_>>(), [0, 1, 2]);
    let rings = read.rings().unwrap();
    assert_eq!(rings.channels, [[0, 1, 2, 3], [0, 3, 2, 1]]);
    assert_eq!((rings.bandwidth_gb_per_s(), &*rings.inside, rings.same_channels), (24.0, "SYS", false));
    assert_eq!(read.graphs[1].pattern, GraphPattern::BalancedTree);
    assert_eq!(read.graphs[1].bandwidth_gb_per_s(), 48.0);
}

/// Checks that a file completed from a machine has the link families and the NVLinks of that machine.
fn same_figures(text: &str, machine: &str) {
    let spec = Spec::read(machine).unwrap();
    let (read, named) = (
        read(text, machine).unwrap().node.topology(32, spec.fabrics).unwrap(),
        Topology::named(machine, 32).unwrap(),
    );
    let ports = |topology: &Topology| {
        let families = topology.families().iter();
        families.map(|f| (f.name.clone(), f.block, f.link.latency.0)).collect::<Vec<_>>()
    };
    assert_eq!(ports(&read), ports(&named), "{machine}");
    assert_eq!(read.families()[0], named.families()[0], "{machine}");
}

#[test]
fn a_file_completed_from_its_machine_has_the_figures_of_the_machine() {
    same_figures(&listed(), "nd-a100-v4");
    let completed = read(&listed(), "nd-a100-v4").unwrap();
    assert_eq!((completed.node.nvlink_gb_per_s(0), completed.node.network_gb_per_s()), (240.0, 200.0));
    assert_eq!(completed.notes.len(), 3, "{:#?}", completed.notes);
    let error = read(&listed(), "dgx2").unwrap_err().to_string();
    assert!(error.contains("8 GPUs; dgx2 has 16"), "{error}");
}

#[test]
fn a_dump_of_a_node_with_nvlink_switches_is_the_preset() {
    // The node has 18 links of 20.6 GB/s from each GPU into switches, like an H100 node.
    let text = dump(8, 90, |_| "<nvlink target=\"ffff:1\" count=\"18\" tclass=\"0x068000\"/>".into());
    let dump = read(&text, "").unwrap();
    assert_eq!(dump.notes, Vec::<String>::new());
    let node = Preset::named("hgx-h100").unwrap().node(&Spec::read("hgx-h100").unwrap()).unwrap();
    assert_eq!(dump.node.bisection_gb_per_s(), node.bisection_gb_per_s());
    let topology = dump.node.topology(16, Fabrics::FLAT).unwrap();
    let nic = topology.families().iter().find(|family| family.name == "nic_out").unwrap();
    assert_eq!((nic.count, nic.link.bandwidth), (16, BytesPerSec(25_000_000_000)));
}

#[test]
fn gpus_talk_over_the_links_between_each_pair() {
    // The node has six links between any two of four GPUs, like a GH200 node.
    let text = dump(4, 90, |gpu| {
        let others = (0..4).filter(|other| *other != gpu);
        let link = |other| format!("<nvlink target=\"{other}:1\" count=\"6\" tclass=\"0x030200\"/>");
        others.map(link).collect()
    });
    let read = read(&text, "").unwrap();
    let node = Preset::named("gh200x4").unwrap().node(&Spec::read("gh200x4").unwrap()).unwrap();
    assert!((read.node.bisection_gb_per_s() - node.bisection_gb_per_s()).abs() < 1e-9);
    let topology = read.node.topology(4, Fabrics::FLAT).unwrap();
    let mut path = Vec::new();
    topology.route(Rank(0), Rank(3), &mut path);
    assert_eq!(path.len(), 1);
    assert!((topology.link(path[0]).bandwidth.as_gb() - 6.0 * 20.6).abs() < 1e-6);
}

/// An NCCL graph file with two graphs over four GPUs: rings in both directions, and one tree.
const GRAPH: &str = r#"<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="12" speedinter="12" typeintra="SYS" typeinter="PIX" samechannels="0">
    <channel>
      <gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><gpu dev="3"/>
    </channel>
    <channel>
      <gpu dev="0"/><gpu dev="3"/><gpu dev="2"/><gpu dev="1"/>
    </channel>
  </graph>
  <graph id="1" pattern="1" crossnic="0" nchannels="1" speedintra="20" speedinter="20" typeintra="NVL" typeinter="PIX" samechannels="1">
    <channel>
      <gpu dev="2"/><gpu dev="0"/><gpu dev="1"/><gpu dev="3"/>
    </channel>
  </graph>
</graphs>
"#;

#[test]
fn a_graph_gives_orders_channels_and_round_figures() {
    let read = NcclGraphs::read("graph.xml", GRAPH).unwrap();
    assert_eq!(read.graphs.iter().map(|graph| graph.id).collect::<Vec<_>>(), [0, 1]);
    let rings = read.rings().unwrap();
    assert_eq!(rings.channels, [[0, 1, 2, 3], [0, 3, 2, 1]]);
    assert_eq!((rings.bandwidth_gb_per_s(), &*rings.inside, rings.same_channels), (24.0, "SYS", false));
    assert_eq!(read.graphs[1].pattern, GraphPattern::BalancedTree);
    assert_eq!(read.graphs[1].bandwidth_gb_per_s(), 20.0);
    for (from, to, said) in [
        ("<gpu dev=\"1\"/>", "<gpu dev=\"0\"/>", "graph.xml:3:5: the channel visits GPU 0 twice"),
        ("nchannels=\"2\"", "nchannels=\"3\"", "graph.xml:2:3: nchannels=\"3\"; the graph has 2 channels"),
        ("pattern=\"4\"", "pattern=\"9\"", "graph.xml:2:3: <graph> has pattern=\"9\"; expected 1 to 6"),
        ("version=\"1\"", "version=\"2\"", "graph.xml:1:1: <graphs> has version=\"2\"; expected 1 to 1"),
        ("<graphs", "<grafs", "expected <graphs>"),
    ] {
        let error = NcclGraphs::read("graph.xml", &GRAPH.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(said) || (to == "<grafs" && error.contains("graph.xml:")), "{error}");
    }
}

#[test]
fn an_astra_network_is_in_gib_per_second() {
    let topology = Topology::named(&fixture("astra/ring8.yml"), 8).unwrap();
    assert_eq!(topology.families()[0].link.bandwidth.0, 50 << 30);
    assert_eq!(topology.families()[0].link.latency.0, 500_000);
    assert!(topology.notes()[0].contains("GiB/s"));
    let three = Topology::named(&fixture("astra/three_levels.yml"), 16).unwrap();
    let hops = |from, to| {
        let mut path = Vec::new();
        three.route(Rank(from), Rank(to), &mut path);
        path.iter().map(|link| three.link(*link).bandwidth.0 >> 30).collect::<Vec<_>>()
    };
    assert_eq!(hops(0, 1), [200]);
    assert_eq!(hops(0, 6), [100]);
    assert_eq!(hops(0, 8), [50, 50]);
    let mut far = hops(0, 15);
    far.sort_unstable();
    assert_eq!(far, [50, 50, 100, 200]);
}

#[test]
fn what_is_wrong_with_a_yaml_is_said_with_its_place() {
    let good = "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n";
    let said =
        |from: &str, to: &str| astra::topology("n.yml", &good.replace(from, to), 8).unwrap_err().to_string();
    assert!(said("Ring", "Rink").starts_with("n.yml:1:13: `Rink` is no topology; expected Ring"));
    assert!(said("[ 8 ]", "[ 9 ]").contains("joins 9 NPUs, not 8 ranks"));
    assert!(said("[ 50.0 ]", "[ -1 ]").starts_with("n.yml:3:14: -1 GB/s is not a possible bandwidth"));
    assert!(said("[ 500.0 ]", "[ 1, 2 ]").contains("`latency` has 2 entries and `topology` 1"));
    assert!(said("latency", "delay").contains("expected topology, npus_count, bandwidth and latency"));
    assert!(said("[ 8 ]", "[ 8 ").starts_with("n.yml:"));
    assert_eq!(said("[ 50.0 ]", "[ fast ]"), "n.yml:3:14: `fast` in `bandwidth` is not a number of GB/s");
    assert_eq!(said("[ 8 ]", "8"), "n.yml:2:13: `npus_count` is no list");
    assert_eq!(said("[ 8 ]", "[ [ 8 ] ]"), "n.yml:2:15: `npus_count` has an entry that is no single value");
    assert_eq!(said("latency", "bandwidth"), "n.yml:4:1: has `bandwidth` twice");
    assert!(said(good, "").ends_with("ends early; expected topology, npus_count, bandwidth and latency"));
    assert!(said(good, "[ 1 ]").contains("is no mapping of names to lists; expected topology"));
    let more = format!("{good}---\n{good}");
    assert_eq!(said(good, &more), "n.yml:5:1: goes on after its mapping");
    assert!(said(good, &format!("{good}  : ]\n")).starts_with("n.yml:5:"));
    let passed_over = good.replace("npus", "more: { a: [ 1, { b: 2 } ], c: 3 }\nnpus");
    assert!(astra::topology("n.yml", &passed_over, 8).is_ok());
}

#[test]
fn what_is_wrong_with_an_xml_is_said_with_its_place() {
    let good = "<system version=\"1\">\n  <cpu numaid=\"0\">\n    <pci busid=\"0:1\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\">\n      <gpu dev=\"0\" sm=\"80\"><nvlink target=\"0:2\" count=\"12\" tclass=\"0x030200\"/></gpu>\n    </pci>\n  </cpu>\n</system>\n";
    assert!(NcclTopology::read("t.xml", good, None).is_ok());
    for (from, to, said) in [
        ("version=\"1\"", "version=\"7\"", "t.xml:1:1: <system> has version=\"7\"; expected 1 to 2"),
        ("<cpu numaid=\"0\">", "<cpu numaid=\"x\">", "t.xml:2:3: <cpu> has numaid=\"x\""),
        ("16 GT/s", "17 GT/s", "t.xml:3:5: <pci> has link_speed=\"17 GT/s\"; expected 2.5, 5, 8"),
        (" busid=\"0:1\"", "", "t.xml:3:5: <pci> has no `busid`"),
        ("count=\"12\"", "count=\"4294967295\"", "<nvlink> has count=\"4294967295\"; expected 1 to 1024"),
        ("</pci>", "</cpi>", "t.xml:5:"),
        ("</system>", "", "never closed"),
        ("<cpu", "<gpu", "t.xml:2:3: <gpu> in <system>; expected <cpu>"),
        ("0x030200\" link", "0x060400\" link", ""),
    ] {
        let bad =
            good.replacen(from, to, 1).replace("</cpu>", if to == "<gpu" { "</gpu>" } else { "</cpu>" });
        match NcclTopology::read("t.xml", &bad, None) {
            Err(error) => assert!(error.to_string().contains(said), "{to}: {error}"),
            Ok(read) => assert!(said.is_empty(), "{to} was read as {read:?}"),
        }
    }
    let deep = format!("<system version=\"1\">{}{}</system>", "<cpu>".repeat(100), "</cpu>".repeat(100));
    let error = NcclTopology::read("t.xml", &deep, None).unwrap_err().to_string();
    assert!(error.contains("nested more than 64 deep"), "{error}");
    let none =
        NcclTopology::read("t.xml", "<system version=\"1\"><cpu/></system>", None).unwrap_err().to_string();
    assert!(none.contains("name the machine"), "{none}");
}

/// The matrix of a node of eight cards that bridges join in pairs, with two NICs, as a terminal shows it.
fn matrix() -> String {
    let names = ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NIC1"];
    let relation = |a: usize, b: usize| match (a.min(b), a.max(b)) {
        (a, b) if a == b => " X",
        (0, 1) | (2, 3) => "NV12",
        (0, 4) | (2, 5) => "PXB",
        (0, 2) => "SYS",
        (a, b) if (a < 2 || a == 4) != (b < 2 || b == 4) => "SYS",
        _ => "NODE",
    };
    let mut text = format!("\u{1b}[4m\t{}\tCPU Affinity\tNUMA Affinity\u{1b}[0m\n", names.join("\t"));
    for (a, name) in names.iter().enumerate() {
        let cells: Vec<&str> = (0..names.len()).map(|b| relation(a, b)).collect();
        let ends = if a < 4 { format!("\t0-31\t{}", a / 2) } else { String::new() };
        text += &format!("{name}\t{}{ends}\n", cells.join("\t"));
    }
    text + "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n"
}

fn read_matrix(text: &str, spec: &str, gpu: &str) -> Result<NcclTopology> {
    smi_topo::read("topo.txt", text, GpuModel::called(gpu), &Spec::read(spec).unwrap())
}

#[test]
fn a_matrix_of_nvidia_smi_is_a_node() {
    let text = matrix();
    assert!(smi_topo::is_matrix(&text) && !smi_topo::is_matrix("GPU0 is hot"));
    let read = read_matrix(&text, ",nic-bandwidth=400Gb/s", "A100 PCIe").unwrap();
    assert_eq!((read.notes.len(), read.gpu.as_deref()), (0, Some("A100 PCIe")));
    let topology = read.node.topology(4, Fabrics::FLAT).unwrap();
    let path = |from, to| {
        let mut path = Vec::new();
        topology.route(Rank(from), Rank(to), &mut path);
        path.iter().map(|link| topology.link_name(*link)).collect::<Vec<_>>()
    };
    assert_eq!(path(0, 1), ["gpu0>gpu1[0]"]);
    assert_eq!(path(0, 3), ["gpu0>pci0[0]", "pci0>cpu0[0]", "cpu0>cpu1[0]", "cpu1>gpu3[0]"]);
    assert_eq!(read.node.nvlink_gb_per_s(0), 240.0);
    assert_eq!((read.node.nics.len(), read.node.network_gb_per_s()), (2, 100.0));
    // Without a GPU and a speed of NICs, both are assumed and said.
    assert_eq!(read_matrix(&text, "", "").unwrap().notes.len(), 3);
}

#[test]
fn eight_gpus_with_all_links_to_each_other_are_behind_switches() {
    let names: Vec<String> = (0..8).map(|gpu| format!("GPU{gpu}")).collect();
    let row = |a: usize| (0..8).map(|b| if a == b { "X" } else { "NV18" }).collect::<Vec<_>>().join(" ");
    let rows: Vec<String> =
        names.iter().enumerate().map(|(a, name)| format!("{name} {} 0-3 0", row(a))).collect();
    let read = read_matrix(&format!("{} CPU Affinity\n{}", names.join(" "), rows.join("\n")), "", "H100 SXM")
        .unwrap();
    assert!(read.node.places.iter().any(|place| place == "nvswitch"));
    assert!((read.node.nvlink_gb_per_s(7) - 370.8).abs() < 1e-9);
}

#[test]
fn a_matrix_that_is_cut_or_odd_is_refused_with_the_line() {
    for (from, to, says) in [
        ("SYS", "FAR", "`FAR` in the row of GPU0; expected X, NV1 to NV36"),
        ("GPU1\tNV12", "GPU7\tNV12", "topo.txt:3: a row of GPU7; expected the row of GPU1"),
        ("NIC1\tSYS", "# \tSYS", "expected the row of NIC1"),
    ] {
        let text = matrix().replacen(from, to, 1);
        let said = read_matrix(&text, "", "").unwrap_err().to_string();
        assert!(said.contains(says), "{from}: {said}");
    }
    let cut: String = matrix().lines().take(4).collect::<Vec<_>>().join("\n");
    assert!(read_matrix(&cut, "", "").unwrap_err().to_string().contains("ends before the row of GPU3"));
}

#[test]
fn xgmi_links_of_rccl_are_links() {
    for (gcn, class, gb_per_s, gpu) in [
        ("gfx942", "0x120000", 448.0, Some("MI300X")),
        ("908", "0x038000", 252.0, Some("MI100")),
        ("906", "0x038000", 168.0, None),
    ] {
        let text = dump(8, 304, |of| {
            let all = (0..8).filter(|other| *other != of);
            all.map(|other| format!("<xgmi target=\"{other}:1\" count=\"1\" tclass=\"{class}\"/>")).collect()
        });
        let text = text
            .replace("version=\"1\"", "version=\"2\"")
            .replace("0x030200", class)
            .replace("sm=\"304\"", &format!("sm=\"304\" gcn=\"{gcn}\""));
        let read = read(&text, "").unwrap();
        assert_eq!((read.node.devices, read.node.nics.len(), read.sm), (8, 8, None));
        assert_eq!((read.node.nvlink_gb_per_s(3), read.gpu.as_deref()), (gb_per_s, gpu), "{gcn}");
    }
}

#[test]
fn files_of_other_kinds_are_named_with_what_to_use() {
    for (text, says) in [
        ("<graphs version=\"1\"></graphs>", "NCCL's graph file"),
        ("<html></html>", "has <system> as its root"),
        ("8 0 16\n\n0 1 200Gbps 0.005ms 0\n", "network of ns-3 as ASTRA-sim takes it (8 nodes, 16 links)"),
        (
            "{\"dimensions-count\": 2, \"topologies-per-dim\": [\"Switch\", \"Ring\"], \"units-count\": [16, 4], \
             \"links-count\": [6, 2], \"link-latency\": [500, 700], \"link-bandwidth\": [25, 6.25]}",
            "`topology: [ Switch, Ring ]`, `npus_count: [ 16, 4 ]`, `bandwidth: [ 150, 12.5 ]` and `latency: [ 500, 700 ]`",
        ),
        ("{\"dimensions-count\": 2}", "ASTRA-sim 1"),
    ] {
        let said = refuse_foreign("net", text).unwrap_err().to_string();
        assert!(said.contains(says), "{text}: {said}");
    }
    for text in ["", "8", "{\"gpu\": \"H100\"}", "1 2 3\n4 5 6\n"] {
        assert!(refuse_foreign("net", text).is_ok(), "{text}");
    }
}
