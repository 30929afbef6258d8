"""Writes what the pages of docs/ take from the code: python docs/generate.py.

In a page, what stands between `<!-- generated: NAME -->` and `<!-- end -->` is replaced by the part
of that name: `config keys`, `config defaults`, `features of the backends`, `what needs verl`,
`keywords of requests` (or `vllm`, `sglang`: their `sampling_params`), `other keywords` (without an
example in the page),
`formats of families`, `templates table` (or `causes`, `example`), or `api NAME`, the signature and
the docstring of a name and of its own public members, with the keywords after `generate`.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import griffe

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

import inf  # noqa: E402
from _inf.backends.features import FEATURES  # noqa: E402
from _inf.backends.model_info import with_dtype  # noqa: E402
from _inf.backends.registry import MODES  # noqa: E402
from _inf.config import load_config  # noqa: E402
from _inf.config.schema import Config  # noqa: E402
from _inf.config.source import embedded_rollout  # noqa: E402
from _inf.parts.found import ROW_FIELDS, ROW_METADATA  # noqa: E402
from _inf.request.keyword import Keyword  # noqa: E402
from _inf.request.keywords import KEYWORDS, PER_CALL, PER_PROMPT, documentation  # noqa: E402
from _inf.response.output import GenerationOutput  # noqa: E402
from _inf.runtime.extras import NEEDS_VERL  # noqa: E402

TYPED = ROOT / "_inf" / "parts" / "typed.py"
PART = re.compile(r"<!-- generated: (?P<name>.+?) -->\n.*?<!-- end -->", re.DOTALL)
LINE_LENGTH = 88  # of a signature
PAGE_NAME = re.compile(r"\bdocs/(\w+)\.md\b")  # in docstrings
# Members that the library itself uses.
INTERNAL = {"for_one_prompt", "of", "of_part", "row", "unsampled", "without_reward"}


def generated(page: str) -> str:
    """Return the text of a page with its generated parts made anew."""

    def part(found: re.Match[str]) -> str:
        match found["name"].split():
            case ["config", "keys"]:
                text = keys_page()
            case ["config", "defaults"]:
                text = defaults_table()
            case ["features", *_]:
                text = features_table()
            case ["what", "needs", "verl"]:
                text = table_of_verl()
            case ["keywords", "of", form]:
                text = keywords_of(form)
            case ["other", "keywords"]:
                text = other_keywords(page)
            case ["formats", *_]:
                from tests.support.tool_call_forms import family_table

                text = family_table()
            case ["templates", which]:
                from tests.support import chat_templates

                text = {
                    "table": chat_templates.family_table,
                    "causes": chat_templates.cause_table,
                    "example": chat_templates.example,
                }[which]()
            case [_, name]:
                text = api(name)
        return f"<!-- generated: {found['name']} -->\n\n{text}\n\n<!-- end -->"

    return PART.sub(part, page)


def main() -> None:
    """Write the pages, and the module of types, that are not current."""
    made = {path: generated for path in sorted(DOCS.glob("*.md"))}
    for path, make in {TYPED: lambda _: typed_module(), **made}.items():
        text = path.read_text() if path.exists() else ""
        if (current := make(text)) != text:
            path.write_text(current)
            print(f"{path.relative_to(ROOT)}: written")


# ── The types of keywords and fields ────────────────────────────────────────────────────────────


def typed_module() -> str:
    """The source of `_inf/parts/typed.py`, which type checkers and editors read."""
    keywords = textwrap.indent(documentation(), " " * 4).strip()
    params = [f"    {name}: {row.annotation}" for name, row in KEYWORDS.items()]
    fields = {**ROW_FIELDS, **ROW_METADATA}
    of_rows = [
        f"    {name}: {field.typed.removesuffix(' | None')}{' | None' * (field.default is None)}"
        for name, field in fields.items()
    ]
    lists = [f"    {name}: list[{field.typed}] | None" for name, field in ROW_FIELDS.items()]
    return "\n".join(
        [
            '"""The types of keywords, and of what parts add to rows. docs/generate.py writes this '
            'file."""',
            "",
            "from __future__ import annotations",
            "",
            "from collections.abc import Callable, Mapping, Sequence",
            "from typing import Any, Literal, TypedDict",
            "",
            "",
            "class GenerateParams(TypedDict, total=False):",
            f'    """{keywords}',
            '    """',
            "",
            *params,
            "",
            "",
            "class RowFields:",
            '    """What parts add to a row."""',
            "",
            *of_rows,
            "",
            "",
            "class OutputLists:",
            '    """The fields of all rows, a list each."""',
            "",
            *lists,
            "",
        ]
    )


