"""What the pools get of a model with sliding windows, recurrent states or both, and what is said when they can not."""

from dataclasses import replace

import pytest

from engine.core.config import CoreConfig
from engine.executor.memory import FreeMemory
from engine.executor.pool_size import (
    NoRoomError,
    PoolPolicy,
    PoolSettingError,
    PoolSize,
    PoolTooLargeError,
    size_pools,
)
from engine.executor.pool_words import ModelMemory, Units

PAGE_SIZE = 16
POLICY = PoolPolicy(
    page_size=PAGE_SIZE,
    pool_tokens=None,
    memory_fraction=0.5,
    running_max=4,
    num_rows=64,
    context_len=512,
    chunk_tokens=16,
    in_flight_max=1,
)
BOTH = ModelMemory(4096, 1024, window=32, swa_bytes_per_token=2048, state_bytes=1000)
WINDOWS = replace(BOTH, state_bytes=0)
STATES = replace(BOTH, window=None, swa_bytes_per_token=0)
PLACE = Units(32, 13, 5)
"""Of `BOTH` for one turn. SWA pages: 50 tokens of a window, a chunk and 2 that may be cut; 3 at edges; 2 · 3 pinned."""


def bytes_of(units: Units, model: ModelMemory = BOTH) -> int:
    """With a padding unit of each pool."""
    swa_bytes = (units.swa_pages + 1) * PAGE_SIZE * model.swa_bytes_per_token if model.window else 0
    state_bytes = (units.states + 1) * model.state_bytes if model.state_bytes else 0
    return (units.pages + 1) * PAGE_SIZE * model.bytes_per_token + swa_bytes + state_bytes


def size(room_bytes: int, policy: PoolPolicy = POLICY, model: ModelMemory = BOTH) -> PoolSize:
    return size_pools(policy, model, FreeMemory(2**40, 2**40, 2**40 - 2 * room_bytes, "machine"))


def units_of(pools: PoolSize) -> Units:
    """Without padding; -1 for a pool that there is not."""
    return Units(pools.pages - 1, pools.swa_pages - 1, pools.state_slots - 1)


def times(count: int) -> Units:
    return Units(*(count * units for units in PLACE))


def test_size_when_all_that_is_wished_fits_then_a_place_for_each_turn_and_a_line_for_each_pool() -> None:
    room_bytes = bytes_of(times(4))
    pools = size(room_bytes)
    assert (units_of(pools), pools.num_bytes, pools.warning) == (times(4), room_bytes, None)
    first, *rest = pools.summary.splitlines()
    assert first.startswith("KV pool: 2,048 tokens (4 x context of 512), 2.0 MiB of ")
    assert first.endswith(", 1,024 bytes a token")
    assert rest == [
        "SWA pool: 832 tokens, windows of 32, 1.7 MiB, 2,048 bytes a token",
        "state pool: 20 states, 20.5 KiB, 1,000 bytes each",
        "all pools: 3.7 MiB",
    ]


@pytest.mark.parametrize("model", [WINDOWS, STATES])
def test_size_when_the_model_has_one_of_the_kinds_then_no_pool_of_the_other(model: ModelMemory) -> None:
    pools = size(2**24, model=model)
    # Without states there may be drafts: a page more.
    assert (pools.swa_pages, pools.state_slots) == ((45, 0) if model is WINDOWS else (0, 21))
    told = [line.partition(" pool")[0] for line in pools.summary.splitlines()]
    assert told == ["KV", "SWA" if model is WINDOWS else "state", "all"]


