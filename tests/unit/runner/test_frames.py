import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.wire.frames import (
    BadFrame,
    Decoder,
    Frame,
    Stream,
    encode,
    frame_size,
    tail_from,
)

OUTPUT = st.builds(
    Frame,
    offset=st.integers(0, 2**63),
    time_ns=st.integers(-(2**62), 2**62),
    stream=st.sampled_from([Stream.STDOUT, Stream.STDERR, Stream.SYSTEM]),
    payload=st.binary(max_size=300),
)
MARKER = st.builds(
    Frame,
    offset=st.integers(0, 2**62),
    time_ns=st.integers(0, 2**62),
    stream=st.just(Stream.MARKER),
    payload=st.binary(max_size=50),
    dropped=st.integers(1, 2**62),
)
FRAMES = st.lists(OUTPUT | MARKER, max_size=8)


@given(FRAMES, st.integers(1, 100))
def test_frames_survive_any_cutting_of_the_bytes(frames: list[Frame], step: int) -> None:
    raw = b"".join(map(encode, frames))
    decoder = Decoder()
    pieces = (raw[i : i + step] for i in range(0, len(raw), step))
    assert [frame for piece in pieces for frame in decoder.feed(piece)] == frames
    assert decoder.pending == 0


@given(FRAMES, st.data())
def test_a_torn_tail_gives_the_whole_frames_before_it(
    frames: list[Frame], data: st.DataObject
) -> None:
    ends = [0]
    for frame in frames:
        ends.append(ends[-1] + len(encode(frame)))
    raw = b"".join(map(encode, frames))
    cut = data.draw(st.integers(0, len(raw)))
    whole = sum(end <= cut for end in ends[1:])
    decoder = Decoder()
    assert list(decoder.feed(raw[:cut])) == frames[:whole]
    assert decoder.pending == cut - ends[whole]


@given(OUTPUT)
def test_the_header_tells_the_whole_size(frame: Frame) -> None:
    raw = encode(frame)
    assert frame_size(raw) == len(raw)


@given(OUTPUT.filter(lambda frame: len(frame.payload) > 0))
def test_a_changed_byte_is_noticed(frame: Frame) -> None:
    raw = bytearray(encode(frame))
    raw[-1] ^= 1
    with pytest.raises(BadFrame, match="checksum"):
        list(Decoder().feed(bytes(raw)))


def test_bytes_that_are_no_frames_are_refused() -> None:
    with pytest.raises(BadFrame):
        list(Decoder().feed(b"x" * 64))


def test_a_frame_is_cut_at_the_offset_asked_for() -> None:
    frame = Frame(10, 1, Stream.STDOUT, b"abcdef")
    assert tail_from(frame, 10) == frame
    assert tail_from(frame, 13) == Frame(13, 1, Stream.STDOUT, b"def")
    assert tail_from(frame, 16) is None
