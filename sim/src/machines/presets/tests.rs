use super::*;
use crate::machines::GpuModel;
use crate::{Rank, Topology};
use std::collections::BTreeMap;

fn node(name: &str) -> Node {
    Preset::named(name).unwrap().node(&Spec::read(name).unwrap()).unwrap()
}

#[test]
fn every_machine_is_read_has_sources_and_a_known_gpu() {
    for preset in Preset::all().unwrap() {
        assert!(GpuModel::all().iter().any(|gpu| gpu.name == preset.gpu), "{}: {}", preset.name, preset.gpu);
        assert!(preset.sources().iter().all(|source| source.len() > 30), "{}", preset.name);
        assert!(!preset.title.is_empty());
        fabric::named(&preset.nics.fabric).unwrap();
        if let Some(nvlink) = &preset.nvlink {
            assert!(nvlink.bandwidth <= nvlink.datasheet, "{}", preset.name);
            for device in 0..preset.devices {
                let links: u32 =
                    nvlink.mesh.iter().filter(|[a, b, _]| *a == device || *b == device).map(|l| l[2]).sum();
                let gpu = GpuModel::all().iter().find(|gpu| gpu.name == preset.gpu).unwrap();
                // A GPU has as many links as its datasheet says, whether to switches or to other GPUs.
                let has = gpu.nvlink.map_or(12, |port| port.links);
                assert_eq!(nvlink.switched.unwrap_or(links), has, "{}: device {device}", preset.name);
            }
        }
    }
}

/// The table's columns: machine, bisection bandwidth by the datasheet in GB/s one way, speed of all NICs in Gb/s.
#[test]
fn bisection_and_network_are_those_of_the_datasheets() {
    for (name, nominal, gbit_per_s) in [
        ("dgx-a100", 4.0 * 300.0, 1_600.0), // 4.8 TB/s of NVSwitch bandwidth, counting both directions and both halves
        ("hgx-h100", 4.0 * 450.0, 3_200.0), // 3.6 TB/s, counting both directions
        ("hgx-h200", 4.0 * 450.0, 3_200.0),
        ("b200", 4.0 * 900.0, 3_200.0), // 14.4 TB/s, counting both directions and both halves
        ("dgx2", 8.0 * 150.0, 800.0),   // 2.4 TB/s, counting both directions
        ("gh200x4", 4.0 * 150.0, 800.0),
        ("a100x4", 4.0 * 100.0, 400.0),
        ("p4d", 4.0 * 300.0, 400.0),
        ("p5", 4.0 * 450.0, 3_200.0),
        ("nd-a100-v4", 4.0 * 300.0, 1_600.0),
        ("nd-h100-v5", 4.0 * 450.0, 3_200.0),
        ("a3-high", 4.0 * 450.0, 800.0),
        ("a3-mega", 4.0 * 450.0, 1_600.0),
        ("a3-ultra", 4.0 * 450.0, 3_200.0),
        ("a4", 4.0 * 900.0, 3_200.0),
        // A cut through 6 links of 25 GB/s splits the hybrid cube mesh into two halves.
        ("dgx1-v100", 6.0 * 25.0, 400.0),
        ("p3dn", 6.0 * 25.0, 100.0),
    ] {
        let (preset, node) = (Preset::named(name).unwrap(), node(name));
        let link = preset.nvlink.unwrap();
        let found = node.bisection_gb_per_s() * link.datasheet.gb_per_s() / link.bandwidth.gb_per_s();
        assert!((found / nominal - 1.0).abs() < 1e-9, "{name}: {found} GB/s, not {nominal}");
        assert_eq!(node.network_gb_per_s(), gbit_per_s / 8.0, "{name}");
    }
    let rack = node("gb200-nvl72");
    let nominal: f64 = (0..72).map(|device| rack.nvlink_gb_per_s(device)).sum::<f64>() * 50.0 / 40.1;
    assert!((2.0 * nominal / 1000.0 - 130.0).abs() < 1.0, "130 TB/s over 72 devices: {nominal}");
}

