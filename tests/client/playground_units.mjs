// Tests of functions of the playground, without a browser: node playground_units.mjs MODULES SOURCES
import assert from "node:assert/strict";
import {createRequire} from "node:module";
import {join} from "node:path";

const [modules, sources] = process.argv.slice(2);
const esbuild = createRequire(join(modules, "package.json"))("esbuild");
const {outputFiles} = await esbuild.build({
  stdin: {
    contents: ["diff", "metrics", "safe", "request", "answer"].map((name) => `export * from "./${name}";`).join("\n"),
    resolveDir: sources,
    loader: "ts",
  },
  bundle: true,
  format: "esm",
  nodePaths: [modules],
  write: false,
});
const page = await import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);

// Differences against all subsequences, for short random texts.
let state = 1;
const random = (n) => (state = (state * 48271) % 2147483647) % n;
const longest = (a, b) =>
  a.length === 0 || b.length === 0 ? 0
  : a[0] === b[0] ? 1 + longest(a.slice(1), b.slice(1))
  : Math.max(longest(a.slice(1), b), longest(a, b.slice(1)));
for (let i = 0; i < 300; ++i) {
  const [a, b] = [0, 1].map(() => Array.from({length: random(8)}, () => "ab"[random(2)]));
  const {changed, differing} = page.diff(a, b);
  const common = longest(a, b);
  assert.equal(changed.size, b.length - common, `${a} / ${b}`);
  assert.equal(differing, Math.max(a.length, b.length) - common);
  const kept = b.filter((_, at) => !changed.has(at));
  assert.equal(longest(a, kept), kept.length, "what is kept is a subsequence");
}
assert.deepEqual(page.diff(["a", "b"], ["a", "b"]), {changed: new Set(), differing: 0});
const many = (text) => Array.from({length: 3000}, () => text);
assert.equal(page.diff(many("a"), many("b")).differing, 3000, "too large for a table");

// Metrics.
const scrape = new page.Scrape('# HELP a b\na{x="1",y="q\\"}\\n\\\\"} 2\na{x="2"} 3e1\nb +Inf\nc NaN\n\nwrong\n', 0);
assert.equal(scrape.sum("a"), 32);
assert.equal(scrape.sum("a", {x: "2"}), 30);
assert.equal(scrape.all("a")[0].labels.y, 'q"}\n\\');
assert.equal(scrape.sum("b"), Infinity);
assert.equal(scrape.sum("none"), 0);

// Text.
assert.equal(page.visible("a\u202eb\u0000\tc\r\n"), "a⟨202E⟩b⟨0000⟩\tc\n");
assert.equal(page.visible("שלום, é 👩‍👩‍👧"), "שלום, é 👩‍👩‍👧", "text of all languages is unchanged");
const characters = new page.Characters();
assert.deepEqual(
  [["�", [0xc3]], ["�", [0xa9]], ["x"], ["�", [0xe2]], ["y"]].map(([text, bytes]) => characters.next(text, bytes)),
  ["", "é", "x", "", "�y"],
);
assert.deepEqual(page.bytesOf("bytes:\\xc3\\xa9"), [0xc3, 0xa9]);
assert.equal(page.bytesOf("bytes:"), undefined);

// Values as they are sent.
const parameter = (type) => ({name: "p", allowed: "", default_value: "", meaning: "", type: `PARAMETER_TYPE_${type}`});
const sent = (type, text) => page.valueOf(parameter(type), text);
assert.deepEqual([sent("NUMBER", " 0.5 "), sent("NUMBER", "inf"), sent("NUMBER", "x"), sent("INTEGER", "3")], [0.5, "Infinity", "x", 3]);
assert.deepEqual([sent("SWITCH", "false"), sent("CHOICE", "PACE_FIXED"), sent("TEXTS", "a\n\nb")], [false, "PACE_FIXED", ["a", "b"]]);

// Figures.
assert.equal(page.decodeRate(11, 2), 5);
assert.equal(page.decodeRate(1, 2), 0);
assert.equal(page.acceptanceOf({accept_lengths: [1, 0, 2], draft_tokens: 8}), 0.5);
assert.equal(page.acceptanceOf({accept_lengths: []}), undefined);
