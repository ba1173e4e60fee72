"""JSON schemas under which answers must be valid, grouped by tested feature, and schemas that must be refused."""


def obj(properties, required=None, **more):
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


def arr(items, low=0, high=3, **more):
    return {"type": "array", "items": items, "minItems": low, "maxItems": high, **more}


def text(low=0, high=12, **more):
    return {"type": "string", "minLength": low, "maxLength": high, **more}


def whole(low=None, high=None, **more):
    bounds = {key: value for key, value in (("minimum", low), ("maximum", high)) if value is not None}
    return {"type": "integer", **bounds, **more}


def number(**bounds):
    return {"type": "number", **bounds}


BOOL, NULL, SHORT = {"type": "boolean"}, {"type": "null"}, text()
POINT = obj({"x": whole(-9, 9), "y": whole(-9, 9)})

TYPES = {
    "boolean": BOOL,
    "null": NULL,
    "integer": whole(-1000, 1000),
    "number": number(minimum=-10, maximum=10),
    "string": SHORT,
    "empty string": text(0, 0),
    "one character": text(1, 1),
    "long string": text(30, 60),
    "array": arr(BOOL),
    "object": obj({"a": BOOL}),
    "string or null": {"type": ["string", "null"], "maxLength": 8},
    "integer or boolean": {"type": ["integer", "boolean"], "minimum": 0, "maximum": 5},
    "integer or array": {"type": ["integer", "array"], "minimum": 0, "maximum": 5, "items": BOOL, "maxItems": 2},
    "empty object": obj({}),
    "empty array": arr(BOOL, 0, 0),
    "unicode key": obj({"größe": BOOL, "名前": NULL, "🦜": BOOL}),
    "key with quotes": obj({'a "b"': BOOL, "c\\d": NULL, "e\nf": BOOL}),
    "key with spaces": obj({"first name": SHORT, " ": BOOL}),
    "empty key": obj({"": BOOL}),
    "true in property": obj({"a": BOOL, "b": whole(0, 1)}),
    "title and description": {"title": "T", "description": "D", **obj({"a": BOOL}), "examples": [{"a": True}]},
    "default": obj({"a": {"type": "integer", "default": 3, "minimum": 0, "maximum": 9}}),
    "draft 7": {"$schema": "http://json-schema.org/draft-07/schema#", **obj({"a": BOOL})},
    "draft 2020-12": {"$schema": "https://json-schema.org/draft/2020-12/schema", **obj({"a": BOOL})},
    "comment": {"$comment": "nothing", "type": "boolean"},
    "id": {"$id": "https://example.org/a", "type": "boolean"},
}

BOUNDS = {
    **{f"minimum {low} maximum {high}": whole(low, high) for low, high in
       [(0, 0), (0, 9), (1, 12), (-5, 5), (-100, -90), (99, 101), (1000, 1999), (2147483600, 2147483700), (7, 13), (0, 255)]},
    **{f"exclusive {low} {high}": {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high} for low, high in
       [(0, 2), (-3, 3), (9, 101), (-1, 1)]},
    **{f"number {low} {high}": number(minimum=low, maximum=high) for low, high in
       [(0, 1), (-1.5, 1.5), (0.25, 0.75), (99.5, 100.5), (-0.001, 0.001), (3, 3.5)]},
    **{f"number exclusive {low} {high}": number(exclusiveMinimum=low, exclusiveMaximum=high) for low, high in
       [(0, 1), (-2, 2), (0.5, 0.6), (10, 11)]},
    "minimum only": obj({"n": whole(5)}),
    "maximum only": obj({"n": whole(None, 5)}),
    **{f"multiple of {of}": whole(0, 200, multipleOf=of) for of in (2, 5, 7, 10, 25)},
    **{f"string of {low} to {high}": text(low, high) for low, high in [(0, 1), (1, 2), (2, 2), (3, 5), (5, 9), (10, 20), (40, 40)]},
    **{f"array of {low} to {high}": arr(whole(0, 9), low, high) for low, high in [(0, 1), (1, 1), (2, 4), (3, 3), (5, 6), (10, 12)]},
    "no more than 2 properties": {"type": "object", "additionalProperties": whole(0, 9), "maxProperties": 2},
    "at least 1 property": {"type": "object", "additionalProperties": BOOL, "minProperties": 1, "maxProperties": 2},
}

