//! Pickles of plain values: numbers, texts, lists, tuples and dicts, such as PyTorch's flight recorder writes.
//!
//! The machine has the opcodes of protocols 2 to 5 for such values, executes nothing, and accepts no name of Python but those by which
//! PyTorch's C++ code marks the type of a list, and those of NumPy's arrays: an array is the list of its constructor's arguments, and
//! after them its state. Values are copied small: a container is the number of a span of one table, so a container may be shared,
//! and a container that holds itself is refused when it is read out.

use super::reader::Reader;
use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{Deserialize, Deserializer, Error as _, IntoDeserializer, Visitor};
use std::cell::Cell;

/// The most values of a pickle, and the most that are read out of it: shared values are read out repeatedly.
const VALUES: usize = 1 << 25;
/// The most arguments of a constructor: those of NumPy's arrays.
const ARGUMENTS: usize = 3;
/// How many containers may be around a value.
const DEPTH: u32 = 32;

#[derive(Clone, Copy)]
enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    /// A list or a tuple, by the number of its span.
    List(u32),
    Dict(u32),
    /// A function that returns its first argument.
    First,
    /// A function that returns the list of its arguments, or a class.
    Arguments,
}

/// Where the items of a container are.
#[derive(Clone, Copy, Default)]
struct Span {
    at: usize,
    len: usize,
    /// How many items have room there.
    room: usize,
}

/// A pickle whose values have been read.
#[derive(Default)]
struct Plain<'a> {
    containers: Vec<Span>,
    /// The items of all containers; those of a dict are keys and values in turn.
    items: Vec<Value<'a>>,
    stack: Vec<Value<'a>>,
    marks: Vec<usize>,
    memo: Vec<Value<'a>>,
    values: usize,
}

/// Reads a pickle of plain values as a value of `T`.
///
/// # Errors
/// The pickle names something that would have to be executed, is damaged, cut or too large, or is no `T`: the end of a sentence that
/// begins with the file.
pub fn plain<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    let mut pickle = Plain::default();
    let mut reader = Reader::new(bytes);
    loop {
        let at = reader.at();
        let code = reader.byte()?;
        if code == b'.' {
            break;
        }
        if !(pickle.constant(code, &mut reader)?
            || pickle.container(code)?
            || pickle.other(code, &mut reader)?)
        {
            return Err(format!(
                "has the opcode 0x{code:02x} at byte {at} of its pickle, which plain values do not need"
            ));
        }
        pickle.values += 1;
        if pickle.values > VALUES {
            return Err(format!("has more than {VALUES} values in its pickle"));
        }
    }
    let (value, budget) = (pickle.pop()?, Cell::new(VALUES));
    T::deserialize(Place { pickle: &pickle, value, depth: 0, budget: &budget })
        .map_err(|error| error.to_string())
}

fn of_bytes(bytes: &[u8]) -> Value<'_> {
    std::str::from_utf8(bytes).map_or(Value::Bytes(bytes), Value::Text)
}

fn damaged() -> String {
    "has a pickle that is damaged: its values do not fit together".into()
}

