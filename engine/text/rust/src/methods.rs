//! Python's methods and Jinja2's filters and tests that minijinja lacks or defines differently.

use std::borrow::Cow;

use minijinja::value::{from_args, Kwargs, Rest, Value, ValueKind};
use minijinja::{filters, Environment, Error, ErrorKind, State};

use crate::python;

pub fn install(env: &mut Environment<'static>) {
    minijinja_contrib::add_to_environment(env);
    env.set_unknown_method_callback(call_method);
    env.add_filter("tojson", python::tojson);
    env.add_filter("string", |value: &Value| python::to_str(value));
    env.add_filter("trim", |value: &Value, chars: Option<String>| -> Result<String, Error> {
        Ok(strip(&python::to_str(value)?, chars.as_deref(), true, true).to_string())
    });
    env.add_filter("join", join);
    bound_filters(env);
    env.add_filter("int", |value: &Value, default: Option<i64>| -> Value {
        match value.as_str() {
            Some(text) => match strip(text, None, true, true).parse::<i64>() {
                Ok(number) => Value::from(number),
                Err(_) => match strip(text, None, true, true).parse::<f64>() {
                    Ok(number) if number.is_finite() => Value::from(number as i64),
                    _ => Value::from(default.unwrap_or(0)),
                },
            },
            None if value.kind() == ValueKind::Bool => Value::from(value.is_true() as i64),
            None if value.is_integer() => value.clone(),
            None => match f64::try_from(value.clone()) {
                Ok(number) if number.is_finite() => Value::from(number as i64),
                _ => Value::from(default.unwrap_or(0)),
            },
        }
    });
    // In Python, strings and mappings have a length, and can be indexed and iterated.
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map)
    });
    env.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::String
                | ValueKind::Seq
                | ValueKind::Iterable
                | ValueKind::Map
                | ValueKind::Undefined
        )
    });
    env.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
}

fn join(
    value: &Value,
    joiner: Option<String>,
    attribute: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let joiner = match joiner {
        Some(joiner) => joiner,
        None => kwargs.get::<Option<String>>("d")?.unwrap_or_default(),
    };
    let attribute = match attribute {
        Some(attribute) => Some(attribute),
        None => kwargs.get::<Option<Value>>("attribute")?,
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    if value.is_undefined() {
        return Ok(out);
    }
    for (i, item) in value.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(&joiner);
        }
        let item = match &attribute {
            Some(name) => item.get_item(name)?,
            None => item,
        };
        out.push_str(&python::to_str(&item)?);
        python::check_size(out.len())?;
    }
    Ok(out)
}

/// Checks the output size of minijinja's filters whose output may be much longer than their input, before
/// they run.
fn bound_filters(env: &mut Environment<'static>) {
    guard(env, "replace", Value::from_function(filters::replace), |args| match args {
        [text, from, to, ..] => replaced(&str_of(text)?, &str_of(from)?, str_of(to)?.len()),
        _ => Ok(0),
    });
    guard(env, "indent", Value::from_function(filters::indent), |args| {
        let Some(text) = args.first() else { return Ok(0) };
        let text = str_of(text)?;
        let width = argument(args, 1, "width").and_then(|width| width.as_usize()).unwrap_or(4);
        let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
        Ok(lines.saturating_mul(width).saturating_add(text.len()))
    });
    guard(env, "format", Value::from_function(filters::format), formatted);
    guard(env, "pprint", Value::from_function(filters::pprint), |args| sum_of(args, 4));
    for (name, filter) in [
        ("list", Value::from_function(filters::list)),
        ("batch", Value::from_function(filters::batch)),
        ("slice", Value::from_function(filters::slice)),
        ("map", Value::from_function(filters::map)),
        ("chain", Value::from_function(filters::chain)),
        ("upper", Value::from_function(filters::upper)),
        ("lower", Value::from_function(filters::lower)),
    ] {
        guard(env, name, filter, |_| Ok(0));
    }
}

/// Replaces a filter by one that first checks its output size, `bytes`.
fn guard(
    env: &mut Environment<'static>,
    name: &'static str,
    filter: Value,
    bytes: fn(&[Value]) -> Result<usize, Error>,
) {
    env.add_filter(name, move |state: &State, args: Rest<Value>| -> Result<Value, Error> {
        python::check_size(bytes(&args)?)?;
        filter.call(state, &args)
    });
}

fn str_of(value: &Value) -> Result<Cow<'_, str>, Error> {
    match value.as_str() {
        Some(text) => Ok(Cow::Borrowed(text)),
        None => python::to_str(value).map(Cow::Owned),
    }
}

