//! From a machine described in words, as published with a measurement, to a machine and its topology.

use super::gpu::{Generation, GpuModel, Port};
use super::inside;
use super::nic::{self, Nics};
use super::notes::Notes;
use super::{own_gpu, part};
use crate::{BytesPerSec, Error, Link, Picos, Result, Topology};
use serde::Deserialize;

/// The description of a machine in words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Description {
    /// The GPU's name; a JSON file may give a row of numbers in its place, as in [`GpuModel`].
    #[serde(deserialize_with = "own_gpu::name_or_row")]
    pub gpu: Option<String>,
    /// The number of GPUs of each node that took part in the run.
    pub gpus_per_node: Option<u32>,
    /// The number of nodes that took part in the run.
    pub nodes: Option<u32>,
    /// The links between the GPUs of a node.
    pub intra_node: Option<String>,
    /// The network between the nodes.
    pub inter_node: Option<String>,
    /// The number of GPUs that a node has, if fewer took part in the run.
    pub host_gpus: Option<u32>,
}

/// The vendor of a host's CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpu {
    /// x86 by Intel; also assumed if the description names no vendor.
    Intel,
    /// x86 by AMD.
    Amd,
    /// Arm, for example NVIDIA Grace.
    Arm,
}

/// A machine as the reader understood it from a description in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The machine's GPUs.
    pub gpu: &'static GpuModel,
    /// GPUs of a group that take part and share NVLink or a PCIe root. A group is a node, or a rack that is one NVLink domain.
    pub devices: u32,
    /// The number of groups of `devices` GPUs.
    pub nodes: u32,
    /// Whether the GPUs of a group communicate over NVLink (or xGMI), not over PCIe.
    pub nvlink: bool,
    /// GB/s of all NVLinks of a GPU in one direction, where the user gives another figure than that of the GPU.
    pub nvlink_gb_per_s: Option<f64>,
    /// Whether GPUs write into each other's memory; otherwise data between them is copied through host memory.
    pub peer: bool,
    /// The number of GPUs that share one PCIe link to the host, below a PCIe switch; 1 without such a switch.
    pub sharing_uplink: u32,
    /// Whether switches (NVSwitch) connect the GPUs of a group; otherwise links connect pairs of GPUs.
    pub switched: bool,
    /// Whether NICs are behind the same PCIe switches as the GPUs, as in HGX and DGX hosts with 8 GPUs.
    pub nics_behind_gpu_switch: bool,
    /// The vendor of the hosts' CPUs.
    pub cpu: Cpu,
    /// The NICs of a group; `None` if there is only one group.
    pub nics: Option<Nics>,
    /// The parts of the description that the reader understood, one line each.
    pub understood: Vec<String>,
    /// What the reader assumed because the description does not contain it, one line each.
    pub assumed: Vec<String>,
}

impl Machine {
    /// The assumptions that replace numbers and speeds of NICs which the description does not give.
    pub fn assumed_of_nics(&self) -> impl Iterator<Item = &str> {
        self.assumed.iter().map(String::as_str).filter(|line| line.contains(nic::UNSAID))
    }

