"""Defects to be seeded into the core, as data: each one is a bug that a server of this kind has had, or could have.

The list grows with every bug found. What changes nothing that anybody could see does not belong here.
"""

from tests.sim.defect import (
    ENDINGS,
    EVICTION,
    POOLS,
    RADIX,
    RADIX_CACHE,
    RELEASES,
    ROOMS,
    SCHEDULER,
    SESSION_CACHE,
    SESSIONS,
    Edit,
    Mutant,
    mutant,
)
from tests.sim.mutant_table_kinds import KINDS
from tests.sim.mutant_table_order import DRAINING, ORDER, SPECULATION
from tests.sim.mutant_table_sessions import BRANCHES, KEEPING, LINEAGE

LEAKS = (
    mutant("lock leak", RADIX_CACHE, "self._tree.unlock(kv.lock, last_use)", "pass"),
    mutant(
        "tail leak",
        RELEASES,
        "    pools.free_up(Move.RELEASE, FULL, kv.pages[reach:], owner)\n",
        "",
    ),
    mutant(
        "duplicate leak after a prompt",
        RADIX_CACHE,
        "self._pools.release_after(request.last_step, units, owner, pool)",
        "pass",
    ),
    mutant(
        "duplicate leak at a commit",
        RADIX_CACHE,
        "self._give(move, owner, namespace, ids, kv, min(",
        "self._donate(move, owner, namespace, ids, kv, min(",
    ),
    mutant("row leak", RELEASES, "pools.free_up(Move.RELEASE, ROWS, [kv.req_pool_idx], owner)", "pass"),
    mutant(
        "slot leak when its session was closed during a turn",
        SESSION_CACHE,
        "        if slot.is_closing:\n            self.close_session(slot.session)\n",
        "",
    ),
    mutant(
        "double free",
        RADIX_CACHE,
        "kv.lock, kv.pages, kv.cache_protected_len = donated.lock, kv.pages[reach:], length",
        "kv.lock, kv.cache_protected_len = donated.lock, length",
    ),
    mutant(
        "double free of a tail",
        RELEASES,
        "    del kv.pages[reach:]\n",
        "",
    ),
    mutant(
        "draining pages are forgotten",
        POOLS,
        "            self._to_release.append(Drain(owner, tuple(pages), until, pool))\n",
        "",
    ),
)

IN_FLIGHT = (
    mutant("free while in flight", ENDINGS, "if request.in_flight > 0:", "if False:"),
    mutant(
        "duplicates freed while in flight",
        POOLS,
        "        if until <= self._answered:\n            self.free_up",
        "        if until:\n            self.free_up",
    ),
    mutant("samples in flight outlive a retraction", ENDINGS, "        request.pending_samples = 0\n", ""),
    mutant("epoch outlives a retraction", ENDINGS, "        request.epoch += 1\n", ""),
    mutant("prompt counts as cached after a retraction", ENDINGS, "        request.is_prompt_cached = False\n", ""),
    mutant(
        "answers reach a turn that has ended",
        SCHEDULER,
        "            if request.phase is RUNNING:\n                if request.epoch",
        "            if True:\n                if request.epoch",
    ),
    mutant("sampled input one position late", SCHEDULER, "start >= known_len", "start > known_len"),
    mutant(
        "table keeps a duplicate's page",
        RADIX_CACHE,
        "            write_table(self._table, kv)  # the tree's pages take their places\n",
        "            pass\n",
    ),
)

TRANSACTIONS = (
    mutant(
        "late lease",
        SCHEDULER,
        "        self._cache.acquire(request, probe)\n        self._queues.run(request)\n",
        "        self._cache.make_room(-(-request.known_len // self._config.page_size) - probe.num_pages, 0)\n"
        "        self._cache.acquire(request, probe)\n        self._queues.run(request)\n",
    ),
    Mutant(
        "right to run taken at admission",
        (
            Edit(SESSIONS, "        if session.streaming and session.live:", "        if False:"),
            Edit(SESSION_CACHE, "require(slot.lessee is None,", "require(True,"),
        ),
    ),
    mutant(
        "lost return",
        SESSION_CACHE,
        "slot.session.history_len - 1)\n        hand_over",
        "0 if move is Move.RETURN else slot.session.history_len - 1)\n        hand_over",
    ),
    mutant(
        "return lost on abort",
        SESSION_CACHE,
        "slot.session.history_len - 1)\n        hand_over",
        "0 if request.phase is Phase.ROLLING_BACK else slot.session.history_len - 1)\n        hand_over",
    ),
    mutant(
        "slot gets back one token too many",
        SESSION_CACHE,
        "slot.session.history_len - 1)\n        hand_over",
        "slot.session.history_len)\n        hand_over",
    ),
    mutant(
        "slot gets back one token too few",
        SESSION_CACHE,
        "slot.session.history_len - 1)\n        hand_over",
        "slot.session.history_len - 2)\n        hand_over",
    ),
    mutant(
        "aborted turn stays in the history",
        ENDINGS,
        "            self._go(request, Phase.ROLLING_BACK)\n            self._end(request, reason, now, detail)\n",
        "            if request.session is not None:\n"
        "                self._sessions.commit_turn(request.session, request.turn_id, bytes(request.ids))\n"
        "            self._go(request, Phase.ROLLING_BACK)\n            self._end(request, reason, now, detail)\n",
    ),
    mutant(
        "committing turn can be aborted",
        ENDINGS,
        "if request.outcome is not None or request.phase is Phase.COMMITTING:\n"
        "            return\n        if request.on_abort",
        "if request.outcome is not None:\n            return\n        if request.on_abort",
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
        "        request.cut(output_len)\n",
        "",
    ),
    mutant("cut to nothing is followed", ENDINGS, "not 1 <= output_len", "not 0 <= output_len"),
    mutant("retraction is forgotten in the usage", ENDINGS, "        request.retractions += 1\n", ""),
    mutant("usage of the last admission", SCHEDULER, "if request.usage is None:", "if True:"),
    mutant("second turn of a busy session", SESSIONS, "if session.streaming and session.live:", "if False:"),
    mutant("expiry during a turn", SESSIONS, "or session.live or session.closing", "or session.closing"),
    mutant("idle time counts from the opening", SESSIONS, "            session.idle_since = now\n", ""),
    mutant("stateless turn ids collide", SESSIONS, "if turn in self._stateless:", "if False:"),
    mutant("sampling does not reach the plan", SCHEDULER, "            request.sampling,\n", ""),
    mutant("bad sampling is taken", "engine/core/admission.py", "    check_sampling(command.sampling)\n", ""),
)

