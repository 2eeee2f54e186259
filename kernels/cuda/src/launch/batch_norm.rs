//! Batch normalisation, within one rank and over several ranks.

use super::{blocks, holds, reads_if, run, small, trained};
use crate::{Arguments, Family, Kernel, Memory, Queue, Result, Slice};
use allfold_kernels::DType;
use bytemuck::{Pod, Zeroable};

/// The memory layout of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorLayout {
    /// Channels first: `[N, C, H, W]`.
    Planes,
    /// Channels last: `[N, H, W, C]`.
    ChannelsLast,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Plane {
    n: u64,
    channels: u64,
    plane: u64,
    last: u32,
    unused: u32,
}

/// The shape of a batch normalisation and of its batch. Weights, biases, means and r = 1 / sqrt(var + eps) are `[C]` of f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchNormLaunch {
    /// The element type of `x` and `y`.
    pub dtype: DType,
    /// The number of samples, N.
    pub n: usize,
    /// The number of channels, C.
    pub channels: usize,
    /// Values per channel and sample, H times W.
    pub plane: usize,
    /// The layout of the samples.
    pub layout: TensorLayout,
}

/// The statistics that normalise a batch: mean and r = 1 / sqrt(var + eps) of every channel.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    /// The means, `[C]` of f32.
    pub means: Slice<'a>,
    /// The values of r = 1 / sqrt(var + eps), `[C]` of f32.
    pub rs: Slice<'a>,
}

impl BatchNormLaunch {
    fn all(&self) -> u64 {
        (self.n * self.channels * self.plane) as u64
    }

    fn shape(&self) -> Plane {
        let (n, channels, plane) = (self.n as u64, self.channels as u64, self.plane as u64);
        Plane { n, channels, plane, last: u32::from(self.layout == TensorLayout::ChannelsLast), unused: 0 }
    }

    /// The grid of a kernel that reads pictures: one column for each channel, or for each 32 channels where channels are the last
    /// dimension, and slices of a channel's values. There are several times as many blocks as can run at the same time, so that the last
    /// blocks are a small part of the time.
    fn grid(&self, queue: &Queue) -> [u32; 3] {
        let (wide, least) = if self.layout == TensorLayout::ChannelsLast { (32, 64) } else { (1, 1024) };
        let columns = self.channels.div_ceil(wide) as u32;
        let most = (self.n * self.plane).div_ceil(least).clamp(1, 512) as u32;
        [columns, (2 * blocks(queue, self.all(), 4)).div_ceil(columns.max(1)).clamp(1, most), 1]
    }

    fn checks(&self, pictures: &[Slice<'_>], channels: &[Slice<'_>]) -> Result<()> {
        trained(self.dtype)?;
        small("values of a channel", self.n * self.plane)?;
        pictures.iter().try_for_each(|x| holds("a batch norm's input", *x, self.all(), self.dtype.size()))?;
        channels.iter().try_for_each(|c| holds("a value per channel", *c, self.channels as u64, 4))
    }

    fn per_channel(&self, queue: &Queue, name: &str, arguments: Arguments) -> Result<()> {
        let grid = [blocks(queue, self.channels as u64 * 32, 1), 1, 1];
        run(queue, Kernel::plain(Family::BatchNorm, name), grid, arguments)
    }

    fn kernel(&self, stem: &str) -> Kernel {
        Kernel::typed(Family::BatchNorm, stem, self.dtype)
    }

    /// The moments of every slice of every channel: `[C, S]` of (count, mean, M2), and the arguments that begin with them.
    fn moments(&self, queue: &Queue, x: Slice<'_>) -> Result<(Memory, Arguments)> {
        let grid = self.grid(queue);
        let parts = queue.memory(self.channels * grid[1] as usize * 12)?;
        let arguments = Arguments::new().reads(x).with(self.shape()).writes(parts.all());
        run(queue, self.kernel("bn_partial"), grid, arguments)?;
        let arguments = Arguments::new().reads(parts.all()).with(grid[1]).with(self.channels as u64);
        Ok((parts, arguments))
    }

