"""engines.deepspeed_backend.page_server: one page over HTTP."""

import urllib.error
import urllib.request

import pytest

from engines.deepspeed_backend.page_server import CONTENT_TYPE, PageServer


def test_the_page_and_nothing_else() -> None:
    """GET /metrics answers with the page of that moment; other paths are 404, and after `close` the port is free."""
    pages = iter([b"a 1\n", b"a 2\n"])
    server = PageServer("127.0.0.1", 0, lambda: next(pages))
    url = f"http://127.0.0.1:{server.port}"
    for path, expected in (("/metrics", b"a 1\n"), ("/metrics?x", b"a 2\n")):
        with urllib.request.urlopen(url + path) as answer:
            assert (answer.read(), answer.headers["Content-Type"]) == (expected, CONTENT_TYPE)
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(url + "/")
    refused.value.close()
    server.close()
    PageServer("127.0.0.1", server.port, lambda: b"").close()
