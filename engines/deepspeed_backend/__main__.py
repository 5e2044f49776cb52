"""`python -m engines.deepspeed_backend --model DIR`: loads, serves, and ends on SIGTERM, SIGINT or Terminate."""

import logging
import signal
import sys

from engines.deepspeed_backend.arguments import parser
from engines.deepspeed_backend.calls import Calls
from engines.deepspeed_backend.figures import Figures
from engines.deepspeed_backend.line import Line
from engines.deepspeed_backend.page_server import PageServer

GRACE_S = 5.0  # for requests that run when it ends
log = logging.getLogger("warmline.deepspeed")


def main(argv: list[str]) -> None:
    options = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # ends at once while it loads
    from engines.deepspeed_backend.generator import DeepSpeedGenerator
    from engines.deepspeed_backend.grpc_server import start

    line = Line(options.max_waiting)
    figures = Figures(line)
    calls = Calls(DeepSpeedGenerator(options.model, options.dtype), line, figures)
    server = start(calls, line, options.host, options.port)
    page = PageServer(options.host, options.metrics_port, figures.page)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: calls.terminate())
    log.info("gRPC at %s:%d, metrics at http://%s:%d/metrics", options.host, options.port, options.host, page.port)
    calls.stopping.wait()
    server.stop(GRACE_S).wait()
    page.close()


if __name__ == "__main__":
    main(sys.argv[1:])
