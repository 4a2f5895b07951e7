//! Grammars: which tokens may follow a text. llguidance does the work.
//!
//! A `Vocabulary` holds the bytes of a tokenizer's tokens as a trie. It compiles a constraint to a `Matcher`,
//! which follows a sequence of tokens, tells which may come next, and rolls back.
//!
//! Untrusted input. Compilation has its own thread with a large stack, because parsers recurse. `limits()`
//! bounds time and memory of compilation and of each mask. Panics become errors.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::thread;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{JsonCompileOptions, ParserFactory};
use serde_json::{Map, Value};

use crate::bounded::catch;
use crate::error::{Error, Result};
use crate::gbnf;
use crate::pieces::{self, Pieces};
use crate::tokenizer::{SpecialText, Tokenizer};
use crate::watch::{self, Slot};

/// Bytes of a constraint's text.
pub const MAX_TEXT: usize = 512 << 10;
/// Rules of a grammar: they may nest, and derivatives of what they match recurse.
const MAX_RULES: usize = 2000;
/// Address space of a compilation's stack; pages that it does not touch cost nothing.
const COMPILE_STACK: usize = 256 << 20;
/// Whitespace between JSON tokens: models can repeat it without end.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,32}";

/// Escapes in JSON strings. Without \u, so that each text has one spelling: otherwise "\u0061" would
/// pass as a name other than "a", with the schema of additional members.
const ESCAPES: &str = "nrbtf\\\"";

/// Bounds of compilation and of each step. The crate's documentation gives the speed: 50 and 14 units of
/// fuel per microsecond, and at most 2 KB per lexer state.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 25_000,
        max_grammar_size: 250_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A JSON schema.
    JsonSchema,
    /// Any JSON object; without text.
    JsonObject,
    /// A regular expression that matches the whole answer.
    Regex,
    /// One of the texts of a JSON array.
    Choice,
    /// Lark, or GBNF if it contains `::=`.
    Grammar,
    /// Free text with tagged parts: `{"structures": [{"begin", "schema", "end"}], "triggers": []}`.
    StructuralTag,
}

impl Kind {
    pub fn from_code(code: i32) -> Option<Self> {
        use Kind::*;
        [JsonSchema, JsonObject, Regex, Choice, Grammar, StructuralTag].get(code as usize).copied()
    }

    fn field(self) -> &'static str {
        match self {
            Kind::JsonSchema => "json_schema",
            Kind::JsonObject => "json_object",
            Kind::Regex => "regex",
            Kind::Choice => "choice",
            Kind::Grammar => "grammar",
            Kind::StructuralTag => "structural_tag",
        }
    }
}

/// What llguidance needs of a tokenizer.
struct Env {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
    canonical: bool,
}

impl Env {
    /// The tokenizer's ids of `text`, if they spell it.
    fn spelled(&self, text: &str) -> Option<Vec<TokenId>> {
        let ids = self.tokenizer.encode(text, false, SpecialText::Plain).ok()?;
        let bytes: usize = ids.iter().map(|id| self.trie.token_len(*id)).sum();
        (bytes == text.len() && self.trie.decode_raw(&ids) == text.as_bytes()).then_some(ids)
    }
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            self.spelled(text).unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.canonical
    }
}

pub struct Vocabulary {
    env: Arc<Env>,
    factory: ParserFactory,
    /// Special tokens by text.
    special: HashMap<String, TokenId>,
}

