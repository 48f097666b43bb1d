"""Defects to be seeded into the core, as data: each one is a bug that a server of this kind has had, or could have.

The list grows with every bug found. What changes nothing that anybody could see does not belong here.
"""

from dataclasses import dataclass

PREFIX_CACHE = "engine/core/prefix_cache.py"
SESSION_CACHE = "engine/core/session_cache.py"
SCHEDULER = "engine/core/scheduler.py"
ENDINGS = "engine/core/endings.py"
SESSIONS = "engine/core/sessions.py"
RADIX = "engine/core/radix.py"
POOLS = "engine/core/pools.py"


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


LEAKS = (
    mutant("lock leak", PREFIX_CACHE, "self._tree.unlock(kv.lock, last_use)", "pass"),
    mutant(
        "tail leak",
        SESSION_CACHE,
        "self._pools.free_up(Move.RELEASE, PoolKind.FULL, kv.pages[reach:], request.owner)",
        "pass",
    ),
    mutant(
        "duplicate leak after a prompt",
        PREFIX_CACHE,
        "self._pools.release_after(request.last_step, duplicates, request.owner)",
        "pass",
    ),
    mutant(
        "duplicate leak at a commit",
        PREFIX_CACHE,
        "self._pools.free_up(Move.RELEASE, PoolKind.FULL, duplicates, owner)",
        "pass",
    ),
    mutant("row leak", PREFIX_CACHE, "pools.free_up(Move.RELEASE, PoolKind.ROWS, [kv.req_pool_idx], owner)", "pass"),
    mutant(
        "slot leak when its session was closed during a turn",
        SESSION_CACHE,
        "        if slot.is_closing:\n            self.close_session(slot.session)\n",
        "",
    ),
    mutant("double free", PREFIX_CACHE, "        kv.pages = kv.pages[reach:]\n", ""),
    mutant(
        "double free of a tail",
        SESSION_CACHE,
        "            del kv.pages[reach:]\n",
        "",
    ),
    mutant(
        "draining pages are forgotten",
        POOLS,
        "            self._draining.append(Drain(owner, tuple(pages), until))\n",
        "",
    ),
)

IN_FLIGHT = (
    mutant("free while in flight", ENDINGS, "        if request.in_flight > 0:\n            return\n", ""),
    mutant("duplicates freed while in flight", POOLS, "if until <= self._answered:", "if until:"),
    mutant("samples in flight outlive a retraction", ENDINGS, "        request.pending_samples = 0\n", ""),
    mutant("epoch outlives a retraction", ENDINGS, "        request.epoch += 1\n", ""),
    mutant("prompt counts as cached after a retraction", ENDINGS, "        request.is_prompt_cached = False\n", ""),
    mutant(
        "answers reach a turn that has ended",
        SCHEDULER,
        "            if request.phase is Phase.RUNNING:\n                # A",
        "            if request.phase is not Phase.WAITING:\n                # A",
    ),
    mutant("sampled input one position late", SCHEDULER, "start >= request.known_len", "start > request.known_len"),
    mutant(
        "table keeps a duplicate's page", PREFIX_CACHE, "self._table.write(kv.req_pool_idx, 0, kv.all_pages())", "pass"
    ),
)

