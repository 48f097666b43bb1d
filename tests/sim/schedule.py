"""From one seed to a world: its limits, its model, and the list of operations."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from engine.core.config import CoreConfig
from engine.core.ids import TurnId
from engine.core.states import STATES_A_TURN
from tests.kit.shadow_model import ShadowModel
from tests.sim.families import VOCAB_SIZE, Family
from tests.sim.loop_model import LoopModel
from tests.sim.ops import AnswerOp, FlushOp, Op, PlanOp, TurnOp
from tests.sim.writer import Writer

NUM_OPS = 230
KINDS = ((False, False), (True, False), (False, True), (True, True))
KIND_SHARES = (0.4, 0.2, 0.2, 0.2)
"""Of models with full attention only, with windows besides, with states besides, with all three."""
HYBRID_SHARES = (0.0, 0.3, 0.3, 0.4)
FLUSHED_SHARE = 0.2
LARGE = 100_000
EOS_ID = 7
IDLE_TIMEOUT_S = 50.0
HISTORY_TOKENS_MAX = 32 * 1024 * 1024


FAMILY_SHARES = {
    Family.KINDS: 0.12,
    Family.MIXED: 0.16,
    Family.CROWD: 0.18,
    Family.LAST_ATTEMPTS: 0.04,
    Family.SPECULATIVE: 0.11,
    Family.BRANCHES: 0.15,
    Family.FORKS: 0.10,
    Family.QUEUE: 0.05,
    Family.BIG_AND_SMALL: 0.04,
    Family.UNDECORATED: 0.05,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a run depends on."""

    seed: int
    config: CoreConfig
    model: ShadowModel
    is_durable: bool
    """Commits wait for an `AckOp`; otherwise they are acknowledged at once."""
    ops: tuple[Op, ...]
    family: Family = Family.MIXED


def make_scenario(seed: int, num_ops: int = NUM_OPS, family: Family | None = None) -> Scenario:
    """The same seed makes the same scenario, under any hash seed. `family`: None leaves it to the seed."""
    rng = Random(seed)
    config = _make_config(rng)
    drawn = rng.choices(tuple(FAMILY_SHARES), tuple(FAMILY_SHARES.values()))[0]
    family = drawn if family is None else family
    kind_shares = HYBRID_SHARES if family is Family.KINDS else KIND_SHARES
    config = _add_kinds(Random(f"{seed} kinds"), _fit(rng, config, family), kind_shares)
    is_durable = rng.random() < 0.4 and family is not Family.BIG_AND_SMALL  # small turns must come and go
    model = _make_model(rng, family)
    writer = Writer(rng, config, family)
    ops = tuple(_crowding(rng, config)) if family is Family.LAST_ATTEMPTS else ()
    ops += tuple(writer.write() for _ in range(num_ops - len(ops)))
    ops = _with_flushes(Random(f"{seed} flushes"), ops)
    return Scenario(seed, config, model, is_durable, ops, family)


