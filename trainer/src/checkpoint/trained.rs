//! The optimiser's state in a checkpoint that is one file. If some parameters are frozen, the file has only the elements of the trained
//! ones, as runs: the state of a frozen parameter is zero, as a fresh optimiser has it.

use super::sharded::{self, Runs};
use super::{Named, copy};
use crate::Model;
use crate::optim::OptimiserState;
use allfold_kernels::nn::Float;
use safetensors::tensor::{Dtype, SafeTensors};

/// The trained elements of each vector of the state that has begun, by name; `None` if no parameter is frozen.
pub(super) fn runs<F: Float>(
    model: &Model<F>,
    state: &OptimiserState<'_, F>,
) -> Option<Vec<(&'static str, Runs<F>)>> {
    let network = model.network();
    if !(0..network.params().len()).any(|param| network.frozen(param)) {
        return None;
    }
    let begun = state.vectors.iter().filter(|(_, values)| !values.is_empty());
    Some(begun.map(|(name, values)| (*name, sharded::trained(model, &(0..values.len()), values))).collect())
}

/// The tensors of a file for the optimiser's state: `runs` if there are some, else all elements.
pub(super) fn tensors<'a, F: Float>(
    state: &'a OptimiserState<'_, F>,
    runs: Option<&'a [(&'static str, Runs<F>)]>,
    dtype: Dtype,
) -> Named<'a> {
    if let Some(runs) = runs {
        return runs
            .iter()
            .flat_map(|(name, runs)| sharded::tensors(format!("optimiser.{name}"), runs, dtype))
            .collect();
    }
    let begun = state.vectors.iter().filter(|(_, values)| !values.is_empty());
    let whole = begun.map(|(name, values)| {
        (format!("optimiser.{name}"), dtype, vec![values.len()], bytemuck::cast_slice(&values[..]))
    });
    whole.collect()
}

/// Reads the optimiser's state over `params` elements, in either form. Elements that the file lacks are zero; before its first step an
/// optimiser has no state.
pub(super) fn restore<F: Float>(
    all: &SafeTensors,
    params: usize,
    state: OptimiserState<'_, F>,
) -> std::result::Result<(), String> {
    for (name, values) in state.vectors {
        let name = format!("optimiser.{name}");
        let Ok(view) = all.tensor(&name) else { continue };
        values.clear();
        values.resize(params, F::ZERO);
        match all.tensor(&format!("{name}.runs")) {
            Ok(_) => sharded::put(all, &name, values, None)?,
            Err(_) => copy(&view, values).map_err(|what| format!("`{name}` {what}"))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Restored, Snapshot, TrainedOn, contents, restore, sharded::cut};
    use super::*;
    use crate::Config;
    use crate::models::mlp;
    use crate::optim::{Adam, Optimiser};
    use std::ops::Range;
    use std::path::Path;

    /// Layers fc1 of 4 times 3 weights and 3 biases, and fc2 of 3 times 2 weights and 2 biases.
    fn model(frozen: &[&str]) -> Model<f32> {
        let mut network = mlp(4, &[3], 2).unwrap();
        let frozen: Vec<String> = frozen.iter().map(|name| name.to_string()).collect();
        network.freeze(&frozen, &[]).unwrap();
        Model::new(network, 3).unwrap()
    }

    /// AdamW after a step, with these elements trained.
    fn stepped(model: &Model<f32>, trained: Range<usize>) -> Adam<f32> {
        let mut grads = vec![0.0; model.params.len()];
        grads[trained].fill(0.5);
        let mut adam = Adam::new((0.9, 0.999), 1e-8, 0.0, true);
        adam.step(0.1, &mut model.params.clone(), &grads);
        adam
    }

    fn written(model: &Model<f32>, adam: &mut Adam<f32>) -> Vec<u8> {
        let (config, losses, own) = (Config::default(), [0.5], Vec::new());
        let epochs = &[];
        let (config, losses, own) = (&config, &losses, &own);
        let run = Snapshot {
            config,
            data: &TrainedOn::default(),
            step: 1,
            ranks: 1,
            model,
            scaler: None,
            losses,
            epochs,
            own,
        };
        contents(&run, adam).unwrap()
    }

    /// The vectors that an optimiser has after reading a file.
    fn read(bytes: &[u8], mut model: Model<f32>, adam: &mut Adam<f32>) -> Vec<Vec<f32>> {
        let (config, own, ranks) = (&Config::default(), &mut Vec::new(), 1);
        let into =
            Restored { config, data: &TrainedOn::default(), ranks, model: &mut model, optimiser: adam, own };
        restore(Path::new("step"), bytes, into).unwrap();
        adam.state().vectors.into_iter().map(|(_, values)| values.clone()).collect()
    }

    #[test]
    fn the_state_of_frozen_parameters_is_not_written() {
        let (frozen, whole) = (model(&["fc1"]), model(&[]));
        let mut adam = stepped(&frozen, 15..23);
        let want: Vec<Vec<f32>> =
            adam.state().vectors.into_iter().map(|(_, values)| values.clone()).collect();
        let [small, large] = [&frozen, &whole].map(|model| written(model, &mut adam));
        let sizes = [&small, &large].map(|bytes| {
            let all = SafeTensors::deserialize(bytes).unwrap();
            (all.tensor("optimiser.exp_avg").unwrap().shape()[0], all.names().len())
        });
        // A file without frozen parameters has no runs, as before there were any.
        assert_eq!(sizes, [(8, 4 + 2 + 4), (23, 4 + 2 + 2)]);
        // Both forms are read, whatever is frozen, also over the state of another step.
        for bytes in [&small, &large] {
            for to in [&["fc1"][..], &[], &["fc2"]] {
                let mut fresh = Adam::new((0.9, 0.999), 1e-8, 0.0, true);
                assert_eq!(read(bytes, model(to), &mut fresh), want);
                let mut used = stepped(&whole, 0..23);
                assert_eq!(read(bytes, model(to), &mut used), want);
            }
        }
        // The parts of ranks that share the writing have no more.
        let [first, second] = [0, 1].map(|rank| {
            let state = adam.state();
            let part = cut(&frozen, &state.vectors, *state.steps, (rank, 2));
            [part.params.values().len(), part.state[0].1.values().len()]
        });
        assert_eq!([first, second], [[11, 0], [12, 8]]);
    }
}
