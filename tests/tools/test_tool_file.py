"""The three forms of entries in a tools file; errors name file, entry and field."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from _inf.errors import ToolError
from _inf.tools.loading import load_tools

ROOT = Path(__file__).parents[2]
PARAMETERS = {
    "type": "object",
    "properties": {"answer": {"type": "string", "description": "The numerical answer"}},
    "required": ["answer"],
}
SCHEMA = {
    "type": "function",
    "function": {"name": "calculate_answer", "description": "Submit.", "parameters": PARAMETERS},
}
GSM8K = "verl.tools.gsm8k_tool.Gsm8kTool"


@pytest.fixture
def written(tmp_path):
    def write(content: Any) -> Path:
        path = tmp_path / "tools.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


def renamed(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {**SCHEMA["function"], "name": name}}


@pytest.mark.verl
def test_all_forms_mix_in_one_file_and_keep_their_schemas(written, monkeypatch, capsys):
    monkeypatch.setenv("INF_TEST_URL", "http://sandbox")
    config = {"type": "native", "url": "${oc.env:INF_TEST_URL}"}
    deep = {"type": "array", "items": {"type": "string"}, "minItems": 1}  # more than verl's has
    parameters = {"type": "object", "properties": {"x": deep}, "required": []}
    kept = {"function": {"name": "deep", "description": "F.", "parameters": parameters}}
    tools = load_tools(
        written(
            [
                {"name": "schema_only", "parameters": PARAMETERS},
                renamed("openai_form"),
                {"class_path": GSM8K, "class_name": "Gsm8kTool", "tool_schema": renamed("by_path")},
                {"class_name": GSM8K, "config": config, "tool_schema": renamed("verls")},
                {"class_path": "_inf.tools.calculator.Calculator"},
                {"class_path": GSM8K, "tool_schema": kept},
            ]
        )
    )
    names = ["schema_only", "openai_form", "by_path", "verls", "calculator", "deep"]
    assert [tool.name for tool in tools] == names
    assert [tool.executable for tool in tools] == [False, False, True, True, True, True]
    assert tools[3].verl.config["url"] == "http://sandbox"
    assert tools[5].parameters["properties"]["x"] == deep
    assert capsys.readouterr().out == ""


@pytest.mark.verl
def test_the_documented_file_and_the_shipped_ones_comment_load(written):
    page = (ROOT / "docs/tools.md").read_text()
    tools = load_tools(written(page.split("```yaml\n")[1].split("```")[0]))
    assert [tool.name for tool in tools] == ["search", "calculator", "calc_gsm8k_reward"]
    assert [tool.executable for tool in tools] == [False, True, True]
    text = (ROOT / "tools.yaml").read_text()
    lines = text[text.index("# - class_name") :].splitlines()
    (tool,) = load_tools(written("\n".join(line.lstrip()[2:] for line in lines)))
    assert tool.name == "calc_gsm8k_reward" and tool.executable


ENTRY = {"class_path": GSM8K, "tool_schema": SCHEMA}


# What is wrong with a definition is in test_tools.py; here, where it stands in the file.
@pytest.mark.verl
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"tool": []}, "it has no tools; list them, alone or under the one key tools:"),
        ("- [", "it cannot be read as YAML: ParserError: "),
        ([ENTRY, ENTRY], r"tools\[1\]: the name 'calculate_answer' is taken by .*tools\[0\]"),
        ([{**ENTRY, "class_nam": 1}], r"\.class_nam: no such field; did you mean 'class_name'"),
        ([{"tool_schema": SCHEMA}], r"tools\[0\]\.class_name: '' is not the dotted path"),
        ([{**ENTRY, "class_name": "Geo3kTool"}], r"\.class_path: class_name is another .*'Geo3k"),
        ([{**ENTRY, "config": {"type": "remote"}}], r"\.config\.type: 'remote' is not 'native'"),
        ([{"type": "mcp", "url": "ftp://x"}], r"tools\[0\]\.url: ValueError: it is not like http"),
        ([{**ENTRY, "class_path": "nowhere.Tool"}], r"\.class_path: nowhere cannot be imported"),
        (
            [{**ENTRY, "class_path": "verl.tools.gsm8k_tool.Gsm8Tool"}],
            r"Gsm8Tool is not a subclass of .*; did you mean 'Gsm8kTool'",
        ),
        ([{**ENTRY, "config": {"x": "${oc.env:INF_NOT_SET}"}}], r"\.config: .*INF_NOT_SET"),
        ([{"class_path": GSM8K}], r"tools\[0\]: Gsm8kTool cannot be created with this tool_schema"),
        ([{"type": "mcp", "command": "x", "headers": {}}], r"\.headers: only a server with url"),
        (
            [{"type": "mcp", "command": "x", "include": ["a"], "exclude": ["b"]}],
            r"tools\[0\]: give include or exclude, not both",
        ),
        (
            [{"class_name": "a.B", "config": {"type": "mcp"}, "mcp": {}}],
            r"write an entry with type",
        ),
    ],
)
def test_faults_are_named_by_file_entry_and_field(written, content, says):
    path = written(content)
    with pytest.raises(ToolError, match=says) as refused:
        load_tools(path)
    assert str(refused.value).startswith(str(path))
    with pytest.raises(ToolError, match="none.yaml: it cannot be read"):
        load_tools(path.with_name("none.yaml"))


def test_an_mcp_entry_without_the_package_says_what_to_install(written, monkeypatch):
    for module in ("mcp", "_inf.tools.mcp_server", "_inf.tools.mcp_transport"):
        monkeypatch.setitem(sys.modules, module, None)
    path = written([{"type": "mcp", "command": "x"}])
    with pytest.raises(ToolError, match=r"tools\[0\]: .*pip install 'inf-engine\[mcp\]'"):
        load_tools(path)
