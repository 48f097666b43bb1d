"""Defects of windows and states: what is looked back to, kept, pinned, locked, shared and counted of them."""

from tests.sim.defect import (
    ADMISSION,
    EVICTION,
    MATCHER,
    RADIX,
    RADIX_CACHE,
    RELEASES,
    ROOMS,
    SCHEDULER,
    SESSION_CACHE,
    STATES,
    WINDOW,
    mutant,
)

WINDOWS = (
    mutant("window one token too long", WINDOW, "position - window + 1", "position - window"),
    mutant("window one token too short", WINDOW, "position - window + 1", "position - window + 2"),
    mutant(
        "first kept page one too far",
        WINDOW,
        "return window_start(border, window) // page_size",
        "return window_start(border, window) // page_size + 1",
    ),
    mutant(
        "no window is kept for the last page border",
        WINDOW,
        "    border = length // page_size * page_size\n",
        "    border = length\n",
    ),
    mutant(
        "windows are not left behind",
        RADIX_CACHE,
        "        leave_windows(self._pools, request.owner, kv, length, self._matcher)\n"
        "        self._narrow(kv, length)\n",
        "        self._narrow(kv, length)\n",
    ),
    mutant(
        "windows are left a cut too early",
        RADIX_CACHE,
        "request.kv, request.least_len(self._cut_back_max)\n",
        "request.kv, request.kv.kv_allocated_len\n",
    ),
    mutant("window of the last commit is not pinned", RELEASES, "    if kv.pin_len:\n        yield kv.pin_len\n", ""),
    mutant(
        "lent without a pin",
        SESSION_CACHE,
        "            request.kv.pin_len = request.kv.kv_committed_len  # what a roll-back goes back to\n",
        "",
    ),
    mutant(
        "window of a checkpoint is not pinned",
        RELEASES,
        "    if kv.states is not None and kv.states.checkpoint_len is not None:\n",
        "    if False:\n",
    ),
    mutant("tombstone matched as full", MATCHER, "if not node.swa:", "if False:"),
    mutant(
        "windows of a path are not locked",
        RADIX,
        "                self._locks.use(SWA, step, locks=1)\n",
        "                pass\n",
    ),
    mutant(
        "lock gives its windows up too early",
        RADIX_CACHE,
        "self._tree.leave_window(lock, first_kept_page(least_len, window, self._page_size))",
        "self._tree.leave_window(lock, 1 + first_kept_page(least_len + self._page_size, window, self._page_size))",
    ),
    mutant(
        "lock forgets what a roll-back goes back to",
        RADIX_CACHE,
        "least_len = min((length, *pinned_lens(kv)))",
        "least_len = length",
    ),
    mutant(
        "lock gives up a whole node for a part of it",
        RADIX,
        "left = node if start + len(node.pages) <= first else self._split(node, first - start)",
        "left = node",
    ),
    mutant(
        "leaf is made longer and its new pages are not locked",
        RADIX,
        "        self._pools.ledger.protect(pages)\n",
        "",
    ),
    mutant(
        "leaf of two holders is made longer",
        RADIX,
        "not node.children and node.lock_count == 1:",
        "not node.children:",
    ),
    mutant(
        "duplicate windows leak",
        RADIX_CACHE,
        "return ((FULL, donated.duplicates), (SWA, donated.swa_duplicates))",
        "return ((FULL, donated.duplicates),)",
    ),
    mutant(
        "duplicate windows leak after a prompt",
        RADIX_CACHE,
        "self._pools.release_after(request.last_step, units, owner, pool)",
        "self._pools.release_after(request.last_step, units if pool is FULL else [], owner, pool)",
    ),
    mutant(
        "duplicate windows freed while in flight",
        RADIX_CACHE,
        "self._pools.release_after(request.last_step, units, owner, pool)",
        "self._pools.release_after(request.last_step * (pool is FULL), units, owner, pool)",
    ),
    mutant(
        "revived windows keep their owner",
        RADIX,
        "        self._pools.move(move, SWA, node.swa, owner, CACHE)\n",
        "",
    ),
    mutant(
        "split forgets windows",
        RADIX,
        "upper.swa, node.swa = node.swa[:used], node.swa[used:]",
        "upper.swa, node.swa = node.swa[:used], []",
    ),
    mutant(
        "locked window is evicted",
        EVICTION,
        "bool(node.swa) and node.swa_uses.locks == 0",
        "bool(node.swa)",
    ),
    mutant(
        "windows are not in the table",
        ROOMS,
        "            self._table.write_swa(kv.req_pool_idx, start, granted.swa_pages)\n",
        "",
    ),
    mutant(
        "admission counts the length, not the window",
        ADMISSION,
        "return max(0, min(num_held + pages, most) - num_held)",
        "return pages",
    ),
    mutant(
        "admission counts no windows",
        ROOMS,
        "if self._pools.has_swa and self._windows_wanted(",
        "if False and self._windows_wanted(",
    ),
)

