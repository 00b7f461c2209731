"""10.5 and 10.6: the longest context that fits, found with few questions; and a run foretold."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from graders.ch10_shapes import LLAMA_3_8B, SMOLLM2_135M, TOY
from minillm.exercises.compare import in_words
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.machine.formats import FORMATS
from minillm.machine.memory import CUDA_CONTEXT_BYTES, Demand, Workload, demand
from minillm.machine.shape import ModelShape
from minillm.machine.verdict import Question

# --- 10.5 ------------------------------------------------------------------------------------------------------------

_MOST_QUESTIONS = 30
_TOO_MANY = 200  # from here on nothing fits, so that a search that goes on for a million questions ends


@dataclass(frozen=True)
class _Asked(Question):
    """A question whose answer is known: `room` tokens fit. It notes what it is asked."""

    room: int = 0
    asked: list[Workload] = field(default_factory=list)

    def fits(self, load: Workload) -> bool:
        """Whether the tokens of all sequences are within the room."""
        self.asked.append(load)
        within = load.context * load.batch <= self.room * self.load.batch
        return within and len(self.asked) <= _TOO_MANY


def _search(room: int, longest: int, context: int, batch: int = 3) -> Case:
    """`room` tokens per sequence fit, of at most `longest`; `context` tokens were asked about."""

    def observe(f: Function) -> Observation:
        shape = replace(TOY, max_position_embeddings=longest)
        question = _Asked(shape, Workload(context, batch), 10**9, room=room)
        result = f(question)
        kept = all(replace(load, context=1) == Workload(1, batch) for load in question.asked)
        inside = all(load.context <= longest for load in question.asked)
        few = len(question.asked) <= _MOST_QUESTIONS
        return {
            "the number of questions": _FEW if few else f"more than {_MOST_QUESTIONS}",
            "the result": result,
            "the workloads asked about": _SAME if kept else "with something else changed than the context",
            "the contexts asked about": _INSIDE if inside else "longer than the model's",
        }

    return Case(
        f"{room:,} tokens fit; max_position_embeddings {longest:,}; the load has context {context}, batch {batch}",
        observe,
        lambda: {
            "the number of questions": _FEW,
            "the result": min(room, longest),
            "the workloads asked about": _SAME,
            "the contexts asked about": _INSIDE,
        },
    )


_SAME, _INSIDE, _FEW = "the same but for the context", "within the model's", f"{_MOST_QUESTIONS} at most"


def _with(question: Question, context: int) -> Workload:
    return replace(question.load, context=context)


def _halving(
    *,
    most: Callable[[Question], int] = lambda q: q.shape.max_position_embeddings,
    end: int = 1,
    answer: Callable[[int, int], int] = lambda good, bad: good,
    load: Callable[[Question, int], Workload] = _with,
) -> Function:
    """A search by halves with one thing done otherwise."""

    def search(question: Question) -> int:
        good, bad = 0, most(question) + end
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if question.fits(load(question, middle)) else (good, middle)
        return answer(good, bad)

    return search


def _one_by_one(question: Question) -> int:
    context = 0
    while context < question.shape.max_position_embeddings and question.fits(_with(question, context + 1)):
        context += 1
    return context


def _doubling(question: Question) -> int:
    context = 1
    while context <= question.shape.max_position_embeddings and question.fits(_with(question, context)):
        context *= 2
    return context // 2


def _upwards(question: Question) -> int:
    """Double until it does not fit, whatever the model was made for; then halve."""
    bad = 1
    while question.fits(_with(question, bad)) and bad < 2**40:
        bad *= 2
    return _halving(most=lambda _: bad, end=0)(question)


def _bit_by_bit(question: Question) -> int:
    longest, context = question.shape.max_position_embeddings, 0
    for bit in reversed(range(longest.bit_length())):
        longer = context + 2**bit
        if longer <= longest and question.fits(_with(question, longer)):
            context = longer
    return context


def _recursive(question: Question) -> int:
    def between(low: int, high: int) -> int:
        """The answer lies from low to high, both included."""
        if low == high:
            return low
        middle = (low + high + 1) // 2
        return between(middle, high) if question.fits(_with(question, middle)) else between(low, middle - 1)

    return between(0, question.shape.max_position_embeddings)


LARGEST_CONTEXT = Grader(
    cases=[
        _search(room=1904, longest=4096, context=4096),
        _search(room=3000, longest=4096, context=512),
        _search(room=9000, longest=4096, context=4096),
        _search(room=4096, longest=4096, context=1),
        _search(room=1, longest=4096, context=100),
        _search(room=0, longest=4096, context=100),
        _search(room=777_777, longest=2**20, context=4096),
        _search(room=1, longest=1, context=1),
    ],
    mutants=[
        Mutant(
            _one_by_one,
            "You try one length after the other. The answer is right, and comes after a million questions: ask about"
            " the middle of what is left.",
        ),
        Mutant(
            _halving(answer=lambda good, bad: bad),
            "One too many: you return the first context that does not fit.",
        ),
        Mutant(
            _halving(end=0),
            "You never ask about the longest context itself: where everything fits, you are one short.",
        ),
        Mutant(
            _halving(answer=lambda good, bad: max(1, good)),
            "Where not even one token fits, the answer is 0.",
        ),
        Mutant(
            _doubling,
            "You double and stop at the last power of two that fits. The answer lies between it and its double.",
        ),
        Mutant(
            _upwards,
            "You go past max_position_embeddings: a model does not work on more tokens than it was made for, however"
            " much room there is.",
        ),
        Mutant(
            _halving(most=lambda q: q.load.context),
            "You search up to the context that was asked about. The model's own limit is"
            " question.shape.max_position_embeddings, and more than was asked for may fit.",
        ),
        Mutant(
            _halving(load=lambda q, context: Workload(context)),
            "You ask about a new workload of one sequence. Everything but the context stays as in question.load: use"
            " replace.",
        ),
        Mutant(
            lambda q: q.load.context if q.fits(q.load) else 0,
            "You ask once, whether the given context fits. Asked for is the longest that does.",
        ),
    ],
    alternatives=[_bit_by_bit, _recursive],
)

# --- 10.6 ------------------------------------------------------------------------------------------------------------

_PARTS = ("weights", "kv_cache", "activations", "overhead")


def _parts(result: object) -> Observation:
    if not isinstance(result, Demand):
        return {"the result": in_words(result), **dict.fromkeys(_PARTS, 0)}
    return {"the result": "a Demand", **{name: getattr(result, name) for name in _PARTS}}


def _run(given: str, shape: ModelShape, context: int, batch: int, params: int) -> Case:
    """Weights: four bytes each. Cache: of every token. Activations: the widest moment of an MLP, for every token."""
    tokens = batch * context
    kv_numbers = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim
    mlp_numbers = 4 * shape.intermediate_size + 3 * shape.hidden_size + shape.head_dim
    want = {
        "the result": "a Demand",
        "weights": 4 * params,
        "kv_cache": 4 * kv_numbers * tokens,
        "activations": 4 * mlp_numbers * tokens,
        "overhead": 0,
    }
    return Case(
        f"{given}; context {context}, batch {batch}", lambda f: _parts(f(shape, context, batch)), lambda: dict(want)
    )


def _told(overhead: int = 0, **otherwise: object) -> Function:
    """The prediction with some fields of the workload told otherwise."""

    def predict(shape: ModelShape, context: int, batch: int) -> Demand:
        fields = {
            "weights": FORMATS["float32"],
            "dtype": "float32",
            "kv_dtype": "float32",
            "block_size": 1,
            "tokens_per_pass": context * batch,
        }
        return demand(shape, Workload(context, batch, **fields | otherwise), overhead=overhead)  # type: ignore[arg-type]

    return predict


def _one_prompt(shape: ModelShape, context: int, batch: int) -> Demand:
    return _told(tokens_per_pass=context)(shape, context, batch)


def _in_order(shape: ModelShape, context: int, batch: int) -> Demand:
    load = Workload(context, batch, FORMATS["float32"], "float32", "float32", 1, 2**31 - 1)
    return demand(shape, load, overhead=0)


def _part_by_part(shape: ModelShape, context: int, batch: int) -> Demand:
    need = _told(overhead=CUDA_CONTEXT_BYTES)(shape, context, batch)
    return Demand(need.weights, need.kv_cache, need.activations, 0)


PREDICT = Grader(
    cases=[
        _run("SmolLM2-135M", SMOLLM2_135M, 1024, 2, 134_515_008),
        _run("SmolLM2-135M", SMOLLM2_135M, 100, 3, 134_515_008),
        _run("SmolLM2-135M", SMOLLM2_135M, 3000, 1, 134_515_008),
        _run("Llama-3-8B", LLAMA_3_8B, 2050, 5, 8_030_261_248),
    ],
    mutants=[
        Mutant(
            lambda shape, context, batch: demand(shape, Workload(context, batch)),
            "You tell the workload nothing but context and batch, so it takes a GPU server's habits for granted: 16 bit"
            " numbers, blocks of 16, chunks of 2,048, a CUDA context.",
        ),
        Mutant(
            _told(weights=FORMATS["bfloat16"]),
            "You leave the weights in bfloat16, at two bytes. This run has float32.",
        ),
        Mutant(
            _told(kv_dtype="bfloat16"),
            "You leave keys and values in bfloat16: kv_dtype is told apart from dtype.",
        ),
        Mutant(
            _told(dtype="bfloat16"),
            "You leave activations in bfloat16: that is what dtype is.",
        ),
        Mutant(
            _told(block_size=16),
            "You leave the cache in blocks of 16. This run has room for just its tokens.",
        ),
        Mutant(
            _told(tokens_per_pass=2048),
            "You cut prompts into passes of 2,048 tokens, which is the default. Here all go in one pass.",
        ),
        Mutant(
            _one_prompt,
            "You let one prompt through at a time. All of them go in one pass: context x batch tokens.",
        ),
        Mutant(
            _told(overhead=CUDA_CONTEXT_BYTES),
            "You add a CUDA context, and there is no GPU: overhead is 0.",
        ),
        Mutant(
            lambda shape, context, batch: _told()(shape, context, batch).total,
            "That is the total. Return the Demand with its parts: a sum that is off does not say where.",
        ),
    ],
    alternatives=[_in_order, _part_by_part],
)
