// Plays one scene with the page in headless Chromium: node browser.mjs SCENE
//
// Given by the environment: PLAYWRIGHT (a folder of node_modules), CHROMIUM, SWITCHBOARD (the program), SWITCHBOARD_HOME, WORK (a folder
// for the agents) and ARTEFACTS (a folder for pictures). Ends with 0 when everything was as the scene says.
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import assert from "node:assert/strict";

const { PLAYWRIGHT, CHROMIUM, SWITCHBOARD, SWITCHBOARD_HOME, WORK, ARTEFACTS } = process.env;
const { chromium } = createRequire(join(PLAYWRIGHT, "x.js"))("playwright-core");
// Longer than anything takes on a busy machine.
const PATIENCE = 45_000;

mkdirSync(ARTEFACTS, { recursive: true });
const run = (...args) => execFileSync(SWITCHBOARD, args, { env: { SWITCHBOARD_HOME }, encoding: "utf8" });
const link = () => run("open", "--print").trim();
const place = (prompt, task = "demo") =>
  JSON.parse(run("call", "rehearsal", prompt, "--cwd", WORK, "--task", task, "--background", "--json")).job_id;
const play = (prompt, task) => {
  const job = place(prompt, task);
  try { run("wait", job); } catch { /* How it ended is told by its exit code. */ }
  return job;
};
// Plays a job in a private checkout.
const playInCheckout = (prompt) => {
  const send = (id, method, params) => JSON.stringify({ jsonrpc: "2.0", id, method, params }) + "\n";
  const lines = send(0, "initialize", { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name: "t", version: "1" } }) +
    send(1, "tools/call", { name: "call_rehearsal", arguments: { prompt, cwd: WORK, worktree: true } });
  const answers = execFileSync(SWITCHBOARD, ["mcp"], { env: { SWITCHBOARD_HOME }, encoding: "utf8", input: lines });
  const job = JSON.parse(answers.trim().split("\n").pop()).result.structuredContent.job_id;
  run("wait", job);
  return job;
};

// Makes WORK a git repository with one source file.
const createRepository = () => {
  const git = (...args) => execFileSync("git", ["-c", "user.name=Ana", "-c", "user.email=ana@example.org", ...args], { cwd: WORK });
  mkdirSync(join(WORK, "src"));
  writeFileSync(join(WORK, "src/basket.rs"), "pub fn total(items: &[Item]) -> u64 {\n    items.len() as u64\n}\n");
  git("init", "-q", "-b", "main");
  git("add", "-A");
  git("commit", "-q", "-m", "first");
};

// The root user has no sandbox of Chromium's; what is looked at is our own page.
const args = process.getuid() === 0 ? ["--no-sandbox"] : [];
const browser = await chromium.launch({ executablePath: CHROMIUM, headless: true, args });

/// A browser that has been let in. Whatever runs that should not is noticed.
const visit = async (options = {}) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.wrong = [];
  page.on("dialog", (dialog) => { page.wrong.push(`a dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("pageerror", (error) => page.wrong.push(`an error: ${error}`));
  page.on("console", (message) => { if (message.type() === "error") page.wrong.push(`said: ${message.text()}`); });
  page.on("request", (request) => {
    if (!request.url().startsWith(`http://${page.host}`) && !request.url().startsWith("data:")) page.wrong.push(`asked for ${request.url()}`);
  });
  const url = link();
  page.host = new URL(url).host;
  await page.goto(url);
  await page.waitForURL((at) => at.pathname === "/");
  return page;
};
const go = (page, path) => page.goto(`http://${page.host}${path}`);
const picture = (page, name) => page.screenshot({ path: join(ARTEFACTS, `${name}.png`), fullPage: true });
const nothingWrong = (page) => assert.deepEqual(page.wrong, []);
const has = (page, what, text) => page.locator(what, text ? { hasText: text } : {}).first().waitFor();

const isAnother = (at, job) => /^\/jobs\/[0-9a-f-]{36}$/.test(at.pathname) && !at.pathname.endsWith(job);

