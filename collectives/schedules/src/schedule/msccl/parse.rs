//! Parses the text of an MSCCL algorithm into GPUs, their thread blocks, and the steps of each block.

use crate::Collective;
use crate::schedule::ScheduleTableError;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use std::collections::BTreeMap;

/// The greatest number of chunks; more chunks are a mistake in the text.
const MOST: u32 = 1 << 16;

/// An MSCCL algorithm.
pub(super) struct Algo {
    pub collective: Collective,
    /// The number of chunks of the largest input or output buffer of any GPU.
    pub chunks: u32,
    pub gpus: Vec<Gpu>,
}

/// A GPU of an MSCCL algorithm, which is a rank.
#[derive(Default)]
pub(super) struct Gpu {
    pub inputs: u32,
    pub outputs: u32,
    pub scratch: u32,
    pub blocks: BTreeMap<u32, Block>,
}

/// A thread block: its steps in order, with at most one connection out and one in.
#[derive(Default)]
pub(super) struct Block {
    pub send: Option<u32>,
    pub recv: Option<u32>,
    pub channel: u32,
    pub steps: Vec<Instruction>,
}

/// A step of a thread block.
pub(super) struct Instruction {
    pub kind: Kind,
    pub source: Address,
    pub target: Address,
    pub count: u32,
    /// The block and the step that this step waits for, in addition to the earlier steps of its own block.
    pub after: Option<(u32, u32)>,
    pub line: usize,
}

/// The kind of a step: `r`eceive, `c`opy, `r`educe, `s`end, in the order of the letters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    S,
    R,
    Rcs,
    Rrs,
    Rrc,
    Rrcs,
    Cpy,
    Re,
    Nop,
}

/// A chunk in one of the three buffers: input, output, scratch.
#[derive(Clone, Copy)]
pub(super) struct Address {
    pub buffer: char,
    pub at: u32,
}

/// Refuses a step that accesses chunks beyond the buffers of its GPU.
fn within(gpus: &[Gpu], chunks: u32) -> Result<(), ScheduleTableError> {
    for gpu in gpus {
        for step in gpu.blocks.values().flat_map(|block| &block.steps) {
            let size = |buffer| if buffer == 's' { gpu.scratch } else { chunks };
            let fits = |place: Address| {
                step.count.checked_add(place.at).is_some_and(|end| end <= size(place.buffer))
            };
            if let Some(out) = step.touches().into_iter().find(|place| !fits(*place)) {
                let (Address { buffer, at }, count, line) = (out, step.count, step.line);
                let what =
                    format!("chunks {at} + {count} of `{buffer}` lie outside its {} chunks", size(buffer));
                return Err(ScheduleTableError { line, what });
            }
        }
    }
    Ok(())
}

/// Parses the XML text of an algorithm.
pub(super) fn parse(text: &str) -> Result<Algo, ScheduleTableError> {
    let mut reader = Reader::from_str(text);
    let (mut algo, mut gpus) = (None, BTreeMap::<u32, Gpu>::new());
    let (mut gpu, mut block) = (None, None);
    loop {
        let event = reader.read_event();
        let at = usize::try_from(reader.buffer_position()).unwrap_or(0).min(text.len());
        let line = 1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
        let fail = |what: String| Err(ScheduleTableError { line, what });
        let element = match event {
            Err(error) => return fail(error.to_string()),
            Ok(Event::Eof) => break,
            Ok(Event::Start(element) | Event::Empty(element)) => element,
            Ok(_) => continue,
        };
        let element = Element { element: &element, line };
        match element.element.name().as_ref() {
            "algo" => algo = Some((element.collective()?, element.number("ngpus")?, line)),
            "gpu" => {
                let id = element.number("id")?;
                let numbers = ["i_chunks", "o_chunks", "s_chunks"].map(|name| element.number(name));
                let [inputs, outputs, scratch] = numbers;
                let new =
                    Gpu { inputs: inputs?, outputs: outputs?, scratch: scratch?, blocks: BTreeMap::new() };
                if gpus.insert(id, new).is_some() {
                    return fail(format!("gpu {id} is listed twice"));
                }
                (gpu, block) = (Some(id), None);
            }
            "tb" => {
                let Some(gpu) = gpu.and_then(|id| gpus.get_mut(&id)) else {
                    return fail("a `tb` must be inside a `gpu`".into());
                };
                let id = element.number("id")?;
                let (send, recv) = (element.option("send")?, element.option("recv")?);
                let channel = element.number("chan")?;
                gpu.blocks.insert(id, Block { send, recv, channel, steps: Vec::new() });
                block = Some(id);
            }
            "step" => {
                let gpu = gpu.and_then(|id| gpus.get_mut(&id));
                let Some(block) = gpu.zip(block).and_then(|(gpu, id)| gpu.blocks.get_mut(&id)) else {
                    return fail("a `step` must be inside a `tb`".into());
                };
                if element.number("s")? as usize != block.steps.len() {
                    return fail(format!("expected step {} here", block.steps.len()));
                }
                block.steps.push(element.instruction()?);
            }
            other => {
                return fail(format!("<{}> is unknown; expected algo, gpu, tb or step", other));
            }
        }
    }
    let Some((collective, ranks, line)) = algo else {
        return Err(ScheduleTableError { line: 1, what: "there is no `algo`".into() });
    };
    let gpus: Vec<Gpu> =
        gpus.into_iter().enumerate().filter(|(at, (id, _))| *at == *id as usize).map(|g| g.1.1).collect();
    if gpus.len() != ranks as usize || gpus.is_empty() {
        let what = format!("ngpus is {ranks}, but gpus 0 to {} are listed", gpus.len());
        return Err(ScheduleTableError { line, what });
    }
    let chunks = gpus.iter().map(|gpu| gpu.inputs.max(gpu.outputs)).max().unwrap_or(0);
    let scratch = gpus.iter().map(|gpu| gpu.scratch).max().unwrap_or(0);
    if chunks == 0 || chunks.max(scratch) > MOST {
        let what = format!("{chunks} chunks and {scratch} of scratch; expected 1 to {MOST} and 0 to {MOST}");
        return Err(ScheduleTableError { line, what });
    }
    within(&gpus, chunks)?;
    Ok(Algo { collective, chunks, gpus })
}

