//! A `tokenizer.json`, extended as Transformers does. See `engine/text/tokenizer.h`.

use std::path::Path;
use std::sync::OnceLock;

use tokenizers::{AddedToken, Decoder, ModelWrapper};

use crate::byte_alphabet::byte_alphabet;
use crate::error::{Error, Result};
use crate::model_files::{read_optional, ModelFiles};

/// Treatment of text that spells a special token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialText {
    AsConfigured,
    Parse,
    Plain,
}

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// `inner` with the other setting of `encode_special_tokens`, made at first use.
    other: OnceLock<tokenizers::Tokenizer>,
    clean_up_spaces: bool,
    vocab_size: usize,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and the other tokenizer files of the directory.
    pub fn load(directory: &Path) -> Result<Self> {
        let path = directory.join("tokenizer.json");
        let bytes = read_optional(&path)?.ok_or_else(|| {
            Error::not_found(format!("{}: no such file; tokenizer.json is needed", path.display()))
        })?;
        let inner = tokenizers::Tokenizer::from_bytes(&bytes)
            .map_err(|error| Error::invalid(format!("{}: {error}", path.display())))?;
        Self::new(inner, &ModelFiles::read(directory)?)
            .map_err(|error| Error { message: format!("{}: {error}", path.display()), ..error })
    }

    /// From the texts of `tokenizer.json` and `tokenizer_config.json`. `name` replaces the file names in
    /// messages.
    pub fn parse(name: &str, json: &str, config: &str) -> Result<Self> {
        let context = |error: Error| Error { message: format!("{name}: {error}"), ..error };
        let inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|error| Error::invalid(format!("{name}: {error}")))?;
        Self::new(inner, &ModelFiles::from_config(name, config)?).map_err(context)
    }

    /// Bytes as tokens 0 to 255 and `<|endoftext|>` as 256, for models without files.
    pub fn bytes() -> Result<Self> {
        let mut vocab = serde_json::Map::new();
        for (code, byte) in byte_alphabet().iter().enumerate() {
            let (Some(byte), Some(letter)) = (byte, char::from_u32(code as u32)) else { continue };
            vocab.insert(letter.to_string(), (*byte).into());
        }
        let json = serde_json::json!({
            "version": "1.0",
            "added_tokens": [{"id": 256, "content": "<|endoftext|>", "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
                "trim_offsets": false, "use_regex": false},
            "decoder": {"type": "ByteLevel", "add_prefix_space": false,
                "trim_offsets": false, "use_regex": false},
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        let inner = tokenizers::Tokenizer::from_bytes(json.to_string())
            .map_err(|error| Error::internal(error.to_string()))?;
        Self::new(inner, &ModelFiles::default())
    }

    fn new(mut inner: tokenizers::Tokenizer, files: &ModelFiles) -> Result<Self> {
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| Error::internal(error.to_string()))?;
        inner.set_encode_special_tokens(files.flag("split_special_tokens"));

        // Same tokens and order as in Transformers: ids depend on it.
        let mut tokens: Vec<AddedToken> = files.added.iter().map(|(_, t)| t.clone()).collect();
        let known = inner.get_added_vocabulary().get_vocab().clone();
        for token in files.named.iter().map(|(_, token)| token).chain(&files.extra) {
            if !known.contains_key(&token.content)
                && !tokens.iter().any(|other| other.content == token.content)
            {
                tokens.push(token.clone());
            }
        }
        for token in &mut tokens {
            token.special |= files.named.iter().any(|(_, named)| named.content == token.content);
        }
        if !tokens.is_empty() {
            inner.add_tokens(&tokens);
        }

        let is_bpe = matches!(inner.get_model(), ModelWrapper::BPE(_));
        let force =
            files.flag("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output");
        let clean_up_spaces = files.flag("clean_up_tokenization_spaces") && (!is_bpe || force);
        let vocab = inner.get_vocab(true);
        let vocab_size = vocab.values().max().map_or(0, |id| *id as usize + 1);
        // Ids index tables here and the embedding rows of the model.
        if vocab_size > 4 * (vocab.len() + 100_000) {
            return Err(Error::invalid(format!(
                "the largest token id is {}, but there are only {} tokens",
                vocab_size - 1,
                vocab.len()
            )));
        }
        Ok(Tokenizer { inner, other: OnceLock::new(), clean_up_spaces, vocab_size })
    }

    pub fn encode(&self, text: &str, add_special: bool, special: SpecialText) -> Result<Vec<u32>> {
        let configured = self.inner.get_encode_special_tokens();
        let wanted = match special {
            SpecialText::AsConfigured => configured,
            SpecialText::Parse => false,
            SpecialText::Plain => true,
        };
        let tokenizer = if wanted == configured {
            &self.inner
        } else {
            self.other.get_or_init(|| {
                let mut other = self.inner.clone();
                other.set_encode_special_tokens(wanted);
                other
            })
        };
        let encoding = tokenizer
            .encode_fast(text, add_special)
            .map_err(|error| Error::internal(format!("tokenizer: {error}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let tokens: Vec<String> = ids
            .iter()
            .filter_map(|id| self.inner.id_to_token(*id))
            .filter(|token| !skip_special || !self.is_special(token))
            .collect();
        if tokens.is_empty() {
            return Ok(String::new()); // some decoders fail on empty input
        }
        let text = match self.inner.get_decoder() {
            Some(decoder) => decoder
                .decode(tokens)
                .map_err(|error| Error::internal(format!("tokenizer: {error}")))?,
            None => tokens.join(" "),
        };
        Ok(if self.clean_up_spaces { clean_up_spaces(&text) } else { text })
    }

    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub fn token_text(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    pub fn is_special(&self, token: &str) -> bool {
        self.inner.get_added_vocabulary().is_special_token(token)
    }

    pub fn decoder(&self) -> Option<&tokenizers::DecoderWrapper> {
        self.inner.get_decoder()
    }
}

/// Transformers' `clean_up_tokenization`.
fn clean_up_spaces(text: &str) -> String {
    const REPLACEMENTS: [(&str, &str); 10] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    REPLACEMENTS.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to))
}
