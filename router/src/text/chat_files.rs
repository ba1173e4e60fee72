//! The chat template and the special tokens of a model. This file is the only reader of `tokenizer_config.json`,
//! `special_tokens_map.json`, `chat_template.jinja`, `additional_chat_templates/`, `chat_template.json` and
//! `processor_config.json`.
//!
//! The first of these sources that has a template gives all templates:
//! 1. the file of `--chat-template`
//! 2. the file of `--tokenizer-config-path`, which is read instead of 5
//! 3. `chat_template.jinja`, with `additional_chat_templates/tool_use.jinja`
//! 4. `chat_template.json`
//! 5. `tokenizer_config.json`, or the metadata of a GGUF file
//! 6. `processor_config.json`
//!
//! A source that is a single string is the template for all conversations. From a list or an object of several
//! templates, the one called `tool_use` is for conversations with tools, and the one called `default` for all others,
//! and for all if `tool_use` is missing. Errors in the model's own files, and in any template, are logged at the start
//! and returned to clients that send conversations; all other requests are served. A template that exceeds a limit when
//! it is tried ends the start.

use std::path::Path;

use model_files::ModelFiles;
use serde_json::{Map, Value as Json};

use super::chat_template::{ChatInputs, ChatTemplate, ChatTemplateError, RenderedChat, SpecialTokens, end_renderers};
use super::gguf_tokenizer;
use super::tokenizer::{TextError, describe};

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";

/// The special tokens that templates can name; other tokens in these files are not variables.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The templates of one model. A template that cannot be compiled is kept as its error.
#[derive(Debug)]
pub(crate) struct ChatTemplates {
    default: Result<ChatTemplate, ChatTemplateError>,
    tool_use: Option<Result<ChatTemplate, ChatTemplateError>>,
}

/// The files that the user named in flags; `None` for the model's own files.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChatOverrides<'a> {
    pub(crate) tokenizer_config: Option<&'a Path>,
    pub(crate) chat_template: Option<&'a Path>,
}

/// The templates in a file, not compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sources {
    default: Option<String>,
    tool_use: Option<String>,
}

impl ChatOverrides<'_> {
    /// Returns the errors of reading these files.
    pub(crate) fn check(self) -> Vec<String> {
        let errors = [self.template().err(), self.config().err()];
        errors.into_iter().flatten().map(|error| error.to_string()).collect()
    }

    fn template(self) -> Result<Option<String>, TextError> {
        self.chat_template.map(|path| read_named("chat_template", path)).transpose()
    }

    fn config(self) -> Result<Option<Map<String, Json>>, TextError> {
        let Some(path) = self.tokenizer_config else { return Ok(None) };
        let flag = "tokenizer_config_path";
        let text = read_named(flag, path)?;
        let object = object(text.as_bytes());
        object
            .map(Some)
            .map_err(|error| TextError::File(format!("`{flag}` {} cannot be read: {error}", path.display())))
    }
}

impl ChatTemplates {
    /// Reads and compiles the templates of a model.
    ///
    /// # Errors
    /// When a file that the user named cannot be read, the configuration among them is not a JSON object, or a template
    /// exceeds a limit when it is tried.
    pub(crate) fn load(files: &ModelFiles, overrides: ChatOverrides<'_>) -> Result<Self, TextError> {
        let given_template = overrides.template()?;
        let given_config = overrides.config()?;
        let templates = Self::find(files, given_template, given_config)
            .unwrap_or_else(|message| Self { default: Err(ChatTemplateError::Unreadable(message)), tool_use: None });
        // This thread renders no more; those of the pool have processes of their own.
        end_renderers();
        for error in [Some(&templates.default), templates.tool_use.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|t| t.as_ref().err())
        {
            match error {
                error if error.ends_start() => {
                    return Err(TextError::File(format!(
                        "the chat template of {files} fails in a trial at the start: {error}; --chat-template sets another"
                    )));
                }
                ChatTemplateError::NotFound => {
                    tracing::info!("{files} has no chat template: conversations are refused; --chat-template sets one")
                }
                _ => tracing::warn!("{files}: {error}; conversations that need it are refused"),
            }
        }
        Ok(templates)
    }

