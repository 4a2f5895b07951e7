//! The small files of a model: `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`.
//! They are read as Transformers' `PreTrainedTokenizerBase._from_pretrained` does.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::error::{Error, Result};

/// Names of all tokenizer classes, in the order of Transformers.
const NAMED_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Special and added tokens of the files.
#[derive(Default)]
pub struct ModelFiles {
    pub config: Map<String, Value>,
    pub config_path: PathBuf,
    /// Special tokens by name (`bos_token`, ...), including model-specific names (`image_token`).
    pub named: Vec<(String, AddedToken)>,
    /// Special tokens without a name.
    pub extra: Vec<AddedToken>,
    /// Added tokens by id, ascending.
    pub added: Vec<(u64, AddedToken)>,
}

/// Reads a file; None: it does not exist.
pub fn read_optional(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(Error::invalid(format!("{}: {error}", path.display()))),
    }
}

/// Reads a JSON object; None: the file does not exist.
pub fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let Some(bytes) = read_optional(path)? else { return Ok(None) };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(Error::invalid(format!("{}: must be a JSON object", path.display()))),
        Err(error) => Err(Error::invalid(format!("{}: {error}", path.display()))),
    }
}

impl ModelFiles {
    pub fn read(directory: &Path) -> Result<Self> {
        let config_path = directory.join("tokenizer_config.json");
        let mut config = read_object(&config_path)?.unwrap_or_default();
        let mut added = Vec::new();
        if let Some(decoder) = config.get("added_tokens_decoder") {
            let entries = decoder.as_object().ok_or_else(|| {
                Error::invalid(format!(
                    "{}: added_tokens_decoder must be an object",
                    config_path.display()
                ))
            })?;
            for (id, token) in entries {
                let field = format!("{}: added_tokens_decoder[{id:?}]", config_path.display());
                let number = id
                    .parse::<u64>()
                    .map_err(|_| Error::invalid(format!("{field}: the key must be a token id")))?;
                added.push((number, added_token(token, None, &field)?));
            }
        } else {
            let path = directory.join("special_tokens_map.json");
            for (key, mut value) in read_object(&path)?.unwrap_or_default() {
                if let (Value::Object(fields), true) = (&mut value, key.ends_with("_token")) {
                    fields.insert("special".into(), Value::Bool(true));
                }
                config.insert(key, value);
            }
        }

        let mut files =
            ModelFiles { config, config_path, named: Vec::new(), extra: Vec::new(), added };
        files.collect_named()?;
        files.collect_extra()?;
        files.read_legacy_added(directory)?;
        files.added.sort_by_key(|(id, _)| *id);
        Ok(files)
    }

    /// From the text of a `tokenizer_config.json` without other files. `name` replaces the file name in
    /// messages.
    pub fn from_config(name: &str, config: &str) -> Result<Self> {
        let config = match serde_json::from_str(config) {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Err(Error::invalid(format!("{name}: must be a JSON object"))),
            Err(error) => return Err(Error::invalid(format!("{name}: {error}"))),
        };
        let mut files = ModelFiles { config, config_path: name.into(), ..Default::default() };
        files.collect_named()?;
        files.collect_extra()?;
        Ok(files)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.config.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    fn collect_named(&mut self) -> Result<()> {
        let mut names: Vec<String> = NAMED_TOKENS.iter().map(|name| name.to_string()).collect();
        names.extend(
            self.config
                .iter()
                .filter(|(key, value)| {
                    key.ends_with("_token")
                        && !NAMED_TOKENS.contains(&key.as_str())
                        && (value.is_string() || value.is_object())
                })
                .map(|(key, _)| key.clone()),
        );
        for name in names {
            let value = match self.config.get(&name) {
                None | Some(Value::Null) | Some(Value::Bool(_)) => continue,
                Some(value) => value,
            };
            let field = format!("{}: {name}", self.config_path.display());
            let mut token = added_token(value, Some(true), &field)?;
            if let Some((_, known)) = self.added.iter().find(|(_, t)| t.content == token.content) {
                token = known.clone();
            }
            self.named.push((name, token));
        }
        // Named tokens may also be grouped.
        for key in ["extra_special_tokens", "model_specific_special_tokens"] {
            let Some(Value::Object(entries)) = self.config.get(key) else { continue };
            for (name, value) in entries {
                let field = format!("{}: {key}.{name}", self.config_path.display());
                self.named.push((name.clone(), added_token(value, Some(true), &field)?));
            }
        }
        Ok(())
    }

    fn collect_extra(&mut self) -> Result<()> {
        for key in ["extra_special_tokens", "additional_special_tokens"] {
            let Some(Value::Array(tokens)) = self.config.get(key) else { continue };
            if tokens.is_empty() {
                continue;
            }
            for (i, token) in tokens.iter().enumerate() {
                let field = format!("{}: {key}[{i}]", self.config_path.display());
                self.extra.push(added_token(token, Some(true), &field)?);
            }
            break;
        }
        Ok(())
    }

    /// `added_tokens.json` of old models: text to id. Read only if the configuration lists no added
    /// tokens.
    fn read_legacy_added(&mut self, directory: &Path) -> Result<()> {
        if self.config.contains_key("added_tokens_decoder") {
            return Ok(());
        }
        let path = directory.join("added_tokens.json");
        for (content, id) in read_object(&path)?.unwrap_or_default() {
            let id = id.as_u64().ok_or_else(|| {
                Error::invalid(format!("{}: {content:?} must be a token id", path.display()))
            })?;
            let special = self.named.iter().any(|(_, token)| token.content == content)
                || self.extra.iter().any(|token| token.content == content);
            self.added.push((id, AddedToken::from(content, special)));
        }
        Ok(())
    }
}

/// A token, given as text or as an object with `content` and flags.
fn added_token(value: &Value, special: Option<bool>, field: &str) -> Result<AddedToken> {
    match value {
        Value::String(content) => Ok(AddedToken::from(content.clone(), special.unwrap_or(false))),
        Value::Object(fields) => {
            let content = fields
                .get("content")
                .and_then(Value::as_str)
                .ok_or_else(|| Error::invalid(format!("{field}: content must be a string")))?;
            let flag = |name: &str, default: bool| match fields.get(name) {
                None => Ok(default),
                Some(Value::Bool(flag)) => Ok(*flag),
                Some(_) => Err(Error::invalid(format!("{field}: {name} must be true or false"))),
            };
            let special = flag("special", special.unwrap_or(false))?;
            Ok(AddedToken::from(content, special)
                .single_word(flag("single_word", false)?)
                .lstrip(flag("lstrip", false)?)
                .rstrip(flag("rstrip", false)?)
                .normalized(flag("normalized", !special)?))
        }
        _ => Err(Error::invalid(format!("{field}: must be a string or an object with content"))),
    }
}
