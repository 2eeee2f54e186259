//! A model's values on a device: for each unit parameters with narrow copies and gradients, and buffers.
//!
//! ```text
//! params   f32   the network's layout, each parameter begins at a multiple of 64 elements      the master weights
//! narrow   16    the layout of params: what autocast's layers read, written by the optimiser's launch that updates params
//! grads    f32   the layout of params, or bucket by bucket in the order in which they become ready: a bucket is sent from here
//! ```

use super::groups::GpuGroups;
use super::spans::{part, zeroed};
use super::unit::UnitMemory;
use crate::buckets::Bucket;
use crate::engine::{Keep, MeshAxis, RankPlace};
use crate::{Error, Network, Result};
use allfold_collectives::Rank;
use allfold_cuda::{Memory, Queue, Slice};
use allfold_gpu_passes::{ChannelsLast, TensorFormats, Values, turned};
use allfold_kernels::DType;
use allfold_kernels::nn::Float;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// The alignment of parameters in elements: 256 bytes, so that every vector access is aligned.
const GRAIN: usize = 64;

/// A range of elements of a flat buffer.
type Span = Range<usize>;

/// The tensors of a rank's units, and its buffers.
pub(super) struct Weights {
    pub units: Vec<UnitMemory>,
    /// The units that an evaluation has gathered.
    pub opened: Vec<usize>,
    /// Each parameter's unit, and its elements there.
    places: Vec<(usize, Span)>,
    /// The elements of each parameter's gradient among its unit's; `None` for a frozen parameter.
    slots: Vec<Option<Span>>,
    /// Whether the optimiser updates a parameter.
    trained: Vec<bool>,
    /// Whether a parameter has a gradient of this step.
    begun: Vec<Cell<bool>>,
    /// For each bucket, its range of the gradients; empty without buckets.
    pub buckets: Vec<Span>,
    /// The parameters of each bucket, in order.
    pub members: Vec<Bucket>,
    /// The type of the narrow copies.
    pub narrow: Option<DType>,
    /// The network's buffers, in the network's layout.
    pub buffers: Memory,
    /// For each parameter, whether a layer reads it in the narrow type.
    pub narrowed: Vec<bool>,
    /// For each parameter that is a filter stored with channels last: its number of channels and of pixels.
    filters: Vec<ChannelsLast>,
}

impl Weights {
    /// The units of a network on the rank at `place`; without memory for them yet.
    pub fn new(
        network: &Network<f32>,
        place: &RankPlace,
        (precision, filters): (&TensorFormats, &[ChannelsLast]),
        queue: &Queue,
    ) -> Result<Weights> {
        let mut places = vec![(0, 0..0); network.params().len()];
        let mut units = Vec::new();
        // Every stage of a pipeline pads alike, whatever it keeps of a unit.
        let is_cut =
            place.units.iter().any(|spec| !matches!(spec.keep, Keep::Whole | Keep::First | Keep::Nothing));
        for (at, spec) in place.units.iter().enumerate() {
            let part = place.part(at);
            let grain = if is_cut { GRAIN * part.size } else { GRAIN };
            let (values, mut end) = (place.outline.values_in(&spec.layers), 0);
            for (param, own) in network.params().iter().enumerate() {
                if values.start <= own.range.start && own.range.end <= values.end && !values.is_empty() {
                    places[param] = (at, end..end + own.range.len());
                    end = (end + own.range.len()).next_multiple_of(GRAIN);
                }
            }
            let elements = end.max(GRAIN).next_multiple_of(grain);
            units.push(UnitMemory::new((spec.keep, place.has_some_experts(at)), elements, part));
        }
        let mut trained = vec![false; places.len()];
        network.order().into_iter().for_each(|param| trained[param] = true);
        let mut narrowed = vec![false; places.len()];
        for (l, _) in network.layers().iter().enumerate().filter(|(l, _)| precision.narrows(network, *l)) {
            network.params_of(l).for_each(|param| narrowed[param] = true);
        }
        let buffers = zeroed(queue, 4 * network.buffer_count().max(1))?;
        let slot = |(param, (_, place)): (usize, &(usize, Span))| trained[param].then(|| place.clone());
        Ok(Weights {
            slots: places.iter().enumerate().map(slot).collect(),
            units,
            opened: Vec::new(),
            places,
            begun: vec![Cell::new(false); trained.len()],
            trained,
            buckets: Vec::new(),
            members: Vec::new(),
            narrow: precision.narrow,
            buffers,
            narrowed,
            filters: filters.to_vec(),
        })
    }

