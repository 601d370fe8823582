"""Every command, REST path, variable and job in the pages is one that exists; nothing is run here."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest
from tests.unit.docs.code_blocks import PAGES, ROOT, code_blocks, commands

from flintlock.cli.main import app
from flintlock.client.authoring.targets import read_target
from flintlock.config.options import OPTIONS
from flintlock.rest.server.routes import ROUTES

METHODS = {row.method for row in ROUTES}
ROOTS = "|".join(sorted({row.path.split("/")[1] for row in ROUTES} - {""}))
#: Parameters of paths that a page never has as they are, but as `:id`, `{jobid}`, `<id>` or `$JOB`.
IDS = {"{jobid}", "{vertexid}", "{taskmanagerid}", "{triggerid}", "{subtaskindex}"}

#: The changelog also names what was removed.
every_page = pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT))
)


def problem_of(arguments: list[str]) -> str | None:
    """Return what the command line would say about these arguments of `flintlock`; None if it would run."""
    command: click.Command = app
    context = click.Context(app, info_name="flintlock")
    rest = list(arguments)
    try:
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            name = rest.pop(0)
            found = command.get_command(context, name)
            if found is None:
                return f"no command {name!r}"
            command, context = found, click.Context(found, info_name=name, parent=context)
        command.make_context(command.name, rest)
    except click.exceptions.Exit:
        return None
    except click.exceptions.NoArgsIsHelpError:
        return None
    except click.ClickException as error:
        return error.format_message()
    return None


@every_page
def test_every_command_in_a_shell_block_exists_with_its_options(page: Path) -> None:
    problems = {
        shlex.join(arguments): problem_of(arguments)
        for block in code_blocks(page, "sh", "bash", "console")
        for arguments in commands(block.text, "flintlock")
    }
    assert {line: problem for line, problem in problems.items() if problem} == {}


@every_page
def test_every_command_in_a_sentence_exists_with_its_options(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    quoted = re.findall(r"`flintlock ([^`]+)`", text)
    problems = {line: problem_of(shlex.split(re.sub(r" N\b", " 1", line))) for line in quoted}
    # A sentence may leave out what a command needs, but not name what it does not have.
    incomplete = ("Missing argument", "Missing option", "Missing parameter", "Missing command")
    found = {line: problem for line, problem in problems.items() if problem and not problem.startswith(incomplete)}
    assert {line: problem for line, problem in found.items() if "requires an argument" not in problem} == {}


def has_route(method: str, path: str) -> bool:
    """Whether the route table has a path; a placeholder stands for any parameter, any word for one that is no id."""
    wanted = path.removeprefix("/v1").split("/")

    def fits(own: str, route: str) -> bool:
        if own[:1] in (":", "{", "<", "$"):
            return route.startswith("{")
        return own == route or (route.startswith("{") and route not in IDS)

    return any(
        method in (row.method, "") and len(wanted) == len(route) and all(map(fits, wanted, route))
        for row in ROUTES
        for route in [row.path.split("/")]
    )


@every_page
def test_every_rest_path_in_a_sentence_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = re.findall(rf"`(?:({'|'.join(METHODS)}) )?(/(?:v1/)?(?:{ROOTS})(?:/[^`?\s]*)?)(?:\?[^`]*)?`", text)
    paths = {(method, path) for method, path in found if "…" not in path}
    assert sorted(item for item in paths if not has_route(*item)) == []


@every_page
def test_every_rest_path_of_curl_exists(page: Path) -> None:
    unknown: list[str] = []
    for block in code_blocks(page, "sh", "bash", "console"):
        for arguments in commands(block.text, "curl"):
            named = [after for word, after in pairwise(arguments) if word in ("-X", "--request")]
            sends = any(word in ("-d", "--data", "--data-binary", "--json", "-F") for word in arguments)
            method = named[0] if named else "POST" if sends else "GET"
            urls = [found for word in arguments if (found := re.match(r"(?:https?://[^/]+|\$\w+)(/[^?]*)", word))]
            unknown += [f"{method} {url[1]}" for url in urls if not has_route(method, url[1])]
            assert len(urls) == 1, arguments
    assert unknown == []


@every_page
def test_every_option_that_a_page_sets_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = "\n".join(block.text for block in code_blocks(page, "yaml") if not block.text.startswith("version: 1"))
    set_keys = {
        *re.findall(r"-D ([a-zA-Z.-]+)=", text),
        *re.findall(r"^([a-z-]+(?:\.[a-zA-Z-]+)+):", files, re.MULTILINE),
    }
    known = {option.key for option in OPTIONS}
    assert {key for key in set_keys - known if not key.startswith("spark.") and key != "key"} == set()


@every_page
def test_every_environment_variable_exists(page: Path) -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "flintlock").rglob("*.py"))
    options = {"FLINTLOCK_" + re.sub(r"[.-]", "_", option.key).upper() for option in OPTIONS}
    named = set(re.findall(r"\bFLINTLOCK_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8")))
    assert {name for name in named - options if f'"{name}"' not in source} == set()


@every_page
def test_every_job_in_a_page_is_valid(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in code_blocks(page, "python"):
        compile(block.text, f"{page.name}:{block.line}", "exec")
    for block in code_blocks(page, "yaml"):
        if not block.text.startswith("version: 1"):
            continue
        for name in re.findall(r"[\w./-]+", "".join(re.findall(r"^artifacts: \[(.*?)\]", block.text, re.MULTILINE))):
            Path(name).write_text("def score(frame): return frame\n", encoding="utf-8")
        Path("job.yaml").write_text(block.text, encoding="utf-8")
        read_target("job.yaml").package()


def test_every_message_of_the_troubleshooting_page_is_one_that_is_printed() -> None:
    files = [*(ROOT / "src" / "flintlock").rglob("*.py"), *(ROOT / "tests" / "cluster" / "mistakes").glob("*.txt")]
    printed = "\n".join(path.read_text(encoding="utf-8") for path in files)
    printed = re.sub(r'"\s*\n\s*f?"', "", printed)  # a message may be written on several lines
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    parts = {part.strip() for message in messages for part in message.split("…")}

    assert len(messages) > 20
    assert sorted(part for part in parts if part not in printed) == []


def test_what_does_not_exist_is_found() -> None:
    script = (
        'JOB=$(flintlock run -d a.py)\nA=1 flintlock list | head\ncurl "$(flintlock jbos)" && flintlock wait $JOB\n'
    )

    assert list(commands(script, "flintlock")) == [["run", "-d", "a.py"], ["list"], ["jbos"], ["wait", "$JOB"]]
    assert problem_of(["run", "-d", "a.py"]) is None
    assert problem_of(["run", "--detach", "a.py"]) is not None
    assert problem_of(["cluster", "begin"]) is not None
    assert problem_of(["jbos"]) is not None
    assert has_route("GET", "/v1/jobs/$JOB/results/top")
    assert not has_route("POST", "/jobs/$JOB/results/top")
    assert not has_route("GET", "/jobs/overviw")
