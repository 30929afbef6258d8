"""What mkdocs does to these pages beyond showing them (mkdocs.yml): the README becomes the first
page, links to the repository's files lead to copies of them, docs/config.md gets its table of
every key, docs/backends.md that of what each backend can do, and the lists in docstrings become
Markdown's.

The pages themselves are written for GitHub: every link in them is relative and works there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import griffe
    from mkdocs.structure.files import File, Files
    from mkdocs.structure.pages import Page
except ImportError:  # the tests read the tables without the extra `docs`
    griffe = None

ROOT = Path(__file__).parents[1]
KEYS_GO_HERE = "<!-- the table of every key goes here when the site is built -->"
FEATURES_GO_HERE = "<!-- the table of every backend's features goes here when the site is built -->"
# ](../examples/grpo.py) in docs/*.md, ](config.yaml) in the README; not ](#limits) or ](https:
LINK = re.compile(r"\]\((?:\.\./)?([\w./-]+?)(#[\w-]+)?\)")


# ── Pages and links ──────────────────────────────────────────────────────────────────────────────


# Pages that stand at the top of the repository, and their names in the site.
TOP_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the top pages, and a copy of each other file outside docs/ that a page links to."""
    pages = [page.read_text() for page in Path(config.docs_dir).glob("*.md")]
    for name, page in TOP_PAGES.items():
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
        pages.append(text)
    for path in sorted({match[1] for text in pages for match in LINK.finditer(text)}):
        if path not in TOP_PAGES and (ROOT / path).is_file():
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead `../file` to the copy of it, and fill in the generated tables."""
    markdown = markdown.replace("](../", "](").replace("](README.md", "](index.md")
    if FEATURES_GO_HERE in markdown:
        markdown = markdown.replace(FEATURES_GO_HERE, features_table())
    return markdown.replace(KEYS_GO_HERE, keys_page())


# ── The table of what each backend can do ────────────────────────────────────────────────────────


def features_table() -> str:
    """A row for each feature, with its calls and keywords, and a column for each backend."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from _inf.backends.base import FEATURES, SUPPORTS

    lines = [f"| feature | calls and keywords | {' | '.join(f'`{name}`' for name in SUPPORTS)} |"]
    lines.append("|---" * (2 + len(SUPPORTS)) + "|")
    for feature, names in FEATURES.items():
        offered = ["yes" if feature in own else "no" for own in SUPPORTS.values()]
        words = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {feature} | {words} | {' | '.join(offered)} |")
    return "\n".join(lines)


# ── The table of every config key ────────────────────────────────────────────────────────────────


def config_keys() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(path, JSON schema, definitions) of every section and key, a section before its keys."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from _inf.config.schema import Config

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
    about = {"": "At the top of the file."}
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


if griffe is not None:

    class PlainDocstrings(griffe.Extension):
        """Gives mkdocstrings our docstrings with `as_markdown`'s lists."""

        def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
            """Called with each module, class, function and attribute that griffe has read."""
            if obj.docstring is not None:
                obj.docstring.value = as_markdown(obj.docstring.value)
