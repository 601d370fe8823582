// Drives a Chromium for tests; `chromium.py` starts it. It reads a request from each line of its input, writes one line
// for each, and ends, with the browser, when its input ends. Without resolver rules it only unpacks the browser.
//
//     {"script": "…", "argument": …, "limit_s": 60}     the body of an async function of (page, argument, context)
//     {"value": …} or {"error": "…"}                    what it returned
//
// Each script has a browser context of its own: no cookie, cache or page of another one.
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [, , installed, resolverRules] = process.argv;
process.env.TMPDIR = installed; // where the package unpacks the browser
const require = createRequire(join(installed, "package.json"));
const { chromium } = require("playwright-core");
const { default: packed, inflate, setupLambdaEnvironment } = require("@sparticuz/chromium");

const executablePath = await packed.executablePath();
// Libraries that a machine without a desktop lacks.
const libraries = await inflate(join(installed, "node_modules/@sparticuz/chromium/bin/al2023.tar.br"));
const fonts = join(installed, "fonts"); // the package's own settings expect them in /tmp
if (resolverRules === undefined) {
  const places = `<dir>${fonts}</dir><cachedir>${join(installed, "fonts-cache")}</cachedir>`;
  writeFileSync(join(fonts, "fonts.conf"), `<?xml version="1.0"?><fontconfig>${places}</fontconfig>`);
  process.exit();
}
process.env.FONTCONFIG_PATH = fonts;
setupLambdaEnvironment(join(libraries, "lib"));

// Not the arguments that the package recommends: they switch off what keeps pages of different origins apart.
const browser = await chromium.launch({
  executablePath,
  chromiumSandbox: false, // it needs permissions that containers do not give
  args: [
    "--disable-gpu",
    // Not every browser has these checks: a server must not rely on them. The rest is Playwright's, which this replaces.
    "--disable-features=LocalNetworkAccessChecks,HttpsUpgrades",
    `--host-resolver-rules=${resolverRules}`,
  ],
});
const AsyncFunction = (async () => {}).constructor;

async function run({ script, argument, limit_s }) {
  const context = await browser.newContext();
  const page = await context.newPage(); // before the limit begins: a rejection that no one awaits yet would end the driver
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`the script did not end within ${limit_s} s`)), limit_s * 1000);
  });
  try {
    const called = new AsyncFunction("page", "argument", "context", script)(page, argument, context);
    return { value: (await Promise.race([called, late])) ?? null };
  } catch (error) {
    return { error: String(error?.stack ?? error) };
  } finally {
    clearTimeout(timer);
    await context.close();
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await run(JSON.parse(line)))}\n`);
}
await browser.close();
