//! `bench` on ranks that are threads or processes of this machine, in real time.

use super::args::{Args, Host};
use super::carrier::{Ranks, ranks};
use super::limit;
use super::verdict::{Verdict, identity, verdict};
use crate::call::table;
use crate::cli::failure::Outcome;
use crate::cli::progress;
use crate::cli::session::Session;
use crate::measure::bench::{Bench, Carrier, Path};
use crate::measure::limits::cores;
use allfold_collectives::{DType, ReduceOp};
use allfold_report::records::MeasuredCollective;

/// Measures every size and prints the table; of several processes the first one tells.
pub fn run(args: &Args, host: Host, mut bench: Bench, sizes: &[u64]) -> Outcome {
    let ranks = ranks(args, host, &bench.choice)?;
    if bench.path == Path::Native {
        // Of floats that are reduced in MPI's order there is no exact reference.
        let (dtype, op) = (bench.choice.dtype, bench.choice.op);
        let exact = !bench.choice.collective.reduces()
            || matches!(op, ReduceOp::Min | ReduceOp::Max)
            || !matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::Bf16);
        bench.timing.check &= exact;
    }
    let speaks = match &ranks.carrier {
        Carrier::World(_) => true,
        Carrier::Process(comm) => comm.rank().0 == 0,
    };
    let session = match speaks {
        true => Session::open(args.common.json.as_deref(), Some(args.seed))?,
        false => Session::silent(Some(args.seed)),
    };
    let mut sweep = Sweep { args, host, bench: &bench, session, speaks };
    let checked = sweep.run(ranks, sizes)?;
    sweep.session.close()?;
    checked
}

/// A sweep that is measured.
struct Sweep<'a> {
    args: &'a Args,
    host: Host,
    bench: &'a Bench,
    session: Session,
    /// Whether this process tells what came of it.
    speaks: bool,
}

impl Sweep<'_> {
    fn run(&mut self, ranks: Ranks, sizes: &[u64]) -> Outcome<Verdict> {
        self.heading(&ranks.how)?;
        let name = self.bench.choice.collective.name();
        let (mut records, mut first_wrong) = (Vec::new(), None);
        for &size in sizes {
            let spinner = self.speaks.then(|| progress::spinner(&format!("{name}, {size} bytes")));
            let measured = self.bench.on(self.host.name(), &ranks.carrier, size);
            spinner.iter().for_each(|spinner| spinner.finish_and_clear());
            let measured = measured?;
            first_wrong = first_wrong.or(measured
                .iter()
                .find_map(|side| Some(format!("{size} bytes, {}", side.first_wrong.as_ref()?))));
            let sides: Vec<MeasuredCollective> = measured.into_iter().map(|side| side.record).collect();
            let side = |in_place: bool| sides.iter().find(|side| side.in_place == in_place);
            self.session.say(table::measured_row(side(false), side(true)))?;
            sides.iter().try_for_each(|record| self.session.record(record))?;
            records.extend(sides);
        }
        let wrong: Option<u64> = records.iter().map(|record| record.wrong_elements).sum();
        let busbw: Vec<f64> = records.iter().map(|record| record.busbw_gbps).collect();
        self.session.say(table::footer(name, wrong, &busbw))?;
        let mut lines: Vec<String> = records.iter().map(identity).collect();
        lines.dedup();
        lines.iter().try_for_each(|line| self.session.say(line))?;
        // The others end, and the machine is quiet for what it can do at best.
        drop(ranks);
        if self.speaks {
            let (ranks, collective) = (self.args.sweep.ranks, self.bench.choice.collective);
            limit::of_memory(ranks, collective, sizes, &records, &mut self.session)?;
            if self.host == Host::Tcp {
                limit::of_sockets(ranks, collective, sizes, &records, &mut self.session)?;
            }
        }
        Ok(verdict(wrong, first_wrong))
    }

    /// The lines above the table.
    fn heading(&mut self, how: &str) -> Outcome {
        let (ranks, cores) = (self.args.sweep.ranks, cores());
        let name = self.bench.choice.collective.name();
        self.session.say(format!("# allfold bench {name}: {ranks} ranks {how}; measured on this machine"))?;
        self.session.say(format!(
            "# {} warmup iters: {} iters: {} validation: {}",
            self.args.sweep.summary(),
            self.args.warmup,
            self.args.iterations,
            u8::from(self.bench.timing.check)
        ))?;
        if ranks > cores {
            self.session.say(format!("# {ranks} ranks share {cores} cores"))?;
        }
        self.session.say("#")?;
        self.session.say(table::measured_header())
    }
}