# ── Signatures and docstrings ────────────────────────────────────────────────────────────────────


@cache
def _sources() -> griffe.ModulesCollection:
    """The source of `inf` and `_inf`, read without importing it."""
    import griffe  # of the extra docs, which only api.md needs

    loader = griffe.GriffeLoader(search_paths=[ROOT])
    loader.load("inf")
    loader.load("_inf")
    loader.resolve_aliases(external=False)
    return loader.modules_collection


def api(name: str) -> str:
    """A section on a name: its signature, its docstring, and those of its own public members."""
    found = _target(_sources()[name])
    parts = [f"### `{found.name}`", _code(found), _prose(found)]
    if found.is_class:
        members = found.members.values()
        known = [_target(each) for each in members if each.docstring]
        known = [each for each in known if each.name[0] != "_" and each.name not in INTERNAL]
        parts.append(
            "\n".join(
                f"- `{each.name}: {each.annotation}`: {_prose(each)}"
                for each in known
                if each.is_attribute
            )
        )
        for each in known:
            if each.is_function:
                parts += [f"#### `{each.name}`", _code(each), _prose(each)]
            if each.path == "inf.InferenceEngine.generate":
                parts.append(keywords())
    return "\n\n".join(filter(None, parts))


def keywords() -> str:
    """A list of the keywords of `generate`, each with the type of one value."""
    lines = [
        "##### `GenerateParams`",
        "The keywords of `generate`, `agenerate`, `stream`, `astream` and `rollout_batch` "
        "([an example of each](generate.md)). None means the default; where none is named, there "
        "is none. Of these each prompt may have its own value, in a list or an array with one "
        "value or None per prompt (for values that are lists, a list of lists):",
        _list_of(PER_PROMPT),
        "These have one value for the whole call:",
        _list_of(PER_CALL),
    ]
    return "\n\n".join(lines)


def _list_of(rows: Mapping[str, Keyword]) -> str:
    lines = []
    for name, row in rows.items():
        of_one = dataclasses.replace(row, per_prompt=False).annotation.removesuffix(" | None")
        lines.append(f"- **{name}** (`{of_one}`): {_with_links(row.help)}")
    return "\n".join(lines)


def _target(found: Any) -> Any:
    return found.final_target if found.is_alias else found


def _prose(found: Any) -> str:
    text = found.docstring.value if found.docstring else ""
    if found.name == GenerationOutput.__name__:  # the parts have added to it
        text = GenerationOutput.__doc__ or ""
    return re.sub(r"\n{3,}", "\n\n", _with_links(as_markdown(text)))


def _with_links(text: str) -> str:
    """A text whose names of pages lead to them."""
    return PAGE_NAME.sub(r"[docs/\1.md](\1.md)", text)


def _code(found: Any) -> str:
    """The signature of a class or a function."""
    if found.is_function:
        signature = found.signature(name=("async " if "async" in found.labels else "") + found.name)
        # They are there to be refused.
        signature = signature.replace("*others: Never, **", "**").replace("*others: Never", "*")
        code = _in_lines(signature)
    elif issubclass(getattr(inf, found.name, object), Exception):
        code = f"class {found.name}({', '.join(map(str, found.bases))})"
    else:
        init = _target(found.all_members["__init__"])
        code = _in_lines(init.signature(name=found.name).removesuffix(" -> None"))
    code = code.replace("'", '"')
    return f"```python\n{code}\n```"