impl Vocabulary {
    /// `ends` are legal where a text may end. Errors: `ends` is empty or out of range; the tokenizer has no
    /// table of bytes (`pieces`).
    pub fn new(tokenizer: Arc<Tokenizer>, ends: &[u32]) -> Result<Self> {
        let size = tokenizer.vocab_size();
        if ends.is_empty() || ends.iter().any(|id| *id as usize >= size) {
            return Err(Error::invalid(format!(
                "constraint: end-of-text tokens {ends:?}, allowed: at least one, below {size}"
            )));
        }
        let table = Pieces::of(&tokenizer)?;
        if table.kind == pieces::OPAQUE {
            return Err(Error::invalid("constraint: this tokenizer's decoder gives tokens no fixed bytes"));
        }
        let mut special = HashMap::new();
        let mut begin = 0;
        let words: Vec<Vec<u8>> = (0..size)
            .map(|id| {
                let end = table.text_end[id] as usize;
                let bytes = &table.text[std::mem::replace(&mut begin, end)..end];
                if table.flags[id] & pieces::PRESENT == 0 {
                    return Vec::new();
                }
                if table.flags[id] & pieces::SPECIAL != 0 {
                    let text = tokenizer.token_text(id as u32).unwrap_or_default();
                    special.insert(text.clone(), id as u32);
                    return [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat();
                }
                // The marker is no byte of UTF-8.
                let marked = bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER);
                if marked { Vec::new() } else { bytes.to_vec() }
            })
            .collect();
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, ends[0]), &words).with_eos_tokens(ends);
        let mut env = Env { trie, tokenizer, canonical: true };
        env.canonical = ["{\"name\": \"a b\", \"n\": [1, 2]}", "\": ", ",\n  \"", "x", " x"]
            .iter()
            .all(|text| env.spelled(text).is_some());
        let env = Arc::new(env);
        let shared: TokEnv = env.clone();
        let mut factory = ParserFactory::new_simple(&shared)
            .map_err(|error| Error::internal(format!("constraint: {error}")))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Vocabulary { env, factory, special })
    }

    /// `whitespace`: a regular expression of what may separate JSON tokens; empty: at most 32 characters.
    pub fn compile(&self, kind: Kind, text: &str, whitespace: &str) -> Result<Matcher> {
        let field = kind.field();
        let size = text.len() + whitespace.len();
        if size > MAX_TEXT {
            return Err(Error::invalid(format!("{field}: {size} bytes, allowed: at most {MAX_TEXT}")));
        }
        let compile = || {
            catch(|| {
                let result = self.compile_here(kind, text, whitespace);
                if result.is_err() && !whitespace.is_empty() {
                    // Which of the two is at fault?
                    self.compile_here(Kind::JsonObject, "", whitespace).map_err(|error| {
                        let why = error.message.trim_start_matches("json_object: ");
                        Error::invalid(format!("whitespace_pattern: {why}"))
                    })?;
                }
                result
            })
        };
        // A new thread, for its stack.
        let result = thread::scope(|scope| {
            let thread = thread::Builder::new().name("grammar".to_string()).stack_size(COMPILE_STACK);
            let handle = thread
                .spawn_scoped(scope, compile)
                .map_err(|error| Error::exhausted(format!("{field}: cannot start: {error}; try again later")))?;
            handle.join().map_err(|_| Error::internal(format!("{field}: the compilation failed")))
        })?;
        result.unwrap_or_else(|panic| Err(Error::invalid(format!("{field}: {panic}"))))
    }

    fn compile_here(&self, kind: Kind, text: &str, whitespace: &str) -> Result<Matcher> {
        let field = kind.field();
        let invalid = |message: String| Error::invalid(format!("{field}: {message}"));
        let grammar = match kind {
            Kind::JsonSchema => json_grammar(parse_json(field, text)?, whitespace, field)?,
            Kind::JsonObject => {
                json_grammar(serde_json::json!({"type": "object"}), whitespace, field)?
            }
            Kind::Regex => TopLevelGrammar::from_regex(text),
            Kind::Choice => TopLevelGrammar::from_lark(choice_grammar(&parse_json(field, text)?)?),
            Kind::Grammar => {
                let lark = if text.contains("::=") { gbnf::to_lark(text)? } else { text.to_string() };
                let rules = lark.lines().filter(|line| line.contains(':')).count();
                if rules > MAX_RULES {
                    return Err(invalid(format!("{rules} rules, allowed: at most {MAX_RULES}")));
                }
                TopLevelGrammar::from_lark(with_json_options(&lark)?)
            }
            Kind::StructuralTag => {
                TopLevelGrammar::from_lark(self.tag_grammar(&parse_json(field, text)?, whitespace)?)
            }
        };
        let parser = self
            .factory
            .create_parser_from_init_default(GrammarInit::Serialized(grammar))
            .map_err(|error| {
                let error = format!("{error:#}");
                let named = (kind == Kind::JsonSchema).then(|| keyword_at_fault(text, &error)).flatten();
                invalid(named.unwrap_or_else(|| plain(&error)))
            })?;
        let matcher = llguidance::Matcher::new(Ok(parser)).into_cancellable();
        match matcher.get_error() {
            Some(error) => Err(invalid(plain(&error))),
            None => Matcher::new(matcher),
        }
    }

    /// Text, and parts that begin with a trigger. A trigger is the start of one or more structures' `begin`.
    fn tag_grammar(&self, tag: &Value, whitespace: &str) -> Result<String> {
        let wrong = |path: &str, allowed: &str| {
            Error::invalid(format!("structural_tag: {path}: allowed: {allowed}"))
        };
        let texts = |list: Option<&Value>| -> Option<Vec<String>> {
            list?.as_array()?.iter().map(|v| v.as_str().map(str::to_string)).collect()
        };
        let triggers = texts(tag.get("triggers"))
            .filter(|list| !list.is_empty() && list.iter().all(|trigger| !trigger.is_empty()))
            .ok_or_else(|| wrong("triggers", "a list of texts"))?;
        let structures = tag
            .get("structures")
            .and_then(Value::as_array)
            .filter(|list| !list.is_empty())
            .ok_or_else(|| wrong("structures", "a list of objects"))?;
        if let Some(name) = tag.as_object().and_then(|object| {
            object.keys().find(|key| !["type", "structures", "triggers"].contains(&key.as_str()))
        }) {
            return Err(wrong(name, "type, structures and triggers"));
        }
        let mut rules = vec![String::new(); triggers.len()];
        for (i, structure) in structures.iter().enumerate() {
            let part = |name: &str| {
                structure
                    .get(name)
                    .and_then(Value::as_str)
                    .ok_or_else(|| wrong(&format!("structures[{i}].{name}"), "a text"))
            };
            let (begin, end) = (part("begin")?, part("end")?);
            let schema = structure
                .get("schema")
                .cloned()
                .ok_or_else(|| wrong(&format!("structures[{i}].schema"), "a JSON schema"))?;
            let (k, trigger) = triggers
                .iter()
                .enumerate()
                .filter(|(_, trigger)| begin.starts_with(trigger.as_str()))
                .max_by_key(|(_, trigger)| trigger.len())
                .ok_or_else(|| wrong(&format!("structures[{i}].begin"), "a text that begins with a trigger"))?;
            let schema = with_options(schema, whitespace, "structural_tag")?;
            let between = if rules[k].is_empty() { "" } else { " |" };
            let _ = write!(
                rules[k],
                "{between} {} %json {schema} {}",
                self.literal(&begin[trigger.len()..]),
                self.literal(end)
            );
        }
        let mut lark = String::from("start: (");
        let mut used = String::new();
        for (k, rule) in rules.iter().enumerate() {
            if rule.is_empty() {
                return Err(wrong(&format!("triggers[{k}]"), "the start of a structure's begin"));
            }
            let _ = write!(lark, "{}tag_{k}", if k == 0 { "" } else { " | " });
            let trigger = &triggers[k];
            if self.special.contains_key(trigger) {
                // A lazy lexeme ends at text only.
                let _ = writeln!(used, "tag_{k}: TEXT {} ({rule} )", self.literal(trigger));
            } else {
                let _ = writeln!(used, "trigger_{k}[lazy]: TEXT {}", Value::from(trigger.as_str()));
                let _ = writeln!(used, "tag_{k}: trigger_{k} ({rule} )");
            }
        }
        Ok(format!("{lark})* rest\nrest: TEXT\nTEXT: /(.|\\n)*/\n{used}"))
    }

    /// Lark for a text: its special tokens, and literals between them.
    fn literal(&self, text: &str) -> String {
        let mut out = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let found = self
                .special
                .iter()
                .filter(|(token, _)| !token.is_empty() && rest.starts_with(token.as_str()))
                .max_by_key(|(token, _)| token.len());
            if let Some((token, id)) = found {
                if !plain.is_empty() {
                    out.push(Value::from(std::mem::take(&mut plain)).to_string());
                }
                out.push(format!("<[{id}]>"));
                rest = &rest[token.len()..];
            } else {
                plain.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
        if !plain.is_empty() || out.is_empty() {
            out.push(Value::from(plain).to_string());
        }
        out.join(" ")
    }

    pub fn is_canonical(&self) -> bool {
        self.env.canonical
    }
}