    fn find(
        files: &ModelFiles,
        given_template: Option<String>,
        given_config: Option<Map<String, Json>>,
    ) -> Result<Self, String> {
        let has_config = given_config.is_some();
        let config = match given_config {
            Some(config) => config,
            None => match (read_object(files, TOKENIZER_CONFIG)?, files.gguf().map_err(|error| describe(&error))?) {
                (Some(config), _) => config,
                (None, Some(gguf)) => gguf_tokenizer::tokenizer_config(&gguf),
                (None, None) => Map::new(),
            },
        };
        let special_tokens = special_tokens(files, &config)?;
        let of_config = || sources(&config);
        let sources = match given_template {
            Some(template) => Some(Sources { default: Some(template), tool_use: None }),
            None => of_config().filter(|_| has_config),
        };
        let sources = match sources {
            Some(sources) => sources,
            None => find_own(files, of_config())?.unwrap_or(Sources { default: None, tool_use: None }),
        };
        let compile = |source: String| ChatTemplate::compile(&source, special_tokens.clone());
        Ok(Self {
            default: sources.default.ok_or(ChatTemplateError::NotFound).and_then(compile),
            tool_use: sources.tool_use.map(compile),
        })
    }

    /// Limits the memory of each rendering to this share of the memory for text, in bytes.
    pub(crate) fn limit_memory(&mut self, share_bytes: usize) {
        let templates = [Some(&mut self.default), self.tool_use.as_mut()].into_iter().flatten();
        templates.flatten().for_each(|template| template.limit_memory(share_bytes));
    }

    /// Returns the text of a conversation.
    ///
    /// # Errors
    /// When there is no usable template, or rendering fails.
    pub(crate) fn render(&self, inputs: ChatInputs) -> Result<RenderedChat, ChatTemplateError> {
        let for_tools = self.tool_use.as_ref().filter(|_| inputs.tools.is_some());
        match for_tools.unwrap_or(&self.default) {
            Ok(template) => template.render_adapted(inputs),
            Err(error) => Err(error.clone()),
        }
    }
}

/// Returns the templates of the first file of the model that has any.
fn find_own(files: &ModelFiles, of_config: Option<Sources>) -> Result<Option<Sources>, String> {
    let default = read_text(files, "chat_template.jinja")?;
    if default.is_some() {
        let tool_use = read_text(files, "additional_chat_templates/tool_use.jinja")?;
        return Ok(Some(Sources { default, tool_use }));
    }
    if let Some(found) = read_object(files, "chat_template.json")?.as_ref().and_then(sources) {
        return Ok(Some(found));
    }
    match of_config {
        Some(found) => Ok(Some(found)),
        None => Ok(read_object(files, "processor_config.json")?.as_ref().and_then(sources)),
    }
}

