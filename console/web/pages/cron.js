// Jobs, their next tick, and how the last ones ended.

import { Resource } from "../api.js";
import { ask, button } from "../action.js";
import { h } from "../dom.js";
import { moment, now, span } from "../time.js";
import { shortTable } from "../table.js";
import { at, card, countdown, empty, facts, head, is, mark, plural, sentence, waiting }
  from "../ui.js";

const END = {
  done: ["fine", "done"], failed: ["error", "failed"], skipped: ["info", "skipped"],
  cancelled: ["warning", "cancelled"],
};
const STATE = {
  running: ["running", "runs"], interrupted: ["error", "interrupted"],
  absent: ["warning", "no record"], unknown: ["unknown", "unknown"],
};

const outcome = (tick) => (tick.state === "over" ? END[tick.end] || ["unknown", tick.end || "over"]
  : STATE[tick.state] || STATE.unknown);

const TICKS = [
  { title: "Due", cell: (tick) => at(tick.at_ms) },
  { title: "Ended", cell: (tick) => is(...outcome(tick)) },
  { title: "By", class: "name desk-only", cell: (tick) => tick.by || "–" },
  { title: "Took", class: "end", cell: (tick) => span(tick.took_ms) },
  { title: "Began late by", class: "end desk-only", cell: (tick) => span(tick.late_ms) },
  { title: "Attempt", class: "end desk-only", cell: (tick) => tick.attempt ?? "–" },
  { title: "Token", class: "desk-only", cell: (tick) => h("code", null, tick.token || "–") },
  { title: "Why", class: "wide desk-only", cell: (tick) => [tick.why || "", tick.backfilled &&
    h("span", { class: "tag" }, "caught up"), tick.requested && h("span", { class: "tag",
    title: tick.requested.reason }, `requested by ${tick.requested.by}`)] },
];

/** A requested tick may have the second of one of the schedule. */
const idOf = (tick) => `${tick.at_ms}${tick.requested ? " requested" : ""}`;

/** Returns the last ticks as shapes, the latest on the right. */
const strip = (job) => h("span", { class: "ticks" }, job.last.slice(0, 12).reverse().map((tick) => {
  const [level, word] = outcome(tick);
  return h("span", { key: idOf(tick), title: `${moment(tick.at_ms)} ${word}` },
    mark(level, `${moment(tick.at_ms)} ${word}`));
}));

export function cron(app, [chosen]) {
  const own = new Resource("/cron", app.redraw);
  own.load();

  const run = (job) => ask({
    action: "run-now", title: "Run the job now", verb: "Run", name: job.name,
    does: "A process of the job runs it once, outside of its schedule. If it runs now, the " +
      "requested run begins after it, within a minute or not at all.",
    what: "name of the job", body: { job: job.name }, then: () => own.load(),
  });
  const href = (job) => `#/cron/${encodeURIComponent(job.name)}`;
  const runButton = (job) => button(app.session, "Run now…", () => run(job), { id: "run-now",
    why: !(job.run_now && job.run_now.possible) && (job.run_now?.why || "it cannot be run") });
  const state = (job) => {
    const last = job.last[0];
    if (job.unknown) return h("span", { title: job.unknown }, is("unknown", "not known"));
    if (job.running) return is("running", "runs now");
    return last ? is(...outcome(last)) : h("span", { class: "soft" }, "no tick yet");
  };
  const columns = [
    { title: "Job", class: "name", cell: (job) => [h("a", { class: "mono", href: href(job) },
      job.name), h("span", { class: "below" }, `${job.schedule} ${job.zone}`)] },
    { title: "Schedule", class: "desk-only", cell: (job) => [h("code", null, job.schedule), " ",
      h("span", { class: "soft" }, job.zone)] },
    { title: "Next tick", cell: (job) => (job.next_ms ? [h("span", { class: "nowrap" }, "in ",
      countdown(job.next_ms, "a moment"))] : "–") },
    { title: "Last ticks", class: "desk-only", cell: strip },
    { title: "The last one", cell: state },
    { title: "Took", class: "end desk-only", cell: (job) => span(job.last[0]?.took_ms) },
    { title: "Leader", class: "name desk-only", cell: (job) => (job.leader
      ? `${job.leader.host}, pid ${job.leader.pid}` : h("span", { class: "soft" }, "none")) },
    { title: "", class: "end", cell: runButton },
  ];

  const all = (data) => [
    head("Cron", plural(data.total, "job")),
    card("Jobs", {}, data.jobs.length ? shortTable("Jobs", columns, data.jobs, (job) => job.name)
      : empty("No process runs a schedule. A job appears here when the first one does.")),
  ];
  const one = (job) => [
    h("div", { class: "page-head", key: "head" },
      h("h1", null, h("a", { class: "crumb", href: "#/cron" }, "Cron / "),
        h("span", { class: "mono big" }, job.name)),
      h("div", { class: "right tools" }, runButton(job))),
    card("Job", { foot: job.run_now && !job.run_now.possible && sentence(job.run_now.why) },
      h("p", { class: "lead" }, sentence(job.sentence)), facts([
        ["Schedule", h("span", null, h("code", null, job.schedule), ` ${job.zone}`)],
        ["Next tick", job.next_ms && h("span", null, at(job.next_ms), ", in ",
          countdown(job.next_ms, "a moment"))],
        ["Leader", job.leader ? `${job.leader.host}, pid ${job.leader.pid}` : "none"],
        ["Election", job.election && h("code", null, job.election)],
        ["Known since", at(job.since_ms)],
      ])),
    card("Last ticks", { right: h("span", { class: "soft" }, plural(job.last.length, "tick"),
      job.unknown && ", as they were read last") },
      job.last.length ? shortTable("Last ticks", TICKS, job.last, idOf)
        : empty(`Its first tick is due ${job.next_ms && job.next_ms > now() ? "soon" : "now"}.`)),
  ];
  const view = () => {
    if (!own.data) return [head("Cron"), waiting(own)];
    const job = chosen && own.data.jobs.find(({ name }) => name === chosen);
    if (job) return one(job);
    return chosen ? [head("Cron"), card("Job", {}, empty(`There is no job ${chosen} now. `,
      h("a", { href: "#/cron" }, "All jobs")))] : all(own.data);
  };
  return {
    title: () => chosen || "Cron",
    view,
    heard: (name, data) => {
      if (name === "cron") own.take(data);
      if (name === "lagged") own.load();
    },
    close: () => own.close(),
  };
}
