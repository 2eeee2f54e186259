//! A layer table that a user writes.
//!
//! ```toml
//! name = "my-net"
//! sample = "an image"          # what a sample is called
//! [[layer]]
//! name = "conv1"
//! kind = "convolution"         # product, convolution, attention, normalisation, elementwise
//! params = [9408]              # elements of each parameter; left out: none
//! flops = 236e6                # operations of the forward pass over one sample; a multiply-add is two
//! values = 953_344             # numbers that the forward pass reads and writes for one sample
//! repeat = 3                   # the number of layers like this one; left out: 1
//! ```
//!
//! The backward pass of a layer costs as much as the forward pass for the input's gradient, and as much again for the parameters'
//! gradients if the layer has parameters. Products and convolutions also read their weights once, whatever the batch is.

use super::kernel::{Class, KernelCost};
use super::table::{TableLayer, Workload};
use crate::{Error, Result};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use std::fmt;

/// The most layers of a table.
const MOST_LAYERS: usize = 100_000;
/// The most elements of a parameter, and the most operations or numbers of a layer.
const MOST: f64 = 1e15;
/// How many times a step of SGD with momentum reads or writes an array as large as the parameters: weights, gradients, velocities.
const PASSES: usize = 5;

/// A table of layers, first to last.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTable {
    name: String,
    #[serde(default = "a_sample")]
    sample: String,
    #[serde(default, rename = "layer")]
    layers: Vec<Row>,
}

fn a_sample() -> String {
    "a sample".into()
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    kind: Class,
    #[serde(default)]
    params: Vec<Elements>,
    flops: f64,
    values: f64,
    repeat: Option<usize>,
}

/// The number of elements of a parameter. Its shape, as in `[[32000, 4096]]`, is refused with words for the table's author.
#[derive(Clone, Copy, Debug)]
struct Elements(f64);

impl<'de> Deserialize<'de> for Elements {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Elements, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Elements;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of elements, such as 131072000")
            }
            fn visit_f64<E>(self, elements: f64) -> std::result::Result<Elements, E> {
                Ok(Elements(elements))
            }
            fn visit_i64<E>(self, elements: i64) -> std::result::Result<Elements, E> {
                Ok(Elements(elements as f64))
            }
            fn visit_u64<E>(self, elements: u64) -> std::result::Result<Elements, E> {
                Ok(Elements(elements as f64))
            }
        }
        from.deserialize_f64(Number)
    }
}

/// A whole number of at most [`MOST`].
fn whole(layer: &str, key: &str, value: f64) -> Result<u64> {
    match value.fract() == 0.0 && (0.0..=MOST).contains(&value) {
        true => Ok(value as u64),
        false => Err(Error::Config(format!(
            "layer `{layer}`: `{key}` is {value}; give a whole number from 0 to {MOST:e}"
        ))),
    }
}

impl Row {
    /// The layer, under this name.
    fn layer(&self, name: String) -> Result<TableLayer> {
        let params = self.params.iter().map(|&Elements(elements)| match elements >= 1.0 {
            true => Ok(whole(&self.name, "params", elements)? as usize),
            false => Err(Error::Config(format!("layer `{}`: a parameter has 1 element or more", self.name))),
        });
        let params = params.collect::<Result<Vec<usize>>>()?;
        let weighs = matches!(self.kind, Class::Product | Class::Convolution);
        let cost = KernelCost {
            class: self.kind,
            flops: whole(&self.name, "flops", self.flops)?,
            values: whole(&self.name, "values", self.values)?,
            weights: if weighs { params.iter().map(|&elements| elements as u64).sum() } else { 0 },
            launches: 1,
        };
        Ok(TableLayer {
            name,
            by_params: (!params.is_empty()).then_some(cost),
            params,
            forward: cost,
            by_input: Some(cost),
            // A layer keeps what it reads, about half of the values that it moves; a rectifier or a sum keeps nothing more.
            kept: if self.kind == Class::Elementwise { 0 } else { cost.values / 2 },
            sync_len: (0, 0),
        })
    }
}

