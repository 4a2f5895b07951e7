//! Python's `str()`, `repr()` and `json.dumps`, for templates.

use std::fmt::Write;

use minijinja::value::{from_args, Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::bounded;

/// Nested containers deeper than this are an error (JSON input is limited to 128 levels).
const MAX_DEPTH: usize = 256;

/// Fails if a render may not make a text of this size, or holds too much memory.
pub fn check_size(bytes: usize) -> Result<(), Error> {
    bounded::check_text(bytes).map_err(|excess| match excess {
        bounded::Excess::Text => Error::new(ErrorKind::WriteFailure, "too long"),
        bounded::Excess::Memory => Error::new(ErrorKind::InvalidOperation, TOO_MUCH_MEMORY),
    })
}

/// The detail of such errors.
pub const TOO_MUCH_MEMORY: &str = "too much memory";

/// Python's `str(value)` as Jinja prints it: undefined values are empty.
pub fn to_str(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_string());
    }
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        _ => {
            let mut out = String::new();
            write_repr(value, &mut out, 0)?;
            Ok(out)
        }
    }
}

fn write_repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    check_size(out.len())?;
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => write_number(value, out, ["inf", "-inf", "nan"]),
        ValueKind::String => write_string_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(&item, out, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(&key, out, depth + 1)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}").expect("writing to a string"),
    }
    Ok(())
}

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply"));
    }
    Ok(())
}

/// `specials`: infinity, negative infinity, not a number.
fn write_number(value: &Value, out: &mut String, specials: [&str; 3]) {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => out.push_str(&float_repr(number, specials)),
        _ => write!(out, "{value}").expect("writing to a string"),
    }
}

/// Python's `repr(float)`: the shortest digits that parse to the same value; exponents below -4 and from 16.
fn float_repr(number: f64, specials: [&str; 3]) -> String {
    if number.is_nan() {
        return specials[2].to_string();
    }
    if number.is_infinite() {
        return specials[usize::from(number < 0.0)].to_string();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    }
}

fn write_string_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = c as u32;
                let escape = match code {
                    0..=0xFF => format!("\\x{code:02x}"),
                    0x100..=0xFFFF => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                };
                out.push_str(&escape);
            }
        }
    }
    out.push(quote);
}

/// Python's `str.isprintable`, except for unassigned code points.
fn is_printable(c: char) -> bool {
    !matches!(c as u32,
        0x00..=0x1F | 0x7F..=0xA0 | 0xAD | 0x600..=0x605 | 0x61C | 0x6DD | 0x70F | 0x890..=0x891
        | 0x8E2 | 0x1680 | 0x180E | 0x2000..=0x200F | 0x2028..=0x202F | 0x205F..=0x206F | 0x3000
        | 0xE000..=0xF8FF | 0xFEFF | 0xFFF0..=0xFFFB | 0xFFFE..=0xFFFF | 0x110BD | 0x110CD
        | 0x13430..=0x1343F | 0x1BCA0..=0x1BCA3 | 0x1D173..=0x1D17A | 0xE0000..=0xE00FF
        | 0xE01F0..=0x10FFFF)
}

/// The `tojson` filter as Transformers defines it: `json.dumps` without HTML escapes.
pub fn tojson(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    type Arguments = (Option<Value>, Option<Value>, Option<Value>, Option<Value>, Kwargs);
    let (ensure_ascii, indent, separators, sort_keys, kwargs): Arguments = from_args(&args)?;
    let argument = |given: Option<Value>, name: &str| -> Result<Option<Value>, Error> {
        let value = if given.is_some() { given } else { kwargs.get::<Option<Value>>(name)? };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = argument(ensure_ascii, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = argument(indent, "indent")?;
    let separators = argument(separators, "separators")?;
    let sort_keys = argument(sort_keys, "sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;

    let indent = match indent {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(i64::try_from(indent)?.clamp(0, 1000) as usize),
        }),
    };
    let (item_separator, key_separator) = match separators {
        Some(pair) => (to_str(&pair.get_item_by_index(0)?)?, to_str(&pair.get_item_by_index(1)?)?),
        None => ((if indent.is_some() { "," } else { ", " }).to_string(), ": ".to_string()),
    };
    let mut json = Json {
        out: String::new(),
        ensure_ascii,
        indent,
        item_separator,
        key_separator,
        sort_keys,
    };
    json.write(value, 0)?;
    Ok(json.out)
}

struct Json {
    out: String,
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl Json {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        check_size(self.out.len())?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write_number(value, &mut self.out, ["Infinity", "-Infinity", "NaN"]),
            ValueKind::String => {
                let text = value.as_str().unwrap_or_default();
                check_size(self.out.len() + text.len())?;
                self.write_string(text);
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                check_size(0)?;
                self.write_all('[', ']', items.len(), depth, |json, i| json.write(&items[i], depth + 1))?
            }
            ValueKind::Map => {
                let mut keys: Vec<(String, Value)> = Vec::new();
                for key in value.try_iter()? {
                    keys.push((self.key_text(&key)?, key));
                }
                if self.sort_keys {
                    keys.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_all('{', '}', keys.len(), depth, |json, i| {
                    json.write_string(&keys[i].0);
                    let separator = json.key_separator.clone();
                    json.out.push_str(&separator);
                    json.write(&value.get_item(&keys[i].1)?, depth + 1)
                })?
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("a value of type {kind} is not JSON serializable"),
                ))
            }
        }
        Ok(())
    }

    fn write_all(
        &mut self,
        open: char,
        close: char,
        count: usize,
        depth: usize,
        mut write_item: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for i in 0..count {
            if i > 0 {
                let separator = self.item_separator.clone();
                self.out.push_str(&separator);
            }
            self.new_line(depth + 1)?;
            write_item(self, i)?;
        }
        if count > 0 {
            self.new_line(depth)?;
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            check_size(self.out.len() + depth * indent.len())?;
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
        Ok(())
    }

    fn key_text(&self, key: &Value) -> Result<String, Error> {
        match key.kind() {
            ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
            ValueKind::None => Ok("null".to_string()),
            ValueKind::Bool => Ok((if key.is_true() { "true" } else { "false" }).to_string()),
            ValueKind::Number => to_str(key),
            kind => Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("keys must be str, int, float, bool or None, not {kind}"),
            )),
        }
    }

    fn write_string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ensure_ascii && (c as u32) > 0x7E) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(self.out, "\\u{unit:04x}").expect("writing to a string");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
