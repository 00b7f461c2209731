"""The exercises of chapter 7, *Choosing the next token*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "7.1",
        "Temperature",
        "minillm.logits_processors:apply_temperature",
        (
            "The temperature divides the logits. What does 13 / 1e-38 give in float32, and what is a softmax of that?",
            "A softmax is the same whatever constant is taken from all logits. Which constant makes the largest"
            " quotient harmless, however small the divisor?",
            "(logits - logits.max()) / temperature: the largest is 0, and 0 / 2e-38 is 0; all others can only overflow"
            " to -inf, which is right. Where the temperature itself is 0 in the dtype, divide by the dtype's smallest"
            " normal number: torch.finfo(logits.dtype).tiny.",
        ),
        called="for every token, when the temperature is above 0",
        section="what-moves",
    ),
    Exercise(
        "7.2",
        "The repetition penalty",
        "minillm.logits_processors:apply_repetition_penalty",
        (
            "Which way does -6 move when you divide it by 2?",
            "Look the logits of those tokens up, change them, and write them to a *copy* at the same ids. Two writes"
            " to one place are harmless as long as both write the same number.",
            "index = torch.tensor(list(token_ids)); seen = logits[index]; torch.where(seen < 0, seen * penalty, seen /"
            " penalty), scattered into a clone. An empty list makes an index of floats: return early.",
        ),
        called="for every token",
        section="what-moves",
    ),
    Exercise(
        "7.3",
        "Min-p",
        "minillm.logits_processors:keep_min_p",
        (
            "The bar is a share of the largest *probability*. It moves with the model's confidence; a logit has no"
            " share.",
            "probs = logits.softmax(0); compare with min_p * probs.max().",
            "torch.where(probs >= min_p * probs.max(), logits, -inf). In logarithms the softmax cancels:"
            " logits >= logits.max() + log(min_p); mind log(0).",
        ),
        called="for every token, when the temperature is above 0",
        section="what-cuts",
    ),
    Exercise(
        "7.4",
        "Top-p",
        "minillm.logits_processors:keep_top_p",
        (
            "Sort the probabilities, likeliest first, and add up. Which is the first token that you may drop?",
            "A token stays if the sum of those *before* it is still below top_p. The first always does.",
            "probs, order = logits.softmax(0).sort(descending=True); before = probs.cumsum(0) - probs; the least"
            " probability with before < top_p is the bar, and every token below it becomes -inf. Comparing with the"
            " bar, in place of sending a sorted mask home, keeps those that tie. With top_p = 1, rounding could drop"
            " the rarest: return early.",
        ),
        called="for every token, when the temperature is above 0",
        section="what-cuts",
    ),
    Exercise(
        "7.5",
        "The order of the steps",
        "minillm.logits_processors:process_logits",
        (
            "First what changes which token is the likeliest, then how much likelier, then what is dropped.",
            "The repetition penalty looks at everything so far (state.seen_token_ids), the other two penalties at the"
            " completion alone (state.generated_counts).",
            "Eight assignments in the order of the docstring, logits = steps.apply_logit_bias(logits,"
            " params.logit_bias) and so on, and after the third penalty: if params.temperature == 0, return logits.",
        ),
        called="for every token",
        section="why-the-order-matters",
    ),
    Exercise(
        "7.6",
        "Draw by the inverse CDF",
        "minillm.sampler:draw",
        (
            "Lay the tokens side by side on a line from 0 to 1, each as wide as its probability. On which does u fall?",
            "The running sum holds their right ends. A token owns its left end and not its right one; where it has no"
            " width, it owns nothing.",
            "cdf = probs.cumsum(-1, dtype=torch.float64); target = uniforms[:, None] * cdf[:, -1:];"
            " torch.searchsorted(cdf, target, right=True).squeeze(1).",
        ),
        called="for every token, when the temperature is above 0",
        section="the-draw",
    ),
    Exercise(
        "7.7",
        "Perplexity",
        "minillm.perplexity:perplexity",
        (
            "The probability of a text is the product of its tokens' probabilities. What is its logarithm?",
            "A geometric mean is what comes out of taking the mean of logarithms: first the mean, then exp.",
            "if not logprobs: raise InputError(...); then math.exp(-sum(logprobs) / len(logprobs)).",
        ),
        section="log-probabilities-and-perplexity",
    ),
)
