//! Files of tensors: safetensors, state dicts that PyTorch saved, and arrays of NumPy.
//!
//! [`tensor_file::read`] reads a safetensors file if its length agrees with its header. [`weight_file::dicts`] lists the tensors of such
//! a file, or of one that `torch.save` wrote, and executes nothing. [`npy::array`] describes the array of a `.npy` file. [`StoredTensor::read`] reads
//! a tensor's values from their place in a file, whatever the strides.
//!
//! Every size in a file is checked before anything is allocated by it.

mod archive;
mod error;
pub mod npy;
pub mod pickle;
mod state_dict;
mod stored;
mod tensor_dict;
pub mod tensor_file;
#[cfg(test)]
mod testing;
pub mod weight_file;

pub use error::wrong;
pub use safetensors::Dtype;
pub use stored::StoredTensor;
pub use tensor_dict::TensorDict;
