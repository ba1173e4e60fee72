//! Closes the objects of a schema: they may have only the members that the schema names, unless the schema itself
//! decides about other members. TGI, OpenAI and llama.cpp do the same. JSON schema itself leaves objects open, and then
//! a model would go on inventing members.
//!
//! Entry point: [`close`]. Several schemas may describe one object together (`allOf`, or `$ref` or `anyOf` beside other
//! keywords). Such an object has the members of all these schemas, so it is closed as a whole: if one of the schemas
//! were closed alone, it would forbid the members of the others. A `$ref` in such a schema is changed to point to a
//! copy of its target that is not closed.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::GrammarError;

/// Keywords whose value is an object with one schema per name.
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Keywords whose value is a schema or a list of schemas, each of which is closed on its own. `allOf`, `anyOf` and
/// `oneOf` are handled apart; other keywords with schemas, such as `if`, are not closed.
const SCHEMAS: [&str; 7] =
    ["items", "additionalItems", "prefixItems", "additionalProperties", "contains", "propertyNames", "not"];

/// Keywords that decide by themselves which members an object may have.
const OPENNESS: [&str; 2] = ["additionalProperties", "unevaluatedProperties"];

/// The maximum number of members that are read or copied to close the objects that several schemas describe.
const MAX_MEMBERS: usize = 100_000;

/// The members of an object that are known so far.
#[derive(Debug, Default, Clone)]
struct Names {
    names: Vec<String>,
    known: HashSet<String>,
    /// True if the object stays open: a keyword such as `additionalProperties` decides about other members, or a `$ref`
    /// has no target in the schema.
    is_open: bool,
}

/// The state of closing one schema.
struct Closing<'a> {
    root: &'a Value,
    /// The names of the open copies, by the `$ref` to the original.
    copies: HashMap<String, String>,
    new_copies: Vec<String>,
    num_members: Cell<usize>,
}

/// Returns the schema with its objects closed.
///
/// # Errors
/// When more than [`MAX_MEMBERS`] members would be read.
pub(super) fn close(schema: &Value) -> Result<Value, GrammarError> {
    let mut closed = schema.clone();
    let mut closing =
        Closing { root: schema, copies: HashMap::new(), new_copies: Vec::new(), num_members: Cell::new(0) };
    closing.close_whole(&mut closed);
    let mut definitions = Map::new();
    while let Some(place) = closing.new_copies.pop() {
        let (Some(target), Some(name)) = (target(schema, &place), closing.copies.get(&place).cloned()) else {
            continue;
        };
        let mut copy = target.clone();
        closing.leave_open(&mut copy);
        definitions.insert(name, copy);
    }
    if let (Value::Object(keywords), false) = (&mut closed, definitions.is_empty())
        && let Value::Object(all) = keywords.entry("$defs").or_insert_with(|| json!({}))
    {
        all.extend(definitions);
    }
    let given = closing.num_members.get();
    if given > MAX_MEMBERS {
        return Err(GrammarError::Invalid(format!(
            "the schema describes the same objects in too many places (allOf, anyOf, oneOf, $ref): merging them reads \
             more than {MAX_MEMBERS} members"
        )));
    }
    Ok(closed)
}

impl Names {
    fn add(&mut self, names: impl IntoIterator<Item = String>) {
        for name in names {
            if self.known.insert(name.clone()) {
                self.names.push(name);
            }
        }
    }
}

