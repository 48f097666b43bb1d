"""How much memory is free, on trees of files as Linux lays them out."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.executor.memory import ADDRESS_SPACE, FreeMemory, free_memory, show_bytes

GIB = 1024**3
MIB = 1024**2
MACHINE = FreeMemory(24 * GIB, 24 * GIB, 4 * GIB, "machine")
V1_NO_LIMIT = 9223372036854771712


def write(root: Path, files: dict[str, str]) -> Path:
    """`proc/meminfo` is the machine's unless it is among `files`."""
    total_kib, available_kib = 24 * GIB // 1024, 20 * GIB // 1024
    meminfo = f"MemTotal:  {total_kib} kB\nMemFree: 1 kB\nMemAvailable:   {available_kib} kB\nHugePages_Free: 0\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(path: str, limit: object, use: object, inactive: int = 0, high: object = "max") -> dict[str, str]:
    folder = f"sys/fs/cgroup{path}"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.high": f"{high}\n",
        f"{folder}/memory.current": f"{use}\n",
        f"{folder}/memory.stat": f"anon 1\nactive_file 7\ninactive_file {inactive}\n",
    }


def v1(path: str, limit: object, use: object, inactive: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory{path}"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{use}\n",
        f"{folder}/memory.stat": f"cache 1\ninactive_file 5\nactive_file 7\ntotal_inactive_file {inactive}\n",
    }


IN_V2 = {"proc/self/cgroup": "0::/pods/a\n"}
IN_V1 = {"proc/self/cgroup": "5:devices:/other\n4:cpu,memory:/pods/a\n1:name=systemd:/\n0::/\n"}


def test_free_when_no_group_limits_then_what_the_machine_tells(tmp_path: Path) -> None:
    assert free_memory(write(tmp_path, {})) == MACHINE
    assert MACHINE.available_bytes == 20 * GIB
    assert MACHINE.sentence == "20.0 GiB free (machine 24.0 GiB less 4.0 GiB in use)"


def test_free_when_the_groups_own_limit_is_smallest_then_that_and_its_file_named(tmp_path: Path) -> None:
    root = write(tmp_path, {**IN_V2, **v2("/pods/a", 12 * GIB, 3 * GIB), **v2("/pods", 16 * GIB, 3 * GIB)})
    free = free_memory(root)
    assert free == FreeMemory(24 * GIB, 12 * GIB, 3 * GIB, "cgroup /sys/fs/cgroup/pods/a/memory.max")
    assert free.available_bytes == 9 * GIB
    assert free.sentence == (
        "9.0 GiB free (container limit 12.0 GiB less 3.0 GiB in use: /sys/fs/cgroup/pods/a/memory.max)"
    )


def test_free_when_a_group_around_leaves_less_then_that_one(tmp_path: Path) -> None:
    """The outer limit is larger, but others use it too."""
    root = write(tmp_path, {**IN_V2, **v2("/pods/a", 8 * GIB, 1 * GIB), **v2("/pods", 16 * GIB, 14 * GIB)})
    free = free_memory(root)
    assert (free.source, free.available_bytes) == ("cgroup /sys/fs/cgroup/pods/memory.max", 2 * GIB)


def test_free_when_the_machine_leaves_less_than_the_limit_then_the_machine(tmp_path: Path) -> None:
    assert free_memory(write(tmp_path, {**IN_V2, **v2("/pods/a", 23 * GIB, 1 * GIB)})) == MACHINE


@pytest.mark.parametrize(
    "files",
    [
        {**IN_V2, **v2("/pods/a", "max", 3 * GIB)},
        {**IN_V1, **v1("/pods/a", V1_NO_LIMIT, 3 * GIB)},
        {**IN_V2},
        {**v2("/pods/a", 1 * GIB, 0)},
        {**IN_V2, **v2("/pods/b", 1 * GIB, 0)},
        {**IN_V2, **v2("/pods/a", "what?", "", 0)},
    ],
    ids=["max", "v1 without limit", "no files", "no group told", "of another group", "not a number"],
)
def test_free_when_no_limit_can_be_read_then_the_machine(tmp_path: Path, files: dict[str, str]) -> None:
    assert free_memory(write(tmp_path, files)) == MACHINE


def test_free_when_use_is_not_told_then_the_limit_alone_counts(tmp_path: Path) -> None:
    root = write(tmp_path, {**IN_V2, "sys/fs/cgroup/pods/a/memory.max": f"{GIB}\n"})
    assert free_memory(root) == FreeMemory(24 * GIB, GIB, 0, "cgroup /sys/fs/cgroup/pods/a/memory.max")


def test_free_when_files_are_cached_then_what_goes_first_is_not_in_use(tmp_path: Path) -> None:
    root = write(tmp_path, {**IN_V2, **v2("/pods/a", 4 * GIB, 3 * GIB, inactive=GIB)})
    assert free_memory(root).used_bytes == 2 * GIB


