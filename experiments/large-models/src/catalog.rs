//! Large language models by name, `models.toml`, and from users' own files.

use crate::model::LargeModel;
use allfold_base::suggest;
use serde::Deserialize;
use std::path::Path;
use std::sync::LazyLock;

/// One row of the table: a model, its other names, and where its shapes are published.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogRow {
    /// Other names that people write.
    #[serde(default)]
    pub also: Vec<String>,
    /// The publication or public configuration.
    pub source: String,
    /// The shapes.
    pub model: LargeModel,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    row: Vec<CatalogRow>,
}

/// The rows of the table. A test rules out a table that cannot be read.
static TABLE: LazyLock<Vec<CatalogRow>> =
    LazyLock::new(|| toml::from_str::<Table>(include_str!("models.toml")).unwrap_or_default().row);

/// Every model of the table, in its order.
pub fn models() -> &'static [CatalogRow] {
    &TABLE
}

/// Words of a name that do not change a model's shapes.
const TRAINED_FURTHER: [&str; 12] =
    ["instruct", "chat", "base", "hf", "meta", "it", "pt", "4k", "8k", "32k", "128k", "proxy"];

/// The words of a name in lower case, without what stands before a `/`, and without those of [`TRAINED_FURTHER`].
fn words(name: &str) -> Vec<String> {
    let name = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    // `v0.1` is a version of the weights, `V3` another model.
    let same = |word: &str| word.is_empty() || TRAINED_FURTHER.contains(&word) || word.starts_with("v0.");
    words.filter(|word| !same(word)).map(str::to_owned).collect()
}

/// The word that gives the number of parameters: `18.4b` is another model than `184b`.
fn size(words: &[String]) -> Option<&str> {
    let is_size = |word: &&String| {
        word.strip_suffix(['b', 'm', 't']).is_some_and(|number| number.parse::<f64>().is_ok())
    };
    words.iter().find(is_size).map(String::as_str)
}

fn is_same(one: &[String], other: &[String]) -> bool {
    let flat = |words: &[String]| words.concat().replace('.', "");
    let sizes_agree = match (size(one), size(other)) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    sizes_agree && flat(one) == flat(other)
}

impl LargeModel {
    /// The model of this name: `Llama 3 70B`, `llama3-70b`, `LLAMA3_70B`, `meta-llama/Llama-3-70B-Instruct`.
    ///
    /// # Errors
    /// No model has this name; the error names the nearest one.
    pub fn named(name: &str) -> Result<&'static LargeModel, String> {
        let wanted = words(name);
        let names = |row: &'static CatalogRow| std::iter::once(&row.model.name).chain(&row.also);
        let found = models().iter().find(|row| names(row).any(|known| is_same(&words(known), &wanted)));
        found.map(|row| &row.model).ok_or_else(|| {
            let known: Vec<&str> = models().iter().map(|row| &*row.model.name).collect();
            format!(
                "no model is called `{name}`; {}; a file of its shapes ends in .toml",
                suggest::suggestion(name, &known)
            )
        })
    }

    /// The model of this name, or of this TOML file with the keys of [`LargeModel`].
    ///
    /// # Errors
    /// An unknown name; a file that cannot be read, or whose sizes do not fit each other: one line that says what would be right.
    pub fn find(name: &str) -> Result<LargeModel, String> {
        if !name.to_lowercase().ends_with(".toml") {
            return LargeModel::named(name).cloned();
        }
        let told = |what: &dyn std::fmt::Display| format!("{name}: {what}");
        let text = std::fs::read_to_string(Path::new(name)).map_err(|error| told(&error))?;
        let model: LargeModel = toml::from_str(&text).map_err(|error| {
            let line =
                error.span().map_or(0, |span| text.bytes().take(span.start).filter(|b| *b == b'\n').count());
            told(&format!("line {}: {}", line + 1, error.message()))
        })?;
        model.check().map_err(|what| told(&what))?;
        Ok(model)
    }

    /// Whether the sizes fit each other.
    ///
    /// # Errors
    /// One line that says which sizes do not, and what would be right.
    pub fn check(&self) -> Result<(), String> {
        let zero = [
            ("layers", self.layers),
            ("hidden", self.hidden),
            ("ffn", self.ffn),
            ("heads", self.heads),
            ("kv_heads", self.kv()),
            ("head_dim", self.head_dim.unwrap_or(1)),
            ("vocab", self.vocab),
        ];
        if let Some((key, _)) = zero.iter().find(|(_, size)| *size == 0) {
            return Err(format!("{key} = 0; give 1 or more"));
        }
        if self.head_dim.is_none() && self.latent.is_none() && !self.hidden.is_multiple_of(self.heads) {
            return Err(format!(
                "hidden = {} is no multiple of heads = {}; give head_dim, or heads = {}",
                self.hidden,
                self.heads,
                nearest_divisor(self.hidden, self.heads)
            ));
        }
        if !self.heads.is_multiple_of(self.kv()) {
            return Err(format!(
                "heads = {} is no multiple of kv_heads = {}; kv_heads = {} would be right",
                self.heads,
                self.kv(),
                nearest_divisor(self.heads, self.kv())
            ));
        }
        self.check_blocks()?;
        self.check_stated()
    }

    fn check_blocks(&self) -> Result<(), String> {
        if let Some(mix) = self.hybrid {
            let sum = u64::from(mix.attention) + u64::from(mix.mamba) + u64::from(mix.ffn);
            if sum != u64::from(self.layers) {
                return Err(format!(
                    "attention {} + mamba {} + ffn {} are {sum} layers; layers = {sum} would be right, not {}",
                    mix.attention, mix.mamba, mix.ffn, self.layers
                ));
            }
        }
        let Some(experts) = self.experts else { return Ok(()) };
        if experts.top_k == 0 || experts.top_k > experts.count {
            return Err(format!(
                "experts.top_k = {}; 1 to experts.count = {} would be right",
                experts.top_k, experts.count
            ));
        }
        if experts.ffn == 0 {
            return Err("experts.ffn = 0; give the inner width of one expert".into());
        }
        let blocks = self.hybrid.map_or(self.layers, |mix| mix.ffn);
        if experts.dense_layers > blocks {
            return Err(format!(
                "experts.dense_layers = {}; 0 to {blocks} would be right",
                experts.dense_layers
            ));
        }
        Ok(())
    }

    fn check_stated(&self) -> Result<(), String> {
        let counted = self.parameters().total();
        match self.stated_parameters {
            Some(stated) if !(0.8..=1.25).contains(&(counted / stated)) => Err(format!(
                "stated_parameters = {stated:e}, but the shapes count {counted:.3e}; correct one of them, or leave stated_parameters out"
            )),
            _ => Ok(()),
        }
    }
}

/// The divisor of `whole` that is nearest to `part`.
fn nearest_divisor(whole: u32, part: u32) -> u32 {
    (1..=whole.min(4096))
        .filter(|divisor| whole.is_multiple_of(*divisor))
        .min_by_key(|divisor| divisor.abs_diff(part))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests;
