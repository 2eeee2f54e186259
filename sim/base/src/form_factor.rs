//! The form factors in which GPUs are made, so that every list of GPUs takes and refuses the same names.

use std::fmt;

/// The form factor of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormFactor {
    /// A module on a board with NVLink.
    Sxm,
    /// A PCI Express card.
    Pcie,
    /// A PCI Express card with NVLink bridges.
    Nvl,
}

use FormFactor::{Nvl, Pcie, Sxm};

/// GPUs, in lower case without spaces, and the form factors in which each is made (the vendors' datasheets). The name without a form
/// factor stands for the first. A GPU that is made in none of them, such as GH200, is not listed.
const MADE: [(&str, &[FormFactor]); 32] = [
    ("p100", &[Sxm, Pcie]),
    ("v100", &[Sxm, Pcie]),
    ("v100s", &[Pcie]),
    ("t4", &[Pcie]),
    ("a100", &[Sxm, Pcie]),
    ("a800", &[Sxm, Pcie]),
    ("a10", &[Pcie]),
    ("a10g", &[Pcie]),
    ("a30", &[Pcie]),
    ("a40", &[Pcie]),
    ("a5000", &[Pcie]),
    ("a6000", &[Pcie]),
    ("l4", &[Pcie]),
    ("l20", &[Pcie]),
    ("l40", &[Pcie]),
    ("l40s", &[Pcie]),
    ("h100", &[Sxm, Pcie, Nvl]),
    ("h800", &[Sxm, Pcie]),
    ("h20", &[Sxm]),
    ("h200", &[Sxm, Nvl]),
    ("b200", &[Sxm]),
    ("b300", &[Sxm]),
    ("6000ada", &[Pcie]),
    ("pro6000blackwell", &[Pcie]),
    ("rtxpro6000blackwell", &[Pcie]),
    ("rtx2080ti", &[Pcie]),
    ("rtx3090", &[Pcie]),
    ("rtx4090", &[Pcie]),
    ("rtx5090", &[Pcie]),
    ("rtxa5000", &[Pcie]),
    ("rtxa6000", &[Pcie]),
    ("rtx6000ada", &[Pcie]),
];

impl FormFactor {
    /// Every form factor.
    pub const ALL: [FormFactor; 3] = [Sxm, Pcie, Nvl];

    /// The form factor as vendors write it.
    pub const fn name(self) -> &'static str {
        match self {
            Sxm => "SXM",
            Pcie => "PCIe",
            Nvl => "NVL",
        }
    }

    /// The form factors in which a GPU is made; first the form factor that its plain name means. `gpu`: a name with or without a form
    /// factor; case, spaces, `-` and `_` make no difference. Empty for a GPU that is made in none of them, or is unknown.
    pub fn of(gpu: &str) -> &'static [FormFactor] {
        let (gpu, _) = FormFactor::split(gpu);
        MADE.iter().find(|(name, _)| *name == gpu).map_or(&[], |(_, forms)| forms)
    }

    /// A GPU's name in lower case without spaces, `-` and `_`, and the form factor at its end, if there is one.
    ///
    /// ```
    /// use allfold_base::FormFactor;
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

    /// What is wrong with a GPU's name that ends with a form factor in which that GPU is not made, and what would be right; `None` for
    /// any other name. `known`: the names that are right, which may have form factors themselves.
    pub fn refuse(gpu: &str, known: &[&str]) -> Option<String> {
        let (plain, form) = FormFactor::split(gpu);
        let made = FormFactor::of(&plain);
        let form = form.filter(|form| !made.contains(form))?;
        let known: Vec<_> = known.iter().map(|known| (*known, FormFactor::split(known))).collect();
        let (name, _) = known.iter().find(|(_, (name, _))| *name == plain)?;
        let listed = |made: FormFactor| known.iter().any(|(_, known)| *known == (plain.clone(), Some(made)));
        let right = made.iter().enumerate().filter(|(at, made)| *at == 0 || listed(**made));
        let short =
            FormFactor::ALL.iter().find_map(|form| name.strip_suffix(form.name())).unwrap_or(name).trim_end();
        let right: Vec<String> = right.map(|(_, made)| format!(" or `{short} {made}`")).collect();
        Some(format!("there is no {short} {form}; write `{short}`{}", right.concat()))
    }

    /// The plain name, as [`FormFactor::split`] writes it, of a GPU with the form factor that its plain name stands for: `t4` for
    /// `T4 PCIe`, and `None` for `A100 PCIe`.
    pub fn plain(gpu: &str) -> Option<String> {
        let (plain, form) = FormFactor::split(gpu);
        FormFactor::of(&plain).first().filter(|first| Some(**first) == form).map(|_| plain)
    }
}

impl fmt::Display for FormFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_factor_is_refused_where_the_gpu_is_not_made_in_it() {
        let known = ["a100", "t4", "GB200", "H200", "H200 NVL"];
        let refused = |gpu: &str| FormFactor::refuse(gpu, &known);
        assert_eq!(refused("T4 SXM").unwrap(), "there is no t4 SXM; write `t4` or `t4 PCIe`");
        assert_eq!(refused("gb200-pcie").unwrap(), "there is no GB200 PCIe; write `GB200`");
        assert_eq!(
            refused("H200 PCIe").unwrap(),
            "there is no H200 PCIe; write `H200` or `H200 SXM` or `H200 NVL`"
        );
        // A list without a GPU's card does not suggest the card.
        assert_eq!(
            FormFactor::refuse("v100 NVL", &["V100 SXM"]).unwrap(),
            "there is no V100 NVL; write `V100` or `V100 SXM`"
        );
        for gpu in ["T4 PCIe", "A100", "A100 SXM", "A100-PCIe", "H200_SXM", "Voodoo SXM", "SXM", ""] {
            assert_eq!(refused(gpu), None, "{gpu}");
        }
        assert_eq!(
            (FormFactor::plain("T4 PCIe").as_deref(), FormFactor::plain("A100 PCIe")),
            (Some("t4"), None)
        );
    }
}
