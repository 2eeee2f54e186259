//! A model's values on a device: parameters with their narrow copies, gradients, and buffers.
//!
//! ```text
//! params   f32   the network's layout, each parameter begins at a multiple of 64 elements      the master weights
//! narrow   16    the layout of params: what autocast's layers read, written by the optimiser's launch that updates params
//! grads    f32   bucket by bucket, in the order in which they become ready: a bucket is sent from this memory
//! ```

use super::layout::{ChannelsLast, turned};
use super::precision::Precision;
use crate::Result;
use crate::buckets::{Bucket, grouped};
use crate::{Config, Network};
use allfold_kernels::DType;
use allfold_kernels::cuda::{Memory, Queue, Slice, launch};
use allfold_kernels::nn::Float;
use std::ops::Range;
use std::sync::Arc;

/// The alignment of parameters in elements: 256 bytes, so that every vector access is aligned.
const GRAIN: usize = 64;

/// A range of elements of a flat buffer.
type Span = Range<usize>;

/// The tensors that live as long as the run.
pub(super) struct Weights {
    /// The range of each parameter in `params`, `narrow` and the optimiser's state.
    places: Vec<Span>,
    /// The range of each parameter's gradient; `None` for a frozen or unreached parameter.
    slots: Vec<Option<Span>>,
    /// For each bucket, its range of `grads`.
    pub buckets: Vec<Span>,
    /// The parameters of each bucket, in order.
    pub members: Vec<Bucket>,
    pub params: Arc<Memory>,
    pub narrow: Option<(DType, Arc<Memory>)>,
    pub grads: Arc<Memory>,
    /// The sum of the gradients of the step's earlier micro-batches; `None` without accumulation.
    pub held: Option<Arc<Memory>>,
    /// The network's buffers, in the network's layout.
    pub buffers: Memory,
    /// For each parameter, whether a layer reads it in the narrow type.
    pub narrowed: Vec<bool>,
    /// For each parameter that is a filter stored with channels last: its number of channels and of pixels.
    filters: Vec<ChannelsLast>,
}

impl Weights {
    pub fn new(
        network: &Network<f32>,
        config: &Config,
        (precision, filters): (&Precision, &[ChannelsLast]),
        queue: &Queue,
    ) -> Result<Weights> {
        let mut end = 0;
        let mut place = |n: usize| {
            let start = end;
            end = (start + n).next_multiple_of(GRAIN);
            start..start + n
        };
        let places: Vec<Span> = network.params().iter().map(|param| place(param.range.len())).collect();
        let elements = end.max(GRAIN);
        let members = grouped(&network.order(), network.params(), (4, config.caps()), &config.groups);
        let (mut slots, mut buckets, mut end) = (vec![None; places.len()], Vec::new(), 0);
        for bucket in &members {
            let start = end;
            for &param in &bucket.params {
                let n = places[param].len();
                slots[param] = Some(end..end + n);
                end = (end + n).next_multiple_of(GRAIN);
            }
            buckets.push(start..end);
        }
        let graded = end.max(GRAIN);
        let fresh = |bytes: usize| -> Result<Memory> {
            let memory = Memory::new(queue.machine(), queue.device(), bytes)?;
            queue.fill(memory.all(), 0)?;
            Ok(memory)
        };
        let mut narrowed = vec![false; places.len()];
        for (l, _) in network.layers().iter().enumerate().filter(|(l, _)| precision.narrows(network, *l)) {
            network.params_of(l).for_each(|param| narrowed[param] = true);
        }
        let narrow = match precision.narrow {
            Some(dtype) => Some((dtype, Arc::new(fresh(elements * dtype.size())?))),
            None => None,
        };
        Ok(Weights {
            places,
            slots,
            buckets,
            members,
            params: Arc::new(fresh(4 * elements)?),
            narrow,
            grads: Arc::new(fresh(4 * graded)?),
            held: if config.accumulate > 1 { Some(Arc::new(fresh(4 * graded)?)) } else { None },
            buffers: fresh(4 * network.buffer_count().max(1))?,
            narrowed,
            filters: filters.to_vec(),
        })
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

    /// The number of elements of `params`, including gaps for alignment.
    pub fn elements(&self) -> usize {
        self.params.len() / 4
    }

    /// The range of a parameter in the flat buffers.
    pub fn place(&self, param: usize) -> &Span {
        &self.places[param]
    }

    /// The range of a parameter's gradient, if it has one.
    pub fn slot(&self, param: usize) -> Option<&Span> {
        self.slots[param].as_ref()
    }

    /// A parameter's f32 values.
    pub fn param(&self, param: usize) -> Result<Slice<'_>> {
        part(self.params.all(), &self.places[param], 4)
    }

