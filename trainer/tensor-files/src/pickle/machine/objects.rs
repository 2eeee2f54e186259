//! Storages and tensors of a pickle: how they are made, and whether they are possible.

use super::{Done, Pickle, Storage, Tensor, Value, unfit};
use crate::pickle::globals::{Element, Global, NEGATED, NO_FLOAT};
use crate::pickle::{PickledTensor, shown};

/// The most dimensions of a tensor.
const DIMENSIONS: usize = 8;

impl<'a> Pickle<'a> {
    /// Makes a storage from its description: `("storage", class, name, device, number of elements)`; in files before PyTorch 1.6
    /// followed by `None`, or by `(name, first element, number of elements)` of a part of the storage.
    pub(super) fn storage(&mut self) -> Done {
        let Value::Tuple(start, count) = self.pop()? else { return Err(unfit()) };
        let &[
            Value::Text("storage"),
            Value::Global(Global::Storage(element)),
            Value::Text(name),
            Value::Text(_),
            Value::Int(count),
            ref part @ ..,
        ] = self.of((start, count))
        else {
            return Err(unfit());
        };
        let view = match *part {
            [] | [Value::Other] => Some((0, count)),
            [Value::Tuple(start, count)] => match *self.of((start, count)) {
                [_, Value::Int(first), Value::Int(count)] => Some((first, count)),
                _ => None,
            },
            _ => None,
        };
        let number = |value: i64| u64::try_from(value).map_err(|_| unfit());
        let (first, length) = view.ok_or_else(unfit)?;
        let (count, view) = (number(count)?, (number(first)?, number(length)?));
        if view.0.checked_add(view.1).is_none_or(|end| end > count) {
            return Err(unfit());
        }
        self.stack.push(Value::Storage(self.storages.len() as u32));
        self.storages.push(Storage { name, element, count, view });
        Ok(())
    }

    /// The object of a name from its arguments.
    pub(super) fn called(&mut self, global: Global, arguments: (u32, u32)) -> Result<Value<'a>, String> {
        Ok(match (global, self.of(arguments)) {
            (Global::OrderedDict, []) => self.new_container(Value::Dict),
            (Global::OrderedDict, &[Value::List(pairs)]) => {
                self.paired.push((self.containers, pairs));
                self.new_container(Value::Dict)
            }
            (Global::First, &[first, ..]) => first,
            (Global::First | Global::Beside, _) => Value::Other,
            (Global::Unread(why), _) => Value::Unread(why),
            (Global::RebuildFromType, &[Value::Global(function), _, Value::Tuple(start, count), ..])
                if function != Global::RebuildFromType =>
            {
                self.called(function, (start, count))?
            }
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
                let (element, about) = match (global, rest) {
                    (
                        Global::RebuildTypedTensor,
                        [_, _, Value::Global(Global::Dtype(element)), rest @ ..],
                    ) => (*element, rest.first()),
                    (Global::RebuildTensor, rest) => (self.storages[storage as usize].element, rest.get(2)),
                    _ => return Err(unfit()),
                };
                let Element::Known(dtype) = element else { return Ok(Value::Unread(NO_FLOAT)) };
                if matches!(about, Some(Value::Dict(dict)) if self.negated.contains(dict)) {
                    return Ok(Value::Unread(NEGATED));
                }
                let offset = u64::try_from(offset).map_err(|_| unfit())?;
                self.tensors.push(Tensor { storage, dtype, offset, shape: (a, b), strides: (c, d) });
                Value::Tensor(self.tensors.len() as u32 - 1)
            }
            _ => return Err(unfit()),
        })
    }

    /// A tensor by number.
    ///
    /// # Errors
    /// More than 8 dimensions, shapes and strides that are negative or not equally many, or elements outside the storage.
    pub(in crate::pickle) fn tensor(&self, number: u32) -> Result<PickledTensor<'a>, String> {
        let Tensor { storage, dtype, offset, shape, strides } = self.tensors[number as usize];
        let Storage { name, element: kept, count, view } = self.storages[storage as usize];
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
        let bytes = count.checked_mul(kept.size()).ok_or_else(outside)?;
        // The part of the storage that is a view is inside the storage.
        let (size, from, length) = (Element::Known(dtype).size(), view.0 * kept.size(), view.1 * kept.size());
        let last = sizes.iter().zip(&strides).try_fold(offset, |last, (size, stride)| {
            last.checked_add(size.saturating_sub(1).checked_mul(*stride)?)
        });
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(size));
        if !sizes.contains(&0) && end.is_none_or(|end| end > length) {
            return Err(outside());
        }
        let offset = if sizes.contains(&0) { 0 } else { from + offset * size };
        let shape = sizes.iter().map(|size| usize::try_from(*size)).collect::<Result<_, _>>();
        let shape = shape.map_err(|_| outside())?;
        Ok(PickledTensor { storage: name, bytes, dtype, offset, shape, strides })
    }
}
