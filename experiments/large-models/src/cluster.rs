//! The GPUs of a job and their network, as far as the time of a step depends on them.

use allfold_sim::machines::{Generation, GpuModel};

/// One kind of GPU in equal nodes. Bandwidths are of one direction, in bytes a second.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The GPU's name, as the table of GPUs has it.
    pub gpu: String,
    /// The generation, by which kernels differ.
    pub generation: Generation,
    /// FLOP/s of dense products with 16-bit, FP8 and FP4 operands.
    pub flops: [f64; 3],
    /// FLOP/s of ordinary cores in f32.
    pub plain_flops: f64,
    /// Bandwidth of the memory, in bytes a second.
    pub memory: f64,
    /// Size of the memory in bytes.
    pub capacity: f64,
    /// Multiprocessors.
    pub cores: u32,
    /// Bandwidth of the links to the GPUs of the same NVLink domain, as NCCL reckons it; PCI Express without NVLink.
    pub links: f64,
    /// Whether these links lead to each GPU of the node apart (xGMI): a group of few GPUs uses few of them.
    pub mesh: bool,
    /// GPUs of an NVLink domain: those of a node, or of a rack.
    pub domain: u32,
    /// GPUs of a node.
    pub node: u32,
    /// A GPU's share of its node's NICs, nominal.
    pub nic: f64,
    /// Whether the network is Omni-Path.
    pub omni_path: bool,
    /// Whether the GPU's power is limited below its usual figure.
    pub limited_power: bool,
}

/// GPUs of a rack's 72 that jobs of 2^n ranks use.
const RACK: u32 = 64;

/// Kinds of a GPU with another memory: words of the kind's name, GB/s, GB, and whether its power is limited.
const VARIANTS: [(&[&str], f64, f64, bool); 5] = [
    (&["A100", "40GB"], 1555.0, 40.0, false), // A100 40 GB datasheet (NVIDIA, 2020)
    (&["H100", "96GB"], 2400.0, 96.0, true),  // Grand Teton: HBM2e, 500 W (README of torchtitan's results)
    (&["H100", "500W"], 2400.0, 96.0, true),
    (&["V100", "16GB"], 900.0, 16.0, false),
    (&["GH200", "144GB"], 4900.0, 144.0, false), // GH200 datasheet (NVIDIA, 2024), HBM3e
];

/// The share of a card's PCI Express link that exchanges of a node get, since the cards share the bridges of the host and the link between
/// its sockets.
const SHARED_HOST: f64 = 0.75;

impl Cluster {
    /// Nodes of `node` GPUs that are called `gpu` by people or drivers (`H100`, `A100-SXM4-40GB`), with `nic` bytes a second of the
    /// node's network for each GPU; without `nic` the usual NIC of the GPU's generation.
    ///
    /// # Errors
    /// A GPU that the table of GPUs lacks, or has no rates of; a node without GPUs; a NIC that is none.
    pub fn of(gpu: &str, node: u32, nic: Option<f64>) -> Result<Cluster, String> {
        let lacking = || {
            let names: Vec<&str> =
                GpuModel::all().iter().filter(|row| row.rates.is_some()).map(|row| &*row.name).collect();
            allfold_sim::suggest::unknown("GPU with known rates", gpu, &names)
        };
        let row = GpuModel::named(gpu).ok_or_else(lacking)?;
        let rates = row.rates.as_ref().ok_or_else(lacking)?;
        let nic = nic.unwrap_or_else(|| usual_nic(&row.name, row.generation));
        if node == 0 || !(1e6..=1e13).contains(&nic) {
            return Err(format!(
                "{node} GPUs a node with {nic:e} bytes a second each are none; give 1 GPU or more and 1e6 to 1e13"
            ));
        }
        let flat = gpu.to_uppercase().replace([' ', '-', '_'], "");
        let variant = VARIANTS.iter().find(|(words, ..)| words.iter().all(|word| flat.contains(word)));
        let (memory, capacity, limited_power) = variant
            .map_or((rates.memory.gb_per_s(), rates.capacity, false), |(_, memory, capacity, limited)| {
                (*memory, *capacity, *limited)
            });
        let rack = ["GB200", "GB300"].contains(&&*row.name);
        let fp8 = rates.fp8.unwrap_or(rates.f16);
        Ok(Cluster {
            gpu: row.name.clone(),
            generation: row.generation,
            flops: [rates.f16, fp8, rates.fp4.unwrap_or(fp8)].map(|tflops| tflops * 1e12),
            plain_flops: rates.f32 * 1e12,
            memory: memory * 1e9,
            capacity: capacity * 1e9,
            cores: rates.cores.unwrap_or(100),
            links: match row.nvlink {
                Some(port) => port.bandwidth().0 as f64,
                None => SHARED_HOST * row.pcie.bandwidth().0 as f64,
            },
            mesh: row.generation == Generation::Cdna,
            domain: if rack { RACK } else { node },
            node,
            nic,
            omni_path: false,
            limited_power,
        })
    }
}

/// A GPU's usual share of its node's network in bytes a second: of NVIDIA's DGX systems, and of AMD's platforms alike.
fn usual_nic(name: &str, generation: Generation) -> f64 {
    match (name, generation) {
        ("GB300" | "B300", _) => 100e9,
        ("A100 PCIe", _) | (_, Generation::Volta) => 12.5e9,
        (_, Generation::Ampere) => 25e9,
        _ => 50e9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_found_by_what_drivers_and_people_write() {
        let a100 = Cluster::of("NVIDIA A100-SXM4-40GB", 8, None).unwrap();
        assert_eq!((&*a100.gpu, a100.memory, a100.capacity, a100.nic), ("A100 SXM", 1555e9, 40e9, 25e9));
        assert_eq!((a100.flops, a100.domain, a100.links), ([312e12; 3], 8, 240e9));
        let gb200 = Cluster::of("GB200", 4, Some(50e9)).unwrap();
        assert_eq!((gb200.domain, gb200.node, gb200.flops[2]), (64, 4, 1e16));
        assert!(Cluster::of("H100-96GB-HBM2e", 8, None).unwrap().limited_power);
        let amd = Cluster::of("MI300X", 8, None).unwrap();
        assert!(amd.mesh && amd.flops[1] > 2.6e15);
    }

    #[test]
    fn a_gpu_without_rates_and_a_node_without_gpus_are_refused() {
        for (gpu, node, nic, says) in [
            ("Voodoo 2", 8, None, "Voodoo 2"),
            ("K80", 8, None, "K80"),
            ("H100", 0, None, "0 GPUs a node"),
            ("H100", 8, Some(-1.0), "give 1 GPU or more"),
        ] {
            let said = Cluster::of(gpu, node, nic).unwrap_err();
            assert!(said.contains(says) && !said.contains('\n'), "{said}");
        }
    }
}
