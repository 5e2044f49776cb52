"""The console script `warmline`: argv and environment to Settings, then serve, or ask a running router.

Exit status: 0 done, 1 could not (port taken, router not reachable, nothing found), 2 bad flags or settings.
The only module that reads the environment.
"""

import argparse
import errno
import os
import re
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from router.errors import SettingsError
from router.options import (
    Resolved,
    add_flags,
    all_flags,
    from_flags,
    from_toml,
    from_variables,
    resolve,
    suggestion,
    unknown_variables,
)
from router.settings import ListenSettings

DEFAULT_ADMIN = "http://127.0.0.1:8081"
ADMIN_FLAGS = ("--admin", "--json")
RECORD_FLAGS = ("--admin", "--out", "--duration", "--max-bytes", "--max-requests", "--max-blocks")
SETTINGS_HELP = (
    "Every flag can also be a WARMLINE_* variable (WARMLINE_PORT) or a key of the file (port). "
    "A flag beats a variable, a variable the file."
)
NO_ENGINE = "warning: no engine given; add one with --engine or POST /workers"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status; errors are one line each on standard error."""
    arguments, strangers = make_parser(os.environ).parse_known_args(argv)
    if strangers:
        arguments.parser.error(unrecognized(strangers, arguments.flags))
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except SettingsError as error:
        return complain(str(error), 2)
    except BrokenPipeError:  # `warmline workers | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130


def unrecognized(strangers: Sequence[str], flags: Iterable[str]) -> str:
    """What argparse says, with the nearest flag for each that is none."""
    known = set(flags)
    near = [suggestion(word.partition("=")[0], known) for word in strangers if word.startswith("--")]
    return f"unrecognized arguments: {' '.join(strangers)}" + "".join(near)


def complain(text: str, status: int) -> int:
    for line in text.splitlines():
        print(f"warmline: {line}", file=sys.stderr)
    return status


def make_parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmline", description="Prefix-cache-aware load balancer for LLM engines.", allow_abbrev=False
    )
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = commands.add_parser(
        "serve",
        help="run the router",
        usage="warmline serve [--config FILE.toml] [--check] [--engine KIND=URL …] [SETTINGS]",
        epilog=SETTINGS_HELP,
        allow_abbrev=False,
    )
    serve.add_argument("--config", metavar="FILE.toml", default=environ.get("WARMLINE_CONFIG"), help="read settings from FILE")
    serve.add_argument("--check", action="store_true", help="check and print the resolved settings, then exit")
    add_flags(serve)
    serve.set_defaults(run=run_serve, parser=serve, flags=("--config", "--check", *all_flags()))

    sidecar = commands.add_parser(
        "sidecar",
        help="watch engines and publish what they report to a pool's Redis",
        usage="warmline sidecar [--config FILE.toml] --engine KIND=URL … --redis URL [SETTINGS]",
        epilog=SETTINGS_HELP,
        allow_abbrev=False,
    )
    sidecar.add_argument(
        "--config", metavar="FILE.toml", default=environ.get("WARMLINE_CONFIG"), help="read settings from FILE"
    )
    add_flags(sidecar)
    sidecar.set_defaults(run=run_sidecar, parser=sidecar, flags=("--config", *all_flags()))

    admin = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    admin.add_argument(
        "--admin",
        metavar="URL",
        default=environ.get("WARMLINE_ADMIN", DEFAULT_ADMIN),
        help=f"the router's admin port (default: WARMLINE_ADMIN, else {DEFAULT_ADMIN})",
    )
    shown = argparse.ArgumentParser(parents=[admin], add_help=False, allow_abbrev=False)
    shown.add_argument("--json", action="store_true", help="print the answer as JSON")

    workers = commands.add_parser("workers", parents=[shown], help="show the workers of a running router", allow_abbrev=False)
    workers.set_defaults(run=run_workers, parser=workers, flags=ADMIN_FLAGS)

    explain = commands.add_parser("explain", parents=[shown], help="show why a request went where it went", allow_abbrev=False)
    explain.add_argument("request_id", metavar="REQUEST_ID", help="the X-Request-ID of its answer, or `id` in the access log")
    explain.set_defaults(run=run_explain, parser=explain, flags=ADMIN_FLAGS)
    add_record(commands, admin)
    return parser


def add_record(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", admin: argparse.ArgumentParser) -> None:
    record = commands.add_parser(
        "record", parents=[admin], help="write an anonymous trace of a running router's traffic", allow_abbrev=False
    )
    record.add_argument(
        "--out", metavar="FILE.jsonl.gz", required=True, type=Path, help="a new file; without .gz it is plain text"
    )
    record.add_argument("--duration", metavar="TIME", help="end after 90s, 10m, 2h, … (default: Ctrl-C)")
    record.add_argument(
        "--max-bytes", metavar="BYTES", default="256m", help="end before FILE gets larger (default: %(default)s)"
    )
    record.add_argument("--max-requests", metavar="N", help="end with that many (default: no limit)")
    blocks = "blocks of 16 tokens remembered, 120 bytes each; those asked for again later count as new (default: %(default)s)"
    record.add_argument("--max-blocks", metavar="N", default="4m", help=blocks)
    record.set_defaults(run=run_record, parser=record, flags=RECORD_FLAGS)


class ShowVersion(argparse.Action):
    """Looks the version up only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"warmline {metadata.version('warmline')}")
        parser.exit()