TRANSACTIONS = (
    mutant(
        "late lease",
        SCHEDULER,
        "        self._cache.acquire(request, probe)\n        self._queues.run(request)\n",
        "        self._cache.make_room(pages_for(request.known_len, self._config.page_size) - probe.num_pages, 0)\n"
        "        self._cache.acquire(request, probe)\n        self._queues.run(request)\n",
    ),
    Mutant(
        "right to run taken at admission",
        (
            Edit(SCHEDULER, "        self._sessions.begin_turn(session, request.turn_id, request.rid)\n", ""),
            Edit(
                SCHEDULER,
                "        request.go(Phase.RUNNING)\n",
                "        request.go(Phase.RUNNING)\n"
                "        if request.retractions == 0:\n"
                "            self._sessions.begin_turn(request.session, request.turn_id, request.rid)\n",
            ),
        ),
    ),
    mutant(
        "lost return",
        SESSION_CACHE,
        "if keep_len <= 0 or keep_len < kv.cache_protected_len:",
        "if move is Move.RETURN or keep_len <= 0 or keep_len < kv.cache_protected_len:",
    ),
    mutant(
        "return lost on abort",
        SESSION_CACHE,
        "keep_len=request.base_len - 1, is_fresh",
        "keep_len=request.base_len - 1 if is_retracted else 0, is_fresh",
    ),
    mutant(
        "roll-back keeps one token too many",
        SESSION_CACHE,
        "keep_len=request.base_len - 1",
        "keep_len=request.base_len",
    ),
    mutant(
        "roll-back keeps one token too few",
        SESSION_CACHE,
        "keep_len=request.base_len - 1",
        "keep_len=request.base_len - 2",
    ),
    mutant(
        "commit keeps one token too many", SESSION_CACHE, "keep_len=request.known_len - 1", "keep_len=request.known_len"
    ),
    mutant(
        "aborted turn stays in the history",
        ENDINGS,
        "            self._go(request, Phase.ROLLING_BACK)\n            self._end(request, reason, now, detail)\n",
        "            if request.session is not None:\n"
        "                ids, parent = bytes(request.ids), request.parent\n"
        "                self._sessions.commit_turn(request.session, request.turn_id, parent, request.base_len, ids)\n"
        "            self._go(request, Phase.ROLLING_BACK)\n            self._end(request, reason, now, detail)\n",
    ),
    mutant(
        "committing turn can be aborted",
        ENDINGS,
        "request.outcome is None and request.phase is not Phase.COMMITTING",
        "request.outcome is None",
    ),
    mutant(
        "failed commit is kept",
        ENDINGS,
        "            self._go(request, Phase.ROLLING_BACK)\n"
        "            self._end(request, AbortReason.COMMIT_FAILED, now)\n",
        "            self.commit(request, now)\n",
    ),
    mutant(
        "cut keeps the ids behind it",
        ENDINGS,
        "        del request.ids[(request.prompt_len + output_len) * TOKEN_BYTES :]\n",
        "",
    ),
    mutant("cut to nothing is followed", ENDINGS, "not 1 <= output_len", "not 0 <= output_len"),
    mutant("retraction is forgotten in the usage", ENDINGS, "        request.retractions += 1\n", ""),
    mutant("usage of the last admission", SCHEDULER, "if request.usage is None:", "if True:"),
    mutant("second turn of a busy session", SESSIONS, "if session.streaming and session.live:", "if False:"),
    mutant("expiry during a turn", SESSIONS, "or session.live or session.closing", "or session.closing"),
    mutant("idle time counts from the opening", SESSIONS, "            session.idle_since = now\n", ""),
    mutant("stateless turn ids collide", SESSIONS, "if command.turn_id in self._stateless:", "if False:"),
    mutant("sampling does not reach the plan", SCHEDULER, "            sampling=request.sampling,\n", ""),
    mutant("bad sampling is taken", "engine/core/admission.py", "    check_sampling(command.sampling)\n", ""),
)

