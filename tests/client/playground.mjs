// Opens the playground in a headless browser and uses it. Prints one JSON line for each check: {"check", "ok", "error", "notes"}.
//
//   node playground.mjs MODULES OPTIONS     OPTIONS: JSON {chromium, open, guarded, doomed, token, answer, long, models}
//
// `open`, `guarded`, `doomed`: addresses of servers (tests/client/playground_test.py). `doomed` is ended by the parent when it reads
// the line "end the server". `answer`: of the model "code". `long`: tokens of the model "long". `models`: deployments.
import {createRequire} from "node:module";
import {readFileSync} from "node:fs";
import {join} from "node:path";

const [modules, json] = process.argv.slice(2);
const options = JSON.parse(json);
const require = createRequire(join(modules, "package.json"));
const {chromium} = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf-8");

const browser = await chromium.launch({
  executablePath: options.chromium,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});

function equal(found, wanted, what) {
  const [a, b] = [found, wanted].map((value) => JSON.stringify(value));
  if (a !== b) throw new Error(`${what}: ${a}; wanted: ${b}`);
}
function check(condition, what) {
  if (!condition) throw new Error(what);
}

// A page whose console and requests are watched.
async function open(address, {scheme = "light", size = {width: 1280, height: 800}, expected = () => false} = {}) {
  const context = await browser.newContext({colorScheme: scheme, viewport: size, reducedMotion: "reduce"});
  const page = await context.newPage();
  page.setDefaultTimeout(20000);
  const problems = [];
  page.on("console", (message) => message.type() === "error" && !expected(message.text()) && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("dialog", (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol.startsWith("http") && url.host !== address) problems.push(`request to ${url.host}`);
  });
  await page.goto(`http://${address}/`);
  const ready = page.locator("#message");
  await ready.waitFor();
  return {page, problems, close: async () => {
    await context.close();
    equal(problems, [], "errors of the page");
  }};
}

const choose = (page, model) => page.locator(".settings").getByLabel("Model", {exact: true}).selectOption(model);
const lastAnswer = (page) => page.locator("article.assistant").last();
const finished = (page) => page.getByRole("button", {name: "Regenerate"}).waitFor();
const tokensText = (page) => lastAnswer(page).locator(".token-list").evaluate((list) =>
  [...list.querySelectorAll(".line")].map((line) => line.textContent).join("\n"));
async function ask(page, text) {
  await page.fill("#message", text);
  await page.press("#message", "Enter");
}
async function figure(scope, name) {
  return scope.locator(".figures div").filter({has: scope.page().locator(`dt:text-is("${name}")`)}).locator("dd").first().textContent();
}

