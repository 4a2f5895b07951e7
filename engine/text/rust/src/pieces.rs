//! The text that each token adds when decoded, for decoders that allow a table.
//! See `engine/text/piece_table.h` for its columns.

use tokenizers::{Decoder, DecoderWrapper};

use crate::byte_alphabet::byte_alphabet;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

pub const OPAQUE: u32 = 0;
pub const BYTES: u32 = 1;
pub const PIECES: u32 = 2;

pub const PRESENT: u8 = 1;
pub const SPECIAL: u8 = 2;
const BYTE: u8 = 4;
const WHOLE: u8 = 8;

#[derive(Default)]
pub struct Pieces {
    pub kind: u32,
    pub strip_char: u32,
    pub strip_count: usize,
    pub flags: Vec<u8>,
    pub text: Vec<u8>,
    pub text_end: Vec<u32>,
    pub first: Vec<u8>,
    pub first_end: Vec<u32>,
}

/// The parts of a decoder that the table needs.
enum Shape<'a> {
    Opaque,
    Bytes,
    /// `steps` apply per token, then `byte_fallback`. Then up to `strip.1` leading characters `strip.0` of
    /// the whole text are removed.
    Pieces { steps: Vec<&'a DecoderWrapper>, byte_fallback: bool, strip: Option<(char, usize)> },
    /// No decoder: tokens joined by spaces.
    Joined,
}

impl Pieces {
    pub fn of(tokenizer: &Tokenizer) -> Result<Self> {
        let shape = match tokenizer.decoder() {
            None => Shape::Joined,
            Some(decoder) => shape_of(decoder),
        };
        let mut pieces = Pieces {
            kind: match shape {
                Shape::Opaque => OPAQUE,
                Shape::Bytes => BYTES,
                _ => PIECES,
            },
            ..Pieces::default()
        };
        if let Shape::Pieces { strip: Some((content, count)), .. } = &shape {
            (pieces.strip_char, pieces.strip_count) = (*content as u32, *count);
        }
        let alphabet = byte_alphabet();
        for id in 0..tokenizer.vocab_size() as u32 {
            let token = tokenizer.token_text(id);
            let mut flags = 0;
            let (mut text, mut first) = (Vec::new(), Vec::new());
            if let Some(token) = token {
                flags |= PRESENT;
                flags |= if tokenizer.is_special(&token) { SPECIAL } else { 0 };
                match &shape {
                    Shape::Opaque => {}
                    Shape::Bytes => {
                        text = byte_level(&token, &alphabet);
                        flags |= if std::str::from_utf8(&text).is_ok() { WHOLE } else { 0 };
                    }
                    Shape::Joined => {
                        text = format!(" {token}").into_bytes();
                        first = token.into_bytes();
                        flags |= WHOLE;
                    }
                    Shape::Pieces { steps, byte_fallback, .. } => {
                        let as_first = apply(steps, vec![token.clone()])?;
                        let after = apply(steps, vec!["x".to_string(), token])?;
                        match (*byte_fallback).then(|| (byte_of(&as_first), byte_of(&after))) {
                            Some((Some(a), Some(b))) if a == b => {
                                text = vec![a];
                                first = vec![a];
                                flags |= BYTE;
                            }
                            Some((None, None)) | None => {
                                text = after.into_bytes();
                                first = as_first.into_bytes();
                                flags |= WHOLE;
                            }
                            // A byte at one position and text at another: no known decoder does this.
                            _ => return Ok(Pieces::opaque(tokenizer)),
                        }
                    }
                }
            }
            pieces.flags.push(flags);
            pieces.text.extend(text);
            pieces.first.extend(first);
            pieces.text_end.push(end_of(&pieces.text)?);
            pieces.first_end.push(end_of(&pieces.first)?);
        }
        let same = pieces.first == pieces.text && pieces.first_end == pieces.text_end;
        if pieces.kind != PIECES || same {
            pieces.first.clear();
            pieces.first_end.clear();
        }
        Ok(pieces)
    }

    fn opaque(tokenizer: &Tokenizer) -> Self {
        let flags = (0..tokenizer.vocab_size() as u32).map(|id| match tokenizer.token_text(id) {
            None => 0,
            Some(token) if tokenizer.is_special(&token) => PRESENT | SPECIAL,
            Some(_) => PRESENT,
        });
        let mut pieces = Pieces { flags: flags.collect(), ..Pieces::default() };
        pieces.text_end = vec![0; pieces.flags.len()];
        pieces
    }
}

fn end_of(blob: &[u8]) -> Result<u32> {
    u32::try_from(blob.len()).map_err(|_| Error::invalid("the vocabulary has more than 4 GiB of text"))
}

fn shape_of(decoder: &DecoderWrapper) -> Shape<'_> {
    let mut list = Vec::new();
    flatten(decoder, &mut list);
    if matches!(list[..], [DecoderWrapper::ByteLevel(_)]) {
        return Shape::Bytes;
    }
    let mut rest = &list[..];
    let mut steps = Vec::new();
    while let Some((step, tail)) = rest.split_first() {
        match step {
            DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_) | DecoderWrapper::Replace(_) => {
                steps.push(*step)
            }
            // The library fails to strip the ends of short tokens, so it decodes these itself.
            DecoderWrapper::Strip(strip) if strip.stop == 0 => steps.push(*step),
            _ => break,
        }
        rest = tail;
    }
    let byte_fallback = matches!(rest.first(), Some(DecoderWrapper::ByteFallback(_)));
    if byte_fallback {
        rest = &rest[1..];
    }
    let mut strip = None;
    if let Some((DecoderWrapper::Fuse(_), tail)) = rest.split_first() {
        rest = tail;
        if let Some((DecoderWrapper::Strip(last), tail)) = rest.split_first() {
            if last.stop == 0 {
                strip = Some((last.content, last.start));
                rest = tail;
            }
        }
    }
    if rest.is_empty() {
        Shape::Pieces { steps, byte_fallback, strip }
    } else {
        Shape::Opaque
    }
}

fn flatten<'a>(decoder: &'a DecoderWrapper, list: &mut Vec<&'a DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            sequence.get_decoders().iter().for_each(|decoder| flatten(decoder, list))
        }
        other => list.push(other),
    }
}

/// The last of `tokens` after `steps`.
fn apply(steps: &[&DecoderWrapper], tokens: Vec<String>) -> Result<String> {
    let tokens = steps
        .iter()
        .try_fold(tokens, |tokens, step| step.decode_chain(tokens))
        .map_err(|error| Error::internal(format!("decoder: {error}")))?;
    Ok(tokens.into_iter().next_back().unwrap_or_default())
}

/// The byte of a token like `<0x0A>`, as the library's ByteFallback reads it.
fn byte_of(token: &str) -> Option<u8> {
    if token.len() == 6 && token.starts_with("<0x") && token.ends_with('>') {
        token.get(3..5).and_then(|digits| u8::from_str_radix(digits, 16).ok())
    } else {
        None
    }
}

/// Bytes of a token in GPT-2's byte alphabet; the token itself if it has other characters.
fn byte_level(token: &str, alphabet: &[Option<u8>]) -> Vec<u8> {
    token
        .chars()
        .map(|c| alphabet.get(c as usize).copied().flatten())
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}