    /// A parameter's values in the narrow type if `narrow` is true and there is a narrow type, else in f32.
    pub fn read(&self, param: usize, narrow: bool) -> Result<Slice<'_>> {
        match &self.narrow {
            Some((dtype, memory)) if narrow => part(memory.all(), &self.places[param], dtype.size()),
            _ => self.param(param),
        }
    }

    /// A parameter's gradient.
    pub fn grad(&self, param: usize) -> Result<Option<Slice<'_>>> {
        self.slots[param].as_ref().map(|slot| part(self.grads.all(), slot, 4)).transpose()
    }

    /// Writes the narrow copies of all parameters again.
    pub fn narrow_all(&self, queue: &Queue) -> Result<()> {
        let Some((dtype, memory)) = &self.narrow else { return Ok(()) };
        launch::cast(queue, (DType::F32, self.params.all()), (*dtype, memory.all()), 1.0)?;
        Ok(())
    }

    /// Copies parameters and buffers, in the network's layout, from the host to the device.
    pub fn upload<F: Float>(
        &self,
        network: &Network<f32>,
        queue: &Queue,
        params: &[F],
        buffers: &[F],
    ) -> Result<()> {
        self.write_like_params(network, queue, &self.params, params)?;
        if !buffers.is_empty() {
            queue.write(self.buffers.all(), &narrowed(buffers))?;
        }
        self.narrow_all(queue)
    }

    /// Copies parameters and buffers from the device to the host, in the network's layout.
    pub fn download<F: Float>(
        &self,
        network: &Network<f32>,
        queue: &Queue,
        params: &mut [F],
        buffers: &mut [F],
    ) -> Result<()> {
        self.read_like_params(network, queue, &self.params, params)?;
        if !buffers.is_empty() {
            widened(&queue.download::<f32>(self.buffers.all())?, buffers);
        }
        Ok(())
    }

    /// Writes `values`, in the network's layout of the parameters, to `into`, in the device's layout.
    pub fn write_like_params<F: Float>(
        &self,
        network: &Network<f32>,
        queue: &Queue,
        into: &Memory,
        values: &[F],
    ) -> Result<()> {
        let mut flat = vec![0.0f32; self.elements()];
        for (param, (place, at)) in network.params().iter().zip(&self.places).enumerate() {
            let own = self.there(param, narrowed(&values[place.range.clone()]));
            flat[at.clone()].copy_from_slice(&own);
        }
        Ok(queue.write(into.all(), &flat)?)
    }

    /// Reads `from`, in the device's layout of the parameters, into `values`, in the network's layout.
    pub fn read_like_params<F: Float>(
        &self,
        network: &Network<f32>,
        queue: &Queue,
        from: &Memory,
        values: &mut [F],
    ) -> Result<()> {
        let flat: Vec<f32> = queue.download(from.all())?;
        for (param, (place, at)) in network.params().iter().zip(&self.places).enumerate() {
            let own = self.back(param, flat[at.clone()].to_vec());
            widened(&own, &mut values[place.range.clone()]);
        }
        Ok(())
    }
}

/// The elements `span` of a buffer whose elements have `size` bytes.
pub(super) fn part<'a>(of: Slice<'a>, span: &Span, size: usize) -> Result<Slice<'a>> {
    Ok(of.part(span.start * size, span.len() * size)?)
}

fn narrowed<F: Float>(values: &[F]) -> Vec<f32> {
    values.iter().map(|value| value.to_f64() as f32).collect()
}

fn widened<F: Float>(from: &[f32], into: &mut [F]) {
    into.iter_mut().zip(from).for_each(|(into, from)| *into = F::from_f64(f64::from(*from)));
}
