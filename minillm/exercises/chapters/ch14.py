"""The exercises of chapter 14, *Quantization*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "14.1",
        "Eight bits, one scale per row",
        "minillm.quantization:quantize_int8",
        (
            "Which number of a row must not overflow? It decides the row's scale, and the scale decides everything.",
            "scale = (the largest magnitude of the row) / 127, in float32, [out]. A code is the nearest whole number to"
            " weight / scale. Where the scale is 0, divide by 1.",
            "wide = weight.float(); scale = wide.abs().amax(dim=1) / 127; codes = (wide /"
            " torch.where(scale == 0, 1.0, scale)[:, None]).round().to(torch.int8); and"
            ' QuantizedWeight("int8", codes, scale).',
        ),
        called="for every few rows of a matrix, with --quantize int8",
        section="one-scale-for-how-many",
    ),
    Exercise(
        "14.2",
        "Two codes to a byte",
        "minillm.quantization:pack_nibbles",
        (
            "Take one group of 32 by hand: which two codes share byte 0? Which two share byte 15?",
            "View the codes as [out, in / 32, 2, 16]. The third axis says whether a code goes into the lower or the"
            " upper half of its byte, the last one says into which byte.",
            "low, high = codes.view(rows, columns // 32, 2, 16).unbind(dim=2); low | (high << 4) has both; view it as"
            " [out, in / 2].",
        ),
        called="for every few rows of a matrix, with --quantize int4",
        section="four-bits",
    ),
    Exercise(
        "14.3",
        "Four bits, a scale and a minimum per group",
        "minillm.quantization:quantize_q4_1",
        (
            "The sixteen codes are sixteen places from a group's smallest number to its largest. How many steps lie"
            " between them?",
            "View the rows as groups, [out, in / 32, 32]. minimum = the smallest, scale = (largest - smallest) / 15,"
            " both .half(). From here on use the rounded two (.float()), for they are what the codes will meet again.",
            "codes = ((grouped - minimum.float()[..., None]) / scale.float()[..., None]).round().clamp(0, 15),"
            " dividing by 1 where the scale is 0; .to(torch.uint8), back to [out, in], pack_nibbles, and"
            ' QuantizedWeight("q4_1", packed, scale, minimum).',
        ),
        called="for every few rows of a matrix, with --quantize int4",
        section="four-bits",
    ),
    Exercise(
        "14.4",
        "Back to numbers",
        "minillm.quantization:QuantizedWeight.dequantized",
        (
            "Write int8 first, which is one line. What do the other three have in common?",
            "They have groups: codes as float32 in [out, in / 32, 32], times scale.float()[..., None]. q4_0 takes 8"
            " from its codes before that, q4_1 adds minimum.float()[..., None] after it. Codes of 4 bits must be"
            " unpacked first.",
            "codes = unpack_nibbles(self.codes) if the format is one of NIBBLES, else self.codes; grouped ="
            " codes.reshape(rows, columns // 32, 32).float(); then the three steps in float32, reshape to [out, in],"
            " and .to(dtype) as the very last.",
        ),
        called="in passes over several tokens, with --quantize",
        section="the-code",
    ),
    Exercise(
        "14.5",
        "How far apart two predictions are",
        "minillm.divergence:kl_divergence",
        (
            "Turn both rows of logits into log-probabilities first. Which of the two models decides how much a token"
            " counts?",
            "The sum over the vocabulary of p (log p - log q), with p from the reference: one number per row.",
            "log_p, log_q = reference.log_softmax(-1), other.log_softmax(-1); then"
            " (log_p.exp() * (log_p - log_q)).sum(-1). Never softmax(...).log(): a small probability is 0 there.",
        ),
        section="what-it-costs",
    ),
)