ENUMS = {
    "strings": {"enum": ["red", "green", "blue"]},
    "numbers": {"enum": [1, 2.5, -3]},
    "mixed": {"enum": ["a", 1, True, None, [1, 2], {"k": "v"}]},
    "one": {"enum": ["only"]},
    "prefixes": {"enum": ["a", "ab", "abc", "abcd"]},
    "unicode": {"enum": ["é", "日本", "🦜🦜"]},
    "escapes": {"enum": ['"', "\\", "\n", "\t", "/"]},
    "empty string": {"enum": ["", "x"]},
    "typed": {"type": "string", "enum": ["on", "off"]},
    "filtered by type": {"type": "string", "enum": ["a", 1, "b"]},
    "many": {"enum": [f"value-{number}" for number in range(500)]},
    "const string": {"const": "fixed"},
    "const number": {"const": 42},
    "const null": {"const": None},
    "const object": {"const": {"a": [1, {"b": None}]}},
    "const array": {"const": [1, "two", False]},
    "const in object": obj({"kind": {"const": "cat"}, "age": whole(0, 30)}),
    "const boolean": {"const": False},
    "enum in array": arr({"enum": ["n", "e", "s", "w"]}, 2, 4),
    "enum of booleans": {"enum": [True, False]},
}

PATTERNS = {
    f"pattern {pattern}": {"type": "string", "pattern": pattern} for pattern in [
        "^[a-z]{3}$", "^[A-Z][a-z]{2,6}$", "^\\d{4}$", "^\\d{3}-\\d{4}$", "^(yes|no|maybe)$", "^#[0-9a-fA-F]{6}$",
        "^[a-z]+@[a-z]+\\.com$", "^\\$[0-9]{1,4}\\.[0-9]{2}$", "^a*b{2}c?$", "^[^0-9]{4}$", "^[\\w]{5}$", "^\\s?x\\s?$",
        "^(ab|cd){2,3}$", "^v[0-9]{1,2}\\.[0-9]{1,2}\\.[0-9]{1,2}$", "^\\+?[0-9]{7,9}$", "^[aeiou]{2}[^aeiou\"\\\\]{2}$",
        "^\\[[a-z]{2}\\]$", "^x{10}$", "^([0-9]{2}:){2}[0-9]{2}$", "^(GET|POST) /[a-z]{0,8}$",
    ]
} | {
    "pattern without anchors": {"type": "string", "pattern": "cat", "maxLength": 20},
    "pattern and length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 4, "maxLength": 6},
    "pattern in object": obj({"code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"}}),
    "pattern in array": arr({"type": "string", "pattern": "^[01]{4}$"}, 1, 3),
}

FORMATS = {f"format {name}": obj({"value": {"type": "string", "format": name}}) for name in
           ["date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"]}

NESTED = {
    "object in object": obj({"outer": obj({"inner": obj({"n": whole(0, 9)})})}),
    "array of objects": arr(POINT, 1, 3),
    "array of arrays": arr(arr(whole(0, 9), 1, 2), 1, 3),
    "deep arrays": arr(arr(arr(arr(BOOL, 1, 1), 1, 1), 1, 1), 1, 1),
    "object of arrays": obj({"a": arr(whole(0, 3)), "b": arr(SHORT, 0, 2), "c": arr(BOOL)}),
    "ten levels": (lambda build: build(build, 10))(lambda build, depth: obj({"v": build(build, depth - 1)}) if depth else BOOL),
    "many properties": obj({f"p{number}": whole(0, 9) for number in range(20)}),
    "person": obj({"name": text(1, 15), "age": whole(0, 120), "tags": arr(text(1, 6), 0, 2), "home": POINT}),
    "weather": obj({"activity": text(1, 20), "temperature": number(minimum=-40, maximum=60), "unit": {"enum": ["celsius", "fahrenheit"]}}),
    "rows": obj({"columns": arr(text(1, 5), 1, 2), "rows": arr(arr({"type": ["integer", "null"], "minimum": 0, "maximum": 9}, 1, 2), 1, 2)}),
    "matrix": arr(arr(number(minimum=0, maximum=1), 2, 2), 2, 2),
    "map": {"type": "object", "additionalProperties": whole(0, 9), "maxProperties": 3},
    "map of objects": {"type": "object", "additionalProperties": POINT, "maxProperties": 2},
    "optional": obj({"a": BOOL, "b": BOOL, "c": BOOL}, ["b"]),
    "all optional": obj({"a": BOOL, "b": whole(0, 5)}, []),
    "required in another order": obj({"a": BOOL, "b": BOOL, "c": BOOL}, ["c", "a"]),
    "required without a schema": {"type": "object", "properties": {"a": BOOL}, "required": ["a", "b"],
                                  "additionalProperties": whole(0, 9), "maxProperties": 3},
    "tuple": {"type": "array", "prefixItems": [whole(0, 9), SHORT, BOOL], "items": False, "minItems": 3},
    "tuple and rest": {"type": "array", "prefixItems": [SHORT], "items": whole(0, 9), "minItems": 2, "maxItems": 4},
    "short tuple": {"type": "array", "prefixItems": [BOOL, BOOL, BOOL], "minItems": 1, "maxItems": 2},
    "pattern properties": {"type": "object", "patternProperties": {"^n[0-9]$": whole(0, 9)}, "additionalProperties": False,
                           "minProperties": 1, "maxProperties": 2},
    "properties and more": {"type": "object", "properties": {"a": BOOL}, "required": ["a"],
                            "additionalProperties": whole(0, 9), "maxProperties": 2},
}

