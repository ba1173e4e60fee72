//! Schemas for the OpenAPI document, for types with hand-written parsers. All other types derive their schema.

use utoipa::openapi::schema::{AnyOfBuilder, ArrayBuilder, SchemaType};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

/// The schema of `stop`; the parser is in `stop`.
pub(super) fn stop() -> RefOr<Schema> {
    let many = ArrayBuilder::new().items(string());
    let description = "texts that end the answer: one, or a list";
    AnyOfBuilder::new().item(string()).item(many).item(null()).description(Some(description)).into()
}

/// The schema of `logit_bias`; the parser is in `logit_bias`.
pub(super) fn logit_bias() -> RefOr<Schema> {
    let number = ObjectBuilder::new().schema_type(Type::Number);
    let description = "numbers from -100 to 100 by token id, added to the scores of those tokens";
    object_or_null().additional_properties(Some(number)).description(Some(description)).into()
}

/// The schema of a grammar; the parser is in `grammar`.
pub(super) fn grammar() -> RefOr<Schema> {
    let kinds = ["text", "json_object", "json_schema", "json", "regex", "choice", "lark"];
    let kind = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(kinds));
    let description = "what the answer must look like: `value` is a JSON schema, a regular expression, a list of texts or a Lark \
                       grammar, by the type; `json_schema` is OpenAI's object with a `schema`";
    object_or_null()
        .property("type", kind)
        .property("value", anything())
        .property("schema", anything())
        .property("json_schema", anything())
        .required("type")
        .description(Some(description))
        .into()
}

/// The schema of a conversation's messages; the checks are in `chat`.
pub(super) fn messages() -> RefOr<Schema> {
    let message = ObjectBuilder::new()
        .property("role", string().description(Some("system, developer, user, assistant or tool")))
        .property("content", text_or_parts())
        .required("role")
        .description(Some("a message; what else it may have is the chat template's affair"));
    ArrayBuilder::new().items(message).min_items(Some(1)).into()
}

/// The schema of a text, or a list of parts with texts.
pub(super) fn text_or_parts() -> RefOr<Schema> {
    let part = ObjectBuilder::new().property("type", string()).property("text", string()).required("type");
    AnyOfBuilder::new().item(string()).item(ArrayBuilder::new().items(part)).item(null()).into()
}

/// The schema of the four forms of prompts.
pub(super) fn prompt() -> RefOr<Schema> {
    let list = |items: ObjectBuilder| ArrayBuilder::new().items(items);
    let token_id = || ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
    let lists = ArrayBuilder::new().items(list(token_id()));
    let prompts = AnyOfBuilder::new().item(string()).item(list(token_id())).item(list(string())).item(lists);
    prompts.description(Some("a text, token ids, or a list of either")).into()
}

fn string() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn null() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Null)
}

fn anything() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::AnyValue)
}

fn object_or_null() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::from_iter([Type::Object, Type::Null]))
}
