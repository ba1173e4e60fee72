//! Schemas for the OpenAPI document, for fields with hand-written parsers. Most other types derive their schema.

use utoipa::openapi::schema::{AnyOfBuilder, ArrayBuilder, SchemaType};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

/// The schema of the field `stop`, which the module `stop` parses.
pub(super) fn stop() -> RefOr<Schema> {
    let many = ArrayBuilder::new().items(string());
    let description = "The text that ends the answer when it is generated, or a list of such texts.";
    AnyOfBuilder::new().item(string()).item(many).item(null()).description(Some(description)).into()
}

/// The schema of the field `logit_bias`, which the module `logit_bias` parses.
pub(super) fn logit_bias() -> RefOr<Schema> {
    let number = ObjectBuilder::new().schema_type(Type::Number);
    let description = "Token ids, each with a number from -100 to 100 that is added to the score of the token.";
    object_or_null().additional_properties(Some(number)).description(Some(description)).into()
}

/// The schema of a grammar, which the module `grammar` parses.
pub(super) fn grammar() -> RefOr<Schema> {
    let kinds = ["text", "json_object", "json_schema", "json", "regex", "choice", "lark"];
    let kind = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(kinds));
    let description = "The form of the answer. By the type, `value` is a JSON schema, a regular expression, a list of \
                       allowed texts or a Lark grammar. `json_schema` is OpenAI's object, whose `schema` is a JSON \
                       schema.";
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
        .property("role", string().description(Some("`system`, `developer`, `user`, `assistant` or `tool`.")))
        .property("content", text_or_parts())
        .required("role")
        .description(Some("A message. The chat template decides which other fields are used."));
    ArrayBuilder::new().items(message).min_items(Some(1)).into()
}

/// The schema of a text, or a list of parts with texts.
pub(super) fn text_or_parts() -> RefOr<Schema> {
    let part = ObjectBuilder::new().property("type", string()).property("text", string()).required("type");
    AnyOfBuilder::new().item(string()).item(ArrayBuilder::new().items(part)).item(null()).into()
}

/// The schema of `prompt`, which has four forms.
pub(super) fn prompt() -> RefOr<Schema> {
    let list = |items: ObjectBuilder| ArrayBuilder::new().items(items);
    let token_id = || ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
    let lists = ArrayBuilder::new().items(list(token_id()));
    let prompts = AnyOfBuilder::new().item(string()).item(list(token_id())).item(list(string())).item(lists);
    prompts.description(Some("A text, a list of token ids, or a list of either.")).into()
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
