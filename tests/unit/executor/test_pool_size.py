"""How many pages the KV pool gets, and what is said when it can not have them."""

from dataclasses import replace

import pytest

from engine.executor.memory import ADDRESS_SPACE, FreeMemory
from engine.executor.pool_size import (
    NoRoomError,
    PoolPolicy,
    PoolSize,
    PoolTooLargeError,
    require_room_for_weights,
    size_pools,
)
from engine.executor.pool_words import ModelMemory

MIB = 1024**2
BYTES_PER_TOKEN = 1024
"""1024 tokens a MiB, and 64 pages of 16."""
POLICY = PoolPolicy(page_size=16, pool_tokens=None, memory_fraction=0.5, running_max=4, num_rows=64, context_len=512)
"""Wishes 2048 tokens, 128 pages: 2 MiB and a page for padding."""
PAGE_BYTES = 16 * BYTES_PER_TOKEN


def of_container(available_bytes: int) -> FreeMemory:
    return FreeMemory(64 * MIB, 3 * MIB + available_bytes, 3 * MIB, "cgroup /sys/fs/cgroup/memory.max")


def size(
    available_bytes: int,
    policy: PoolPolicy = POLICY,
    *,
    context_len: int = 4096,
    bytes_per_token: int = BYTES_PER_TOKEN,
) -> PoolSize:
    return size_pools(policy, ModelMemory(context_len, bytes_per_token), of_container(available_bytes))


def refused(available_bytes: int, policy: PoolPolicy = POLICY) -> str:
    with pytest.raises(NoRoomError) as caught:
        size(available_bytes, policy)
    assert isinstance(caught.value, PoolTooLargeError) == (policy.pool_tokens is not None)
    return str(caught.value)


def test_size_when_all_that_is_wished_fits_then_that() -> None:
    pool = size(2 * 129 * PAGE_BYTES)
    assert (pool.pages, pool.num_bytes, pool.warning) == (129, 129 * PAGE_BYTES, None)
    assert pool.summary == (
        "KV pool: 2,048 tokens (4 x context of 512), 2.0 MiB of 4.0 MiB free (container limit 7.0 MiB less 3.0 MiB in "
        "use: /sys/fs/cgroup/memory.max), 1,024 bytes a token"
    )


def test_size_when_a_byte_less_than_wished_is_free_then_a_page_less() -> None:
    pool = size(2 * 129 * PAGE_BYTES - 1)
    assert (pool.pages, pool.num_bytes) == (128, 128 * PAGE_BYTES)
    assert pool.summary.startswith("KV pool: 2,032 tokens (--memory-fraction 0.5 of what is free), 2.0 MiB of ")


@pytest.mark.parametrize(("fraction", "pages"), [(0.25, 32), (0.5, 64), (1.0, 128)])
def test_size_when_the_fraction_is_other_then_so_is_the_pool(fraction: float, pages: int) -> None:
    policy = replace(POLICY, memory_fraction=fraction, context_len=128, running_max=1000)
    assert size(2 * MIB, policy).pages == pages


def test_size_when_the_models_context_is_shorter_then_that_counts() -> None:
    assert size(64 * MIB, context_len=96).pages == 1 + 4 * 6
    assert size(64 * MIB, replace(POLICY, context_len=96)).pages == 1 + 4 * 6


def test_size_when_the_context_is_not_of_whole_pages_then_room_for_all_of_it() -> None:
    policy = replace(POLICY, context_len=17, running_max=1)
    assert size(64 * MIB, policy).pages == 1 + 2
    assert size(2 * 3 * PAGE_BYTES, policy).pages == 1 + 2
    with pytest.raises(NoRoomError):
        size(2 * 3 * PAGE_BYTES - 1, policy)


@pytest.mark.parametrize(("context_len", "pages"), [(8, 16), (16, 16), (20, 32)])
def test_size_when_contexts_are_not_of_whole_pages_then_each_gets_its_own(context_len: int, pages: int) -> None:
    pool = size(64 * MIB, replace(POLICY, context_len=context_len, running_max=16))
    assert pool.pages == 1 + pages
    whole = "" if context_len == 16 else ", each in whole pages"
    assert pool.summary.startswith(f"KV pool: {16 * pages} tokens (16 x context of {context_len}{whole}), ")


@pytest.mark.parametrize(("num_rows", "at_once"), [(5, 4), (4, 4), (3, 3), (1, 1)])
def test_size_when_rows_are_fewer_than_turns_may_run_then_room_for_as_many_as_rows(num_rows: int, at_once: int) -> None:
    pool = size(64 * MIB, replace(POLICY, num_rows=num_rows))
    assert pool.pages == 1 + at_once * 32
    assert pool.summary.startswith(f"KV pool: {at_once * 512:,} tokens ({at_once} x context of 512), ")