    /// Reads a description of a machine in words.
    ///
    /// # Errors
    /// The missing fields, all named; an unknown GPU; zero GPUs or nodes.
    pub fn understand(words: &Description) -> Result<Machine> {
        let (Some(name), Some(devices), Some(nodes)) = (&words.gpu, words.gpus_per_node, words.nodes) else {
            return Err(Error::Topology(format!(
                "the description of the hardware lacks {}",
                words.missing().join(", ")
            )));
        };
        let Some(gpu) = own_gpu::named(name).or_else(|| GpuModel::named(name)) else {
            return Err(Error::Topology(format!(
                "`{name}` names no known GPU; write a row of numbers, {{\"name\": \"{name}\", \"generation\": \"Hopper\", \"pcie\": {{\"links\": 1, \"gb_per_s\": 48.0}}}}, or a known one ({})",
                GpuModel::names().join(", ")
            )));
        };
        if let Some(what) = gpu.refuse_form(name) {
            return Err(Error::Topology(format!("`{name}`: {what}")));
        }
        if devices == 0 || nodes == 0 {
            return Err(Error::Topology(format!("{nodes} nodes of {devices} GPUs; give 1 or more of both")));
        }
        let mut notes = Notes { understood: vec![format!("`{name}`: {}", gpu.name)], assumed: Vec::new() };
        let (lanes16, share) = inside::host_pcie(words.intra_node.as_deref(), gpu.pcie.gb_per_s);
        let gpu = if lanes16 * share < gpu.pcie.gb_per_s {
            notes.understood.push(format!("PCIe of the host: {} GB/s", lanes16 * share));
            own_gpu::with_pcie(gpu, lanes16 * share)
        } else {
            gpu
        };
        let nvlink = inside::inside(words.intra_node.as_deref(), gpu, devices, &mut notes);

        // A rack whose GPUs all share one set of NVLink switches is one group.
        let hosts = match words.rack(gpu) {
            Some(most) => words.hosts(devices, nodes, most, &mut notes)?,
            None => 1,
        };
        if words.rack(gpu).is_none() && gpu.name.starts_with("GB") && gpu.nvlink.is_some() && nodes > 1 {
            notes.assumed.push("hosts share no NVLink: say NVL72 in `intra_node` where they do".into());
        }
        let (rack, nvlink) = (hosts > 1, nvlink || hosts > 1);
        let (single, devices, nodes) = (devices, devices * hosts, nodes / hosts);
        let nics = if nodes == 1 { None } else { Some(words.nics(single, hosts, gpu, &mut notes)?) };
        let (switched, nics_behind_gpu_switch) =
            (rack || words.switched(gpu), !rack && words.nics_behind_gpu_switch(gpu));
        let cpu = words.cpu(gpu);
        // GeForce drivers do not support peer-to-peer over PCIe, unless somebody changed the driver and says so.
        let said = inside::says_peer(words.intra_node.as_deref());
        let peer = nvlink || said.unwrap_or(!gpu.name.starts_with("RTX"));
        if !peer && devices > 1 && said.is_none() {
            notes.assumed.push(format!("{} have no peer-to-peer over PCIe", gpu.name));
        }
        let port = gpu.nvlink.filter(|_| nvlink && !switched);
        let nvlink_gb_per_s = port.and_then(|port| {
            inside::among(gpu, port, devices, words.host_gpus.unwrap_or(devices), &mut notes)
        });
        // Hosts of PCIe 3.0 have a PCIe switch for every four GPUs; later ones have enough lanes.
        let sharing_uplink = if lanes16 <= 12.0 && devices > 4 { 4 } else { 1 };
        Ok(Machine {
            gpu,
            devices,
            nodes,
            nvlink,
            nvlink_gb_per_s,
            peer,
            sharing_uplink,
            switched,
            nics_behind_gpu_switch,
            cpu,
            nics,
            understood: notes.understood,
            assumed: notes.assumed,
        })
    }

    /// The bandwidth out of a group in one direction, in bytes per second: that of its NICs, or of the PCIe links of the GPUs that
    /// take part, if that is less. `None` for a single group.
    pub fn network(&self) -> Option<BytesPerSec> {
        let nics = self.nics?;
        let all = f64::from(nics.count) * nics.gbit_per_s / 8.0;
        Some(BytesPerSec::from_gb(all.min(self.through_pcie())))
    }

    /// GB/s in one direction that the GPUs of a group can send to NICs over PCIe. Grace has a faster link to its GPU.
    pub fn through_pcie(&self) -> f64 {
        if self.cpu == Cpu::Arm { f64::INFINITY } else { part::through_pcie(self.gpu, self.devices) }
    }

