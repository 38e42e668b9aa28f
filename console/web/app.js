// The frame around the pages: who is signed in, which page is shown, how fresh the data are.

import { get, post } from "./api.js";
import { h, render } from "./dom.js";
import { Live } from "./live.js";
import { age, clock, isOlder, now } from "./time.js";
import { at, is, mark, toast } from "./ui.js";
import { LEVEL, overview } from "./pages/overview.js";

// The first page comes with the frame; each other one is loaded when it is asked for.
const PAGES = [
  ["overview", "Overview", async () => overview],
  ["locks", "Locks", async () => (await import("./pages/locks.js")).locks],
  ["elections", "Elections", async () => (await import("./pages/elections.js")).elections],
  ["cron", "Cron", async () => (await import("./pages/cron.js")).cron],
  ["keys", "Keys", async () => (await import("./pages/keys.js")).keys],
  ["nodes", "Nodes", async () => (await import("./pages/nodes.js")).nodes],
  ["failovers", "Failovers", async () => (await import("./pages/failovers.js")).failovers],
];
const lock = async () => (await import("./pages/lock.js")).lock;
const SHORTCUTS = "palisade.shortcuts";
const UNDRAWN = "This page could not be drawn, because its data are not as it expects. It is " +
  "tried again with the next data.";

const app = { session: null, overview: null, page: null, redraw, latencies: new Map(),
  undrawn: new Set() };
const live = new Live(heard, redraw, checkSession);
const place = (id) => document.getElementById(id);

let planned = false;
function redraw() {
  if (planned) return;
  planned = true;
  const next = () => {
    planned = false;
    frame();
  };
  if (document.hidden) setTimeout(next, 50);
  else requestAnimationFrame(next);
}

function heard(name, data) {
  if (name === "hello") app.session = data;
  if (name === "overview") takeOverview(data);
  if (name === "tick") Object.assign(app, { poll: data.poll, readAt: data.at_ms });
  if (name === "closing") toast("error", data.text);
  if (app.page && app.page.heard) app.page.heard(name, data);
  redraw();
}

function takeOverview(data) {
  if (isOlder(data, app.overview)) return;
  app.overview = data;
  app.poll = data.poll || app.poll;
  app.unreadSince = (data.unread || []).length ? app.unreadSince || now() : 0;
  for (const { node, latency_ms: ms } of data.votes || []) {
    const list = app.latencies.get(node) || [];
    list.push(ms);
    app.latencies.set(node, list.slice(-60));
  }
}

/** Returns the parts of the address after `#/`. */
function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/");
  try {
    return parts.map(decodeURIComponent);
  } catch {
    return [""];
  }
}

async function go(focus) {
  const round = app.round = (app.round || 0) + 1;
  const [first, ...rest] = route();
  const [id, , load] = PAGES.find(([one]) => one === first) || PAGES[0];
  let make;
  try {
    make = await (id === "locks" && rest.length > 1 ? lock() : load());
  } catch {
    toast("error", "The page could not be loaded: the console does not answer.");
    return;
  }
  if (round !== app.round) return; // another page was asked for in the meantime
  if (app.page && app.page.close) app.page.close();
  app.id = id;
  app.page = make(app, rest);
  live.follow(id === "overview" ? ["overview"] : ["overview", id]);
  frame();
  const current = document.querySelector("#nav [aria-current]");
  if (current) current.scrollIntoView({ block: "nearest", inline: "center" });
  window.scrollTo(0, 0);
  if (focus) place("main").focus({ preventScroll: true });
}

function freshness() {
  const { state, missed } = live;
  if (app.undrawn.size) return is("error", "not drawn");
  if (state === "cut") return is("error", "cut off");
  if (state === "lagged") return is("warning", `lagged, ${missed} events left out`);
  if (state === "connecting") return is("unknown", "connecting");
  const old = app.overview && app.overview.at_ms && now() - Math.max(app.overview.at_ms,
    app.readAt || 0);
  return old > 10_000 ? is("warning", "live, but the data are old") : is("fine", "live");
}

