"""The rotating check of a busy server: a few owners at a time, each exactly and at one instant."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from engine.core.books import HOLDER_UNITS, Books, name_of_request, name_of_slot
from engine.core.claims import not_of, tell_leak, tell_outside, tell_wrong, within
from engine.core.events import SlotState
from engine.core.findings import PIECE_UNITS, CheckLevel, Finding, Report, Tally, Work, findings_of
from engine.core.holding import Holding
from engine.core.holding_checks import check_holding
from engine.core.invariants import check_slot
from engine.core.ledger import Ledger
from engine.core.ownership import CACHE, FREE, Owner, OwnerKind, PoolKind
from engine.core.radix_node import Node, path_up
from engine.core.releases import own_units
from engine.core.tree_checks import check_node

OWNERS_SLICE_UNITS = 1024
"""Work of one slice, in units of about one page's: more by one owner at most, who may have very many pages."""


class OwnersCheck:
    """Holders first, then owners whom nobody answers for, the free stacks, and the tree's nodes; then all over again.

    What a holder lists or gave up to drain has to be its own by the ledger, and as much as the ledger counts for it: so
    a leak inside one owner and a double claim show without any total. A round meets all that are there from its begin
    to its end. What only totals can show is left to the full check: a page of the tree in no node, a free page on no
    stack while another one is there twice.

    Books may change from one call to the next. So a round keeps records and nodes, which it looks up again before it
    looks at them, and no place in a list or table.
    """

    def __init__(self, books: Books) -> None:
        self._books = books
        self._draining: dict[tuple[Owner, PoolKind], list[int]] = {}
        self._round: Iterator[Work] | None = None

    def run_slice(self, units: int) -> Report:
        """Goes on for `units` of work, at most to the end of the round. A leak's finding names all of its units."""
        if self._round is None:
            self._round = self._check_all()
        draining: defaultdict[tuple[Owner, PoolKind], list[int]] = defaultdict(list)
        for drain in self._books.pools.draining:
            draining[drain.owner, drain.pool] += drain.pages
        self._draining = draining
        tally = Tally()
        if tally.run(self._round, units):
            self._round = None
        return tally.report(CheckLevel.BUSY, self._books.pools.ledger.num_moves)

    def _check_all(self) -> Iterator[Work]:
        ledger = self._books.pools.ledger
        claimed = [owner for pool in ledger.pools for owner in ledger.claims(pool)]
        known: set[Owner] = set()
        yield from self._check_holders(known)
        for owner in claimed:
            if owner not in known and owner.kind in (OwnerKind.REQUEST, OwnerKind.SESSION):
                known.add(owner)
                yield from self._check_owner(f"{owner}, who is gone,", owner, Holding())
            yield HOLDER_UNITS
        for pool in ledger.pools:
            yield from self._check_stack(pool)
        for root in self._books.tree.roots():
            yield from self._check_below(root)

    def _check_holders(self, known: set[Owner]) -> Iterator[Work]:
        """Live requests and slots, as of now; adds their owners to `known`, those too that leave meanwhile."""
        books = self._books
        live, slots = tuple(books.queues.live.values()), books.slots()
        for request in live:
            known.add(request.owner)
            if request.rid in books.queues.live:
                yield from self._check_owner(name_of_request(request), request.owner, request.kv)
            yield HOLDER_UNITS
        for slot in slots:
            known.add(slot.owner)
            if slot.state is not SlotState.RELEASED:
                yield from check_slot(slot, books.queues.live)
                yield from self._check_owner(name_of_slot(slot), slot.owner, slot.kv)
            yield HOLDER_UNITS

    def _check_owner(self, name: str, owner: Owner, kv: Holding) -> Iterator[Work]:
        """All that it has. It yields work after its last look only: nobody changes anything in between."""
        books = self._books
        ledger, num_units = books.pools.ledger, 0
        own = dict(own_units(kv))
        for pool in ledger.pools:
            listed = own.get(pool, []) + self._draining.get((owner, pool), [])
            yield from _check_all_of(ledger, pool, name, owner, listed)
            num_units += len(listed)
        yield from findings_of(check_holding(books, name, kv))
        yield num_units

    def _check_stack(self, pool: PoolKind) -> Iterator[Work]:
        """From the top down: what is pushed and popped meanwhile moves nothing that is below."""
        pools = self._books.pools
        at = pools.free(pool)
        while at > 0:
            start = max(0, at - PIECE_UNITS)
            piece = pools.free_units(pool)[start:at]
            yield from _check_listed(pools.ledger, pool, "census", "the free stack", FREE, list(piece))
            at = start
            yield HOLDER_UNITS + len(piece)

    def _check_below(self, root: Node) -> Iterator[Work]:
        """Nodes from a root down. Each waits beside its parent: a split puts another one between the two."""
        waiting = [(root, list(root.children.values()))]
        while waiting:
            parent, children = waiting[-1]
            if not children:
                waiting.pop()
                continue
            node = children.pop()
            for step in path_up(node):  # there is none of a node that was evicted meanwhile
                if step is parent:
                    break
                yield from check_node(step, self._books.page_size)
                for pool in self._books.tree.evictable_kinds:
                    ledger, units = self._books.pools.ledger, step.units(pool)
                    yield from _check_listed(ledger, pool, "census", f"node {step.number}", CACHE, units)
            waiting.append((node, list(node.children.values())))
            yield HOLDER_UNITS + len(node.pages)


def _check_all_of(ledger: Ledger, pool: PoolKind, name: str, owner: Owner, units: list[int]) -> Iterator[Finding]:
    """They are `owner`'s, each listed once, and there are no more."""
    claim = ledger.claims(pool).get(owner)
    if claim is None and not units:
        return  # it never had anything, as most of those that wait
    findings = tuple(_check_listed(ledger, pool, "holders", name, owner, units))
    yield from findings
    num_claimed = claim.num_units if claim is not None else 0
    if num_claimed == len(units) and not findings:
        return
    listed = frozenset(units)
    if lost := [unit for unit in _units_of(ledger, pool, owner) if unit not in listed]:
        yield tell_leak(ledger, pool, owner, lost)
    elif not findings:
        message = f"{name} lists {len(units)} of pool {pool}, the claim of {owner} is of {num_claimed}"
        yield Finding("equation", message, pool=pool)


def _check_listed(
    ledger: Ledger, pool: PoolKind, law: str, name: str, owner: Owner, listed: list[int]
) -> Iterator[Finding]:
    """They are `owner`'s, each listed once."""
    units, outside = within(listed, ledger.size(pool))
    if outside:
        yield tell_outside(law, name, pool, outside)
    if wrong := not_of(ledger, pool, units, owner, ledger.claims(pool).get(owner)):
        yield tell_wrong(ledger, law, name, pool, owner, wrong)
    if len(set(listed)) != len(listed):
        twice = tuple(unit for unit, times in Counter(listed).items() if times > 1)
        yield Finding("holders", f"{name} lists {pool} {twice} more than once", pool=pool, units=twice)


def _units_of(ledger: Ledger, pool: PoolKind, owner: Owner) -> list[int]:
    """By the ledger. O(pool): only where something is wrong already."""
    return [unit for unit in range(1, ledger.size(pool)) if ledger.owner(pool, unit) == owner]