const scenes = {
  async login() {
    const page = await visit();
    assert.equal(await page.locator("h1").textContent(), "Jobs");
    assert.equal(await page.evaluate(() => document.cookie), "", "no script can read the cookie");
    const used = link();
    const first = await (await browser.newContext()).newPage();
    await first.goto(used);
    await first.waitForURL((at) => at.pathname === "/");
    const second = await (await browser.newContext()).newPage();
    assert.equal((await second.goto(used)).status(), 401);
    await has(second, "h1", "no longer valid");
    await picture(second, "refused");
    await page.getByRole("button", { name: "Log out" }).click();
    await has(page, "h1", "Logged out");
    assert.equal((await go(page, "/")).status(), 401);
    // The browser itself notes an answer of 401 as an error.
    assert.ok(page.wrong.every((wrong) => wrong.includes("401")), page.wrong.join());
  },

  async list() {
    const page = await visit();
    await has(page, "h2", "No calls yet");
    await picture(page, "empty");
    await page.evaluate(() => { window.untouched = true; });
    const job = place("Placed while somebody watches\n@rehearse delay 2s\n@rehearse answer done");
    const row = page.locator(`#job-${job}`);
    await row.waitFor();
    assert.match(await row.textContent(), /Placed while somebody watches/);
    await has(page, `#job-${job}[data-state=completed]`);
    await has(page, "#counts .is-completed");
    assert.ok(await page.locator("#nothing-yet").isHidden());
    assert.equal(await page.evaluate(() => window.untouched), true, "the page was never loaded anew");
    assert.equal(await page.locator("#live").textContent(), "Live");
    nothingWrong(page);
  },

  async gone() {
    const page = await visit();
    const job = place("@rehearse say up\n@rehearse hang");
    await page.clock.install();
    await go(page, `/jobs/${job}`);
    await has(page, "#live", "Live");
    let asked = 0;
    page.on("request", () => { asked += 1; });
    run("stop", "--now");
    await has(page, "#live.is-lost", "Not connected");
    const gone = page.locator("#live.is-lost", { hasText: "switchboard open" });
    // Each step is longer than any pause between two tries.
    for (let step = 0; step < 50 && !(await gone.isVisible()); step += 1) {
      await page.clock.fastForward(31_000);
      await page.waitForTimeout(50);
    }
    assert.ok(await gone.isVisible(), "the page says what to do");
    assert.ok(asked <= 20, `it asked ${asked} times`);
    await picture(page, "gone");
    asked = 0;
    await page.clock.fastForward(3_600_000);
    await page.waitForTimeout(200);
    assert.equal(asked, 0, "nothing is asked of a dead port");
    await page.getByRole("button", { name: "Try again" }).click();
    await page.waitForTimeout(200);
    assert.ok(asked > 0, "it tries again when it is told to");
    run("cancel", job);
  },

  async transcript() {
    const page = await visit();
    const job = place(
      "Count the files\n@rehearse think There may be hidden ones\n@rehearse say I look around first.\n" +
      '@rehearse tool Bash {"command":"ls -a | wc -l"} => 42\n@rehearse delay 3s\n@rehearse answer There are 42 files.', "files");
    await go(page, `/jobs/${job}`);
    await page.evaluate(() => { window.untouched = true; });
    await has(page, "#story .said", "I look around first.");
    const tool = page.locator("#story details[data-tool]");
    await tool.waitFor();
    assert.equal(await tool.evaluate((details) => details.open), false, "tools are folded");
    await picture(page, "running");
    await has(page, "#story .said", "There are 42 files.");
    await has(page, ".of-job .is-completed");
    await has(page, ".facts", "confirmed by the kernel");
    await tool.locator("summary").focus();
    await page.keyboard.press("Enter");
    await has(page, "#story .answered pre", "42");
    assert.ok(await tool.locator(".answered pre").isVisible());
    assert.equal(await page.evaluate(() => window.untouched), true, "the page was never loaded anew");
    assert.equal(await page.locator("#working").count(), 0);
    await picture(page, "job");
    nothingWrong(page);
  },

  async cancel() {
    const page = await visit();
    const job = place("@rehearse spawn setsid for 300s\n@rehearse say up\n@rehearse hang");
    await go(page, `/jobs/${job}`);
    await has(page, "#story .said", "up");
    await has(page, ".process-tree code", "rehearsal");
    assert.ok(await page.getByRole("button", { name: "Cancel the job" }).isHidden(), "it asks first");
    await page.locator(".action summary").click();
    await picture(page, "cancel");
    await page.getByRole("button", { name: "Cancel the job" }).click();
    await has(page, ".of-job .is-cancelled");
    await page.locator(".action summary", { hasText: "Run again" }).waitFor();
    assert.equal(await page.locator(".process-tree").count(), 0);
    assert.equal(JSON.parse(run("jobs", "--json")).jobs[0].status, "cancelled");
    await page.locator(".action summary").click();
    await page.getByRole("button", { name: "Run again" }).click();
    await page.waitForURL((at) => isAnother(at, job));
    run("cancel", new URL(page.url()).pathname.split("/").pop());
    nothingWrong(page);
  },

  async changes() {
    mkdirSync(SWITCHBOARD_HOME, { recursive: true, mode: 0o700 });
    writeFileSync(join(SWITCHBOARD_HOME, "config.toml"), "rehearsal = true\n");
    createRepository();
    const first = playInCheckout("Count the items of the basket by their price\n@rehearse write src/basket.rs \"pub fn total(items: &[Item]) -> u64 {\\n    items.iter().map(|item| item.price).sum()\\n}\\n\"\n@rehearse write notes.md by price\n@rehearse answer Done.");
    const second = playInCheckout("Document the basket\n@rehearse write src/basket.rs \"/// Returns the total.\\npub fn total(items: &[Item]) -> u64 {\\n    items.len() as u64 + 0\\n}\\n\"\n@rehearse answer Done.");
    for (const [name, options] of [
      ["light", { colorScheme: "light" }], ["dark", { colorScheme: "dark" }],
      ["narrow", { viewport: { width: 380, height: 760 }, deviceScaleFactor: 2, hasTouch: true }],
    ]) {
      const page = await visit(options);
      await has(page, `#job-${second} .waits`, "open changes");
      await picture(page, `open-jobs-${name}`);
      await go(page, `/jobs/${second}`);
      await has(page, ".collisions", "src/basket.rs");
      await page.locator(".changes .action summary", { hasText: "Apply" }).click();
      const whole = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      assert.ok(whole <= 0, `${name} is ${whole} too wide`);
      await picture(page, `open-changes-${name}`);
      nothingWrong(page);
    }
    const page = await visit();
    await go(page, "/?changes=open");
    await page.locator(`#job-${first} a`).click();
    assert.ok(await page.getByRole("button", { name: "Apply", exact: true }).isHidden(), "it asks first");
    await page.locator(".changes .action summary", { hasText: "Apply" }).click();
    await page.getByRole("button", { name: "Apply", exact: true }).click();
    await has(page, "h1", "Changes applied");
    await picture(page, "applied");
    assert.ok(existsSync(join(WORK, "notes.md")));
    // Both jobs have changed the same line.
    await go(page, `/jobs/${second}`);
    await page.locator(".changes .action summary", { hasText: "Apply" }).click();
    await page.getByRole("button", { name: "Apply", exact: true }).click();
    await has(page, "h1", "cannot be applied");
    await has(page, ".changed-files", "src/basket.rs");
    await picture(page, "conflicts");
    await go(page, `/jobs/${second}`);
    await page.locator(".changes .action summary", { hasText: "Discard" }).click();
    await page.getByRole("button", { name: "Discard", exact: true }).click();
    await has(page, ".changes .is-discarded");
    await go(page, `/jobs/${first}`);
    await has(page, ".changes .is-applied");
    await page.locator(".changes .action summary", { hasText: "Undo" }).click();
    await page.getByRole("button", { name: "Undo", exact: true }).click();
    await has(page, "h1", "Changes undone");
    assert.ok(!existsSync(join(WORK, "notes.md")));
    assert.match(readFileSync(join(WORK, "src/basket.rs"), "utf8"), /items.len\(\)/);
    await page.getByRole("link", { name: "Back to the job" }).click();
    await has(page, ".changes .is-undone");
    await picture(page, "undone");
    // The browser itself notes an answer of 409 as an error.
    assert.ok(page.wrong.every((wrong) => wrong.includes("409")), page.wrong.join());
  },

  async groups() {
    createRepository();
    const write = (model, text) => `@rehearse only ${model} write src/basket.rs "${text}\\n"`;
    const prompt = [
      "Count the items of the basket by their price",
      write("opus", "pub fn total(items: &[Item]) -> u64 { items.iter().map(|item| item.price).sum() }"),
      write("sonnet", "pub fn total(items: &[Item]) -> u64 { items[0].price }"),
      write("haiku", "pub fn total(items: &[Item]) -> u64 { items.len() as u64 * 2 }"),
      "@rehearse only haiku fail other I ran out of ideas",
      "@rehearse only stuck say I still look at the basket",
      "@rehearse only stuck hang",
      "@rehearse only judge choose map(|item| item.price)",
    ].join("\n");
    const race = (...options) => JSON.parse(run("race", prompt, "--cwd", WORK, "--background", "--json", ...options));
    const with_ = "rehearsal:opus,rehearsal:sonnet,rehearsal:haiku,rehearsal:stuck";
    const group = race("--with", with_, "--judge", "rehearsal:judge", "--verify", "grep -q price src/basket.rs");
    const page = await visit();
    await go(page, `/groups/${group.group_id}`);
    await page.evaluate(() => { window.untouched = true; });
    await has(page, "#live", "Live");
    const row = (number) => `[data-swap=contender-${number}]`;
    await has(page, row(4), "I still look at the basket");
    await has(page, `${row(1)} .is-open`);
    await has(page, `${row(2)} .is-open`);
    await has(page, `${row(3)} .why`, "I ran out of ideas");
    await picture(page, "group-running");
    // An open confirmation stays while the others change.
    await page.locator("[data-swap=keep-1] summary").click();
    run("cancel", group.contenders[3].job_id);
    await has(page, `${row(4)} .is-cancelled`);
    await has(page, ".of-job .line .chip", "ended");
    await has(page, ".verdict", "Contender 1 is the best");
    assert.equal(await page.evaluate(() => window.untouched), true, "the page was never loaded anew");
    assert.equal(await page.locator("[data-live]").count(), 0);
    assert.equal(await page.locator("#live").textContent(), "Ended");
    assert.ok(await page.getByRole("button", { name: "Keep contender 1" }).isVisible());
    nothingWrong(page);
    for (const [name, options] of [
      ["light", { colorScheme: "light" }], ["dark", { colorScheme: "dark" }],
      ["narrow", { viewport: { width: 380, height: 760 }, deviceScaleFactor: 2, hasTouch: true }],
    ]) {
      const other = await visit(options);
      await go(other, `/groups/${group.group_id}`);
      await other.locator("[data-swap=keep-1] summary").click();
      const whole = await other.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      assert.ok(whole <= 0, `${name} is ${whole} too wide`);
      await picture(other, `group-${name}`);
      nothingWrong(other);
    }
    await page.getByRole("button", { name: "Keep contender 1" }).click();
    await has(page, "h1", "Changes applied, the others discarded");
    await picture(page, "group-kept");
    assert.match(readFileSync(join(WORK, "src/basket.rs"), "utf8"), /item.price/);
    await page.getByRole("link", { name: "Back to the group" }).click();
    await has(page, `${row(2)} .is-discarded`);
    await page.locator(`${row(1)} a`).click();
    await has(page, ".of-job .line", "One of 4 in group");
    // Without a script.
    const answers = race("--with", "rehearsal:stuck,rehearsal:b", "--observe");
    const plain = await visit({ javaScriptEnabled: false });
    await go(plain, `/groups/${answers.group_id}`);
    await has(plain, ".contenders", "stuck");
    await plain.locator("[data-swap=actions] summary").click();
    await plain.getByRole("button", { name: "Cancel the group" }).click();
    await plain.waitForURL((at) => at.pathname === `/groups/${answers.group_id}`);
    await has(plain, ".contenders .is-cancelled");
    nothingWrong(page);
  },

  async plots() {
    const page = await visit();
    play("x");
    play("x\n@rehearse fail other it broke");
    await go(page, "/overview");
    assert.equal(await page.locator("figure.plot").count(), 4);
    for (const svg of await page.locator("figure.plot svg").all()) {
      const box = await svg.boundingBox();
      assert.ok(box.width > 200 && box.height > 30, JSON.stringify(box));
      assert.ok((await svg.locator("title").first().textContent()).length > 3);
    }
    await page.locator("figure.plot summary").first().click();
    assert.ok(await page.locator("figure.plot table").first().isVisible());
    await picture(page, "overview");
    await go(page, "/agents");
    await page.locator("ul.agents").waitFor();
    await picture(page, "agents");
    nothingWrong(page);
  },

  async hostile() {
    const page = await visit();
    const bad = `</pre></script><script>window.owned=1;alert(1)</script><img src=x onerror="window.owned=2;alert(2)"><svg onload=alert(3)>`;
    await page.evaluate(() => { window.untouched = true; });
    const job = place(`${bad}\n@rehearse delay 1500ms\n@rehearse think ${bad}\n@rehearse tool Bash ${bad} => ${bad}\n@rehearse say ${bad}\n` +
      `@rehearse raw ${bad}\n@rehearse delay 500ms\n@rehearse fail other ${bad}`, bad);
    await page.locator(`#job-${job}`).waitFor();
    await go(page, `/jobs/${job}`);
    await has(page, "#story .said", "<script>window.owned=1;alert(1)</script>");
    await has(page, ".problem");
    for (const path of [`/jobs/${job}`, "/", "/overview", `/?q=${encodeURIComponent(bad)}`]) {
      await go(page, path);
      await page.waitForTimeout(200);
      assert.equal(await page.evaluate(() => window.owned), undefined, path);
      assert.equal(await page.locator("img").count(), 0, path);
    }
    assert.equal(await page.locator("input[name=q]").inputValue(), bad);
    await go(page, `/jobs/${job}`);
    await picture(page, "hostile");
    nothingWrong(page);
  },

  async narrow() {
    const jobs = [
      play('Mend the basket of the shop\n@rehearse tool Bash {"command":"cargo test --workspace --all-features -- --nocapture"} => ok\n@rehearse answer It is mended: ' + "averyveryverylongword".repeat(20), "shop"),
      play("x\n@rehearse fail other it broke"),
    ];
    for (const colorScheme of ["light", "dark"]) {
      const page = await visit({ viewport: { width: 380, height: 760 }, colorScheme, deviceScaleFactor: 2, hasTouch: true });
      for (const [name, path] of [["jobs", "/"], ["job", `/jobs/${jobs[0]}`], ["failed", `/jobs/${jobs[1]}`], ["overview", "/overview"], ["agents", "/agents"]]) {
        await go(page, path);
        if (name === "agents") await page.locator("ul.agents").waitFor();
        await page.evaluate(() => document.querySelectorAll("details").forEach((details) => { details.open = true; }));
        const [inner, whole] = await page.evaluate(() => [window.innerWidth, document.documentElement.scrollWidth]);
        assert.equal(inner, 380);
        assert.ok(whole <= 380, `${path} is ${whole} wide`);
        await picture(page, `narrow-${name}-${colorScheme}`);
      }
      nothingWrong(page);
      const wide = await visit({ colorScheme });
      for (const [name, path] of [["jobs", "/"], ["job", `/jobs/${jobs[0]}`], ["failed", `/jobs/${jobs[1]}`], ["overview", "/overview"]]) {
        await go(wide, path);
        await picture(wide, `${name}-${colorScheme}`);
      }
    }
  },

  async plain() {
    const job = play('Look\n@rehearse tool Bash {"command":"ls"} => one file\n@rehearse answer One file.');
    const page = await visit({ javaScriptEnabled: false });
    await has(page, `#job-${job}`, "Look");
    await page.locator(`#job-${job} a`).click();
    await has(page, "#story .said", "One file.");
    await page.locator(".tool summary").click();
    assert.ok(await page.locator(".answered pre").isVisible(), "what is folded opens without a script");
    await page.locator(".action summary").click();
    await page.getByRole("button", { name: "Run again" }).click();
    await page.waitForURL((at) => isAnother(at, job));
    await go(page, "/?state=completed&q=look");
    await has(page, `#job-${job}`);
  },

  // Not a test: the pictures of the documents (scripts/screenshots), of a home that has a past.
  async pictures() {
    const shot = (page, name) => page.screenshot({ path: join(ARTEFACTS, `${name}.png`) });
    // The scripted agent in the place of a real one, so that the prompt is only what a person would ask.
    const script = join(WORK, "script");
    writeFileSync(script, [
      "think The last item vanishes after a reload, so it is the saving and not the adding",
      "say I look at how the basket is saved, and at what its tests cover.",
      'tool Bash {"command":"rg -n save_basket src"} => src/basket.rs:41: pub fn save_basket(items: &[Item])',
      'tool Read {"file_path":"src/basket.rs"} => for item in &items[..items.len() - 1] { … }',
      "say The loop ends one item too early. I write a test that shows it before I mend it.",
      'tool Bash {"command":"cargo test basket"} => 1 failed: the_last_item_is_saved',
      "hang", ""].join("\n"));
    const agent = join(WORK, "claude");
    const rehearsal = join(dirname(SWITCHBOARD), "rehearsal");
    // What is asked of claude before it is called: its version, and which flags it has.
    const flags = ["--session-id <uuid>", "--setting-sources <sources>", "--strict-mcp-config", "--tools <tools...>"];
    writeFileSync(agent, [
      "#!/bin/sh",
      'case "$1" in',
      "--version) echo '2.1.325 (Claude Code)'; exit;;",
      `--help) printf '  %s  x\\n' ${flags.map((flag) => `'${flag}'`).join(" ")}; exit;;`,
      "esac",
      `exec ${rehearsal} --script ${script} "$@"`, ""].join("\n"));
    chmodSync(agent, 0o755);
    writeFileSync(join(SWITCHBOARD_HOME, "config.toml"), `[programs]\nclaude = "${agent}"\n`);
    const ask = (prompt, task) =>
      JSON.parse(run("call", "claude", prompt, "--cwd", WORK, "--task", task, "--background", "--json")).job_id;
    ask("Write the release notes for 1.4 from the commits since the last tag", "docs");
    const job = ask("Find out why the basket loses its last item\n\nStart with the tests, change as little as possible, and say what you did.", "shop");
    for (const colorScheme of ["light", "dark"]) {
      const dark = colorScheme === "dark";
      const page = await visit({ colorScheme, viewport: { width: 1180, height: 760 } });
      await has(page, `#job-${job}[data-state=running]`);
      await has(page, "#live", "Live");
      await shot(page, dark ? "jobs-dark" : "jobs");
      if (dark) continue;
      await go(page, `/jobs/${job}`);
      await has(page, "#story details[data-tool]", "cargo test basket");
      await has(page, "#live", "Live");
      await shot(page, "job");
      await go(page, "/overview");
      await page.setViewportSize({ width: 1180, height: 1060 });
      await shot(page, "overview");
    }
    const phone = await visit({ viewport: { width: 380, height: 760 }, deviceScaleFactor: 1.5 });
    await has(phone, `#job-${job}`);
    await shot(phone, "telephone");
  },

  async keyboard() {
    const job = play("Found by the keyboard");
    const page = await visit();
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
    await page.keyboard.press("Enter");
    const seen = [];
    for (let steps = 0; steps < 30; steps += 1) {
      await page.keyboard.press("Tab");
      const at = await page.evaluate(() => document.activeElement.getAttribute("href") ?? document.activeElement.name ?? "");
      seen.push(at);
      if (at === `/jobs/${job}`) break;
    }
    assert.ok(seen.includes("state") && seen.includes("q") && seen.includes(`/jobs/${job}`), seen.join());
    await page.keyboard.press("Enter");
    await has(page, "h1", "Found by the keyboard");
    // Whatever can be used has a name for who does not see it.
    for (const path of ["/", `/jobs/${job}`, "/overview"]) {
      await go(page, path);
      const nameless = await page.evaluate(() => [...document.querySelectorAll("a, button, input:not([type=hidden]), select, summary")]
        .filter((thing) => !(thing.textContent.trim() || thing.getAttribute("aria-label") || thing.labels?.length))
        .map((thing) => thing.outerHTML));
      assert.deepEqual(nameless, [], path);
      assert.equal(await page.locator("h1").count(), 1);
    }
    nothingWrong(page);
  },
};

const scene = scenes[process.argv[2]];
assert.ok(scene, `a scene is one of: ${Object.keys(scenes).join(" ")}`);
try {
  await scene();
} finally {
  await browser.close();
}
