"""Schemas and regexes that grammars are tested with, the same ones in every run."""

A = {"type": "integer"}
TREE = {
    "$defs": {"tree": {"type": "object", "properties": {"kids": {"$ref": "#/$defs/list"}}},
              "list": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "$ref": "#/$defs/tree",
}  # fmt: skip
SHAPES = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"const": "a"}, "x": A}, "required": ["kind"]},
        {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
    ]
}
URI = {"type": "string", "format": "uri", "maxLength": 30}
# Schemas that are enforced, with texts that match, and some that do not. What else a grammar would
# let through, random walks find.
SCHEMAS = [
    ({"enum": ["é", 'a"b\\', 1.5, None]}, ['"é"', '"a\\"b\\\\"', "1.5"], []),
    ({**A, "minimum": 115, "maximum": 132}, ["115", "132"], ["114", "133", "15"]),
    ({"type": "number", "exclusiveMinimum": -8, "exclusiveMaximum": 2.5}, ["-7.25", "2"], ["3"]),
    ({"type": "string", "minLength": 2, "maxLength": 4}, ['"ab"', '"中é😀"'], ['"\t"', '"\x01"']),
    ({"type": "string", "pattern": '^["x][^a]$'}, ['"\\"1"', '"xé"'], ['"xa"', '"\\""']),
    ({"type": "string", "pattern": "a.c", "maxLength": 3}, ['"a中c"'], ['"a"c"', '"ac"']),
    ({"type": "string", "format": "date"}, ['"2024-02-28"'], ['"2024-02-31"']),
    (URI,
     ['"https://a.b:80/c%20?d=e/#f"', '"urn:isbn:0451450523"', '"file:///etc"',
      '"http://localhost:11434/v1"', '"http://127.0.0.1:65535"'],
     ['"http://a:65536"', '"http://"', '"a b"', '"//a.b"', '"https://a..b"',
      f'"https://a.b/{"c" * 30}"']),
    ({**URI, "pattern": "^https:"}, ['"https://a.b"'], ['"http://a.b"', '"https:"']),
    ({"type": "string", "format": "path"}, ['"../a b"', '""'], []),
    ({"type": "array", "items": A, "minItems": 2}, ["[1,2]"], []),
    ({"type": "array", "prefixItems": [A, {"type": "null"}], "items": False, "maxItems": 1},
     ["[1]"], ["[1,null]"]),
    ({"type": "object", "properties": {"a": A, "b": A}, "required": ["b"]},
     ['{"b":1}', '{"a":1,"b":2}'], ['{"b":1,"c":2}']),
    ({"type": "object", "properties": {"a": A}, "required": ["a"], "additionalProperties": A,
      "minProperties": 2, "maxProperties": 3}, ['{"a":1,"b":1}'], ['{"a":1}']),
    ({"type": "number", "multipleOf": 0.5}, ["0.5", "12", "7.0"], []),
    ({"allOf": [{"type": "object", "properties": {"a": A}, "required": ["a"]},
                {"properties": {"b": A}, "required": ["b"]}]}, ['{"a":1,"b":2}'], []),
    ({"type": "object", "patternProperties": {"^a": A, "^b[0-9]$": {"maximum": 3}},
      "additionalProperties": False}, ['{"ab":5,"b3":3}', "{}"], ['{"a":"x"}', '{"b3":4}']),
    ({"type": "object", "properties": {"a": A}, "required": ["a"],
      "additionalProperties": {"type": "null"}},
     ['{"a":1}', '{"a":1,"x":null}'], ['{"a":1,"a":null}']),
    ({"type": "object", "properties": {"a": A}, "additionalProperties": True},
     ['{"a":1,"b":2}'], ['{"b":2,"a":1}']),
    ({"$defs": {"a": A}, "$ref": "#/$defs/a", "maximum": 3}, ["3"], []),
    (TREE, ['{"kids":[{},{"kids":[]}]}', "{}"], []),
    (SHAPES, ['{"kind":"a","x":1}', '{"kind":"b"}'], []),
    (True, ['{"a":[null,{}]}', "1"], []),
]  # fmt: skip


REGEXES = [
    r"[A-Z][a-z]{1,9}( [A-Z][a-z]{1,9})?",
    r"^-?(0|[1-9]\d{0,4})(\.\d{1,2})?$",
    r"(?P<year>19|20)\d\d-(0[1-9]|1[0-2])",
    r"[^\s@]{1,8}@[a-z]{1,8}\.(com|org)",
    r"(?:red|green|blue)(?:, (?:red|green|blue)){0,3}",
    r"\w{1,6}\W\w{1,6}?",
    r"Answer: .{1,20}",
    r"[\[\]^\\-]{1,6}",
    r"(?:\+49|0)[1-9]\d{2,6}|€[éèà]{1,3}",
    r"\"(?:\\.|[^\"\\]){0,10}\"",
    r"(?:ab|)*x",
]


# Each once took minutes to days, ended the process or held all its threads.
HOSTILE_REGEXES = {
    "unclosed classes": "[" * 50_000,
    "unclosed classes in a comment": f"(?#{'[' * 50_000})a",
    "thousands of folded classes": "(?i:[\0-\U0010ffff])" * 10_000,
    "thousands of optional classes": r"\W?" * 20_000,
    "a count of 5,000 digits": f"a{{{'9' * 5_000}}}",
}
HOSTILE_SCHEMAS = {
    "a name that backtracks": {
        "properties": {"a" * 40 + "!": {}},
        "patternProperties": {"^(a+)+$": {}},
        "type": "object",
    },
    "500 patterns of names": {
        "patternProperties": {f"^a{number}[a-z]*$": {} for number in range(500)}
    },
    "30,000 required names": {"type": "object", "required": [f"p{n}" for n in range(30_000)]},
    "30,000 names that may come": {"properties": {f"p{n}": True for n in range(30_000)}},
    "a constant of 30,000 names": {"const": {f"p{n}": n for n in range(30_000)}},
    "30,000 required values of several types": {"required": [[], 1, "a"] * 10_000},
    "paths of a gigabyte": {
        "$defs": {
            name: {"properties": {f"p{n}": True for n in range(1_500)}}
            for name in ("x" * 400_000, "y" * 400_000)
        }
    },
    "patterns in a thousand places": {
        "properties": {
            f"p{n}": {"type": "string", "pattern": f"(?i:[\0-\U0010ffff])?{n}"}
            for n in range(1_500)
        }
    },
    **{name: {"type": "string", "pattern": text} for name, text in HOSTILE_REGEXES.items()},
}
