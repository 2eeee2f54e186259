//! The stack machine that runs a pickle.

mod objects;

use super::globals::{Element, Global, named};
use super::reader::Reader;
use std::collections::{BTreeMap, BTreeSet};

/// The most values that are held at a time: 30 for each tensor of a state dict.
const VALUES: usize = 1 << 19;

/// A value of a pickle. Containers are numbers of entries in the machine's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Value<'a> {
    /// An integer of up to 64 bits.
    Int(i64),
    /// A text.
    Text(&'a str),
    /// A name of Python.
    Global(Global),
    /// A tuple: its first item among all items of tuples, and their number.
    Tuple(u32, u32),
    /// A dict, by number.
    Dict(u32),
    /// A list, by number. Its items are those that tensors may need: no numbers, and no [`Value::Other`].
    List(u32),
    /// A storage, by number.
    Storage(u32),
    /// A tensor, by number.
    Tensor(u32),
    /// A tensor that cannot be weights, and why it cannot.
    Unread(&'static str),
    /// A value that no tensor needs.
    #[default]
    Other,
}

/// A storage: its name, the type of its elements, and their number. A view is the part of the storage with these elements.
#[derive(Clone, Copy)]
pub(super) struct Storage<'a> {
    pub(super) name: &'a str,
    pub(super) element: Element,
    pub(super) count: u64,
    view: (u64, u64),
}

/// A tensor: its storage by number, the type of its elements, the first element, shape and strides.
#[derive(Clone, Copy)]
struct Tensor {
    storage: u32,
    dtype: safetensors::Dtype,
    offset: u64,
    shape: (u32, u32),
    strides: (u32, u32),
}

/// A pickle that was read.
#[derive(Default)]
pub(super) struct Pickle<'a> {
    /// The value that the pickle ends with.
    pub(super) top: Value<'a>,
    /// The length of the pickle in bytes.
    pub(super) length: usize,
    /// The items of all tuples.
    items: Vec<Value<'a>>,
    /// The entries of all dicts: the dict, the key and the value; in the end, by the number of the dict. A list's have no keys.
    entries: Vec<(u32, Value<'a>, Value<'a>)>,
    pub(super) storages: Vec<Storage<'a>>,
    tensors: Vec<Tensor>,
    containers: u32,
    /// The dicts with an entry `neg`, and those that are made of the pairs in a list: the dict and the list.
    negated: BTreeSet<u32>,
    paired: Vec<(u32, u32)>,
    stack: Vec<Value<'a>>,
    marks: Vec<usize>,
    memo: BTreeMap<u32, Value<'a>>,
}

type Done = Result<(), String>;