/// Reads the value of `chat_template`: a template, a list of names and templates, or an object with a template for each
/// name.
fn sources(config: &Map<String, Json>) -> Option<Sources> {
    let text = |value: &Json| value.as_str().map(str::to_owned);
    match config.get("chat_template")? {
        Json::String(template) => Some(Sources { default: Some(template.clone()), tool_use: None }),
        Json::Array(templates) => {
            let named = |name: &str| {
                let template =
                    templates.iter().find(|template| template.get("name").and_then(Json::as_str) == Some(name));
                template.and_then(|template| text(template.get("template")?))
            };
            Some(Sources { default: named("default"), tool_use: named("tool_use") })
        }
        Json::Object(templates) => {
            let named = |name: &str| templates.get(name).and_then(text);
            Some(Sources { default: named("default"), tool_use: named("tool_use") })
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => None,
    }
}

/// Reads the special tokens. Each is a string, or an object with the text in `content`. In old configurations, which
/// lack `added_tokens_decoder`, the tokens in `special_tokens_map.json` win, as in transformers.
fn special_tokens(files: &ModelFiles, config: &Map<String, Json>) -> Result<SpecialTokens, String> {
    let mut tokens = named_tokens(config);
    if !config.contains_key("added_tokens_decoder") {
        tokens.extend(named_tokens(&read_object(files, SPECIAL_TOKENS_MAP)?.unwrap_or_default()));
    }
    Ok(tokens)
}

fn named_tokens(config: &Map<String, Json>) -> SpecialTokens {
    let token = |name: &str| {
        let value = config.get(name)?;
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
        Some((name.to_owned(), text.to_owned()))
    };
    SPECIAL_TOKENS.into_iter().filter_map(token).collect()
}

fn read_named(flag: &str, path: &Path) -> Result<String, TextError> {
    std::fs::read_to_string(path)
        .map_err(|error| TextError::File(format!("`{flag}` {} cannot be read: {error}", path.display())))
}

fn read_text(files: &ModelFiles, name: &str) -> Result<Option<String>, String> {
    let Some(bytes) = files.read_optional(name).map_err(|error| describe(&error))? else { return Ok(None) };
    String::from_utf8(bytes.into_owned()).map(Some).map_err(|error| format!("{name}: {error}"))
}

fn read_object(files: &ModelFiles, name: &str) -> Result<Option<Map<String, Json>>, String> {
    let Some(bytes) = files.read_optional(name).map_err(|error| describe(&error))? else { return Ok(None) };
    object(&bytes).map(Some).map_err(|error| format!("{name}: {error}"))
}

fn object(json: &[u8]) -> Result<Map<String, Json>, serde_json::Error> {
    serde_json::from_slice(json)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the message `hi` rendered with the templates of these files, first without and then with tools.
    fn say(files: &[(&str, &str)], overrides: &[(&str, &str)]) -> [Result<String, ChatTemplateError>; 2] {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files.iter().chain(overrides) {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let given = |name: &str| overrides.iter().any(|(given, _)| *given == name).then(|| directory.path().join(name));
        let (tokenizer_config, chat_template) = (given("given.json"), given("given.jinja"));
        let overrides =
            ChatOverrides { tokenizer_config: tokenizer_config.as_deref(), chat_template: chat_template.as_deref() };
        let files = ModelFiles::Directory(directory.path().to_owned());
        let templates = ChatTemplates::load(&files, overrides).unwrap();
        [None, Some(vec![json!({"type": "function"})])].map(|tools| {
            let messages = serde_json::from_value(json!([{"role": "user", "content": "hi"}])).unwrap();
            templates.render(ChatInputs { messages, tools, ..ChatInputs::default() }).map(|rendered| rendered.text)
        })
    }

    fn says(files: &[(&str, &str)], overrides: &[(&str, &str)], expected: [&str; 2]) {
        assert_eq!(say(files, overrides), expected.map(|text| Ok(text.to_owned())), "{files:?} {overrides:?}");
    }

    #[test]
    fn the_first_file_with_a_template_has_all() {
        let config = (TOKENIZER_CONFIG, r#"{"chat_template":"config","bos_token":"<s>"}"#);
        let json = ("chat_template.json", r#"{"chat_template":"json"}"#);
        let jinja = ("chat_template.jinja", "jinja{{ bos_token }}");
        let tools = ("additional_chat_templates/tool_use.jinja", "tools");
        let processor = ("processor_config.json", r#"{"chat_template":"processor"}"#);
        let given_config = ("given.json", r#"{"chat_template":"given","bos_token":"<g>"}"#);
        let given_jinja = ("given.jinja", "mine{{ bos_token }}");
        says(&[processor], &[], ["processor"; 2]);
        says(&[processor, config, tools], &[], ["config"; 2]);
        says(&[processor, config, json], &[], ["json"; 2]);
        says(&[processor, config, json, jinja], &[], ["jinja<s>"; 2]);
        says(&[processor, config, json, jinja, tools], &[], ["jinja<s>", "tools"]);
        says(&[config, json, jinja, tools], &[given_config], ["given"; 2]);
        says(&[config, json, jinja, tools], &[given_jinja], ["mine<s>"; 2]);
        says(&[config, jinja, tools], &[given_jinja, given_config], ["mine<g>"; 2]);
        says(&[config, jinja], &[("given.json", "{}")], ["jinja"; 2]);
    }

    #[test]
    fn a_gguf_file_has_a_template_and_tokens() {
        let file = checkpoints::file("gguf/llama-k/model.gguf");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.gguf");
        std::fs::copy(file, &path).unwrap();
        let say = || {
            let templates = ChatTemplates::load(&ModelFiles::Gguf(path.clone()), ChatOverrides::default()).unwrap();
            let messages = serde_json::from_value(json!([{"role": "user", "content": "hi"}])).unwrap();
            templates.render(ChatInputs { messages, ..ChatInputs::default() }).unwrap().text
        };
        assert_eq!(say(), "hi");
        std::fs::write(directory.path().join(TOKENIZER_CONFIG), r#"{"chat_template":"beside"}"#).unwrap();
        assert_eq!(say(), "beside");
    }

    #[test]
    fn several_templates_have_names() {
        let list = json!([{"name": "rag", "template": "rag"}, {"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "default"}]);
        for several in [list, json!({"default": "default", "tool_use": "tools"})] {
            let config = json!({"chat_template": several}).to_string();
            says(&[(TOKENIZER_CONFIG, &config)], &[], ["default", "tools"]);
        }
    }

    #[test]
    fn special_tokens_are_texts_or_objects() {
        let template = "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}";
        let tokens = |extra: Json| {
            let mut config = json!({"chat_template": template, "bos_token": {"content": "<s>", "special": true},
                "eos_token": "</s>", "pad_token": null});
            config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            config.to_string()
        };
        let map = (SPECIAL_TOKENS_MAP, r#"{"eos_token":{"content":"<end>"},"additional_special_tokens":["<x>"]}"#);
        says(&[(TOKENIZER_CONFIG, &tokens(json!({})))], &[], ["<s>|</s>|False"; 2]);
        says(&[(TOKENIZER_CONFIG, &tokens(json!({}))), map], &[], ["<s>|<end>|False"; 2]);
        says(&[(TOKENIZER_CONFIG, &tokens(json!({"added_tokens_decoder": {}}))), map], &[], ["<s>|</s>|False"; 2]);
    }

    #[test]
    fn broken_chat_files_are_reported_to_chat_requests() {
        let error = |files: &[(&str, &str)]| say(files, &[])[0].clone().unwrap_err().to_string();
        insta::assert_snapshot!(
            error(&[]),
            @"template not found: the model has none, and none was given with --chat-template"
        );
        let broken = error(&[("chat_template.jinja", "{% if %}")]);
        insta::assert_snapshot!(
            broken,
            @"the chat template cannot be read: syntax error: unexpected end of block (in chat template:1)"
        );
        let broken = error(&[(TOKENIZER_CONFIG, "{")]);
        insta::assert_snapshot!(
            broken,
            @"the chat template cannot be read: tokenizer_config.json: EOF while parsing an object at line 1 column 1"
        );
        let nameless = error(&[(TOKENIZER_CONFIG, r#"{"chat_template":[{"name":"rag","template":"x"}]}"#)]);
        insta::assert_snapshot!(
            nameless,
            @"template not found: the model has none, and none was given with --chat-template"
        );
    }

    #[test]
    fn a_template_that_exceeds_a_limit_ends_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let endless = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}";
        std::fs::write(directory.path().join("chat_template.jinja"), endless).unwrap();
        let files = ModelFiles::Directory(directory.path().to_owned());
        let error = ChatTemplates::load(&files, ChatOverrides::default()).unwrap_err().to_string();
        let message = error.replace(&directory.path().display().to_string(), "MODEL");
        insta::assert_snapshot!(
            message,
            @"the chat template of MODEL fails in a trial at the start: rendering the conversation takes more than 10000000 steps; --chat-template sets another"
        );
    }

    #[test]
    fn a_file_that_the_user_named_must_be_there() {
        let overrides =
            ChatOverrides { chat_template: Some(Path::new("/nowhere/x.jinja")), ..ChatOverrides::default() };
        let error = ChatTemplates::load(&ModelFiles::Demo, overrides).unwrap_err().to_string();
        insta::assert_snapshot!(
            error,
            @"`chat_template` /nowhere/x.jinja cannot be read: No such file or directory (os error 2)"
        );
    }
}
