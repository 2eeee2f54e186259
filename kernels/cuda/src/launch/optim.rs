//! Optimiser steps over many tensors in one launch.

use super::bucket::{JOB, jobs};
use super::{holds, reads_if, run, small, trained};
use crate::{Arguments, Error, Family, Kernel, Memory, MemoryAccess, Queue, Result, Slice};
use allfold_kernels::DType;
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;

/// The parameters of a step of stochastic gradient descent, in the kernel's layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct SgdRule {
    /// The learning rate.
    pub lr: f32,
    /// The momentum; with 0 no velocity is stored.
    pub momentum: f32,
    /// The weight decay, added to the gradient.
    pub decay: f32,
    /// The factor on the gradient, applied first: 1 over the loss scale.
    pub factor: f32,
    /// 1 for the first step, which has no velocity yet; else 0.
    pub first: u32,
    /// 1 for Nesterov's momentum; else 0.
    pub nesterov: u32,
}

/// The parameters of a step of Adam or AdamW; the host has computed all that is equal for every element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct AdamRule {
    /// The weight decay that is added to the gradient (Adam).
    pub added: f32,
    /// The factor on the parameter, 1 - lr decay (AdamW).
    pub kept: f32,
    /// The step size with bias correction, lr / (1 - beta1^t).
    pub rate: f32,
    /// The bias correction of the second moment, sqrt(1 - beta2^t).
    pub root: f32,
    /// The constant that is added to the denominator.
    pub eps: f32,
    /// The new gradient's share of the first moment, 1 - beta1.
    pub from_g: f32,
    /// The second moment's decay, beta2.
    pub beta2: f32,
    /// The new square's share of the second moment, 1 - beta2.
    pub from_square: f32,
    /// The factor on the gradient, applied first: 1 over the loss scale.
    pub factor: f32,
}

/// The parameters of a step of LARS, in the kernel's layout; the device computes each tensor's ratio of norms.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct LarsRule {
    /// The learning rate.
    pub lr: f64,
    /// The weight decay, added to the gradient.
    pub decay: f64,
    /// The trust coefficient: the largest ratio of a step's norm to the weights' norm, before the learning rate.
    pub trust: f64,
    /// The momentum: the share of the last velocity that a step retains.
    pub momentum: f32,
    /// The factor on the gradient, applied first: 1 over the loss scale.
    pub factor: f32,
    /// 1 for tensors with a rate of their own and weight decay; 0 for biases and norms.
    pub own: u32,
    /// Padding, always 0.
    pub unused: u32,
}

impl AdamRule {
    /// The rule of step `t` (1, 2, ...), rounded as the CPU's optimiser rounds it.
    pub fn new(
        t: u64,
        lr: f64,
        (beta1, beta2): (f64, f64),
        eps: f64,
        decay: f64,
        decoupled: bool,
    ) -> AdamRule {
        let correction = |beta: f64| 1.0 - beta.powi(i32::try_from(t).unwrap_or(i32::MAX));
        AdamRule {
            added: if decoupled { 0.0 } else { decay as f32 },
            kept: if decoupled { (1.0 - lr * decay) as f32 } else { 1.0 },
            rate: (lr / correction(beta1)) as f32,
            root: correction(beta2).sqrt() as f32,
            eps: eps as f32,
            from_g: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            from_square: (1.0 - beta2) as f32,
            factor: 1.0,
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Tensor {
    param: u64,
    grad: u64,
    master: u64,
    m: u64,
    v: u64,
    count: u64,
}

/// A parameter with its gradient and optimiser state: `param` has elements of the parameters' type, the other slices f32.
#[derive(Clone, Copy, Debug)]
pub struct Param<'a> {
    /// The parameter.
    pub param: Slice<'a>,
    /// The gradient of the parameter.
    pub grad: Slice<'a>,
    /// The master weights of a 16-bit parameter.
    pub master: Option<Slice<'a>>,
    /// The first moment (Adam).
    pub m: Option<Slice<'a>>,
    /// The second moment (Adam), or the velocity (SGD, LARS).
    pub v: Option<Slice<'a>>,
}

/// What a step reads on the device when it runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepReads<'a> {
    /// A flag (u32): if it is not 0, nothing changes.
    pub skip: Option<Slice<'a>>,
    /// A factor (f32) by which the rule's factor on gradients is multiplied.
    pub factor: Option<Slice<'a>>,
}

impl StepReads<'_> {
    /// Adds both as the last arguments of a kernel.
    fn add(self, arguments: Arguments) -> Result<Arguments> {
        self.skip.map_or(Ok(()), |skip| holds("the flag", skip, 1, 4))?;
        self.factor.map_or(Ok(()), |factor| holds("the factor", factor, 1, 4))?;
        Ok(reads_if(reads_if(arguments, self.skip), self.factor))
    }
}

