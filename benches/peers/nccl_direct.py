#!/usr/bin/env python3
"""NCCL's all-reduce called directly: the reference for `gpu nccl`.

    nccl_direct.py [MIB]        ranks 1, 2, 4 and 8, a thread each, on the GPUs there are; the largest size in MiB

Sizes, calls and clocks are those of collectives/gpu/benches/gpu.rs: f32 in place, 20 calls between two events, the least of five
such stretches, the slowest rank. Python lets one thread call at a time, which can make small sizes of many ranks slower.
Prints a line of JSON for each size. Needs NCCL's library and CUDA's driver, no package.
"""
import ctypes
import json
import os
import sys
import threading

CALLS, STRETCHES = 20, 5
# The thread blocks of NCCL's kernels on a GPU that ranks share, as in collectives/gpu/src/nccl/comm.rs.
BLOCKS = 32
FLOAT32, SUM = 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Config(ctypes.Structure):
    """The first fields of ncclConfig_t, from NCCL 2.18 on; NCCL chooses the fields that are -2**31."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int), ("min_ctas", ctypes.c_int), ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p), ("split_share", ctypes.c_int),
    ]


def calling(library, name):
    """A function of a library that raises the error code that it returns."""
    function = getattr(library, name)

    def call(*arguments):
        code = function(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    return call


def rank_of(cuda, nccl, rank, ranks, devices, unique, sizes, times, meet):
    context, stream, comm = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    first, last = ctypes.c_void_p(), ctypes.c_void_p()
    calling(cuda, "cuDevicePrimaryCtxRetain")(ctypes.byref(context), rank % devices)
    calling(cuda, "cuCtxSetCurrent")(context)
    calling(cuda, "cuStreamCreate")(ctypes.byref(stream), 1)
    calling(cuda, "cuEventCreate")(ctypes.byref(first), 0)
    calling(cuda, "cuEventCreate")(ctypes.byref(last), 0)
    left = -(2**31)
    # As in Allfold: the thread blocks of all ranks on a GPU must run at once.
    together = -(-ranks // devices)
    blocks = BLOCKS // together if together > 1 else left
    config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21800, 1, left, left, blocks, None, left)
    calling(nccl, "ncclCommInitRankConfig")(ctypes.byref(comm), ranks, unique, rank, ctypes.byref(config))
    all_reduce = calling(nccl, "ncclAllReduce")
    synchronize = calling(cuda, "cuStreamSynchronize")
    # One buffer for all sizes, and waits for this stream alone: allocating, freeing and waiting for the device would also
    # wait for the kernels of other ranks, which wait for this rank.
    data = ctypes.c_uint64()
    calling(cuda, "cuMemAlloc_v2")(ctypes.byref(data), ctypes.c_size_t(max(sizes)))
    meet.wait(60)

    def fill(word, size):
        calling(cuda, "cuMemsetD32Async")(data, ctypes.c_uint32(word), ctypes.c_size_t(size // 4), stream)
        synchronize(stream)

    for size in sizes:
        fill(0x3F800000, size)
        buffer = ctypes.c_void_p(data.value)
        call = (buffer, buffer, ctypes.c_size_t(size // 4), FLOAT32, SUM, comm, stream)
        all_reduce(*call)
        synchronize(stream)
        got = ctypes.c_float()
        calling(cuda, "cuMemcpyDtoHAsync_v2")(ctypes.byref(got), data, ctypes.c_size_t(4), stream)
        synchronize(stream)
        if got.value != ranks:
            raise RuntimeError(f"rank {rank} got {got.value} for a sum of {ranks} ones")
        fill(0, size)
        stretches = []
        for _ in range(STRETCHES):
            meet.wait(60)
            calling(cuda, "cuEventRecord")(first, stream)
            for _ in range(CALLS):
                all_reduce(*call)
            calling(cuda, "cuEventRecord")(last, stream)
            synchronize(stream)
            milliseconds = ctypes.c_float()
            calling(cuda, "cuEventElapsedTime")(ctypes.byref(milliseconds), first, last)
            stretches.append(1e3 * milliseconds.value / CALLS)
        times[rank][size] = stretches
    calling(nccl, "ncclCommDestroy")(comm)
    meet.wait(60)
    calling(cuda, "cuMemFree_v2")(data)


def measure(cuda, nccl, ranks, devices, sizes):
    unique, times, failures = UniqueId(), [{} for _ in range(ranks)], []
    calling(nccl, "ncclGetUniqueId")(ctypes.byref(unique))
    meet = threading.Barrier(ranks)

    def part(rank):
        try:
            rank_of(cuda, nccl, rank, ranks, devices, unique, sizes, times, meet)
        except (RuntimeError, threading.BrokenBarrierError) as error:
            failures.append(f"rank {rank}: {error}")
            meet.abort()

    threads = [threading.Thread(target=part, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        if thread.is_alive():
            failures.append("a rank did not end within 60 s")
    if failures:
        sys.exit(f"nccl_direct.py, {ranks} ranks: {'; '.join(failures)}")
    for size in sizes:
        slowest = (max(times[rank][size][at] for rank in range(ranks)) for at in range(STRETCHES))
        record = {"schema": 2, "kind": "nccl_direct", "measured": True, "collective": "all_reduce"}
        record |= {"ranks": ranks, "bytes": size, "time_us": round(min(slowest), 3)}
        print(json.dumps(record), flush=True)


def main():
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    try:
        cuda, nccl = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnccl.so.2")
    except OSError as error:
        sys.exit(f"nccl_direct.py: {error}")
    # Read by the driver when it starts: a stream must not wait behind another rank's.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    calling(cuda, "cuInit")(0)
    devices, version = ctypes.c_int(), ctypes.c_int()
    calling(cuda, "cuDeviceGetCount")(ctypes.byref(devices))
    calling(nccl, "ncclGetVersion")(ctypes.byref(version))
    together = version.value >= 23000 and "NCCL_MULTI_RANK_GPU_ENABLE" in os.environ
    sizes = [8, 64 << 10, 1 << 20, 16 << 20, mib << 20]
    for ranks in (1, 2, 4, 8):
        if ranks <= devices.value or together:
            measure(cuda, nccl, ranks, devices.value, sizes)
        else:
            why = "more ranks than GPUs need NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1"
            print(f"SKIP NCCL alone, {ranks} ranks: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
