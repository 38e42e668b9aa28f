// One lock: what each node says, every holder, and who waits in which place and why.

import { Resource, query } from "../api.js";
import { ask, button } from "../action.js";
import { h } from "../dom.js";
import { shortTable } from "../table.js";
import { at, card, countdown, empty, facts, plural, sentence, since, verdict, waiting }
  from "../ui.js";
import { KIND, lockState, permits } from "./locks.js";
import { happened } from "./overview.js";

const LEVEL = { held: "fine", read: "fine", foreign: "warning", free: "unknown", kept: "unknown",
  attempt: "unknown", unknown: "unknown" };

const NONE = { free: "Nobody holds it now.",
  unknown: "It is not known who holds it: too few nodes answered." };

const HOLDERS = [
  { title: "Owner", class: "name", cell: (one) => h("code", null, one.owner) },
  { title: "Note", class: "wide desk-only", cell: (one) => one.note || "–" },
  { title: "Slot", class: "end desk-only", cell: (one) => one.slot ?? "–" },
  { title: "Since", class: "desk-only", cell: (one) => at(one.since_ms) },
  { title: "Held for", class: "desk-only", cell: (one) => since(one.since_ms) },
  { title: "Lease left", class: "end", cell: (one) => countdown(one.until_ms) },
  { title: "Token", cell: (one) => h("code", null, one.token) },
  { title: "Nodes", class: "end desk-only", cell: (one) => `${one.on} of ${one.of}` },
];
const WAITERS = [
  { title: "Place", cell: (one) => one.place },
  { title: "Handle", class: "name", cell: (one) => h("code", null, one.handle || "–") },
  { title: "Wants to", cell: (one) => (one.mode === "shared" ? "read" : "hold alone") },
  { title: "Waits for", class: "desk-only", cell: (one) => since(one.since_ms) },
  { title: "Why", class: "wide", cell: (one) => one.why },
];
const NODES = [
  { title: "Node", class: "name", cell: (one) => one.node },
  { title: "State", cell: (one) => lockState(one.state) },
  { title: "Owner", class: "desk-only", cell: (one) => (one.owner ? h("code", null, one.owner)
    : one.readers ? plural(one.readers, "reader") : "–") },
  { title: "Fence", class: "desk-only", cell: (one) => h("code", null, one.fence || "–") },
  { title: "Left", class: "end", cell: (one) => countdown(one.until_ms) },
  { title: "Why", class: "wide desk-only", cell: (one) => one.why || one.note || "–" },
];

export function lock(app, [kind, ...rest]) {
  const name = rest.join("/");
  const own = new Resource(query("/lock", { name, kind }), app.redraw, 500);
  own.load();

  const release = () => ask({
    action: "force-release", title: "Force the release of a lock", verb: "Release", grave: true,
    does: "The holder's fencing token is refused from then on. No other owner gets the lock " +
      "before the holder's lease is over.",
    warns: "Its work is not stopped by this. Do it if the holder hangs.",
    name, what: "name of the lock", body: { name }, then: () => own.load(),
    target: () => {
      const [holder] = own.data.holders;
      return { expect: holder?.owner, facts: holder ? [
        ["Owner", h("code", null, holder.owner)],
        ["Token", h("code", null, holder.token)],
        ["Since", at(holder.since_ms)],
      ] : [] };
    },
  });
  const view = () => {
    const crumb = h("div", { class: "page-head", key: "head" },
      h("h1", null, h("a", { class: "crumb", href: "#/locks" }, "Locks / "), h("span",
        { class: "mono big" }, name)),
      h("span", { class: "tag" }, KIND[kind] || kind),
      h("div", { class: "right tools" }, kind === "mutex" && own.data &&
        own.data.state === "held" && button(app.session, "Force the release…", release,
        { id: "force-release", small: false })));
    const data = own.data;
    if (!data) return [crumb, waiting(own)];
    const ends = data.holders.map((one) => one.until_ms).filter((ms) => ms !== null);
    return [
      crumb,
      verdict(LEVEL[data.state] || "unknown", data.sentence,
        ends.length ? Math.max(...ends) : undefined),
      own.error && h("div", { class: "cut", role: "alert", key: "error" }, own.error.message),
      h("section", { class: "card", "aria-label": "Facts", key: "facts" }, facts([
        ["State", lockState(data.state)],
        ["Fence", h("code", null, data.fence || "–")],
        ["Held", data.permits && permits(data.permits)],
        ["Holders", String(data.holder_count)],
        ["Waiting", data.waiters === null ? "not read" : String(data.waiting)],
        ["Seen", at(data.seen_ms)],
      ])),
      card("Holders", { foot: "Host and process of a holder are known to the holder alone." },
        data.holders.length ? shortTable("Holders", HOLDERS, data.holders, (one) =>
          `${one.owner} ${one.slot}`) : empty(NONE[data.state] ||
          sentence(data.sentence))),
      card("Waiting", {}, data.waiters === null
        ? empty("Its queue has not been read. The console reads the queues of locks that are held " +
          "or waited for.")
        : data.waiters.length ? shortTable("Waiting", WAITERS, data.waiters, (one) => one.place)
          : empty("There is nobody in its queue.")),
      data.nodes && card("What each node answers", {}, shortTable("Nodes", NODES, data.nodes,
        (one) => one.node)),
      card("What happened to it", {}, happened(data.happened || [],
        "Nothing has happened to it since this console began to watch.")),
    ];
  };
  return {
    title: () => name,
    view,
    heard: (event) => ["locks", "lagged", "hello"].includes(event) && own.load(),
    close: () => own.close(),
  };
}

