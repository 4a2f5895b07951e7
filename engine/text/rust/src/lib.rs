//! Tokenizers, grammars and chat templates for engine/text, behind the C ABI of `tandem_text.h`.
//!
//! `model_files` reads the small files of a model. `tokenizer` and `pieces` convert text to ids and back.
//! `grammar` and `gbnf` constrain what a model writes. `template` renders conversations; `python` formats values as Python does, and `bounded` limits memory with
//! separate heaps. `ffi` is the C interface. `watch` ends
//! steps of grammars that take too long. Only `bounded`, `ffi` and `watch` are unsafe.

pub mod bounded;
pub mod byte_alphabet;
pub mod error;
pub mod ffi;
pub mod gbnf;
pub mod grammar;
pub mod methods;
pub mod model_files;
pub mod pieces;
pub mod python;
pub mod template;
pub mod tokenizer;
mod watch;