impl LayerTable {
    /// The table as a workload.
    ///
    /// # Errors
    /// No layer, too many layers, no parameter at all, or a layer, which the error names, with a number that is out of range.
    pub fn workload(&self) -> Result<Workload> {
        let count = self.layers.iter().map(|row| row.repeat.unwrap_or(1)).fold(0, usize::saturating_add);
        if count == 0 || count > MOST_LAYERS {
            return Err(Error::Config(format!(
                "the table has {count} layers; give 1 to {MOST_LAYERS} as [[layer]]"
            )));
        }
        if let Some(row) = self.layers.iter().find(|row| row.repeat == Some(0)) {
            return Err(Error::Config(format!(
                "layer `{}` has repeat = 0; give 1 or more, or leave the layer out",
                row.name
            )));
        }
        let mut layers = Vec::with_capacity(count);
        for row in &self.layers {
            for at in 0..row.repeat.unwrap_or(1) {
                let name = if row.repeat.is_some() { format!("{}.{at}", row.name) } else { row.name.clone() };
                layers.push(row.layer(name)?);
            }
        }
        if layers.iter().all(|layer| layer.params.is_empty()) {
            return Err(Error::Config("no layer has `params`: there is nothing to train".into()));
        }
        Ok(Workload::new(&self.name, &self.sample, layers, PASSES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::Precision;
    use allfold_sim::machines::GpuRates;

    fn row(name: &str, kind: Class, params: &[f64], flops: f64) -> Row {
        Row {
            name: name.into(),
            kind,
            params: params.iter().copied().map(Elements).collect(),
            flops,
            values: 1000.0,
            repeat: None,
        }
    }

    fn table(layers: Vec<Row>) -> Result<Workload> {
        LayerTable { name: "net".into(), sample: a_sample(), layers }.workload()
    }

    #[test]
    fn a_table_becomes_a_workload_and_takes_the_time_of_its_layers() {
        let conv = row("conv", Class::Convolution, &[9408.0, 64.0], 236e6);
        let relu = Row { repeat: Some(3), ..row("relu", Class::Elementwise, &[], 0.0) };
        let net = table(vec![conv.clone(), relu]).unwrap();
        let names: Vec<&str> = net.layers().iter().map(|layer| &*layer.name).collect();
        assert_eq!(names, ["conv", "relu.0", "relu.1", "relu.2"]);
        assert_eq!((net.parameters(), net.forward_flops()), (9472, 236_000_000));
        assert_eq!(net.layers()[0].forward.weights, 9472);
        let a100 = GpuRates::named("A100 SXM").unwrap();
        let more = table(vec![Row { flops: 472e6, ..conv }]).unwrap();
        let time = |net: &Workload| net.layers()[0].forward.time(a100, 256, Precision::F32);
        assert!(time(&more) > time(&net));
    }

    #[test]
    fn what_is_wrong_names_the_layer() {
        let said = |row: Row| table(vec![row]).unwrap_err().to_string();
        assert!(said(row("a", Class::Product, &[1.0], -1.0)).contains("layer `a`: `flops` is -1"));
        assert!(said(row("a", Class::Product, &[0.0], 1.0)).contains("layer `a`: a parameter"));
        assert!(said(row("a", Class::Product, &[1.5], 1.0)).contains("`params` is 1.5"));
        assert!(said(row("a", Class::Product, &[], 1.0)).contains("nothing to train"));
        assert!(table(Vec::new()).unwrap_err().to_string().contains("0 layers"));
        let none = Row { repeat: Some(0), ..row("a", Class::Product, &[1.0], 1.0) };
        assert!(
            table(vec![none, row("b", Class::Product, &[1.0], 1.0)])
                .unwrap_err()
                .to_string()
                .contains("`a` has repeat = 0")
        );
        let many = Row { repeat: Some(usize::MAX), ..row("a", Class::Product, &[1.0], 1.0) };
        assert!(said(many).contains("give 1 to 100000"));
    }
}
