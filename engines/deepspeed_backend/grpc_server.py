"""MII's service over gRPC. Needs grpcio; messages are read and written by `wire`."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from engines.deepspeed_backend.calls import Calls
from engines.deepspeed_backend.line import LeftLine, Line, LineFull
from engines.deepspeed_backend.options import BadArgument
from engines.deepspeed_backend.wire import NotAMessage, read_request, replies_message

NAME = "modelresponse.ModelResponse"
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
SPARE_THREADS = 8  # to refuse with while all others run or wait
STATUS: dict[type[Exception], Any] = {
    LineFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    BadArgument: grpc.StatusCode.INVALID_ARGUMENT,
    NotAMessage: grpc.StatusCode.INVALID_ARGUMENT,
    LeftLine: grpc.StatusCode.CANCELLED,
}


class GrpcCall:
    def __init__(self, context: Any) -> None:
        self._context = context

    def on_end(self, told: Callable[[], None]) -> None:
        if not self._context.add_callback(told):
            told()


def start(calls: Calls, line: Line, host: str, port: int) -> Any:
    """A started server. Raises RuntimeError when the port cannot be bound."""

    def reply(data: bytes, context: Any) -> bytes:
        try:
            return replies_message(calls.reply(read_request(data), GrpcCall(context)))
        except tuple(STATUS) as error:
            return context.abort(STATUS[type(error)], str(error))  # type: ignore[no-any-return]

    def stream(data: bytes, context: Any) -> Iterator[bytes]:
        try:
            for piece in calls.stream(read_request(data), GrpcCall(context)):
                yield replies_message([piece])
        except tuple(STATUS) as error:
            context.abort(STATUS[type(error)], str(error))

    def terminate(data: bytes, context: Any) -> bytes:
        calls.terminate()
        return b""

    handlers = {
        "GeneratorReply": grpc.unary_unary_rpc_method_handler(reply),
        "GeneratorReplyStream": grpc.unary_stream_rpc_method_handler(stream),
        "Terminate": grpc.unary_unary_rpc_method_handler(terminate),
    }
    threads = ThreadPoolExecutor(line.max_running + line.max_waiting + SPARE_THREADS)
    limits = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)]
    server = grpc.server(threads, options=limits)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))
    server.add_insecure_port(f"{host}:{port}")
    server.start()
    return server
