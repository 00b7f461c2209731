"""StaticScheduler: static batching, as it was done before continuous batching. The book's "before", kept to measure it.

A batch is formed, computed until its last member has ended, and only then is the next one formed. Nobody knows how long
an answer will be, so every member reserves room for the longest that any of them may become, as the rows of one padded
tensor do, and keeps it until all are done. Two things are lost: the places of members that have ended early, and
the memory that is reserved and never filled.

It is kinder than padded batches: what ended is not computed any more, and no padding is.
"""

from minillm.engine.block_pool import blocks_for
from minillm.engine.request import Request
from minillm.engine.scheduler import Plan, Scheduler
from minillm.errors import InputError


class StaticScheduler(Scheduler):
    """First come, first served, a batch of up to `max_batch_size` at a time. Sizes and errors are `Scheduler`'s.

    prefix_caching: False; InputError for True: a reservation is its owner's alone.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        max_batch_size: int = 16,
        token_budget: int = 512,
        prefix_caching: bool = False,
    ) -> None:
        if prefix_caching:
            raise InputError("static batching shares no prefixes: leave prefix_caching out, or say False")
        super().__init__(
            num_blocks, block_size, max_batch_size=max_batch_size, token_budget=token_budget, prefix_caching=False
        )
        self._reserved: list[int] = []  # the blocks of members that have ended, until all have

    def schedule(self) -> Plan:
        """The next step: tokens of the members of the batch, which is formed where there is none."""
        plan = Plan()
        if not self.running:
            self._form_batch(plan)
        self._continue_running(plan)
        return plan

    def finish(self, request: Request) -> None:
        """A request is over. Its blocks stay reserved until its whole batch is."""
        if request in self.running:
            self._reserved += request.block_table
            request.block_table = []
        super().finish(request)
        if not self.running:
            self._free(self._reserved)
            self._reserved = []

    def _form_batch(self, plan: Plan) -> None:
        """The first of those that wait, as many as there is room for, each with blocks for the longest of them."""
        each = 0
        while self.waiting and len(self.running) < self.max_batch_size:
            longest = max(each, blocks_for(self.waiting[0].most_tokens_held, self.block_size))
            if longest * (len(self.running) + 1) > self.pool.num_blocks:
                break
            each = longest
            self.running.append(self.waiting.popleft())
        for request in self.running:
            request.block_table = [self.pool.allocate() for _ in range(each)]
            request.num_cached = 0
            plan.admitted.append(request)
