"""The tiny HTTP server of the page: GET /metrics, and nothing else."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SILENCE_S = 5.0  # a client that sends nothing is closed


class PageServer:
    """Serves from its birth on a thread of its own until `close`. Raises OSError when the port is taken; 0 takes a free one."""

    def __init__(self, host: str, port: int, page: Callable[[], bytes]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = SILENCE_S

            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
                body = page() if found else b"not found\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scraped several times a second: nothing to tell."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