ROOM = (
    mutant(
        "no demotion",
        SESSION_CACHE,
        "return self._inner.reclaimable(pool) + self._idle_units[pool]",
        "return self._inner.reclaimable(pool)",
    ),
    mutant(
        "rows are not demoted",
        SESSION_CACHE,
        "return self._inner.reclaimable(ROWS) + len(self._idle_rows)",
        "return self._inner.reclaimable(ROWS)",
    ),
    mutant("pinned pages count as room", ROOMS, " - probe.pinned.pages", ""),
    mutant(
        "idle locks are not told to the tree",
        SESSION_CACHE,
        "            self._tree.set_idle(slot.kv.lock, True)",
        "            pass",
    ),
    mutant(
        "a lent slot stays in line",
        SESSION_CACHE,
        "            self._leave_idle(slot)\n            hand_over",
        "            hand_over",
    ),
    mutant(
        "row of a lent slot stays in line", SESSION_CACHE, "        self._idle_rows.pop(slot.session.uid, None)\n", ""
    ),
    mutant(
        "room is not kept for running turns",
        ROOMS,
        "wanted += pages_to_come(running,",
        "wanted += 0 * pages_to_come(running,",
    ),
    mutant(
        "the oldest turn is retracted, not the newest",
        ROOMS,
        "for victim in reversed(self._queues.running):",
        "for victim in tuple(self._queues.running)[1:]:",
    ),
    mutant(
        "a turn that does not fit is overtaken",
        SCHEDULER,
        "fits(request, probe):\n                break",
        "fits(request, probe):\n                skipped[request.lane] += 1\n                continue",
    ),
    mutant(
        "last come, first served",
        "engine/core/queues.py",
        "        insort(lane, request, key=_rank)\n",
        "        lane.insert(0, request)\n",
    ),
    mutant(
        "a slot that is coming back counts as ready",
        SESSION_CACHE,
        "return Probe(is_ready=False)",
        "return self._inner.probe(request)",
    ),
)

TREE = (
    mutant("full hit", RADIX_CACHE, "max(0, count_ids(ids) - 1) // self", "count_ids(ids) // self"),
    mutant("namespaces are mixed", RADIX_CACHE, "self._tree.probe(namespace,", 'self._tree.probe("",'),
    mutant(
        "tokens in flight are donated",
        RADIX_CACHE,
        "limit = min(kv.kv_committed_len, request.prompt_len)\n",
        "limit = kv.kv_allocated_len\n",
    ),
    mutant(
        "partly filled page is donated",
        RADIX_CACHE,
        "limit = min(kv.kv_committed_len, request.prompt_len)\n",
        "limit = -(-min(kv.kv_committed_len, request.prompt_len) // self._page_size) * self._page_size\n",
    ),
    mutant(
        "demotion keeps what was not committed",
        RADIX_CACHE,
        "ids, kv, min(kv.kv_committed_len, count_ids(ids)))",
        "ids, kv, kv.kv_allocated_len)",
    ),
    mutant(
        "split loses locks",
        RADIX,
        "upper.lock_count, upper.idle_count, upper.last_use = node.lock_count, node.idle_count, node.last_use",
        "upper.last_use = node.last_use",
    ),
    mutant(
        "locked leaf is evicted",
        EVICTION,
        "return node.parent is not None and not node.children and node.lock_count == 0\n",
        "return node.parent is not None and not node.children\n",
    ),
    mutant("evicted pages stay in the tree", RADIX, "            del node.pages[-num_units:]\n", ""),
    mutant(
        "parent of an evicted leaf is forgotten", RADIX, "        self._full_heap.offer(parent, self._num_nodes)\n", ""
    ),
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
        "        if self.known_len - self.prompt_len + self.pending_samples >= self.max_tokens:\n"
        "            return 0\n",
        "",
    ),
    mutant(
        "pool is no limit at admission",
        "engine/core/admission.py",
        '        (RefusalReason.PROMPT_EXCEEDS_POOL, "KV pool", pool_tokens),\n',
        "",
    ),
)

MUTANTS = (
    *LEAKS,
    *IN_FLIGHT,
    *TRANSACTIONS,
    *ROOM,
    *TREE,
    *STOPS,
    *BRANCHES,
    *LINEAGE,
    *KEEPING,
    *ORDER,
    *SPECULATION,
    *DRAINING,
    *KINDS,
)