REFERENCES = {
    "definition": {"$defs": {"p": POINT}, **obj({"from": {"$ref": "#/$defs/p"}, "to": {"$ref": "#/$defs/p"}})},
    "definitions of draft 7": {"definitions": {"p": POINT}, **obj({"at": {"$ref": "#/definitions/p"}})},
    "reference alone": {"$defs": {"p": POINT}, "$ref": "#/$defs/p"},
    "chain": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": whole(0, 3)}, "$ref": "#/$defs/a"},
    "property": {"type": "object", "properties": {"a": whole(0, 3), "b": {"$ref": "#/properties/a"}}, "required": ["a", "b"],
                 "additionalProperties": False},
    "list": {"$defs": {"node": obj({"v": whole(0, 9), "next": {"anyOf": [NULL, {"$ref": "#/$defs/node"}]}})}, "$ref": "#/$defs/node"},
    "tree": {"$defs": {"t": obj({"v": whole(0, 9), "kids": arr({"$ref": "#/$defs/t"}, 0, 1)})}, "$ref": "#/$defs/t"},
    "reference to the root": obj({"v": whole(0, 9), "next": {"anyOf": [NULL, {"$ref": "#"}]}}),
    "in an array": {"$defs": {"c": {"enum": ["x", "y"]}}, **arr({"$ref": "#/$defs/c"}, 2, 2)},
    "escaped names": {"$defs": {"a/b": BOOL, "c~d": NULL}, **obj({"p": {"$ref": "#/$defs/a~1b"}, "q": {"$ref": "#/$defs/c~0d"}})},
    "pydantic": {"$defs": {"Colour": {"enum": ["red", "blue"], "title": "Colour", "type": "string"}}, "title": "Car",
                 **obj({"name": {"title": "Name", "type": "string", "maxLength": 9}, "colour": {"$ref": "#/$defs/Colour"},
                        "doors": {"anyOf": [whole(2, 5), NULL], "title": "Doors"}})},
    "expression": {"$defs": {"e": {"anyOf": [whole(0, 9), obj({"op": {"enum": ["+", "-"]}, "l": {"$ref": "#/$defs/e"}, "r": {"$ref": "#/$defs/e"}})]}},
                   "$ref": "#/$defs/e"},
    "reference with siblings": {"$defs": {"n": whole(0, 99)}, **obj({"v": {"$ref": "#/$defs/n", "description": "a number"}})},
}

COMBINED = {
    "any of types": {"anyOf": [whole(0, 9), SHORT, BOOL]},
    "any of objects": {"anyOf": [obj({"a": BOOL}), obj({"b": whole(0, 9)})]},
    "any of with null": {"anyOf": [POINT, NULL]},
    "any of one": {"anyOf": [BOOL]},
    "any of ranges": {"anyOf": [whole(0, 3), whole(10, 13)]},
    "any of nested": {"anyOf": [{"anyOf": [NULL, BOOL]}, {"anyOf": [whole(0, 1), text(1, 3)]}]},
    "any of in array": arr({"anyOf": [whole(0, 9), NULL]}, 2, 4),
    "any of in object": obj({"v": {"anyOf": [whole(0, 9), text(1, 4), arr(BOOL, 1, 2)]}}),
    "any of beside properties": {"type": "object", "properties": {"a": BOOL}, "required": ["a"], "additionalProperties": False,
                                 "anyOf": [{"properties": {"a": {"const": True}}}, {"properties": {"a": {"const": False}}}]},
    "tagged union": {"anyOf": [obj({"kind": {"const": "circle"}, "r": whole(1, 9)}),
                               obj({"kind": {"const": "square"}, "side": whole(1, 9)})]},
    "one of types": {"oneOf": [whole(0, 9), BOOL]},
    "one of consts": {"oneOf": [{"const": "a"}, {"const": "b"}, {"const": 3}]},
    "one of null": {"oneOf": [NULL, text(1, 5)]},
    "one of tagged": {"oneOf": [obj({"t": {"const": "x"}, "v": whole(0, 9)}), obj({"t": {"const": "y"}, "v": text(1, 4)})]},
    "one of arrays and objects": {"oneOf": [arr(BOOL, 1, 2), obj({"a": BOOL})]},
    "one of in object": obj({"v": {"oneOf": [NULL, whole(0, 9)]}}),
    "all of bounds": {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 7}]},
    "all of lengths": {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4}]},
    "all of objects": {"allOf": [{"type": "object", "properties": {"a": BOOL}, "required": ["a"]},
                                 {"type": "object", "properties": {"b": whole(0, 9)}, "required": ["b"]}],
                       "maxProperties": 2},
    "all of one": {"allOf": [BOOL]},
    "all of a reference": {"$defs": {"n": {"type": "integer", "minimum": 0}}, "allOf": [{"$ref": "#/$defs/n"}, {"maximum": 20}]},
    "all of and any of": {"allOf": [{"type": "integer", "minimum": 0}], "anyOf": [{"maximum": 3}, {"minimum": 7, "maximum": 9}]},
    "enum and pattern": {"allOf": [{"enum": ["abc", "xyz", "123"]}, {"type": "string", "pattern": "^[a-z]+$"}]},
    "nullable number": {"anyOf": [number(minimum=0, maximum=1), NULL]},
}