    /// A GPU's links to the other GPUs of its group.
    pub fn port(&self) -> Port {
        let links = self.gpu.nvlink.or(self.gpu.bridge);
        let nvlink = links.filter(|_| self.nvlink).map(|port| match self.nvlink_gb_per_s {
            Some(all) => Port { gb_per_s: all / f64::from(port.links.max(1)), ..port },
            None => port,
        });
        nvlink.unwrap_or(self.gpu.pcie)
    }

    /// The number of NIC links that the GPUs of a node share evenly, and the speed of each link. NICs that the GPUs cannot share
    /// evenly are combined into faster links.
    fn rails(&self, nics: &Nics) -> (u32, BytesPerSec) {
        let rails =
            (1..=self.devices.min(nics.count)).rev().find(|rails| self.devices.is_multiple_of(*rails));
        let rails = rails.unwrap_or(1);
        let all = self.network().map_or(0, |all| all.0);
        (rails, BytesPerSec(all / u64::from(rails)))
    }

    /// The topology of the first `ranks` GPUs. Latencies are those of NCCL's tuner for the LL protocol, half of each on either of
    /// the two links that a message crosses.
    ///
    /// # Errors
    /// More ranks than the machine has GPUs.
    pub fn topology(&self, ranks: u32) -> Result<Topology> {
        let all = u64::from(self.devices) * u64::from(self.nodes);
        if u64::from(ranks) > all {
            return Err(Error::Topology(format!(
                "{ranks} ranks are more than the {all} GPUs of the machine"
            )));
        }
        // NCCL `src/graph/tuning.cc`: a ring's step takes 0.6 us over NVLink, 1.0 over PCIe, 2.7 across nodes.
        let half = |nanos: u64| Picos::from_nanos(nanos / 2);
        let device =
            Link { bandwidth: self.port().bandwidth(), latency: half(if self.nvlink { 600 } else { 1_000 }) };
        let Some(nics) = &self.nics else {
            let name = format!("{}, 1 node of {}", self.gpu.name, self.devices);
            return Ok(Topology::switch(ranks, device)?.renamed(&name));
        };
        let (rails, bandwidth) = self.rails(nics);
        let nic = Link { bandwidth, latency: half(2_700) };
        let gb_per_s = bandwidth.as_gb();
        let (nodes, devices, fabric) = (self.nodes, self.devices, nics.fabric);
        let plural = if rails == 1 { "" } else { "s" };
        let name = format!(
            "{}, {nodes} nodes of {devices}, {rails} NIC{plural} of {gb_per_s} GB/s {fabric}",
            self.gpu.name
        );
        Ok(Topology::nodes(ranks, devices, rails, device, nic)?.renamed(&name))
    }
}

impl Description {
    /// The NICs of a group of `hosts` hosts, of each of which `devices` GPUs take part.
    fn nics(&self, devices: u32, hosts: u32, gpu: &GpuModel, notes: &mut Notes) -> Result<Nics> {
        let Some(text) = &self.inter_node else {
            return Err(Error::Topology("the description of the hardware lacks `inter_node`".into()));
        };
        let found = nic::read(text, devices, gpu, &mut notes.assumed);
        let of_host = self.host_gpus.filter(|_| hosts == 1 && !nic::counts_per_gpu(text)).unwrap_or(devices);
        let count = part::nics(found.count, of_host, devices);
        if count < found.count {
            notes.assumed.push(format!(
                "{devices} of {of_host} GPUs use the {count} of {} NICs that are nearest",
                found.count
            ));
        }
        let found = Nics { count: count.saturating_mul(hosts), ..found };
        notes.understood.push(format!("`{text}`: {found}"));
        Ok(found)
    }

    /// Whether any of `words`, given in lower case, occurs in the description.
    fn says(&self, words: &[&str]) -> bool {
        let texts = [&self.gpu, &self.intra_node, &self.inter_node];
        texts.into_iter().flatten().any(|text| words.iter().any(|word| text.to_lowercase().contains(word)))
    }