impl Instruction {
    /// The chunks that the step reads or writes on its own GPU; the peer's buffer and offset in the text are only informative.
    fn touches(&self) -> Vec<Address> {
        match self.kind {
            Kind::S | Kind::Rrs => vec![self.source],
            Kind::R | Kind::Rcs => vec![self.target],
            Kind::Rrc | Kind::Rrcs | Kind::Cpy | Kind::Re => vec![self.source, self.target],
            Kind::Nop => Vec::new(),
        }
    }
}

struct Element<'a> {
    element: &'a BytesStart<'a>,
    line: usize,
}

impl Element<'_> {
    fn fail<T>(&self, what: String) -> Result<T, ScheduleTableError> {
        Err(ScheduleTableError { line: self.line, what })
    }

    fn text(&self, name: &str) -> Result<String, ScheduleTableError> {
        match self.element.try_get_attribute(name) {
            Ok(Some(attribute)) => Ok(attribute.value.into_owned()),
            Ok(None) => self.fail(format!("the attribute `{name}` is missing")),
            Err(error) => self.fail(error.to_string()),
        }
    }

    fn number(&self, name: &str) -> Result<u32, ScheduleTableError> {
        let text = self.text(name)?;
        text.parse().or_else(|_| self.fail(format!("{name}=\"{text}\" is not a whole number")))
    }

    /// A number; `None` for -1.
    fn option(&self, name: &str) -> Result<Option<u32>, ScheduleTableError> {
        if self.text(name)? == "-1" { Ok(None) } else { self.number(name).map(Some) }
    }

    fn collective(&self) -> Result<Collective, ScheduleTableError> {
        let name = self.text("coll")?.replace('_', "");
        if self.text("inplace").is_ok_and(|inplace| inplace == "0") {
            return self.fail("only in-place algorithms can be read: inplace=\"1\"".into());
        }
        let known = Collective::ALL.into_iter().find(|known| known.name().replace('_', "") == name);
        known.map_or_else(|| self.fail(format!("coll=\"{name}\" is not a collective")), Ok)
    }

    fn address(&self, buffer: &str, offset: &str) -> Result<Address, ScheduleTableError> {
        let name = self.text(buffer)?;
        let known = ['i', 'o', 's'].into_iter().find(|known| name == known.to_string());
        match (known, self.option(offset)?) {
            (Some(buffer), at) => Ok(Address { buffer, at: at.unwrap_or(0) }),
            (None, _) => self.fail(format!("{buffer}=\"{name}\" is unknown; expected i, o or s")),
        }
    }

    fn instruction(&self) -> Result<Instruction, ScheduleTableError> {
        let name = self.text("type")?;
        let kinds = [
            ("s", Kind::S),
            ("r", Kind::R),
            ("rcs", Kind::Rcs),
            ("rrs", Kind::Rrs),
            ("rrc", Kind::Rrc),
            ("rrcs", Kind::Rrcs),
            ("cpy", Kind::Cpy),
            ("re", Kind::Re),
            ("nop", Kind::Nop),
        ];
        let Some((_, kind)) = kinds.into_iter().find(|(known, _)| *known == name) else {
            return self.fail(format!(
                "type=\"{name}\" is unknown; expected one of {}",
                kinds.map(|kind| kind.0).join(", ")
            ));
        };
        let after = self.option("depid")?.zip(self.option("deps")?);
        let (source, target) = (self.address("srcbuf", "srcoff")?, self.address("dstbuf", "dstoff")?);
        let count = self.number("cnt")?;
        if kind != Kind::Nop && count == 0 {
            return self.fail("cnt=\"0\"; a step moves 1 chunk or more".into());
        }
        Ok(Instruction { kind, source, target, count, after, line: self.line })
    }
}
