// Adds live updates. The pages work without it; the daemon renders and escapes all inserted markup.
"use strict";

const select = (what, within = document) => within.querySelector(what);
const each = (what, doing, within = document) => within.querySelectorAll(what).forEach(doing);

// Parses a fragment of the daemon into a node.
const node = (html) => {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
};

// Shows local times, and the buttons that need the script.
const dress = (within = document) => {
  each("time[datetime]", (time) => {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const today = at.toDateString() === new Date().toDateString();
    const clock = { hour: "2-digit", minute: "2-digit", hour12: false };
    const form = today ? { ...clock, second: "2-digit" } : { day: "numeric", month: "short", ...clock };
    time.textContent = at.toLocaleString("en-GB", form);
  }, within);
  each(".grows", (span) => { span.dataset.since ??= Date.now() - Number(span.dataset.millis); }, within);
  each("button.copy", (button) => { button.hidden = false; }, within);
};

const span = (millis) => {
  const seconds = Math.floor(millis / 1000);
  const two = (number) => String(number).padStart(2, "0");
  if (millis < 60_000) return `${seconds}.${Math.floor((millis % 1000) / 100)} s`;
  if (millis < 3_600_000) return `${Math.floor(seconds / 60)}m ${two(seconds % 60)}s`;
  return `${Math.floor(seconds / 3600)}h ${two(Math.floor(seconds / 60) % 60)}m`;
};
setInterval(() => each(".grows", (grows) => { grows.textContent = span(Date.now() - Number(grows.dataset.since)); }), 500);

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const said = await navigator.clipboard.writeText(button.dataset.copy).then(() => "Copied", () => "Not copied");
  button.textContent = said;
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

// A changed filter submits the form.
each(".filters select", (choice) => choice.addEventListener("change", () => choice.form.requestSubmit()));

const live = select("#live");
const say = (words, lost = false) => {
  if (!live || live.textContent === words) return;
  live.hidden = false;
  live.textContent = words;
  live.classList.toggle("is-lost", lost);
};

// Is true while the live stream is open. The page polls only then.
let connected = false;
// Failed attempts in a row, about two minutes in total, before the daemon counts as stopped.
const TRIES = 8;
const LONGEST_PAUSE = 30_000;

// Reports that the daemon has stopped, with a button to retry.
const gone = (retry) => {
  say("The daemon has stopped; `switchboard open` opens this page again. ", true);
  const button = document.createElement("button");
  button.textContent = "Try again";
  button.addEventListener("click", retry);
  live?.append(button);
};

// Browsers limit the connections per server, so only visible pages hold a stream.
const watch = (address, handlers) => {
  let source = null;
  let timer = null;
  let failures = 0;
  let over = false;
  const close = () => {
    clearTimeout(timer);
    timer = null;
    source?.close();
    source = null;
    connected = false;
  };
  const stop = () => { over = true; close(); };
  const retry = () => { close(); failures = 0; open(); };
  const open = () => {
    if (over || source || document.hidden) return;
    source = new EventSource(address());
    source.onopen = () => { failures = 0; connected = true; say("Live"); };
    // Own back-off: the browser would retry a dead port every few seconds forever.
    source.onerror = () => {
      close();
      failures += 1;
      if (failures >= TRIES) { gone(retry); return; }
      say("Not connected", true);
      timer = setTimeout(open, Math.min(LONGEST_PAUSE, 500 * 2 ** failures));
    };
    for (const [name, doing] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => doing(JSON.parse(event.data), event, stop));
    }
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : retry()));
  window.addEventListener("pagehide", close);
  open();
};

// Fetches the current page, for the parts without live events.
const anew = async () => {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok) return null;
  return new DOMParser().parseFromString(await answer.text(), "text/html");
};

// Runs once, and once more if it was called meanwhile.
const gathered = (doing) => {
  let busy = false;
  let again = false;
  return async () => {
    if (busy) { again = true; return; }
    busy = true;
    do {
      again = false;
      await doing().catch(() => say("Not connected", true));
      await new Promise((done) => setTimeout(done, 800));
    } while (again);
    busy = false;
  };
};

// Replaces the marked parts of the page by those of the current page.
const swap = gathered(async () => {
  const page = await anew();
  if (!page) return;
  each("[data-swap]", (old) => {
    const fresh = select(`[data-swap="${old.dataset.swap}"]`, page);
    if (!fresh) { old.remove(); return; }
    // Keep an open confirmation, and the focus.
    if (select("details[open]", old)) return;
    const usable = "a, button, summary";
    const focused = [...old.querySelectorAll(usable)].indexOf(document.activeElement);
    old.replaceWith(document.adoptNode(fresh));
    dress(fresh);
    if (focused >= 0) fresh.querySelectorAll(usable)[focused]?.focus();
  });
  if (!select("main [data-live]", page)) select("main [data-live]")?.removeAttribute("data-live");
});

