"""Around the GPU, or without one: disk, shared memory, limits, and what the processor can do."""

import math

from minillm.machine.doctor.facts import Facts
from minillm.machine.doctor.finding import Finding, fail, not_checked, not_here, ok, warn

GB, GIB = 10**9, 2**30

LEAST_DISK = 1 * GB
"""The default model: a download of 93 MB, of which 640 MB are kept."""

DISK_FOR_A_GPU = 20 * GB
"""A model of 8 billion parameters in 16 bit is 16 GB on disk."""

LEAST_MEMORY = 1 * GIB
"""The default model in float32 is 0.5 GiB, and PyTorch itself takes some 0.3 GiB."""


def disk(facts: Facts) -> Finding:
    """Is there room where weights are kept?"""
    if facts.weights_path is None and facts.directory_gone:
        return not_checked("weights are kept below the directory that you are in, and that was deleted", "cd")
    if facts.disk_free is None:
        return not_checked("the disk for weights could not be measured", "df -h .")
    free = f"{facts.disk_free / GB:.1f} GB free in {facts.weights_path}"
    elsewhere = "export MINILLM_WEIGHTS=/a/directory/with/room"
    if facts.disk_free < LEAST_DISK:
        return fail(f"{free}: too little for the smallest model (1 GB)", f"df -h {facts.weights_path}; {elsewhere}")
    if not facts.weights_writable:
        return warn(f"{free}, but this user may not write there: only what is there can be used", elsewhere)
    if facts.smi is not None and facts.disk_free < DISK_FOR_A_GPU:
        return warn(f"{free}: too little for a model of 8 billion parameters (16 GB in 16 bit)", elsewhere)
    return ok(free)


def shared_memory(facts: Facts) -> Finding:
    """/dev/shm: through it, processes of one model (one per GPU) and data loaders hand each other tensors."""
    if facts.shm_size is None:
        return not_here("no /dev/shm on this system")
    size = f"{facts.shm_size / GIB:.1f} GiB" if facts.shm_size >= GIB else f"{facts.shm_size / 2**20:.0f} MiB"
    if facts.shm_size >= GIB:
        return ok(size)
    mend = (
        "docker run --shm-size=16g ...   # or --ipc=host"
        if facts.container
        else ("sudo mount -o remount,size=16G /dev/shm")
    )
    return warn(f"{size}: programs of several processes (a model on several GPUs) crash for lack of it", mend)


def limits(facts: Facts) -> Finding:
    """How many files and connections a process may hold open; how much memory it may pin."""
    if facts.open_files is not None and facts.open_files < 1024:
        return warn(f"{facts.open_files} open files: a server needs one per connection", "ulimit -n 65536")
    if facts.infiniband and facts.locked_memory is not None:
        return warn(
            f"memory lock limited to {facts.locked_memory / 2**20:.0f} MiB: InfiniBand pins more than that",
            "ulimit -l unlimited   # in a container: docker run --ulimit memlock=-1",
        )
    return ok("no limit on open files" if facts.open_files is None else f"{facts.open_files} open files")


def usable_cpus(facts: Facts) -> int | None:
    """The processors that this process really gets: what it may run on, and what its container is allotted."""
    allowed = facts.cpus_allowed or facts.cpus or facts.cpu.logical
    if facts.cpu_quota is None or allowed is None:
        return allowed
    return min(allowed, max(1, math.floor(facts.cpu_quota)))


def cores(facts: Facts) -> Finding:
    """Does PyTorch start as many threads as there are processors for it?"""
    usable, threads = usable_cpus(facts), facts.torch.threads
    if usable is None:
        return not_checked("the number of processors could not be read", "nproc")
    named = f" ({facts.cpu.name})" if facts.cpu.name else ""
    part = "" if usable == facts.cpus else f" of the machine's {facts.cpus}"
    if threads is not None and threads > usable:
        return warn(
            f"PyTorch starts {threads} threads, but gets {usable} processors{part}: they wait for each other",
            f"export OMP_NUM_THREADS={usable}",
        )
    count = f"{usable} processor" + ("" if usable == 1 else "s")
    using = "" if threads is None else f", {threads} PyTorch thread" + ("" if threads == 1 else "s")
    return ok(f"{count}{part}{using}{named}")


def vectors(facts: Facts) -> Finding:
    """Which numbers the processor multiplies many at a time; bfloat16 is only fast where it is among them."""
    flags = facts.cpu.flags
    if facts.os == "Darwin":
        return ok("Apple silicon: 128-bit vectors (NEON)") if facts.arch == "arm64" else ok("Intel Mac: AVX2")
    if not flags:
        return not_checked("the processor's flags could not be read", "grep -m 1 -E 'flags|Features' /proc/cpuinfo")
    found = [name for flag, name in _VECTORS.items() if flag in flags]
    bf16 = bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})
    dtype = "bfloat16 is the fast dtype" if bf16 else "no bfloat16 products: float32 is the fast dtype"
    if not found or (facts.arch in ("x86_64", "AMD64") and "avx2" not in flags):
        return warn(f"{', '.join(found) or 'no vectors known to us'}, and no AVX2: PyTorch computes slowly here")
    return ok(f"{', '.join(found)}; {dtype}")


_VECTORS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "amx_bf16": "AMX",
    "asimd": "NEON",
    "sve": "SVE",
    "bf16": "Arm BF16",
}


def free_memory(facts: Facts) -> int | None:
    """Bytes that this process may still take: of the machine, and of its container's allowance."""
    left = [] if facts.memory_available is None else [facts.memory_available]
    if facts.memory_limit is not None:
        left.append(max(0, facts.memory_limit - (facts.memory_limit_used or 0)))
    return min(left, default=None)


def host_memory(facts: Facts) -> Finding:
    """Is there room for a model beside what already runs?"""
    free, total = free_memory(facts), facts.memory_total
    if free is None and total is None:
        return not_checked("memory could not be read", "free -h")
    if free is None:
        return ok(f"{(total or 0) / GIB:.1f} GiB in all")
    limited = facts.memory_limit is not None and (total is None or facts.memory_limit < total)
    whole = facts.memory_limit if limited else total
    said = f"{free / GIB:.1f} of {(whole or 0) / GIB:.1f} GiB free" + (" (this container's limit)" if limited else "")
    if free < LEAST_MEMORY:
        return fail(f"{said}: too little for the smallest model (1 GiB)", "ps aux --sort=-rss | head")
    return ok(said)


def numa(facts: Facts) -> Finding:
    """Several sockets: a processor reads its own memory faster than its neighbour's."""
    if facts.numa_nodes is None:
        return not_here("memory is not divided among sockets")
    if facts.numa_nodes == 1:
        return ok("one node: all memory is equally near")
    return ok(f"{facts.numa_nodes} nodes: pin a model on the CPU to one (numactl --cpunodebind=0 --membind=0)")
