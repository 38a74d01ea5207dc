//! The files of a model dir that contain chat templates.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{DEFAULT, Sources, TOOL_USE};
use crate::{
    error::{Error, Result},
    files::{python_json, regular_file},
    text::tokenizer::TOKENIZER_CONFIG_FILE,
};

/// The file of the default template.
pub(crate) const DEFAULT_FILE: &str = "chat_template.jinja";
/// The file of the template for conversations with tools.
pub(crate) const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";

/// The members of `tokenizer_config.json` that are read here.
#[derive(Deserialize)]
struct ConfigJson {
    chat_template: Option<TemplateJson>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TemplateJson {
    Single(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// The templates of a model dir, and their file.
pub(super) fn find(dir: &Path) -> Result<Option<(Sources, PathBuf)>> {
    let path = dir.join(DEFAULT_FILE);
    if let Some(default) = read(&path)? {
        let tool_use = read(&dir.join(TOOL_USE_FILE))?;
        return Ok(Some((Sources { default, tool_use }, path)));
    }
    let path = dir.join(TOKENIZER_CONFIG_FILE);
    let Some(json) = read(&path)? else { return Ok(None) };
    let config: ConfigJson = python_json::parse(json.as_bytes()).map_err(|error| {
        Error::file(&path, format!("has an invalid chat template: {error}"))
            .with_hint("`chat_template` must be a string or a list of objects with `name` and `template`")
    })?;
    let sources = match config.chat_template {
        None => return Ok(None),
        Some(TemplateJson::Single(default)) => Sources { default, tool_use: None },
        Some(TemplateJson::Named(named)) => choose(named, &path)?,
    };
    Ok(Some((sources, path)))
}

fn choose(named: Vec<NamedTemplate>, path: &Path) -> Result<Sources> {
    let source = |name| named.iter().find(|named| named.name == name).map(|named| named.template.clone());
    let Some(default) = source(DEFAULT) else {
        let names: Vec<String> = named.iter().map(|named| format!("`{}`", named.name)).collect();
        let what = format!("has no chat template named `{DEFAULT}`, only: {}", names.join(", "));
        return Err(
            Error::file(path, what).with_hint("save the template to use as `chat_template.jinja` in the same folder")
        );
    };
    Ok(Sources { default, tool_use: source(TOOL_USE) })
}

fn read(path: &Path) -> Result<Option<String>> {
    match regular_file::read_to_string(path) {
        Err(Error::Io { reason, .. }) if reason.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}
