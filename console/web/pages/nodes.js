// The nodes as this console meets them, and what the doctor finds, with the command that mends it.

import { post, Resource } from "../api.js";
import { h } from "../dom.js";
import { span } from "../time.js";
import { spark } from "../timeline.js";
import { at, card, command, countdown, empty, head, is, mark, number, pairs, plural, sentence,
  since, toast, waiting } from "../ui.js";
import { serverOf, voteState } from "./overview.js";

const DOCTOR = {
  never: "The doctor has not examined the deployment yet.",
  running: "The doctor is examining the deployment…",
  impossible: "The doctor cannot examine this deployment.",
};

function node(one, latencies) {
  const [level, word] = voteState(one.state);
  const { marker } = one;
  const kinds = Object.entries(one.fault_kinds || {}).map(([kind, n]) => `${kind} ${number(n)}`);
  const last = one.losses.at(-1);
  return h("section", { class: `card vote ${level}`, key: one.node, "aria-label": one.node },
    h("header", null, h("h2", null, one.node), is(level, word)),
    one.why && h("p", { class: "why" }, one.why),
    pairs([
      ["Server", serverOf(one)],
      ["Grants again in", typeof one.until_ms === "number" && countdown(one.until_ms, "now")],
      ["Latency", `${span(one.latency_ms)} (max ${span(one.latency_max_ms)})`],
      ["Batches", number(one.batches)],
      ["Faults", one.faults ? h("span", { class: "is warning" }, `${number(one.faults)}${
        kinds.length ? ` (${kinds.join(", ")})` : ""}`) : "none"],
      ["New histories", one.histories > 0 && number(one.histories)],
      ["Quarantines", one.quarantines > 0 && number(one.quarantines)],
      ["Changes of the master", one.switches > 0 && number(one.switches)],
    ]),
    marker ? pairs([
      ["Data history", h("code", { title: marker.history }, marker.history.slice(0, 12))],
      ["Began", marker.since_ms ? at(marker.since_ms) : "never lost data"],
      ["Quarantine lasts", span(marker.quarantine_ms)],
      ["Token floor", h("code", null, marker.token_floor)],
      ["Age of the note", span(marker.note_age_ms)],
      ["Last loss", last && last.text],
    ]) : h("p", { class: "soft" }, "Its marker could not be read, or it has none."),
    latencies && spark(`Latency of ${one.node}`, latencies));
}

const finding = (one, i) => h("li", { key: `${one.check} ${one.subject} ${i}` },
  h("div", { class: "finding" }, is(one.verdict, one.verdict), h("strong", null, one.subject),
    h("span", { class: "tag" }, one.check)),
  h("p", null, sentence(one.message)),
  one.why && h("p", { class: "soft" }, sentence(one.why)),
  one.evidence && h("p", { class: "soft" }, "Read: ", h("code", null, one.evidence)),
  one.fix.map((line) => command(line)));

export function nodes(app) {
  const own = new Resource("/nodes", app.redraw);
  own.load();
  const examine = async () => {
    try {
      await post("/doctor", {});
      if (own.data) own.data.doctor.state = "running";
      app.redraw();
    } catch (why) {
      toast("error", why.message);
    }
  };
  const doctor = (found) => card("What the doctor finds", {
    right: h("span", { class: "tools" },
      found.at_ms && h("span", { class: "soft" }, "examined ", since(found.at_ms), " ago"),
      h("button", { type: "button", class: "small", disabled: found.state === "running",
        onclick: examine }, "Examine now")),
    foot: found.state === "done" && `${plural(found.fine, "check")} found nothing wrong.`,
  },
  found.error && h("p", { class: "lead" }, mark("error"), found.error),
  found.findings.length ? h("ul", { class: "findings" }, found.findings.map(finding))
    : empty(DOCTOR[found.state] || "Nothing was wrong with this deployment when it was examined."));

  const view = () => {
    const data = own.data;
    if (!data) return [head("Nodes"), waiting(own)];
    const voting = data.nodes.filter((one) => one.voting).length;
    return [
      head("Nodes", `${voting} of ${data.nodes.length} vote`),
      h("div", { class: "votes", key: "votes" }, data.nodes.map((one) =>
        node(one, app.latencies.get(one.node)))),
      doctor(data.doctor),
    ];
  };
  return {
    title: () => "Nodes",
    view,
    heard: (name, data) => {
      if (name === "nodes") own.take(data);
      if (name === "lagged") own.load();
    },
    close: () => own.close(),
  };
}