    /// Lays the gradients out in these buckets, before the units' memory is allocated.
    ///
    /// # Errors
    /// Several units.
    pub fn use_buckets(&mut self, members: &[Bucket]) -> Result<()> {
        let [unit] = &mut self.units[..] else {
            return Err(Error::Strategy("buckets need all layers in one unit".into()));
        };
        let mut end = 0;
        self.slots.fill(None);
        for bucket in members {
            let start = end;
            for &param in &bucket.params {
                let n = self.places[param].1.len();
                self.slots[param] = Some(end..end + n);
                end = (end + n).next_multiple_of(GRAIN);
            }
            self.buckets.push(start..end);
        }
        unit.graded = end.max(GRAIN);
        self.members = members.to_vec();
        Ok(())
    }

    /// Allocates what the rank keeps of its units between steps.
    pub fn allocate(&mut self, queue: &Queue) -> Result<()> {
        let narrow = self.narrow;
        self.units.iter_mut().try_for_each(|unit| unit.allocate(queue, narrow))
    }

    /// Notes that all parameters have gradients of this step, or that none has.
    pub fn all_begun(&mut self, begun: bool) {
        self.begun.fill(Cell::new(begun));
        self.units.iter_mut().for_each(|unit| unit.part_begun = begun);
    }

    /// Allocates the whole gradient of a unit, unless it exists.
    pub fn allocate_grads(&mut self, unit: usize, queue: &Queue) -> Result<()> {
        if self.units[unit].allocate_grads(queue)? {
            let own = self.places.iter().zip(&self.begun).filter(|((at, _), _)| *at == unit);
            own.for_each(|(_, begun)| begun.set(false));
        }
        Ok(())
    }

    /// Converts a parameter's values from the network's layout to the device's.
    fn there(&self, param: usize, values: Vec<f32>) -> Vec<f32> {
        match self.filters[param] {
            Some(shape) => turned(&values, shape),
            None => values,
        }
    }

    /// Converts a parameter's values from the device's layout to the network's.
    fn back(&self, param: usize, values: Vec<f32>) -> Vec<f32> {
        match self.filters[param] {
            Some((channels, places)) => turned(&values, (places, channels)),
            None => values,
        }
    }

