"""MEM: what is promised fits into what is there, the container's limit included."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.executor.memory import free_memory
from engine.executor.pool_size import NoRoomError, PoolPolicy, size_pools
from engine.executor.pool_words import ModelMemory
from services.config import ServeConfig
from tests.kit.server_process import server_process

GIB = 1024**3
MIB = 1024**2
LIMIT_BYTES = 2 * GIB
DEFAULTS = ServeConfig()
POLICY = PoolPolicy(
    page_size=16,
    pool_tokens=None,
    memory_fraction=DEFAULTS.memory_fraction,
    running_max=DEFAULTS.running_max,
    context_len=DEFAULTS.context_len,
    num_rows=DEFAULTS.rows,
)
BYTES_PER_TOKEN = 46080
"""Of the embedded model: K and V, 30 layers, 3 heads of 64 numbers of 4 bytes."""


def container(root: Path, used_bytes: int) -> Path:
    """A machine of 24 GiB, 22 of them free, and a group of 2 GiB."""
    for name, text in {
        "proc/meminfo": f"MemTotal: {24 * GIB // 1024} kB\nMemAvailable: {22 * GIB // 1024} kB\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{LIMIT_BYTES}\n",
        "sys/fs/cgroup/memory.current": f"{used_bytes}\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_pool_when_the_container_has_2_gib_of_24_then_sized_from_the_limit_and_the_numbers_are_told(
    tmp_path: Path,
) -> None:
    """MEM-01 (vllm-project/vllm#45086): 900 MiB are in use once the model is loaded."""
    free = free_memory(container(tmp_path, 900 * MIB))
    pool = size_pools(POLICY, ModelMemory(8192, BYTES_PER_TOKEN), free)
    room_bytes = (LIMIT_BYTES - 900 * MIB) // 2
    page_bytes = 16 * BYTES_PER_TOKEN
    assert pool.pages == room_bytes // page_bytes == 816
    assert pool.num_bytes == 816 * page_bytes <= room_bytes
    assert pool.summary == (
        "KV pool: 13,040 tokens (--memory-fraction 0.5 of what is free), 573.8 MiB of 1.1 GiB free (container limit "
        "2.0 GiB less 900.0 MiB in use: /sys/fs/cgroup/memory.max), 46,080 bytes a token"
    )


def test_start_when_the_container_has_no_room_for_one_context_then_refused_and_not_killed(tmp_path: Path) -> None:
    """MEM-01 (vllm-project/vllm#45086): the same with 1.9 GiB in use."""
    free = free_memory(container(tmp_path, 1946 * MIB))
    with pytest.raises(NoRoomError) as caught:
        size_pools(POLICY, ModelMemory(8192, BYTES_PER_TOKEN), free)
    assert str(caught.value) == (
        "there is no room for the KV of one conversation: a context of 2,048 tokens needs 90.7 MiB (46,080 bytes a "
        "token), and --memory-fraction 0.5 gives the pool 51.0 MiB of the 102.0 MiB free (container limit 2.0 GiB less "
        "1.9 GiB in use: /sys/fs/cgroup/memory.max): the largest that fits is --context-len 1136; or give the pool "
        "more with --memory-fraction 0.89, or raise the container's limit"
    )


def test_server_when_the_pool_asked_for_is_larger_than_the_machine_then_it_says_so_and_ends_with_1() -> None:
    """MEM-01 (vllm-project/vllm#45086): a size given by hand is held to the same limit, in the real process."""
    with server_process("--pool-tokens", "1600000000") as server:
        assert server.process.wait(60) == 1
        told = server.output()
    assert "event=start_failed reason=PoolTooLargeError" in told
    assert "Traceback" not in told
    refusal = re.search(r"the server could not start: (--pool-tokens 1600000000 needs .*)", told)
    assert refusal is not None, told
    assert re.search(r"the largest that fits is --pool-tokens \d+; or ", refusal[1])


LOAD = """
import os, re, sys
from pathlib import Path

Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))

from services.config import ServeConfig
from services.loading import load_model

loaded = load_model(ServeConfig(), lambda _fraction, _text: None)
resident = re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())
print(loaded.executor.capabilities.pool_pages, int(resident[1]) * 1024)
print(*loaded.notes, sep="\\n")
loaded.executor.close()
"""


@pytest.fixture
def limited_group() -> Iterator[Path]:
    """A control group of 2 GiB inside our own, whichever version of them this machine has."""
    told = Path("/proc/self/cgroup").read_text() if Path("/proc/self/cgroup").exists() else ""
    found = {controllers: path for _, controllers, path in (line.split(":", 2) for line in told.splitlines())}
    name = f"tenure-test-{os.getpid()}"
    places = (
        (Path(f"/sys/fs/cgroup/memory{found.get('memory')}/{name}"), "memory.limit_in_bytes"),
        (Path(f"/sys/fs/cgroup{found.get('')}/{name}"), "memory.max"),
    )
    for group, limit in places:
        if not group.parent.is_dir():
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if _set_limit(group / limit):
                yield group
                return
        finally:
            _remove(group)
    pytest.skip("no control group with a limit of its own can be made here")


def _set_limit(path: Path) -> bool:
    """False where the group has no such file, or it is not ours to write."""
    try:
        with path.open("r+") as file:
            file.write(str(LIMIT_BYTES))
    except OSError:
        return False
    return True


def _remove(group: Path) -> None:
    """The kernel counts a process that has ended as a member for a moment more."""
    deadline_s = time.monotonic() + 10
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
        else:
            return


def test_model_when_loaded_under_a_real_limit_then_the_pool_is_sized_from_it_and_all_of_it_is_there(
    limited_group: Path,
) -> None:
    """MEM-01 (vllm-project/vllm#45086): the embedded model in a process under a limit of 2 GiB."""
    done = subprocess.run(
        (sys.executable, "-c", LOAD, str(limited_group)), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    sizes, note = done.stdout.splitlines()
    pool_pages, resident_bytes = map(int, sizes.split())
    pool_bytes = pool_pages * 16 * BYTES_PER_TOKEN
    assert "(container limit 2.0 GiB less " in note
    assert str(limited_group) in note
    assert pool_bytes <= 0.5 * LIMIT_BYTES
    assert pool_bytes <= resident_bytes <= LIMIT_BYTES


LOAD_MAPPED = """
import re, resource, sys
from pathlib import Path

import engine.executor.loading  # torch maps much, before anything is loaded
from services.config import ServeConfig
from services.loading import load_model

mapped = re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())
limit_bytes = int(mapped[1]) * 1024 + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
loaded = load_model(ServeConfig(), lambda _fraction, _text: None)
print(loaded.executor.capabilities.pool_pages, *loaded.notes, sep="\\n")
loaded.executor.close()
"""


def load_mapped(room_bytes: int) -> subprocess.CompletedProcess[str]:
    """Loads the embedded model in a process that may map so many bytes more than torch does once it is imported."""
    command = (sys.executable, "-c", LOAD_MAPPED, str(room_bytes))
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped, and holds a process to its limit")
def test_model_when_loaded_under_a_limit_of_address_space_then_the_pool_is_sized_from_it() -> None:
    """MEM-01 (vllm-project/vllm#45086): 16 contexts of 2,048 tokens are 1.4 GiB, far more than the weights leave."""
    done = load_mapped(GIB)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    pages, note = done.stdout.splitlines()
    assert "(--memory-fraction 0.5 of what is free), " in note
    assert " free (this process's address space limit (ulimit -v) " in note
    assert 0 < int(pages) * 16 * BYTES_PER_TOKEN <= 0.5 * GIB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped, and holds a process to its limit")
def test_model_when_a_limit_of_address_space_leaves_no_room_for_its_weights_then_refused_with_what_to_do() -> None:
    """MEM-01 (vllm-project/vllm#45086): refused before they are read, and not by an allocation that fails."""
    done = load_mapped(300 * MIB)
    assert done.returncode == 1
    refusal = done.stderr.splitlines()[-1]
    assert "NoRoomError: there is no room for the model: its weights alone need 513.1 MiB, of " in refusal
    assert refusal.endswith(": choose a smaller model, or raise ulimit -v")
