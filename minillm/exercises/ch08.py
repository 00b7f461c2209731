"""Exercises of chapter 8, *Back to text*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 8           grades this file and shows where you are
    pytest --ch 8.2         grades one exercise
    pytest --hint 8.2       the next hint; each call gives away a little more
    python -m minillm.generate --prompt "Hello" --mine      runs the engine on what you have finished

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

Bytes and text only: no tensors here. Bytes are written in hexadecimal, as in 0xF0; of a bytes object, `data[-1]` is a
number, 0 to 255, and `data[-1:]` is bytes again.
"""

from collections.abc import Sequence

from minillm.detokenizer import Piece, Step
from minillm.exercises import todo


# --- 8.1 -------------------------------------------------------------------------------------------------------------
def unfinished_length(data: bytes) -> int:
    """How many bytes at the end of `data` are the beginning of a character that later bytes can still complete?

    A character of UTF-8 is one to four bytes, and only these are well formed:

        first byte   length   second byte               third, fourth
        00 to 7F     1
        C2 to DF     2        80 to BF
        E0           3        A0 to BF                  80 to BF
        E1 to EC     3        80 to BF                  80 to BF
        ED           3        80 to 9F                  80 to BF
        EE and EF    3        80 to BF                  80 to BF
        F0           4        90 to BF                  80 to BF
        F1 to F3     4        80 to BF                  80 to BF
        F4           4        80 to 8F                  80 to BF

    The bytes 61 F0 9F 99 end in three of an emoji's four: 3. In 61 F0 9F 99 82 the fourth is there: 0. And 61 F0 80 can
    never become a character, whatever comes: 0 again, for it is not worth waiting for. Of what stands before that end,
    invalid bytes included, nothing is asked. Return 0, 1, 2 or 3.

    About 12 lines, with the table; there are shorter ways.
    """
    todo("8.1")


# --- 8.2 -------------------------------------------------------------------------------------------------------------
def decode(self, data: bytes) -> str:
    """`Utf8Decoder.decode`: the bytes of one more token come in, and text goes out as soon as it is certain.

    self is the decoder, and this function its method. It has one attribute, which you read and set:

        self.held       bytes: what came in and was not shown yet, b"" at the start

    Show whole characters at once; hold the beginning of one that could still be completed, as 8.1 says, and not a byte
    more. Bytes that can no longer become a character are shown as U+FFFD, the replacement character, by
    `.decode(errors="replace")`: never an exception. All that you return, joined, and then what is held, decoded in
    the same way when the text is over, must be what decoding all bytes at once gives.

    data may be empty, may end inside a character, and may have the ends of one and the beginning of another.

    About 4 lines. You may call your 8.1.
    """
    todo("8.2")


# --- 8.3 -------------------------------------------------------------------------------------------------------------
def held_length(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` must be held back, because they could be the beginning of a stop string?

    text: what is known so far; there is no whole stop string in it. stops: the stop strings, none of them empty; there
    may be none at all.

    With the stop "END", of "the EN" two characters are held, of "the E" one, of "the ENd" none: whatever comes, no stop
    string begins in there any more. Hold the longest end that begins any of the stop strings: as little as is safe.

    About 4 lines.
    """
    todo("8.3")


# --- 8.4 -------------------------------------------------------------------------------------------------------------
def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where does the first stop string in `text` begin, and which is it? (start, stop), or None if there is none.

    The *first* is the one that is complete first, for someone who reads along: the one whose last character comes
    first. Of several that end at the same place, it is the longest.

    With the stops "abcd" and "bc", first_stop("xabcd", ...) is (2, "bc"): when the c has come, "bc" is complete, and
    nobody knows yet whether a d will follow. With "bc" and "abc" it is (1, "abc").

    stops: none of them empty, in any order, perhaps one of them twice; there may be none at all.

    About 6 lines.
    """
    todo("8.4")


# --- 8.5 -------------------------------------------------------------------------------------------------------------
def add(self, text: str) -> str:
    """`StopMatcher.add`: one more piece of text comes in; what is safe to show goes out.

    self is the matcher, and this function its method. Its attributes:

        self.stops      the stop strings, a tuple; perhaps empty
        self.held       text that came in and was not shown, because it could be the beginning of a stop string; "" at
                        the start. You set it.
        self.matched    the stop string that has ended the text; None at the start, and for as long as there is none.
                        You set it.

    Pieces are cut anywhere: a stop string may begin in one and end three pieces later, and the result must not depend
    on the cuts. When a stop string is complete, show what stands before it, keep what it was in `self.matched`, and
    hold nothing. After that, return "" for whatever comes.

    About 9 lines, with 8.3 and 8.4, which you may call.
    """
    todo("8.5")


# --- 8.6 -------------------------------------------------------------------------------------------------------------
def piece_of(self, step: Step) -> Piece:
    """`Detokenizer.piece_of`: one step of the decode loop comes in; its piece of text goes out, with the finish reason.

    self is the detokenizer of one request, and this function its method:

        self.decoder.add(token_id)      the text that a token has made certain: whole characters only
        self.decoder.flush()            what the decoder still held, once
        self.matcher.add(text)          the part of a text that is safe to show: no stop string can begin in it
        self.matcher.flush()            what the matcher still held, once
        self.matcher.matched            the stop string that has been found, or None

    step: its `token_id`, and its `finish_reason`. That is None while the loop goes on; "stop" if this very token ends
    the sequence, and then it is no part of the text; "length" if this is the last token for which there is room.

    Return Piece(text, step, finish_reason). A found stop string is a reason too, "stop", whatever the step says. The
    piece with a reason is the request's last: nothing comes that could decide about what is still held, so all of it
    goes out, from both machines. The replacement character of a broken end may complete a stop string.

    About 8 lines.
    """
    todo("8.6")
