// Failovers: when a node was lost, what it lost, and when its vote was back.

import { Resource } from "../api.js";
import { h } from "../dom.js";
import { now, span } from "../time.js";
import { shortTable } from "../table.js";
import { roomOf, timeline } from "../timeline.js";
import { at, card, empty, head, is, mark, number, pairs, plural, sentence, waiting }
  from "../ui.js";

const STATE = { lost: ["error", "lost"], quarantine: ["warning", "quarantine"],
  over: ["fine", "votes again"] };
const STEP = { lost: "error", back: "info", history: "info", quarantine: "warning", vote: "fine",
  reasserted: "fine" };
const SPANS = [["10 min", 600_000], ["1 h", 3_600_000], ["6 h", 21_600_000], ["24 h", 86_400_000]];

/** Returns the lanes of the axis: one a node, with its lost time and its quarantine. */
function lanes(failovers) {
  const nodes = [...new Set(failovers.map((one) => one.node))].sort();
  return nodes.map((node) => ({
    name: node,
    bars: failovers.filter((one) => one.node === node).flatMap((one, n) => {
      const quarantine = one.steps.find((step) => step.kind === "quarantine");
      const back = one.back_ms ?? quarantine?.at_ms;
      const bars = [{ from: one.began_ms, to: back ?? undefined, class: "error", text: "lost" }];
      if (back !== undefined && back !== null) {
        bars.push({ from: back, to: one.ended_ms ?? undefined, gap: true });
      }
      // The latest one has its length beside it; those before may be too near.
      if (n === 0) bars.at(-1).beside = span((one.ended_ms ?? now()) - one.began_ms);
      return bars;
    }),
  }));
}

const leases = (one) => (one.holders_same === null || one.holders_same === undefined
  ? "not watched then" : `${number(one.holders_same)} held by the same owner as before, ` +
    `${number(one.leases_ran_out)} seen to run out`);

/** Returns the shortest axis that has all of the list on it. */
function lengthOf(list) {
  const oldest = Math.min(...list.map((one) => one.began_ms));
  return (SPANS.find(([, ms]) => now() - oldest < ms * 0.95) || SPANS.at(-1))[1];
}

const failover = (one) => card(`${one.node}, ${one.cause || "cause unknown"}`, {
  key: `f${one.id}`, right: is(...(STATE[one.state] || ["unknown", one.state])) },
h("p", { class: "lead" }, sentence(one.sentence)),
h("div", { class: "two halves inner" },
  h("ol", { class: "log" }, one.steps.map((step, i) => h("li", { key: i }, at(step.at_ms),
    mark(STEP[step.kind] || "info", step.kind), h("span", { class: "what" }, step.text)))),
  h("div", { class: "body" }, pairs([
    ["Took", span(one.took_ms ?? now() - one.began_ms)],
    ["Leases", leases(one)],
    ["Put back by their holders", number(one.reasserted)],
    ["Loss", one.loss ? [one.loss.text, " ", h("span", { class: "tag" }, one.loss.proved
      ? "proved" : "not proved")] : "none"],
  ], true))));

export function failovers(app) {
  const own = new Resource("/failovers", app.redraw);
  own.load();
  let chosen = null;
  const LOSSES = [
    { title: "Node", class: "name", cell: (loss) => loss.node },
    { title: "From", class: "desk-only", cell: (loss) => at(loss.from_ms) },
    { title: "To", cell: (loss) => at(loss.to_ms) },
    { title: "At most", class: "end", cell: (loss) => (loss.length_ms === null ? "not proved"
      : span(loss.length_ms)) },
    { title: "What is lost", class: "wide desk-only", cell: (loss) => loss.text },
  ];
  const chip = (shown) => ([word, ms]) => h("button", { type: "button",
    "aria-pressed": String(shown === ms), onclick: () => {
      chosen = ms;
      app.redraw();
    } }, word);
  const chips = (shown) => h("div", { class: "chips", role: "group",
    "aria-label": "Length of the axis" }, SPANS.map(chip(shown)));
  const view = () => {
    const data = own.data;
    if (!data) return [head("Failovers"), waiting(own)];
    const list = data.failovers;
    const shown = chosen || lengthOf(list);
    return [
      head("Failovers", `${plural(list.length, "failover")} since this console watches`,
        list.length > 0 && chips(shown)),
      list.length > 0 && card("When", { foot: h("span", { class: "legend" },
        h("span", null, mark("error"), " lost"), h("span", null, h("svg", { class: "mark unknown",
          viewBox: "0 0 12 12", "aria-hidden": "true" }, h("path", {
          d: "M0 8L8 0h3L0 11zM4 12L12 4v3l-5 5z" })), " quarantine: it grants nothing")) },
      h("div", { class: "body" }, timeline("Failovers", lanes(list), { from: now() - shown,
        width: roomOf(), names: 170 }))),
      list.map(failover),
      list.length === 0 && card("Since this console watches", {}, empty("No node has been lost. ",
        "A failover, restart or loss of data appears here while it happens.")),
      card("Losses that the nodes remember", { foot: "Kept in the nodes' markers, at most eight a node." },
        data.stored.length ? shortTable("Losses", LOSSES, data.stored, (loss) =>
          `${loss.node} ${loss.to_ms}`) : empty("The nodes' markers name no loss of data.")),
    ];
  };
  return {
    title: () => "Failovers",
    view,
    heard: (name, data) => {
      if (name === "failovers") own.take(data);
      if (name === "lagged") own.load();
    },
    close: () => own.close(),
  };
}
