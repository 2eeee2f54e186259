//! Names of networks and machines as a reader knows them.

/// How records begin a network's name, the name for readers, and what its samples are called.
const NETWORKS: [(&str, &str, &str); 10] = [
    ("resnet18", "ResNet-18", "images"),
    ("resnet34", "ResNet-34", "images"),
    ("resnet50", "ResNet-50", "images"),
    ("vgg16", "VGG-16", "images"),
    ("bert-base", "BERT base", "sequences"),
    ("bert-large", "BERT large", "sequences"),
    ("gpt2-medium", "GPT-2 medium", "sequences"),
    ("gpt2-large", "GPT-2 large", "sequences"),
    ("gpt2-xl", "GPT-2 XL", "sequences"),
    ("gpt2", "GPT-2", "sequences"),
];

fn known(model: &str) -> Option<(&'static str, &'static str, &str)> {
    NETWORKS.iter().find_map(|(name, title, samples)| {
        let rest = model.strip_prefix(name)?;
        (rest.is_empty() || rest.starts_with(' ')).then_some((*title, *samples, rest))
    })
}

/// The network of a record in words: `ResNet-50 (amp)`, `MLP of 34M parameters`, `CNN`.
pub fn network(model: &str) -> String {
    if let Some((title, _, rest)) = known(model) {
        return format!("{title}{rest}");
    }
    match model.split_once(" of ") {
        Some((kind, size)) => format!("{} of {size} parameters", kind.to_uppercase()),
        None if model.len() <= 4 => model.to_uppercase(),
        None => model.into(),
    }
}

/// The network without its precision: `ResNet-50`.
pub fn plain(model: &str) -> String {
    let name = network(model);
    name.split(" (").next().unwrap_or(&name).into()
}

/// What the network's samples are called: `images`, `samples`, ...
pub fn samples(model: &str) -> &'static str {
    known(model).map_or("samples", |(_, samples, _)| samples)
}

/// Whether the network is a known one, such as ResNet-50.
pub fn is_known(model: &str) -> bool {
    known(model).is_some()
}

/// The device of a scaling record's machine, and the topology: `dgx-a100 of A100 SXM` is `("A100 SXM", "dgx-a100")`.
pub fn device_and_topology(machine: &str) -> (&str, &str) {
    match machine.split_once(" of ") {
        Some((topology, device)) => (device, topology),
        None => ("", machine),
    }
}

/// The machine in words: `A100 SXM on dgx-a100`.
pub fn machine(machine: &str) -> String {
    match device_and_topology(machine) {
        ("", place) => place.into(),
        (device, topology) => format!("{} on {}", self::device(device), self::topology(topology)),
    }
}

/// A simulated machine without a model of a real one in words: `nodes8` is `nodes of 8 devices`; other names stay.
pub fn topology(name: &str) -> String {
    match name.strip_prefix("nodes").map(|sizes| sizes.split_once('x').unwrap_or((sizes, ""))) {
        Some((devices, "")) if devices.parse::<u32>().is_ok() => format!("nodes of {devices} devices"),
        Some((devices, nics)) if nics.parse::<u32>().is_ok() => {
            format!("nodes of {devices} devices and {nics} NICs")
        }
        _ => name.into(),
    }
}

/// A device model in words: `a100_f32` is `A100 in f32`.
pub fn device(name: &str) -> String {
    match name.rsplit_once('_') {
        Some((device, precision @ ("f32" | "f16" | "tf32" | "amp" | "bf16"))) => {
            format!("{} in {precision}", device.to_uppercase())
        }
        _ => name.replace('_', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_names_become_words() {
        assert_eq!(network("resnet50 (amp)"), "ResNet-50 (amp)");
        assert_eq!((plain("resnet50 (amp)").as_str(), samples("resnet50 (amp)")), ("ResNet-50", "images"));
        assert_eq!((network("gpt2-xl (f32)").as_str(), samples("gpt2")), ("GPT-2 XL (f32)", "sequences"));
        assert_eq!(
            (network("mlp of 34M").as_str(), network("cnn").as_str()),
            ("MLP of 34M parameters", "CNN")
        );
        assert!(!is_known("gpt2x") && is_known("gpt2 (amp)"));
        assert_eq!(machine("nodes8 of a100_f32"), "A100 in f32 on nodes of 8 devices");
        assert_eq!(
            (topology("nodes4x2").as_str(), topology("nodesX").as_str()),
            ("nodes of 4 devices and 2 NICs", "nodesX")
        );
        assert_eq!(
            (machine("this machine").as_str(), device("cpu_core").as_str()),
            ("this machine", "cpu core")
        );
    }
}
