"""Pages of the documentation that are made from the code: command line, Python, JSON Schemas.

python -m scripts.make_docs             write them (and tell which changed)
python -m scripts.make_docs --check     write nothing; end with 1 where one is not current

`python -m scripts.docs_figures` draws the pictures.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

import ladder_opt
from ladder_opt.cli.app import app
from ladder_opt.cli.examples import EXAMPLES
from ladder_opt.plan.json_schemas import json_schemas

REPOSITORY = Path(__file__).resolve().parent.parent
REFERENCE = REPOSITORY / "docs" / "reference"
_MADE = "<!-- made by python -m scripts.make_docs; do not edit -->\n\n"
_SECTIONS = ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:")
_LONGEST_DEFAULT = 40


def commands(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command and the words that call it, in the order of help."""
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


CLI_HEAD = """# Command line

What `ladder-opt COMMAND --help` says, on one page. A duration is `600s`, `10m` or `24h`; a share `1%` or
`0.01`; a list of rungs `4,8,32`. Results go to stdout, progress and warnings to stderr. Exit codes: 0 done;
1 done, but `--strict` found a warning, or a check failed; 2 bad usage or input, one line on stderr; 3 a
fault of ours; 130 interrupted. `ladder-opt --install-completion` has the shell complete commands, options
and names.
"""

PYTHON_HEAD = """# Python

`import ladder_opt as lo` brings these names; each loads what it needs on first use. Whatever the command
line does stands here in as few lines.
"""

SCHEMAS_HEAD = """# JSON Schemas

Of the JSON files that other tools read or write (draft 2020-12). [Files](../files.md) says what the numbers
mean. Rules across keys, such as that a ladder ends on the engine's limit, are the reader's alone: `ladder-
opt check` tells of them. From Python: `ladder_opt.json_schemas()`.
"""


def cli_page() -> str:
    """The page of the command line."""
    parts = [_MADE + CLI_HEAD]
    for name, command in commands():
        parts.append(f"## {name}\n")
        parts.append(_usage(name, command))
        parts.append(f"{inspect.cleandoc(command.help or '')}\n")
        parts.append(_options(command))
        parts.append("Examples:\n\n```sh\n" + "\n".join(_examples(name)) + "\n```\n")
    return "\n".join(parts)


def _usage(name: str, command: Any) -> str:
    arguments = " ".join(
        (one.metavar or one.name.upper()) for one in command.params if one.param_type_name == "argument"
    )
    return f"    {' '.join(['ladder-opt', *name.split(), *arguments.split(), '[OPTIONS]'])}\n"


def _options(command: Any) -> str:
    rows = ["| option | |", "|---|---|"]
    for one in command.params:
        text = " ".join((getattr(one, "help", None) or "").split()).replace("|", "\\|")
        if one.param_type_name == "argument":
            rows.append(f"| `{one.metavar or one.name.upper()}` | {text} |")
            continue
        names = ", ".join(f"`{option}`" for option in (*one.opts, *one.secondary_opts))
        default = one.default
        shown = isinstance(default, str | int | float) and not isinstance(default, bool)
        if shown and len(str(default)) < _LONGEST_DEFAULT and "[" not in text:
            text += f" [{default}]"
        rows.append(f"| {names} | {text}{' (required)' if one.required else ''} |")
    return "\n".join(rows) + "\n"


def _examples(name: str) -> list[str]:
    return [
        line
        for purpose, rest in EXAMPLES.get(name, ())
        for line in (f"# {purpose}", f"ladder-opt {name} {rest}")
    ]


def api_page() -> str:
    """The page of the public names of `ladder_opt`."""
    parts = [_MADE + PYTHON_HEAD]
    public = {name: getattr(ladder_opt, name) for name in sorted(ladder_opt.__all__, key=str.lower)}
    names = [name for name, thing in public.items() if callable(thing)]
    functions = [name for name in names if inspect.isroutine(public[name])]
    for title, group in (
        ("Functions", functions),
        ("Classes", [name for name in names if name not in functions]),
    ):
        parts.append(f"## {title}\n")
        for name in group:
            parts.append(f"### {name}\n")
            parts.append(_signature(name))
            parts.append(_docstring(inspect.getdoc(getattr(ladder_opt, name)) or ""))
            parts += _members(getattr(ladder_opt, name))
    for name, thing in public.items():
        if inspect.ismodule(thing):
            parts.append(f"## {name}\n\n{_docstring(inspect.getdoc(thing) or '')}")
            parts += [table for table in [_table(vars(thing), thing.__name__)] if table]
        elif isinstance(thing, Mapping):
            rows = "\n".join(f"| `{key}` | {told} |" for key, told in thing.items())
            parts.append(f"## {name}\n\n| name | |\n| --- | --- |\n{rows}\n")
    return "\n".join(parts)


