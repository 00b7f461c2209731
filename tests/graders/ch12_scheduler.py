"""12.3 and 12.4: whose turn it is in a step, and who gives way when blocks run out.

The scheduler around the graded method is the engine's own; what it is to plan is written down here by hand.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from minillm.engine.request import Request
from minillm.engine.scheduler import Plan, Scheduled, Scheduler
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.sampling_params import SamplingParams

_SIZE = 4  # tokens per block


@dataclass(frozen=True)
class _Running:
    """A running request: how many tokens there are, and how many are computed. shares: whose blocks it reads, too."""

    name: str
    tokens: int
    computed: int
    shares: str = ""

    def __str__(self) -> str:
        left = self.tokens - self.computed
        doing = "decodes" if left == 1 else f"has {left} tokens to compute"
        shared = f", in the blocks of {self.shares}" if self.shares else ""
        return f"{self.name} {doing} ({self.computed} computed{shared})"


def _scheduler(
    running: Sequence[_Running], free: int, budget: int, methods: Mapping[str, Function]
) -> tuple[Scheduler, dict[str, Request]]:
    """A scheduler amid its work: these requests run, `free` blocks are free, and some methods are the reader's."""
    owned = sum(-(-one.computed // _SIZE) for one in running if not one.shares)
    scheduler = type("Own", (Scheduler,), dict(methods))(
        owned + free, _SIZE, max_batch_size=len(running) or 1, token_budget=budget, prefix_caching=False
    )
    requests: dict[str, Request] = {}
    for one in running:
        request = Request(one.name, tuple(range(one.tokens)), SamplingParams(max_tokens=50), one.tokens + 50)
        request.arrival, request.num_computed = len(requests) + 1, one.computed
        if one.shares:
            request.block_table = list(requests[one.shares].block_table)
            for block in request.block_table:
                scheduler.pool.share(block)
        else:
            request.block_table = [scheduler.pool.allocate() for _ in range(-(-one.computed // _SIZE))]
        requests[one.name] = request
        scheduler.running.append(request)
    return scheduler, requests


def _names(requests: Sequence[Request]) -> str:
    return ", ".join(request.request_id for request in requests) or "none"


def _told(running: Sequence[_Running], free: int) -> str:
    who = "; ".join(map(str, running)) or "nobody"
    return f"running, the oldest first: {who}. {free} blocks of {_SIZE} tokens are free"


def _planned(plan: Plan) -> str:
    parts = [f"{part.request.request_id} {part.num_tokens}" for part in plan.scheduled]
    return ", ".join(parts) or "none"


# --- 12.3 ------------------------------------------------------------------------------------------------------------


def _step(
    running: Sequence[_Running], want: str, *, free: int = 50, budget: int = 8, gave_way: str = "none", left: str = ""
) -> Case:
    """One step. want: the parts of the plan, in order; left: who runs afterwards (everybody, if it says nothing)."""

    def observe(f: Function) -> Observation:
        scheduler, _ = _scheduler(running, free, budget, {"_continue_running": f})
        plan = Plan()
        scheduler._continue_running(plan)
        return {
            "the tokens in the plan": _planned(plan),
            "who gave way": _names(plan.preempted),
            "who runs afterwards": _names(scheduler.running),
        }

    wanted = {
        "the tokens in the plan": want,
        "who gave way": gave_way,
        "who runs afterwards": left or ", ".join(one.name for one in running) or "none",
    }
    return Case(f"{_told(running, free)}; token_budget {budget}", observe, lambda: wanted)


def _steps(running: Sequence[_Running], wants: Sequence[str], budget: int) -> Case:
    """Several steps, each computed before the next one is planned: who has sampled has a token more to compute."""

    def observe(f: Function) -> Observation:
        scheduler, _ = _scheduler(running, 50, budget, {"_continue_running": f})
        seen = {}
        for number in range(1, len(wants) + 1):
            plan = Plan()
            scheduler._continue_running(plan)
            seen[f"the tokens of step {number}"] = _planned(plan)
            scheduler.computed(plan)
            for part in plan.scheduled:
                if part.samples:
                    part.request.token_ids.append(99)
        return seen

    wanted = {f"the tokens of step {number}": want for number, want in enumerate(wants, 1)}
    return Case(f"{_told(running, 50)}; token_budget {budget}; {len(wants)} steps", observe, lambda: wanted)


def _in_order(scheduler: Scheduler) -> list[Request]:
    return sorted(scheduler.running, key=lambda request: request.num_to_compute > 1)


def _turns(
    *,
    order: Callable[[Scheduler], list[Request]] = _in_order,
    wanted: Callable[[Scheduler, Request, Plan], int] = lambda s, r, p: min(
        r.num_to_compute, s.token_budget - p.num_tokens
    ),
    check: bool = True,
    put: Callable[[int, int], int] = lambda asked, room: room,
    stop: Callable[[Request, int], bool] = lambda request, num_tokens: False,
) -> Function:
    """A step with one thing done otherwise."""

    def continue_running(self: Scheduler, plan: Plan) -> None:
        for request in order(self):
            if check and request not in self.running:
                continue
            asked = wanted(self, request, plan)
            room = put(asked, self._make_room(request, asked, plan))
            self._put(request, room, plan)
            if stop(request, room):
                return

    return continue_running


def _whole_prompts(s: Scheduler, r: Request, p: Plan) -> int:
    left = s.token_budget - p.num_tokens
    return r.num_to_compute if r.num_to_compute <= left else 0


def _shared_out(s: Scheduler, r: Request, p: Plan) -> int:
    """The budget left after decode, in equal shares."""
    if r.num_to_compute == 1:
        return 1
    reading = [one for one in s.running if one.num_to_compute > 1]
    decoding = len(s.running) - len(reading)
    return min(r.num_to_compute, (s.token_budget - decoding) // len(reading))


def _asked_is_gone(self: Scheduler, plan: Plan) -> None:
    left = self.token_budget
    for request in _in_order(self):
        if request in self.running:
            asked = min(request.num_to_compute, left)
            self._put(request, self._make_room(request, asked, plan), plan)
            left -= asked


def _two_loops(self: Scheduler, plan: Plan) -> None:
    for reads in (False, True):
        for request in list(self.running):
            if request in self.running and (request.num_to_compute > 1) == reads:
                left = self.token_budget - plan.num_tokens
                self._put(request, self._make_room(request, min(left, request.num_to_compute), plan), plan)


def _counting(self: Scheduler, plan: Plan) -> None:
    """The budget counted down by hand, and nothing asked for where it is used up."""
    decoding = [request for request in self.running if request.num_to_compute == 1]
    reading = [request for request in self.running if request.num_to_compute > 1]
    budget = self.token_budget - plan.num_tokens
    for request in decoding + reading:
        if budget > 0 and any(request is one for one in self.running):
            given = self._make_room(request, min(request.num_to_compute, budget), plan)
            if given > 0:
                self._put(request, given, plan)
                budget -= given


_A, _B, _C, _D = (lambda tokens, computed, name=name: _Running(name, tokens, computed) for name in "ABCD")

CONTINUE_RUNNING = Grader(
    cases=[
        _step([_A(6, 5), _B(11, 10)], "A 1, B 1"),
        _step([_A(20, 0), _B(6, 5), _C(10, 9)], "B 1, C 1, A 6"),
        _step([_A(6, 5), _B(11, 8), _C(30, 21)], "A 1, B 3, C 4"),
        _step([_A(30, 0), _B(5, 0), _C(3, 2)], "C 1, A 7"),
        _step([_A(9, 6), _B(7, 6), _C(12, 10), _D(3, 2)], "B 1, D 1, A 3, C 2", budget=20),
        _step([], "none"),
        _step([_A(6, 5), _B(12, 0), _C(6, 2)], "A 1, B 8, C 2", free=2, budget=13),
        _step([_A(9, 8), _B(7, 6), _C(6, 5)], "A 1, B 1", free=0, gave_way="C", left="A, B"),
        _step([_A(9, 8), _B(6, 5), _C(30, 8)], "A 1, B 1", free=0, gave_way="C", left="A, B"),
        _step([_A(7, 6), _B(9, 8)], "A 1", free=0, gave_way="B", left="A"),
        _step([_A(7, 4), _B(30, 8)], "A 3", free=0, budget=20, gave_way="B", left="A"),
        _step([_A(9, 6), _B(9, 8)], "A 3", free=0, gave_way="B", left="A"),
        _steps([_A(14, 0), _B(3, 2), _C(9, 0)], ["B 1, A 5", "B 1, A 5", "B 1, A 4, C 1", "A 1, B 1, C 4"], budget=6),
    ],
    mutants=[
        Mutant(
            _turns(order=lambda s: list(s.running)),
            "You serve everybody in the order of arrival. A prompt that came earlier then takes the whole budget, and"
            " those that decode stand still: they come first.",
        ),
        Mutant(
            _turns(order=lambda s: sorted(s.running, key=lambda r: r.num_to_compute == 1)),
            "You let those that read their prompts come first. They take the budget, and everybody else's stream stands"
            " still until the prompt is read.",
        ),
        Mutant(
            _turns(order=lambda s: sorted(s.running, key=lambda r: r.num_to_compute)),
            "You sort by how much there is to compute. A long prompt then waits for as long as shorter ones come:"
            " among prompts, the order of arrival decides.",
        ),
        Mutant(
            _turns(order=lambda s: list(reversed(_in_order(s)))),
            "You go through the requests from the end: the youngest come first.",
        ),
        Mutant(
            _turns(wanted=lambda s, r, p: r.num_to_compute),
            "You ask for all that a request has to compute, whatever the budget is. A step then takes as long as the"
            " longest prompt.",
        ),
        Mutant(
            _turns(wanted=lambda s, r, p: min(r.num_to_compute, s.token_budget)),
            "You give the whole budget to each request. It is for all of them together: what the plan has already is"
            " used up.",
        ),
        Mutant(
            _turns(wanted=_whole_prompts),
            "You read a prompt only if all of it fits into what is left. One that is longer than the budget is never"
            " read: take as much as there is.",
        ),
        Mutant(
            _turns(wanted=_shared_out),
            "You share the budget out among the prompts. The oldest gets all it can use: to read several at once makes"
            " all of them late.",
        ),
        Mutant(
            _turns(wanted=lambda s, r, p: min(1, s.token_budget - p.num_tokens)),
            "You give every request one token. A prompt is read many tokens at a time, as many as the budget leaves.",
        ),
        Mutant(
            _turns(stop=lambda request, num_tokens: num_tokens > 1),
            "You stop after the first prompt. If it leaves something of the budget, the next one gets that.",
        ),
        Mutant(
            _turns(stop=lambda request, num_tokens: num_tokens == 0),
            "You end the step when a request gets nothing. It may have given way itself, and others can go on: with the"
            " next one.",
        ),
        Mutant(
            _asked_is_gone,
            "You take off the budget what you asked for. Where there was room for less, the rest is left for the next"
            " one: plan.num_tokens counts what was put.",
        ),
        Mutant(
            _turns(put=lambda asked, room: asked),
            "You put as many tokens into the plan as you asked room for. What counts is how many there is room for:"
            " that is what _make_room returns.",
        ),
        Mutant(
            _turns(check=False),
            "You serve a request that had to give way a moment ago. Ask whether it is still in self.running.",
        ),
        Mutant(
            _turns(order=lambda s: [r for r in s.running if r.num_to_compute == 1]),
            "You serve those that decode and nobody else: no prompt is ever read to its end.",
        ),
        Mutant(
            lambda self, plan: [
                self._put(r, min(r.num_to_compute, self.token_budget - plan.num_tokens), plan) for r in _in_order(self)
            ],
            "You plan tokens without asking for room. Their keys and values need blocks: _make_room gives them.",
        ),
    ],
    alternatives=[_two_loops, _counting],
)

# --- 12.4 ------------------------------------------------------------------------------------------------------------


def _room(
    running: Sequence[_Running],
    request: str,
    num_tokens: int,
    want: int,
    *,
    free: int = 0,
    served: str = "",
    gave_way: Sequence[str] = (),
    blocks: int,
    free_after: int,
) -> Case:
    """`request` asks for room. served: who has tokens in the plan; blocks: how many the request has afterwards."""

    def observe(f: Function) -> Observation:
        scheduler, requests = _scheduler(running, free, 50, {"_make_room": f})
        plan = Plan(scheduled=[Scheduled(requests[name], 1, samples=True) for name in served])
        result = scheduler._make_room(requests[request], num_tokens, plan)
        return {
            "the result": result,
            "who gave way, in this order": _names(plan.preempted),
            "the blocks of the request": len(requests[request].block_table),
            "who runs afterwards": _names(scheduler.running),
            "who waits afterwards": _names(list(scheduler.waiting)),
            "free blocks afterwards": scheduler.pool.num_free,
            "the tokens in the plan": _planned(plan),
        }

    wanted = {
        "the result": want,
        "who gave way, in this order": ", ".join(gave_way) or "none",
        "the blocks of the request": blocks,
        "who runs afterwards": ", ".join(one.name for one in running if one.name not in gave_way) or "none",
        "who waits afterwards": ", ".join(reversed(gave_way)) or "none",
        "free blocks afterwards": free_after,
        "the tokens in the plan": ", ".join(f"{name} 1" for name in served) or "none",
    }
    has = f"the plan has tokens of {' and '.join(served)}" if served else "the plan is empty"
    return Case(
        f"{_told(running, free)}; {has}; {request} asks for {num_tokens}",
        observe,
        lambda: wanted,
    )


def _unserved(scheduler: Scheduler, plan: Plan) -> Iterator[Request]:
    """Who may have to give way, the oldest first."""
    served = [part.request for part in plan.scheduled]
    return (request for request in scheduler.running if request not in served)


def _youngest(scheduler: Scheduler, request: Request, plan: Plan) -> Request:
    return list(_unserved(scheduler, plan))[-1]


def _others(scheduler: Scheduler, request: Request, plan: Plan) -> Request:
    """The youngest that is not the request itself; itself where nobody else is left."""
    return ([request] + [one for one in _unserved(scheduler, plan) if one is not request])[-1]


def _giving(
    *,
    victim: Callable[[Scheduler, Request, Plan], Request] = _youngest,
    take: Callable[[Scheduler, Request, Plan], object] = lambda s, r, p: s._preempt(r, p),
    partly: bool = True,
    after: Callable[[int], int] = lambda num_tokens: num_tokens,
    itself: Callable[[int], int] = lambda num_tokens: 0,
    most: int = 10,
) -> Function:
    """A search for room with one thing done otherwise."""

    def make_room(self: Scheduler, request: Request, num_tokens: int, plan: Plan) -> int:
        gone = 0
        while num_tokens and not self._give_blocks(request, num_tokens, plan):
            room = self._room(request)
            if room and (partly or not list(_unserved(self, plan))[1:]):
                num_tokens = min(num_tokens, room)
                continue
            if gone == most:
                return 0
            other = victim(self, request, plan)
            take(self, other, plan)
            gone += 1
            if other is request:
                return itself(num_tokens)
            num_tokens = after(num_tokens)
        return num_tokens

    return make_room


def _without_blocks(self: Scheduler, request: Request, num_tokens: int, plan: Plan) -> int:
    while num_tokens and not self._room(request):
        youngest = _youngest(self, request, plan)
        self._preempt(youngest, plan)
        if youngest is request:
            return 0
    return min(num_tokens, self._room(request))


def _one_victim(self: Scheduler, request: Request, num_tokens: int, plan: Plan) -> int:
    youngest = list(_unserved(self, plan))[-1]
    while num_tokens and not self._give_blocks(request, num_tokens, plan):
        if self._room(request):
            num_tokens = min(num_tokens, self._room(request))
            continue
        self._preempt(youngest, plan)
        if youngest is request:
            return 0
    return num_tokens


def _room_first(self: Scheduler, request: Request, num_tokens: int, plan: Plan) -> int:
    """Make sure that there is room for something; then take what there is."""
    if num_tokens == 0:
        return 0
    served = {id(part.request) for part in plan.scheduled}
    while self._room(request) < 1:
        for other in self.running[::-1]:
            if id(other) not in served:
                break
        self._preempt(other, plan)
        if request not in self.running:
            return 0
    num_tokens = min(num_tokens, self._room(request))
    assert self._give_blocks(request, num_tokens, plan)
    return num_tokens


def _recursive(self: Scheduler, request: Request, num_tokens: int, plan: Plan) -> int:
    if num_tokens == 0 or self._give_blocks(request, num_tokens, plan):
        return num_tokens
    if self._room(request) > 0:
        return self._make_room(request, self._room(request), plan)
    youngest = max(_unserved(self, plan), key=lambda one: one.arrival)
    self._preempt(youngest, plan)
    return 0 if youngest is request else self._make_room(request, num_tokens, plan)


MAKE_ROOM = Grader(
    cases=[
        _room([_A(8, 4), _B(6, 5)], "A", 4, 4, free=3, blocks=2, free_after=2),
        _room([_A(9, 8), _B(6, 5)], "A", 0, 0, blocks=2, free_after=0),
        _room([_A(20, 6), _B(9, 8), _C(6, 5)], "A", 10, 6, free=1, blocks=3, free_after=0),
        _room([_A(9, 8), _B(6, 5), _C(7, 6)], "A", 1, 1, gave_way="C", blocks=3, free_after=1),
        _room([_A(30, 4), _B(30, 8), _C(6, 5)], "A", 1, 1, served="C", gave_way="B", blocks=2, free_after=1),
        _room([_A(7, 6), _B(5, 4)], "B", 1, 0, served="A", gave_way="B", blocks=0, free_after=1),
        _room([_A(30, 7), _B(9, 8), _C(6, 5)], "B", 1, 1, served="", gave_way="C", blocks=3, free_after=1),
        _room([_A(30, 7), _B(9, 8), _C(6, 5)], "B", 1, 0, served="C", gave_way="B", blocks=0, free_after=2),
        _room([_A(9, 8), _B(6, 5), _Running("C", 12, 8, shares="A")], "A", 1, 1, gave_way="CB", blocks=3, free_after=1),
        _room([_A(30, 4), _B(9, 8), _C(7, 6)], "A", 6, 6, gave_way="C", blocks=3, free_after=0),
        _room([_A(30, 4), _B(9, 8), _C(7, 6)], "A", 12, 8, gave_way="C", blocks=3, free_after=0),
        _room([_A(30, 0), _B(9, 8), _C(30, 12)], "A", 9, 9, gave_way="C", blocks=3, free_after=0),
    ],
    mutants=[
        Mutant(
            _giving(victim=lambda s, r, p: next(_unserved(s, p))),
            "You let the oldest give way. It has waited longest and has most to compute anew; and where the oldest is"
            " never safe, nobody is sure to end.",
        ),
        Mutant(
            _giving(victim=lambda s, r, p: s.running[-1]),
            "You take the blocks of a request that this step has tokens of: their keys and values would be written into"
            " blocks that belong to another.",
        ),
        Mutant(
            _giving(victim=_others),
            "You spare the request itself, and an older one gives way to it. Then two requests can take each other's"
            " blocks for ever: the youngest gives way, whoever asks.",
        ),
        Mutant(
            _giving(victim=lambda s, r, p: max(_unserved(s, p), key=lambda one: len(one.block_table))),
            "You take the request that holds most blocks. It may be an old one, with the most to compute anew: the"
            " youngest gives way.",
        ),
        Mutant(
            _giving(victim=lambda s, r, p: min(_unserved(s, p), key=lambda one: one.num_computed)),
            "You take the request with the least computed. That seems cheap, and may be the oldest, each time anew: it"
            " would never end. The youngest gives way.",
        ),
        Mutant(
            _giving(partly=False),
            "You take another's blocks though there is room for some of the tokens. A chunk may be smaller: make do"
            " with what there is.",
        ),
        Mutant(
            _giving(most=0),
            "You give up where there is no room. If everybody does, nobody goes on: the youngest has to give way.",
        ),
        Mutant(
            _giving(most=1),
            "You let one request give way, and no other. Blocks may be shared with somebody who goes on, so one may not"
            " be enough: go on until there is room.",
        ),
        Mutant(
            _one_victim,
            "You look for the youngest once, before the loop. When it has given way, another one is the youngest: look"
            " again each time.",
            begins="ValueError: list.remove",
        ),
        Mutant(
            _giving(after=lambda num_tokens: 1),
            "Once somebody has given way you ask for one token only. There may be room for more now: try all of them"
            " again.",
        ),
        Mutant(
            _giving(itself=lambda num_tokens: num_tokens),
            "You return a number of tokens for a request that has just given way. It has no blocks any more: 0.",
        ),
        Mutant(
            _giving(take=lambda s, r, p: s.finish(r)),
            "You end the request that gives way. It must only wait, with all its tokens: self._preempt.",
        ),
        Mutant(
            _without_blocks,
            "You count the room, and give no blocks: self._give_blocks does that.",
        ),
        Mutant(
            lambda self, request, num_tokens, plan: num_tokens if self._give_blocks(request, num_tokens, plan) else 0,
            "All the tokens or nothing, is what you ask for. Where there is room for some, take those; where there is"
            " none, the youngest gives way.",
        ),
    ],
    alternatives=[_room_first, _recursive],
)
