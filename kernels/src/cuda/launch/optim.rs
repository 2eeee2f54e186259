//! Optimiser steps over many tensors in one launch.

use super::bucket::{JOB, jobs};
use super::{Moved, holds, reads_if, run, small, trained};
use crate::DType;
use crate::cuda::{Arguments, Error, Family, Kernel, Memory, MemoryAccess, Queue, Result, Slice};
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;

/// A step of stochastic gradient descent, as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct SgdRule {
    /// Learning rate.
    pub lr: f32,
    /// 0 keeps no velocity.
    pub momentum: f32,
    /// Weight decay, added to the gradient.
    pub decay: f32,
    /// Multiplies the gradient first: 1 over the loss scale.
    pub factor: f32,
    /// 1 for the first step, which has no velocity yet.
    pub first: u32,
    /// 1 for Nesterov's momentum.
    pub nesterov: u32,
}

/// A step of Adam or AdamW; the host has done what is the same for every element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct AdamRule {
    /// Weight decay added to the gradient (Adam).
    pub added: f32,
    /// What the parameter is multiplied by, 1 - lr decay (AdamW).
    pub kept: f32,
    /// lr / (1 - beta1^t).
    pub rate: f32,
    /// sqrt(1 - beta2^t).
    pub root: f32,
    /// Added to the denominator.
    pub eps: f32,
    /// 1 - beta1.
    pub from_g: f32,
    /// beta2.
    pub beta2: f32,
    /// 1 - beta2.
    pub from_square: f32,
    /// Multiplies the gradient first: 1 over the loss scale.
    pub factor: f32,
}

/// A step of LARS, as the kernel takes it; a ratio is found on the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct LarsRule {
    /// Learning rate.
    pub lr: f64,
    /// Weight decay, added to the gradient.
    pub decay: f64,
    /// How long a step may be, beside the weights.
    pub trust: f64,
    /// What a step keeps of the last one's velocity.
    pub momentum: f32,
    /// Multiplies the gradient first: 1 over the loss scale.
    pub factor: f32,
    /// 1 where tensors have rates of their own and decay; 0 for biases and norms.
    pub own: u32,
    /// 0.
    pub unused: u32,
}

impl AdamRule {
    /// Step `t` (1, 2, ...), rounded as the CPU's optimiser rounds it.
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

/// One parameter with its gradient and optimiser state: `param` has elements of T, the others of f32.
#[derive(Clone, Copy, Debug)]
pub struct Param<'a> {
    /// The parameter.
    pub param: Slice<'a>,
    /// The gradient of the parameter.
    pub grad: Slice<'a>,
    /// The master weights of a 16-bit parameter.
    pub master: Option<Slice<'a>>,
    /// First moment (Adam).
    pub m: Option<Slice<'a>>,
    /// Second moment (Adam), or velocity (SGD).
    pub v: Option<Slice<'a>>,
}

/// What a part of a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Param,
    Grad,
    Master,
    First,
    Second,
}

/// Where a part of a parameter lies.
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

/// The parameters of a model, in tables that are made once.
#[derive(Debug)]
pub struct Params<'a> {
    dtype: DType,
    jobs: u32,
    bytes: u64,
    tensors: Memory,
    table: Memory,
    whole: (bool, bool),
    /// All parts.
    ranges: Vec<Range>,
    /// What keeps them, where it is not a borrow.
    _owners: Vec<Arc<Memory>>,
    parts: std::marker::PhantomData<Slice<'a>>,
}