def _signature(name: str) -> str:
    thing = getattr(ladder_opt, name)
    module = thing.__module__
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return f"`{module}.{name}`, an exception.\n"
    if inspect.isclass(thing) and hasattr(thing, "model_fields"):
        return f"`{module}.{name}`, checked as it is built; [its fields](schemas.md).\n"
    source = ast.parse(Path(inspect.getsourcefile(inspect.unwrap(thing)) or "").read_text(encoding="utf-8"))
    if inspect.isclass(thing) and not dataclasses.is_dataclass(thing):
        body = next(n for n in source.body if isinstance(n, ast.ClassDef) and n.name == name).body
        node = next((n for n in body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        return _code(f"{name}({_arguments(node.args, skip_first=True) if node else ''})")
    if inspect.isclass(thing):
        body = next(n for n in source.body if isinstance(n, ast.ClassDef) and n.name == name).body
        given = [
            ast.unparse(n) for n in body if isinstance(n, ast.AnnAssign) and "ClassVar" not in ast.unparse(n)
        ]
        return _code(f"{name}({', '.join(given)})")
    function = next(n for n in source.body if isinstance(n, ast.FunctionDef) and n.name == name)
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return _code(f"{name}({_arguments(function.args)}){returns}")


def _arguments(arguments: ast.arguments, *, skip_first: bool = False) -> str:
    text = ast.unparse(arguments)
    return re.sub(r"^self(, )?", "", text) if skip_first else text


def _code(line: str) -> str:
    """A signature, broken at its commas where it is long."""
    if len(line) > 100:
        head, _, rest = line.partition("(")
        inner, _, tail = rest.rpartition(")")
        pieces, depth, current = [], 0, ""
        for letter in inner:
            depth += (letter in "([{") - (letter in ")]}")
            if letter == "," and depth == 0:
                pieces.append(current.strip())
                current = ""
            else:
                current += letter
        pieces.append(current.strip())
        line = f"{head}(\n" + "".join(f"    {piece},\n" for piece in pieces if piece) + f"){tail}"
    return f"```\n{line}\n```\n"


def _docstring(text: str) -> str:
    """A Google docstring as Markdown: sections as lists, indented blocks as they are."""
    lines: list[str] = []
    in_section = False
    for line in text.splitlines():
        if line in ("Example:", "Examples:"):
            in_section = False
            lines += ["", line, ""]
        elif line in _SECTIONS:
            in_section = True
            lines += ["", f"*{line.removesuffix(':')}*", ""]
        elif in_section and re.match(r"^    \S", line):
            item = line.strip()
            name, colon, rest = item.partition(": ")
            is_name = bool(colon) and re.fullmatch(r"[\w*.\[\]]+", name) is not None
            lines.append(f"- `{name}`: {rest}" if is_name else f"- {item}")
        elif in_section and line.startswith("        "):
            lines.append(f"  {line.strip()}")
        else:
            in_section = in_section and not line.strip()
            lines.append(line)
    return "\n".join(lines).strip() + "\n"


def _members(thing: Any) -> list[str]:
    """The public methods and properties that a class of ours defines, first line each."""
    if not inspect.isclass(thing) or issubclass(thing, Exception):
        return []
    return [table for table in [_table(vars(thing), thing.__module__)] if table]


def _table(members: Mapping[str, Any], module: str) -> str:
    """Public members with the first paragraph of each one's docstring; empty where there is none."""
    rows = []
    for name, value in members.items():
        bare = getattr(value, "fget", None) or getattr(value, "__func__", value)
        told = inspect.getdoc(bare) if getattr(bare, "__module__", None) == module else None
        if name.startswith("_") or not told or not inspect.isfunction(bare):
            continue
        call = "" if isinstance(value, property) else "()"
        first = " ".join(told.split("\n\n")[0].split()).replace("|", "\\|")
        rows.append(f"| `{name}{call}` | {first} |")
    return "| member | |\n|---|---|\n" + "\n".join(rows) + "\n" if rows else ""


def decisions_page() -> str:
    """The list of design notes, by their titles."""
    lines = [_MADE + "# Decisions", "", "One note for each decision that someone could want to undo.", ""]
    for note in sorted((REPOSITORY / "docs" / "design").glob("[0-9]*.md")):
        title = note.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        number, _, rest = title.partition(". ")
        lines.append(f"- [{number}. {rest}]({note.name})")
    return "\n".join(lines)


def schemas_page() -> str:
    """The page that lists the schemas, with their top-level keys."""
    parts = [_MADE + SCHEMAS_HEAD]
    for name, schema in json_schemas().items():
        parts.append(f"## [{name}](schemas/{name})\n\n{schema['description']}\n")
        rows = ["| key | | |", "|---|---|---|"]
        for key, of_key in schema["properties"].items():
            needed = "needed" if key in schema.get("required", ()) else ""
            rows.append(f"| `{key}` | {_kind(of_key)} | {needed} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"object `{schema['$ref'].rsplit('/', 1)[1]}`"
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    kind = str(schema.get("type", "anything"))
    if kind == "array" and "items" in schema:
        return f"list of {_kind(schema['items'])}"
    return kind


def pages() -> dict[Path, str]:
    """Every file that is made, with its text."""
    made = {
        REFERENCE / "cli.md": cli_page(),
        REFERENCE / "python.md": api_page(),
        REFERENCE / "schemas.md": schemas_page(),
        REPOSITORY / "docs" / "design" / "index.md": decisions_page(),
    }
    for name, schema in json_schemas().items():
        made[REFERENCE / "schemas" / name] = json.dumps(schema, indent=1) + "\n"
    return {
        path: "\n".join(line.rstrip() for line in text.splitlines()) + "\n" for path, text in made.items()
    }


def outdated() -> list[Path]:
    """Files that differ from what the code says."""
    return [
        path
        for path, text in pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Write the files, or say which are not current."""
    parser = argparse.ArgumentParser(description=textwrap.dedent(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where one is old")
    check = parser.parse_args().check
    made = pages()
    old = outdated()
    for path in old:
        sys.stdout.write(f"{path.relative_to(REPOSITORY)}\n")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
