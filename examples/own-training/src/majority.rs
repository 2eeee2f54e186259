//! signSGD with majority vote (J. Bernstein et al., ICML 2018): a rank sends the sign of each gradient in a byte, and all ranks
//! move by the sign of the sum.

use allfold_collectives::{Buffer, Communicator, ReduceOp};
use allfold_kernels::nn::Float;
use allfold_trainer::strategies::hooks::BucketHook;
use allfold_trainer::{Config, Error, Result};

/// The greatest number of voters whose sum fits a byte.
const VOTERS: u32 = 127;

/// The hook, which has no state.
pub struct Majority;

impl<F: Float> BucketHook<F> for Majority {
    fn exchange(&mut self, _bucket: usize, gradients: &mut Buffer<F>, comm: &Communicator) -> Result<()> {
        if comm.size() > VOTERS {
            let ranks = comm.size();
            return Err(Error::Config(format!(
                "hook `majority` adds up at most {VOTERS} votes, and there are {ranks} ranks"
            )));
        }
        let sign = |gradient: f64| i8::from(gradient > 0.0) - i8::from(gradient < 0.0);
        let mut votes: Vec<i8> = gradients.iter().map(|gradient| sign(gradient.to_f64())).collect();
        comm.all_reduce(&mut votes, ReduceOp::Sum)?;
        gradients.iter_mut().zip(votes).for_each(|(to, votes)| *to = F::from_f64(f64::from(votes.signum())));
        Ok(())
    }
}

/// The hook of a rank.
pub fn build<F: Float>(_config: &Config) -> Box<dyn BucketHook<F>> {
    Box::new(Majority)
}