# Combinations of keywords: each element, with its bounds, is put into each of several schemas.
ELEMENTS = {
    "boolean": BOOL, "integer": whole(1, 20), "negative": whole(-20, -1), "fraction": number(minimum=0, maximum=2),
    "word": text(1, 8), "choice": {"enum": ["up", "down", "left"]}, "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{2}$"},
    "date": {"type": "string", "format": "date"}, "point": POINT, "nothing": NULL,
}
AROUND = {
    "list of": lambda element: arr(element, 1, 2),
    "maybe": lambda element: obj({"id": whole(0, 9), "value": element}, ["id"]),
    "or nothing": lambda element: obj({"value": {"anyOf": [element, {"const": "none"}]}}),
    "pair of": lambda element: {"type": "array", "prefixItems": [element, element], "items": False, "minItems": 2},
    "shared": lambda element: {"$defs": {"e": element}, **obj({"left": {"$ref": "#/$defs/e"}, "right": {"$ref": "#/$defs/e"}})},
}
COMBINATIONS = {f"{around} {name}": build(element) for around, build in AROUND.items() for name, element in ELEMENTS.items()}

# These schemas do not limit the length. An answer may reach the token limit, but a complete answer is valid.
OPEN = {
    "open string": {"type": "string"},
    "open object": {"type": "object"},
    "open array": {"type": "array", "items": whole(0, 9)},
    "open integer": {"type": "integer"},
    "open number": {"type": "number"},
    "anything": {},
    "open person": obj({"name": {"type": "string"}, "friends": {"type": "array", "items": {"type": "string"}}}),
}

GROUPS = {
    "types": TYPES, "bounds": BOUNDS, "enums": ENUMS, "patterns": PATTERNS, "formats": FORMATS, "nested": NESTED,
    "references": REFERENCES, "combined": COMBINED, "combinations": COMBINATIONS, "open": OPEN,
}
CASES = {f"{group}: {name}": schema for group, schemas in GROUPS.items() for name, schema in schemas.items()}

def is_endless(schema):
    """Returns true if a valid start of a text can always be continued."""
    if isinstance(schema, list):
        return any(map(is_endless, schema))
    if not isinstance(schema, dict):
        return schema is True
    names_more = isinstance(schema.get("additionalProperties"), dict) or "number" in str(schema.get("type"))
    open_pattern = any(sign in schema.get("pattern", "") for sign in "+*") and "maxLength" not in schema
    open_format = schema.get("format") in ("email", "hostname", "duration")
    return names_more or open_pattern or open_format or any(
        is_endless(value) for key, value in schema.items() if key not in ("const", "enum")
    )


# The server refuses keywords that it cannot enforce, by name, and never ignores them.
REFUSED = {
    "not": ({"not": {"type": "string"}}, "not"),
    "if": ({"type": "object", "if": {}, "then": {}}, "if"),
    "uniqueItems": (arr(whole(0, 9), uniqueItems=True), "uniqueItems"),
    "contains": (arr(whole(0, 9), contains={"const": 1}), "contains"),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    "propertyNames": ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
    "unknown format": ({"type": "string", "format": "strange"}, "format"),
    "unknown type": ({"type": "strange"}, "strange"),
    "remote reference": ({"$ref": "https://example.org/x"}, "example.org"),
    "missing definition": ({"$ref": "#/$defs/none"}, "none"),
    "contradiction": (whole(5, 3), "minimum"),
    "look-around": ({"type": "string", "pattern": "^(?=a)b$"}, "look-ahead"),
    "overlapping oneOf": ({"oneOf": [whole(0, 5), whole(3, 9)]}, "oneOf"),
    "false": (False, "false"),
}