#[test]
fn every_machine_joins_every_pair() {
    for preset in Preset::all().unwrap() {
        for text in ["", ",fat-tree=2:1,pod=2", ",fat-tree=1:1,pod=2,rails=off"] {
            let name = format!("{}{text}", preset.name);
            let ranks = 4 * preset.devices + preset.devices.min(3);
            let topology = Topology::named(&name, ranks).unwrap();
            assert_eq!((topology.name(), topology.ranks()), (&*name, ranks));
            for (from, to) in (0..ranks).flat_map(|a| (0..ranks).map(move |b| (a, b))) {
                let mut path = Vec::new();
                topology.route(Rank(from), Rank(to), &mut path);
                assert_eq!(path.is_empty(), from == to, "{name}: {from} to {to}");
                let names: Vec<String> = path.iter().map(|link| topology.link_name(*link)).collect();
                assert!(
                    names.iter().collect::<std::collections::BTreeSet<_>>().len() == names.len(),
                    "{names:?}"
                );
                let across = from / preset.devices != to / preset.devices;
                assert_eq!(names.iter().any(|name| name.starts_with("nic")), across, "{name}: {names:?}");
            }
        }
    }
}

#[test]
fn the_hybrid_cube_mesh_goes_through_one_neighbour_where_two_are_not_joined() {
    let topology = Topology::named("dgx1-v100", 8).unwrap();
    for (from, to) in (0..8).flat_map(|a| (0..8).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        let mut path = Vec::new();
        topology.route(Rank(from), Rank(to), &mut path);
        let joined = Preset::named("dgx1")
            .unwrap()
            .nvlink
            .unwrap()
            .mesh
            .iter()
            .any(|[a, b, _]| (*a, *b) == (from.min(to), from.max(to)));
        assert_eq!(path.len(), if joined { 1 } else { 2 }, "{from} to {to}");
        assert!(path.iter().all(|link| topology.link(*link).bandwidth.0 >= 20_000_000_000));
    }
}

#[test]
fn a_spine_leaves_the_links_of_the_nics_as_they_are() {
    for preset in Preset::all().unwrap() {
        let nics = |options: &str| {
            let topology = Topology::named(&format!("{}{options}", preset.name), 2 * preset.devices).unwrap();
            let nics = topology.families().iter().filter(|family| family.name.contains("_out"));
            nics.map(|family| (family.count, family.link)).fold(BTreeMap::new(), |mut all, (count, link)| {
                *all.entry((link.bandwidth.0, link.latency.0)).or_insert(0) += count;
                all
            })
        };
        assert_eq!(nics(",fat-tree=1:1"), nics(""), "{}", preset.name);
    }
}

#[test]
fn options_change_what_they_say() {
    let nic = |text: &str| {
        let topology = Topology::named(text, 32).unwrap();
        let nics: Vec<_> = topology.families().iter().filter(|f| f.name.contains("_out")).collect();
        (
            nics.iter().map(|f| f.count).sum::<u32>(),
            nics[0].link.bandwidth.0 / 1_000_000,
            nics[0].link.latency.0 / 1_000,
        )
    };
    // The PCIe link of a DGX A100 is a little slower than its 200 Gb/s NIC.
    assert_eq!(nic("dgx-a100"), (32, 24_000, 1_350));
    assert_eq!(nic("hgx-h100"), (32, 48_000, 1_350));
    assert_eq!(nic("p4d"), (16, 12_500, 17_500));
    assert_eq!(nic("p5"), (32, 48_000, 17_500));
    assert_eq!(nic("hgx-h100,nic-bandwidth=200Gb/s,fabric=roce"), (32, 25_000, 1_900));
    assert_eq!(nic("hgx-h100,nics=4,fabric=tcp,nic-bandwidth=12.5GB/s"), (16, 5_000, 11_000));
}

/// A device has this much NVLink, whether its links go to switches or to other devices; the network stays as it is.
#[test]
fn the_bandwidth_of_nvlink_is_an_option() {
    for name in ["hgx-h100", "dgx1-v100", "gb200-nvl72", "a100x4"] {
        let own = Preset::with_options(name).unwrap();
        let preset = Preset::with_options(&format!("{name},nvlink-bandwidth=900GB/s,nics=2")).unwrap();
        let node = preset.node(&Spec::read(name).unwrap()).unwrap();
        for device in 0..preset.devices {
            assert!((node.nvlink_gb_per_s(device) - 900.0).abs() < 1e-9, "{name}: device {device}");
        }
        assert_eq!((preset.nics.count, preset.nics.bandwidth), (2, own.nics.bandwidth), "{name}");
    }
    let fastest = |text: &str| {
        let topology = Topology::named(text, 16).unwrap();
        topology.families().iter().map(|family| family.link.bandwidth.0 as f64 / 1e9).fold(0.0, f64::max)
    };
    assert!((fastest("hgx-h100,nvlink-bandwidth=2TB/s") - 2_000.0).abs() < 1.0);
    assert!((fastest("hgx-h100") - 18.0 * 20.6).abs() < 1.0);
}