    /// Copies the gradients of a bucket to the host, one after the other, in the layout of the CPU's buckets.
    pub fn read_bucket(&self, queue: &Queue, bucket: &Bucket) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        for &param in &bucket.params {
            let Some(slot) = self.grad(param)? else { continue };
            values.extend(self.back(param, queue.download(slot)?));
        }
        Ok(values)
    }

    /// Copies the gradients of a bucket from the host, where they have the layout of the CPU's buckets, to the device.
    pub fn write_bucket(&self, queue: &Queue, bucket: &Bucket, values: &[f32]) -> Result<()> {
        let mut rest = values;
        for &param in &bucket.params {
            let Some(slot) = self.grad(param)? else { continue };
            let (own, after) = rest.split_at(slot.len() / 4);
            queue.write(slot, &self.there(param, own.to_vec()))?;
            rest = after;
        }
        Ok(())
    }

    /// A parameter's elements in this rank's part of its unit, if the optimiser updates any of them here: the parameter's unit, the
    /// elements there, and those of the gradient.
    pub fn own(&self, param: usize) -> Option<(usize, Span, Span)> {
        let ((at, place), slot) = (&self.places[param], self.slots[param].as_ref()?);
        let unit = &self.units[*at];
        let own = place.start.max(unit.own.start)..place.end.min(unit.own.end);
        let shift = |of: usize| slot.start + of - place.start;
        (self.trained[param] && !own.is_empty()).then(|| (*at, own.clone(), shift(own.start)..shift(own.end)))
    }

    /// The unit of a parameter.
    pub fn unit_of(&self, param: usize) -> usize {
        self.places[param].0
    }

    /// The elements of unit `unit`'s reduced gradient, as far as this rank has them, of the parameters that `counts` selects.
    pub fn reduced_of(&self, unit: usize, counts: impl Fn(usize) -> bool) -> Vec<Span> {
        let from = self.units[unit].own_grads().1;
        let own = (0..self.places.len()).filter(|param| counts(*param)).filter_map(|param| self.own(param));
        own.filter(|(at, ..)| *at == unit).map(|(_, _, grad)| grad.start - from..grad.end - from).collect()
    }

    /// Copies parameters and buffers, in the network's layout, from the host to the device.
    pub fn upload<F: Float>(
        &mut self,
        network: &Network<f32>,
        queue: &Queue,
        params: &[F],
        buffers: &[F],
    ) -> Result<()> {
        for at in 0..self.units.len() {
            let flat = self.to_unit(network, at, params);
            let unit = &mut self.units[at];
            if let Some(own) = &unit.param_part {
                queue.write(own.all(), &flat[unit.own.clone()])?;
            } else if let Some(whole) = &unit.params {
                queue.write(whole.all(), &flat)?;
                unit.narrow_params(queue, self.narrow)?;
            }
        }
        if !buffers.is_empty() {
            queue.write(self.buffers.all(), &narrowed(buffers))?;
        }
        Ok(())
    }

    /// Copies parameters, whose units are whole, and buffers from the device to the host, in the network's layout.
    pub fn download<F: Float>(
        &self,
        network: &Network<f32>,
        queue: &Queue,
        params: &mut [F],
        buffers: &mut [F],
    ) -> Result<()> {
        for (at, unit) in self.units.iter().enumerate() {
            let flat: Vec<f32> = queue.download(here(&unit.params)?.all())?;
            self.put_unit(network, at, &flat, params);
        }
        if !buffers.is_empty() {
            widened(&queue.download::<f32>(self.buffers.all())?, buffers);
        }
        Ok(())
    }

    /// The values of a unit's parameters, of all parameters in the network's layout, in the device's layout.
    pub fn to_unit<F: Float>(&self, network: &Network<f32>, unit: usize, values: &[F]) -> Vec<f32> {
        let mut flat = vec![0.0f32; self.units[unit].elements];
        for (param, (spec, (at, place))) in network.params().iter().zip(&self.places).enumerate() {
            if *at == unit {
                let own = self.there(param, narrowed(&values[spec.range.clone()]));
                flat[place.clone()].copy_from_slice(&own);
            }
        }
        flat
    }

    /// The inverse of [`Weights::to_unit`]: puts the values of a unit's parameters among those of all.
    pub fn put_unit<F: Float>(&self, network: &Network<f32>, unit: usize, flat: &[f32], values: &mut [F]) {
        for (param, (spec, (at, place))) in network.params().iter().zip(&self.places).enumerate() {
            if *at == unit {
                let own = self.back(param, flat[place.clone()].to_vec());
                widened(&own, &mut values[spec.range.clone()]);
            }
        }
    }
}