def test_size_when_just_one_context_fits_then_taken_and_a_byte_less_then_refused_with_the_numbers() -> None:
    assert size(2 * 33 * PAGE_BYTES).pages == 33
    assert refused(2 * 33 * PAGE_BYTES - 1) == (
        "there is no room for the KV of one conversation: a context of 512 tokens needs 528.0 KiB (1,024 bytes a "
        "token), and --memory-fraction 0.5 gives the pool 528.0 KiB of the 1.0 MiB free (container limit 4.0 MiB less "
        "3.0 MiB in use: /sys/fs/cgroup/memory.max): the largest that fits is --context-len 496; or give the pool more "
        "with --memory-fraction 0.51, or raise the container's limit"
    )


def test_refusal_when_followed_then_it_fits() -> None:
    """What the message of the case above says."""
    available_bytes = 2 * 33 * PAGE_BYTES - 1
    assert size(available_bytes, replace(POLICY, context_len=496)).pages == 32
    assert size(available_bytes, replace(POLICY, memory_fraction=0.51)).pages >= 33


def test_refusal_when_nothing_is_free_then_no_size_is_proposed() -> None:
    for policy, none_fits in ((POLICY, "no context would fit"), (replace(POLICY, pool_tokens=16), "no pool would fit")):
        text = refused(-MIB, policy)
        assert "gives the pool 0 bytes of the 0 bytes free (container limit 2.0 MiB less 3.0 MiB in use" in text
        assert text.endswith(f": {none_fits}; or raise the container's limit")


def test_refusal_when_the_machine_is_the_limit_then_no_container_is_spoken_of() -> None:
    machine = FreeMemory(MIB, MIB, MIB // 2, "machine")
    with pytest.raises(NoRoomError) as caught:
        size_pools(POLICY, ModelMemory(4096, BYTES_PER_TOKEN), machine)
    assert "512.0 KiB free (machine 1.0 MiB less 512.0 KiB in use)" in str(caught.value)
    assert str(caught.value).endswith("--context-len 240; or make more memory free")


def test_refusal_when_the_address_space_is_the_limit_then_it_is_what_should_be_raised() -> None:
    free = FreeMemory(64 * MIB, MIB, MIB // 2, ADDRESS_SPACE)
    with pytest.raises(NoRoomError) as caught:
        size_pools(POLICY, ModelMemory(4096, BYTES_PER_TOKEN), free)
    said = "512.0 KiB free (this process's address space limit (ulimit -v) 1.0 MiB less 512.0 KiB in use)"
    assert said in str(caught.value)
    assert str(caught.value).endswith("--context-len 240; or raise ulimit -v")


def test_pool_tokens_when_they_just_fit_then_taken_and_a_byte_less_then_refused_with_what_would_fit() -> None:
    policy = replace(POLICY, pool_tokens=4096)
    available_bytes = 2 * 257 * PAGE_BYTES
    pool = size(available_bytes, policy)
    assert (pool.pages, pool.warning) == (257, None)
    assert pool.summary.startswith("KV pool: 4,096 tokens (--pool-tokens), 4.0 MiB of 8.0 MiB free (container limit ")
    assert refused(available_bytes - 1, policy) == (
        "--pool-tokens 4096 needs 4.0 MiB (1,024 bytes a token), and --memory-fraction 0.5 gives the pool 4.0 MiB of "
        "the 8.0 MiB free (container limit 11.0 MiB less 3.0 MiB in use: /sys/fs/cgroup/memory.max): the largest that "
        "fits is --pool-tokens 4080; or give the pool more with --memory-fraction 0.51, or raise the container's limit"
    )
    assert size(available_bytes - 1, replace(policy, pool_tokens=4080)).pages == 256


def test_pool_tokens_when_fewer_than_a_context_then_taken_and_said() -> None:
    pool = size(64 * MIB, replace(POLICY, pool_tokens=496))
    assert pool.pages == 32
    assert pool.warning == (
        "the KV pool of 496 tokens is smaller than the context of 512: no conversation gets longer than the pool"
    )
    assert size(64 * MIB, replace(POLICY, pool_tokens=512)).warning is None


def test_weights_when_they_just_fit_then_taken_and_a_byte_more_then_refused() -> None:
    require_room_for_weights(MIB, of_container(MIB))
    with pytest.raises(NoRoomError) as caught:
        require_room_for_weights(MIB + 1, of_container(MIB))
    assert str(caught.value) == (
        "there is no room for the model: its weights alone need 1.0 MiB, of 1.0 MiB free (container limit 4.0 MiB less "
        "3.0 MiB in use: /sys/fs/cgroup/memory.max): choose a smaller model, or raise the container's limit"
    )