fn plain(error: &str) -> String {
    error.trim_end_matches("\n<non-verbose/>").trim().replace('\n', " ")
}

fn parse_json(field: &str, text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|error| Error::invalid(format!("{field}: not JSON: {error}")))
}

fn with_options(mut schema: Value, whitespace: &str, field: &str) -> Result<Value> {
    if schema.get("x-guidance").is_some() {
        return Err(Error::invalid(format!("{field}: /x-guidance: keyword not supported")));
    }
    let pattern = if whitespace.is_empty() { WHITESPACE } else { whitespace };
    let options = JsonCompileOptions {
        whitespace_pattern: Some(pattern.to_string()),
        json_allowed_escapes: Some(ESCAPES.to_string()),
        ..Default::default()
    };
    if let Value::Bool(any) = schema {
        schema = if any { Value::Object(Map::new()) } else { serde_json::json!({"enum": []}) };
    }
    if !schema.is_object() {
        return Err(Error::invalid(format!("{field}: allowed: a JSON object or boolean")));
    }
    check_schema(&schema, field)?;
    options.apply_to(&mut schema);
    Ok(schema)
}

/// Errors: a keyword that would not be enforced.
fn check_schema(schema: &Value, field: &str) -> Result<()> {
    if let Some(path) = repeated_names(schema) {
        return Err(Error::invalid(format!(
            "{field}: {path}: supported up to the number of required names plus one, or with \
             additionalProperties: false"
        )));
    }
    let unspelled = find(schema, "", false, &|key, value, _| {
        let text = value.to_string();
        matches!(key, "const" | "enum") && (text.contains("\\u00") || text.contains('\x7F'))
    });
    if let Some(path) = unspelled {
        return Err(Error::invalid(format!("{field}: {path}: control characters not supported")));
    }
    Ok(())
}