STATEFUL = (
    mutant(
        "state is kept under another length",
        STATES,
        "        self.kept[length] = slot\n",
        "        self.kept[length - 1] = slot\n",
    ),
    mutant("step starts from the state before", STATES, "        self.read = write\n", "        self.read = read\n"),
    mutant(
        "checkpoint is overwritten while it is kept",
        STATES,
        "if length not in (self.base_len, self.checkpoint_len))",
        "if length != self.base_len)",
    ),
    mutant(
        "last commit's state is overwritten while lent",
        STATES,
        "if length not in (self.base_len, self.checkpoint_len))",
        "if length != self.checkpoint_len)",
    ),
    mutant(
        "roll-back forgets the cache's state",
        RELEASES,
        "        kv.states.read = kv.lock.node.state\n",
        "        pass\n",
    ),
    mutant(
        "states behind a cut leak",
        RELEASES,
        "    pools.free_up(Move.RELEASE, MAMBA, kv.states.cut(length), owner)\n",
        "    kv.states.cut(length)\n",
    ),
    mutant(
        "state matched inside a node",
        MATCHER,
        "(not node.state or used_pages < len(node.pages))",
        "not node.state",
    ),
    mutant(
        "state of a path is not locked",
        RADIX,
        "            self._locks.use(MAMBA, node, locks=1)\n",
        "            node.state_uses.locks += 1\n",
    ),
    mutant(
        "split gives the state to the upper part",
        RADIX,
        "node.key, node.pages, node.parent = node.key[cut:], node.pages[used:], upper\n",
        "node.key, node.pages, node.parent = node.key[cut:], node.pages[used:], upper\n"
        "        upper.state, node.state = node.state, 0\n",
    ),
    mutant("locked state is evicted", EVICTION, "node.state > 0 and node.state_uses.locks == 0", "node.state > 0"),
    mutant(
        "duplicate state leaks",
        RADIX_CACHE,
        "            states.forget_checkpoint()\n",
        "            states.give_checkpoint()\n",
    ),
    mutant(
        "checkpoint is given and kept",
        RADIX_CACHE,
        "            states.give_checkpoint()\n",
        "            states.forget_checkpoint()\n",
    ),
    mutant("checkpoint at any length", ROOMS, "if length % interval or length", "if length"),
    mutant(
        "prompts end no chunk at a checkpoint",
        SCHEDULER,
        "            if start < border < start + query_len:\n",
        "            if False:\n",
    ),
    mutant(
        "a turn that has no room costs others a state",
        ROOMS,
        " - probe.pinned.states:\n",
        " - probe.pinned.states:\n            self._cache.make_room(0, 0, self._pools.free(PoolKind.MAMBA) + 1)\n",
    ),
    mutant(
        "admission counts no states",
        ROOMS,
        "if self._pools.has_states and probe.states_missing >",
        "if False and probe.states_missing >",
    ),
    mutant("pinned states count as room", ROOMS, " - probe.pinned.states:", ":"),
    mutant(
        "drafts with states",
        "engine/core/pool_needs.py",
        "return 0 if self.has_states else self.draft_tokens_max",
        "return self.draft_tokens_max",
    ),
)

KINDS = (*WINDOWS, *STATEFUL)
