use super::*;
use crate::{BytesPerSec, Rank};
use std::path::PathBuf;

fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    path.display().to_string()
}

fn nccl(name: &str, machine: &str) -> NcclTopology {
    let path = fixture(&format!("nccl/{name}"));
    let preset = (!machine.is_empty()).then(|| Preset::named(machine).unwrap());
    NcclTopology::read(name, &load(&path).unwrap(), preset.as_ref()).unwrap()
}

#[test]
fn every_file_that_clouds_publish_is_read_and_says_what_it_lacks() {
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
        let read = nccl(name, machine);
        assert_eq!(read.node.devices, devices, "{name}");
        let port = read.node.nvlink_gbps(0);
        assert!((port - nvlink).abs() < 1e-9, "{name}: {port} GB/s of NVLink");
        assert_eq!(read.node.network_gbps(), network, "{name}");
        assert_eq!(read.notes.len(), notes, "{name}: {:#?}", read.notes);
        for ranks in [devices, 3 * devices] {
            let file = fixture(&format!("nccl/{name}"));
            let text = if machine.is_empty() { file } else { format!("{file},machine={machine}") };
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
fn a_file_completed_from_its_machine_has_the_figures_of_the_machine() {
    for (name, machine) in [
        ("Azure_azhpc-images__ndv4-topo.xml", "nd-a100-v4"),
        ("Azure_azhpc-images__ndv5-topo.xml", "nd-h100-v5"),
        ("aws_aws-ofi-nccl__p4d-24xl-topo.xml", "p4d"),
    ] {
        let (read, named) = (
            Topology::named(&format!("{},machine={machine}", fixture(&format!("nccl/{name}"))), 32).unwrap(),
            Topology::named(machine, 32).unwrap(),
        );
        let ports = |topology: &Topology| {
            let families = topology.families().iter();
            families.map(|f| (f.name.clone(), f.block, f.link.latency.0)).collect::<Vec<_>>()
        };
        assert_eq!(ports(&read), ports(&named), "{name}");
        assert_eq!(read.families()[0], named.families()[0], "{name}");
    }
    let error =
        Topology::named(&format!("{},machine=dgx2", fixture("nccl/Azure_azhpc-images__ndv4-topo.xml")), 8);
    assert!(error.unwrap_err().to_string().contains("8 GPUs; dgx2 has 16"));
}

#[test]
fn a_dump_of_an_h100_node_is_the_preset() {
    let (dump, preset) = (nccl("oracle_oci-hpc__H100-topology.xml", ""), Preset::named("hgx-h100").unwrap());
    let node = preset.node(&Spec::read("hgx-h100").unwrap()).unwrap();
    assert_eq!(dump.node.bisection_gbps(), node.bisection_gbps());
    // Two ports of a card each: 16 of 180 Gb/s as the file says, two for each GPU.
    let topology = dump.node.topology(16, crate::machines::node::Fabrics::FLAT).unwrap();
    let nic = topology.families().iter().find(|family| family.name == "nic_out").unwrap();
    assert_eq!((nic.count, nic.link.bandwidth), (16, BytesPerSec(45_000_000_000)));
}

#[test]
fn gh200s_talk_over_the_links_between_each_pair() {
    let read = nccl("magnate3_custom_allreduce_system.xml", "");
    let preset = Preset::named("gh200x4").unwrap();
    let node = preset.node(&Spec::read("gh200x4").unwrap()).unwrap();
    assert!((read.node.bisection_gbps() - node.bisection_gbps()).abs() < 1e-9);
    let topology = read.node.topology(4, crate::machines::node::Fabrics::FLAT).unwrap();
    let mut path = Vec::new();
    topology.route(Rank(0), Rank(3), &mut path);
    assert_eq!(path.len(), 1);
    assert!((topology.link(path[0]).bandwidth.as_gb() - 6.0 * 20.6).abs() < 1e-6);
}

#[test]
fn a_graph_gives_orders_channels_and_round_figures() {
    let text = load(&fixture("nccl/Azure_azhpc-images__ncv4-graph.xml")).unwrap();
    let read = NcclGraphs::read("graph.xml", &text).unwrap();
    assert_eq!(read.graphs.iter().map(|graph| graph.id).collect::<Vec<_>>(), [0, 1, 2]);
    let rings = read.rings().unwrap();
    assert_eq!(rings.channels, [[0, 1, 2, 3], [0, 3, 2, 1]]);
    assert_eq!((rings.bandwidth_gbps(), &*rings.inside, rings.same_channels), (24.0, "SYS", false));
    assert_eq!(read.graphs[1].pattern, Pattern::BalancedTree);
    assert_eq!(read.graphs[1].bandwidth_gbps(), 48.0);
    for (from, to, said) in [
        ("<gpu dev=\"1\"/>", "<gpu dev=\"0\"/>", "graph.xml:3:5: the channel visits GPU 0 twice"),
        ("nchannels=\"2\"", "nchannels=\"3\"", "graph.xml:2:3: nchannels=\"3\"; the graph has 2 channels"),
        ("pattern=\"4\"", "pattern=\"9\"", "graph.xml:2:3: <graph> has pattern=\"9\"; expected 1 to 6"),
        ("version=\"1\"", "version=\"2\"", "graph.xml:1:1: <graphs> has version=\"2\"; expected 1 to 1"),
        ("<graphs", "<grafs", "expected <graphs>"),
    ] {
        let error = NcclGraphs::read("graph.xml", &text.replacen(from, to, 1)).unwrap_err().to_string();
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
    assert!(said("[ 50.0 ]", "[ -1 ]").starts_with("n.yml:3:14: -1 GB/s is no bandwidth"));
    assert!(said("[ 500.0 ]", "[ 1, 2 ]").contains("`latency` has 2 entries and `topology` 1"));
    assert!(said("latency", "delay").contains("expected topology, npus_count, bandwidth and latency"));
    assert!(said("[ 8 ]", "[ 8 ").starts_with("n.yml:"));
}

#[test]
fn what_is_wrong_with_an_xml_is_said_with_its_place() {
    let good = "<system version=\"1\">\n  <cpu numaid=\"0\">\n    <pci busid=\"0:1\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\">\n      <gpu dev=\"0\" sm=\"80\"><nvlink target=\"0:2\" count=\"12\" tclass=\"0x030200\"/></gpu>\n    </pci>\n  </cpu>\n</system>\n";
    assert!(NcclTopology::read("t.xml", good, None).is_ok());
    for (from, to, said) in [
        ("version=\"1\"", "version=\"7\"", "t.xml:1:1: <system> has version=\"7\"; expected 1 to 1"),
        ("<cpu numaid=\"0\">", "<cpu numaid=\"x\">", "t.xml:2:3: <cpu> has numaid=\"x\""),
        ("16 GT/s", "17 GT/s", "t.xml:3:5: <pci> has link_speed=\"17 GT/s\"; expected 2.5, 5, 8"),
        (" busid=\"0:1\"", "", "t.xml:3:5: <pci> has no `busid`"),
        ("count=\"12\"", "count=\"4294967295\"", "<nvlink> has count=\"4294967295\"; expected 1 to 1024"),
        ("</pci>", "</cpi>", "t.xml:5:"),
        ("</system>", "", "is never closed"),
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
    let deep = format!("<system version=\"1\">{}", "<cpu>".repeat(100));
    let error = NcclTopology::read("t.xml", &deep, None).unwrap_err().to_string();
    assert!(error.contains("nested more than 64 deep"), "{error}");
    let none =
        NcclTopology::read("t.xml", "<system version=\"1\"><cpu/></system>", None).unwrap_err().to_string();
    assert!(none.contains("name the machine"), "{none}");
}
