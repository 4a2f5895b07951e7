//! Chat templates, rendered as Transformers' `apply_chat_template` does. See `engine/text/chat_template.h`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use minijinja::{Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use crate::bounded::{self, Bounds, Failure};
use crate::error::{Error, Result};
use crate::methods;
use crate::model_files::{read_optional, ModelFiles};
use crate::python;

const MAX_SOURCE_BYTES: usize = 8 << 20;
/// Memory of a render beyond its input and output.
const BASE_MEMORY_BYTES: usize = 64 << 20;
/// Memory that operators may allocate between two checks: more than the longest repeated text.
const OPERATOR_MEMORY_BYTES: usize = 256 << 20;
/// Limits of messages, tools and arguments together: bytes, and nesting of arrays and objects.
const MAX_INPUT_BYTES: usize = 8 << 20;
const MAX_INPUT_DEPTH: usize = 64;

/// Arguments of `apply_chat_template` that are not variables of the template.
const RESERVED: [&str; 15] = [
    "messages",
    "conversation",
    "tools",
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "sanitize_control_tokens",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "tokenizer_kwargs",
    "return_assistant_tokens_mask",
];
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub fuel: u64,
    pub max_output_bytes: usize,
}

/// Formats the current time; None: not possible.
pub type Strftime = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Name ("default", "tool_use", ...), text and file of a template.
type Source = (String, String, PathBuf);

self_cell::self_cell!(
    /// Templates with their compiled form.
    struct Compiled {
        owner: Vec<Source>,
        #[covariant]
        dependent: Environment,
    }
);

pub struct Template {
    compiled: Compiled,
    /// bos_token, eos_token, ...
    special_tokens: Vec<(String, String)>,
    limits: Limits,
}

impl Template {
    /// The template of a model; None: it has none.
    pub fn load(directory: &Path, limits: Limits, strftime: Strftime) -> Result<Option<Self>> {
        let files = ModelFiles::read(directory)?;
        let sources = read_sources(directory, &files)?;
        Self::new(files, sources, limits, strftime)
    }

    /// From the text of a `tokenizer_config.json`. `name` replaces the file name in messages.
    pub fn parse(
        name: &str,
        config: &str,
        limits: Limits,
        strftime: Strftime,
    ) -> Result<Option<Self>> {
        let files = ModelFiles::from_config(name, config)?;
        let sources = config_sources(&files)?;
        Self::new(files, sources, limits, strftime)
    }

    fn new(
        files: ModelFiles,
        sources: Vec<Source>,
        limits: Limits,
        strftime: Strftime,
    ) -> Result<Option<Self>> {
        if sources.is_empty() {
            return Ok(None);
        }
        let sources = sources
            .into_iter()
            .map(|(name, text, path)| (name, plain_generation_tags(&text), path))
            .collect();
        let compiled = Compiled::try_new(sources, |sources: &Vec<Source>| {
            let mut env = environment(limits.fuel, strftime);
            for (name, text, path) in sources {
                if text.len() > MAX_SOURCE_BYTES {
                    return Err(Error::invalid(format!(
                        "chat template {}: {} bytes; allowed: at most {MAX_SOURCE_BYTES}",
                        path.display(),
                        text.len()
                    )));
                }
                env.add_template(name, text).map_err(|error| describe(path, &error))?;
            }
            Ok(env)
        })?;
        let special_tokens =
            files.named.into_iter().map(|(name, token)| (name, token.content)).collect();
        Ok(Some(Template { compiled, special_tokens, limits }))
    }

    pub fn render(
        &self,
        messages: &str,
        tools: &str,
        extra: &str,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let input = messages.len() + tools.len() + extra.len();
        if input > MAX_INPUT_BYTES {
            return Err(Error::invalid(format!(
                "messages, tools and template arguments: {input} bytes; allowed: at most {MAX_INPUT_BYTES}"
            )));
        }
        let messages = parse_messages(messages)?;
        let tools_value = parse_tools(tools)?;
        let extra_value = parse_extra(extra)?;
        let (name, path) = self.select(!tools_value.is_null())?;
        let compiled = self.compiled.borrow_dependent().get_template(name);
        let template = compiled.map_err(|error| describe(path, &error))?;

        let mut context = Map::new();
        for (name, token) in &self.special_tokens {
            context.insert(name.clone(), Json::from(token.as_str()));
        }
        context.insert("documents".into(), Json::Null);
        context.extend(extra_value);
        context.insert("messages".into(), messages);
        context.insert("tools".into(), tools_value);
        context.insert("add_generation_prompt".into(), Json::Bool(add_generation_prompt));

        let memory = BASE_MEMORY_BYTES
            .saturating_add(self.limits.max_output_bytes.saturating_mul(4))
            .saturating_add(input.saturating_mul(64));
        let bounds = Bounds {
            soft: memory,
            hard: memory.saturating_add(OPERATOR_MEMORY_BYTES),
            text: self.limits.max_output_bytes,
        };
        let outcome = bounded::run(bounds, || {
            let mut out = Limited { bytes: Vec::new(), limit: self.limits.max_output_bytes };
            match template.render_captured_to(Value::from_serialize(&context), &mut out) {
                Ok(_) => Ok(out.bytes),
                Err(error) => Err(self.render_error(path, memory, &error)),
            }
        });
        let refused = |what: String| Error::internal(format!("chat template {}: {what}", path.display()));
        match outcome {
            Ok(Ok(bytes)) => String::from_utf8(bytes).map_err(|_| refused("its output is not UTF-8".into())),
            Ok(Err(error)) => Err(error),
            Err(Failure::Memory) => Err(too_much_memory(path, memory)),
            Err(Failure::Panic(message)) => Err(refused(message)),
            Err(Failure::Thread(message)) => {
                let path = path.display();
                Err(Error::exhausted(format!("chat template {path}: cannot start: {message}; try again later")))
            }
        }
    }

