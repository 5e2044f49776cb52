"""The console script `warmline`: argv and environment to Settings, then serve, or ask a running router.

Exit status: 0 done, 1 could not (port taken, router not reachable, nothing found), 2 bad flags or settings.
The only module that reads the environment.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from router.errors import SettingsError
from router.options import Resolved, add_flags, from_flags, from_toml, from_variables, resolve, unknown_variables

DEFAULT_ADMIN = "http://127.0.0.1:8081"
SETTINGS_HELP = (
    "Every flag can also be a WARMLINE_* variable (WARMLINE_PORT) or a key of the file (port). "
    "A flag beats a variable, a variable the file."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status; errors are one line each on standard error."""
    arguments = make_parser(os.environ).parse_args(argv)
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
        usage="warmline serve [--config FILE.toml] [--check] --engine KIND=URL … [SETTINGS]",
        epilog=SETTINGS_HELP,
        allow_abbrev=False,
    )
    serve.add_argument("--config", metavar="FILE.toml", default=environ.get("WARMLINE_CONFIG"), help="read settings from FILE")
    serve.add_argument("--check", action="store_true", help="check and print the resolved settings, then exit")
    add_flags(serve)
    serve.set_defaults(run=run_serve)

    admin = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    admin.add_argument(
        "--admin",
        metavar="URL",
        default=environ.get("WARMLINE_ADMIN", DEFAULT_ADMIN),
        help=f"the router's admin port (default: WARMLINE_ADMIN, else {DEFAULT_ADMIN})",
    )
    admin.add_argument("--json", action="store_true", help="print the answer as JSON")

    workers = commands.add_parser("workers", parents=[admin], help="show the workers of a running router", allow_abbrev=False)
    workers.set_defaults(run=run_workers)

    explain = commands.add_parser("explain", parents=[admin], help="show why a request went where it went", allow_abbrev=False)
    explain.add_argument("request_id", metavar="REQUEST_ID", help="the X-Request-ID of its answer, or `id` in the access log")
    explain.set_defaults(run=run_explain)
    return parser


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
    from router.app import run  # the data plane's modules, which the other commands do not need

    try:
        return run(resolved.settings) or 0
    except OSError as error:
        return complain(f"cannot serve: {error.strerror or error}", 1)


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
    return resolve(from_flags(arguments), from_variables(environ), file)


def run_workers(arguments: argparse.Namespace) -> int:
    from router.cli_show import show_workers

    return show_workers(arguments.admin, arguments.json)


def run_explain(arguments: argparse.Namespace) -> int:
    from router.cli_show import show_decision

    return show_decision(arguments.admin, arguments.request_id, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