const list = select(".jobs-list[data-live]");
if (list) {
  const jobs = select("#jobs");
  const most = Number(list.dataset.most);
  const count = (page) => {
    for (const what of ["#counts", ".pages"]) {
      const fresh = select(what, page);
      if (fresh && select(what)) select(what).replaceWith(document.adoptNode(fresh));
    }
  };
  const recount = gathered(async () => { const page = await anew(); if (page) count(page); });
  const refill = gathered(async () => {
    const page = await anew();
    if (!page) return;
    jobs.replaceChildren(...document.adoptNode(select("#jobs", page)).children);
    count(page);
    dress(jobs);
    shown();
  });
  const shown = () => {
    each("main > .blank", (blank) => { blank.hidden = jobs.children.length > 0; });
    const head = select(".jobs-head");
    if (head) head.hidden = jobs.children.length === 0;
  };
  watch(() => list.dataset.live, {
    // Changes may be missing since the page was rendered or the connection was lost.
    hello: () => refill(),
    missed: () => refill(),
    job: ({ id, html }) => {
      const old = document.getElementById(`job-${id}`);
      const row = html && node(html);
      if (row && old) {
        const focused = old.contains(document.activeElement);
        old.replaceWith(row);
        if (focused) select("a", row).focus();
      } else if (row && (!jobs.firstElementChild || row.id > jobs.firstElementChild.id)) {
        row.classList.add("is-new");
        jobs.prepend(row);
        while (jobs.children.length > most) jobs.lastElementChild.remove();
      } else if (old && !row) {
        old.remove();
      }
      if (row) dress(row);
      shown();
      recount();
    },
  });
}

const job = select(".job-page[data-live]");
if (job) {
  const story = select("#story");
  const near = () => window.innerHeight + window.scrollY > document.body.offsetHeight - 160;
  // Keeps the view at the end only if it was there before.
  const growing = (doing) => {
    const follows = near();
    doing();
    select("#silence")?.remove();
    if (follows) window.scrollTo({ top: document.body.scrollHeight });
  };
  const told = new URL(job.dataset.live, location.href);
  watch(() => told.pathname + told.search, {
    piece: ({ html }, event) => { mark(event); growing(() => { const piece = node(html); story.append(piece); dress(piece); }); },
    grown: ({ html }, event) => {
      mark(event);
      growing(() => {
        const said = [...story.querySelectorAll(".said .text")].pop();
        const piece = document.createElement("template");
        piece.innerHTML = html;
        said?.append(piece.content);
      });
    },
    answered: ({ tool, html, failure }, event) => {
      mark(event);
      growing(() => {
        const within = [...story.querySelectorAll("details[data-tool]")].reverse().find((use) => use.dataset.tool === tool);
        (within ?? story).append(node(html));
        if (within && failure) {
          const sign = document.createElement("span");
          sign.className = "failure";
          sign.textContent = `✗ ${failure}`;
          select("summary", within).append(" ", sign);
        }
      });
    },
    stderr: ({ html }, event) => {
      mark(event);
      select("#stderr-section").hidden = false;
      const piece = document.createElement("template");
      piece.innerHTML = html;
      select("#stderr-text").append(piece.content);
    },
    changed: () => swap(),
    ended: (_, event, stop) => {
      stop();
      job.removeAttribute("data-live");
      select("#working")?.remove();
      say("Ended");
      swap();
    },
  });
  function mark(event) {
    if (event.lastEventId) told.searchParams.set("told", event.lastEventId);
  }
  const tree = select("[data-again]");
  const again = async () => {
    if (!tree?.isConnected && !select("[data-again]")) return;
    if (!document.hidden && connected) {
      const answer = await fetch(select("[data-again]").dataset.again).catch(() => null);
      if (answer?.ok) {
        const template = document.createElement("template");
        template.innerHTML = await answer.text();
        select("[data-again] .tree")?.replaceChildren(template.content);
      }
    }
    setTimeout(again, 2000);
  };
  setTimeout(again, 2000);
}

const group = select(".group-page[data-live]");
if (group) {
  watch(() => group.dataset.live, {
    changed: () => swap(),
    activity: ({ lines }) => {
      for (const [job, html] of Object.entries(lines)) {
        const piece = document.createElement("template");
        piece.innerHTML = html;
        document.getElementById(`activity-${job}`)?.replaceChildren(piece.content);
      }
    },
    ended: (_, event, stop) => {
      stop();
      say("Ended");
      swap();
    },
  });
}

dress();
