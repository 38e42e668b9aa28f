// Is everything well? Each vote, the quorum, and what happened lately.

import { get, Resource } from "../api.js";
import { h } from "../dom.js";
import { at, card, countdown, empty, is, mark, number, pairs, sentence, verdict, waiting }
  from "../ui.js";
import { age, now, span } from "../time.js";
import { spark } from "../timeline.js";

export const LEVEL = { ok: "fine", degraded: "warning", down: "error", unknown: "unknown" };
const VOTE = {
  votes: ["fine", "votes"], quarantine: ["warning", "quarantine"],
  unreachable: ["error", "unreachable"], refuses: ["error", "refuses"],
  unknown: ["unknown", "unknown"],
};
const NOW = { now: "granted", after: "after the quarantine", unknown: "unknown" };
const UNREAD_SHOWN = 8000;
const RESULT = { done: "fine", unchanged: "info", begun: "running", unknown: "unknown",
  partly: "warning" };
const ENTRY = { info: "info", warn: "warning", error: "error" };

/** Returns level and word of a vote's state. */
export const voteState = (state) => VOTE[state] || ["unknown", state];

/** Returns the server of a node, if the node's name does not have it already. */
export const serverOf = ({ node, server }) => server && !node.endsWith(server) &&
  h("code", null, server);

/** Returns a list of what happened, the latest first. */
export const happened = (entries, none) => (entries.length
  ? h("ol", { class: "log" }, entries.map((one) => h("li", { key: `e${one.id}` }, at(one.at_ms),
    mark(ENTRY[one.level] || "info", one.level), h("span", { class: "what" }, one.text))))
  : empty(none));

/** Returns the link of a lock's page. */
export const lockHref = (kind, name) =>
  `#/locks/${encodeURIComponent(kind)}/${encodeURIComponent(name)}`;

function vote(one, latencies) {
  const [level, word] = voteState(one.state);
  return h("section", { class: `card vote ${level}`, key: one.node, "aria-label": one.node },
    h("header", null, h("h2", null, one.node), is(level, word)),
    h("p", { class: one.why ? "why" : "why soft" },
      one.why || [word[0].toUpperCase(), word.slice(1), " since ", at(one.since_ms), ", ",
        age(one.since_ms), "."]),
    pairs([
      ["Server", serverOf(one)],
      ["Grants again in", typeof one.until_ms === "number" && countdown(one.until_ms, "now")],
      ["Since", one.why && at(one.since_ms)],
      ["Latency", one.latency_ms === null ? "–" : span(one.latency_ms)],
    ]),
    latencies && spark(`Latency of ${one.node}`, latencies));
}

function figures(counts) {
  const figure = (n, one, many, href, level) => h("a", { href,
    class: level && n > 0 ? `figure ${level}` : "figure" },
  h("b", null, number(n)), h("span", null, n === 1 ? one : many));
  return h("section", { class: "card", "aria-label": "What is held", key: "held" },
    h("div", { class: "body figures" },
      figure(counts.locks, "lock held", "locks held", "#/locks"),
      figure(counts.readers, "reader", "readers", "#/locks"),
      figure(counts.semaphores, "semaphore", "semaphores", "#/locks"),
      figure(counts.waiting, "waits", "wait", "#/locks"),
      figure(counts.elections, "election", "elections", "#/elections"),
      figure(counts.jobs, "cron job", "cron jobs", "#/cron"),
      figure(counts.running, "key running", "keys running", "#/keys"),
      figure(counts.parked, "key parked", "keys parked", "#/keys", "warning"),
      figure(counts.incidents, "incident undecided", "incidents undecided", "#/keys", "error")),
    !counts.whole && h("div", { class: "foot" }, "So far: not every name has been found and read."));
}

function quorum(data) {
  const votes = data.votes.length;
  return h("div", { class: "quorum", key: "quorum" },
    h("h2", null, "Votes"),
    h("span", { class: "pips", "aria-hidden": "true" }, data.votes.map((one) =>
      mark(one.voting ? "fine" : voteState(one.state)[0]))),
    h("p", null, `${data.voting} of ${votes} vote, ${data.needed} are needed. `,
      h("span", { class: "soft" }, `Locks: ${NOW[data.locks_now] || data.locks_now}. New keys: ${
        NOW[data.new_keys_now] || data.new_keys_now}.`)));
}

export function overview(app) {
  const own = new Resource("/overview", () => {
    if (own.data && !app.overview) app.overview = own.data;
    app.redraw();
  });
  own.load();
  let audit = [];
  const readAudit = () => get("/audit").then(({ lines }) => {
    audit = lines;
    app.redraw();
  }, () => {});
  readAudit();

  const view = () => {
    const data = app.overview;
    if (!data || !data.votes) return waiting(own);
    const open = data.votes.map((v) => v.until_ms).filter((ms) => typeof ms === "number");
    const level = LEVEL[data.verdict.state];
    return [
      h("h1", { class: "hide", key: "h1" }, "Overview"),
      verdict(level, data.verdict.text, open.length ? Math.min(...open) : undefined,
        !data.at_ms && "The nodes have not been read yet."),
      // A single reading that failed is made up for by the next one.
      app.unreadSince > 0 && now() - app.unreadSince > UNREAD_SHOWN && h("p", { class: "notice", key: "unread" },
        `Not read this time, so what is shown of it may be old: ${
          data.unread.map(({ node, why }) => `${node} (${why})`).join(", ")}.`),
      quorum(data),
      h("div", { class: "votes", key: "votes" }, data.votes.map((one) =>
        vote(one, app.latencies.get(one.node)))),
      figures(data.counts),
      h("div", { class: "two", key: "two" },
        card("What happened lately", { right: data.since_ms && h("span", { class: "soft" },
          "watched since ", at(data.since_ms)) },
        happened(data.happened, "Nothing has happened since this console began to watch.")),
        card("What people did here", {
          foot: app.session.actions ? "Each action is kept with its reason."
            : sentence(app.session.why_no_actions) },
        audit.length ? h("ol", { class: "log" }, audit.slice(0, 10).map((line, i) => h("li", {
          key: `${line.at_ms} ${i}` }, at(line.at_ms),
        mark(RESULT[line.result] || "error", line.result),
        h("span", { class: "what" }, `${line.by}: ${line.action} ${line.target} – ${line.reason}`,
          line.result !== "done" && h("span", { class: "soft" }, ` (${line.text ||
            line.result})`)))))
          : empty("Nobody has changed anything from here."))),
    ];
  };
  return {
    title: () => "Overview",
    view,
    heard: (name, data) => (["hello", "lagged"].includes(name) ||
      (name === "happened" && data.kind === "action")) && readAudit(),
    close: () => own.close(),
  };
}