/// A fat tree of one pod limits nothing, and options of switches have no effect without a fat tree.
#[test]
fn options_of_switches_without_an_effect_get_a_note() {
    for (text, says) in [
        ("dgx-a100:16,devices=4,nics=2,fat-tree=2:1", "so that the fat tree limits nothing; give pod=16"),
        (
            "dgx-a100,devices=4,fat-tree=4:1",
            "a pod's uplinks are those of 32 nodes, and there are 16; give pod=16",
        ),
        (
            "dgx-a100,devices=4,fat-tree=2:1,rails=off,pod=16",
            "no message crosses its uplinks; give a pod of fewer nodes, such as pod=8",
        ),
        (
            "dgx-a100,devices=4,rails=off",
            "rails of `dgx-a100,devices=4,rails=off` has no effect without fat-tree",
        ),
        ("dgx-a100,devices=4,pod=4", "pod of `dgx-a100,devices=4,pod=4` has no effect without fat-tree"),
    ] {
        let topology = Topology::named(text, 64).unwrap();
        let [note] = topology.notes() else { panic!("{text}: {:?}", topology.notes()) };
        assert!(note.contains(says), "{text}: {note}");
    }
    for text in [
        "dgx-a100",
        "dgx-a100,devices=4,fat-tree=2:1,pod=16",
        "dgx-a100,devices=4,fat-tree=2:1,pod=4,rails=off",
    ] {
        assert_eq!(Topology::named(text, 64).unwrap().notes(), [""; 0], "{text}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    for (text, said) in [
        ("dgx-a10", "did you mean `dgx-a100`?"),
        ("dgx-a100:0", "`0` is not a number of nodes; write 1"),
        ("dgx-a100:1", "16 ranks are more than the 8 GPUs of `dgx-a100:1`"),
        ("dgx-a100,fat-tee=2:1", "did you mean `fat-tree`?"),
        ("dgx-a100,fat-tree=x", "write fat-tree=1:1"),
        ("dgx-a100,nic-bandwidth=-1Gb/s", "is not a possible bandwidth"),
        ("dgx-a100,nic-bandwidth=400", "write \"400 GB/s\" (3200 Gb/s) or \"400 Gb/s\" (50 GB/s)"),
        ("dgx-a100,nvlink-bandwidth=300", "nvlink-bandwidth=300: `300` has no unit"),
        ("pcie8,nvlink-bandwidth=300GB/s", "pcie8 has no NVLink; leave nvlink-bandwidth out"),
        ("dgx-a100,fabric=efaa", "did you mean `EFA`?"),
        ("dgx-a100,rails=maybe", "rails=on or rails=off"),
        ("dgx-a100,devices=9", "has 8 devices a node, not 9"),
        ("dgx-a100,nics=4,devices=4,nics=8", "gives nics twice; give it once"),
        ("dgx-a100,devices=4,nics=3", "4 devices cannot share 3 NICs evenly"),
    ] {
        let error = Topology::named(text, 16).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn presets_use_the_links_among_the_devices_that_take_part() {
    for (name, ranks, nvlink, gb_per_s) in [
        ("ncv4,devices=2", 2, true, 240.0),
        ("ncv4", 4, false, 24.0),
        ("ncv4,devices=3", 3, false, 24.0),
        ("dgx1-v100,devices=2", 2, true, 20.0),
        ("dgx1-v100", 8, true, 120.0),
        ("a100x4,devices=2", 2, true, 80.0),
        ("hgx-h100,devices=2", 2, true, 370.8),
    ] {
        let found = Preset::machine(name, ranks).unwrap();
        assert_eq!(
            (found.nvlink, (found.port().bandwidth().0 as f64 / 1e8).round() / 10.0),
            (nvlink, gb_per_s),
            "{name}"
        );
    }
    for (name, ranks, nics) in
        [("hgx-h100:2,devices=1", 2, 1), ("hgx-h100:2,devices=4", 8, 4), ("p4d:2,devices=4", 8, 2)]
    {
        assert_eq!(Preset::machine(name, ranks).unwrap().nics.unwrap().count, nics, "{name}");
    }
}

#[test]
fn the_links_among_gpus_of_a_dgx_1_are_those_of_its_pairs() {
    let nvlink = Preset::named("dgx1-v100").unwrap().nvlink.unwrap();
    assert_eq!([2, 3, 4, 5, 6, 7].map(|devices| nvlink.among(devices)), part::CUBE_MESH);
}
