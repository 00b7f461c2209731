"""The exercises of chapter 8, *Back to text*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "8.1",
        "The unfinished end",
        "minillm.utf8:unfinished_length",
        (
            "Look for the last byte that is not a continuation (80 to BF). Only there can it begin.",
            "At most three bytes can be unfinished, so look at data[-1], data[-2] and data[-3] in turn and stop at the"
            " first that is not a continuation. Its length by the table, against how many bytes there are from it on,"
            " says whether it is unfinished; the second byte, where there is one, says whether it is possible.",
            "for length in 1, 2, 3 (as far as data goes): lead = data[-length]; a continuation: go on. Otherwise,"
            " wanted = 2, 3 or 4 by the lead; if length >= wanted, or the lead begins nothing (00 to 7F, C0, C1, F5"
            " to FF), return 0; if length > 1 and data[-length + 1] is outside the lead's range, return 0; else"
            " return length. After the loop: 0.",
        ),
        called="for every token",
        section="utf-8-is-a-state-machine",
    ),
    Exercise(
        "8.2",
        "Bytes in, characters out",
        "minillm.utf8:Utf8Decoder.decode",
        (
            "What was held last time comes before the new bytes. Join them first, and forget that they were two.",
            "Of the joined bytes, the last unfinished_length(...) are held. All others are decoded now.",
            "data = self.held + data; cut = len(data) - unfinished_length(data); self.held = data[cut:]; return"
            ' data[:cut].decode(errors="replace"). Beware of data[-n:] for n = 0, which is everything.',
        ),
        called="for every token",
        section="utf-8-is-a-state-machine",
    ),
    Exercise(
        "8.3",
        "How much to hold back",
        "minillm.stop_strings:held_length",
        (
            "An end of the text is dangerous if a stop string begins with it.",
            "Try the lengths from the longest that can matter (one less than the longest stop string, or all of the"
            " text) down to 1. The first that is dangerous is the answer.",
            "for length in range(min(len(text), longest - 1), 0, -1): if any(stop.startswith(text[-length:]) for stop"
            " in stops): return length. After the loop: return 0. With no stops, max(...) needs default=0.",
        ),
        called="for every piece of text",
        section="stop-strings",
    ),
    Exercise(
        "8.4",
        "Which stop string comes first",
        "minillm.stop_strings:first_stop",
        (
            "For each stop string, only its first occurrence can matter. text.find(stop) gives where it begins, -1"
            " where it does not.",
            "Of those that occur, compare where they *end*. Where two end alike, the longer one began earlier.",
            "found = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]; without any, None;"
            " otherwise min(found), which compares ends first and then beginnings, without its first entry.",
        ),
        called="for every piece of text",
        section="stop-strings",
    ),
    Exercise(
        "8.5",
        "The stop matcher",
        "minillm.stop_strings:StopMatcher.add",
        (
            "Three cases: a stop string was found earlier; one is complete now; none is. Work on what was held and what"
            " came, joined.",
            "Complete now: set self.matched, empty self.held, return what stands before it. None: the last"
            " held_length(...) characters go to self.held, the others are returned.",
            'if self.matched is not None: return "". text = self.held + text; found = first_stop(text, self.stops). If'
            ' found: start, self.matched = found; self.held = ""; return text[:start]. Otherwise cut = len(text) -'
            " held_length(text, self.stops); self.held = text[cut:]; return text[:cut].",
        ),
        called="for every token",
        section="stop-strings",
    ),
    Exercise(
        "8.6",
        "One step, one piece, and why it ended",
        "minillm.detokenizer:Detokenizer.piece_of",
        (
            "A token goes through both machines in turn, unless it is the one that ends the sequence.",
            "If the step has a reason, both machines are emptied: what the decoder held goes through the matcher like"
            " any other text, and then the matcher is flushed. Look at self.matcher.matched last.",
            'reason = step.finish_reason; text = "" if reason == "stop" else'
            " self.matcher.add(self.decoder.add(step.token_id)); if reason is not None: text +="
            " self.matcher.add(self.decoder.flush()) + self.matcher.flush(); if self.matcher.matched is not None:"
            ' reason = "stop"; return Piece(text, step, reason).',
        ),
        called="for every token",
        section="why-it-ended",
    ),
)
