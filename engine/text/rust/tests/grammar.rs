//! Tests out of reach of C++: vocabularies with special tokens, and GBNF's translation.

use std::sync::Arc;

use tandem_text::gbnf::to_lark;
use tandem_text::grammar::{Kind, Vocabulary};
use tandem_text::tokenizer::Tokenizer;

fn vocabulary() -> Vocabulary {
    Vocabulary::new(Arc::new(Tokenizer::bytes().unwrap()), &[256]).unwrap()
}

#[test]
fn gbnf_rules_that_do_not_recurse_are_terminals() {
    let lark = to_lark("root ::= a root | b\na ::= \"x\"+\nb ::= a [^a-c\\]]{2,}\n").unwrap();
    assert!(lark.starts_with("start: r0_root\n"), "{lark}");
    assert!(lark.contains("T1_A: (\"x\")+\n"), "{lark}");
    assert!(lark.contains("T2_B: T1_A (/[^a-c\\x5D]/){2,}\n"), "{lark}");
}

#[test]
fn special_tokens_are_legal_only_by_name() {
    let words = vocabulary();
    assert!(words.is_canonical());
    let mut any = words.compile(Kind::Regex, "(.|\\n)*", "").unwrap();
    let mut bits = vec![0u32; 9];
    assert!(any.mask(&mut bits).unwrap());
    assert_eq!(bits[8], 1, "the end token");
    let mut named = words.compile(Kind::Grammar, "start: \"a\" <|endoftext|> \"b\"", "").unwrap();
    assert_eq!(named.advance(&[97]).unwrap(), 1);
    assert!(!named.mask(&mut bits).unwrap());
    assert_eq!((bits[3], bits[8]), (0, 1));
}

#[test]
fn bytes_that_are_not_utf8_are_illegal() {
    let mut any = vocabulary().compile(Kind::Regex, "(.|\\n)*", "").unwrap();
    assert_eq!(any.advance(&[0xFF]).unwrap(), 0);
    assert_eq!(any.advance(&[0xC3, 0xA4]).unwrap(), 2);
    assert_eq!(any.advance(&[0xC3, 0x28]).unwrap(), 1);
}
