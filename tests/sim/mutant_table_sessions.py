"""Defects of branches, forks, cuts, and of turns that keep what they were given."""

from tests.sim.defect import (
    ENDINGS,
    INTAKE,
    RADIX,
    RADIX_CACHE,
    SESSION_CACHE,
    SESSIONS,
    TURN_TREE,
    TURNS,
    mutant,
)

BRANCHES = (
    mutant(
        "wrong base on drop_previous_output",
        TURNS,
        "length = node.input_len if point.drop_previous_output else node.path_len",
        "length = node.path_len",
    ),
    mutant(
        "offset off by one", TURNS, "slice_ids(base.ids, 0, point.offset)", "slice_ids(base.ids, 0, point.offset + 1)"
    ),
    mutant("negative offset is taken", TURNS, "if not 0 <= point.offset <= length:", "if point.offset > length:"),
    mutant("offset past the end is taken", TURNS, "if not 0 <= point.offset <= length:", "if point.offset < 0:"),
    mutant("descendants are not cleared", TURNS, "tuple(aborts), tuple(forgets))", "tuple(aborts), ())"),
    mutant(
        "only children are cleared, not what is below them",
        TURN_TREE,
        "            below.add(name)\n    below.remove(turn_id)\n",
        "            below.add(name) if node.parent.turn_id == turn_id else None\n    below.remove(turn_id)\n",
    ),
    mutant("live branches below outlive a replace", TURNS, " or live.place.parent in gone\n", "\n"),
    mutant(
        "replaced turns go on",
        TURNS,
        "compiled.place, tuple(aborts), tuple(forgets))",
        "compiled.place, (), tuple(forgets))",
    ),
    mutant("a turn that commits is replaced", INTAKE, "            self._check_replaced(turn)\n", ""),
    mutant(
        "a refused replace aborts all the same",
        INTAKE,
        "        prompt_len = count_ids(turn.ids)\n",
        "        if session is not None:\n"
        "            self._replace(session, turn, now)\n        prompt_len = count_ids(turn.ids)\n",
    ),
    mutant(
        "limits count what a replace clears",
        INTAKE,
        "self._sessions.check_room(session, len(turn.aborts), len(turn.forgets))",
        "self._sessions.check_room(session, 0, 0)",
    ),
    mutant("streaming sessions rewrite", TURNS, '"mode": point.mode is not TurnMode.APPEND,', '"mode": False,'),
)

LINEAGE = (
    mutant(
        "fork shares a tail page",
        RADIX_CACHE,
        "(Move.PUBLISH, owner, namespace, ids, kv, kv.kv_committed_len)",
        "(Move.PUBLISH, owner, namespace, ids, kv, -(-kv.kv_committed_len // self._page_size) * self._page_size)",
    ),
    mutant("fork publishes nothing", SESSION_CACHE, "            self._publish(origin)\n", "            pass\n"),
    mutant(
        "fork has KV of the whole history",
        SESSION_CACHE,
        "            slot.kv = self._inner.borrow(fork.namespace, fork.history)\n",
        "            slot.kv = self._inner.borrow(fork.namespace, source.history)\n",
    ),
    mutant(
        "fork shares across namespaces", SESSION_CACHE, "self._inner.borrow(fork.namespace,", 'self._inner.borrow("",'
    ),
    mutant(
        "published pages are not locked",
        RADIX_CACHE,
        "        self._give(Move.PUBLISH, owner, namespace, ids, kv, kv.kv_committed_len)\n",
        "        self._give(Move.PUBLISH, owner, namespace, ids, kv, kv.kv_committed_len)\n"
        "        if kv.lock is not None:\n            self._tree.unlock(kv.lock, 0)\n",
    ),
    mutant(
        "duplicates of a publish leak",
        RADIX_CACHE,
        "self._give(Move.PUBLISH,",
        "self._donate(Move.PUBLISH,",
    ),
    mutant(
        "table keeps a published duplicate's page",
        RADIX_CACHE,
        "        if kv.req_pool_idx is not None:\n            write_table(self._table, kv)\n\n    def cut(",
        "\n    def cut(",
    ),
    mutant(
        "fork forgets the session's priority",
        SESSIONS,
        "            priority=source.priority,\n",
        "            priority=0,\n",
    ),
    mutant(
        "fork keeps the names behind the point",
        SESSIONS,
        "ends={name: turn_end for name, turn_end in source.ends.items() if turn_end <= end},",
        "ends=dict(source.ends),",
    ),
    mutant(
        "truncate keeps one token too many",
        SESSION_CACHE,
        "slot.kv, session.history_len - 1)\n            self._rest",
        "slot.kv, session.history_len)\n            self._rest",
    ),
    mutant(
        "truncate keeps all KV",
        SESSION_CACHE,
        "            self._inner.cut(slot.owner, slot.kv, session.history_len - 1)\n            self._rest",
        "            self._rest",
    ),
    mutant(
        "cut inside the cache is not floored",
        RADIX_CACHE,
        "        length = self._cut_lock(kv, length) if own is None else own\n",
        "        length = max(length, self._cut_lock(kv, length)) if own is None else own\n",
    ),
    mutant(
        "cut inside the cache leaves the lock",
        RADIX_CACHE,
        "            kv.lock = self._tree.shorten(lock, match, self._tree.next_use())\n",
        "            pass\n",
    ),
    mutant(
        "shortened lock leaks the old one",
        RADIX,
        "        self.unlock(lock, last_use)\n        return shorter\n",
        "        return shorter\n",
    ),
    mutant(
        "truncate keeps the names behind the cut",
        SESSIONS,
        "        session.ends = {name: end for name, end in session.ends.items() if end <= length}\n",
        "",
    ),
    mutant(
        "turns that begin behind a cut stay",
        TURN_TREE,
        "        if node.parent_len >= length:\n",
        "        if node.parent_len > length:\n",
    ),
    mutant(
        "forgotten turns are not told",
        SESSIONS,
        "    def _tell_forgotten(self, session: Session, names: list[TurnId]) -> None:\n        if names:\n",
        "    def _tell_forgotten(self, session: Session, names: list[TurnId]) -> None:\n        if False:\n",
    ),
)

KEEPING = (
    mutant("keep abort is rolled back", ENDINGS, "request.on_abort is OnAbort.KEEP and", "False and"),
    mutant(
        "keep abort without ids commits",
        ENDINGS,
        "and request.output_len > 0 and reason not in NEVER_KEPT",
        "and reason not in NEVER_KEPT",
    ),
    mutant(
        "a close keeps, too",
        ENDINGS,
        "and request.output_len > 0 and reason not in NEVER_KEPT",
        "and request.output_len > 0",
    ),
    mutant(
        "drain close aborts",
        ENDINGS,
        "        if not drain:\n",
        "        if True:\n",
    ),
    mutant(
        "a drained session takes turns",
        SESSIONS,
        "        if session.closing is not None:\n            message",
        "        if False:\n            message",
    ),
)