ROOM = (
    mutant(
        "no demotion",
        SESSION_CACHE,
        "return self._inner.reclaimable_pages + self._idle_pages",
        "return self._inner.reclaimable_pages",
    ),
    mutant(
        "rows are not demoted",
        SESSION_CACHE,
        "return self._inner.reclaimable_rows + len(self._idle_rows)",
        "return self._inner.reclaimable_rows",
    ),
    mutant("pinned pages count as room", SCHEDULER, " - probe.pinned_pages", ""),
    mutant(
        "idle locks are not told to the tree",
        SESSION_CACHE,
        "            self._tree.set_idle(slot.kv.lock, True)",
        "            pass",
    ),
    mutant(
        "a lent slot stays in line",
        SESSION_CACHE,
        "            self._leave_idle(slot)\n            self._hand",
        "            self._hand",
    ),
    mutant(
        "row of a lent slot stays in line", SESSION_CACHE, "        self._idle_rows.pop(slot.session.uid, None)\n", ""
    ),
    mutant(
        "room is not kept for running turns",
        SCHEDULER,
        "wanted += admission.pages_to_come(running,",
        "wanted += 0 * admission.pages_to_come(running,",
    ),
    Mutant(
        "the oldest turn is retracted, not the newest",
        (
            Edit(SCHEDULER, "victim = self._queues.running[-1]", "victim = self._queues.running[0]"),
            Edit(SCHEDULER, "victim.arrival <= request.arrival", "victim is request"),
        ),
    ),
    mutant(
        "a turn that does not fit is overtaken",
        SCHEDULER,
        "_fits(request, probe):\n                return",
        "_fits(request, probe):\n                continue",
    ),
    mutant(
        "last come, first served",
        SCHEDULER,
        "for request in tuple(self._queues.waiting):",
        "for request in tuple(reversed(self._queues.waiting)):",
    ),
    mutant(
        "a slot that is coming back counts as ready",
        SESSION_CACHE,
        "return Probe(is_ready=False)",
        "return self._inner.probe(request)",
    ),
)

TREE = (
    mutant("full hit", PREFIX_CACHE, "(request.known_len - 1) // self", "request.known_len // self"),
    mutant("namespaces are mixed", PREFIX_CACHE, "self._tree.probe(request.namespace,", 'self._tree.probe("",'),
    mutant(
        "tokens in flight are donated",
        PREFIX_CACHE,
        "        length = min(kv.kv_committed_len, request.prompt_len)",
        "        length = min(kv.kv_allocated_len, request.known_len)",
    ),
    mutant(
        "partly filled page is donated",
        PREFIX_CACHE,
        "min(kv.kv_committed_len, request.prompt_len) // self._page_size * self._page_size",
        "-(-min(kv.kv_committed_len, request.prompt_len) // self._page_size) * self._page_size",
    ),
    mutant(
        "demotion keeps what was not committed",
        PREFIX_CACHE,
        "length = min(kv.kv_committed_len, count_ids(ids)) //",
        "length = kv.kv_allocated_len //",
    ),
    mutant(
        "split loses locks",
        RADIX,
        "upper.lock_count, upper.idle_count, upper.last_use = node.lock_count, node.idle_count, node.last_use",
        "upper.last_use = node.last_use",
    ),
    mutant(
        "locked leaf is evicted",
        RADIX,
        "        is_evictable = node.parent is not None and not node.children and node.lock_count == 0\n",
        "        is_evictable = node.parent is not None and not node.children\n",
    ),
    mutant("evicted pages stay in the tree", RADIX, "            del node.pages[-num_pages:]\n", ""),
    mutant("parent of an evicted leaf is forgotten", RADIX, "        self._offer(parent)\n", ""),
)

STOPS = (
    mutant("eos is not a stop", "engine/core/stops.py", "token_id in eos_ids and not ignore_eos", "False"),
    mutant("one token past the limit", "engine/core/stops.py", "output_len >= max_tokens", "output_len > max_tokens"),
    mutant(
        "a failed forward ends nothing",
        SCHEDULER,
        "                    self._endings.abort(request, AbortReason.FORWARD_FAILED, now, outcome.reason)\n",
        "                    pass\n",
    ),
    mutant(
        "planned past the turn's limit",
        "engine/core/request.py",
        "        if self.output_len + self.pending_samples >= self.max_tokens:\n            return 0\n",
        "",
    ),
    mutant(
        "pool is no limit at admission",
        "engine/core/admission.py",
        '        (RefusalReason.PROMPT_EXCEEDS_POOL, "KV pool", config.pool_tokens),\n',
        "",
    ),
)

MUTANTS = (*LEAKS, *IN_FLIGHT, *TRANSACTIONS, *ROOM, *TREE, *STOPS)