def _in_lines(signature: str) -> str:
    """A signature, with a line for each parameter if it is long."""
    if len(signature) <= LINE_LENGTH:
        return signature
    code, depth = "", 0
    for character in signature:
        if depth == 1 and character == ")":
            code += ",\n"
        depth += (character in "([{") - (character in ")]}")
        code += character
        if depth == 1 and character in ",(":
            code += "\n   "  # and the space behind a comma
    return code.replace("(\n   ", "(\n    ", 1)


# ── The table of what each backend can do ────────────────────────────────────────────────────────


def features_table() -> str:
    """A row for each feature, with its calls and keywords, and a column for each backend."""
    lines = [f"| feature | calls and keywords | {' | '.join(f'`{mode.name}`' for mode in MODES)} |"]
    lines.append("|---" * (2 + len(MODES)) + "|")
    for feature, names in FEATURES.items():
        offered = ["yes" if feature in mode.supports else "no" for mode in MODES]
        words = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {feature} | {words} | {' | '.join(offered)} |")
    return "\n".join(lines)


def keywords_of(form: str) -> str:
    """The keywords that a form of request has, under its names."""
    from _inf.apps.serve.token_bodies import SGLANG, VLLM

    in_requests = [name for name, row in KEYWORDS.items() if row.kind and row.in_body]
    names = {"requests": in_requests, "vllm": VLLM, "sglang": SGLANG}[form]
    return textwrap.fill(", ".join(f"`{name}`" for name in names) + ".", 120)


def other_keywords(page: str) -> str:
    """A table of the keywords of which the page has no example."""
    shown = {*re.findall(r"^\| `(\w+)=", page, re.MULTILINE)}
    rows = [
        f"| `{name}` | {row.first_sentence} |"
        for name, row in KEYWORDS.items()
        if name not in shown
    ]
    return "\n".join(["| keyword | |", "|---|---|", *rows]) if rows else ""


def table_of_verl() -> str:
    reasons = {name: reason.replace("*", "\\*") for name, reason in NEEDS_VERL.items()}
    rows = [f"| `{name}` | {reason} |" for name, reason in reasons.items()]
    return "\n".join(["| as it is written | why |", "|---|---|", *rows])


# ── The table of every config key ────────────────────────────────────────────────────────────────