impl Closing<'_> {
    /// Closes a schema that is the whole description of a value, with everything inside it.
    fn close_whole(&mut self, schema: &mut Value) {
        let Value::Object(keywords) = schema else { return };
        self.close_within(keywords);
        let lists = ["anyOf", "oneOf"].into_iter().filter(|list| keywords.contains_key(*list)).collect::<Vec<_>>();
        let all = keywords.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
        let num_parts =
            usize::from(describes_object(keywords)) + usize::from(keywords.contains_key("$ref")) + all + lists.len();
        if describes_object(keywords) && num_parts == 1 {
            close_alone(keywords);
        } else if num_parts == 1 {
            for list in lists.into_iter().chain((all == 1).then_some("allOf")) {
                each(keywords, list, |branch| self.close_whole(branch));
            }
        } else if num_parts > 1 {
            self.close_together(keywords, &lists);
        }
    }

    /// Closes an object that several schemas describe.
    fn close_together(&mut self, keywords: &mut Map<String, Value>, lists: &[&str]) {
        let whole = Value::Object(keywords.clone());
        let (mut base, mut of_branches) = (Names::default(), Names::default());
        self.add_names(&whole, &mut base, &mut HashSet::new());
        for list in lists {
            for branch in whole.get(list).and_then(Value::as_array).into_iter().flatten() {
                self.add_all_names(branch, &mut of_branches, &mut HashSet::new());
            }
        }
        self.leave_parts_open(keywords);
        let says_what = ["type", "enum", "const"].iter().any(|keyword| keywords.contains_key(*keyword));
        if !base.names.is_empty() && !says_what {
            keywords.insert("type".to_owned(), json!("object"));
        }
        if base.is_open || of_branches.is_open {
            return;
        }
        keywords.remove("unevaluatedProperties");
        let has_new_names = of_branches.names.iter().any(|name| !base.known.contains(name));
        if let ([list], true) = (lists, has_new_names) {
            // The branches name members that the rest lacks, so each branch is closed on its own.
            let branches: Vec<Value> = whole.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
            let mut branches = branches.into_iter();
            each(keywords, list, |branch| {
                let mut names = Names::default();
                if let Some(original) = branches.next() {
                    self.add_all_names(&original, &mut names, &mut HashSet::new());
                }
                if let (Value::Object(keywords), true) = (branch, self.counts(base.names.len())) {
                    names.add(base.names.iter().cloned());
                    set_names(keywords, &names.names);
                }
            });
            return;
        }
        base.add(of_branches.names);
        if !base.names.is_empty() && self.counts(base.names.len()) {
            set_names(keywords, &base.names);
        }
    }

    /// Closes the objects inside a schema, but not the object that this schema describes together with other schemas.
    fn leave_open(&mut self, schema: &mut Value) {
        let Value::Object(keywords) = schema else { return };
        self.close_within(keywords);
        self.leave_parts_open(keywords);
    }

    fn leave_parts_open(&mut self, keywords: &mut Map<String, Value>) {
        for list in ["allOf", "anyOf", "oneOf"] {
            each(keywords, list, |part| self.leave_open(part));
        }
        if let Some(Value::String(place)) = keywords.get("$ref")
            && target(self.root, place).is_some_and(Value::is_object)
        {
            let copy = format!("#/$defs/{}", self.copy(place.clone()));
            keywords.insert("$ref".to_owned(), Value::from(copy));
        }
    }

    /// Returns the name of the open copy of the schema at `place`. If there is none yet, the copy is added to
    /// `new_copies`.
    fn copy(&mut self, place: String) -> String {
        let name = format!("hilo-open-{}", self.copies.len());
        let Self { copies, new_copies, .. } = self;
        copies
            .entry(place.clone())
            .or_insert_with(|| {
                new_copies.push(place);
                name
            })
            .clone()
    }

    /// Closes the schemas of members, items and definitions.
    fn close_within(&mut self, keywords: &mut Map<String, Value>) {
        for (keyword, value) in keywords {
            match value {
                Value::Object(schemas) if MAPS.contains(&keyword.as_str()) => {
                    schemas.values_mut().for_each(|schema| self.close_whole(schema));
                }
                Value::Array(schemas) if SCHEMAS.contains(&keyword.as_str()) => {
                    schemas.iter_mut().for_each(|schema| self.close_whole(schema));
                }
                schema if SCHEMAS.contains(&keyword.as_str()) => self.close_whole(schema),
                _ => {}
            }
        }
    }

    /// Adds the members that a schema names itself, by `$ref` and in all parts of `allOf`.
    fn add_names<'a>(&'a self, schema: &'a Value, names: &mut Names, seen: &mut HashSet<&'a str>) {
        let Value::Object(keywords) = schema else { return };
        let is_closing = keywords.get("unevaluatedProperties") == Some(&json!(false));
        let says_more = OPENNESS.iter().filter(|keyword| keywords.contains_key(**keyword)).count();
        names.is_open |= says_more > usize::from(is_closing) || has_patterns(keywords);
        let own = own_names(keywords);
        if !self.counts(own.len() + 1) {
            return;
        }
        names.add(own);
        if let Some(Value::String(place)) = keywords.get("$ref") {
            match target(self.root, place) {
                Some(target) if seen.insert(place) => self.add_all_names(target, names, seen),
                Some(_) => {}
                None => names.is_open = true,
            }
        }
        for part in keywords.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.add_all_names(part, names, seen);
        }
    }

    /// Adds `num_members` to the count of members. Returns false if the count exceeds [`MAX_MEMBERS`].
    fn counts(&self, num_members: usize) -> bool {
        self.num_members.set(self.num_members.get().saturating_add(num_members));
        self.num_members.get() <= MAX_MEMBERS
    }

    /// Adds the members that `add_names` adds, and those of all alternatives (`anyOf` and `oneOf`).
    fn add_all_names<'a>(&'a self, schema: &'a Value, names: &mut Names, seen: &mut HashSet<&'a str>) {
        self.add_names(schema, names, seen);
        for list in ["anyOf", "oneOf"] {
            for branch in schema.get(list).and_then(Value::as_array).into_iter().flatten() {
                self.add_all_names(branch, names, seen);
            }
        }
    }
}

