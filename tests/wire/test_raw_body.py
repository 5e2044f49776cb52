"""Bodies that are not parsed: model and stream are found by looking, within bounds."""

import time

import orjson
import pytest

from router.wire.raw_body import WINDOW_BYTES, scan_json_head, scan_multipart

FILLER = "x" * (3 * WINDOW_BYTES)


@pytest.mark.parametrize(
    ("body", "model", "stream"),
    [
        (orjson.dumps({"model": "m", "stream": True, "messages": [FILLER]}), "m", True),
        (orjson.dumps({"messages": [FILLER], "stream": True, "model": "m"}), "m", True),
        (orjson.dumps({"tools": [{"model": "inner"}], "model": "outer", "prompt": FILLER}), "outer", False),
        (orjson.dumps({"messages": [{"content": 'say "model": "evil", now' + FILLER}], "model": "good"}), "good", False),
        (orjson.dumps({"model": 'quo"ted é', "prompt": FILLER}), 'quo"ted é', False),
        (orjson.dumps({"model": 7, "prompt": FILLER}), None, False),
        (orjson.dumps({"prompt": FILLER}), None, False),
        (b'{"model": "\\ud800", "prompt": "' + FILLER.encode(), None, False),
        (b"", None, False),
        (b'{"a": [1, {"b": 2}], "stream":true,"model":"m"}', "m", True),
    ],
    ids=["front", "back", "nested", "in-text", "escaped", "number", "absent", "surrogate", "empty", "small"],
)
def test_large_json(body: bytes, model: str | None, stream: bool) -> None:
    """Top-level fields win over nested ones and over text that looks like them; none found is None."""
    assert scan_json_head(body) == (model, stream)


def test_multipart_model() -> None:
    """The `model` part of an audio upload is found beside a large file, before or behind it."""
    model = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
    stream = b'--b\r\nContent-Disposition: form-data; name="stream"\r\nContent-Type: text/plain\r\n\r\nTrue\r\n'
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + b"\0" * 300_000 + b"\r\n"
    for body in (model + stream + file, file + model + stream, model + stream):
        assert scan_multipart(body) == ("whisper", True)
    assert scan_multipart(file) == (None, False)


def test_a_hostile_form_costs_what_it_weighs() -> None:
    """Endless look-alikes of a part's head are read in one pass: twice the bytes take about twice the time."""

    def seconds(repeats: int) -> float:
        body = b"-" + b'name="model"\r\n' * repeats
        start = time.perf_counter()
        scan_multipart(body)
        return time.perf_counter() - start

    small = min(seconds(2000) for _ in range(3))
    assert min(seconds(8000) for _ in range(3)) < 12 * small + 0.01
