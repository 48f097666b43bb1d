"""Defects of order and fair share, of speculation, and of what is told of draining pages."""

from tests.sim.defect import ENDINGS, POOLS, QUEUES, ROOMS, SCHEDULER, Edit, Mutant, mutant

ORDER = (
    mutant(
        "rank ignores priority",
        "engine/core/priorities.py",
        "arrival - priority * priority_arrivals, arrival",
        "arrival, arrival",
    ),
    mutant("priority is upside down", "engine/core/priorities.py", "arrival - priority *", "arrival + priority *"),
    mutant(
        "session's priority is ignored", "engine/core/intake.py", "session.priority if session is not None else 0", "0"
    ),
    mutant("lane never switches", QUEUES, "        self._served[request.lane] += num_tokens\n", "        pass\n"),
    mutant(
        "an empty lane saves up its share",
        QUEUES,
        "            self._served[request.lane] = max(self._served.values())\n",
        "            pass\n",
    ),
    mutant(
        "queue limit counts both lanes",
        "engine/core/intake.py",
        "self._queues.num_new_waiting(lane)",
        "sum(map(self._queues.num_new_waiting, Lane))",
    ),
    Mutant(
        "protected turn is retracted anyway",
        (
            Edit(ROOMS, "if not victim.is_last_attempt:", "if True:"),
            Edit(ENDINGS, "request.rank = last_attempt_rank(request.rank)", "pass"),
        ),
    ),
    mutant("last attempt keeps its rank", ENDINGS, "request.rank = last_attempt_rank(request.rank)", "pass"),
    mutant("protection never begins", ENDINGS, "request.retractions >= self._retractions_max", "False"),
    mutant(
        "a turn waits for any prefix",
        SCHEDULER,
        "if spared >= self._config.prefix_wait_tokens and left <= own:",
        "if True:",
    ),
    mutant("a turn waits for a prefix of another namespace", SCHEDULER, " or other.namespace != request.namespace", ""),
    mutant(
        "drained KV is asked for again",
        ROOMS,
        "self._queues.is_settling or self._pools.draining or self._has_guesses_in_flight()",
        "self._has_guesses_in_flight()",
    ),
)

SPECULATION = (
    mutant(
        "draft accepted after a wrong one",
        SCHEDULER,
        "            if token != draft or self",
        "            if self",
    ),
    mutant(
        "drafts run past the end of the turn",
        SCHEDULER,
        "left = request.max_tokens - request.output_len - 1",
        "left = request.max_tokens",
    ),
    mutant(
        "eos among accepted drafts is passed over",
        SCHEDULER,
        "            if token != draft or "
        "self._finish_reason(request, token, request.output_len + count) is not None:\n",
        "            if token != draft:\n",
    ),
    mutant(
        "pages of wrong drafts are leaked",
        ROOMS,
        "        release_behind(self._pools, request.owner, kv, kv.kv_committed_len, self._page_size)\n",
        "        kv.kv_allocated_len = kv.kv_committed_len\n"
        "        del kv.pages[kv.own_reach(kv.kv_committed_len, self._page_size) :]\n",
    ),
    mutant(
        "pages of wrong drafts are kept",
        SCHEDULER,
        "            self._room.shrink(request)\n",
        "            request.kv.kv_allocated_len = request.kv.kv_committed_len\n",
    ),
    mutant(
        "committed counts drafts",
        SCHEDULER,
        "row.start_len + row.query_len - num_samples + len(token_ids)",
        "row.start_len + row.query_len",
    ),
    mutant(
        "allocated stays behind wrong drafts",
        ROOMS,
        "        release_behind(self._pools, request.owner, kv, kv.kv_committed_len, self._page_size)\n",
        "        stays = kv.kv_allocated_len\n"
        "        release_behind(self._pools, request.owner, kv, kv.kv_committed_len, self._page_size)\n"
        "        kv.kv_allocated_len = stays\n",
    ),
    mutant(
        "speculation overlaps",
        SCHEDULER,
        "            if request.draft_tokens > 0 and request.in_flight > 0:\n                continue",
        "            if False:\n                continue",
    ),
    mutant("drafts are not counted", SCHEDULER, "token_ids, num_samples - 1)", "token_ids, 0)"),
    mutant(
        "more drafts than asked for",
        SCHEDULER,
        "most = min(request.draft_tokens, left,",
        "most = min(request.draft_tokens + 1, left,",
    ),
    mutant(
        "drafts behind a chunk",
        SCHEDULER,
        "request.output_len == 0 or request.kv.kv_allocated_len < request.known_len - 1",
        "request.output_len == 0",
    ),
    mutant("drafts are over the step's budget", SCHEDULER, "left, budget)", "left)"),
    mutant(
        "drafts from the oldest occurrence",
        "engine/core/drafts.py",
        "found = ids.rfind(pattern, 0, stop)",
        "found = ids.find(pattern, 0, stop)",
    ),
)

DRAINING = (
    mutant("draining is not told", POOLS, "        self._log.emit(Draining(owner, fresh, until, pool))\n", ""),
    mutant(
        "draining is told twice",
        POOLS,
        "page for page in pages if page not in told) if told else tuple(pages)",
        "pages)",
    ),
    mutant(
        "pages that left drain for ever",
        POOLS,
        "            told.difference_update(pages)\n",
        "            pass\n",
    ),
    mutant("step of a move is one behind", SCHEDULER, "        self._pools.ledger.set_step(step)\n", ""),
)
