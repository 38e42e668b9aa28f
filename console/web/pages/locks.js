// Locks of every kind: who holds, since when, who waits.

import { h } from "../dom.js";
import { Feed, longTable, progress } from "../table.js";
import { card, countdown, empty, head, is, number, plural, since } from "../ui.js";
import { lockHref } from "./overview.js";

const KINDS = [["", "all"], ["mutex", "exclusive"], ["read", "read"], ["semaphore", "semaphores"]];
const STATE = {
  held: ["fine", "held"], read: ["fine", "read"], attempt: ["unknown", "attempt"],
  free: ["unknown", "free"], kept: ["info", "kept"], foreign: ["warning", "foreign"],
  unknown: ["unknown", "unknown"],
};

export const lockState = (state) => is(...(STATE[state] || ["unknown", state]));
export const KIND = { mutex: "exclusive", read: "read", semaphore: "semaphore" };

/** Returns how many permits are held. Of how many, the programs that use them know alone. */
export const permits = ({ held }) => plural(held, "permit");

/** Returns the holders of a lock in a few words. */
function who(one) {
  const [first] = one.holders;
  if (one.permits) return permits(one.permits);
  if (!first) return h("span", { class: "soft" }, "–");
  const note = first.note ? ` ${first.note}` : "";
  const name = h("span", { title: `${first.owner}${note}` }, h("code", null,
    first.owner), note && h("span", { class: "soft" }, note));
  return one.holder_count > 1 ? [name, ` and ${number(one.holder_count - 1)} more`] : name;
}

const first = (one) => one.holders[0] || {};
const latest = (one) => {
  const ends = one.holders.map((holder) => holder.until_ms).filter((ms) => ms !== null);
  return ends.length ? Math.max(...ends) : undefined;
};
const waits = (one) => (one.waiting ? number(one.waiting)
  : h("span", { class: "soft" }, one.waiting === 0 ? "0" : "–"));

const COLUMNS = [
  { title: "Name", class: "name", cell: (one) => [
    h("a", { class: "mono", href: lockHref(one.kind, one.name) }, one.name),
    h("span", { class: "below" }, `${STATE[one.state]?.[1] || one.state} · `,
      first(one).owner || (one.state === "unknown" ? "holder not known" : "no holder"),
      one.waiting > 0 && ` · ${plural(one.waiting, "waits", "wait")}`)] },
  { title: "Kind", width: 96, class: "wide-only", cell: (one) => KIND[one.kind] || one.kind },
  { title: "State", width: 82, class: "desk-only", cell: (one) => lockState(one.state) },
  { title: "Holder", width: 230, class: "wide desk-only", cell: who },
  { title: "Held for", width: 104, class: "desk-only", cell: (one) => since(first(one).since_ms) },
  { title: "Lease left", width: 88, class: "end", cell: (one) => countdown(latest(one)) },
  { title: "Token", width: 140, class: "wide-only",
    cell: (one) => h("code", null, one.fence || "–") },
  { title: "Wait", width: 60, class: "end desk-only", cell: waits },
];

export function locks(app) {
  const keyOf = (one) => `${one.kind} ${one.name}`;
  const feed = new Feed("/locks", "locks", keyOf, app.redraw);
  const state = { kind: "", q: "", scroll: 0 };
  const open = () => {
    state.scroll = 0;
    feed.open({ kind: state.kind, q: state.q });
  };
  open();
  let typing;

  const tools = () => [
    h("div", { class: "chips", role: "group", "aria-label": "Kind" }, KINDS.map(([kind, word]) =>
      h("button", { type: "button", "aria-pressed": String(state.kind === kind), onclick: () => {
        state.kind = kind;
        open();
      } }, word))),
    h("input", { type: "search", name: "q", placeholder: "Part of the name",
      "aria-label": "Search by part of the name", oninput: (event) => {
        state.q = event.target.value;
        clearTimeout(typing);
        typing = setTimeout(open, 200);
      } }),
  ];
  const view = () => {
    const rows = feed.all();
    const none = state.q || state.kind
      ? "No lock is like that. Take the filter away to see all of them."
      : feed.meta.whole ? "No lock is held. One appears here soon after it is acquired."
        : "No lock has been seen so far.";
    return [
      head("Locks", feed.started && `${number(feed.meta.total ?? rows.length)} in sight`, tools()),
      feed.error && h("div", { class: "cut", role: "alert", key: "error" }, feed.error.message),
      card("Locks that are held or waited for", { key: "list", foot: progress(feed, "locks",
        app.poll) },
      rows.length || !feed.started
        ? longTable({ label: "Locks", columns: COLUMNS, feed, state, keyOf, redraw: app.redraw })
        : empty(none)),
    ];
  };
  return {
    title: () => "Locks",
    view,
    heard: (name, data) => (name === "locks" || name === "lagged") && feed.renew(state, data),
    close: () => feed.close(),
  };
}

