"""A defect to be seeded into a copy of the core, as data."""

from dataclasses import dataclass

RADIX_CACHE = "engine/core/radix_cache.py"
NO_CACHE = "engine/core/no_cache.py"
RELEASES = "engine/core/releases.py"
STATES = "engine/core/states.py"
WINDOW = "engine/core/window.py"
EVICTION = "engine/core/eviction.py"
MATCHER = "engine/core/matcher.py"
ADMISSION = "engine/core/admission.py"
SESSION_CACHE = "engine/core/session_cache.py"
SCHEDULER = "engine/core/scheduler.py"
ENDINGS = "engine/core/endings.py"
SESSIONS = "engine/core/sessions.py"
RADIX = "engine/core/radix.py"
POOLS = "engine/core/pools.py"
ROOMS = "engine/core/room.py"
TURNS = "engine/core/turns.py"
TURN_TREE = "engine/core/turn_tree.py"
INTAKE = "engine/core/intake.py"
QUEUES = "engine/core/queues.py"


@dataclass(frozen=True, slots=True)
class Edit:
    """`old`, which is in the file exactly once, becomes `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    edits: tuple[Edit, ...]


def mutant(name: str, file: str, old: str, new: str) -> Mutant:
    """With a single edit."""
    return Mutant(name, (Edit(file, old, new),))