function top() {
  const verdict = app.overview && app.overview.verdict;
  return [
    h("a", { class: "brand", href: "#/" }, h("img", { src: "/icon.svg", alt: "" }),
      h("span", null, "palisade ", h("span", { class: "soft" }, "console"))),
    h("p", { class: "state-line" }, verdict && app.id !== "overview" && [
      mark(LEVEL[verdict.state], verdict.state), " ", verdict.text]),
    h("div", { class: "facts" },
      app.session && app.session.demo && h("span", { class: "tag" }, "demo"),
      app.session && !app.session.actions && h("span", { class: "tag desk",
        title: app.session.why_no_actions || "" }, "read only"),
      h("span", { class: "live", id: "live", role: "status" }, freshness()),
      // Outside of what is read out, because it changes each second.
      live.state === "cut" && h("span", { class: "soft" }, `for ${age(live.since)}`),
      h("time", { class: "mono" }, `${clock(now())} UTC`),
      h("button", { type: "button", class: "small plain desk", onclick: help,
        "aria-label": "Help and keyboard shortcuts" }, h("kbd", null, "?")),
      app.session && app.session.login === "token" && h("button", { type: "button",
        class: "small plain", onclick: signOut }, "Sign out")),
  ];
}

function count(id) {
  const counts = app.overview && app.overview.counts;
  if (!counts) return null;
  const shown = (n, level, word) => n > 0 && h("span", { class: `count ${level || ""}` }, n,
    h("span", { class: "hide" }, ` ${word}`));
  if (id === "locks") return shown(counts.locks + counts.semaphores, "", "held");
  if (id === "elections") return shown(counts.elections, "", "elections");
  if (id === "cron") return shown(counts.jobs, "", "jobs");
  if (id === "keys") {
    return shown(counts.incidents, "error", "incidents without a decision") ||
      shown(counts.parked, "warning", "parked");
  }
  const out = (app.overview.votes || []).filter((vote) => !vote.voting).length;
  return id === "nodes" && shown(out, "error", "without a vote");
}

function navigation() {
  if (!app.session || !app.session.signed_in) return null;
  return h("ul", null, PAGES.map(([id, title]) => h("li", null, h("a", {
    href: id === "overview" ? "#/" : `#/${id}`, "aria-current": app.id === id ? "page" : undefined,
  }, title, count(id)))));
}

/** Draws everything. A part that cannot be drawn is never left as it was before. */
function frame() {
  draw("main", content);
  draw("nav", navigation);
  draw("top", top);
  title();
}

function draw(part, view) {
  try {
    render(place(part), view());
    app.undrawn.delete(part);
  } catch (why) {
    if (!app.undrawn.has(part)) console.error(why); // once, and not each second
    app.undrawn.add(part);
    render(place(part), h("div", { class: "cut", role: "alert", key: "broken" }, UNDRAWN));
  }
}

function content() {
  if (!app.session) return h("p", { class: "soft" }, "Connecting…");
  if (!app.session.signed_in) return signIn();
  const cut = live.state === "cut" && h("div", { class: "cut", role: "alert", key: "cut" },
    "The stream of changes has been cut off since ", at(live.since),
    ": what is shown is as old as that. It is opened again by itself.");
  return [cut, app.page && app.page.view()];
}

function title() {
  if (!app.session || !app.session.signed_in) return;
  if (app.overview && !performance.getEntriesByName("shown").length) performance.mark("shown");
  const voting = app.overview && app.overview.votes
    ? `${app.overview.voting}/${app.overview.votes.length} · ` : "";
  const text = `${voting}${app.page ? app.page.title() : "Sign in"} · palisade`;
  if (document.title !== text) document.title = text;
}