    /// The texts of all templates, joined by newlines.
    pub fn source(&self) -> String {
        let sources = self.compiled.borrow_owner();
        let texts: Vec<&str> = sources.iter().map(|(_, text, _)| text.as_str()).collect();
        texts.join("\n")
    }

    /// The template that Transformers would choose.
    fn select(&self, with_tools: bool) -> Result<(&str, &Path)> {
        let sources = self.compiled.borrow_owner();
        let find = |name: &str| sources.iter().find(|(other, ..)| other == name);
        let found = with_tools.then(|| find("tool_use")).flatten().or_else(|| find("default"));
        match found {
            Some((name, _, path)) => Ok((name, path)),
            None => {
                let names: Vec<&str> = sources.iter().map(|(name, ..)| name.as_str()).collect();
                Err(Error::invalid(format!(
                    "the model has several chat templates ({}), none of them named default",
                    names.join(", ")
                )))
            }
        }
    }

    fn render_error(&self, path: &Path, memory: usize, error: &minijinja::Error) -> Error {
        let limits = &self.limits;
        if error.detail() == Some(python::TOO_MUCH_MEMORY) {
            return too_much_memory(path, memory);
        }
        match error.kind() {
            ErrorKind::OutOfFuel => {
                refuse(path, &format!("runs for more than {} instructions", limits.fuel))
            }
            ErrorKind::WriteFailure => {
                refuse(path, &format!("writes more than {} bytes", limits.max_output_bytes))
            }
            _ => describe(path, error),
        }
    }
}

fn refuse(path: &Path, what: &str) -> Error {
    Error::invalid(format!("chat template {}: {what}", path.display()))
}

fn too_much_memory(path: &Path, memory: usize) -> Error {
    refuse(path, &format!("uses more than {} MiB of memory", memory >> 20))
}

fn describe(path: &Path, error: &minijinja::Error) -> Error {
    let line = error.line().map_or(String::new(), |line| format!(":{line}"));
    let mut message = format!("chat template {}{line}: {}", path.display(), error.kind());
    if let Some(detail) = error.detail() {
        message += ": ";
        message += detail;
    }
    Error::invalid(message)
}

/// Collects the output of a template, up to a limit.
struct Limited {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "output limit"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn environment<'a>(fuel: u64, strftime: Strftime) -> Environment<'a> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_fuel(Some(fuel));
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_formatter(|out, _, value| {
        python::check_size(0)?;
        let written = match value.as_str() {
            Some(text) => out.write_str(text),
            None => out.write_str(&python::to_str(value)?),
        };
        written.map_err(minijinja::Error::from)
    });
    methods::install(&mut env);
    env.add_function("raise_exception", |message: &Value| -> std::result::Result<Value, _> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, python::to_str(message)?))
    });
    env.add_function("strftime_now", move |format: &str| {
        strftime(format).ok_or_else(|| {
            minijinja::Error::new(ErrorKind::InvalidOperation, "strftime_now: invalid format")
        })
    });
    env
}

/// The templates, searched as in Transformers.
fn read_sources(directory: &Path, files: &ModelFiles) -> Result<Vec<Source>> {
    let mut paths = vec![("default".to_string(), directory.join("chat_template.jinja"))];
    if let Ok(entries) = fs::read_dir(directory.join("additional_chat_templates")) {
        let mut more: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        more.sort();
        for path in more {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Some(name) = name.strip_suffix(".jinja") {
                paths.push((name.to_string(), path));
            }
        }
    }
    let mut sources = Vec::new();
    for (name, path) in paths {
        let Some(bytes) = read_optional(&path)? else { continue };
        let source = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Error::invalid(format!("chat template {}: not UTF-8 at byte {at}", path.display()))
        })?;
        // Python reads text files with universal newlines.
        sources.push((name, source.replace("\r\n", "\n").replace('\r', "\n"), path));
    }
    if !sources.is_empty() {
        return Ok(sources);
    }
    config_sources(files)
}