def config_keys() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(path, JSON schema, definitions) of every section and key, a section before its keys."""
    schema = Config.model_json_schema()
    yield from _keys("", schema, schema.get("$defs", {}))


def _keys(
    path: str, section: dict[str, Any], definitions: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for name, key in section.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        key = {**definitions[key["$ref"].rpartition("/")[2]], **key} if "$ref" in key else key
        yield here, key, definitions
        yield from _keys(here, key, definitions)


def keys_page() -> str:
    """A heading for each section and a table for its keys."""
    tables: dict[str, list[str]] = {"": []}
    about = {"": "Keys at the top of the file: the model, the device, and limits."}
    for path, key, _ in config_keys():
        if "properties" in key:
            about[path] = _one_line(key.get("description", ""))
            tables[path] = []
            continue
        section, _, name = path.rpartition(".")
        cells = (f"`{name}`", _type(key), _value(key.get("default")), _one_line(_text(key)))
        tables[section].append("| " + " | ".join(cells) + " |")
    head = "| key | type | default | |\n|---|---|---|---|\n"
    parts = [
        f"## {f'`{path}`' if path else 'Top level'}\n\n{about[path]}\n\n" + head + "\n".join(rows)
        for path, rows in tables.items()
        if rows
    ]
    return "\n\n".join(parts)


def defaults_table() -> str:
    """The keys of embedded.yaml: what they are for its model, and for another one."""
    embedded, other = load_config(None, {}), load_config(None, {"model_path": "another"})
    head = "| key | the embedded model | another one on a CPU | another one on a GPU |"
    lines = [head, "|---|---|---|---|"]
    for name in embedded_rollout():
        cells = [_value(getattr(each.rollout, name)) for each in (embedded, other, other)]
        if name == "dtype":
            kinds = ("bfloat16", "float16", "float32")
            on_gpu = [_value(_dtype(other, False, stored)) for stored in kinds]
            cells[1] = _value(_dtype(other, True, "bfloat16"))
            cells[2] = f"the checkpoint's: {on_gpu[0]}, {on_gpu[1]}, {on_gpu[2]} for {kinds[2]}"
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _dtype(config: Config, on_cpu: bool, stored: str) -> str:
    """In what a checkpoint that is stored so is computed."""
    about = SimpleNamespace(dtype=stored)
    about.get_text_config = lambda: about
    return with_dtype(config, on_cpu, about).rollout.dtype


def _text(key: dict[str, Any]) -> str:
    """What a key is for; of a key that may be null pydantic keeps that at either level."""
    return str(key.get("description", ""))


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _type(key: dict[str, Any]) -> str:
    """`whole number, at least 1, or null`."""
    if "anyOf" in key:
        kinds = [_type(option) for option in key["anyOf"]]
        return " or ".join(sorted(kinds, key="null".__eq__))
    if "$ref" in key:
        return "name or mapping"
    if "enum" in key or "const" in key:
        return ", ".join(_value(value) for value in key.get("enum", [key.get("const")]))
    names = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "true or false",
        "object": "mapping",
        "array": "list",
    }
    kind = names.get(key.get("type", ""), key.get("type", "anything"))
    if kind == "list" and "items" in key:
        kind = f"list of: {_type(key['items'])}"
    bounds = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    for bound, words in bounds.items():
        if bound in key and key[bound] != 2**31 - 1:  # that one is any 32-bit number
            kind += f", {words} {key[bound]:g}"
    return kind


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return f"`{str(value).lower()}`".replace("none", "null")
    return f"`{value}`"


# ── Docstrings ───────────────────────────────────────────────────────────────────────────────────

ENTRY = re.compile(r"(\w+(?: \([^()]*\))?(?:, \w+(?: \([^()]*\))?)*): (.+)")


def as_markdown(docstring: str) -> str:
    """Our docstrings' lists (`name: text`, continued and nested by indentation) as Markdown's."""
    lines = docstring.splitlines()
    done: list[str] = []
    entries: list[int] = []  # the indentation of each list entry that a line may still belong to
    for number, line in enumerate(lines):
        text, indent = line.strip(), _indent(line)
        if not text:
            done.append("")
            continue
        closed = bool(entries) and indent <= entries[-1]
        while entries and indent <= entries[-1]:
            entries.pop()
        in_prose = bool(done) and bool(done[-1]) and not closed and not done[-1].endswith(":")
        entry = None if in_prose else ENTRY.fullmatch(text)
        if entry and (closed or _is_entry(lines, number)):
            if not closed:
                done.append("")  # Markdown begins a list after an empty line only
            done.append(f"{'    ' * len(entries)}- **{entry[1]}**: {entry[2]}")
            entries.append(indent)
        elif closed or not done or not done[-1]:
            done += ["", "    " * len(entries) + text]
        else:
            done[-1] += f" {text}"
    return "\n".join(done).strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_entry(lines: list[str], number: int) -> bool:
    """Whether the line is an entry and not prose, whose next line would go on below it."""
    following = lines[number + 1] if number + 1 < len(lines) else ""
    beside = bool(following) and _indent(following) == _indent(lines[number])
    return not beside or ENTRY.fullmatch(following.strip()) is not None


if __name__ == "__main__":
    main()
