//! GPUs for predictions of kernels, by name: those of the table, and users' own.

use super::{GpuModel, GpuRates};
use crate::{Error, Result, suggest};
use allfold_base::lock;
use std::sync::Mutex;

/// The GPUs of users' files that were read, the latest last.
static OWN: Mutex<Vec<&'static GpuRates>> = Mutex::new(Vec::new());

impl GpuRates {
    /// The rates of every GPU of the table that has them.
    pub fn all() -> impl Iterator<Item = &'static GpuRates> {
        GpuModel::all().iter().filter_map(|gpu| gpu.rates.as_ref())
    }

    /// The GPU of this name, also of a user's file that was read before; or the first whose name begins with these whole words. Case,
    /// spaces, `-` and `_` make no difference, nor does a form factor where the GPU has only one.
    ///
    /// # Errors
    /// No GPU with rates has this name, and the error names the nearest one, and all; or the GPU is not made in this form factor, and
    /// the error names those in which it is.
    pub fn named(name: &str) -> Result<&'static GpuRates> {
        GpuRates::find(name).ok_or_else(|| {
            let names: Vec<&str> = GpuRates::all().map(|gpu| &*gpu.name).collect();
            let refused = GpuModel::refuse(name, &names);
            Error::Device(refused.unwrap_or_else(|| suggest::unknown("GPU", name, &names)))
        })
    }

    pub(crate) fn find(name: &str) -> Option<&'static GpuRates> {
        let flat = |text: &str| text.to_lowercase().replace([' ', '-', '_'], "");
        let wanted = flat(name);
        // Whole words: `a10` is another GPU than `A100 SXM`.
        let begins = |name: &str| name.match_indices(' ').any(|(end, _)| flat(&name[..end]) == wanted);
        let own = lock(&OWN).iter().rev().find(|gpu| flat(&gpu.name) == wanted).copied();
        own.or_else(|| GpuModel::called(name)?.rates.as_ref())
            .or_else(|| GpuRates::all().find(|gpu| begins(&gpu.name)))
    }

    /// A user's own GPU, which [`GpuRates::named`] finds from now on.
    ///
    /// # Errors
    /// A name that another GPU has, or is no name; figures that are impossible.
    pub(crate) fn keep(self) -> std::result::Result<&'static GpuRates, String> {
        let name = self.name.clone();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == ' ' || c == '-';
        if name.is_empty() || name.len() > 40 || !name.chars().all(is_word) || name.ends_with("f32") {
            return Err(format!(
                "`{name}` is no name of a GPU: write letters and digits, such as name = \"X100\""
            ));
        }
        if GpuModel::called(&name).is_some() {
            return Err(format!(
                "`{name}` is a GPU that Allfold knows; give another name, or write gpu = \"{name}\""
            ));
        }
        self.check()?;
        let gpu = self.called(&name);
        let mut own = lock(&OWN);
        let known = own.iter().position(|known| **known == gpu);
        let gpu = known.map_or_else(|| &*Box::leak(Box::new(gpu)), |at| own.remove(at));
        own.push(gpu);
        Ok(gpu)
    }
}
