"""JSON schemas, rewritten so that xgrammar enforces all of what they say.

In: a schema that is valid, draft 2020-12. Out: another one for xgrammar 0.1.27, or a `ConfigError`
that names the path of what cannot be enforced. xgrammar (`cpp/json_schema_converter.cc`) passes
over what it does not know and, beside `enum`, `anyOf` or `$ref`, over all the rest; it also takes a
property's name for a piece of its grammar. The keywords used here do what they should.

Narrower than the schema, never wider: an object has its declared properties only, in their order;
items in `prefixItems` are all there; where no `type` is given, the keywords say it.
"""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import unquote

from _inf.errors import ConfigError, did_you_mean
from _inf.request.scalars import Node, integers, key_path, spelt, string, unenforced

ANNOTATIONS = frozenset(
    "$comment $defs $id $schema default definitions deprecated description discriminator examples "
    "readOnly title writeOnly".split()
)
BRANCHES = ("$ref", "allOf", "anyOf", "oneOf")
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
OF_TYPE = {
    "null": (),
    "boolean": (),
    "integer": BOUNDS,
    "number": BOUNDS,
    "string": ("pattern", "format", "minLength", "maxLength"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": tuple("properties required additionalProperties minProperties maxProperties".split()),
}
KNOWN = {*ANNOTATIONS, *BRANCHES, "type", "enum", "const"}.union(*OF_TYPE.values())
BESIDE_NO_LIST = ("format", "items", "prefixItems", "properties", "additionalProperties")
INSTEAD = {
    "multipleOf": "list the values in an enum",
    "not": "say what is allowed",
    "patternProperties": "declare the properties by name",
    "propertyNames": "declare the properties by name",
    "unevaluatedItems": "use items",
    "unevaluatedProperties": "use additionalProperties",
}
MOST_REFS = 8  # followed to see whether alternatives differ


def rewritten(schema: Any) -> Node:
    """Errors begin with `json_schema` and the path."""
    return _Schema(schema).rewritten()


def _any_of(nodes: list[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else {"anyOf": nodes}


class _Schema:
    """One schema on its way; `targets` are what its `$ref`s point at, by pointer, rewritten."""

    def __init__(self, root: Any) -> None:
        from jsonschema import Draft202012Validator

        self.root = root
        self.validator = Draft202012Validator(root)
        self.names: dict[str, str] = {}
        self.targets: dict[str, Node] = {}

    def rewritten(self) -> Node:
        node = self.node(self.root, "json_schema")
        ending = self.ending()
        for pointer, name in self.names.items():
            if name not in ending:
                raise ConfigError(f"json_schema.$ref: nothing finite matches {pointer!r}.")
        if not self.ends(node, ending):
            raise ConfigError("json_schema: nothing finite matches it.")
        return {"$defs": self.targets, **node} if self.targets else node

    def node(self, schema: Any, path: str) -> Node:
        if schema is False:
            raise ConfigError(f"{path}: nothing matches false; leave it out.")
        if schema is True:
            return {}
        for word in schema:
            if word not in KNOWN or (word == "$id" and path != "json_schema"):
                hint = did_you_mean(word, KNOWN)[2:] or "leave it out"
                raise unenforced(key_path(path, word), INSTEAD.get(word, hint))
        words = {word: value for word, value in schema.items() if word not in ANNOTATIONS}
        if "enum" in words or "const" in words:
            for other in words.keys() & {*BRANCHES, *BESIDE_NO_LIST}:
                raise unenforced(key_path(path, other), "leave it out: the values are listed")
            return self.listed(schema, path)
        for branch in BRANCHES:
            if branch in words:
                for other in words.keys() - {branch}:
                    raise unenforced(key_path(path, other), f"move it into what {branch} names")
                return self.branch(branch, words[branch], key_path(path, branch))
        return _any_of([self.typed(kind, words, path) for kind in _types(words)])

    def listed(self, schema: Node, path: str) -> Node:
        """Whatever else the schema says only picks among the values."""
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        judge = self.validator.evolve(schema=schema)
        values = [value for value in values if judge.is_valid(value)]
        if not values:
            raise ConfigError(f"{path}: none of the listed values matches the rest of the schema.")
        return {"enum": values}

    def branch(self, branch: str, value: Any, path: str) -> Node:
        if branch == "$ref":
            return self.ref(value, path)
        if branch == "allOf" and len(value) > 1:
            raise unenforced(path, "write the schemas as one")
        cases = [self.node(case, key_path(path, number)) for number, case in enumerate(value)]
        if branch == "oneOf":
            for number, case in enumerate(cases):
                if not all(self.apart(case, other) for other in cases[:number]):
                    raise unenforced(
                        key_path(path, number),
                        "use anyOf, or alternatives that differ in type or in a required property",
                    )
        return _any_of(cases)

    def ref(self, pointer: str, path: str) -> Node:
        if pointer not in self.names:
            target = self.target(pointer, path)
            self.names[pointer] = name = str(len(self.names))
            self.targets[name] = {}  # keeps the order, and is there while the target is read
            at = "".join(f".{key}" for key in pointer[2:].split("/") if key)
            self.targets[name] = self.node(target, f"json_schema{at}")
        return {"$ref": f"#/$defs/{self.names[pointer]}"}

    def target(self, pointer: str, path: str) -> Any:
        if pointer != "#" and not pointer.startswith("#/"):
            raise unenforced(path, "point into the schema itself, like #/$defs/name")
        target = self.root
        for key in pointer[2:].split("/") if pointer != "#" else ():
            key = unquote(key).replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(key) if isinstance(target, list) else key]
            except (KeyError, IndexError, TypeError, ValueError):
                raise ConfigError(f"{path}: there is nothing at {pointer!r}.") from None
        if not isinstance(target, dict | bool):
            raise ConfigError(f"{path}: what is at {pointer!r} is not a schema.")
        return target

    def typed(self, kind: str, words: Node, path: str) -> Node:
        """A schema of one type; the keywords of other types say nothing about it."""
        words = {word: value for word, value in words.items() if word in OF_TYPE[kind]}
        if kind == "integer":
            return _any_of(integers(words, path))
        if kind == "number" and words:
            raise unenforced(key_path(path, next(iter(words))), "use integer, or list the values")
        if kind == "string":
            return string(words, path)
        if kind == "array":
            return self.array(words, path)
        if kind == "object":
            return self.object(words, path)
        return {"type": kind}

    def array(self, words: Node, path: str) -> Node:
        if words.get("uniqueItems"):
            raise unenforced(key_path(path, "uniqueItems"), "leave it out")
        least, most = int(words.get("minItems", 0)), words.get("maxItems", math.inf)
        prefix = words.get("prefixItems", [])[: None if most == math.inf else int(most)]
        items = words.get("items", not prefix or least > len(prefix))
        if items is False or most == len(prefix):
            items, most = False, min(most, len(prefix))
        if least > most:
            raise ConfigError(f"{path}: minItems, {least}, is above the {most} items allowed.")
        node: Node = {"type": "array", "items": False}
        if prefix:
            node["prefixItems"] = [
                self.node(each, key_path(path, "prefixItems", n)) for n, each in enumerate(prefix)
            ]
        if items is not False:
            node["items"] = self.node(items, key_path(path, "items"))
            node |= {"minItems": least} if least else {}
            node |= {} if most == math.inf else {"maxItems": int(most)}
        return node

    def object(self, words: Node, path: str) -> Node:
        required = words.get("required", [])
        others = words.get("additionalProperties", "properties" not in words)
        if not words.get("properties") and not required and others is not False:
            return self.dictionary(words, others, path)
        named = dict(words.get("properties", {}))
        if named and isinstance(others, dict) and others:
            do = "declare every property: another one could repeat a declared one"
            raise unenforced(key_path(path, "additionalProperties"), do)
        for name in required:
            if name not in named and words.get("additionalProperties") is False:
                raise ConfigError(f"{key_path(path, 'required')}: {name!r} is not in properties.")
            named.setdefault(name, others or True)
        least, most = words.get("minProperties", 0), words.get("maxProperties", math.inf)
        if least > len(named) or most < len(required):
            raise ConfigError(f"{path}: no number of properties matches it.")
        if least == len(named):
            required = list(named)
        elif most == len(required):
            named = {name: value for name, value in named.items() if name in required}
        elif least > len(required) or most < len(named):
            raise unenforced(path, "make properties required instead of counting them")
        return {
            "type": "object",
            "properties": {
                spelt(name): self.node(value, key_path(path, "properties", name))
                for name, value in named.items()
            },
            "required": [spelt(name) for name in required],
            "additionalProperties": False,
        }

    def dictionary(self, words: Node, values: Any, path: str) -> Node:
        """Any property names, the same schema for all values; a name may come twice."""
        if words.get("minProperties", 0) > 1:
            raise unenforced(key_path(path, "minProperties"), "name the required properties")
        node: Node = {"type": "object"}
        for word in ("minProperties", "maxProperties"):
            if word in words:
                node[word] = int(words[word])
        if node.get("minProperties", 0) > node.get("maxProperties", math.inf):
            raise ConfigError(f"{path}: no number of properties matches it.")
        if node.get("maxProperties") == 0:
            return {"type": "object", "additionalProperties": False}
        return {**node, "additionalProperties": self.node(values, f"{path}.additionalProperties")}

    def apart(self, one: Node, other: Node, depth: int = 0) -> bool:
        """Whether it is plain that nothing matches both."""
        one, other = self.followed(one), self.followed(other)
        if depth > MOST_REFS or not one or not other:
            return False
        if "anyOf" in one:
            return all(self.apart(case, other, depth + 1) for case in one["anyOf"])
        if "anyOf" in other:
            return self.apart(other, one, depth)
        if not _kinds(one) & _kinds(other):
            return True
        if "enum" in one and "enum" in other:
            return not any(_same(a, b) for a in one["enum"] for b in other["enum"])
        shared = {*one.get("required", ())} & {*other.get("required", ())}
        return any(
            self.apart(one["properties"][name], other["properties"][name], depth + 1)
            for name in shared
        )

    def followed(self, node: Node) -> Node:
        for _ in range(MOST_REFS):
            if "$ref" not in node:
                return node
            node = self.targets[node["$ref"].rpartition("/")[2]]
        return {}

    def ending(self) -> set[str]:
        """The targets that something finite matches; the others would go on for ever."""
        ending: set[str] = set()
        while more := {
            n for n in self.targets.keys() - ending if self.ends(self.targets[n], ending)
        }:
            ending |= more
        return ending

    def ends(self, node: Node, ending: set[str]) -> bool:
        if "$ref" in node:
            return node["$ref"].rpartition("/")[2] in ending
        if "anyOf" in node:
            return any(self.ends(case, ending) for case in node["anyOf"])
        needed = [node["properties"][name] for name in node.get("required", ())]
        needed += node.get("prefixItems", [])
        if node.get("minItems", 0) > len(node.get("prefixItems", ())):
            needed.append(node["items"])
        if node.get("minProperties", 0):
            needed.append(node["additionalProperties"])
        return all(self.ends(each, ending) for each in needed)


def _types(words: Node) -> list[str]:
    if "type" in words:
        return [words["type"]] if isinstance(words["type"], str) else words["type"]
    implied = [kind for kind, own in OF_TYPE.items() if kind != "integer" and {*own} & {*words}]
    return implied or [kind for kind in OF_TYPE if kind != "integer"]


def _kinds(node: Node) -> set[str]:
    """An integer is a number."""
    if "enum" not in node:
        return {node["type"].replace("integer", "number")}
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    names |= {dict: "object", type(None): "null"}
    return {names[type(value)] for value in node["enum"]}


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)
