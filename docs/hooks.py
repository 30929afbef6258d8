"""What mkdocs does to these pages beyond showing them (mkdocs.yml): the README becomes the first
page, and links to the repository's files lead to copies of them.

The pages themselves are written for GitHub: every link in them is relative and works there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# ](../examples/grpo.py) in docs/*.md, ](config.yaml) in the README; not ](#limits) or ](https:
LINK = re.compile(r"\]\((?:\.\./)?([\w./-]+?)(#[\w-]+)?\)")
# Pages that stand at the top of the repository, and their names in the site.
TOP_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
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
    """Lead `../file` to the copy of it."""
    return markdown.replace("](../", "](").replace("](README.md", "](index.md")