def test_free_when_more_is_in_use_than_the_limit_then_nothing(tmp_path: Path) -> None:
    root = write(tmp_path, {**IN_V2, **v2("/pods/a", 1 * GIB, 3 * GIB)})
    assert free_memory(root).available_bytes == 0


def test_free_when_a_soft_limit_is_lower_then_that(tmp_path: Path) -> None:
    """Above memory.high the kernel slows a process down until it hardly runs."""
    root = write(tmp_path, {**IN_V2, **v2("/pods/a", 4 * GIB, 1 * GIB, high=2 * GIB)})
    assert free_memory(root) == FreeMemory(24 * GIB, 2 * GIB, GIB, "cgroup /sys/fs/cgroup/pods/a/memory.high")


def test_free_when_groups_are_of_version_1_then_their_files_and_all_around(tmp_path: Path) -> None:
    around = v1("", V1_NO_LIMIT, 20 * GIB)
    root = write(tmp_path, {**IN_V1, **v1("/pods/a", 4 * GIB, 2 * GIB, inactive=GIB), **around})
    own = FreeMemory(24 * GIB, 4 * GIB, GIB, "cgroup /sys/fs/cgroup/memory/pods/a/memory.limit_in_bytes")
    assert free_memory(root) == own
    write(root, v1("", 10 * GIB, 9 * GIB))
    assert free_memory(root).source == "cgroup /sys/fs/cgroup/memory/memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("told", "files", "source"),
    [
        ("0::/docker/1f\n", v2("", 2 * GIB, 0), "/sys/fs/cgroup/memory.max"),
        ("0::/docker/1f/job\n", v2("/job", 2 * GIB, 0), "/sys/fs/cgroup/job/memory.max"),
        ("0::/../1f\n", v2("", 2 * GIB, 0), "/sys/fs/cgroup/memory.max"),
    ],
)
def test_free_when_the_group_is_told_by_its_path_outside_then_found_inside(
    tmp_path: Path, told: str, files: dict[str, str], source: str
) -> None:
    assert free_memory(write(tmp_path, {"proc/self/cgroup": told, **files})).source == f"cgroup {source}"


STATUS = {"proc/self/status": f"Name:\ttenure\nVmPeak:\t 9 kB\nVmSize:\t {2 * GIB // 1024} kB\nVmRSS:\t 7 kB\n"}


def test_free_when_the_address_space_is_limited_most_then_that_and_what_is_mapped_counts(tmp_path: Path) -> None:
    root = write(tmp_path, {**STATUS, **IN_V2, **v2("/pods/a", 12 * GIB, 3 * GIB)})
    free = free_memory(root, lambda: 5 * GIB)
    assert free == FreeMemory(24 * GIB, 5 * GIB, 2 * GIB, ADDRESS_SPACE)
    assert not free.is_container_limit
    assert free.sentence == (
        "3.0 GiB free (this process's address space limit (ulimit -v) 5.0 GiB less 2.0 GiB in use)"
    )


@pytest.mark.parametrize(
    ("limit_bytes", "files"),
    [(None, STATUS), (23 * GIB, STATUS), (1, {}), (1, {"proc/self/status": "VmRSS: 7 kB\n"})],
    ids=["none", "leaves more than the machine", "nothing told of what is mapped", "no line of what is mapped"],
)
def test_free_when_the_address_space_is_not_what_limits_then_the_machine(
    tmp_path: Path, limit_bytes: int | None, files: dict[str, str]
) -> None:
    assert free_memory(write(tmp_path, files), lambda: limit_bytes) == MACHINE


LIMITED = """
import resource
from engine.executor.memory import free_memory

resource.setrlimit(resource.RLIMIT_AS, (300 * 2**20, 300 * 2**20))
free = free_memory()
print(free.limit_bytes, free.used_bytes, free.source)
bytearray(free.available_bytes // 2)
try:
    bytearray(free.available_bytes + 2**20)
except MemoryError:
    print("no more")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped, and holds a process to its limit")
def test_free_when_a_real_process_is_limited_then_as_much_as_it_says_can_be_had() -> None:
    done = subprocess.run((sys.executable, "-c", LIMITED), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told = re.fullmatch(rf"{300 * MIB} (\d+) {re.escape(ADDRESS_SPACE)}\nno more\n", done.stdout)
    assert told is not None, done.stdout
    assert 0 < int(told[1]) < 300 * MIB


@pytest.mark.parametrize("meminfo", [None, "", "MemTotal: 5 kB\n"])
def test_free_when_the_system_tells_no_use_then_all_that_is_there(tmp_path: Path, meminfo: str | None) -> None:
    root = tmp_path if meminfo is None else write(tmp_path, {"proc/meminfo": meminfo})
    physical_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert free_memory(root) == FreeMemory(physical_bytes, physical_bytes, 0, "machine")


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (3 * MIB // 2, "1.5 MiB"), (2048 * GIB, "2,048.0 GiB")],
)
def test_bytes_when_shown_then_in_the_largest_unit_below(num_bytes: int, shown: str) -> None:
    assert show_bytes(num_bytes) == shown