/// Closes an object that one schema describes. The object stays open if a keyword decides about other members, or if
/// `minProperties` demands more members than the schema names.
fn close_alone(keywords: &mut Map<String, Value>) {
    set_type(keywords);
    match keywords.get("unevaluatedProperties") {
        Some(Value::Bool(is_open)) if !keywords.contains_key("additionalProperties") => {
            let is_open = *is_open;
            keywords.remove("unevaluatedProperties");
            keywords.insert("additionalProperties".to_owned(), json!(is_open));
        }
        _ => {}
    }
    let names = own_names(keywords);
    let least = keywords.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    let is_too_few = !has_patterns(keywords) && least > names.len() as u64;
    if !OPENNESS.iter().any(|keyword| keywords.contains_key(*keyword)) && !is_too_few {
        set_names(keywords, &names);
    }
}

/// Allows an object only the members `names`, or, if its schema has patterns, only its properties and the members that
/// match a pattern. An existing `additionalProperties` stays.
fn set_names(keywords: &mut Map<String, Value>, names: &[String]) {
    let has_patterns = has_patterns(keywords);
    if let Value::Object(properties) = keywords.entry("properties").or_insert_with(|| json!({}))
        && !has_patterns
    {
        for name in names {
            properties.entry(name).or_insert_with(|| json!({}));
        }
    }
    keywords.entry("additionalProperties").or_insert_with(|| json!(false));
}

/// Adds the type `object` to a schema that names members and has no `type`, `enum`, `const` or `$ref`.
fn set_type(keywords: &mut Map<String, Value>) {
    let names_members = keywords.contains_key("properties") || keywords.contains_key("required");
    if names_members && !["type", "enum", "const", "$ref"].iter().any(|keyword| keywords.contains_key(*keyword)) {
        keywords.insert("type".to_owned(), json!("object"));
    }
}

/// True if a schema says by itself which members an object has. A schema with only the type `object` allows any member.
fn describes_object(keywords: &Map<String, Value>) -> bool {
    let is_value = keywords.contains_key("enum") || keywords.contains_key("const");
    let names = ["properties", "required", "patternProperties", "unevaluatedProperties"];
    !is_value && names.iter().any(|keyword| keywords.contains_key(*keyword))
}

fn has_patterns(keywords: &Map<String, Value>) -> bool {
    keywords.get("patternProperties").and_then(Value::as_object).is_some_and(|patterns| !patterns.is_empty())
}

/// Returns the members that a schema names, in the order of its properties. Required members that have no schema come
/// last.
fn own_names(keywords: &Map<String, Value>) -> Vec<String> {
    let properties = keywords.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let mut names: Vec<String> = properties.cloned().collect();
    let mut known: HashSet<String> = names.iter().cloned().collect();
    let required = keywords.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    names.extend(required.filter(|name| known.insert((*name).to_owned())).map(str::to_owned));
    names
}

/// Returns the schema inside `root` that the `$ref` `place` points to.
fn target<'a>(root: &'a Value, place: &str) -> Option<&'a Value> {
    root.pointer(place.strip_prefix('#')?)
}