/// The role of a slice of a [`Param`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Param,
    Grad,
    Master,
    First,
    Second,
}

/// The role and memory range of a slice of a [`Param`].
#[derive(Clone, Copy, Debug)]
struct Range {
    role: Role,
    address: u64,
    bytes: usize,
}

impl Range {
    fn of(role: Role, part: Slice<'_>) -> Range {
        Range { role, address: part.address(), bytes: part.len() }
    }

    fn access(&self, write: bool) -> MemoryAccess {
        MemoryAccess { address: self.address, bytes: self.bytes as u64, write }
    }
}

/// The parameters of a model, with the kernel's tables, which are made once.
#[derive(Debug)]
pub struct Params<'a> {
    dtype: DType,
    jobs: u32,
    tensors: Memory,
    table: Memory,
    whole: (bool, bool),
    /// The memory ranges that the tables name.
    ranges: Vec<Range>,
    /// The owners of the memory that the tables name, where it is not borrowed.
    _owners: Vec<Arc<Memory>>,
    parts: std::marker::PhantomData<Slice<'a>>,
}

impl<'a> Params<'a> {
    /// Makes the tables for parameters of one type.
    ///
    /// # Errors
    /// [`Error::Argument`] if the slices of a parameter differ in length.
    pub fn new(queue: &Queue, dtype: DType, params: &[Param<'a>]) -> Result<Params<'a>> {
        trained(dtype)?;
        let (mut tensors, mut ranges) = (Vec::new(), Vec::new());
        for param in params {
            let count = param.param.elements(dtype.size())?;
            holds("a gradient", param.grad, count, 4)?;
            let state = [param.master, param.m, param.v];
            for part in state.iter().flatten() {
                holds("an optimiser's state", *part, count, 4)?;
            }
            ranges.extend([Range::of(Role::Param, param.param), Range::of(Role::Grad, param.grad)]);
            let roles = state.into_iter().zip([Role::Master, Role::First, Role::Second]);
            ranges.extend(roles.filter_map(|(part, role)| Some(Range::of(role, part?))));
            let [master, m, v] = state.map(|part| part.map_or(0, |part| part.address()));
            let (param, grad) = (param.param.address(), param.grad.address());
            tensors.push(Tensor { param, grad, master, m, v, count });
        }
        let jobs = jobs(tensors.iter().map(|tensor| tensor.count))?;
        debug_assert!(JOB.is_multiple_of(8));
        let whole = (tensors.iter().all(|t| t.v != 0), tensors.iter().all(|t| t.m != 0 && t.v != 0));
        let (tensors, table) = (queue.upload(&tensors)?, queue.upload(&jobs)?);
        let (jobs, parts) = (small("jobs", jobs.len())?, std::marker::PhantomData);
        Ok(Params { dtype, jobs, tensors, table, whole, ranges, _owners: Vec::new(), parts })
    }

    /// Gives the tables shared ownership of the memory that they name, instead of a borrow.
    ///
    /// # Errors
    /// [`Error::Argument`] if a part is in none of the `owners`.
    pub fn owning(self, owners: Vec<Arc<Memory>>) -> Result<Params<'static>> {
        let inside = |range: &Range| {
            let holds = |owner: &Arc<Memory>| {
                let at = range.address.checked_sub(owner.address());
                at.is_some_and(|at| at as usize <= owner.len() && range.bytes <= owner.len() - at as usize)
            };
            owners.iter().any(holds)
        };
        if !self.ranges.iter().all(inside) {
            return Err(Error::Argument(
                "a part of the parameters is in no owner's memory, so it may be freed before its use".into(),
            ));
        }
        let Params { dtype, jobs, tensors, table, whole, ranges, .. } = self;
        let parts = std::marker::PhantomData;
        Ok(Params { dtype, jobs, tensors, table, whole, ranges, _owners: owners, parts })
    }

    /// The two tables as arguments, and the ranges that a kernel reads (`false`) or writes (`true`) by role; `None` skips a role.
    fn tables(&self, write: impl Fn(Role) -> Option<bool>) -> Arguments {
        let tables = Arguments::new().reads(self.tensors.all()).reads(self.table.all());
        tables.notes(self.ranges.iter().filter_map(|range| Some(range.access(write(range.role)?))))
    }

    fn step<R: Pod>(&self, queue: &Queue, stem: &str, rule: R, reads: StepReads<'_>) -> Result<()> {
        if self.jobs == 0 {
            return Ok(());
        }
        // The master weights are read in place of a narrow parameter.
        let read = self.ranges.iter().filter(|range| range.role != Role::Grad);
        let read = read.filter(|range| range.role != Role::Param || self.dtype == DType::F32);
        let arguments =
            self.tables(|role| Some(role != Role::Grad)).notes(read.map(|range| range.access(false)));
        let arguments = reads.add(arguments.with(rule))?;
        run(queue, Kernel::typed(Family::Optim, stem, self.dtype), [self.jobs, 1, 1], arguments)
    }
}

/// A step of stochastic gradient descent, bitwise equal to the CPU's.
///
/// # Errors
/// [`Error::Argument`] for momentum without a velocity.
pub fn sgd(queue: &Queue, params: &Params<'_>, rule: SgdRule, reads: StepReads<'_>) -> Result<()> {
    if rule.momentum != 0.0 && !params.whole.0 {
        return Err(Error::Argument("momentum needs a velocity for every parameter".into()));
    }
    params.step(queue, "sgd", rule, reads)
}

/// A step of Adam or AdamW, bitwise equal to the CPU's.
///
/// # Errors
/// [`Error::Argument`] without both moments.
pub fn adam(queue: &Queue, params: &Params<'_>, rule: AdamRule, reads: StepReads<'_>) -> Result<()> {
    if !params.whole.1 {
        return Err(Error::Argument("Adam needs both moments of every parameter".into()));
    }
    params.step(queue, "adam", rule, reads)
}

/// The norms of a network's parameters, where ranks have parts of them.
#[derive(Clone, Copy, Debug)]
pub struct LarsNorms<'a> {
    /// For each tensor of the tables (u32): the number of its parameter in the network, with the highest bit set if the elements do not
    /// count, because another rank counts the same elements.
    pub numbers: Slice<'a>,
    /// For each parameter of the network (f64): the sum of the squares of its values, and of its gradient.
    pub totals: Slice<'a>,
}

