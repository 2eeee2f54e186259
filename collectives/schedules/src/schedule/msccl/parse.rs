//! Parses the text of an MSCCL algorithm into GPUs, their thread blocks, and the steps of each block.

use crate::Collective;
use crate::schedule::ScheduleTableError;
use roxmltree::{Document, Node};
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

allfold_base::named! {
    /// The kind of a step: `r`eceive, `c`opy, `r`educe, `s`end, in the order of the letters.
    pub(super) enum Kind {
        S = "s",
        R = "r",
        Rcs = "rcs",
        Rrs = "rrs",
        Rrc = "rrc",
        Rrcs = "rrcs",
        Cpy = "cpy",
        Re = "re",
        Nop = "nop",
    }
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
    let document = Document::parse(text)
        .map_err(|error| ScheduleTableError { line: error.pos().row as usize, what: error.to_string() })?;
    let algo = Element(document.root_element());
    if algo.name() != "algo" {
        return algo.fail(format!("<{}>; expected <algo>", algo.name()));
    }
    let (collective, ranks) = (algo.collective()?, algo.number("ngpus")?);
    let mut gpus = BTreeMap::<u32, Gpu>::new();
    for element in algo.children("gpu")? {
        let id = element.number("id")?;
        if gpus.insert(id, element.gpu()?).is_some() {
            return element.fail(format!("gpu {id} is listed twice"));
        }
    }
    let gpus: Vec<Gpu> =
        gpus.into_iter().enumerate().filter(|(at, (id, _))| *at == *id as usize).map(|g| g.1.1).collect();
    if gpus.len() != ranks as usize || gpus.is_empty() {
        return algo.fail(format!("ngpus is {ranks}, but gpus 0 to {} are listed", gpus.len()));
    }
    let chunks = gpus.iter().map(|gpu| gpu.inputs.max(gpu.outputs)).max().unwrap_or(0);
    let scratch = gpus.iter().map(|gpu| gpu.scratch).max().unwrap_or(0);
    if chunks == 0 || chunks.max(scratch) > MOST {
        return algo
            .fail(format!("{chunks} chunks and {scratch} of scratch; expected 1 to {MOST} and 0 to {MOST}"));
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

#[derive(Clone, Copy)]
struct Element<'a>(Node<'a, 'a>);

impl<'a> Element<'a> {
    fn name(self) -> &'a str {
        self.0.tag_name().name()
    }

    fn line(self) -> usize {
        self.0.document().text_pos_at(self.0.range().start).row as usize
    }

    fn fail<T>(self, what: String) -> Result<T, ScheduleTableError> {
        Err(ScheduleTableError { line: self.line(), what })
    }

    /// The elements inside, all of which must have this name.
    fn children(self, name: &str) -> Result<Vec<Element<'a>>, ScheduleTableError> {
        let elements = self.0.children().filter(Node::is_element).map(Element);
        let named = elements.map(|child| match child.name() {
            found if found == name => Ok(child),
            other => child.fail(format!("<{other}> in <{}>; expected <{name}>", self.name())),
        });
        named.collect()
    }

    fn gpu(self) -> Result<Gpu, ScheduleTableError> {
        let [inputs, outputs, scratch] = ["i_chunks", "o_chunks", "s_chunks"].map(|name| self.number(name));
        let mut blocks = BTreeMap::new();
        for element in self.children("tb")? {
            blocks.insert(element.number("id")?, element.block()?);
        }
        Ok(Gpu { inputs: inputs?, outputs: outputs?, scratch: scratch?, blocks })
    }

    fn block(self) -> Result<Block, ScheduleTableError> {
        let (send, recv) = (self.option("send")?, self.option("recv")?);
        let (channel, mut steps) = (self.number("chan")?, Vec::new());
        for element in self.children("step")? {
            if element.number("s")? as usize != steps.len() {
                return element.fail(format!("expected step {} here", steps.len()));
            }
            steps.push(element.instruction()?);
        }
        Ok(Block { send, recv, channel, steps })
    }

    fn text(self, name: &str) -> Result<&'a str, ScheduleTableError> {
        self.0.attribute(name).map_or_else(|| self.fail(format!("the attribute `{name}` is missing")), Ok)
    }

    fn number(self, name: &str) -> Result<u32, ScheduleTableError> {
        let text = self.text(name)?;
        text.parse().or_else(|_| self.fail(format!("{name}=\"{text}\" is not a whole number")))
    }

    /// A number; `None` for -1.
    fn option(self, name: &str) -> Result<Option<u32>, ScheduleTableError> {
        if self.text(name)? == "-1" { Ok(None) } else { self.number(name).map(Some) }
    }

    fn collective(self) -> Result<Collective, ScheduleTableError> {
        let name = self.text("coll")?.replace('_', "");
        if self.text("inplace").is_ok_and(|inplace| inplace == "0") {
            return self.fail("only in-place algorithms can be read: inplace=\"1\"".into());
        }
        let known = Collective::ALL.into_iter().find(|known| known.name().replace('_', "") == name);
        known.map_or_else(|| self.fail(format!("coll=\"{name}\" is not a collective")), Ok)
    }

    fn address(self, buffer: &str, offset: &str) -> Result<Address, ScheduleTableError> {
        let name = self.text(buffer)?;
        let known = ['i', 'o', 's'].into_iter().find(|known| name == known.to_string());
        match (known, self.option(offset)?) {
            (Some(buffer), at) => Ok(Address { buffer, at: at.unwrap_or(0) }),
            (None, _) => self.fail(format!("{buffer}=\"{name}\" is unknown; expected i, o or s")),
        }
    }

    fn instruction(self) -> Result<Instruction, ScheduleTableError> {
        let name = self.text("type")?;
        let Some(kind) = Kind::ALL.into_iter().find(|known| known.name() == name) else {
            return self.fail(format!(
                "type=\"{name}\" is unknown; expected one of {}",
                Kind::ALL.map(Kind::name).join(", ")
            ));
        };
        let after = self.option("depid")?.zip(self.option("deps")?);
        let (source, target) = (self.address("srcbuf", "srcoff")?, self.address("dstbuf", "dstoff")?);
        let count = self.number("cnt")?;
        if kind != Kind::Nop && count == 0 {
            return self.fail("cnt=\"0\"; a step moves 1 chunk or more".into());
        }
        Ok(Instruction { kind, source, target, count, after, line: self.line() })
    }
}