/// A Lark grammar whose `%json` schemas have the options of JSON schemas.
fn with_json_options(lark: &str) -> Result<String> {
    let mut out = String::with_capacity(lark.len());
    let mut rest = lark;
    while !rest.is_empty() {
        let schema = rest.strip_prefix("%json").and_then(leading_json);
        let Some((schema, size)) = schema else {
            let (lexeme, after) = rest.split_at(lexeme_size(rest));
            out.push_str(lexeme);
            rest = after;
            continue;
        };
        let (text, after) = rest.split_at("%json".len() + size);
        match json_in_lark(schema)? {
            None => out.push_str(text),
            Some(schema) => {
                // Errors name lines, so their number stays.
                let (open, close) = schema.split_at(schema.len() - 1);
                let lines = "\n".repeat(text.matches('\n').count());
                let _ = write!(out, "%json {open}{lines}{close}");
            }
        }
        rest = after;
    }
    Ok(out)
}

/// The JSON object that replaces the schema of a `%json`; None: it stays.
fn json_in_lark(mut schema: Value) -> Result<Option<String>> {
    const FIELD: &str = "grammar: %json";
    const SUPPORTED: [&str; 5] = [
        "whitespace_pattern",
        "whitespace_flexible",
        "item_separator",
        "key_separator",
        "json_allowed_escapes",
    ];
    let Some(options) = schema.get_mut("x-guidance") else {
        return Ok(Some(with_options(schema, "", FIELD)?.to_string()));
    };
    let wrong = |path: &str, what: &str| Error::invalid(format!("{FIELD}: /x-guidance{path}: {what}"));
    let options = options.as_object_mut().ok_or_else(|| wrong("", "allowed: a JSON object"))?;
    if let Some(key) = options.keys().find(|key| !SUPPORTED.contains(&key.as_str())) {
        return Err(wrong(&format!("/{key}"), "keyword not supported"));
    }
    let escapes = options.get("json_allowed_escapes").cloned();
    if escapes.as_ref().and_then(Value::as_str).is_some_and(|letters| letters.contains('u')) {
        return Err(wrong("/json_allowed_escapes", &format!("\"u\", allowed: of {ESCAPES}")));
    }
    options.entry("json_allowed_escapes").or_insert_with(|| Value::from(ESCAPES));
    check_schema(&schema, FIELD)?;
    Ok(escapes.is_none().then(|| schema.to_string()))
}

