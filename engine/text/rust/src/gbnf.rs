//! GBNF, the grammar format of llama.cpp, as Lark for llguidance.
//!
//! A rule that is not recursive becomes a terminal, so regular parts match as regular expressions do. A
//! recursive rule stays a rule: what its terminals match is then found by longest match.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::error::{Error, Result};

const MAX_NESTING: usize = 64;
const MAX_RULES: usize = 2000;

enum Node {
    Alternatives(Vec<Node>),
    Sequence(Vec<Node>),
    Literal(String),
    /// A regular expression of one character.
    Class(String),
    Rule(String),
    /// The node, and the Lark operator behind it.
    Repeat(Box<Node>, String),
}

/// Errors: INVALID_ARGUMENT with the line.
pub fn to_lark(text: &str) -> Result<String> {
    let mut parser = Parser { text: text.as_bytes(), at: 0, nesting: 0 };
    let mut rules = Vec::new();
    let mut names = HashMap::new();
    loop {
        parser.blanks(true);
        if parser.at == parser.text.len() {
            break;
        }
        let name = parser.name()?;
        parser.blanks(true);
        parser.expect("::=")?;
        parser.blanks(true);
        let body = parser.alternatives(false)?;
        if names.insert(name.clone(), rules.len()).is_some() {
            return Err(parser.error(&format!("a second rule \"{name}\"")));
        }
        rules.push((name, body));
        if rules.len() > MAX_RULES {
            return Err(parser.error(&format!("more than {MAX_RULES} rules")));
        }
    }
    if !names.contains_key("root") {
        return Err(parser.error("no rule \"root\""));
    }
    let mut uses: Vec<BTreeSet<usize>> = Vec::new();
    for (name, body) in &rules {
        let mut used = BTreeSet::new();
        if let Some(unknown) = collect(body, &names, &mut used) {
            return Err(parser.error(&format!("rule \"{name}\" uses \"{unknown}\", which is not defined")));
        }
        uses.push(used);
    }
    let terminal = terminals(&uses);
    let lark_names: BTreeMap<&str, String> = rules
        .iter()
        .enumerate()
        .map(|(i, (name, _))| {
            let plain = name.replace('-', "_");
            // The number keeps names apart that differ in case or dashes only.
            let lark = if terminal[i] {
                format!("T{i}_{}", plain.to_ascii_uppercase())
            } else {
                format!("r{i}_{}", plain.to_ascii_lowercase())
            };
            (name.as_str(), lark)
        })
        .collect();
    let mut lark = format!("start: {}\n", lark_names["root"]);
    for (name, body) in &rules {
        lark += &format!("{}: {}\n", lark_names[name.as_str()], written(body, &lark_names));
    }
    Ok(lark)
}

/// The first name that is not defined; else adds the rules that `node` uses.
fn collect(node: &Node, names: &HashMap<String, usize>, used: &mut BTreeSet<usize>) -> Option<String> {
    match node {
        Node::Alternatives(list) | Node::Sequence(list) => {
            list.iter().find_map(|node| collect(node, names, used))
        }
        Node::Repeat(node, _) => collect(node, names, used),
        Node::Rule(name) => match names.get(name) {
            Some(rule) => {
                used.insert(*rule);
                None
            }
            None => Some(name.clone()),
        },
        Node::Literal(_) | Node::Class(_) => None,
    }
}

/// By rule: it uses only terminals. Found from the leaves up, so recursive rules are left.
fn terminals(uses: &[BTreeSet<usize>]) -> Vec<bool> {
    let mut terminal = vec![false; uses.len()];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); uses.len()];
    let mut open: Vec<usize> = uses.iter().map(BTreeSet::len).collect();
    for (rule, used) in uses.iter().enumerate() {
        used.iter().for_each(|of| users[*of].push(rule));
    }
    let mut ready: Vec<usize> = (0..uses.len()).filter(|rule| open[*rule] == 0).collect();
    while let Some(rule) = ready.pop() {
        terminal[rule] = true;
        for user in &users[rule] {
            open[*user] -= 1;
            if open[*user] == 0 {
                ready.push(*user);
            }
        }
    }
    terminal
}

