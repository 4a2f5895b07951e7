// Markdown of an answer as HTML. Only text can result: HTML in the answer is shown as it is written, images and links become text,
// and a second filter admits a few tags. No element can load anything or run.
import DOMPurify from "dompurify";
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import {Marked} from "marked";
import {visible} from "./safe";

const LANGUAGES = {bash, cpp, css, go, java, javascript, json, python, rust, sql, typescript, xml, yaml};
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);

// Longer code is not highlighted, nested deeper or longer text is not formatted: both take time.
const MOST_CODE = 50_000;
const MOST_TEXT = 500_000;

const TAGS = ["p", "br", "strong", "em", "del", "code", "pre", "ul", "ol", "li", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6",
  "hr", "table", "thead", "tbody", "tr", "th", "td", "span", "div"];

const escaped = (text: string) =>
  text.replace(/[&<>"']/g, (c) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})[c]!);

function code(text: string, language: string): string {
  const known = language && hljs.getLanguage(language) && text.length <= MOST_CODE;
  return known ? hljs.highlight(text, {language, ignoreIllegals: true}).value : escaped(text);
}

const marked = new Marked({gfm: true, breaks: true});
marked.use({
  renderer: {
    html: ({text}) => escaped(text),
    image: ({text, href}) => escaped(`${text} (${href})`),
    link({tokens, href}) {
      const text = this.parser.parseInline(tokens);
      return text === escaped(href) ? text : `${text} (${escaped(href)})`;
    },
    code: ({text, lang}) => `<pre><code class="hljs">${code(text, (lang ?? "").split(/\s/)[0]!.toLowerCase())}</code></pre>`,
    checkbox: ({checked}) => (checked ? "☑ " : "☐ "),
  },
});

export function markdown(text: string): string {
  const shown = visible(text);
  let html: string;
  try {
    if (shown.length > MOST_TEXT) throw new Error("too long");
    html = marked.parse(shown, {async: false}) as string;
  } catch {
    html = `<pre><code>${escaped(shown)}</code></pre>`;
  }
  return DOMPurify.sanitize(html, {ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ["class", "start"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false});
}