fn each(keywords: &mut Map<String, Value>, list: &str, mut work: impl FnMut(&mut Value)) {
    if let Some(Value::Array(schemas)) = keywords.get_mut(list) {
        schemas.iter_mut().for_each(&mut work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed_of(schema: &Value) -> Value {
        close(schema).unwrap()
    }

    #[test]
    fn a_schema_that_would_grow_too_large_is_refused() {
        let big: Map<_, _> = (0..1000).map(|number| (format!("p{number}"), json!({}))).collect();
        let part = json!({"properties": {"a": {}}, "$ref": "#/$defs/big"});
        let schema = json!({"$defs": {"big": {"properties": big}}, "anyOf": vec![part; 200]});
        assert!(close(&schema).unwrap_err().to_string().contains("reads more than 100000 members"));
    }

    #[test]
    fn objects_that_name_members_are_closed() {
        for (schema, expected) in [
            (json!({"type": "object"}), json!({"type": "object"})),
            (json!(true), json!(true)),
            (
                json!({"properties": {"a": {"type": "string"}}, "required": ["a"]}),
                json!({
                    "properties": {"a": {"type": "string"}}, "required": ["a"], "type": "object", "additionalProperties": false
                }),
            ),
            (
                json!({"required": ["a"]}),
                json!({"required": ["a"], "type": "object", "properties": {"a": {}}, "additionalProperties": false}),
            ),
            (
                json!({"type": "object", "properties": {}, "additionalProperties": true}),
                json!({"type": "object", "properties": {}, "additionalProperties": true}),
            ),
            (
                json!({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": true}),
                json!({"type": "object", "properties": {"a": {}}, "additionalProperties": true}),
            ),
            (
                json!({"type": "array", "items": {"type": ["object", "null"], "properties": {"a": {}}}}),
                json!({"type": "array", "items": {
                    "type": ["object", "null"], "properties": {"a": {}}, "additionalProperties": false
                }}),
            ),
            (
                json!({"type": "object", "patternProperties": {"^x": {}}}),
                json!({"type": "object", "patternProperties": {"^x": {}}, "properties": {}, "additionalProperties": false}),
            ),
            (
                json!({"type": "object", "properties": {"a": {}}, "minProperties": 2}),
                json!({"type": "object", "properties": {"a": {}}, "minProperties": 2}),
            ),
            // These values and names look like schemas but are not.
            (
                json!({"enum": [{"properties": {}}], "default": {"properties": {"a": {}}}}),
                json!({"enum": [{"properties": {}}], "default": {"properties": {"a": {}}}}),
            ),
            (
                json!({"properties": {"properties": {"type": "string"}, "enum": {"properties": {"x": {}}}}}),
                json!({
                    "properties": {
                        "properties": {"type": "string"},
                        "enum": {"properties": {"x": {}}, "type": "object", "additionalProperties": false}
                    },
                    "type": "object",
                    "additionalProperties": false
                }),
            ),
        ] {
            assert_eq!(closed_of(&schema), expected, "{schema}");
            assert_eq!(closed_of(&expected), expected, "closed twice");
        }
    }

    #[test]
    fn an_object_of_several_schemas_is_closed_as_a_whole() {
        let closed = closed_of(&json!({
            "$defs": {"base": {"properties": {"id": {"type": "integer"}}}},
            "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"x": {"type": "string"}}}],
        }));
        assert_eq!(closed["additionalProperties"], false);
        assert_eq!(closed["properties"], json!({"id": {}, "x": {}}));
        assert_eq!(closed["allOf"][0], json!({"$ref": "#/$defs/hilo-open-0"}));
        assert_eq!(closed["allOf"][1], json!({"properties": {"x": {"type": "string"}}}));
        assert_eq!(closed["$defs"]["base"]["additionalProperties"], false);
        assert_eq!(closed["$defs"]["hilo-open-0"], json!({"properties": {"id": {"type": "integer"}}}));
    }

    #[test]
    fn alternatives_are_closed_one_by_one() {
        let closed = closed_of(&json!({"anyOf": [{"properties": {"a": {}}}, {"type": "null"}]}));
        assert_eq!(closed["anyOf"][0]["additionalProperties"], false);
        assert_eq!(closed["anyOf"][1], json!({"type": "null"}));
        let closed = closed_of(
            &json!({"properties": {"kind": {}}, "oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
        );
        assert_eq!(closed.get("additionalProperties"), None);
        assert_eq!(closed["oneOf"][0]["properties"], json!({"a": {}, "kind": {}}));
        assert_eq!(closed["oneOf"][1]["additionalProperties"], false);
        // These alternatives name no new members.
        let closed =
            closed_of(&json!({"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}));
        assert_eq!(closed["additionalProperties"], false);
        assert_eq!(closed["anyOf"], json!([{"required": ["a"]}, {"required": ["b"]}]));
    }

    #[test]
    fn a_part_that_is_open_leaves_the_whole_open() {
        for schema in [
            json!({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}, "additionalProperties": {"type": "integer"}}]}),
            json!({"properties": {"a": {}}, "allOf": [{"$ref": "https://example.org/other"}]}),
            json!({"properties": {"a": {}}, "allOf": [{"patternProperties": {"^x": {}}}]}),
        ] {
            assert_eq!(closed_of(&schema).get("additionalProperties"), None, "{schema}");
        }
    }

    #[test]
    fn schemas_that_lead_to_themselves_end() {
        let schema = json!({
            "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}, "allOf": [{"$ref": "#/$defs/node"}]}},
            "$ref": "#/$defs/node",
        });
        let closed = closed_of(&schema);
        assert_eq!(closed["$defs"]["node"]["additionalProperties"], false);
        assert_eq!(closed["$defs"]["node"]["properties"]["next"], json!({"$ref": "#/$defs/node"}));
    }
}
