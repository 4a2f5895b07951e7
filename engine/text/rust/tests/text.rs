//! Tests out of reach of C++: memory limits, panics, and helpers of templates.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use tandem_text::bounded::{catch, check, check_text, run, Bounds, Excess, Failure};
use tandem_text::error::Code;
use tandem_text::template::{plain_generation_tags, Limits, Template};
use tandem_text::tokenizer::{SpecialText, Tokenizer};

/// A temporary directory, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(format!("tandem_text_{}_{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        for (file, text) in files {
            fs::write(path.join(file), text).unwrap();
        }
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn template(name: &str, source: &str, fuel: u64) -> Template {
    let folder = Folder::new(name, &[("chat_template.jinja", source)]);
    let limits = Limits { fuel, max_output_bytes: 1000 };
    Template::load(&folder.0, limits, Arc::new(|format: &str| Some(format!("<{format}>"))))
        .unwrap()
        .unwrap()
}

const BOUNDS: Bounds = Bounds { soft: 1 << 19, hard: 1 << 20, text: 1000 };

#[test]
fn bounded_jobs_return_their_value() {
    assert_eq!(run(BOUNDS, || vec![1u8; 1000].len()), Ok(1000));
}

#[test]
fn bounded_memory_counts_what_is_held_at_a_time() {
    let churn = || (0..1000).map(|i| vec![i as u8; 500_000].len()).sum::<usize>();
    assert_eq!(run(BOUNDS, churn), Ok(500_000_000));
    let hoard = || (0..1000).map(|i| vec![i as u8; 500_000]).collect::<Vec<_>>().len();
    assert_eq!(run(BOUNDS, hoard), Err(Failure::Memory));
    // This thread has no limit.
    assert_eq!(vec![1u8; 10 << 20].len(), 10 << 20);
}

#[test]
fn bounded_jobs_may_look_at_what_they_hold() {
    let hoard = || {
        let held: Vec<_> = (0..5).map(|i| vec![i as u8; 100_000]).collect();
        let held = std::hint::black_box(held);
        let before = check();
        let more = std::hint::black_box(vec![1u8; 100_000]);
        (held.len(), before, more.len(), check())
    };
    assert_eq!(run(BOUNDS, hoard), Ok((5, Ok(()), 100_000, Err(Excess::Memory))));
    assert_eq!(run(BOUNDS, || check_text(1000)), Ok(Ok(())));
    assert_eq!(run(BOUNDS, || check_text(1001)), Ok(Err(Excess::Text)));
    assert_eq!(check_text(1 << 40), Ok(())); // no limits here
}

#[test]
fn panics_become_messages() {
    assert_eq!(catch(|| -> i32 { panic!("number {}", 7) }), Err("number 7".to_string()));
    assert_eq!(run(BOUNDS, || -> i32 { panic!("static") }), Err(Failure::Panic("static".into())));
    assert_eq!(catch(|| 5), Ok(5));
}

#[test]
fn generation_tags_are_replaced() {
    for (source, expected) in [
        ("{% generation %}x{% endgeneration %}", "{% with %}x{% endwith %}"),
        ("{%- generation -%}x{%-endgeneration+%}", "{%- with -%}x{%- endwith +%}"),
        ("{% if generation %}{{ '{% generation' }}", "{% if generation %}{{ '{% generation' }}"),
        ("{{ '{%' }}{% generation %}", "{{ '{%' }}{% with %}"),
        ("no tags", "no tags"),
    ] {
        assert_eq!(plain_generation_tags(source), expected);
    }
}

