//! The C ABI of `tandem_text.h`. Every function catches panics. The header defines the ownership of memory.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr;
use std::slice;
use std::sync::Arc;

use crate::bounded::catch;
use crate::error::{Error, Result};
use crate::grammar::{Kind, Matcher, Vocabulary};
use crate::pieces::Pieces;
use crate::template::{Limits, Template};
use crate::tokenizer::{SpecialText, Tokenizer};

#[repr(C)]
pub struct TandemBytes {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

#[repr(C)]
pub struct TandemIds {
    data: *mut u32,
    size: usize,
    capacity: usize,
}

impl From<Vec<u8>> for TandemBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        TandemBytes { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() }
    }
}

impl From<String> for TandemBytes {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<Vec<u32>> for TandemIds {
    fn from(ids: Vec<u32>) -> Self {
        let mut ids = ManuallyDrop::new(ids);
        TandemIds { data: ids.as_mut_ptr(), size: ids.len(), capacity: ids.capacity() }
    }
}

/// # Safety
/// `bytes` is zero, or was returned by this library and not freed.
#[no_mangle]
pub unsafe extern "C" fn tandem_bytes_free(bytes: TandemBytes) {
    if !bytes.data.is_null() {
        drop(Vec::from_raw_parts(bytes.data, bytes.size, bytes.capacity));
    }
}

/// # Safety
/// `ids` is zero, or was returned by this library and not freed.
#[no_mangle]
pub unsafe extern "C" fn tandem_ids_free(ids: TandemIds) {
    if !ids.data.is_null() {
        drop(Vec::from_raw_parts(ids.data, ids.size, ids.capacity));
    }
}

/// Runs `job`. Returns 0 and passes its value to `store`, or returns a code and writes a message to `error`.
unsafe fn guarded<T>(
    error: *mut TandemBytes,
    store: impl FnOnce(T),
    job: impl FnOnce() -> Result<T>,
) -> c_int {
    let outcome = catch(job).unwrap_or_else(|message| Err(Error::internal(message)));
    match outcome {
        Ok(value) => {
            store(value);
            0
        }
        Err(failure) => {
            if !error.is_null() {
                error.write(failure.message.into());
            }
            failure.code as c_int
        }
    }
}

unsafe fn text<'a>(what: &str, data: *const c_char, size: usize) -> Result<&'a str> {
    if size == 0 {
        return Ok("");
    }
    std::str::from_utf8(slice::from_raw_parts(data.cast::<u8>(), size)).map_err(|error| {
        Error::invalid(format!("{what}: invalid UTF-8 at byte {}", error.valid_up_to()))
    })
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_load(
    directory: *const c_char,
    directory_size: usize,
    tokenizer: *mut *const Tokenizer,
    error: *mut TandemBytes,
) -> c_int {
    guarded(
        error,
        |loaded| tokenizer.write(Arc::into_raw(Arc::new(loaded))),
        || Tokenizer::load(Path::new(text("directory", directory, directory_size)?)),
    )
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_parse(
    name: *const c_char,
    name_size: usize,
    json: *const c_char,
    json_size: usize,
    config: *const c_char,
    config_size: usize,
    tokenizer: *mut *const Tokenizer,
    error: *mut TandemBytes,
) -> c_int {
    guarded(
        error,
        |loaded| tokenizer.write(Arc::into_raw(Arc::new(loaded))),
        || {
            Tokenizer::parse(
                text("name", name, name_size)?,
                text("tokenizer.json", json, json_size)?,
                text("tokenizer_config.json", config, config_size)?,
            )
        },
    )
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_bytes(
    tokenizer: *mut *const Tokenizer,
    error: *mut TandemBytes,
) -> c_int {
    guarded(
        error,
        |loaded| tokenizer.write(Arc::into_raw(Arc::new(loaded))),
        Tokenizer::bytes,
    )
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_free(tokenizer: *const Tokenizer) {
    if !tokenizer.is_null() {
        let _ = catch(|| drop(Arc::from_raw(tokenizer)));
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_encode(
    tokenizer: *const Tokenizer,
    data: *const c_char,
    size: usize,
    add_special_tokens: c_int,
    special_text: c_int,
    ids: *mut TandemIds,
    error: *mut TandemBytes,
) -> c_int {
    guarded(
        error,
        |found: Vec<u32>| ids.write(found.into()),
        || {
            let special = match special_text {
                1 => SpecialText::Parse,
                2 => SpecialText::Plain,
                _ => SpecialText::AsConfigured,
            };
            (*tokenizer).encode(text("text", data, size)?, add_special_tokens != 0, special)
        },
    )
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_decode(
    tokenizer: *const Tokenizer,
    ids: *const u32,
    count: usize,
    skip_special_tokens: c_int,
    out: *mut TandemBytes,
    error: *mut TandemBytes,
) -> c_int {
    guarded(
        error,
        |decoded: String| out.write(decoded.into()),
        || {
            let ids = if count == 0 { &[] } else { slice::from_raw_parts(ids, count) };
            (*tokenizer).decode(ids, skip_special_tokens != 0)
        },
    )
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_vocab_size(tokenizer: *const Tokenizer) -> usize {
    (*tokenizer).vocab_size()
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_token_text(
    tokenizer: *const Tokenizer,
    id: u32,
) -> TandemBytes {
    match catch(|| (*tokenizer).token_text(id)) {
        Ok(Some(text)) => text.into(),
        _ => TandemBytes { data: ptr::null_mut(), size: 0, capacity: 0 },
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_token_id(
    tokenizer: *const Tokenizer,
    data: *const c_char,
    size: usize,
) -> i64 {
    match catch(|| text("token", data, size).map(|token| (*tokenizer).token_id(token))) {
        Ok(Ok(Some(id))) => i64::from(id),
        _ => -1,
    }
}

#[repr(C)]
pub struct TandemPieces {
    kind: u32,
    strip_char: u32,
    strip_count: usize,
    flags: TandemBytes,
    text: TandemBytes,
    text_end: TandemIds,
    first: TandemBytes,
    first_end: TandemIds,
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_pieces(
    tokenizer: *const Tokenizer,
    pieces: *mut TandemPieces,
    error: *mut TandemBytes,
) -> c_int {
    guarded(
        error,
        |found: Pieces| {
            pieces.write(TandemPieces {
                kind: found.kind,
                strip_char: found.strip_char,
                strip_count: found.strip_count,
                flags: found.flags.into(),
                text: found.text.into(),
                text_end: found.text_end.into(),
                first: found.first.into(),
                first_end: found.first_end.into(),
            })
        },
        || Pieces::of(&*tokenizer),
    )
}

pub type TandemStrftime =
    unsafe extern "C" fn(*mut c_void, *const c_char, usize, *mut c_char, usize) -> usize;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TandemTemplateLimits {
    fuel: u64,
    max_output_bytes: usize,
}

/// The caller's clock.
struct Clock {
    call: TandemStrftime,
    context: *mut c_void,
}

// SAFETY: the header requires a function that may be called from any thread.
unsafe impl Send for Clock {}
unsafe impl Sync for Clock {}

impl Clock {
    fn format(&self, format: &str) -> Option<String> {
        if format.is_empty() {
            return Some(String::new());
        }
        let mut out = vec![0u8; 4096];
        // SAFETY: both buffers outlive the call, and their sizes are passed.
        let size = unsafe {
            (self.call)(
                self.context,
                format.as_ptr().cast(),
                format.len(),
                out.as_mut_ptr().cast(),
                out.len(),
            )
        };
        if size == 0 || size > out.len() {
            return None;
        }
        out.truncate(size);
        String::from_utf8(out).ok()
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_template_load(
    directory: *const c_char,
    directory_size: usize,
    limits: TandemTemplateLimits,
    strftime_now: TandemStrftime,
    strftime_context: *mut c_void,
    chat_template: *mut *mut Template,
    error: *mut TandemBytes,
) -> c_int {
    let clock = Clock { call: strftime_now, context: strftime_context };
    guarded(
        error,
        |loaded: Option<Template>| {
            chat_template.write(loaded.map_or(ptr::null_mut(), |t| Box::into_raw(Box::new(t))))
        },
        || {
            let limits = Limits { fuel: limits.fuel, max_output_bytes: limits.max_output_bytes };
            let path = Path::new(text("directory", directory, directory_size)?);
            Template::load(path, limits, Arc::new(move |format: &str| clock.format(format)))
        },
    )
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_template_parse(
    name: *const c_char,
    name_size: usize,
    config: *const c_char,
    config_size: usize,
    limits: TandemTemplateLimits,
    strftime_now: TandemStrftime,
    strftime_context: *mut c_void,
    chat_template: *mut *mut Template,
    error: *mut TandemBytes,
) -> c_int {
    let clock = Clock { call: strftime_now, context: strftime_context };
    guarded(
        error,
        |loaded: Option<Template>| {
            chat_template.write(loaded.map_or(ptr::null_mut(), |t| Box::into_raw(Box::new(t))))
        },
        || {
            let limits = Limits { fuel: limits.fuel, max_output_bytes: limits.max_output_bytes };
            let strftime = Arc::new(move |format: &str| clock.format(format));
            let name = text("name", name, name_size)?;
            let config = text("tokenizer_config.json", config, config_size)?;
            Template::parse(name, config, limits, strftime)
        },
    )
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_template_free(chat_template: *mut Template) {
    if !chat_template.is_null() {
        let _ = catch(|| drop(Box::from_raw(chat_template)));
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_template_source(
    chat_template: *const Template,
    out: *mut TandemBytes,
    error: *mut TandemBytes,
) -> c_int {
    guarded(error, |source: String| out.write(source.into()), || Ok((*chat_template).source()))
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_template_render(
    chat_template: *const Template,
    messages: *const c_char,
    messages_size: usize,
    tools: *const c_char,
    tools_size: usize,
    extra: *const c_char,
    extra_size: usize,
    add_generation_prompt: c_int,
    out: *mut TandemBytes,
    error: *mut TandemBytes,
) -> c_int {
    guarded(
        error,
        |rendered: String| out.write(rendered.into()),
        || {
            (*chat_template).render(
                text("messages", messages, messages_size)?,
                text("tools", tools, tools_size)?,
                text("template arguments", extra, extra_size)?,
                add_generation_prompt != 0,
            )
        },
    )
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_vocabulary_new(
    tokenizer: *const Tokenizer,
    ends: *const u32,
    count: usize,
    vocabulary: *mut *mut Vocabulary,
    error: *mut TandemBytes,
) -> c_int {
    guarded(
        error,
        |made| vocabulary.write(Box::into_raw(Box::new(made))),
        || {
            Arc::increment_strong_count(tokenizer);
            Vocabulary::new(Arc::from_raw(tokenizer), ids(ends, count))
        },
    )
}

unsafe fn ids<'a>(data: *const u32, count: usize) -> &'a [u32] {
    if count == 0 {
        return &[];
    }
    slice::from_raw_parts(data, count)
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_vocabulary_free(vocabulary: *mut Vocabulary) {
    if !vocabulary.is_null() {
        let _ = catch(|| drop(Box::from_raw(vocabulary)));
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_vocabulary_compile(
    vocabulary: *const Vocabulary,
    kind: c_int,
    data: *const c_char,
    size: usize,
    whitespace: *const c_char,
    whitespace_size: usize,
    matcher: *mut *mut Matcher,
    error: *mut TandemBytes,
) -> c_int {
    guarded(
        error,
        |made| matcher.write(Box::into_raw(Box::new(made))),
        || {
            let kind = Kind::from_code(kind)
                .ok_or_else(|| Error::internal(format!("constraint: unknown kind {kind}")))?;
            let whitespace = text("whitespace_pattern", whitespace, whitespace_size)?;
            (*vocabulary).compile(kind, text("constraint", data, size)?, whitespace)
        },
    )
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_free(matcher: *mut Matcher) {
    if !matcher.is_null() {
        let _ = catch(|| drop(Box::from_raw(matcher)));
    }
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_copy(
    matcher: *const Matcher,
    copy: *mut *mut Matcher,
    error: *mut TandemBytes,
) -> c_int {
    guarded(error, |made| copy.write(Box::into_raw(Box::new(made))), || (*matcher).copy())
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_advance(
    matcher: *mut Matcher,
    tokens: *const u32,
    count: usize,
    legal: *mut usize,
    error: *mut TandemBytes,
) -> c_int {
    guarded(error, |n| legal.write(n), || (*matcher).advance(ids(tokens, count)))
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_rollback(
    matcher: *mut Matcher,
    count: usize,
    error: *mut TandemBytes,
) -> c_int {
    guarded(error, |()| (), || (*matcher).rollback(count))
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_validate(
    matcher: *mut Matcher,
    tokens: *const u32,
    count: usize,
    legal: *mut usize,
    error: *mut TandemBytes,
) -> c_int {
    guarded(error, |n| legal.write(n), || (*matcher).validate(ids(tokens, count)))
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_mask(
    matcher: *mut Matcher,
    bits: *mut u32,
    words: usize,
    accepting: *mut c_int,
    error: *mut TandemBytes,
) -> c_int {
    guarded(
        error,
        |may_end| accepting.write(c_int::from(may_end)),
        || (*matcher).mask(slice::from_raw_parts_mut(bits, words)),
    )
}

/// # Safety
/// See the header.
#[no_mangle]
pub unsafe extern "C" fn tandem_matcher_forced(matcher: *mut Matcher) -> TandemIds {
    catch(|| (*matcher).forced()).unwrap_or_default().into()
}