impl LarsNorms<'_> {
    /// The bit that is set in the number of a tensor whose elements do not count.
    pub const UNCOUNTED: u32 = 1 << 31;

    fn fit(&self, params: &Params<'_>) -> Result<()> {
        let tensors = params.tensors.len() / size_of::<Tensor>();
        holds("the numbers of parameters", self.numbers, tensors as u64, 4)?;
        self.totals.elements(8).map(drop)
    }
}

fn lars_sums(queue: &Queue, params: &Params<'_>, factor: f32, by: Option<Slice<'_>>) -> Result<Memory> {
    let sums = queue.memory(16 * params.jobs as usize)?;
    let read = |role| matches!(role, Role::Param | Role::Grad | Role::Master).then_some(false);
    let arguments = reads_if(params.tables(read).with(factor), by).writes(sums.all());
    let kernel = Kernel::typed(Family::Optim, "lars_norms", params.dtype);
    run(queue, kernel, [params.jobs, 1, 1], arguments)?;
    Ok(sums)
}

/// Writes the sums of squares of this rank's elements that count to the totals; `factor` scales gradients, and so does that of
/// `reads`. The totals of other parameters are not written.
///
/// # Errors
/// [`Error::Argument`] for a buffer of the wrong length.
pub fn lars_norms(
    queue: &Queue,
    params: &Params<'_>,
    factor: f32,
    norms: LarsNorms<'_>,
    reads: StepReads<'_>,
) -> Result<()> {
    norms.fit(params)?;
    if params.jobs == 0 {
        return Ok(());
    }
    let sums = lars_sums(queue, params, factor, reads.factor)?;
    let arguments = params.tables(|_| None).reads(sums.all()).reads(norms.numbers).writes(norms.totals);
    run(queue, Kernel::plain(Family::Optim, "lars_totals"), [params.jobs, 1, 1], arguments)
}

/// A step of LARS; norms are summed in f64, in a fixed order, or are those of `norms`.
///
/// # Errors
/// [`Error::Argument`] without a velocity.
pub fn lars(
    queue: &Queue,
    params: &Params<'_>,
    rule: LarsRule,
    norms: Option<LarsNorms<'_>>,
    reads: StepReads<'_>,
) -> Result<()> {
    if !params.whole.0 {
        return Err(Error::Argument("LARS needs a velocity for every parameter".into()));
    }
    if let Some(norms) = norms {
        norms.fit(params)?;
    }
    if params.jobs == 0 {
        return Ok(());
    }
    let own = norms.is_none().then(|| lars_sums(queue, params, rule.factor, reads.factor));
    let sums = own.transpose()?;
    let arguments = params.tables(|role| (role != Role::First).then_some(role != Role::Grad)).with(rule);
    let arguments = reads_if(arguments, sums.as_ref().map(Memory::all));
    let arguments =
        reads_if(reads_if(arguments, norms.map(|norms| norms.totals)), norms.map(|norms| norms.numbers));
    let kernel = Kernel::typed(Family::Optim, "lars", params.dtype);
    run(queue, kernel, [params.jobs, 1, 1], reads.add(arguments)?)
}
