// Browsers that watch the list, for the figures: node browsers.mjs, with PLAYWRIGHT (a folder of node_modules) and CHROMIUM in the environment.
//
// Spoken to by lines. The first names the links, one for each browser, with spaces between them: when all pages are live, `watching` is
// answered. Each further one names a job: when all pages show that it is completed, `seen` is answered. The end of the input is the end.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

const { PLAYWRIGHT, CHROMIUM } = process.env;
const { chromium } = createRequire(join(PLAYWRIGHT, "x.js"))("playwright-core");
const PATIENCE = 60_000;

// The root user has no sandbox of Chromium's; what is looked at is our own page.
const args = process.getuid() === 0 ? ["--no-sandbox"] : [];
const browser = await chromium.launch({ executablePath: CHROMIUM, headless: true, args });
const pages = [];
for await (const line of createInterface({ input: process.stdin })) {
  if (pages.length === 0) {
    for (const link of line.split(" ")) {
      // A profile of its own: its own cookie, and its own connections.
      const context = await browser.newContext({ viewport: { width: 1280, height: 860 } });
      context.setDefaultTimeout(PATIENCE);
      const page = await context.newPage();
      await page.goto(link);
      await page.locator("#live", { hasText: "Live" }).waitFor();
      pages.push(page);
    }
    console.log("watching");
  } else {
    await Promise.all(pages.map((page) => page.locator(`#job-${line}[data-state=completed]`).waitFor()));
    console.log("seen");
  }
}
await browser.close();
