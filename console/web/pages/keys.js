// Idempotency keys by namespace, state and age; one key; and the incidents with their decision.

import { query, Resource } from "../api.js";
import { ask, button } from "../action.js";
import { h } from "../dom.js";
import { whole } from "../time.js";
import { Feed, longTable, progress, shortTable } from "../table.js";
import { at, card, countdown, empty, facts, head, is, number, plural, sentence, waiting }
  from "../ui.js";
import { incidentCards, RETENTION } from "./incidents.js";

const STATE = {
  running: ["running", "running"], parked: ["warning", "parked"],
  unsettled: ["info", "unsettled"], done: ["fine", "done"], free: ["unknown", "free"],
};
const STATES = [["", "all"], ["running", "running"], ["parked", "parked"],
  ["unsettled", "unsettled"], ["done", "done"]];
const AGES = [["", "of any age"], [60_000, "older than 1 min"], [600_000, "older than 10 min"],
  [3_600_000, "older than 1 h"], [86_400_000, "older than 1 d"]];

const keyHref = (one) =>
  `#/keys/${encodeURIComponent(one.namespace)}/${encodeURIComponent(one.key)}`;
const state = (one) => is(...(STATE[one.state] || ["unknown", one.state]));
const none = h("span", { class: "soft" }, "–");

const COLUMNS = [
  { title: "Key", class: "name", cell: (one) => [
    h("a", { class: "mono", href: keyHref(one) }, one.key),
    h("span", { class: "below" }, `${one.namespace} · ${plural(one.attempts, "attempt")}`)] },
  { title: "Namespace", width: 110, class: "desk-only", cell: (one) => one.namespace },
  { title: "State", width: 100, cell: state },
  { title: "Attempts", width: 76, class: "wide-only end", cell: (one) => number(one.attempts) },
  { title: "Age", width: 108, class: "end", cell: (one) => whole(one.age_ms / 1000) },
  { title: "Lease left", width: 88, class: "end desk-only",
    cell: (one) => countdown(one.until_ms) },
  { title: "Expires in", width: 108, class: "wide-only end",
    cell: (one) => countdown(one.expires_ms) },
  { title: "Nodes", width: 64, class: "wide-only end", cell: (one) => `${one.on} of ${one.of}` },
  { title: "What it means", class: "wide desk-only", cell: (one) => h("span", {
    title: one.sentence }, one.forgotten ? "may be forgotten: " : "", one.sentence) },
];

const VERBS = {
  resolve: {
    title: "Store a result under a parked key", verb: "Store it",
    does: "The value is the result from then on: later calls get it, and the handler does not run.",
    warns: "A stored result is never changed. Write it in the form that the program stores: calls " +
      "fail if the program cannot read it.",
    extra: [{ name: "value", label: "Result", hint: "as JSON, as the program stores it", read: (text) => {
      try {
        return JSON.parse(text);
      } catch {
        throw new Error("The result is not JSON: a text needs quotes.");
      }
    } }],
  },
  rerun: {
    title: "Let a parked key run again", verb: "Let it run",
    does: "The next call with this key runs its handler, whatever its policy is.",
    warns: "Do it only if the earlier run had no effect: somebody has looked.",
  },
  release: {
    title: "End the claim of a dead run", verb: "End the claim",
    does: "The key is parked or runs again, by its policy. A live process loses its claim.",
    warns: "Effects that it has had remain.",
  },
  purge: {
    title: "Empty the record of a key", verb: "Purge", grave: true,
    does: "The nodes keep nothing of the key any more.",
    warns: "A late copy of the request RUNS AGAIN.",
  },
};

export function keys(app, [namespace, ...rest]) {
  return rest.length ? one(app, namespace, rest.join("/")) : list(app, namespace);
}

