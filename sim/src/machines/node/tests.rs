use super::*;
use crate::{Rank, Topology};

fn pair() -> Node {
    let mut node = Node {
        name: "pair".into(),
        devices: 3,
        places: Vec::new(),
        links: Vec::new(),
        nics: Vec::new(),
        network_nanos: 2_000,
    };
    let root = node.add("cpu0");
    for device in 0..3 {
        node.join(device, root, 12.0, 500, LinkKind::Pci);
    }
    node.join(0, 1, 40.0, 600, LinkKind::NvLink);
    node.nics.push(Nic { place: root, gbit_per_s: 100.0, gb_per_s: 12.0 });
    node
}

fn path(topology: &Topology, from: u32, to: u32) -> Vec<String> {
    let mut path = Vec::new();
    topology.route(Rank(from), Rank(to), &mut path);
    path.iter().map(|link| topology.link_name(*link)).collect()
}

#[test]
fn nvlink_comes_before_pci_express_and_the_network_is_reached_without_it() {
    let topology = pair().topology(6, Fabrics::FLAT).unwrap();
    assert_eq!(path(&topology, 0, 1), ["gpu0>gpu1[0]"]);
    assert_eq!(path(&topology, 0, 2), ["gpu0>cpu0[0]", "cpu0>gpu2[0]"]);
    assert_eq!(path(&topology, 1, 5), ["gpu1>cpu0[0]", "nic0_out[0]", "nic0_in[1]", "cpu0>gpu2[1]"]);
    assert!(path(&topology, 4, 4).is_empty());
}

#[test]
fn a_pod_is_left_over_the_spine_and_so_is_a_rail() {
    let mut node = pair();
    node.nics.push(Nic { place: 3, gbit_per_s: 100.0, gb_per_s: 12.0 });
    let fabrics = Fabrics { oversubscription: Some(2.0), pod: 2, rails: true };
    let topology = node.topology(12, fabrics).unwrap();
    assert_eq!(path(&topology, 0, 3)[1..3], ["nic0_out[0]", "nic0_in[1]"]);
    assert_eq!(path(&topology, 0, 6)[1..5], ["nic0_out[0]", "spine0_up[0]", "spine0_down[1]", "nic0_in[2]"]);
    // Device 2 uses the second NIC, which is on another leaf.
    assert_eq!(path(&topology, 0, 5)[1..5], ["nic0_out[0]", "spine0_up[0]", "spine1_down[0]", "nic1_in[1]"]);
    let spine = topology.families().iter().find(|family| family.name == "spine0_up").unwrap();
    // Two nodes with a NIC of 12 GB/s each (PCIe is slower than the port), with oversubscription 2.
    assert_eq!((spine.link.bandwidth.0, spine.count, spine.block), (12_000_000_000, 2, 6));
}

#[test]
fn more_nics_than_devices_are_taken_together_and_fewer_are_shared() {
    let mut node = pair();
    node.nics = vec![Nic { place: 3, gbit_per_s: 80.0, gb_per_s: 99.0 }; 7];
    let exits: Vec<_> = node.exits().into_iter().map(|exit| exit.unwrap()).collect();
    assert_eq!(exits.iter().map(|exit| exit.nics.len()).collect::<Vec<_>>(), [2, 2, 2]);
    assert_eq!(exits[2].gb_per_s, 20.0);
    node.nics.truncate(2);
    let exits: Vec<_> = node.exits().into_iter().map(|exit| exit.unwrap().nics).collect();
    assert_eq!(exits, [[0], [0], [1]]);
}

#[test]
fn what_cannot_be_joined_is_said() {
    let mut node = pair();
    node.nics.clear();
    assert!(node.topology(3, Fabrics::FLAT).is_ok());
    let error = node.topology(4, Fabrics::FLAT).unwrap_err().to_string();
    assert!(error.contains("device 0 reaches no NIC"), "{error}");
    node.links.truncate(1);
    let error = node.topology(3, Fabrics::FLAT).unwrap_err().to_string();
    assert!(error.contains("nothing joins device 0 to device 1"), "{error}");
}

#[test]
fn a_cut_of_the_hybrid_cube_mesh() {
    let mut node = pair();
    node.devices = 2;
    node.places = vec!["cpu0".into()];
    node.links = vec![NodeLink { a: 0, b: 1, gb_per_s: 40.0, nanos: 1, kind: LinkKind::NvLink }];
    assert_eq!(node.bisection_gb_per_s(), 40.0);
}
