//! Which device a rank computes on.

use crate::{Config, Error, Result};
use allfold_collectives::Communicator;
use allfold_collectives::environment::{Environment, variable};
use allfold_config::RankDevice;
use allfold_cuda::CudaMachine;

/// The device of a rank: the one that `config` names; otherwise the rank's number on its host if a launcher gives one, else its
/// rank, modulo the number of devices.
///
/// # Errors
/// A device that the machine does not have; launcher's variables that are malformed: a guess could put two ranks of a host on one
/// device.
pub fn device_of(config: &Config, comm: &Communicator, machine: &dyn CudaMachine) -> Result<usize> {
    let (rank, devices) = (comm.rank().index(), machine.devices().max(1));
    if let RankDevice::Cuda(Some(number)) = config.device_of(rank)? {
        return match number < devices {
            true => Ok(number),
            false => Err(Error::Config(format!(
                "`device` is cuda:{number} for rank {rank}, and its machine has {devices}: {}; numbers begin at 0",
                machine.name()
            ))),
        };
    }
    match comm.of_one_process() {
        true => Ok(rank % devices),
        false => device_of_process(rank, devices, variable),
    }
}

/// The device of a rank that is a process. `lookup` reads the environment variables that the launcher set.
fn device_of_process(rank: usize, devices: usize, lookup: impl Fn(&str) -> Option<String>) -> Result<usize> {
    let launched = Environment::read(lookup).map_err(allfold_collectives::Error::from)?;
    Ok(launched.map_or(rank, |environment| environment.local_rank as usize) % devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_takes_the_gpu_of_its_number_on_its_host_or_none_where_that_makes_no_sense() {
        let torchrun = |local: &'static str| {
            move |name: &str| {
                let value = match name {
                    "RANK" => "5",
                    "WORLD_SIZE" => "8",
                    "LOCAL_RANK" => local,
                    "LOCAL_WORLD_SIZE" => "4",
                    "MASTER_ADDR" => "node0",
                    "MASTER_PORT" => "29500",
                    _ => return None,
                };
                Some(value.to_string())
            }
        };
        // The second rank of the second host gets the second GPU of its host. Without a launcher the rank selects the GPU.
        assert_eq!(device_of_process(5, 8, torchrun("1")).unwrap(), 1);
        assert_eq!(device_of_process(5, 4, |_| None).unwrap(), 1);
        assert_eq!(device_of_process(5, 8, |_| None).unwrap(), 5);
        let error = device_of_process(5, 4, torchrun("one")).unwrap_err().to_string();
        assert!(error.contains("LOCAL_RANK"), "{error}");
    }
}
