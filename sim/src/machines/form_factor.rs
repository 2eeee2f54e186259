//! The form factors in which GPUs are made.

use serde::Deserialize;

allfold_base::named! {
    /// The form factor of a GPU.
    #[derive(Deserialize)]
    pub enum FormFactor {
        /// A module on a board with NVLink.
        #[serde(rename = "SXM")]
        Sxm = "SXM",
        /// A PCI Express card.
        #[serde(rename = "PCIe")]
        Pcie = "PCIe",
        /// A PCI Express card with NVLink bridges.
        #[serde(rename = "NVL")]
        Nvl = "NVL",
    }
}

impl FormFactor {
    /// A GPU's name in lower case without spaces, `-` and `_`, and the form factor at its end, if there is one.
    ///
    /// ```
    /// use allfold_sim::machines::FormFactor;
    ///
    /// assert_eq!(FormFactor::split("A100 PCIe"), ("a100".to_string(), Some(FormFactor::Pcie)));
    /// assert_eq!(FormFactor::split("RTX-3090"), ("rtx3090".to_string(), None));
    /// ```
    pub fn split(gpu: &str) -> (String, Option<FormFactor>) {
        let flat = gpu.to_lowercase().replace([' ', '-', '_'], "");
        let ends = |form: &FormFactor| flat.strip_suffix(&form.name().to_lowercase()).map(String::from);
        match FormFactor::ALL.iter().find_map(|form| Some((ends(form)?, *form))) {
            Some((gpu, form)) if !gpu.is_empty() => (gpu, Some(form)),
            _ => (flat, None),
        }
    }
}