impl<'a> Params<'a> {
    /// Parameters of one type.
    ///
    /// # Errors
    /// [`Error::Argument`] if what belongs together differs in length.
    pub fn new(queue: &Queue, dtype: DType, params: &[Param<'a>]) -> Result<Params<'a>> {
        trained(dtype)?;
        let (mut tensors, mut bytes, mut ranges) = (Vec::new(), 0, Vec::new());
        for param in params {
            let count = param.param.elements(dtype.size())?;
            holds("a gradient", param.grad, count, 4)?;
            let state = [param.master, param.m, param.v];
            for part in state.iter().flatten() {
                holds("an optimiser's state", *part, count, 4)?;
            }
            let states = state.iter().flatten().count() as u64;
            // Written always, and read where there is no master.
            let own = if param.master.is_some() { 1 } else { 2 };
            bytes += count * (own * dtype.size() as u64 + 4 + 8 * states);
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
        Ok(Params { dtype, jobs, bytes, tensors, table, whole, ranges, _owners: Vec::new(), parts })
    }

    /// These tables with shared ownership of the memory that they name, instead of a borrow.
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
            return Err(Error::Argument("a part of the parameters is in memory that is not kept".into()));
        }
        let Params { dtype, jobs, bytes, tensors, table, whole, ranges, .. } = self;
        let parts = std::marker::PhantomData;
        Ok(Params { dtype, jobs, bytes, tensors, table, whole, ranges, _owners: owners, parts })
    }

    /// Both tables, and the parts that a kernel reads (`false`) or writes (`true`), by what they are.
    fn tables(&self, write: impl Fn(Role) -> Option<bool>) -> Arguments {
        let tables = Arguments::new().reads(self.tensors.all()).reads(self.table.all());
        tables.notes(self.ranges.iter().filter_map(|range| Some(range.access(write(range.role)?))))
    }

    fn step<R: Pod>(&self, queue: &Queue, stem: &str, rule: R, skip: Option<Slice<'_>>) -> Result<Moved> {
        if let Some(skip) = skip {
            holds("the flag", skip, 1, 4)?;
        }
        if self.jobs == 0 {
            return Ok(0);
        }
        let arguments = reads_if(self.tables(|role| Some(role != Role::Grad)).with(rule), skip);
        run(queue, Kernel::typed(Family::Optim, stem, self.dtype), [self.jobs, 1, 1], arguments)?;
        Ok(self.bytes)
    }
}

/// A step of stochastic gradient descent, the bits of the CPU's. A `skip` that is not 0 on the device makes it none.
///
/// # Errors
/// [`Error::Argument`] for momentum without a velocity.
pub fn sgd(queue: &Queue, params: &Params<'_>, rule: SgdRule, skip: Option<Slice<'_>>) -> Result<Moved> {
    if rule.momentum != 0.0 && !params.whole.0 {
        return Err(Error::Argument("momentum needs a velocity for every parameter".into()));
    }
    params.step(queue, "sgd", rule, skip)
}

/// A step of Adam or AdamW, the bits of the CPU's. A `skip` that is not 0 on the device makes it none.
///
/// # Errors
/// [`Error::Argument`] without both moments.
pub fn adam(queue: &Queue, params: &Params<'_>, rule: AdamRule, skip: Option<Slice<'_>>) -> Result<Moved> {
    if !params.whole.1 {
        return Err(Error::Argument("Adam needs both moments of every parameter".into()));
    }
    params.step(queue, "adam", rule, skip)
}

/// A step of LARS; norms are summed in f64, in a fixed order. A `skip` that is not 0 on the device makes it none.
///
/// # Errors
/// [`Error::Argument`] without a velocity.
pub fn lars(queue: &Queue, params: &Params<'_>, rule: LarsRule, skip: Option<Slice<'_>>) -> Result<Moved> {
    if !params.whole.0 {
        return Err(Error::Argument("LARS needs a velocity for every parameter".into()));
    }
    if let Some(skip) = skip {
        holds("the flag", skip, 1, 4)?;
    }
    if params.jobs == 0 {
        return Ok(0);
    }
    let sums = queue.memory(16 * params.jobs as usize)?;
    let read = |role| matches!(role, Role::Param | Role::Grad | Role::Master).then_some(false);
    let norms = params.tables(read).with(rule.factor).writes(sums.all());
    let grid = [params.jobs, 1, 1];
    run(queue, Kernel::typed(Family::Optim, "lars_norms", params.dtype), grid, norms)?;
    let arguments = params.tables(|role| (role != Role::First).then_some(role != Role::Grad));
    let arguments = reads_if(arguments.with(rule).reads(sums.all()), skip);
    run(queue, Kernel::typed(Family::Optim, "lars", params.dtype), grid, arguments)?;
    Ok(2 * params.bytes)
}