impl<'a> Pickle<'a> {
    /// Runs a pickle.
    ///
    /// # Errors
    /// An opcode or a name that no state dict needs, values that do not fit together, too many values, or an early end.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Pickle<'a>, String> {
        let mut pickle = Pickle::default();
        let mut reader = Reader::new(bytes);
        loop {
            let at = reader.at();
            let code = reader.byte()?;
            if code == b'.' {
                break;
            }
            if !(pickle.constant(code, &mut reader)?
                || pickle.container(code)?
                || pickle.remembered(code, &mut reader)?
                || pickle.object(code, &mut reader)?)
            {
                return Err(format!(
                    "has the opcode 0x{code:02x} at byte {at} of its pickle, which no state dict needs; save \
                     `model.state_dict()` with `torch.save`"
                ));
            }
            pickle.limited()?;
        }
        (pickle.top, pickle.length) = (pickle.pop()?, reader.at());
        pickle.entries.sort_by_key(|(of, ..)| *of);
        pickle.fill_pairs()?;
        Ok(pickle)
    }

    /// Fills the dicts that are made of the pairs in lists.
    fn fill_pairs(&mut self) -> Done {
        let mut filled = Vec::new();
        for &(dict, list) in &self.paired {
            let pairs = self.entries(list).filter_map(|(_, pair)| self.pair(pair));
            filled.extend(pairs.map(|(key, value)| (dict, key, value)));
            if filled.len() > VALUES {
                return Err(too_many());
            }
        }
        self.entries.extend(filled);
        self.entries.sort_by_key(|(of, ..)| *of);
        Ok(())
    }

    /// Refuses more values than are possible.
    fn limited(&self) -> Done {
        let lasting = self.items.len() + self.entries.len() + self.storages.len() + self.tensors.len();
        let made = self.containers as usize + self.paired.len() + self.negated.len();
        match lasting + made + self.stack.len() + self.marks.len() + self.memo.len() > VALUES {
            true => Err(too_many()),
            false => Ok(()),
        }
    }

    /// The key and the value of a pair, as a tuple or as a list.
    fn pair(&self, pair: Value<'a>) -> Option<(Value<'a>, Value<'a>)> {
        match pair {
            Value::Tuple(start, count) => match *self.of((start, count)) {
                [key, value] => Some((key, value)),
                _ => None,
            },
            Value::List(list) => {
                let mut items = self.entries(list).map(|(_, item)| item);
                Some((items.next()?, items.next()?))
            }
            _ => None,
        }
    }

    /// Runs opcodes that push a value contained in the pickle, and those of the protocol and of frames.
    fn constant(&mut self, code: u8, reader: &mut Reader<'a>) -> Result<bool, String> {
        let value = match code {
            // Protocol and frame.
            0x80 => return reader.protocol().map(|()| true),
            0x95 => return reader.number(8).map(|_| true),
            b'N' | 0x88 | 0x89 => Value::Other,
            b'G' => reader.take(8).map(|_| Value::Other)?,
            b'K' => Value::Int(reader.number(1)? as i64),
            b'M' => Value::Int(reader.number(2)? as i64),
            b'J' => Value::Int(i64::from(reader.number(4)? as u32 as i32)),
            0x8a => reader.long()?.map_or(Value::Other, Value::Int),
            // Texts; `U` and `T` are those of Python 2.
            b'X' | b'T' => reader.text(4)?.map_or(Value::Other, Value::Text),
            0x8c | b'U' => reader.text(1)?.map_or(Value::Other, Value::Text),
            0x8d => reader.text(8)?.map_or(Value::Other, Value::Text),
            b'C' | b'B' | 0x8e | 0x96 => {
                let size = if code == b'C' { 1 } else { 4 };
                let length = reader.number(if code >= 0x80 { 8 } else { size })?;
                reader.take(length).map(|_| Value::Other)?
            }
            // An empty set.
            0x8f => Value::Other,
            _ => return Ok(false),
        };
        self.stack.push(value);
        Ok(true)
    }

    /// Runs opcodes of tuples, lists and dicts.
    fn container(&mut self, code: u8) -> Result<bool, String> {
        match code {
            b'(' => self.marks.push(self.stack.len()),
            b')' => self.stack.push(Value::Tuple(0, 0)),
            0x85..=0x87 => self.tuple(usize::from(code - 0x84))?,
            b't' => {
                let count = self.since_mark()?;
                self.tuple(count)?;
            }
            b'}' | b']' => {
                let made = self.new_container(if code == b'}' { Value::Dict } else { Value::List });
                self.stack.push(made);
            }
            b'a' => self.append(1)?,
            b'e' => {
                let count = self.since_mark()?;
                self.append(count)?;
            }
            // Items of a set.
            0x90 => {
                let count = self.since_mark()?;
                self.stack.truncate(self.stack.len() - count);
            }
            b's' => self.set_items(2)?,
            b'u' => {
                let count = self.since_mark()?;
                self.set_items(count)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Runs opcodes of the memo, which makes one value appear in several places.
    fn remembered(&mut self, code: u8, reader: &mut Reader<'a>) -> Result<bool, String> {
        let at = match code {
            b'q' | b'h' => reader.number(1)?,
            b'r' | b'j' => reader.number(4)?,
            0x94 => self.memo.len() as u64,
            _ => return Ok(false),
        } as u32;
        if matches!(code, b'h' | b'j') {
            let value = self.memo.get(&at).copied();
            self.stack
                .push(value.ok_or_else(|| format!("uses value {at} of its pickle before it is there"))?);
        } else {
            let value = self.stack.last().copied().ok_or_else(unfit)?;
            self.memo.insert(at, value);
        }
        Ok(true)
    }

    /// Runs opcodes of names, and of objects that are made from them.
    fn object(&mut self, code: u8, reader: &mut Reader<'a>) -> Result<bool, String> {
        match code {
            b'c' => {
                let global = named(reader.line()?, reader.line()?)?;
                self.stack.push(Value::Global(global));
            }
            0x93 => {
                let (Value::Text(name), Value::Text(module)) = (self.pop()?, self.pop()?) else {
                    return Err(unfit());
                };
                self.stack.push(Value::Global(named(module, name)?));
            }
            b'R' | 0x81 => {
                let (Value::Tuple(start, count), Value::Global(global)) = (self.pop()?, self.pop()?) else {
                    return Err(unfit());
                };
                let made = self.called(global, (start, count))?;
                self.stack.push(made);
            }
            // The state of an ordered dict, its attribute `_metadata`; or that of an old parameter, without its values.
            b'b' => match (self.pop()?, self.stack.last()) {
                (_, Some(Value::Dict(_))) | (Value::Tuple(_, 3), Some(Value::Tensor(_))) => {}
                _ => return Err(unfit()),
            },
            b'Q' => self.storage()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn pop(&mut self) -> Result<Value<'a>, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > floor {
            true => self.stack.pop().ok_or_else(unfit),
            false => Err(unfit()),
        }
    }

    /// Removes the last mark; returns how many values are above it.
    fn since_mark(&mut self) -> Result<usize, String> {
        let mark = self.marks.pop().ok_or_else(unfit)?;
        self.stack.len().checked_sub(mark).ok_or_else(unfit)
    }

    /// Makes a tuple of the last values.
    fn tuple(&mut self, count: usize) -> Done {
        let first = self.above(count)?;
        let start = self.items.len() as u32;
        self.items.extend(self.stack.drain(first..));
        self.stack.push(Value::Tuple(start, count as u32));
        Ok(())
    }

    /// The place on the stack of the last `count` values, which no mark divides.
    fn above(&self, count: usize) -> Result<usize, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack.len().checked_sub(count).filter(|first| *first >= floor).ok_or_else(unfit)
    }

    /// Makes a dict or a list.
    fn new_container(&mut self, kind: fn(u32) -> Value<'a>) -> Value<'a> {
        self.containers += 1;
        kind(self.containers - 1)
    }

    /// Puts the last `count` values into the list below them.
    fn append(&mut self, count: usize) -> Done {
        let first = self.above(count)?;
        let Some(Value::List(list)) = first.checked_sub(1).map(|below| self.stack[below]) else {
            return Err(unfit());
        };
        let items = self.stack.drain(first..);
        let items = items.filter(|item| !matches!(item, Value::Int(_) | Value::Other | Value::Global(_)));
        self.entries.extend(items.map(|item| (list, Value::Other, item)));
        Ok(())
    }

    /// Puts the last `count` values, keys and values in turn, into the dict below them.
    fn set_items(&mut self, count: usize) -> Done {
        let first = self.above(count)?;
        let Some(Value::Dict(dict)) = first.checked_sub(1).map(|below| self.stack[below]) else {
            return Err(unfit());
        };
        let (pairs, []) = self.stack[first..].as_chunks::<2>() else { return Err(unfit()) };
        self.entries.extend(pairs.iter().map(|[key, value]| (dict, *key, *value)));
        if pairs.iter().any(|[key, _]| *key == Value::Text("neg")) {
            self.negated.insert(dict);
        }
        self.stack.truncate(first);
        Ok(())
    }

    /// The items of a tuple.
    pub(super) fn of(&self, (start, count): (u32, u32)) -> &[Value<'a>] {
        &self.items[start as usize..][..count as usize]
    }

    /// The entries of a dict or list in their order, once the pickle was read.
    pub(super) fn entries(&self, container: u32) -> impl Iterator<Item = (Value<'a>, Value<'a>)> {
        let first = self.entries.partition_point(|(of, ..)| *of < container);
        let own = self.entries[first..].iter().take_while(move |(of, ..)| *of == container);
        own.map(|&(_, key, value)| (key, value))
    }
}

fn too_many() -> String {
    format!("has more than {VALUES} values in its pickle; no state dict needs so many")
}

/// The error for a pickle whose values do not fit together.
fn unfit() -> String {
    "has a pickle that is damaged, or is no state dict's; save `model.state_dict()`".into()
}