    /// The number of GPUs of a rack that share NVLink: the number after NVL, or 72 if the text contains only MNNVL. `None` if the
    /// text contains neither, or if a node has as many GPUs.
    fn rack(&self, gpu: &GpuModel) -> Option<u32> {
        let texts = [&self.intra_node, &self.gpu, &self.inter_node];
        let number = |text: &String| {
            let lower = text.to_lowercase();
            let digits = lower.split("nvl").skip(1).map(|rest| {
                rest.trim_start_matches([' ', '-'])
                    .chars()
                    .take_while(char::is_ascii_digit)
                    .collect::<String>()
            });
            digits.filter_map(|digits| digits.parse().ok()).find(|most| (2..=1024).contains(most))
        };
        let said = texts.into_iter().flatten().find_map(number);
        let said = said.or_else(|| self.says(&["mnnvl", "multi-node nvlink"]).then_some(72));
        said.filter(|most| gpu.nvlink.is_some() && Some(*most) > self.gpus_per_node)
    }

    /// The number of hosts of one NVLink domain, which has at most `most` GPUs. Hosts that do not fill whole domains are spread
    /// evenly over as few domains as possible: a job on racks of 72 usually takes 64 GPUs of each. Notes what it found, and such a
    /// spread as an assumption.
    ///
    /// # Errors
    /// Hosts that cannot be spread evenly over twice the fewest domains or less.
    fn hosts(&self, devices: u32, nodes: u32, most: u32, notes: &mut Notes) -> Result<u32> {
        let all = u64::from(devices) * u64::from(nodes);
        if all <= u64::from(most) {
            notes.understood.push(format!("one NVLink domain of {all} GPUs"));
            return Ok(nodes);
        }
        if most.is_multiple_of(devices) && all.is_multiple_of(u64::from(most)) {
            notes.understood.push(format!("{} NVLink domains of {most} GPUs", all / u64::from(most)));
            return Ok(most / devices);
        }
        let fewest = u32::try_from(all.div_ceil(u64::from(most))).unwrap_or(u32::MAX);
        let fits = |racks: &u32| {
            nodes.is_multiple_of(*racks) && u64::from(nodes / racks) * u64::from(devices) <= u64::from(most)
        };
        match (fewest..=fewest.saturating_mul(2)).find(fits) {
            Some(racks) => {
                let hosts = nodes / racks;
                let line =
                    format!("{racks} NVLink domains of {most} GPUs, {} of each in use", hosts * devices);
                notes.assumed.push(format!("{line}: {nodes} hosts of {devices} are spread evenly"));
                Ok(hosts)
            }
            None => Err(Error::Topology(format!(
                "{nodes} hosts of {devices} GPUs cannot be spread evenly over racks of {most}; give a number of hosts that can"
            ))),
        }
    }

    /// Whether GPUs are connected by NVSwitches: hosts of 8 GPUs or more, or of unknown size, with NVLink 3 or later have them,
    /// unless the description says that links connect pairs of GPUs.
    fn switched(&self, gpu: &GpuModel) -> bool {
        let named = self.says(&["nvswitch"]) && !self.says(&["no nvswitch"]);
        let sxm = gpu.nvlink.is_some() && (gpu.generation >= Generation::Ampere || named);
        let host = self.host_gpus.or(self.gpus_per_node).unwrap_or(1);
        let pairs = self.says(&["all-to-all", "mesh", "xgmi"]) || gpu.name.starts_with("GH");
        sxm && !pairs && gpu.generation != Generation::Cdna && (host >= 8 || host == 1 || named)
    }

    /// Whether NICs are behind the GPUs' PCIe switches: HGX boards have a PCIe switch with a NIC or two for every pair of GPUs;
    /// Grace hosts and 4-way boards do not.
    fn nics_behind_gpu_switch(&self, gpu: &GpuModel) -> bool {
        self.switched(gpu) && !gpu.name.starts_with("GB") || gpu.generation == Generation::Cdna
    }

