"""How much memory is free: the machine's, or what a limit of a container or this process leaves, whichever is less."""

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MACHINE = "machine"
ADDRESS_SPACE = "this process's address space limit (ulimit -v)"


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """What may still be taken, under the limit that leaves the least."""

    total_bytes: int
    """Of the machine or device."""
    limit_bytes: int
    """`total_bytes` where no limit leaves less."""
    used_bytes: int
    """In use under that limit. What is given back when it is asked for, as the cache of files, is not counted."""
    source: str
    """Which limit it is: MACHINE, ADDRESS_SPACE, `cgroup /sys/fs/cgroup/x/memory.max` or `device cuda:0`."""

    @property
    def available_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    @property
    def is_container_limit(self) -> bool:
        return self.source.startswith("cgroup ")

    @property
    def sentence(self) -> str:
        """As in `9.1 GiB free (container limit 12.0 GiB less 2.9 GiB in use: /sys/fs/cgroup/memory.max)`."""
        limit, used = show_bytes(self.limit_bytes), show_bytes(self.used_bytes)
        if self.is_container_limit:
            why = f"container limit {limit} less {used} in use: {self.source.removeprefix('cgroup ')}"
        else:
            why = f"{self.source} {limit} less {used} in use"
        return f"{show_bytes(self.available_bytes)} free ({why})"


@dataclass(frozen=True, slots=True)
class _Files:
    """What a version of control groups calls its files."""

    mount: str
    limits: tuple[str, ...]
    use: str
    inactive_file: str
    """The line of memory.stat, child groups included, that tells the cache of files that goes first when room is made.
    """


_V2 = _Files("sys/fs/cgroup", ("memory.max", "memory.high"), "memory.current", "inactive_file")
_V1 = _Files("sys/fs/cgroup/memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def address_space_limit() -> int | None:
    """Bytes that this process may map, the limit in force; None: as many as it likes."""
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit_bytes == resource.RLIM_INFINITY else limit_bytes


def free_memory(
    root: Path = Path("/"), read_address_limit: Callable[[], int | None] = address_space_limit
) -> FreeMemory:
    """Of this process: the least that the machine, the limits of its control groups and of all groups that these are
    in, and the limit of its address space leave. `root` is where `proc` and `sys` are.

    A file that is not there limits nothing. Where the system does not tell what is in use (it is not Linux), all of
    the machine's memory counts as free.
    """
    machine = _machine(root)
    limits = [limit for files in (_V2, _V1) for limit in _group_limits(root, files, machine.total_bytes)]
    limits += _address_limits(root, read_address_limit(), machine.total_bytes)
    return min((machine, *limits), key=lambda memory: memory.available_bytes)


def cuda_memory(device: int = 0) -> FreeMemory:
    """Of a CUDA device, other processes' use included.

    Written for the backend that is to come: it was never run on a device, its test gives it the driver's two numbers.
    """
    # Imported here: the rest of this file is asked by programs that have no torch loaded.
    import torch

    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return FreeMemory(total_bytes, total_bytes, total_bytes - free_bytes, f"device cuda:{device}")


def show_bytes(num_bytes: int) -> str:
    """As in `1.4 GiB`."""
    for exponent, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1024**exponent:
            return f"{num_bytes / 1024**exponent:,.1f} {unit}"
    return f"{num_bytes} bytes"


def _machine(root: Path) -> FreeMemory:
    told = _numbers(root / "proc/meminfo")
    total, available = told.get("MemTotal:"), told.get("MemAvailable:")
    if total is None or available is None:
        total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return FreeMemory(total_bytes, total_bytes, 0, MACHINE)
    total_bytes, available_bytes = total * 1024, available * 1024
    return FreeMemory(total_bytes, total_bytes, total_bytes - available_bytes, MACHINE)


def _group_limits(root: Path, files: _Files, total_bytes: int) -> Iterator[FreeMemory]:
    mount = root / files.mount
    for group in _groups(mount, _group_path(root, is_v1=files is _V1)):
        used = _number(group / files.use) or 0
        reclaimable = _numbers(group / "memory.stat").get(files.inactive_file, 0)
        for name in files.limits:
            limit = _number(group / name)
            if limit is not None:  # version 1 says a number near 2**63 for none, which leaves more than any machine has
                source = f"cgroup /{(group / name).relative_to(root)}"
                yield FreeMemory(total_bytes, limit, max(0, used - reclaimable), source)


def _address_limits(root: Path, limit_bytes: int | None, total_bytes: int) -> Iterator[FreeMemory]:
    """All that is mapped counts as in use, touched or not: so does the kernel count it."""
    mapped_kib = _numbers(root / "proc/self/status").get("VmSize:")
    if limit_bytes is not None and mapped_kib is not None:
        yield FreeMemory(total_bytes, limit_bytes, mapped_kib * 1024, ADDRESS_SPACE)


def _group_path(root: Path, *, is_v1: bool) -> str | None:
    """The group that this process is in, as `/proc/self/cgroup` tells it in lines of `number:controllers:path`."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(",") if is_v1 else number == "0":
            return path
    return None


def _groups(mount: Path, path: str | None) -> Iterator[Path]:
    """The folders of a group and of all it is in, innermost first.

    In a container without a namespace of its own the path is the one outside, while the mount shows the inside only:
    leading names that are not there are left out.
    """
    if path is None:
        return
    names = [name for name in path.split("/") if name not in ("", "..")]
    while names and not mount.joinpath(*names).is_dir():
        names.pop(0)
    for length in range(len(names), -1, -1):
        yield mount.joinpath(*names[:length])


def _numbers(path: Path) -> dict[str, int]:
    """Lines of `name number ...`, as in meminfo and status (kB) and memory.stat (bytes)."""
    lines = [line.split() for line in _read(path).splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}


def _number(path: Path) -> int | None:
    """None when the file is not there, or says `max`."""
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    """Empty when there is nothing that could be read: a group may end, or be closed to us, at any time."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
