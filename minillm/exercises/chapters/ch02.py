"""The exercises of chapter 2, *Text becomes tokens*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "2.1",
        "An alphabet for bytes",
        "minillm.token_bytes:byte_level_alphabet",
        (
            "There are two kinds of bytes. Write the visible ones down first; what is left over is the other kind.",
            "visible = {*range(0x21, 0x7F), ...}: a range's end is not in it. The others, in ascending order, are"
            " [byte for byte in range(256) if byte not in visible].",
            "{chr(byte): byte} for the visible ones, and {chr(0x100 + n): byte} for n, byte in enumerate(others): the"
            " n-th of the others, not the byte's own number.",
        ),
        called="when a byte-level tokenizer is loaded",
        section="bytes-not-characters",
    ),
    Exercise(
        "2.2",
        "Count the pairs",
        "minillm.bpe:count_pairs",
        (
            "A word that occurs five times holds each of its pairs five times. What do you do with a pair that several"
            " words hold?",
            "Two loops: over words.items(), and over the pairs of neighbours in a word, which are pairwise(tokens) or"
            " zip(tokens, tokens[1:]).",
            "counts = Counter(); in the inner loop, counts[pair] += occurrences; return counts.",
        ),
        section="learning-what-to-merge",
    ),
    Exercise(
        "2.3",
        "Merge one pair",
        "minillm.bpe:merge_pair",
        (
            "Walk along the tokens with a position of your own, for it does not always move by one.",
            "At each position: are this token and the next one the pair? If so, append both joined and move on by two;"
            " if not, append this token and move on by one.",
            "tuple(tokens[i : i + 2]) == pair asks the question without an accident at the end, for lists and for"
            " tuples. while i < len(tokens): append, and i += 2 or i += 1.",
        ),
        section="learning-what-to-merge",
    ),
    Exercise(
        "2.4",
        "Merge a word",
        "minillm.bpe:merge_word",
        (
            "It is a loop around 2.3. What ends it, and which pair does it choose each time?",
            "known = [pair for pair in pairwise(tokens) if pair in ranks]. Where it is empty, you are done; otherwise"
            " the pair is min(known, key=...).",
            "merged = list(tokens); while known := [the line above, of merged]: merged = merge_pair(merged, min(known,"
            " key=ranks.get)). Return merged.",
        ),
        section="from-a-word-to-its-tokens",
    ),
    Exercise(
        "2.5",
        "Whose special token is it?",
        "minillm.special_text:split_at_unmarked",
        (
            "Two steps, and their order is everything: what would you cut at if the marks were gone already?",
            "First cut, then clean. re.split(pattern, text) drops what it cuts at, unless the pattern stands in a"
            " group: (...).",
            'pieces = re.split(f"({special.pattern})(?!{mark})", text): a token, and no mark behind it. Then'
            " [without_mark(piece, mark) for piece in pieces].",
        ),
        called="where a user's text holds, or could begin, a special token",
        section="text-that-is-not-text",
    ),
)