/// An argument by position or by name. Named arguments come last, in one value.
fn argument(args: &[Value], place: usize, name: &str) -> Option<Value> {
    let named = args.last().filter(|last| last.is_kwargs())?.get_attr(name).ok();
    match args.get(place) {
        Some(value) if !value.is_kwargs() => Some(value.clone()),
        _ => named.filter(|value| !value.is_undefined()),
    }
}

fn replaced(text: &str, from: &str, to: usize) -> Result<usize, Error> {
    let times = if from.is_empty() { text.len() + 1 } else { text.matches(from).count() };
    Ok(text.len().saturating_add(times.saturating_mul(to)))
}

/// Upper bound of a formatted text: each number may be a width, and each argument may be used anywhere.
fn formatted(args: &[Value]) -> Result<usize, Error> {
    let Some((format, args)) = args.split_first() else { return Ok(0) };
    let format = str_of(format)?;
    let widths = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let wide = widths.map(|digits| digits.parse::<usize>().unwrap_or(usize::MAX));
    let places = format.matches(['%', '{']).count();
    let args = sum_of(args, 4)?.saturating_mul(places.max(1));
    Ok(wide.fold(format.len().saturating_add(args), usize::saturating_add))
}

fn sum_of(values: &[Value], times: usize) -> Result<usize, Error> {
    let mut sum = 0usize;
    for value in values {
        sum = sum.saturating_add(str_of(value)?.len());
    }
    Ok(sum.saturating_mul(times))
}

fn call_method(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    python::check_size(method_size(value, method, args)?)?;
    let own = match value.kind() {
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq | ValueKind::Iterable => seq_method(value, method, args)?,
        ValueKind::Map if method == "copy" => {
            let () = from_args(args)?;
            Some(value.clone())
        }
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// Upper bound of a method's output, if it may be much longer than its input.
fn method_size(value: &Value, method: &str, args: &[Value]) -> Result<usize, Error> {
    let Some(text) = value.as_str() else { return Ok(0) };
    match (method, args) {
        ("replace", [from, to, ..]) => replaced(text, &str_of(from)?, str_of(to)?.len()),
        ("format", _) => formatted(&[&[value.clone()], args].concat()),
        ("join", [items, ..]) => {
            let mut bytes = 0usize;
            for item in items.try_iter()? {
                let item = item.as_str().map_or(0, str::len);
                bytes = bytes.saturating_add(item).saturating_add(text.len());
            }
            Ok(bytes)
        }
        _ => Ok(0),
    }
}

fn seq_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "copy" => {
            let () = from_args(args)?;
            value.clone()
        }
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            match value.try_iter()?.position(|item| item == *what) {
                Some(i) => Value::from(i),
                None => return Err(failed(format!("{what} is not in list"))),
            }
        }
        _ => return Ok(None),
    }))
}

fn failed(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Python's strip, lstrip and rstrip.
fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let cut = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let text = if left { text.trim_start_matches(cut) } else { text };
    if right {
        text.trim_end_matches(cut)
    } else {
        text
    }
}

/// Character index of byte offset `at`; -1: none.
fn char_index(text: &str, at: Option<usize>) -> i64 {
    at.map_or(-1, |at| text[..at].chars().count() as i64)
}