let refused = "";
function signIn() {
  const send = async (event) => {
    event.preventDefault();
    const field = event.target.querySelector("input");
    try {
      await post("/session", { token: field.value });
      field.value = refused = "";
      await start();
    } catch (why) {
      refused = why.message;
      redraw();
    }
  };
  return h("section", { class: "card sign", "aria-label": "Sign in", key: "sign" },
    h("div", { class: "head" }, h("h1", null, "Sign in")),
    h("form", { class: "body tools", onsubmit: send },
      h("label", { class: "field" }, h("span", null, "Token"),
        h("input", { type: "password", name: "token", autocomplete: "current-password" })),
      h("button", { class: "main", type: "submit" }, "Sign in"),
      h("p", { class: "soft" }, "It is the token that `palisade console` was started with."),
      h("div", { role: "alert" }, refused && h("p", { class: "cut" }, refused))));
}

async function signOut() {
  live.close();
  try {
    await post("/session", {}, "DELETE");
  } catch (why) {
    toast("error", why.message);
  }
  await start();
}

async function start() {
  try {
    app.session = await get("/session");
  } catch (why) {
    render(place("main"), h("div", { class: "cut", role: "alert" }, why.message));
    setTimeout(start, 2000);
    return;
  }
  if (app.session.signed_in) go(false);
  redraw();
}

function signedOut() {
  if (!app.session || !app.session.signed_in) return;
  live.close();
  app.session = { ...app.session, signed_in: false };
  redraw();
}

async function checkSession() {
  try {
    const session = await get("/session");
    if (!session.signed_in) signedOut();
  } catch {
    // The console does not answer: the stream is opened again when it does.
  }
}

function help() {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "help-title");
  const on = localStorage.getItem(SHORTCUTS) !== "off";
  render(dialog, h("div", { class: "inner" },
    h("h2", { id: "help-title" }, "Keyboard"),
    h("dl", { class: "pairs wide" },
      PAGES.map(([, title], n) => [h("dt", null, h("kbd", null, n + 1)), h("dd", null, title)]),
      h("dt", null, h("kbd", null, "/")), h("dd", null, "Search in the list"),
      h("dt", null, h("kbd", null, "?")), h("dd", null, "This help")),
    h("label", null, h("input", { type: "checkbox", checked: on, class: "check",
      onchange: (event) => localStorage.setItem(SHORTCUTS, event.target.checked ? "on" : "off") }),
    " Shortcuts of one key"),
    app.session && h("p", { class: "soft" }, `palisade ${app.session.version}. All times are UTC, `,
      "by the console's clock. All of it is JSON under ", h("code", null, "/api/v1"), "."),
    h("div", { class: "row" }, h("button", { type: "button", class: "main",
      onclick: () => dialog.close() }, "Close"))));
  dialog.onclose = () => dialog.remove();
  document.body.append(dialog);
  dialog.showModal();
}

function pressed(event) {
  const field = event.target.closest && event.target.closest("input, select, textarea, dialog");
  if (field || event.ctrlKey || event.metaKey || event.altKey) return;
  if (localStorage.getItem(SHORTCUTS) === "off") return;
  const page = PAGES[Number(event.key) - 1];
  if (page) location.hash = page[0] === "overview" ? "#/" : `#/${page[0]}`;
  else if (event.key === "?") help();
  else if (event.key === "/") {
    const search = document.querySelector("#main input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
}

/** Draws at each full second of the console's clock, so that countdowns are even. */
function eachSecond() {
  redraw();
  setTimeout(eachSecond, 1000 - (now() % 1000) + 5);
}

place("skip").onclick = (event) => {
  event.preventDefault();
  place("main").focus();
};
window.addEventListener("hashchange", () => app.session && app.session.signed_in && go(true));
window.addEventListener("keydown", pressed);
window.addEventListener("resize", redraw);
window.addEventListener("signed-out", signedOut);
start();
eachSecond();
