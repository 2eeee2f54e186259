//! Files of tensors: safetensors, state dicts that PyTorch saved, and arrays of NumPy.
//!
//! [`tensor_file::read`] reads a safetensors file if its length agrees with its header. [`state_dict::tensors`] lists the tensors of an
//! archive that `torch.save` wrote, and executes nothing. [`npy::array`] describes the array of a `.npy` file. [`StoredTensor::read`] reads
//! a tensor's values from their place in a file, whatever the strides.
//!
//! Every size in a file is checked before anything is allocated by it.

mod archive;
mod error;
pub mod npy;
pub mod pickle;
pub mod state_dict;
mod stored;
pub mod tensor_file;
#[cfg(test)]
mod testing;

pub use error::wrong;
pub use safetensors::Dtype;
pub use stored::StoredTensor;
