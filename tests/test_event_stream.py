"""What the server writes as events is read again, however the bytes were cut on their way."""

from hypothesis import given
from hypothesis import strategies as st

from minillm.server.errors import RequestError
from minillm.server.event_stream import EventReader
from minillm.server.events import DONE, error_event, event
from minillm.server.responses import ChatChunkChoice, ChatCompletionChunk, Delta


def chunk_of(text: str) -> ChatCompletionChunk:
    """An event of a chat's stream."""
    choice = ChatChunkChoice(index=0, delta=Delta(content=text))
    return ChatCompletionChunk(id="x", created=1, model="m", choices=[choice])


texts = st.lists(st.text(alphabet=st.sampled_from(" a\n\r\u2028\x85:é🌟"), max_size=6), max_size=4)


@given(texts, st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=8))
def test_events_that_are_cut_anywhere_are_read_whole(written, sizes) -> None:
    data, reader, found = b"".join(event(chunk_of(text)) for text in written) + DONE, EventReader(), []
    for number in range(len(data)):
        piece, data = data[: sizes[number % len(sizes)]], data[sizes[number % len(sizes)] :]
        found += reader.feed(piece)
    assert found[-1] == "[DONE]"
    assert [ChatCompletionChunk.model_validate_json(one).choices[0].delta.content for one in found[:-1]] == written
    assert (reader.rest, reader.data) == (b"", [])


def test_an_error_is_an_event_like_any_other() -> None:
    (found,) = EventReader().feed(error_event(RequestError("no\nway \ud800")))
    assert found.startswith('{"error":{"message":"no')