fn written(node: &Node, names: &BTreeMap<&str, String>) -> String {
    let join = |list: &[Node], between: &str| {
        list.iter().map(|node| written(node, names)).collect::<Vec<_>>().join(between)
    };
    match node {
        Node::Alternatives(list) if list.len() == 1 => written(&list[0], names),
        Node::Alternatives(list) => format!("({})", join(list, " | ")),
        Node::Sequence(list) if list.is_empty() => "\"\"".to_string(),
        Node::Sequence(list) => join(list, " "),
        Node::Literal(text) => serde_json::Value::from(text.as_str()).to_string(),
        Node::Class(class) => format!("/{class}/"),
        Node::Rule(name) => names[name.as_str()].clone(),
        Node::Repeat(node, operator) => format!("({}){operator}", written(node, names)),
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    nesting: usize,
}

impl Parser<'_> {
    fn error(&self, message: &str) -> Error {
        let line = 1 + self.text[..self.at.min(self.text.len())].iter().filter(|b| **b == b'\n').count();
        Error::invalid(format!("grammar: GBNF, line {line}: {message}"))
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn expect(&mut self, what: &str) -> Result<()> {
        if !self.text[self.at..].starts_with(what.as_bytes()) {
            return Err(self.error(&format!("expected \"{what}\"")));
        }
        self.at += what.len();
        Ok(())
    }

    /// Skips blanks and comments, and line ends if `lines`.
    fn blanks(&mut self, lines: bool) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' => self.at += 1,
                b'\r' | b'\n' if lines => self.at += 1,
                b'#' => {
                    while self.peek().is_some_and(|byte| byte != b'\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String> {
        let begin = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
            self.at += 1;
        }
        if begin == self.at {
            return Err(self.error("expected a rule name"));
        }
        Ok(String::from_utf8_lossy(&self.text[begin..self.at]).into_owned())
    }

    /// `nested`: inside parentheses, where lines may end.
    fn alternatives(&mut self, nested: bool) -> Result<Node> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(self.error(&format!("more than {MAX_NESTING} nested parentheses")));
        }
        let mut list = vec![self.sequence(nested)?];
        loop {
            self.blanks(nested);
            if self.peek() != Some(b'|') {
                // A line may also begin with '|'.
                let at = self.at;
                self.blanks(true);
                if self.peek() != Some(b'|') {
                    self.at = at;
                    break;
                }
            }
            self.at += 1;
            self.blanks(true);
            list.push(self.sequence(nested)?);
        }
        self.nesting -= 1;
        Ok(Node::Alternatives(list))
    }

    fn sequence(&mut self, nested: bool) -> Result<Node> {
        let mut list = Vec::new();
        loop {
            self.blanks(nested);
            let node = match self.peek() {
                Some(b'"') => self.literal()?,
                Some(b'[') => self.class()?,
                Some(b'.') => {
                    self.at += 1;
                    Node::Class("(.|\\n)".to_string())
                }
                Some(b'(') => {
                    self.at += 1;
                    let inner = self.alternatives(true)?;
                    self.blanks(true);
                    self.expect(")")?;
                    inner
                }
                Some(b) if b.is_ascii_alphanumeric() || b == b'-' || b == b'_' => {
                    let at = self.at;
                    let name = self.name()?;
                    self.blanks(false);
                    if self.text[self.at..].starts_with(b"::=") {
                        self.at = at; // the next rule, on the same line
                        return Ok(Node::Sequence(list));
                    }
                    Node::Rule(name)
                }
                Some(b')' | b'|' | b'\r' | b'\n') | None => return Ok(Node::Sequence(list)),
                Some(b) => return Err(self.error(&format!("unexpected '{}'", (b as char).escape_default()))),
            };
            list.push(self.repeated(node)?);
        }
    }

    fn repeated(&mut self, mut node: Node) -> Result<Node> {
        loop {
            self.blanks(false);
            let operator = match self.peek() {
                Some(b @ (b'*' | b'+' | b'?')) => {
                    self.at += 1;
                    (b as char).to_string()
                }
                Some(b'{') => {
                    let begin = self.at + 1;
                    while self.peek().is_some_and(|b| b != b'}') {
                        self.at += 1;
                    }
                    let inner = String::from_utf8_lossy(&self.text[begin..self.at]).replace(' ', "");
                    self.expect("}")?;
                    let bound = |text: &str| text.is_empty() || text.parse::<u16>().is_ok();
                    let (least, most) = inner.split_once(',').unwrap_or((&inner, &inner));
                    if !bound(least) || !bound(most) || least.is_empty() {
                        return Err(self.error(&format!("repetition {{{inner}}}, allowed: m, or m,n, below 65536")));
                    }
                    format!("{{{inner}}}")
                }
                _ => return Ok(node),
            };
            node = Node::Repeat(Box::new(node), operator);
        }
    }

    /// The character at the cursor, after GBNF's escapes.
    fn character(&mut self) -> Result<char> {
        let hex = |parser: &mut Self, digits: usize| {
            let code = parser
                .text
                .get(parser.at..parser.at + digits)
                .and_then(|bytes| std::str::from_utf8(bytes).ok())
                .and_then(|digits| u32::from_str_radix(digits, 16).ok())
                .and_then(char::from_u32);
            parser.at += digits;
            code.ok_or_else(|| parser.error("invalid hexadecimal escape"))
        };
        let rest = std::str::from_utf8(&self.text[self.at..]).unwrap_or("");
        let c = rest.chars().next().ok_or_else(|| self.error("unexpected end"))?;
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c);
        }
        let escape = self.peek().ok_or_else(|| self.error("unexpected end"))?;
        self.at += 1;
        match escape {
            b'n' => Ok('\n'),
            b'r' => Ok('\r'),
            b't' => Ok('\t'),
            b'x' => hex(self, 2),
            b'u' => hex(self, 4),
            b'U' => hex(self, 8),
            b'"' | b'\\' | b'[' | b']' | b'-' | b'^' | b'/' | b'\'' => Ok(escape as char),
            _ => Err(self.error(&format!("unknown escape \\{}", (escape as char).escape_default()))),
        }
    }

    fn literal(&mut self) -> Result<Node> {
        self.at += 1;
        let mut text = String::new();
        while self.peek() != Some(b'"') {
            text.push(self.character()?);
        }
        self.at += 1;
        Ok(Node::Literal(text))
    }

    fn class(&mut self) -> Result<Node> {
        self.at += 1;
        let mut class = String::from("[");
        if self.peek() == Some(b'^') {
            self.at += 1;
            class.push('^');
        }
        let mut any = false;
        while self.peek() != Some(b']') {
            let from = self.character()?;
            class += &in_class(from);
            if self.peek() == Some(b'-') && self.text.get(self.at + 1) != Some(&b']') {
                self.at += 1;
                let to = self.character()?;
                if to < from {
                    return Err(self.error("a range that ends before it begins"));
                }
                class.push('-');
                class += &in_class(to);
            }
            any = true;
        }
        self.at += 1;
        if !any {
            return Err(self.error("an empty class"));
        }
        class.push(']');
        Ok(Node::Class(class))
    }
}

fn in_class(c: char) -> String {
    if c.is_ascii_alphanumeric() || !c.is_ascii() {
        return c.to_string();
    }
    format!("\\x{:02X}", c as u32)
}