def run_serve(arguments: argparse.Namespace) -> int:
    resolved = read_settings(arguments, os.environ)
    for warning in unknown_variables(os.environ):
        complain(f"{warning} (ignored)", 0)
    if arguments.check:
        return run_check(resolved)
    if not resolved.settings.engines and not resolved.settings.state.redis:
        complain(NO_ENGINE, 0)
    from router.app import run  # the data plane's modules, which the other commands do not need

    try:
        return run(resolved.settings) or 0
    except OSError as error:
        return complain(f"cannot serve: {why_not_bound(error, resolved.settings.listen)}", 1)


def run_sidecar(arguments: argparse.Namespace) -> int:
    resolved = read_settings(arguments, os.environ)
    for warning in unknown_variables(os.environ):
        complain(f"{warning} (ignored)", 0)
    if not resolved.settings.engines:
        return complain("sidecar: name the engines to watch with --engine KIND=URL", 2)
    if not resolved.settings.state.redis:
        return complain("sidecar: name the Redis to publish to with --redis redis://HOST:PORT", 2)
    if any(engine.weight != 1.0 for engine in resolved.settings.engines):
        return complain("sidecar: weight= is for routers; a sidecar has no use for it", 2)
    from router.sidecar import run

    return run(resolved.settings)


BIND_ERROR = re.compile(r"error while attempting to bind on address \(.*?, (?P<port>\d+).*?\): (?P<words>.*)")


def why_not_bound(error: OSError, listen: ListenSettings) -> str:
    """Names the flag behind an address that cannot be listened on."""
    words = error.strerror or str(error)
    if isinstance(error, socket.gaierror):
        return f"--host {listen.host}: {words}"
    found = BIND_ERROR.fullmatch(words)
    if found is None:
        return words
    flag = "--port" if int(found["port"]) == listen.port else "--admin-port"
    if error.errno == errno.EADDRINUSE:
        return f"{flag} {found['port']} is in use on {listen.host}; choose another, or 0 for a free one"
    return f"--host {listen.host}, {flag} {found['port']}: {found['words']}"


def run_check(resolved: Resolved) -> int:
    """Prints the settings when all of them are good; tokenizers are loaded to see that they can be."""
    from router.settings_text import check_text

    if resolved.settings.tokens.tokenizer:
        from router.tokens.book import TokenizerBook

        TokenizerBook(resolved.settings.tokens)
    print(check_text(resolved))
    return 0


def read_settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Resolved:
    file = from_toml(Path(arguments.config)) if arguments.config else {}
    resolved = resolve(from_flags(arguments), from_variables(environ), file)
    host = resolved.settings.listen.host
    try:
        host.encode("idna")  # how it is looked up
    except UnicodeError:
        raise SettingsError(f"host: {host!r} is not a host name or address (from {resolved.sources['host']})") from None
    return resolved


def run_workers(arguments: argparse.Namespace) -> int:
    from router.cli_show import show_workers

    return show_workers(arguments.admin, arguments.json)


def run_explain(arguments: argparse.Namespace) -> int:
    from router.cli_show import show_decision

    return show_decision(arguments.admin, arguments.request_id, arguments.json)


def run_record(arguments: argparse.Namespace) -> int:
    from router.cli_record import read_limits, record

    limits = read_limits(arguments.duration, arguments.max_bytes, arguments.max_requests, arguments.max_blocks)
    return record(arguments.admin, arguments.out, limits)


if __name__ == "__main__":
    sys.exit(main())
