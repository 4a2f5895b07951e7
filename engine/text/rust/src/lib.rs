//! Tokenizers, grammars and chat templates for engine/text, behind the C ABI of `tandem_text.h`.
//!
//! `model_files` reads the small files of a model. `tokenizer` and `pieces` convert text to ids and back.
//! `grammar` and `gbnf` constrain what a model writes. `template` renders conversations; `python` formats values as Python does, and `bounded` limits memory with
//! separate heaps. `ffi` is the C interface. Only `bounded` and `ffi` use raw pointers.

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