/// The JSON value that `text` begins with, and its bytes.
fn leading_json(text: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let value = values.next()?.ok()?;
    Some((value, values.byte_offset()))
}

/// The bytes of the lexeme that Lark text begins with: a comment, text, regular expression, special token
/// or a keyword with its JSON; otherwise of one character.
fn lexeme_size(text: &str) -> usize {
    let through = |end: char| {
        let mut escaped = false;
        for (i, c) in text.char_indices().skip(1) {
            if c == end && !escaped {
                return Some(i + 1);
            }
            escaped = c == '\\' && !escaped;
        }
        None
    };
    let first = text.chars().next().map_or(0, char::len_utf8);
    let size = match text.as_bytes().first() {
        Some(b'#') => Some(text.find('\n').unwrap_or(text.len())),
        Some(b'/') if text.starts_with("//") => Some(text.find('\n').unwrap_or(text.len())),
        Some(b'/') => through('/'),
        Some(b'"') => through('"'),
        Some(b'<') => text[1..]
            .find(|c: char| c == '<' || c == '>' || c.is_whitespace())
            .filter(|end| text[1 + end..].starts_with('>'))
            .map(|end| end + 2),
        Some(b'%') => ["%regex", "%llguidance"].iter().find_map(|keyword| {
            let json = text.strip_prefix(keyword)?;
            Some(keyword.len() + leading_json(json).map_or(0, |(_, size)| size))
        }),
        _ => None,
    };
    size.unwrap_or(first)
}

fn json_grammar(schema: Value, whitespace: &str, field: &str) -> Result<TopLevelGrammar> {
    Ok(TopLevelGrammar::from_json_schema(with_options(schema, whitespace, field)?))
}

fn choice_grammar(texts: &Value) -> Result<String> {
    let texts: Option<Vec<&str>> =
        texts.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    match texts {
        Some(texts) if !texts.is_empty() && texts.iter().all(|text| !text.is_empty()) => {
            // One terminal: as alternatives of a rule, a text that begins another would hide it.
            let alternatives: Vec<String> =
                texts.iter().map(|text| Value::from(*text).to_string()).collect();
            Ok(format!("start: TEXT\nTEXT: {}\n", alternatives.join(" | ")))
        }
        _ => Err(Error::invalid("choice: allowed: one text or more, none empty")),
    }
}