fn string_method(s: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(s, chars, method != "rstrip", method != "lstrip"))
        }
        "split" | "rsplit" => {
            let (sep, max, kwargs): (Option<String>, Option<i64>, Kwargs) = from_args(args)?;
            let sep = match sep {
                Some(sep) => Some(sep),
                None => kwargs.get::<Option<String>>("sep")?,
            };
            let max = match max {
                Some(max) => max,
                None => kwargs.get::<Option<i64>>("maxsplit")?.unwrap_or(-1),
            };
            kwargs.assert_all_used()?;
            if sep.as_deref() == Some("") {
                return Err(failed("empty separator"));
            }
            let max = usize::try_from(max).unwrap_or(usize::MAX - 1);
            let parts = if method == "split" {
                split(s, sep.as_deref(), max)
            } else {
                rsplit(s, sep.as_deref(), max)
            };
            Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>())
        }
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = match keep {
                Some(keep) => keep,
                None => kwargs.get::<Option<bool>>("keepends")?.unwrap_or(false),
            };
            kwargs.assert_all_used()?;
            Value::from(split_lines(s, keep).into_iter().map(Value::from).collect::<Vec<_>>())
        }
        "partition" | "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            let found = if method == "partition" { s.find(sep) } else { s.rfind(sep) };
            let parts = match (found, method) {
                (Some(at), _) => [&s[..at], sep, &s[at + sep.len()..]],
                (None, "partition") => [s, "", ""],
                (None, _) => ["", "", s],
            };
            Value::from(parts.map(Value::from).to_vec())
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(s.strip_prefix(prefix).unwrap_or(s))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(s.strip_suffix(suffix).unwrap_or(s))
        }
        "find" | "index" | "rfind" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let at = if method.starts_with('r') { s.rfind(what) } else { s.find(what) };
            if at.is_none() && method.ends_with("index") {
                return Err(failed("substring not found"));
            }
            Value::from(char_index(s, at))
        }
        "count" => {
            let (what,): (&str,) = from_args(args)?;
            Value::from(if what.is_empty() { s.chars().count() + 1 } else { s.matches(what).count() })
        }
        "isspace" => {
            let () = from_args(args)?;
            Value::from(!s.is_empty() && s.chars().all(is_space))
        }
        "isdigit" | "isnumeric" | "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!s.is_empty() && s.chars().all(char::is_numeric))
        }
        "isalpha" => {
            let () = from_args(args)?;
            Value::from(!s.is_empty() && s.chars().all(char::is_alphabetic))
        }
        "isalnum" => {
            let () = from_args(args)?;
            Value::from(!s.is_empty() && s.chars().all(char::is_alphanumeric))
        }
        "islower" => {
            let () = from_args(args)?;
            Value::from(s.chars().any(char::is_lowercase) && !s.chars().any(char::is_uppercase))
        }
        "isupper" => {
            let () = from_args(args)?;
            Value::from(s.chars().any(char::is_uppercase) && !s.chars().any(char::is_lowercase))
        }
        "title" => {
            let () = from_args(args)?;
            let mut inside = false;
            let mut out = String::with_capacity(s.len());
            for c in s.chars() {
                if inside {
                    out.extend(c.to_lowercase());
                } else {
                    out.extend(c.to_uppercase());
                }
                inside = c.is_alphabetic();
            }
            Value::from(out)
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let missing = width.min(1 << 20).saturating_sub(s.chars().count());
            let digits = s.strip_prefix(['+', '-']).unwrap_or(s);
            let sign = &s[..s.len() - digits.len()];
            Value::from(format!("{sign}{}{digits}", "0".repeat(missing)))
        }
        "ljust" | "rjust" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            let missing = width.min(1 << 20).saturating_sub(s.chars().count());
            let pad = fill.unwrap_or(" ").repeat(missing);
            Value::from(if method == "ljust" { format!("{s}{pad}") } else { format!("{pad}{s}") })
        }
        _ => return Ok(None),
    }))
}

fn split<'a>(s: &'a str, sep: Option<&str>, max: usize) -> Vec<&'a str> {
    let Some(sep) = sep else {
        let mut parts = Vec::new();
        let mut rest = s.trim_start_matches(is_space);
        while !rest.is_empty() {
            if parts.len() == max {
                parts.push(rest);
                break;
            }
            let end = rest.find(is_space).unwrap_or(rest.len());
            parts.push(&rest[..end]);
            rest = rest[end..].trim_start_matches(is_space);
        }
        return parts;
    };
    s.splitn(max.saturating_add(1), sep).collect()
}

fn rsplit<'a>(s: &'a str, sep: Option<&str>, max: usize) -> Vec<&'a str> {
    let mut parts: Vec<&str> = match sep {
        Some(sep) => s.rsplitn(max.saturating_add(1), sep).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = s.trim_end_matches(is_space);
            while !rest.is_empty() {
                if parts.len() == max {
                    parts.push(rest);
                    break;
                }
                let begin = rest
                    .char_indices()
                    .rev()
                    .find(|(_, c)| is_space(*c))
                    .map_or(0, |(at, c)| at + c.len_utf8());
                parts.push(&rest[begin..]);
                rest = rest[..begin].trim_end_matches(is_space);
            }
            parts
        }
    };
    parts.reverse();
    parts
}

fn split_lines(s: &str, keep: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut begin = 0;
    let mut chars = s.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let ends = matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
        if !ends {
            continue;
        }
        let mut next = at + c.len_utf8();
        if c == '\r' && chars.peek().is_some_and(|(_, c)| *c == '\n') {
            chars.next();
            next += 1;
        }
        lines.push(if keep { &s[begin..next] } else { &s[begin..at] });
        begin = next;
    }
    if begin < s.len() {
        lines.push(&s[begin..]);
    }
    lines
}
