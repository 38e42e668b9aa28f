// Elections: who leads, who would, and the terms on one axis of time with the gaps between them.

import { Resource } from "../api.js";
import { ask, button } from "../action.js";
import { h } from "../dom.js";
import { iso, now, span } from "../time.js";
import { budget, shortTable } from "../table.js";
import { colour, roomOf, timeline } from "../timeline.js";
import { card, countdown, empty, facts, head, is, plural, since, waiting } from "../ui.js";

const STATE = { led: ["fine", "led"], leaderless: ["error", "leaderless"],
  unknown: ["unknown", "unknown"] };
const SHOWN = 30;

const CANDIDATES = [
  { title: "Candidate", class: "name", cell: (one) => [
    h("span", null, `${one.host}, pid ${one.pid}`),
    h("span", { class: "below" }, one.value || "")] },
  { title: "Is", cell: (one) => (one.leads ? is("fine", "leads")
    : one.eligible ? is("unknown", "waits") : is("warning", "is not eligible")) },
  { title: "Value", class: "wide desk-only", cell: (one) => (one.value === null ? "a long value"
    : h("code", null, one.value)) },
  { title: "Priority", class: "end desk-only", cell: (one) => one.priority },
  { title: "For", class: "desk-only", cell: (one) => since(one.since_ms) },
  { title: "Lease left", class: "end", cell: (one) => countdown(one.until_ms) },
];

const processOf = (one) => (one.pid ? `${one.host}:${one.pid}` : one.host || one.value);

/** Returns the function that names a leader: by its process, or by its value if all are in one. */
function namer(terms) {
  const isOne = new Set(terms.map(processOf)).size < 2;
  return (term) => (isOne && term.value ? term.value : processOf(term));
}

/** Returns the terms of an election as a timeline, gaps hatched. */
function terms(one, from) {
  const whoOf = namer(one.terms);
  const bars = [
    ...one.terms.map((term) => ({ from: term.from_ms, to: term.to_ms ?? undefined,
      text: whoOf(term), class: colour(whoOf(term)) })),
    ...one.gaps.map((gap) => ({ from: gap.from_ms, to: gap.to_ms ?? undefined, gap: true,
      text: `no leader, ${span((gap.to_ms ?? now()) - gap.from_ms)}` })),
  ];
  const words = one.terms.map((term) => `${whoOf(term)} from ${iso(term.from_ms)}`);
  return timeline(`Terms of ${one.name}: ${words.join(", ") || "none"}; ${plural(one.gaps.length,
    "gap")}`, [{ name: "Terms", bars }], { from, width: roomOf(), names: 56 });
}

/** Returns the beginning of the axis: that of the first term, but at most an hour ago. */
function beginning(one, watched) {
  const first = Math.min(watched || now(), ...one.terms.map((term) => term.from_ms));
  return Math.max(first, now() - 3_600_000, (watched || 0) - 60_000);
}

export function elections(app) {
  const own = new Resource("/elections", app.redraw);
  own.load();
  let q = "";

  const down = (one) => ask({
    action: "step-down", title: "Ask the leader to step down", verb: "Ask it", name: one.name,
    does: "The leader ends its work and resigns; then another candidate can lead, or the same one.",
    warns: "A leader that hangs does not react: it leads until its lease ends.",
    what: "name of the election", body: { name: one.name }, then: () => own.load(),
    target: () => {
      const leader = own.data.elections.find(({ name }) => name === one.name)?.leader;
      return { expect: leader?.term, facts: leader ? [
        ["Leader", `${leader.host}, pid ${leader.pid}`],
        ["Value", h("code", null, leader.value)],
        ["Term", h("code", null, leader.term)],
      ] : [] };
    },
  });
  const one = (e, watched) => h("section", { class: "card", key: e.name, "aria-label": e.name },
    h("div", { class: "head" }, h("h2", { class: "mono" }, e.name), is(...(STATE[e.state] ||
      STATE.unknown)), h("span", { class: "soft" }, e.sentence),
    h("div", { class: "right" }, button(app.session, "Step down…", () => down(e),
      { id: "step-down", why: !e.leader && "no leader is known that could be asked" }))),
    e.leader && facts([
      ["Leader", `${e.leader.host}, pid ${e.leader.pid}`],
      ["Value", h("code", null, e.leader.value)],
      ["Term", h("code", null, e.leader.term)],
      ["Leads for", since(e.leader.since_ms)],
      ["Lease left", countdown(e.leader.until_ms)],
    ]),
    h("div", { class: "body" }, terms(e, beginning(e, watched))),
    e.candidates.length > 0 && shortTable(`Candidates of ${e.name}`, CANDIDATES, e.candidates,
      (c) => `${c.host} ${c.pid} ${c.boot} ${c.value}`));

  const view = () => {
    const data = own.data;
    const search = h("input", { type: "search", placeholder: "Part of the name",
      "aria-label": "Search by part of the name", oninput: (event) => {
        q = event.target.value;
        app.redraw();
      } });
    if (!data) return [head("Elections"), waiting(own)];
    const found = data.elections.filter((e) => e.name.includes(q));
    const soFar = data.whole ? "" : " seen so far";
    const vacant = data.elections.filter((e) => e.state === "leaderless").length;
    return [
      head("Elections", `${plural(data.total, "election")}${soFar}, ${vacant || "none"} without a leader`,
        search),
      found.slice(0, SHOWN).map((e) => one(e, data.since_ms)),
      found.length > SHOWN && h("p", { class: "soft", key: "more" },
        `${found.length - SHOWN} more: search by name.`),
      found.length === 0 && card("Elections", { foot: budget(data, app.poll) }, empty(q
        ? "No election has such a name."
        : data.whole ? "No process campaigns. An election appears here soon after its " +
          "first campaign." : "No election has been seen so far.")),
      found.length > 0 && !data.whole && h("p", { class: "soft progress", key: "so far" },
        budget(data, app.poll)),
    ];
  };
  return {
    title: () => "Elections",
    view,
    heard: (name, data) => {
      if (name === "elections") own.take(data);
      if (name === "lagged") own.load();
    },
    close: () => own.close(),
  };
}