/// Why a schema is refused, with the JSON pointer of the keyword; None: `error` names none.
fn keyword_at_fault(schema: &str, error: &str) -> Option<String> {
    let schema = serde_json::from_str(schema).ok()?;
    let first = |wanted: &dyn Fn(&str, &Value) -> bool| {
        let wanted = |key: &str, value: &Value, _: &Map<String, Value>| wanted(key, value);
        find(&schema, "", false, &wanted).or_else(|| find(&schema, "", true, &wanted))
    };
    let after = |words: &str| error.split_once(words).map(|(_, rest)| rest);
    if let Some(list) = after("Unimplemented keys: ") {
        let keys: Vec<String> = serde_json::from_str(&list[..=list.find(']')?]).ok()?;
        let path = first(&|key, _| keys.iter().any(|one| one == key))?;
        return Some(format!("{path}: keyword not supported"));
    }
    if error.contains("oneOf constraints are not supported") {
        let path = first(&|key, _| key == "oneOf")?;
        return Some(format!("{path}: supported only if at most one branch can match"));
    }
    if let Some(rest) = after("Unknown format: ") {
        let name = rest.lines().next()?.trim();
        let path = first(&|key, value| key == "format" && value.as_str() == Some(name))?;
        return Some(format!("{path}: format not supported"));
    }
    if error.contains("min/maxProperties only supported") {
        let path = first(&|key, _| key == "minProperties" || key == "maxProperties")?;
        return Some(format!("{path}: supported only if all members of properties are required"));
    }
    const NAMED: [(&str, &[&str]); 4] = [
        ("patternProperty regexes", &["patternProperties"]),
        ("regex parse error", &["pattern", "patternProperties"]),
        ("for float range", &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
        ("for integer range", &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
    ];
    if let Some((_, keywords)) = NAMED.iter().find(|(words, _)| error.contains(words)) {
        let path = first(&|key, _| keywords.contains(&key))?;
        return Some(format!("{path}: {}", plain(error)));
    }
    if let Some(rest) = after("for '") {
        let keyword = rest.split_once('\'')?.0;
        let path = first(&|key, _| key == keyword)?;
        return Some(format!("{path}: {}", plain(error)));
    }
    if error.contains("not present in a registry") {
        let path = first(&|key, value| {
            key == "$ref" && value.as_str().is_some_and(|target| !target.starts_with('#'))
        })?;
        return Some(format!("{path}: supported only within the schema"));
    }
    None
}

/// The path of a `minProperties` that an object could satisfy by a name that it repeats: names that the
/// schema does not list can follow one another.
fn repeated_names(schema: &Value) -> Option<String> {
    find(schema, "", false, &|key, value, object| {
        let required = object.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
        let closed = object.get("additionalProperties") == Some(&Value::Bool(false))
            && !object.contains_key("patternProperties");
        key == "minProperties" && value.as_u64().is_some_and(|n| n > required + 1) && !closed
    })
}

/// The JSON pointer of the first keyword of `schema` that is `wanted`. `everywhere`: also below
/// members that are no keywords, which references can name.
fn find(
    schema: &Value,
    path: &str,
    everywhere: bool,
    wanted: &dyn Fn(&str, &Value, &Map<String, Value>) -> bool,
) -> Option<String> {
    let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
    let members = schema.as_object()?;
    for (key, value) in members {
        let here = format!("{path}/{}", escaped(key));
        if wanted(key, value, members) {
            return Some(here);
        }
        let inner = match (key.as_str(), value) {
            ("enum" | "const" | "default" | "examples", _) => None,
            (
                "properties" | "patternProperties" | "$defs" | "definitions",
                Value::Object(members),
            ) => members.iter().find_map(|(name, member)| {
                find(member, &format!("{here}/{}", escaped(name)), everywhere, wanted)
            }),
            ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(list)) => list
                .iter()
                .enumerate()
                .find_map(|(i, member)| find(member, &format!("{here}/{i}"), everywhere, wanted)),
            ("items" | "additionalItems" | "additionalProperties", value) => {
                find(value, &here, everywhere, wanted)
            }
            (_, value) if everywhere => find(value, &here, everywhere, wanted),
            _ => None,
        };
        if inner.is_some() {
            return inner;
        }
    }
    None
}

/// A position in a grammar. After an error it stays in error; clone another one then.
pub struct Matcher {
    inner: llguidance::Matcher,
    slot: Arc<Slot>,
}

impl Matcher {
    fn new(inner: llguidance::Matcher) -> Result<Self> {
        let slot = Slot::new()
            .map_err(|error| Error::exhausted(format!("constraint: cannot start: {error}; try again later")))?;
        Ok(Matcher { inner, slot })
    }

    /// Errors: RESOURCE_EXHAUSTED if the step exceeds a limit.
    fn step<T>(&mut self, step: impl FnOnce(&mut llguidance::Matcher) -> anyhow::Result<T>) -> Result<T> {
        let handle = self.inner.cancellation_handle();
        let inner = &mut self.inner;
        let result = self.slot.run(handle, || step(inner));
        if self.inner.is_cancelled() {
            let limit = watch::LIMIT.as_millis();
            return Err(Error::exhausted(format!("constraint: a step took more than {limit} ms of processor time")));
        }
        result.map_err(|error| Error::exhausted(format!("constraint: {}", plain(&error.to_string()))))
    }

    /// An independent copy.
    pub fn copy(&self) -> Result<Self> {
        Self::new(self.inner.deep_clone())
    }

    /// Consumes leading tokens as far as they are legal. Returns their number. Where the text is fixed, it
    /// consumes every spelling of it; mask() has that of the tokenizer alone (`Env::tokenize_bytes`).
    pub fn advance(&mut self, tokens: &[u32]) -> Result<usize> {
        self.step(|m| m.try_consume_tokens(tokens))
    }

    /// Takes back the last `tokens` tokens.
    pub fn rollback(&mut self, tokens: usize) -> Result<()> {
        self.step(|m| m.rollback(tokens))?;
        // Its key is the lexer's state and the number of lexemes, which another path can have, too.
        // llguidance 1.9 leaves it in place.
        self.inner.invalidate_bias_cache();
        Ok(())
    }

    /// The number of leading tokens that advance() would consume.
    pub fn validate(&mut self, tokens: &[u32]) -> Result<usize> {
        if self.inner.is_stopped() && !self.inner.is_error() {
            return Ok(0);
        }
        self.step(|m| m.validate_tokens(tokens))
    }

    /// Sets the bit of each token that may come next: token i is bit i % 32 of word i / 32. Returns whether
    /// the text may end here.
    /// Errors: RESOURCE_EXHAUSTED if this step exceeds a limit, or the text that is fixed from here on does.
    pub fn mask(&mut self, bits: &mut [u32]) -> Result<bool> {
        let mask = self.step(|m| m.compute_mask_or_eos())?;
        let words = mask.as_slice();
        let n = words.len().min(bits.len());
        bits[..n].copy_from_slice(&words[..n]);
        bits[n..].fill(0);
        let may_end = self.is_accepting()?;
        if !may_end && mask.num_set() == 1 {
            // llguidance 1.9 follows fixed text ahead. If that exceeds a limit, this mask has no error, but
            // each later step has one.
            let next = mask.first_bit_set().unwrap_or_default() as TokenId;
            self.step(|m| m.clone().consume_token(next))?;
        }
        Ok(may_end)
    }

    /// Tokens that must come next, in the tokenizer's own spelling; may be empty.
    pub fn forced(&mut self) -> Vec<u32> {
        if self.inner.is_stopped() {
            return Vec::new();
        }
        self.step(|m| Ok(m.compute_ff_tokens())).unwrap_or_default()
    }

    /// The text may end here.
    pub fn is_accepting(&mut self) -> Result<bool> {
        self.step(|m| m.is_accepting())
    }
}