const checks = {
  async chat() {
    const {page, close} = await open(options.open);
    await choose(page, "code");
    await ask(page, "Write a function.");
    await finished(page);
    const answer = lastAnswer(page);
    equal((await tokensText(page)).replace(/\n$/, ""), options.answer.replace(/\n$/, ""), "the answer");
    check((await answer.locator(".t.o-small").count()) > 10, "tokens of the small model");
    check((await answer.locator(".t.o-corrected").count()) >= 1, "corrected tokens");
    equal(await figure(answer, "method"), "speculative", "method");
    equal(await figure(answer, "guarantee"), "exact", "guarantee");
    equal(await figure(answer, "tokens"), String(options.answer.length), "tokens"); // one for each byte
    check(Number(await figure(answer, "tokens per large pass")) > 1, "tokens per large pass");
    check(/%/.test(await figure(answer, "drafts accepted")), "acceptance");

    // Details by pointer and by keys.
    await answer.locator(".t").nth(3).hover();
    const info = answer.locator(".token-info");
    check(/probability .* pass \d+ · id \d+/.test(await info.textContent()), `details: ${await info.textContent()}`);
    equal(await info.locator(".alternatives tr").count(), 5, "alternatives");
    await page.mouse.move(0, 0);
    await answer.locator(".token-list").focus();
    for (const key of ["Home", "ArrowRight", "ArrowRight"]) await page.keyboard.press(key);
    check(await answer.locator(".t").nth(2).evaluate((span) => span.classList.contains("active")), "the third token is active");
    await page.keyboard.press("Escape");
    check(await info.isHidden(), "details are hidden");

    // As text: markdown with highlighted code.
    await page.getByLabel("Text", {exact: true}).check();
    await answer.locator(".markdown pre code .hljs-keyword").first().waitFor();
    equal(await answer.locator(".markdown strong").first().textContent(), "n steps", "bold text");
    await page.getByLabel("Tokens", {exact: true}).check();

    // The passes are those of the figures.
    await answer.getByText("Passes", {exact: true}).click();
    await answer.getByText("As a table").click();
    const rows = await answer.locator(".timeline tbody tr").evaluateAll((all) => all.map((row) => [...row.children].map((cell) => cell.textContent)));
    const large = rows.filter((row) => row[3] === "large").length;
    const perPass = (options.answer.length / large).toFixed(2);
    equal(await figure(answer, "tokens per large pass"), perPass, "tokens per large pass, from the passes");
    const accepted = rows.reduce((sum, row) => sum + Number(row[6]), 0);
    const rejected = rows.reduce((sum, row) => sum + Number(row[7]), 0);
    const share = (100 * accepted) / (accepted + rejected);
    equal(await figure(answer, "drafts accepted"), `${share.toFixed(1)} %`, "acceptance, from the passes");

    // Edit and send again, then regenerate.
    await page.getByRole("button", {name: "Edit"}).click();
    equal(await page.inputValue("#message"), "Write a function.", "the edited message");
    await ask(page, "Write another.");
    await finished(page);
    equal(await page.locator("article.user .plain").allTextContents(), ["Write another."], "messages");
    await page.getByRole("button", {name: "Regenerate"}).click();
    await finished(page);
    equal(await page.locator("article").count(), 2, "messages after regeneration");

    // Histories survive, and can be exported and imported.
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", {name: "Export"}).click()]);
    const saved = readFileSync(await download.path(), "utf-8");
    equal(JSON.parse(saved).histories.length, 1, "exported histories");
    await page.reload();
    await page.locator("article.assistant .markdown").waitFor();
    await page.getByRole("button", {name: /^Delete: Write another/}).click();
    equal(await page.locator("article").count(), 0, "messages after deletion");
    await page.locator("input[type=file]").setInputFiles({name: "h.json", mimeType: "application/json", buffer: Buffer.from(saved)});
    await page.locator("article.assistant .markdown").waitFor();
    await page.locator("input[type=file]").setInputFiles({name: "h.json", mimeType: "application/json", buffer: Buffer.from("{}")});
    check(/no export of this page/.test(await page.locator(".problem").textContent()), "a wrong file is refused");
    await close();
  },

  async parameters() {
    const {page, close} = await open(options.open);
    await choose(page, "code");
    const settings = page.locator(".settings");
    await settings.getByLabel("Method", {exact: true}).selectOption("bild");
    await settings.getByText("Parameters of bild").click();
    check(/Allowed: \[0, 2\]/.test(await settings.locator(".group").first().textContent()), "the range is shown");
    await settings.getByLabel("rollback_threshold").fill("inf");
    await settings.getByLabel("verify_eos").selectOption("false");
    await settings.getByText("Sampling", {exact: true}).click();
    await settings.getByLabel("top_k").fill("3");
    await settings.getByLabel("Alternatives").fill("2");
    const [request] = await Promise.all([page.waitForRequest("**/v1/chat/completions"), ask(page, "hello")]);
    const {tandem, top_logprobs} = request.postDataJSON();
    equal([tandem.bild, tandem.top_k, top_logprobs], [{rollback_threshold: "Infinity", verify_eos: false}, 3, 2], "the request");
    await finished(page);
    equal(await figure(lastAnswer(page), "method"), "bild", "method");
    // A wrong value is refused by the server, by name.
    await settings.getByLabel("fallback_threshold").fill("7");
    await page.getByRole("button", {name: "Regenerate"}).click();
    check(/fallback_threshold: 7; allowed: \[0, 2\]/.test(await page.locator(".problem").first().textContent()), "the error names the field");
    await settings.getByLabel("fallback_threshold").fill("");
    // A schema that is no JSON is not sent.
    await settings.getByText("Output", {exact: true}).click();
    await settings.getByLabel("JSON schema of the answer").fill("{");
    await ask(page, "hello");
    check(/JSON schema of the answer: not valid JSON/.test(await page.locator(".problem").first().textContent()), "wrong JSON");
    await close().catch((error) => {
      if (!/400/.test(error.message)) throw error; // the browser reports the status
    });
  },

  async stop_and_slow() {
    const {page, close} = await open(options.open);
    await choose(page, "slow");
    await ask(page, "slowly");
    const tokens = lastAnswer(page).locator(".t");
    await tokens.nth(4).waitFor();
    await page.getByRole("button", {name: "Stop"}).click();
    await finished(page);
    equal(await figure(lastAnswer(page), "end"), "stopped", "end");
    const count = await tokens.count();
    check(count >= 5 && count < options.answer.length, `${count} tokens`);
    await page.locator("a[href='#server']").click();
    // The server has ended the request too.
    await page.waitForFunction(async () => {
      const text = await (await fetch("metrics")).text();
      return [...text.matchAll(/^tandem_requests_running\{.*\} (\d+)/gm)].every((found) => found[1] === "0");
    });
    await close();
  },

  async compare() {
    const {page, close} = await open(options.open);
    await page.locator("a[href='#compare']").click();
    const view = page.locator(".compare");
    await view.getByLabel("Model", {exact: true}).first().selectOption("code");
    await view.getByLabel("Most tokens").fill("60");
    const methods = await view.locator(".variant").count();
    check(methods >= 4, `${methods} methods`);
    await view.getByRole("button", {name: "Run", exact: true}).click();
    await view.locator(".summary").waitFor();
    equal(await view.locator(".column").count(), methods, "answers");
    check(/made in turns/.test(await view.textContent()), "the page says how");
    const rows = await view.locator(".summary tbody tr").evaluateAll((all) => all.map((row) => [...row.children].map((cell) => cell.textContent)));
    equal(rows.map((row) => row[2]), rows.map(() => "60"), "tokens");
    const exact = rows.slice(1).filter((row) => row[1] === "exact");
    check(exact.length >= 2 && exact.every((row) => row[9] === "identical"), `exact answers are identical: ${JSON.stringify(rows)}`);
    // Passes of the table and of the time line.
    await view.locator(".timeline").getByText("As a table").click();
    const passes = await view.locator(".timeline tbody tr").evaluateAll((all) => all.map((row) => row.children[3].textContent));
    for (const row of rows) {
      equal(passes.filter((lane) => lane === `${row[0]} · large`).length, Number(row[7]), `large passes of ${row[0]}`);
      equal(passes.filter((lane) => lane === `${row[0]} · small`).length, Number(row[8]), `small passes of ${row[0]}`);
    }
    await view.locator("canvas").focus();
    await page.keyboard.press("Home");
    check(/^Pass 1: large, prompt/.test(await view.locator(".timeline [role=status]").textContent()), "details of a pass");
    // Another model differs, at the same time.
    const last = view.locator(".variant").last();
    await last.getByLabel("Model", {exact: true}).selectOption("other");
    await view.getByLabel("At the same time").check();
    await view.getByRole("button", {name: "Run", exact: true}).click();
    await view.locator(".t.differs").first().waitFor();
    check(/shared the machine/.test(await view.textContent()), "the page says how");
    await close();
  },

  async score() {
    const {page, close} = await open(options.open);
    await page.locator("a[href='#score']").click();
    const view = page.locator(".score");
    await view.getByLabel("Text").fill("hello world");
    await view.getByLabel("Model", {exact: true}).selectOption("code");
    await view.getByLabel("Second model").selectOption("other");
    await view.getByRole("button", {name: "Score", exact: true}).click();
    await view.locator(".column").nth(1).waitFor();
    const columns = await view.locator(".column .token-list").allTextContents();
    equal(columns, ["hello world", "hello world"], "texts");
    equal(await view.locator(".column").first().locator(".t.h-none").count(), 1, "tokens without a probability");
    const totals = [await figure(view.locator(".column").nth(0), "log-probability"), await figure(view.locator(".column").nth(1), "log-probability")];
    check(totals.every((total) => Number(total) < 0) && totals[0] !== totals[1], `totals ${totals}`);
    await close();
  },

  async server() {
    const {page, close} = await open(options.open);
    await page.locator("a[href='#server']").click();
    const view = page.locator(".server");
    await view.locator(".chart canvas").nth(2).waitFor();
    equal(await view.locator("table").last().locator("tbody tr").count(), options.models, "deployments");
    check(/live/.test(await view.locator(".badge").textContent()), "live");
    await page.waitForResponse("**/metrics"); // again, without a reload
    await page.locator("a[href='#chat']").click();
    let asked = 0;
    page.on("request", (request) => request.url().endsWith("/metrics") && ++asked);
    await page.evaluate(() => new Promise((done) => setTimeout(done, 1500)));
    equal(asked, 0, "requests while another view is shown");
    await close();
  },

  async token() {
    const {page, close} = await open(options.guarded, {expected: (text) => /401/.test(text)});
    const dialog = page.getByRole("dialog");
    await dialog.waitFor();
    await dialog.getByLabel("Bearer token").fill("wrong-token-wrong-token");
    await dialog.getByRole("button", {name: "Use"}).click();
    await dialog.getByText("The server refused the token.").waitFor();
    await dialog.getByLabel("Bearer token").fill(options.token);
    await dialog.getByRole("button", {name: "Use"}).click();
    await page.locator(".settings option").filter({hasText: /^code$/}).first().waitFor({state: "attached"});
    await choose(page, "code");
    await ask(page, "hello");
    await finished(page);
    const kept = await page.evaluate((secret) => [JSON.stringify({...localStorage}).includes(secret), sessionStorage.getItem("tandem.token") === secret, document.cookie], options.token);
    equal(kept, [false, true, ""], "where the token is");
    await page.getByRole("button", {name: "Token", exact: true}).click();
    await dialog.getByRole("button", {name: "Forget"}).click();
    await dialog.getByText("This server needs a token").waitFor();
    equal(await page.evaluate(() => sessionStorage.length), 0, "values in the session storage");
    await close();
  },

  async hostile() {
    const {page, close} = await open(options.open);
    await choose(page, "hostile");
    await ask(page, "attack");
    await finished(page);
    const inert = async (where) => {
      equal(await page.evaluate(() => window.attacked ?? null), null, `${where}: a script ran`);
      const found = await lastAnswer(page).evaluate((answer) => answer.querySelectorAll("script, img, a, iframe, svg, style, form, input:not([type=radio]), [onclick], [onerror]").length);
      equal(found, 0, `${where}: elements`);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      check(wide <= 0, `${where}: a long word widens the page by ${wide}`);
      const shown = await lastAnswer(page).textContent();
      check(!/[\u202a-\u202e\u2066-\u2069]/.test(shown) && shown.includes("⟨202E⟩"), `${where}: directions`);
      check(shown.includes("<script>window.attacked") && shown.includes("<img src=x onerror"), `${where}: HTML is shown as text`);
    };
    await inert("tokens");
    await page.getByLabel("Text", {exact: true}).check();
    await lastAnswer(page).locator(".markdown p").first().waitFor();
    await inert("text");
    check(!(await lastAnswer(page).textContent()).includes("undefined"), "complete text");
    // The question comes back in the history, the title and the stored data.
    await page.getByRole("button", {name: "New chat"}).click();
    await ask(page, "<img src=x onerror=window.attacked=1>\u202e");
    await finished(page);
    await page.reload();
    await page.locator("article.assistant").waitFor();
    equal(await page.evaluate(() => [window.attacked ?? null, document.querySelectorAll("#app img").length]), [null, 0], "after a reload");
    await close();
  },

  async ten_thousand_tokens() {
    const {page, close} = await open(options.open);
    await choose(page, "long");
    await page.evaluate(() => {
      window.frames_ = [];
      let last = performance.now();
      const frame = (now) => {
        window.frames_.push(now - last);
        last = now;
        requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
    });
    await ask(page, "much");
    await page.getByRole("button", {name: "Regenerate"}).waitFor({timeout: 60000});
    await page.waitForFunction((count) => document.querySelectorAll("article.assistant .t").length === count, options.long);
    const frames = (await page.evaluate(() => window.frames_.slice(2))).sort((a, b) => a - b);
    const at = (share) => frames[Math.floor(share * (frames.length - 1))].toFixed(1);
    equal((await figure(lastAnswer(page), "tokens")), String(options.long), "tokens");
    const lines = await lastAnswer(page).locator(".line").count();
    check(lines > 100, `${lines} lines`);
    await page.getByLabel("Text", {exact: true}).check();
    await lastAnswer(page).locator(".markdown").waitFor();
    await close();
    return `${options.long} tokens, ${frames.length} frames: median ${at(0.5)} ms, 95 % ${at(0.95)} ms, longest ${at(1)} ms`;
  },

  async accessible() {
    const notes = [];
    for (const scheme of ["light", "dark"]) {
      const {page, close} = await open(options.open, {scheme});
      await choose(page, "code");
      await ask(page, "Write a function.");
      await finished(page);
      const violations = async (view) => {
        // Only colours differ between the schemes.
        const rules = scheme === "light" ? {} : {runOnly: {type: "rule", values: ["color-contrast", "link-in-text-block"]}};
        const found = await page.evaluate((rules) => window.axe.run(document, {resultTypes: ["violations"], ...rules}), rules);
        for (const one of found.violations) notes.push(`${scheme} ${view}: ${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
      };
      await page.evaluate(AXE); // by the debugger, which the policy of the page does not restrict
      for (const group of await page.locator("details:not([open]) > summary").all()) if (await group.isVisible()) await group.click();
      await violations("chat");
      await page.getByLabel("Text", {exact: true}).check();
      await lastAnswer(page).locator(".markdown pre").first().waitFor();
      await violations("chat as text");
      await page.locator("a[href='#compare']").click();
      await page.locator(".compare").getByLabel("Most tokens").fill("20");
      await page.getByRole("button", {name: "Run", exact: true}).click();
      await page.locator(".summary").waitFor();
      await violations("compare");
      await page.locator("a[href='#score']").click();
      await page.getByRole("button", {name: "Score", exact: true}).click();
      await page.locator(".score .column").first().waitFor();
      await violations("score");
      await page.locator("a[href='#server']").click();
      await page.locator(".chart canvas").nth(2).waitFor();
      await violations("server");
      await page.getByRole("button", {name: "Token", exact: true}).click();
      await violations("token");
      await close();
    }
    equal(notes, [], "violations");
  },

  async phone() {
    const {page, close} = await open(options.open, {size: {width: 360, height: 740}});
    await page.locator(".settings summary").first().click();
    await choose(page, "code");
    await ask(page, "Write a function.");
    await finished(page);
    for (const view of ["chat", "compare", "score", "server"]) {
      await page.locator(`a[href='#${view}']`).click();
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      check(wide <= 0, `${view} is ${wide} pixels wider than the screen`);
    }
    // Dark by the switch, also after a reload.
    await page.getByLabel("Theme").selectOption("dark");
    await page.reload();
    equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(20, 23, 28)", "background");
    await close();
  },

  async lost_connection() {
    const {page, problems} = await open(options.doomed);
    await choose(page, "slow");
    await ask(page, "slowly");
    await lastAnswer(page).locator(".t").nth(3).waitFor();
    console.log("end the server");
    await lastAnswer(page).getByText("The connection was lost before the answer was complete.").waitFor();
    check((await lastAnswer(page).locator(".t").count()) >= 4, "the tokens stay");
    await ask(page, "again");
    await page.getByText("No connection to the server. Is it running?").first().waitFor();
    equal(await page.inputValue("#message"), "again", "the question comes back");
    check(problems.every((text) => /ERR_/.test(text)), `errors of the page: ${problems}`);
    await page.context().close();
  },
};

for (const name of options.only ?? Object.keys(checks)) {
  const began = performance.now();
  let error = "";
  let notes = "";
  try {
    notes = (await checks[name]()) ?? "";
  } catch (failed) {
    error = String(failed.stack ?? failed);
  }
  for (const context of browser.contexts()) await context.close();
  console.log(JSON.stringify({check: name, ok: error === "", error, notes, seconds: Math.round(performance.now() - began) / 1000}));
}
await browser.close();