impl Values for Weights {
    fn param(&self, param: usize) -> allfold_gpu_passes::Result<Slice<'_>> {
        let (unit, place) = &self.places[param];
        Ok(part(here(&self.units[*unit].params)?.all(), place, 4)?)
    }

    fn read(&self, param: usize, narrow: bool) -> allfold_gpu_passes::Result<Slice<'_>> {
        let (unit, place) = &self.places[param];
        match self.narrow {
            Some(dtype) if narrow => Ok(part(here(&self.units[*unit].narrow)?.all(), place, dtype.size())?),
            _ => self.param(param),
        }
    }

    fn grad(&self, param: usize) -> allfold_gpu_passes::Result<Option<Slice<'_>>> {
        let Some(slot) = &self.slots[param] else { return Ok(None) };
        let grads = here(&self.units[self.places[param].0].grads)?;
        Ok(Some(part(grads.all(), slot, 4)?))
    }

    fn begin_grad(&self, param: usize) -> bool {
        self.begun[param].replace(true)
    }

    fn buffers(&self) -> Slice<'_> {
        self.buffers.all()
    }
}

/// The whole of a vector with the layout of the parameters of unit `at`, of which `own` is this rank's part; with [`Keep::First`], the
/// first rank's vector. Every rank must call it.
pub(super) fn whole_of(
    (at, unit): (usize, &UnitMemory),
    own: Option<&Arc<Memory>>,
    queue: &Queue,
    groups: &mut GpuGroups<'_>,
) -> Result<Arc<Memory>> {
    let holder = groups.holders[at];
    if !groups.serving.is_empty() {
        return of_servers(unit, own, queue, groups);
    }
    let whole = match own {
        _ if unit.keep == Keep::First => {
            let whole = match own.filter(|own| own.len() == 4 * unit.elements) {
                Some(own) => own.clone(),
                None => Arc::new(queue.memory(4 * unit.elements)?),
            };
            groups.data().broadcast(queue, whole.all(), Rank(0))?;
            whole
        }
        Some(own) if own.len() == 4 * unit.elements => own.clone(),
        _ => {
            let whole = queue.memory(4 * unit.elements)?;
            if let Some(own) = own.filter(|_| unit.keep != Keep::Nothing) {
                queue.copy(part(whole.all(), &unit.own, 4)?, own.all())?;
                let sharers = groups.sharers(unit.some_experts);
                sharers.all_gather(queue, DType::F32, whole.all())?;
                sharers.join(queue)?;
            }
            Arc::new(whole)
        }
    };
    if let Some(pipeline) = groups.along(MeshAxis::Pipeline) {
        pipeline.broadcast(queue, whole.all(), holder)?;
    }
    Ok(whole)
}

/// The whole of a vector with the layout of a unit's parameters, from the parts of all servers. `own` is this rank's part or, on a
/// worker, a copy that is overwritten by the whole.
fn of_servers(
    unit: &UnitMemory,
    own: Option<&Arc<Memory>>,
    queue: &Queue,
    groups: &mut GpuGroups<'_>,
) -> Result<Arc<Memory>> {
    let whole = match own.filter(|own| unit.own.is_empty() && own.len() == 4 * unit.elements) {
        Some(copy) => copy.clone(),
        None => Arc::new(queue.memory(4 * unit.elements)?),
    };
    if let Some(own) = own.filter(|_| !unit.own.is_empty()) {
        queue.copy(part(whole.all(), &unit.own, 4)?, own.all())?;
    }
    for (server, range) in unit.parts(groups.servers).into_iter().enumerate() {
        groups.world.broadcast(queue, part(whole.all(), &range, 4)?, Rank(server as u32))?;
    }
    Ok(whole)
}

/// Memory that must have been allocated by now.
pub(super) fn here(memory: &Option<Arc<Memory>>) -> allfold_gpu_passes::Result<&Arc<Memory>> {
    memory.as_ref().ok_or_else(|| {
        allfold_gpu_passes::Error::Absent(
            "a unit's parameters or gradients are used while this rank has only its part".into(),
        )
    })
}

fn narrowed<F: Float>(values: &[F]) -> Vec<f32> {
    values.iter().map(|value| value.to_f64() as f32).collect()
}

fn widened<F: Float>(from: &[f32], into: &mut [F]) {
    into.iter_mut().zip(from).for_each(|(into, from)| *into = F::from_f64(f64::from(*from)));
}
