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

/// Whether the grammar accepts the whole text.
fn accepts(lark: &str, text: &str) -> bool {
    let mut m = vocabulary().compile(Kind::Grammar, lark, "").unwrap();
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    m.advance(&tokens).unwrap() == tokens.len() && m.is_accepting().unwrap()
}

fn refused(lark: &str) -> String {
    vocabulary().compile(Kind::Grammar, lark, "").err().unwrap().message
}

#[test]
fn json_in_lark_is_as_json_schemas_are() {
    let schema = r#"{"properties": {"a": {"type": "integer"}},
        "additionalProperties": {"type": "string"}}"#;
    let lark = format!("start: \"<\" %json {schema} \">\"");
    assert!(accepts(&lark, "<{\"a\": 1}>"));
    assert!(accepts(&lark, "<{\"b\": \"x\\n\"}>"));
    // The name "a" has one spelling.
    assert!(!accepts(&lark, "<{\"\\u0061\": \"x\"}>"));
    assert!(!accepts(&lark, "<{\"b\": \"\\u0061\"}>"));
    // Whitespace is bounded.
    assert!(accepts(&lark, &format!("<{{{}\"a\": 1}}>", " ".repeat(32))));
    assert!(!accepts(&lark, &format!("<{{{}\"a\": 1}}>", " ".repeat(33))));
    // Inside %lark, and behind texts that look like it.
    let nested = format!("start: inner\ninner: %lark {{\n  start: %json {schema}\n}}");
    assert!(!accepts(&nested, "{\"\\u0061\": \"x\"}"));
    for before in ["\"%json {\" ", "/%json \\{/ ", "\"\\\"%json{\" "] {
        let text = before.trim_matches(|c| "\"/ ".contains(c)).replace('\\', "");
        let lark = format!("// %json {{\nstart: {before} %json {schema} # %json {{");
        assert!(accepts(&lark, &format!("{text}{{\"a\": 1}}")), "{lark}");
        assert!(!accepts(&lark, &format!("{text}{{\"\\u0061\": \"x\"}}")), "{lark}");
    }
    // Booleans, and options that the grammar sets itself.
    assert!(accepts("start: %json true", "\"x\""));
    assert!(!accepts("start: %json true", "\"\\u0061\""));
    let own = r#"start: %json {"x-guidance": {"whitespace_flexible": false}, "items": {}}"#;
    assert!(accepts(own, "[1,2]") && !accepts(own, "[\"\\u0061\"]"));
}

#[test]
fn keywords_of_json_in_lark_are_refused_by_name() {
    assert_eq!(
        refused(r#"start: %json {"x-guidance": {"lenient": true}, "not": {}}"#),
        "grammar: %json: /x-guidance/lenient: keyword not supported"
    );
    assert_eq!(
        refused(r#"start: %json {"x-guidance": {"json_allowed_escapes": "nu"}}"#),
        "grammar: %json: /x-guidance/json_allowed_escapes: \"u\", allowed: of nrbtf\\\""
    );
    assert_eq!(
        refused(r#"start: %json {"x-guidance": 1}"#),
        "grammar: %json: /x-guidance: allowed: a JSON object"
    );
    assert_eq!(
        refused(r#"start: %json {"properties": {"a": {"enum": ["\u0001"]}}}"#),
        "grammar: %json: /properties/a/enum: control characters not supported"
    );
    assert!(refused(r#"start: %json {"items": {"minProperties": 5}}"#).contains("/items/minProperties"));
    assert!(refused("start: %json 12").contains("a JSON object or boolean"));
    // Lines of errors are those of the client.
    assert!(refused("start: %json {\n\n}\n other").contains("4("));
}

#[test]
fn steps_without_end_are_ended() {
    let words = vocabulary();
    for lark in ["start: /b+/ \"b\"", "start: \"a\" start", "start: \"x\" /[ab]+/ /[ab]/"] {
        let start = words.compile(Kind::Grammar, lark, "").unwrap();
        let mut bits = vec![0u32; 9];
        let mut m = start.copy().unwrap();
        let error = m.mask(&mut bits).err();
        if lark.contains('+') && !lark.contains('x') {
            assert_eq!(
                error.unwrap().message,
                "constraint: a step took more than 200 ms of processor time"
            );
            assert!(m.mask(&mut bits).is_err(), "it stays in error");
        }
        // Copies of a position before the step are not affected.
        assert!(start.copy().unwrap().advance(&[98]).is_ok());
    }
}

#[test]
fn fixed_text_beyond_the_limits_is_an_error_of_its_mask() {
    let mut m = vocabulary().compile(Kind::Grammar, "start: \"a\" | \"b\" c\nc: \"c\" c", "").unwrap();
    let mut bits = vec![0u32; 9];
    assert!(!m.mask(&mut bits).unwrap());
    assert_eq!(m.advance(&[98]).unwrap(), 1);
    assert!(m.mask(&mut bits).is_err(), "although its one token is known");
    assert!(m.mask(&mut bits).is_err(), "it stays in error");
}
