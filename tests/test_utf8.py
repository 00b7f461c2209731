"""What is held of a byte string is the beginning of a character, and nothing else; what is not held is settled."""

import codecs
import itertools
import random

import pytest

from minillm.utf8 import Utf8Decoder, character_length, unfinished_length

# One byte of each kind, and both ends of each range that the standard's table names.
CRITICAL = bytes.fromhex("00 41 7F 80 8F 90 9F A0 BF C0 C1 C2 DF E0 E1 EC ED EE EF F0 F1 F3 F4 F5 FF")


def characters():
    """Every code point that UTF-8 encodes: all but the surrogates."""
    return (chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)


@pytest.fixture(scope="module")
def beginnings():
    """Every proper beginning of every character, from Python's encoder."""
    return {data[:length] for data in map(str.encode, characters()) for length in range(1, len(data))}


def samples():
    """All strings of up to three critical bytes, and longer ones at random."""
    for length in range(4):
        yield from map(bytes, itertools.product(CRITICAL, repeat=length))
    chance = random.Random(8)
    for _ in range(3_000):
        yield chance.randbytes(chance.randrange(1, 9))
        yield bytes(chance.choices(CRITICAL, k=chance.randrange(4, 12)))


def test_the_length_of_a_character_follows_from_its_first_byte():
    lengths = {data[0]: len(data) for data in map(str.encode, characters())}
    assert {lead: character_length(lead) for lead in range(256)} == {lead: lengths.get(lead, 0) for lead in range(256)}


def test_held_is_exactly_an_end_that_begins_a_character(beginnings):
    for data in samples():
        expected = next((n for n in (3, 2, 1) if n <= len(data) and data[-n:] in beginnings), 0)
        assert unfinished_length(data) == expected, data.hex(" ")


def test_python_s_own_incremental_decoder_holds_the_same_but_for_halves_of_surrogates():
    """It also waits after ED A0 to ED BF, for the sake of its error handler "surrogatepass"."""
    for data in samples():
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        decoder.decode(data)
        held = decoder.getstate()[0]
        surrogate = held[:1] == b"\xed" and held[1:] >= b"\xa0"
        assert unfinished_length(data) == (0 if surrogate else len(held)), data.hex(" ")


def test_a_text_cut_anywhere_decodes_to_the_same_with_as_many_replacement_characters():
    for data in samples():
        decoder = Utf8Decoder()
        text = "".join(decoder.decode(bytes([byte])) for byte in data) + decoder.flush()
        assert text == data.decode(errors="replace"), data.hex(" ")
        assert decoder.flush() == "", "flushed twice"