    fn cpu(&self, gpu: &GpuModel) -> Cpu {
        match () {
            () if gpu.name.starts_with("GH") || gpu.name.starts_with("GB") => Cpu::Arm,
            () if self.says(&["epyc", "amd"]) => Cpu::Amd,
            () => Cpu::Intel,
        }
    }

    /// The names of the required fields that the description lacks.
    fn missing(&self) -> Vec<&'static str> {
        let needed = [
            ("`gpu`", self.gpu.is_none()),
            ("`gpus_per_node`", self.gpus_per_node.is_none()),
            ("`nodes`", self.nodes.is_none()),
        ];
        needed.into_iter().filter(|(_, missing)| *missing).map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(gpu: &str, devices: u32, nodes: u32, inside: &str, across: &str) -> Description {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_string());
        Description {
            gpu: text(gpu),
            gpus_per_node: Some(devices),
            nodes: Some(nodes),
            intra_node: text(inside),
            inter_node: text(across),
            host_gpus: None,
        }
    }

    #[test]
    fn a_description_becomes_a_topology() {
        for (description, ranks, name) in [
            (words("H100 80GB HBM3", 8, 1, "NVLink4 NVSwitch", ""), 8, "H100 SXM, 1 node of 8"),
            (
                words("A100-SXM4-40GB", 8, 2, "NVLink3 NVSwitch", "16x100Gb/s RoCE"),
                16,
                "A100 SXM, 2 nodes of 8, 8 NICs of 25 GB/s RoCE",
            ),
            (
                words("A100-SXM4-40GB", 4, 2, "NVLink3 direct all-to-all", "2x Slingshot-11 (200 Gb/s)"),
                8,
                "A100 SXM, 2 nodes of 4, 2 NICs of 25 GB/s Slingshot",
            ),
            (words("GB200 (NVL72)", 4, 18, "NVLink5 NVL72 domain", "none"), 72, "GB200, 1 node of 72"),
            (words("Tesla T4", 1, 2, "PCIe", "EFA"), 2, "T4, 2 nodes of 1, 1 NIC of 6.25 GB/s EFA"),
        ] {
            let machine = Machine::understand(&description).unwrap();
            let topology = machine.topology(ranks).unwrap();
            assert_eq!((topology.name(), topology.ranks()), (name, ranks));
            assert!(machine.topology(ranks + 1).unwrap_err().to_string().contains("more than the"));
        }
    }

    #[test]
    fn racks_are_nodes_and_more_than_one_rack_takes_nics() {
        let one = words("GB300 NVL72", 4, 16, "NVLink 5", "4x800Gb/s IB XDR");
        let machine = Machine::understand(&one).unwrap();
        assert_eq!((machine.devices, machine.nodes, machine.nics), (64, 1, None));
        assert!(machine.switched && machine.nvlink);
        let two = words("GB200", 4, 36, "NVLink5 NVL72", "4x400Gb/s IB NDR");
        let machine = Machine::understand(&two).unwrap();
        assert_eq!((machine.devices, machine.nodes, machine.nics.unwrap().count), (72, 2, 72));
        let odd =
            Machine::understand(&words("GB200", 4, 19, "NVL72", "4x400Gb/s IB")).unwrap_err().to_string();
        assert!(odd.contains("cannot be spread evenly over racks of 72"), "{odd}");
        let alone = Machine::understand(&words("GB200", 4, 2, "NVLink5", "4x400Gb/s IB NDR")).unwrap();
        assert_eq!((alone.devices, alone.nodes), (4, 2));
        assert!(alone.assumed.iter().any(|line| line.contains("share no NVLink")), "{:?}", alone.assumed);
    }

    /// Jobs often take 64 of the 72 GPUs of a rack; other numbers of hosts are spread evenly as well.
    #[test]
    fn racks_may_be_partly_in_use() {
        for (hosts, devices, nodes) in [(32, 64, 2), (20, 40, 2), (48, 64, 3), (27, 36, 3)] {
            let described = words("GB200", 4, hosts, "NVLink5 NVL72", "4x400Gb/s IB NDR");
            let machine = Machine::understand(&described).unwrap();
            assert_eq!((machine.devices, machine.nodes), (devices, nodes), "{hosts} hosts");
            assert_eq!(machine.nics.unwrap().count, devices, "{hosts} hosts");
            let said = machine.assumed.iter().any(|line| line.contains(&format!("{devices} of each in use")));
            assert!(said, "{:?}", machine.assumed);
            assert!(machine.topology(hosts * 4).is_ok());
        }
    }

    #[test]
    fn links_that_are_denied_or_join_pairs_only_are_not_taken() {
        for (gpu, inside, nvlink) in [
            ("H100 PCIe", "PCIe Gen5, no NVLink", false),
            ("A100-SXM4-80GB", "PCIe (without NVLink)", false),
            ("RTX A6000", "NVLink bridge between pairs", false),
            ("H20", "NVLINK 4, NVSWITCH", true),
            ("MI325X", "Infinity Fabric", true),
        ] {
            let machine = Machine::understand(&words(gpu, 8, 1, inside, "")).unwrap();
            assert_eq!(machine.nvlink, nvlink, "{gpu}, {inside}: {:?}", machine.assumed);
        }
        assert!(Machine::understand(&words("V100", 16, 1, "NVLink2 NVSwitch", "")).unwrap().switched);
        assert!(Machine::understand(&words("6000 Ada", 4, 1, "PCIe", "")).unwrap().peer);
    }

    #[test]
    fn the_port_is_that_of_the_links_in_use() {
        let gb_per_s = |inside| {
            let machine = Machine::understand(&words("A100-SXM4-40GB", 8, 1, inside, "")).unwrap();
            (machine.port().bandwidth().0 / 1_000_000_000, machine.assumed.len())
        };
        assert_eq!(gb_per_s("NVLink3 NVSwitch"), (240, 0));
        assert_eq!(gb_per_s("PCIe; P2P state not stated"), (24, 1));
        assert_eq!(gb_per_s(""), (240, 1));
    }

    #[test]
    fn cards_have_the_lanes_and_the_generation_that_their_host_has() {
        for (inside, gb_per_s, sharing) in
            [("PCIe Gen4 x8 with P2P", 12, 1), ("PCIe 3.0", 12, 4), ("PCIe 5.0 x16", 24, 1), ("PCIe", 24, 1)]
        {
            let machine = Machine::understand(&words("RTX 4090", 8, 1, inside, "")).unwrap();
            let found = (machine.port().bandwidth().0 / 1_000_000_000, machine.sharing_uplink);
            assert_eq!(found, (gb_per_s, sharing), "{inside}");
        }
    }

    #[test]
    fn nics_that_do_not_divide_the_gpus_are_bundled() {
        let machine = Machine::understand(&words("H100", 4, 2, "NVLink", "3x100Gb/s IB")).unwrap();
        assert_eq!(machine.rails(&machine.nics.unwrap()), (2, BytesPerSec(18_750_000_000)));
    }

    #[test]
    fn what_is_missing_is_named() {
        let said = |description: &Description| Machine::understand(description).unwrap_err().to_string();
        assert!(said(&Description::default()).contains("lacks `gpu`, `gpus_per_node`, `nodes`"));
        assert!(said(&words("H100", 8, 2, "", "")).contains("lacks `inter_node`"));
        assert!(said(&words("Voodoo 2", 8, 1, "", "")).contains("`Voodoo 2` names no known GPU"));
        assert!(said(&words("H100", 0, 1, "", "")).contains("1 nodes of 0 GPUs"));
        assert!(said(&words("T4 SXM", 8, 1, "", "")).contains("there is no T4 SXM; write `T4` or `T4 PCIe`"));
    }
}
