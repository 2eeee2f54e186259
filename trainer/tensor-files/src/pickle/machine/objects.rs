//! Storages and tensors of a pickle: how they are made, and whether they are possible.

use super::{Done, Pickle, Storage, Tensor, Value, unfit};
use crate::pickle::globals::Global;
use crate::pickle::{PickledTensor, shown};
use safetensors::tensor::Dtype;

/// The most dimensions of a tensor.
const DIMENSIONS: usize = 8;

impl<'a> Pickle<'a> {
    /// Makes a storage from its description: `("storage", class, name, device, number of elements)`.
    pub(super) fn storage(&mut self) -> Done {
        let Value::Tuple(start, count) = self.pop()? else { return Err(unfit()) };
        let &[
            kind,
            Value::Global(Global::Storage(dtype)),
            Value::Text(name),
            Value::Text(_),
            Value::Int(count),
        ] = self.of((start, count))
        else {
            return Err(unfit());
        };
        let (Value::Text("storage"), Ok(count)) = (kind, u64::try_from(count)) else { return Err(unfit()) };
        self.stack.push(Value::Storage(self.storages.len() as u32));
        self.storages.push(Storage { name, dtype, count });
        Ok(())
    }

    /// Makes the object of a name from its arguments.
    pub(super) fn call(&mut self, global: Global, arguments: (u32, u32)) -> Done {
        match (global, self.of(arguments)) {
            (Global::OrderedDict, []) => self.dict(),
            (Global::RebuildParameter, &[tensor @ Value::Tensor(_), ..]) => self.stack.push(tensor),
            (
                Global::RebuildTensor | Global::RebuildTypedTensor,
                &[
                    Value::Storage(storage),
                    Value::Int(offset),
                    Value::Tuple(a, b),
                    Value::Tuple(c, d),
                    ref rest @ ..,
                ],
            ) => {
                let dtype = match (global, rest) {
                    (Global::RebuildTypedTensor, [_, _, Value::Global(Global::Dtype(dtype)), ..]) => *dtype,
                    (Global::RebuildTensor, _) => self.storages[storage as usize].dtype,
                    _ => return Err(unfit()),
                };
                let offset = u64::try_from(offset).map_err(|_| unfit())?;
                self.stack.push(Value::Tensor(self.tensors.len() as u32));
                self.tensors.push(Tensor { storage, dtype, offset, shape: (a, b), strides: (c, d) });
            }
            _ => return Err(unfit()),
        }
        Ok(())
    }

    /// A tensor by number.
    ///
    /// # Errors
    /// More than 8 dimensions, shapes and strides that are negative or not equally many, or elements outside the storage.
    pub(in crate::pickle) fn tensor(&self, number: u32) -> Result<PickledTensor<'a>, String> {
        let Tensor { storage, dtype, offset, shape, strides } = self.tensors[number as usize];
        let Storage { name, dtype: kept, count } = self.storages[storage as usize];
        let ((_, dimensions), (_, distances)) = (shape, strides);
        if dimensions != distances || dimensions as usize > DIMENSIONS {
            return Err(format!(
                "of {dimensions} dimensions and {distances} strides; {DIMENSIONS} of each are read at most"
            ));
        }
        let number = |value: &Value| match value {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let numbers = |of| self.of(of).iter().map(number).collect::<Option<Vec<u64>>>();
        let (Some(sizes), Some(mut strides)) = (numbers(shape), numbers(strides)) else {
            return Err("with a size or a stride that is no number of elements".into());
        };
        sizes.iter().zip(&mut strides).filter(|(size, _)| **size < 2).for_each(|(_, stride)| *stride = 0);
        let outside = || format!("with elements outside of its storage `{}`", shown(name));
        let bytes = count.checked_mul(size_of_element(kept)).ok_or_else(outside)?;
        let last = sizes.iter().zip(&strides).try_fold(offset, |last, (size, stride)| {
            last.checked_add(size.saturating_sub(1).checked_mul(*stride)?)
        });
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(size_of_element(dtype)));
        if !sizes.contains(&0) && end.is_none_or(|end| end > bytes) {
            return Err(outside());
        }
        let offset = if sizes.contains(&0) { 0 } else { offset };
        let shape = sizes.iter().map(|size| usize::try_from(*size)).collect::<Result<_, _>>();
        let shape = shape.map_err(|_| outside())?;
        Ok(PickledTensor { storage: name, bytes, dtype, offset, shape, strides })
    }
}

/// Bytes of an element.
fn size_of_element(dtype: Dtype) -> u64 {
    dtype.bitsize() as u64 / 8
}