/// The templates in `tokenizer_config.json`.
fn config_sources(files: &ModelFiles) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    let path = &files.config_path;
    let bad = |what: &str| Error::invalid(format!("{}: chat_template{what}", path.display()));
    match files.config.get("chat_template") {
        None | Some(Json::Null) => {}
        Some(Json::String(source)) => sources.push(("default".into(), source.clone(), path.clone())),
        Some(Json::Object(named)) => {
            for (name, source) in named {
                let source =
                    source.as_str().ok_or_else(|| bad(&format!(".{name} must be a string")))?;
                sources.push((name.clone(), source.to_string(), path.clone()));
            }
        }
        Some(Json::Array(list)) => {
            for (i, entry) in list.iter().enumerate() {
                let text = |field: &str| {
                    entry
                        .get(field)
                        .and_then(Json::as_str)
                        .map(str::to_string)
                        .ok_or_else(|| bad(&format!("[{i}].{field} must be a string")))
                };
                sources.push((text("name")?, text("template")?, path.clone()));
            }
        }
        Some(_) => return Err(bad(" must be a string, or a list of objects with name and template")),
    }
    Ok(sources)
}

/// Replaces Transformers' `{% generation %}` blocks, which mark and print their content, by `{% with %}`
/// blocks, which only print it.
pub fn plain_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(begin) = rest.find("{%") {
        let inside = &rest[begin + 2..];
        let Some(length) = inside.find("%}") else { break };
        let body = &inside[..length];
        let left = if body.starts_with(['-', '+']) { &body[..1] } else { "" };
        let tail = &body[left.len()..];
        let right = if tail.ends_with(['-', '+']) { &tail[tail.len() - 1..] } else { "" };
        let tag = tail[..tail.len() - right.len()].trim();
        out.push_str(&rest[..begin]);
        match tag {
            "generation" => out.push_str(&format!("{{%{left} with {right}%}}")),
            "endgeneration" => out.push_str(&format!("{{%{left} endwith {right}%}}")),
            _ => {
                // Not the end of the tag: a string in it may hold "%}" or "{%".
                out.push_str("{%");
                rest = inside;
                continue;
            }
        }
        rest = &inside[length + 2..];
    }
    out.push_str(rest);
    out
}

/// Nesting depth of arrays and objects. `text` need not be valid JSON.
fn depth_of(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn parse(argument: &str, text: &str) -> Result<Json> {
    let depth = depth_of(text);
    if depth > MAX_INPUT_DEPTH {
        return Err(Error::invalid(format!(
            "{argument}: nesting depth {depth}; allowed: at most {MAX_INPUT_DEPTH}"
        )));
    }
    serde_json::from_str(text).map_err(|error| Error::invalid(format!("{argument}: {error}")))
}

/// The conversation for templates: without null fields, with the reasoning under all of its names.
fn parse_messages(text: &str) -> Result<Json> {
    let Json::Array(messages) = parse("messages", text)? else {
        return Err(Error::invalid("messages: must be an array of objects"));
    };
    if messages.is_empty() {
        return Err(Error::invalid("messages: must hold at least one message"));
    }
    let mut out = Vec::with_capacity(messages.len());
    for (i, message) in messages.into_iter().enumerate() {
        let Json::Object(fields) = message else {
            return Err(Error::invalid(format!("messages[{i}]: must be an object")));
        };
        let mut fields: Map<String, Json> =
            fields.into_iter().filter(|(_, value)| !value.is_null()).collect();
        let reasoning = REASONING.iter().find_map(|name| fields.get(*name).cloned());
        if let Some(reasoning) = reasoning {
            let mut ordered = Map::new();
            ordered.insert("thinking".into(), reasoning.clone());
            ordered.extend(fields);
            ordered.insert("reasoning_content".into(), reasoning);
            fields = ordered;
        }
        out.push(Json::Object(fields));
    }
    Ok(Json::Array(out))
}

fn parse_tools(text: &str) -> Result<Json> {
    if text.trim().is_empty() {
        return Ok(Json::Null);
    }
    let tools = parse("tools", text)?;
    match &tools {
        Json::Null => {}
        Json::Array(list) => {
            if let Some(i) = list.iter().position(|tool| !tool.is_object()) {
                return Err(Error::invalid(format!("tools[{i}]: must be an object")));
            }
        }
        _ => return Err(Error::invalid("tools: must be an array of objects")),
    }
    Ok(tools)
}

fn parse_extra(text: &str) -> Result<Map<String, Json>> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match parse("template arguments", text)? {
        Json::Null => Ok(Map::new()),
        Json::Object(extra) => match extra.keys().find(|key| RESERVED.contains(&key.as_str())) {
            Some(key) => Err(Error::invalid(format!("template arguments: {key:?} cannot be given"))),
            None => Ok(extra),
        },
        _ => Err(Error::invalid("template arguments: must be an object")),
    }
}