def test_size_when_a_byte_less_than_wished_is_free_then_all_pools_shrink_in_proportion() -> None:
    pools = size(bytes_of(times(4)) - 1)
    assert units_of(pools) == Units(127, 127 * 13 // 32, 127 * 5 // 32)
    assert "(--memory-fraction 0.5 of what is free)" in pools.summary


def test_size_when_just_one_place_fits_then_taken_and_a_byte_less_then_refused_with_the_numbers() -> None:
    room_bytes = bytes_of(PLACE)
    assert units_of(size(room_bytes)) == PLACE
    with pytest.raises(NoRoomError) as caught:
        size(room_bytes - 1)
    told = str(caught.value)
    assert "a context of 512 tokens needs 981.9 KiB (pages 528.0 KiB, SWA pages 448.0 KiB, states 5.9 KiB)" in told
    assert "gives the pools 981.9 KiB" in told
    assert "the largest that fits is --context-len 496; or give the pools more with --memory-fraction 0.51" in told
    assert units_of(size(room_bytes - 1, replace(POLICY, context_len=496))).pages == 31


@pytest.mark.parametrize("room_bytes", [bytes_of(times(2)) + step for step in (-40_000, -1, 0, 1, 40_000, 400_000)])
def test_size_when_shrunk_then_it_fits_and_a_page_more_would_not(room_bytes: int) -> None:
    pools = size(room_bytes)
    units = units_of(pools)
    assert bytes_of(units) == pools.num_bytes <= room_bytes
    pages = units.pages + 1
    assert bytes_of(Units(pages, pages * 13 // 32, pages * 5 // 32)) > room_bytes
    assert all(have >= need for have, need in zip(units, PLACE, strict=True))


@pytest.mark.parametrize(("pool_tokens", "units"), [(4096, times(8)), (16, Units(1, 13, 5)), (528, Units(33, 13, 5))])
def test_pool_tokens_when_given_then_the_others_follow_but_never_below_a_place(pool_tokens: int, units: Units) -> None:
    policy = replace(POLICY, pool_tokens=pool_tokens)
    assert units_of(size(bytes_of(units), policy)) == units
    with pytest.raises(
        PoolTooLargeError, match=f"^--pool-tokens {pool_tokens} needs .*pages .*, SWA pages .*, states "
    ):
        size(bytes_of(units) - 1, policy)


def test_flags_when_given_then_that_pool_alone_has_this_size() -> None:
    assert units_of(size(2**24, replace(POLICY, swa_tokens=320))) == Units(128, 20, 20)
    assert units_of(size(2**24, replace(POLICY, state_slots=7))) == Units(128, 52, 7)
    assert units_of(size(2**24, replace(POLICY, swa_tokens=6400))) == Units(128, 400, 20), "more than in proportion"
    given = replace(POLICY, pool_tokens=64, swa_tokens=208, state_slots=5)
    assert units_of(size(bytes_of(Units(4, 13, 5)), given)) == Units(4, 13, 5)


def test_flags_when_less_than_a_turn_needs_then_refused_with_the_number() -> None:
    assert size(2**24, replace(POLICY, swa_tokens=208)).swa_pages == 14
    with pytest.raises(PoolSettingError, match=r"^--swa-tokens: must be at least 208, not 192: "):
        size(2**24, replace(POLICY, swa_tokens=192))
    assert size(2**24, replace(POLICY, state_slots=5)).state_slots == 6
    with pytest.raises(PoolSettingError, match=r"^--state-slots: must be at least 5, not 4: "):
        size(2**24, replace(POLICY, state_slots=4))


def test_flags_when_the_model_has_no_such_layers_then_refused_by_name() -> None:
    with pytest.raises(PoolSettingError, match=r"^--swa-tokens: this model has no sliding-window layers$"):
        size(2**24, replace(POLICY, swa_tokens=160), STATES)
    with pytest.raises(PoolSettingError, match=r"^--state-slots: this model has no recurrent layers$"):
        size(2**24, replace(POLICY, state_slots=5), WINDOWS)


def test_flags_when_what_they_ask_for_does_not_fit_then_less_of_it_is_proposed() -> None:
    with pytest.raises(NoRoomError, match="or ask for less with --state-slots, or "):
        size(bytes_of(times(4)), replace(POLICY, state_slots=10_000))


def test_size_when_no_layer_has_full_attention_then_windows_alone_take_room() -> None:
    model = replace(WINDOWS, bytes_per_token=0)
    pools = size(bytes_of(Units(32, 11, 0), model), POLICY, model)
    assert pools.swa_pages == 12
    assert pools.pages == 35, "pages take nothing: as many as no SWA page more comes of"


@pytest.mark.parametrize("model", [BOTH, WINDOWS, STATES])
@pytest.mark.parametrize("context_len", [2, 16, 100, 512])
@pytest.mark.parametrize("pool_tokens", [None, 16])
@pytest.mark.parametrize("in_flight_max", [1, 2])
def test_size_when_taken_by_the_core_then_enough_for_it(
    model: ModelMemory, context_len: int, pool_tokens: int | None, in_flight_max: int
) -> None:
    policy = replace(POLICY, context_len=context_len, pool_tokens=pool_tokens, in_flight_max=in_flight_max)
    pools = size(2**24, replace(policy, running_max=1), model)
    core = CoreConfig(
        page_size=PAGE_SIZE,
        pool_pages=pools.pages,
        num_rows=5,
        context_len=context_len,
        vocab_size=50,
        chunk_tokens=policy.chunk_tokens,
        in_flight_max=in_flight_max,
        window=model.window,
        swa_pages=pools.swa_pages,
        state_slots=pools.state_slots,
    )
    assert core.needs == policy.needs(model)
    if model.window is not None:
        with pytest.raises(ValueError, match="swa_pages must be at least"):
            replace(core, swa_pages=core.needs.swa_pages)  # one is padding