def _with_flushes(rng: Random, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Of some seeds the cache is flushed, now and then. The others are as they would be without."""
    if rng.random() >= FLUSHED_SHARE:
        return ops
    flushed = list(ops)
    for _ in range(rng.randint(1, 5)):
        flushed.insert(rng.randrange(len(flushed) + 1), FlushOp())
    return tuple(flushed)


def _crowding(rng: Random, config: CoreConfig) -> Iterator[Op]:
    """Five turns that fill the pool together. The last one is retracted, and comes back when two short ones are done.

    It has room for all its tokens then, while the two long ones before it soon want more than there is.
    """
    for number, share in enumerate((0.48, 0.48, 0.25, 0.25, 0.34)):
        max_tokens = max(1, round(share * config.pool_tokens) + rng.choice((-1, 0, 0, 1)))
        yield TurnOp(TurnId(f"c{number}"), None, None, (number,), max_tokens, ignore_eos=True, namespace="")
    for _ in range(config.pool_tokens // 2):
        yield PlanOp()
        yield AnswerOp(fails=False)


def _make_model(rng: Random, family: Family) -> ShadowModel:
    eos_percent = rng.choice((0, 3, 10))
    if family is Family.SPECULATIVE or rng.random() < 0.1:
        return LoopModel(VOCAB_SIZE, EOS_ID, min(eos_percent, 3), rng.choice((3, 12, 30)))
    return ShadowModel(VOCAB_SIZE, EOS_ID, eos_percent)


def _make_config(rng: Random) -> CoreConfig:
    chunk_tokens = rng.choice((1, 3, 4, 7, 8, 16, 32))
    return CoreConfig(
        page_size=rng.choice((1, 2, 3, 4, 4, 16)),
        pool_pages=rng.choice((4, 6, 8, 12, 16, 24, 40, 64)),
        num_rows=rng.choice((2, 3, 3, 4, 5, 8)),
        context_len=rng.choice((16, 24, 48, 64, 128, 256)),
        vocab_size=VOCAB_SIZE,
        eos_ids=(EOS_ID,),
        chunk_tokens=chunk_tokens,
        step_tokens=max(8, rng.choice((chunk_tokens, chunk_tokens + 1, 2 * chunk_tokens, 64))),
        running_max=rng.choice((1, 2, 4, 8)),
        new_token_ratio=rng.choice((0.0, 0.0, 0.1, 0.1, 1.0)),
        retractions_max=rng.choice((1, 1, 2, 3)),
        waiting_max=rng.choice((2, 4, 64, 64)),
        priority_arrivals=rng.choice((1, 3, 8, 64)),
        prefix_wait_tokens=rng.choice((1, 2, 4, 8, 64)),
        draft_tokens_max=rng.choice((1, 4, 8)),
        in_flight_max=rng.choice((1, 2, 2)),
        sessions_max=rng.choice((3, 6, 8)),
        session_nodes_max=rng.choice((3, 64)),
        session_turns_max=rng.choice((1, 2, 4)),
        history_tokens_max=rng.choice((HISTORY_TOKENS_MAX, HISTORY_TOKENS_MAX, HISTORY_TOKENS_MAX, 40, 160)),
        idle_timeout_s=IDLE_TIMEOUT_S,
        prefix_cache=rng.random() < 0.88,
    )


def _add_kinds(rng: Random, config: CoreConfig, shares: tuple[float, ...]) -> CoreConfig:
    """Windows, states, both or neither: as few pages and slots as one turn needs, or some more."""
    has_windows, has_states = rng.choices(KINDS, shares)[0]
    if has_states:
        slots = 1 + STATES_A_TURN + rng.choice((0, 0, 1, 2, 4, 8, 20))
        config = replace(config, state_slots=slots, state_interval=rng.choice((1, 2, 4, 8, 16, 48)))
    if has_windows:
        roomy = replace(config, window=rng.choice((1, 2, 3, 5, 8, 16, 40)), swa_pages=LARGE)
        least = 1 + roomy.swa_turn_pages
        config = replace(roomy, swa_pages=least + rng.choice((0, 0, 1, 3, least, 4 * least)))
    return config


def _fit(rng: Random, config: CoreConfig, family: Family) -> CoreConfig:
    """The limits under which a family shows what it is there for."""
    match family:
        case Family.MIXED:
            return config
        case Family.CROWD:
            return _crowd(rng, config)
        case Family.LAST_ATTEMPTS:
            tight = replace(_crowd(rng, config), page_size=1, pool_pages=1 + rng.randint(24, 48), prefix_cache=False)
            return replace(tight, retractions_max=1, in_flight_max=rng.choice((1, 2)))
        case Family.SPECULATIVE:
            pool_tokens, chunk_tokens = rng.choice((16, 24, 48, 200)), rng.choice((2, 5, 16))
            paged = replace(config, pool_pages=1 + max(3, pool_tokens // config.page_size), prefix_cache=True)
            chunked = replace(paged, chunk_tokens=chunk_tokens, step_tokens=rng.choice((8, 9, 32)))
            roomless = replace(chunked, new_token_ratio=rng.choice((0.0, 0.0, 0.1)), running_max=4, num_rows=6)
            return replace(roomless, draft_tokens_max=8, context_len=96)
        case Family.BRANCHES:
            few = rng.choice((12, 64, 64))
            wide = replace(config, session_nodes_max=few, session_turns_max=rng.choice((1, 4, 4)), prefix_cache=True)
            wide = replace(wide, pool_pages=max(config.pool_pages, 1 + 96 // config.page_size), context_len=128)
            return replace(wide, num_rows=6, running_max=4, chunk_tokens=16, step_tokens=64, waiting_max=64)
        case Family.FORKS:
            pool_tokens = rng.randint(30, 90)
            tight = replace(config, pool_pages=max(6, 1 + pool_tokens // config.page_size), sessions_max=8)
            return replace(tight, num_rows=rng.choice((3, 5, 8)), context_len=96, waiting_max=64)
        case Family.QUEUE:
            return replace(config, running_max=1, waiting_max=48, context_len=64, pool_pages=64, chunk_tokens=32)
        case Family.BIG_AND_SMALL:
            small = replace(config, page_size=4, pool_pages=17, num_rows=8, context_len=64)
            return replace(small, chunk_tokens=32, step_tokens=64, running_max=6, waiting_max=24)
        case Family.KINDS:
            small = replace(config, page_size=rng.choice((1, 2, 2, 4)), pool_pages=1 + rng.choice((16, 32, 64)))
            shared = replace(small, prefix_cache=True, sessions_max=8, waiting_max=64, prefix_wait_tokens=8)
            quick = replace(shared, chunk_tokens=rng.choice((2, 4, 16)), step_tokens=64, context_len=96)
            return replace(quick, num_rows=rng.choice((3, 6)), running_max=4, in_flight_max=rng.choice((1, 2)))
        case Family.UNDECORATED:
            return replace(config, streaming_sessions=False)


def _crowd(rng: Random, config: CoreConfig) -> CoreConfig:
    """Turns fit when they come, and then grow until none does."""
    pool_tokens = rng.randint(12, 48)
    if rng.random() < 0.4:  # small steps: turns come, go and come back one after the other
        config = replace(config, page_size=rng.choice((1, 2)), prefix_cache=rng.random() < 0.5, chunk_tokens=8)
        pool_tokens = rng.randint(10, 28)
    return replace(
        config,
        pool_pages=max(4, 1 + pool_tokens // config.page_size),
        num_rows=9,
        running_max=8,
        new_token_ratio=0.0,
        step_tokens=64,
        context_len=64,
        waiting_max=64,
        in_flight_max=rng.choice((1, 2, 2, 2)),
        retractions_max=rng.choice((1, 1, 3)),
    )
