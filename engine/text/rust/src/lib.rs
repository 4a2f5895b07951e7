//! Tokenizers and chat templates for engine/text, behind the C ABI of `tandem_text.h`.
//!
//! `model_files` reads what lies beside a model, `tokenizer` and `pieces` turn text into ids and back,
//! `template` renders conversations with the help of `python` (what Python does with values) and
//! `bounded` (memory limits, with heaps of their own), and `ffi` is the border to C. The latter two alone have
//! raw pointers.

pub mod bounded;
pub mod byte_alphabet;
pub mod error;
pub mod ffi;
pub mod methods;
pub mod model_files;
pub mod pieces;
pub mod python;
pub mod template;
pub mod tokenizer;
