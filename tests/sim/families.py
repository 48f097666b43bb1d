"""Families of schedules, and how likely each makes what: shares that a `Writer` draws by."""

from dataclasses import dataclass
from enum import StrEnum
from random import Random

VOCAB_SIZE = 40


class Family(StrEnum):
    """What a seed presses for."""

    MIXED = "mixed"
    """Anything: limits of every size."""
    CROWD = "crowd"
    """Many short prompts with long answers in a small pool: turns are retracted."""
    LAST_ATTEMPTS = "last_attempts"
    """Turns of a middling length that may be retracted once: who comes back for the last time stays, and others go."""
    SPECULATIVE = "speculative"
    """Answers that repeat what was there before, guessed and verified."""
    BRANCHES = "branches"
    """Ordinary sessions whose turns replace, drop, go back and branch, are forked and cut."""
    FORKS = "forks"
    """Streaming sessions that are forked and cut while room is short."""
    QUEUE = "queue"
    """A long queue before one running turn: a turn that starves because of its place shows there."""
    BIG_AND_SMALL = "big_and_small"
    """A turn that needs the whole pool, among many that need next to nothing: it must not wait for ever."""
    KINDS = "kinds"
    """Sessions and prompts of models with windows or states, which share, go on and go back while these are short."""
    UNDECORATED = "undecorated"
    """A cache without slots: streaming sessions are refused, all else is as ever."""


@dataclass(slots=True)
class Shares:
    """Each from 0 to 1. `prompt` and `output` are of all the room that there is: the longest of either."""

    streaming: float
    prompt: float
    output: float
    step: float
    fail: float
    ack: float
    """Of commands; low where the store is slow."""
    stateless: float = 0.25
    turn: float = 0.45
    rewrite: float = 0.25
    """Of an ordinary session's turns with a parent: those that replace, drop, or go back."""
    lineage: float = 0.07
    """Of commands: forks and cuts."""
    draft: float = 0.12
    keep: float = 0.3
    priority: float = 0.15


def draw_shares(rng: Random, family: Family) -> Shares:
    """Shares of one seed."""
    shares = Shares(
        streaming=rng.choice((0.5, 0.8, 1.0)),
        prompt=rng.choice((0.08, 0.16, 0.3)),
        output=rng.choice((0.03, 0.08, 0.25, 0.7)),
        step=rng.choice((0.6, 0.75, 0.85)),
        fail=rng.choice((0.0, 0.01, 0.05)),
        ack=rng.choice((0.05, 0.3, 0.3)),
    )
    match family:
        case Family.CROWD:
            shares.prompt, shares.output, shares.keep = 0.1, 0.8, 0.6
            shares.stateless, shares.draft = 0.1, 0.05
        case Family.LAST_ATTEMPTS:
            shares.prompt, shares.output, shares.step, shares.fail = 0.03, 0.3, 0.8, 0.0
            shares.stateless, shares.turn, shares.draft = 0.8, 0.9, 0.0
        case Family.QUEUE:
            shares.prompt, shares.output, shares.step = 0.1, 0.05, 0.5
            shares.stateless = 0.6
        case Family.BIG_AND_SMALL:
            shares.prompt, shares.output, shares.step = 0.1, 0.035, 0.5
            shares.stateless, shares.turn, shares.priority = 0.9, 0.8, 0.0
        case Family.UNDECORATED:
            shares.streaming = 0.35
        case Family.SPECULATIVE:
            shares.output, shares.draft, shares.step = rng.choice((0.3, 0.6)), rng.choice((0.4, 0.85)), 0.75
            shares.fail = rng.choice((0.0, 0.03, 0.06))
        case Family.BRANCHES:
            shares.streaming, shares.stateless, shares.rewrite, shares.lineage = 0.05, 0.05, 0.5, 0.2
            shares.prompt, shares.output = 0.08, rng.choice((0.02, 0.05))
            shares.step = 0.65
        case Family.KINDS:
            shares.streaming, shares.stateless, shares.lineage = 0.9, rng.choice((0.1, 0.4)), 0.25
            shares.prompt, shares.output = rng.choice((0.1, 0.25)), rng.choice((0.03, 0.08, 0.25))
            shares.step, shares.fail, shares.turn = 0.68, rng.choice((0.0, 0.03, 0.08)), 0.6
        case Family.FORKS:
            shares.streaming, shares.stateless, shares.lineage = 0.95, 0.1, 0.45
            shares.prompt, shares.output = rng.choice((0.08, 0.16)), rng.choice((0.03, 0.08, 0.2))
            shares.step, shares.fail = 0.7, rng.choice((0.0, 0.03))
        case _:
            pass
    return shares
