//! The stand-in driver's calls for graphs.

use super::device::put;
use super::entry::entries;
use super::world::here;
use cudarc::driver::sys::CUresult as Code;
use std::ffi::c_ulonglong;

entries! {
    cuGraphInstantiateWithFlags(place: *mut u64, graph: u64, _flags: c_ulonglong) "of a graph that was not destroyed" {
        let mut here = here();
        here.current()?;
        let Some(tasks) = here.graphs.get(&graph).cloned() else { return Err(Code::CUDA_ERROR_INVALID_VALUE) };
        let handle = here.handle();
        here.executables.insert(handle, tasks);
        put(place, handle)
    }
    cuGraphLaunch(graph: u64, stream: u64)
    "a stream of the current context; nodes run in the order of the capture, each after a delay of its own" {
        let mut here = here();
        here.own(stream, "cuGraphLaunch")?;
        let Some(tasks) = here.executables.get(&graph).cloned() else {
            here.violates(format!("cuGraphLaunch: no graph {graph:#x}"));
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        };
        tasks.iter().try_for_each(|task| here.give(stream, "cuGraphLaunch", task.clone()))
    }
    cuGraphDestroy(graph: u64) "once; graphs that were made of it stay" {
        let mut here = here();
        here.current()?;
        here.graphs.remove(&graph).map(|_| ()).ok_or(Code::CUDA_ERROR_INVALID_VALUE)
    }
    cuGraphExecDestroy(graph: u64) "once; a launch that is under way still runs" {
        let mut here = here();
        here.current()?;
        here.executables.remove(&graph).map(|_| ()).ok_or(Code::CUDA_ERROR_INVALID_VALUE)
    }
}