impl<'a> Plain<'a> {
    fn pop(&mut self) -> Result<Value<'a>, String> {
        self.stack.pop().ok_or_else(damaged)
    }

    /// Where on the stack the values above the last mark begin.
    fn marked(&mut self) -> Result<usize, String> {
        self.marks.pop().filter(|mark| *mark <= self.stack.len()).ok_or_else(damaged)
    }

    /// Where on the stack the last `count` values begin.
    fn last(&self, count: usize) -> Result<usize, String> {
        self.stack.len().checked_sub(count).ok_or_else(damaged)
    }

    fn empty(&mut self) -> u32 {
        self.containers.push(Span::default());
        self.containers.len() as u32 - 1
    }

    /// Makes the values of the stack from there on a list.
    fn list(&mut self, from: usize) {
        let list = self.empty();
        self.fill(list, from);
        self.stack.push(Value::List(list));
    }

    /// Moves the values of the stack from there on to the end of a container.
    fn fill(&mut self, container: u32, from: usize) {
        let span = &mut self.containers[container as usize];
        let len = span.len + self.stack.len() - from;
        if len > span.room {
            // A container that grows again moves to where as much again has room.
            let room = if span.len == 0 { len } else { 2 * len };
            let at = self.items.len();
            self.items.extend_from_within(span.at..span.at + span.len);
            self.items.resize(at + room, Value::None);
            *span = Span { at, room, ..*span };
        }
        self.items[span.at + span.len..span.at + len].copy_from_slice(&self.stack[from..]);
        span.len = len;
        self.stack.truncate(from);
    }

    fn items(&self, container: u32) -> &[Value<'a>] {
        let span = self.containers[container as usize];
        &self.items[span.at..span.at + span.len]
    }

    fn constant(&mut self, code: u8, reader: &mut Reader<'a>) -> Result<bool, String> {
        let text = |text: Option<&'a str>| Value::Text(text.unwrap_or("\u{fffd}"));
        let value = match code {
            0x80 => return reader.protocol().map(|()| true),
            0x95 => return reader.number(8).map(|_| true),
            b'N' => Value::None,
            0x88 | 0x89 => Value::Bool(code == 0x88),
            b'K' => Value::Int(reader.number(1)? as i64),
            b'M' => Value::Int(reader.number(2)? as i64),
            b'J' => Value::Int(i64::from(reader.number(4)? as u32 as i32)),
            0x8a => Value::Int(reader.long()?.ok_or_else(damaged)?),
            b'G' => Value::Float(f64::from_bits((reader.number(8)?).swap_bytes())),
            b'X' => text(reader.text(4)?),
            0x8c => text(reader.text(1)?),
            0x8d => text(reader.text(8)?),
            // Texts and bytes of Python 2 are the same.
            b'T' | b'B' => of_bytes(reader.bytes(4)?),
            b'U' | b'C' => of_bytes(reader.bytes(1)?),
            0x8e => of_bytes(reader.bytes(8)?),
            _ => return Ok(false),
        };
        self.stack.push(value);
        Ok(true)
    }

    fn container(&mut self, code: u8) -> Result<bool, String> {
        match code {
            b'(' => self.marks.push(self.stack.len()),
            b'}' => {
                let dict = self.empty();
                self.stack.push(Value::Dict(dict));
            }
            b']' | b')' => self.list(self.stack.len()),
            b't' => {
                let from = self.marked()?;
                self.list(from);
            }
            0x85..=0x87 => self.list(self.last(usize::from(code - 0x84))?),
            b'a' | b'e' | b's' | b'u' => {
                let from = match code {
                    b'a' => self.last(1)?,
                    b's' => self.last(2)?,
                    _ => self.marked()?,
                };
                let is_dict = matches!(code, b's' | b'u');
                let container = match from.checked_sub(1).map(|below| self.stack[below]) {
                    Some(Value::List(list)) if !is_dict => list,
                    Some(Value::Dict(dict)) if is_dict && (self.stack.len() - from).is_multiple_of(2) => dict,
                    _ => return Err(damaged()),
                };
                self.fill(container, from);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Runs opcodes of remembered values, and of names.
    fn other(&mut self, code: u8, reader: &mut Reader<'a>) -> Result<bool, String> {
        match code {
            b'q' | b'r' | 0x94 => {
                let at = match code {
                    b'q' => reader.number(1)? as usize,
                    b'r' => reader.number(4)? as usize,
                    _ => self.memo.len(),
                };
                let value = *self.stack.last().ok_or_else(damaged)?;
                // Writers number what they remember from 0 on.
                if at > self.memo.len() {
                    return Err(damaged());
                }
                match self.memo.get_mut(at) {
                    Some(place) => *place = value,
                    None => self.memo.push(value),
                }
            }
            b'h' | b'j' => {
                let at = reader.number(if code == b'h' { 1 } else { 4 })? as usize;
                self.stack.push(self.memo.get(at).copied().ok_or_else(damaged)?);
            }
            b'c' => {
                let (module, name) = (reader.line()?, reader.line()?);
                self.named(module, name)?;
            }
            0x93 => {
                let (Value::Text(name), Value::Text(module)) = (self.pop()?, self.pop()?) else {
                    return Err(damaged());
                };
                self.named(module, name)?;
            }
            b'R' => {
                let (Value::List(arguments), function) = (self.pop()?, self.pop()?) else {
                    return Err(damaged());
                };
                let from = self.stack.len();
                let Span { at, len, .. } = self.containers[arguments as usize];
                match function {
                    Value::First => {
                        self.stack.push(self.items(arguments).first().copied().ok_or_else(damaged)?)
                    }
                    Value::Arguments if len <= ARGUMENTS => {
                        self.stack.extend_from_slice(&self.items[at..at + len]);
                        self.list(from);
                    }
                    _ => return Err(damaged()),
                }
            }
            b'b' => {
                let state = self.last(1)?;
                let Some(Value::List(object)) = state.checked_sub(1).map(|below| self.stack[below]) else {
                    return Err(damaged());
                };
                self.fill(object, state);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn named(&mut self, module: &str, name: &str) -> Result<(), String> {
        const MARKS: [&str; 4] = ["build_intlist", "build_doublelist", "build_boollist", "restore_type_tag"];
        if module == "torch.jit._pickle" && MARKS.contains(&name) {
            self.stack.push(Value::First);
            return Ok(());
        }
        const NUMPY: [(&str, &str); 4] = [
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        ];
        if NUMPY.contains(&(module, name)) {
            self.stack.push(Value::Arguments);
            return Ok(());
        }
        let (module, name) = (super::shown(module), super::shown(name));
        Err(format!(
            "names {module}.{name}, which plain values do not need; Allfold executes nothing from a file"
        ))
    }
}

/// A value that is read out.
#[derive(Clone, Copy)]
struct Place<'p, 'a> {
    pickle: &'p Plain<'a>,
    value: Value<'a>,
    depth: u32,
    budget: &'p Cell<usize>,
}

impl<'p, 'a> Place<'p, 'a> {
    fn of(self, value: Value<'a>) -> Place<'p, 'a> {
        Place { value, depth: self.depth + 1, ..self }
    }
}

impl<'p, 'a> IntoDeserializer<'a, Error> for Place<'p, 'a> {
    type Deserializer = Place<'p, 'a>;

    fn into_deserializer(self) -> Place<'p, 'a> {
        self
    }
}

impl<'de> Deserializer<'de> for Place<'_, 'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.budget.get().checked_sub(1).filter(|_| self.depth < DEPTH);
        self.budget.set(left.ok_or_else(|| Error::custom("holds itself, or too much, in its pickle"))?);
        match self.value {
            Value::None | Value::First | Value::Arguments => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Int(value) => visitor.visit_i64(value),
            Value::Float(value) => visitor.visit_f64(value),
            Value::Text(value) => visitor.visit_borrowed_str(value),
            Value::Bytes(value) => visitor.visit_borrowed_bytes(value),
            Value::List(at) => {
                let items = self.pickle.items(at).iter();
                visitor.visit_seq(SeqDeserializer::new(items.map(|item| self.of(*item))))
            }
            Value::Dict(at) => {
                let (pairs, _) = self.pickle.items(at).as_chunks::<2>();
                visitor.visit_map(MapDeserializer::new(
                    pairs.iter().map(|[key, value]| (self.of(*key), self.of(*value))),
                ))
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::None => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct seq tuple
        tuple_struct map struct enum identifier
    }
}
