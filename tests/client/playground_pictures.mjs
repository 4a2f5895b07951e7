// Takes the pictures of docs/playground.md: a chat (light), a comparison (dark) and a chat on a phone.
//
//   node playground_pictures.mjs MODULES ADDRESS MODEL FOLDER
//
// ADDRESS: of the HTTP API of a running server; MODEL: a pair that it serves. `pngquant` shrinks the files:
//   pngquant --ext .png --force 48 FOLDER/playground_*.png
import {createRequire} from "node:module";
import {join} from "node:path";

const [modules, address, model, folder] = process.argv.slice(2);
const {chromium} = createRequire(join(modules, "package.json"))("playwright-core");
const browser = await chromium.launch({executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"]});

async function open(scheme, size) {
  const context = await browser.newContext({colorScheme: scheme, viewport: size, reducedMotion: "reduce"});
  const page = await context.newPage();
  page.setDefaultTimeout(180000);
  await page.goto(`http://${address}/`);
  await page.locator("#message").waitFor();
  return page;
}
const picture = (page, name) => page.screenshot({path: join(folder, `playground_${name}.png`)});

async function chat(page, question) {
  const choice = page.locator(".settings").getByLabel("Model", {exact: true});
  if (await choice.isVisible()) await choice.selectOption(model); // on a phone the settings are closed
  await page.fill("#message", question);
  await page.press("#message", "Enter");
  await page.getByRole("button", {name: "Regenerate"}).waitFor();
}

const light = await open("light", {width: 1200, height: 760});
await chat(light, "Write a Python function that merges two sorted lists.");
const tokens = light.locator("article.assistant").last().locator(".t");
await tokens.nth(Math.min(40, (await tokens.count()) - 1)).hover();
await picture(light, "light");

const dark = await open("dark", {width: 1200, height: 900});
await dark.locator("a[href='#compare']").click();
const view = dark.locator(".compare");
await view.getByLabel("Model", {exact: true}).first().selectOption(model);
await view.getByLabel("Most tokens").fill("64");
await view.getByRole("button", {name: "Run", exact: true}).click();
await view.locator(".summary").waitFor();
await view.locator(".timeline").scrollIntoViewIfNeeded();
await picture(dark, "dark");

const phone = await open("light", {width: 390, height: 780});
await chat(phone, "Write a Python function that reverses a string.");
await picture(phone, "phone");
await browser.close();
