"""The exercises of chapter 12, *Batching*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "12.1",
        "The work of a mixed step",
        "minillm.machine.roofline:step_work",
        (
            "Which part of the pass do all requests share, and which belongs to each of them alone?",
            "Operations are the sum of forward_flops(shape, 1, new, context) over the spans, less the head's for those"
            " that are not sampled. The weights are read once, whoever is in the pass.",
            "flops = sum(...) - 2 * vocab_size * hidden_size * (len(spans) - sampled). bytes ="
            " num_active_params(shape) * bytes_per_weight + sum(context + new) * 2 * num_hidden_layers *"
            " num_key_value_heads * head_dim * bytes_per_kv. Return Work(float(flops), bytes).",
        ),
        section="chunked-prefill",
    ),
    Exercise(
        "12.2",
        "Steps of two policies",
        "minillm.machine.batching:decode_steps",
        (
            "Draw it: a row per place, a column per step. When is a batch of the static kind over? Where does the next"
            " request go in the continuous kind?",
            "Static: cut the list into batches of `places` and add up the longest of each. Continuous: keep for each"
            " place the step after which it is free.",
            "Continuous: ends = [0] * places; for each length, the place with the smallest end gets it: ends[i] +="
            " length. The answer is max(ends). (A loop that plays it step by step is as good.)",
        ),
        section="the-idea",
    ),
    Exercise(
        "12.3",
        "A step of the scheduler",
        "minillm.engine.scheduler:Scheduler._continue_running",
        (
            "Two passes over the running requests: who decodes? who reads a prompt?",
            "Before each request, ask whether it is still in self.running, and how many tokens the budget leaves:"
            " self.token_budget - plan.num_tokens. Go over a copy: the list changes under you.",
            "for request in sorted(self.running, key=lambda r: r.num_to_compute > 1): unless it is out, wanted ="
            " min(request.num_to_compute, what is left), and self._put(request, self._make_room(request, wanted, plan),"
            " plan). `sorted` makes a copy, and keeps the order of those that are equal.",
        ),
        called="in every step of a batch",
        section="the-code",
        stub="continue_running",
    ),
    Exercise(
        "12.4",
        "Who gives way",
        "minillm.engine.scheduler:Scheduler._make_room",
        (
            "A loop: as long as there are no blocks for num_tokens, what can you do? There are two things, and the"
            " first one hurts nobody.",
            "First: is there room for fewer (self._room)? Then ask for those. Else the last request in self.running"
            " that has no part in plan.scheduled is preempted.",
            "served = [part.request for part in plan.scheduled]; youngest = next(r for r in reversed(self.running) if r"
            " not in served); self._preempt(youngest, plan); if youngest is request: return 0. Behind the loop: return"
            " num_tokens.",
        ),
        called="in every step of a batch",
        section="when-blocks-run-out",
        stub="make_room",
    ),
    Exercise(
        "12.5",
        "How large a batch?",
        "minillm.machine.batching:largest_batch",
        (
            "Two questions, each with an answer of its own: how many fit, and how many are quick enough?",
            "What fits is a division: (memory_bytes - weights) // bytes of one sequence. What is quick enough can be"
            " found by halving, as in 10.5.",
            "good, bad = 0, what fits + 1; while bad - good > 1: middle = (good + bad) // 2; if its step takes at most"
            " tpot_s, good = middle, else bad = middle. Return good. What fits may be negative: make it 0 then.",
        ),
        section="how-large-a-batch",
    ),
)
