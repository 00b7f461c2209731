"""Scheduler: which tokens of which requests the next pass computes. A policy, without a model and without tensors.

Every step has a budget of tokens. Requests that decode come first: each gets its one token, so that nobody's stream
stands still because another's prompt is long. The rest goes to prompts that are being read, in the order of arrival, a
chunk at a time (chunked prefill), and then to waiting requests, first come, first served, if blocks for all their
tokens are to be had.

When blocks run out, the youngest request that has not had its turn in this step gives its own back and waits again,
with all its tokens; they are computed anew when it is admitted again (preemption by recompute). The oldest is never the
one that gives way, and what it needs fits into the pool, or it would have been refused: so every request ends.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from minillm.engine.block_pool import BlockPool, blocks_for
from minillm.engine.prefix_cache import PrefixCache
from minillm.engine.request import Request
from minillm.errors import InputError


@dataclass(frozen=True)
class Scheduled:
    """`num_tokens` tokens of a request, from its `num_computed` on; and whether its next token is sampled after it."""

    request: Request
    num_tokens: int
    samples: bool


@dataclass
class Plan:
    """One step. copies: (source, target) blocks to be copied before anything is written into target."""

    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens of all requests together."""
        return sum(part.num_tokens for part in self.scheduled)


class Scheduler:
    """See the module. `max_batch_size` requests run at most, `token_budget` tokens are computed per step at most.

    block_size: tokens per block. prefix_caching: whether blocks of computed tokens are shared and found again. Raises
    InputError for sizes that could stop everything.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        max_batch_size: int = 16,
        token_budget: int = 512,
        prefix_caching: bool = True,
    ) -> None:
        if block_size < 1 or max_batch_size < 1:
            raise InputError(f"block_size ({block_size}) and max_batch_size ({max_batch_size}) must be at least 1")
        if token_budget < max_batch_size:
            raise InputError(
                f"token_budget ({token_budget}) must be at least max_batch_size ({max_batch_size}): with less, requests"
                " that decode would leave nothing for those that still read their prompts"
            )
        self.block_size, self.max_batch_size, self.token_budget = block_size, max_batch_size, token_budget
        self.prefix_cache = PrefixCache(block_size) if prefix_caching else None
        forget = self.prefix_cache.forget if self.prefix_cache is not None else lambda block: None
        self.pool = BlockPool(num_blocks, on_reuse=forget)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in the order of arrival
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Let a request wait for its turn. Raises InputError for one that can never fit: it would wait for ever."""
        needed = blocks_for(request.most_tokens_held, self.block_size)
        if needed > self.pool.num_blocks:
            raise InputError(
                f"a request of {len(request.prompt_ids):,} prompt tokens and up to {request.params.max_tokens:,} more "
                f"needs {needed:,} blocks of {self.block_size} tokens, and there are {self.pool.num_blocks:,}: ask for"
                " fewer tokens, or give the cache more"
            )
        self._arrivals += 1
        request.arrival = self._arrivals
        self.waiting.append(request)

    def schedule(self) -> Plan:
        """The next step. Blocks for all its tokens are in the requests' block tables when this returns."""
        plan = Plan()
        self._continue_running(plan)
        self._admit_waiting(plan)
        return plan

    def computed(self, plan: Plan) -> None:
        """The step has been computed: count its tokens, and let other requests find the blocks that became full."""
        for part in plan.scheduled:
            request = part.request
            before = request.num_computed // self.block_size
            request.num_computed += part.num_tokens
            if self.prefix_cache is not None and request.num_computed // self.block_size > before:
                self.prefix_cache.insert(request.token_ids[: request.num_computed], request.block_table)

    def finish(self, request: Request) -> None:
        """A request is over, whatever it was doing: its blocks are free. A second time does nothing."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._give_back(request)

    def _continue_running(self, plan: Plan) -> None:
        """Tokens for the requests that run: those that decode, then those that read their prompts, the oldest first."""
        for request in sorted(self.running, key=lambda request: request.num_to_compute > 1):
            if request not in self.running:
                continue  # it had to give way meanwhile
            wanted = min(request.num_to_compute, self.token_budget - plan.num_tokens)
            self._put(request, self._make_room(request, wanted, plan), plan)

    def _make_room(self, request: Request, num_tokens: int, plan: Plan) -> int:
        """Blocks for as many of a running request's next `num_tokens` tokens as there is room for: how many those are.

        Where there is none even for one, the youngest that can gives its blocks back. 0 if that is the request itself.
        """
        while num_tokens and not self._give_blocks(request, num_tokens, plan):
            if room := self._room(request):
                num_tokens = min(num_tokens, room)
                continue
            youngest = self._youngest_unserved(plan)
            self._preempt(youngest, plan)
            if youngest is request:
                return 0
        return num_tokens

    def _youngest_unserved(self, plan: Plan) -> Request:
        """The running request to give way: never one that this step already has tokens of."""
        served = [part.request for part in plan.scheduled]
        return next(request for request in reversed(self.running) if request not in served)

    def _room(self, request: Request) -> int:
        """Tokens for which the request's own blocks and the free ones have slots."""
        return (len(request.block_table) + self.pool.num_free) * self.block_size - request.num_computed

    def _admit_waiting(self, plan: Plan) -> None:
        """New requests, while there are tokens, places and blocks for them; in a step that took blocks away, none."""
        if plan.preempted:
            return
        being_computed = self._hashes_of(plan)
        passed_over: list[Request] = []
        while self.waiting and len(self.running) < self.max_batch_size and plan.num_tokens < self.token_budget:
            request = self.waiting.popleft()
            if self._begins_like_one_of(request, being_computed):
                passed_over.append(request)  # one step later, it finds those blocks
                continue
            if not self._admit(request, plan):
                self.waiting.appendleft(request)
                break
            being_computed |= self._hashes_of_part(plan.scheduled[-1])
        self.waiting.extendleft(reversed(passed_over))

    def _admit(self, request: Request, plan: Plan) -> bool:
        """Take what the prefix cache has of a waiting request, and blocks for the first chunk of the rest; or nothing.

        Nothing is taken unless there are blocks for all its tokens, beside those that running requests will still need
        for theirs: to be admitted and soon preempted again is work for nothing.
        """
        promised = sum(self._blocks_to_come(other) for other in self.running)
        self._take_prefix(request)
        if self._blocks_to_come(request) > self.pool.num_free - promised:
            self._give_back(request)
            return False
        num_tokens = min(request.num_to_compute, self.token_budget - plan.num_tokens)
        gave = self._give_blocks(request, num_tokens, plan)
        assert gave, "what _blocks_to_come counts is enough for any chunk"
        request.num_cached = request.num_computed
        self.running.append(request)
        self.running.sort(key=lambda request: request.arrival)  # who waited for a prefix may be older
        plan.admitted.append(request)
        self._put(request, num_tokens, plan)
        return True

    def _take_prefix(self, request: Request) -> None:
        """Share the blocks that hold a prefix of the request's tokens. The last token is computed in any case: its row
        is where the next one comes from. If all are known, it is written into a copy of the last block, and where
        there is no block for that, the last block is computed anew.
        """
        if self.prefix_cache is None or request.needs_every_row:
            return
        found = self.prefix_cache.find(request.token_ids)
        for block in found:
            self.pool.share(block)
        if len(found) * self.block_size == len(request.token_ids) and not self.pool.num_free:
            self._free([found.pop()])
        request.block_table = found
        request.num_computed = min(len(found) * self.block_size, len(request.token_ids) - 1)

    def _blocks_to_come(self, request: Request) -> int:
        """Blocks that a request has yet to get for the tokens it has now."""
        copied = request.num_computed // self.block_size < len(request.block_table) and self._must_not_write(
            request.block_table[request.num_computed // self.block_size]
        )
        return blocks_for(len(request.token_ids), self.block_size) - len(request.block_table) + copied

    def _put(self, request: Request, num_tokens: int, plan: Plan) -> int:
        if num_tokens:
            plan.scheduled.append(Scheduled(request, num_tokens, samples=num_tokens == request.num_to_compute))
        return num_tokens

    def _give_blocks(self, request: Request, num_tokens: int, plan: Plan) -> bool:
        """Room for the request's next tokens, in blocks that are its own to write. False, and no change, if too few."""
        if num_tokens == 0:
            return True
        size, table = self.block_size, request.block_table
        first = request.num_computed // size
        shared = first < len(table) and self._must_not_write(table[first])
        missing = blocks_for(request.num_computed + num_tokens, size) - len(table)
        if missing + shared > self.pool.num_free:
            return False
        if shared:  # copy on write
            own = self.pool.allocate()
            plan.copies.append((table[first], own))
            self._free([table[first]])
            table[first] = own
        table.extend(self.pool.allocate() for _ in range(missing))
        return True

    def _must_not_write(self, block: int) -> bool:
        """Whether others read a block, or may find it."""
        return self.pool.users(block) > 1 or (self.prefix_cache is not None and block in self.prefix_cache)

    def _preempt(self, request: Request, plan: Plan) -> None:
        """Take a running request's blocks; it is the first of those that wait, with nothing computed."""
        self.running.remove(request)
        self._give_back(request)
        request.num_preemptions += 1
        self.waiting.appendleft(request)
        plan.preempted.append(request)

    def _give_back(self, request: Request) -> None:
        self._free(request.block_table)
        request.block_table = []
        request.num_computed = 0

    def _free(self, blocks: Sequence[int]) -> None:
        cache = self.prefix_cache
        self.pool.free_all(blocks, keep=lambda block: cache is not None and block in cache)

    def _hashes_of(self, plan: Plan) -> set[bytes]:
        """The blocks that this step fills, by their hashes."""
        return {found for part in plan.scheduled for found in self._hashes_of_part(part)}

    def _hashes_of_part(self, part: Scheduled) -> set[bytes]:
        if self.prefix_cache is None or part.num_tokens < 2:
            return set()
        request, size = part.request, self.block_size
        end = request.num_computed + part.num_tokens
        return set(self.prefix_cache.hashes(request.token_ids[:end])[request.num_computed // size :])

    def _begins_like_one_of(self, request: Request, being_computed: set[bytes]) -> bool:
        """Whether the first block that a waiting request would have to compute is being computed for another one."""
        if self.prefix_cache is None or not being_computed or request.needs_every_row:
            return False
        hashes = self.prefix_cache.hashes(request.token_ids)
        known = len(self.prefix_cache.find(request.token_ids))
        return known < len(hashes) and hashes[known] in being_computed