#[test]
fn generation_blocks_print_their_content() {
    let source = "{% for m in messages %}{%- generation -%} {{ m.content }} {%- endgeneration -%}!{% endfor %}";
    let text = template("generation", source, 1000).render(r#"[{"content": "a"}]"#, "", "", false);
    assert_eq!(text.unwrap(), "a!");
}

#[test]
fn clock_and_variables_reach_the_template() {
    let t = template("clock", "{{ strftime_now('%Y') }} {{ x }} {{ bos_token }}", 1000);
    assert_eq!(t.render(r#"[{}]"#, "", r#"{"x": "é"}"#, false).unwrap(), "<%Y> é ");
}

#[test]
fn fuel_and_output_are_limited() {
    let loop_ = "{% for i in range(100) %}{{ i }}{% endfor %}";
    assert!(template("enough", loop_, 10_000).render("[{}]", "", "", false).is_ok());
    let error = template("starved", loop_, 100).render("[{}]", "", "", false).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    assert!(error.message.contains("more than 100 instructions"), "{error}");
    let error = template("long", "{{ 'x' * 1001 }}", 100).render("[{}]", "", "", false).unwrap_err();
    assert!(error.message.contains("more than 1000 bytes"), "{error}");
}

#[test]
fn no_input_makes_a_template_too_large() {
    let deep = |n: usize| format!("{{\"a\": {}1{}}}", "[".repeat(n), "]".repeat(n));
    let many = format!("{{\"a\": [{}1]}}", "1,".repeat(20_000));
    let long = format!("{{\"a\": \"{}\", \"b\": 100000000}}", "x\\n".repeat(300));
    for (source, extra, message) in [
        ("{{ a | tojson(indent=400) }}", many.as_str(), "more than 1000 bytes"),
        ("{% set x = a | tojson(indent=4) %}", many.as_str(), "more than 1000 bytes"),
        ("{% set x = a | string %}", many.as_str(), "more than 1000 bytes"),
        ("{% set x = a | join(', ') %}", many.as_str(), "more than 1000 bytes"),
        ("{% set x = ','.join(a | map('string')) %}", many.as_str(), "more than 1000 bytes"),
        ("{% set x = a | indent(b) %}", long.as_str(), "more than 1000 bytes"),
        ("{% set x = a | indent(width=b) %}", long.as_str(), "more than 1000 bytes"),
        ("{% set x = a | replace('x', a) %}", long.as_str(), "more than 1000 bytes"),
        ("{% set x = a | replace('', a) %}", long.as_str(), "more than 1000 bytes"),
        ("{% set x = a.replace('x', a) %}", long.as_str(), "more than 1000 bytes"),
        ("{% set x = '%0100000000d' | format(b) %}", long.as_str(), "more than 1000 bytes"),
        ("{% set x = '{:>100000000}'.format(a) %}", long.as_str(), "more than 1000 bytes"),
        ("{{ a }}", deep(64).as_str(), "allowed: at most 64"),
    ] {
        let t = template("large", source, 1_000_000);
        for _ in 0..5 {
            let error = t.render("[{}]", "", extra, false).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(error.message.contains(message), "{source}: {error}");
        }
    }
    let t = template("fine", "{{ a | length }}", 1_000_000);
    assert_eq!(t.render("[{}]", "", &deep(63), false).unwrap(), "1");
    assert_eq!(t.render("[{}]", "", r#"{"a": "[[[[\"[["}"#, false).unwrap(), "7");
}

/// Threads and resident bytes of the process.
fn footprint() -> (usize, usize) {
    let threads = fs::read_dir("/proc/self/task").unwrap().count();
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    (threads, pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() << 12)
}

/// Operators allocate between two checks: the render fails, and its thread and memory are freed.
#[test]
fn templates_of_operators_fail_alone() {
    let join = "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s OP ns.s %}{% endfor %}";
    let guard = |source: &str| format!("{{% if messages | length > 1 %}}{source}{{% endif %}}ok");
    for (name, source) in [
        ("concat", guard(&join.replace("OP", "~"))),
        ("add", guard(&join.replace("OP", "+"))),
        ("raw", guard(&format!("{{% set a %}}{{% for i in range(99999) %}}{}{{% endfor %}}{{% endset %}}", "x".repeat(9999)))),
    ] {
        let t = template(name, &source, 1_000_000);
        let mut before = (0, 0);
        for i in 0..4 {
            let error = t.render("[{}, {}]", "", "", false).expect_err(name);
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(error.message.contains("MiB of memory"), "{source}: {error}");
            assert_eq!(t.render("[{}]", "", "", false).unwrap(), "ok", "{name}");
            if i == 0 {
                before = footprint();
            }
        }
        let after = footprint();
        // Other tests of this process run at the same time, one thread each.
        assert!(after.0 <= before.0 + 8, "{name}: {before:?} {after:?}");
        assert!(after.1 <= before.1 + (64 << 20), "{name}: {before:?} {after:?}");
    }
}

#[test]
fn tokenizer_adds_what_the_configuration_names() {
    let file = r#"{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"}}"#;
    let config = r#"{"eos_token": "<end>", "added_tokens_decoder":
        {"4": {"content": "<tool>", "special": false, "normalized": false}}}"#;
    let folder =
        Folder::new("config", &[("tokenizer.json", file), ("tokenizer_config.json", config)]);
    let tokenizer = Tokenizer::load(&folder.0).unwrap();
    // The added token comes first, so it takes the next free id, as in Transformers.
    assert_eq!(tokenizer.token_id("<tool>"), Some(3));
    assert_eq!(tokenizer.token_id("<end>"), Some(4));
    assert_eq!(tokenizer.encode("a<end>b", false, SpecialText::Parse).unwrap(), [0, 4, 1]);
    assert_eq!(tokenizer.decode(&[0, 3, 4, 1], true).unwrap(), "a <tool> b");
    assert_eq!(tokenizer.decode(&[4], true).unwrap(), "");
    assert_eq!(tokenizer.vocab_size(), 5);
}