function list(app, namespace) {
  const keyOf = (row) => `${row.namespace} ${row.key}`;
  const feed = new Feed("/keys", "keys", keyOf, app.redraw);
  let incidents;
  const losses = {
    retention_ms: RETENTION,
    namespace: "",
    choose(change) {
      const { retention_ms, namespace: name } = Object.assign(losses, change);
      if (incidents) incidents.close();
      incidents = new Resource(query("/incidents", { retention_ms, namespace: name }), app.redraw,
        1000);
      incidents.load();
    },
  };
  losses.choose({});
  const view = { scroll: 0 };
  const want = { namespace: namespace || "", state: "", older_than_ms: "", q: "" };
  const open = () => {
    view.scroll = 0;
    feed.open({ ...want });
  };
  open();
  let typing;
  let spaces = [];

  const choose = (name, value) => {
    want[name] = value;
    open();
  };
  /** Returns the namespaces to choose from, also the chosen one if it has no key. */
  const names = () => [...new Set([want.namespace, ...spaces.map((space) => space.namespace)])]
    .filter((name) => name);
  const tools = () => h("div", { class: "tools", key: "tools" },
    h("div", { class: "chips", role: "group", "aria-label": "State" }, STATES.map(([id, word]) =>
      h("button", { type: "button", "aria-pressed": String(want.state === id),
        onclick: () => choose("state", id) }, word))),
    h("select", { "aria-label": "Namespace", value: want.namespace, onchange: (event) =>
      choose("namespace", event.target.value) }, h("option", { value: "" }, "every namespace"),
    names().map((name) => h("option", { value: name, key: name }, name))),
    h("select", { "aria-label": "Age", value: want.older_than_ms, onchange: (event) => choose("older_than_ms",
      event.target.value) }, AGES.map(([ms, word]) => h("option", { value: ms }, word))),
    h("input", { type: "search", name: "q", placeholder: "Part of the key",
      "aria-label": "Search by part of the key", oninput: (event) => {
        want.q = event.target.value;
        clearTimeout(typing);
        typing = setTimeout(open, 200);
      } }));
  const count = (field, level) => (space) => (space[field] === null
    ? h("span", { class: "soft", title: "known to the consumers' processes alone" }, "not stored")
    : h("span", { class: level && space[field] > 0 ? `is ${level}` : "" }, number(space[field])));
  const SPACES = [
    { title: "Namespace", class: "name", cell: (space) => h("button", { type: "button",
      class: "plain small link", onclick: () => choose("namespace", space.namespace) },
    space.namespace) },
    { title: "Running", class: "end", cell: count("running") },
    { title: "Parked", class: "end", cell: count("parked", "warning") },
    { title: "Unsettled", class: "end desk-only", cell: count("unsettled") },
    { title: "Done", class: "end", cell: count("done") },
    { title: "May be forgotten", class: "end desk-only", cell: count("forgotten", "error") },
  ];
  const body = () => {
    const rows = feed.all();
    spaces = feed.meta.namespaces || spaces;
    return [
      head("Keys", feed.started && `${number(feed.meta.total ?? rows.length)} ${
        feed.plain() && feed.meta.whole ? "in all" : "found"}`),
      incidentCards(app, incidents, losses),
      spaces.length > 0 && card("Namespaces", {}, shortTable("Namespaces", SPACES, spaces,
        (space) => space.namespace)),
      tools(),
      feed.error && h("div", { class: "cut", role: "alert", key: "error" }, feed.error.message),
      card("Keys", { key: "list", foot: progress(feed, "keys", app.poll) },
        rows.length || !feed.started
          ? longTable({ label: "Keys", columns: COLUMNS, feed, state: view, keyOf,
            redraw: app.redraw })
          : empty(feed.plain()
            ? feed.meta.whole
              ? "The nodes have no record of a key. One appears here with its first claim."
              : "No key has been seen so far."
            : "No key is like that. Choose another state or age to see more.")),
    ];
  };
  return {
    title: () => "Keys",
    view: body,
    heard: (name, data) => {
      if (name === "keys" || name === "lagged") feed.renew(view, data);
      if (["happened", "lagged", "hello"].includes(name)) incidents.load();
    },
    close: () => {
      feed.close();
      incidents.close();
    },
  };
}

function one(app, namespace, key) {
  const own = new Resource(query("/key", { namespace, key }), app.redraw, 500);
  own.load();
  const act = (action) => ask({ action, name: key, what: "key", body: { namespace, key },
    then: () => own.load(), ...VERBS[action],
    target: () => ({ expect: own.data.shown, facts: [
      ["Namespace", namespace],
      ["State", state(own.data)],
      ["Attempts", number(own.data.attempts)],
      ["Age of the last claim", whole(own.data.age_ms / 1000)],
    ] }) });
  const view = () => {
    const data = own.data;
    const crumb = h("div", { class: "page-head", key: "head" },
      h("h1", null, h("a", { class: "crumb", href: "#/keys" }, "Keys / "),
        h("a", { class: "crumb", href: `#/keys/${encodeURIComponent(namespace)}` },
          `${namespace} / `), h("span", { class: "mono big" }, key)),
      data && h("div", { class: "right tools" }, data.actions.map((action) => VERBS[action] &&
        button(app.session, `${action[0].toUpperCase()}${action.slice(1)}…`, () => act(action),
          { id: action, small: false }))));
    if (!data) return [crumb, waiting(own)];
    const { result } = data;
    return [
      crumb,
      own.error && h("div", { class: "cut", role: "alert", key: "error" }, own.error.message),
      card("Record", { foot: !app.session.actions && sentence(app.session.why_no_actions) },
        h("p", { class: "lead" }, sentence(data.sentence)), facts([
          ["State", state(data)],
          ["Attempts", number(data.attempts)],
          ["Age of the last claim", whole(data.age_ms / 1000)],
          ["Lease left", typeof data.until_ms === "number" && countdown(data.until_ms)],
          ["Record expires in", typeof data.expires_ms === "number" ? countdown(data.expires_ms)
            : none],
          ["On nodes", `${data.on} of ${data.of}`],
          ["Seen", at(data.seen_ms)],
          ["May be forgotten", data.forgotten ? is("error", "yes") : "no"],
        ])),
      result && card("Result", {}, h("div", { class: "body" }, result.shown
        ? h("pre", { class: "mono" }, JSON.stringify(result.value, null, 2))
        : h("p", { class: "soft" }, sentence(result.why) || "There is no result yet.",
          result.bytes ? ` It has ${plural(result.bytes, "byte")}.` : ""))),
    ];
  };
  return {
    title: () => key,
    view,
    heard: (name) => ["keys", "lagged", "hello"].includes(name) && own.load(),
    close: () => own.close(),
  };
}