    /// Writes the batch's own statistics (one pass) to `saved`; updates the running statistics, `[2 C]`.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn statistics(
        &self,
        queue: &Queue,
        x: Slice<'_>,
        running: Slice<'_>,
        saved: Saved<'_>,
    ) -> Result<()> {
        self.checks(&[x], &[saved.means, saved.rs])?;
        holds("the running statistics", running, 2 * self.channels as u64, 4)?;
        if self.channels == 0 {
            return Ok(());
        }
        let (_parts, arguments) = self.moments(queue, x)?;
        let arguments = arguments.writes(running).writes(saved.means);
        self.per_channel(queue, "bn_finish", arguments.writes(saved.rs))
    }

    /// Writes the totals that ranks sum before [`BatchNormLaunch::by_totals`]: `[1 + 2 C]` of f64: count, sums, sums of squares.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn sums(&self, queue: &Queue, x: Slice<'_>, totals: Slice<'_>) -> Result<()> {
        self.checks(&[x], &[])?;
        holds("the totals", totals, 1 + 2 * self.channels as u64, 8)?;
        if self.channels == 0 {
            return Ok(());
        }
        let (_parts, arguments) = self.moments(queue, x)?;
        let arguments = arguments.with((self.n * self.plane) as f64).writes(totals);
        self.per_channel(queue, "bn_gather", arguments)
    }

    /// Computes the statistics from the totals of all ranks; updates the running statistics.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn by_totals(
        &self,
        queue: &Queue,
        totals: Slice<'_>,
        running: Slice<'_>,
        saved: Saved<'_>,
    ) -> Result<()> {
        self.checks(&[], &[saved.means, saved.rs])?;
        holds("the totals", totals, 1 + 2 * self.channels as u64, 8)?;
        holds("the running statistics", running, 2 * self.channels as u64, 4)?;
        let arguments = Arguments::new().reads(totals).with(self.channels as u64);
        let arguments = arguments.writes(running).writes(saved.means);
        self.per_channel(queue, "bn_by", arguments.writes(saved.rs))
    }

    /// Writes the running statistics to `saved`, for evaluation.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn running(&self, queue: &Queue, running: Slice<'_>, saved: Saved<'_>) -> Result<()> {
        self.checks(&[], &[saved.means, saved.rs])?;
        holds("the running statistics", running, 2 * self.channels as u64, 4)?;
        let arguments = Arguments::new().reads(running).with(self.channels as u64);
        let arguments = arguments.writes(saved.means).writes(saved.rs);
        self.per_channel(queue, "bn_running", arguments)
    }

    /// `y = (x - mean) (r w) + b`, per channel.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn apply(
        &self,
        queue: &Queue,
        x: Slice<'_>,
        (w, b): (Slice<'_>, Slice<'_>),
        saved: Saved<'_>,
        y: Slice<'_>,
    ) -> Result<()> {
        self.checks(&[x, y], &[w, b, saved.means, saved.rs])?;
        if self.all() == 0 {
            return Ok(());
        }
        let arguments = Arguments::new().reads(x).with(self.shape());
        let per_channel = [w, b, saved.means, saved.rs];
        let arguments = per_channel.iter().fold(arguments, |a, c| a.reads(*c)).writes(y);
        run(queue, self.kernel("bn_apply"), self.grid(queue), arguments)
    }

    /// `y = max(0, (x - mean) (r w) + b + other)`, each operation rounded to the type; without `other`, no sum.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn apply_relu(
        &self,
        queue: &Queue,
        (x, other): (Slice<'_>, Option<Slice<'_>>),
        (w, b): (Slice<'_>, Slice<'_>),
        saved: Saved<'_>,
        y: Slice<'_>,
    ) -> Result<()> {
        self.checks(&[x, other.unwrap_or(x), y], &[w, b, saved.means, saved.rs])?;
        if self.all() == 0 {
            return Ok(());
        }
        let arguments = Arguments::new().reads(x).with(self.shape());
        let arguments = [w, b, saved.means, saved.rs].iter().fold(arguments, |a, c| a.reads(*c));
        let arguments = reads_if(arguments, other).writes(y);
        run(queue, self.kernel("bn_relu"), self.grid(queue), arguments)
    }

    /// The memory of the partial sums of gradients: for each channel and slice two f64.
    fn sums_memory(&self, queue: &Queue) -> Result<Memory> {
        queue.memory(self.channels * self.grid(queue)[1] as usize * 16)
    }

    /// Replaces `dz` by the gradient before a sum and a rectifier, whose output is `y`: by `dy`, or `dy + more`, where y is above 0, else
    /// by 0. Returns the partial sums from which [`BatchNormLaunch::params_of_sums`] computes the gradients of a norm before that sum,
    /// whose input is `x`.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn backward_add_relu(
        &self,
        queue: &Queue,
        (x, y): (Slice<'_>, Slice<'_>),
        (dy, more): (Slice<'_>, Option<Slice<'_>>),
        saved: Saved<'_>,
        dz: Slice<'_>,
    ) -> Result<Memory> {
        self.checks(&[x, y, dy, more.unwrap_or(dy), dz], &[saved.means])?;
        let parts = self.sums_memory(queue)?;
        if self.channels > 0 {
            let arguments =
                Arguments::new().reads(x).reads(dy).with(self.shape()).reads(saved.means).reads(y);
            let arguments = reads_if(arguments, more).writes(dz).writes(parts.all());
            run(queue, self.kernel("bn_add_reduce"), self.grid(queue), arguments)?;
        }
        Ok(parts)
    }

    /// Replaces `dw` and `db` by the gradients of weight and bias, from partial sums.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn params_of_sums(
        &self,
        queue: &Queue,
        parts: Slice<'_>,
        saved: Saved<'_>,
        (dw, db): (Slice<'_>, Slice<'_>),
    ) -> Result<()> {
        self.checks(&[], &[saved.rs, dw, db])?;
        let slices = self.grid(queue)[1];
        holds("the partial sums", parts, 2 * self.channels as u64 * u64::from(slices), 8)?;
        if self.channels == 0 {
            return Ok(());
        }
        let arguments = Arguments::new().reads(parts).with(slices).with(self.channels as u64);
        self.per_channel(queue, "bn_params", arguments.reads(saved.rs).writes(dw).writes(db))
    }

    /// Replaces `dw` and `db` by the gradients of weight and bias. With `relu`, the norm's weight and bias, `dy` is the gradient behind a
    /// rectifier, which counts where the rectifier is open.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn backward_params(
        &self,
        queue: &Queue,
        (x, dy): (Slice<'_>, Slice<'_>),
        saved: Saved<'_>,
        (dw, db): (Slice<'_>, Slice<'_>),
        relu: Option<(Slice<'_>, Slice<'_>)>,
    ) -> Result<()> {
        self.checks(&[x, dy], &[saved.means, saved.rs, dw, db])?;
        if self.channels == 0 {
            return Ok(());
        }
        let parts = self.sums_memory(queue)?;
        let arguments = Arguments::new().reads(x).reads(dy).with(self.shape()).reads(saved.means);
        let (stem, arguments) = match relu {
            Some((w, b)) => {
                self.checks(&[], &[w, b])?;
                ("bn_relu_reduce", arguments.reads(w).reads(b).reads(saved.rs))
            }
            None => ("bn_reduce", arguments),
        };
        run(queue, self.kernel(stem), self.grid(queue), arguments.writes(parts.all()))?;
        self.params_of_sums(queue, parts.all(), saved, (dw, db))
    }

    /// Replaces `dx` by the gradient of the input; `dw` and `db` are the gradients over the whole batch, which has `m` values per
    /// channel, or `count` values (f64, on the device) where ranks have summed their counts. With the norm's bias, `dy` is the gradient
    /// behind a rectifier.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    #[allow(clippy::too_many_arguments, reason = "one buffer each, named as in the formula")]
    pub fn backward_input(
        &self,
        queue: &Queue,
        (x, dy): (Slice<'_>, Slice<'_>),
        (w, relu_bias): (Slice<'_>, Option<Slice<'_>>),
        saved: Saved<'_>,
        (dw, db): (Slice<'_>, Slice<'_>),
        (m, count): (f32, Option<Slice<'_>>),
        dx: Slice<'_>,
    ) -> Result<()> {
        self.checks(&[x, dy, dx], &[w, saved.means, saved.rs, dw, db])?;
        if self.all() == 0 {
            return Ok(());
        }
        let arguments = Arguments::new().reads(x).reads(dy).with(self.shape());
        let per_channel = [w, saved.means, saved.rs, dw, db];
        let arguments = per_channel.iter().fold(arguments, |a, c| a.reads(*c));
        if let Some(count) = count {
            holds("the count of values", count, 1, 8)?;
        }
        let arguments = reads_if(arguments.with(m), count);
        let (stem, arguments) = match relu_bias {
            Some(bias) => {
                self.checks(&[], &[bias])?;
                ("bn_relu_input", arguments.reads(bias))
            }
            None => ("bn_input", arguments),
        };
        run(queue, self.kernel(stem), self.grid(queue), arguments.writes(dx))
    }
}
