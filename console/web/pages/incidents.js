// Incidents: losses of data by which keys are forgotten, each with its one decision.

import { ask, button } from "../action.js";
import { h } from "../dom.js";
import { shortTable } from "../table.js";
import { at, card, countdown, is, mark, number, plural } from "../ui.js";

const STANDING = {
  undecided: ["error", "undecided"], run: ["fine", "run"], park: ["warning", "park"],
  mixed: ["warning", "mixed"], unknown: ["unknown", "unknown"],
};
export const RETENTION = 86_400_000;
const HOUR = 3_600_000;
const MOST = 8_760; // hours of a year

const DECISIONS = {
  run: {
    title: "Run the forgotten keys", verb: "Let them run",
    fields: { decision: "run", replace: false },
    does: "Requests with these keys run: they took no effect before, or may be repeated.",
    warns: "This is final, because keys run from then on.",
  },
  park: {
    title: "Park the forgotten keys", verb: "Park them",
    fields: { decision: "park", replace: false },
    does: "Requests with these keys are parked, so that a person looks at each of them.",
    warns: "It can be replaced by Run later.",
  },
  replace: {
    title: "Run the keys after all", verb: "Let them run",
    fields: { decision: "run", replace: true },
    does: "The earlier decision to park is replaced: requests with these keys run.",
    warns: "This is final, because keys run from then on.",
  },
};
const WORD = { run: "Run…", park: "Park…", replace: "Run after all…" };

/** Returns level and sentence of an incident: all is well only if each decision is known. */
function standing({ namespaces }, { incidents, undecided, left_out: out = 0 }, chosen) {
  const count = (...states) => namespaces.filter((one) => states.includes(one.standing)).length;
  const open = count("undecided");
  if (open) return ["error", `${plural(open, "namespace")} without a decision.`];
  if (out > 0) {
    return ["warning", `${plural(out, "namespace")} more, whose decisions have not been read.`];
  }
  if (!namespaces.length) {
    return ["error", "No namespace with a record of keys has been seen so far, so there may be " +
      "decisions to make that are not shown. Name a namespace above to decide about its keys."];
  }
  const mixed = count("mixed");
  // The console counts an incident as undecided while it does not know all namespaces.
  const isPart = undecided === incidents.length;
  if (mixed) return ["warning", `The nodes have different decisions for ${number(mixed)} of them.`];
  const unknown = namespaces.length - count("run", "park");
  if (unknown) return ["warning", `The decision about ${number(unknown)} of them is not known.`];
  if (chosen) return ["warning", "The other namespaces are not shown."];
  if (isPart) return ["warning", "There may be more namespaces: names are still being found."];
  return ["fine", "Each namespace with a record is decided. One without a record is not shown."];
}

let typing;

function later(choose) {
  clearTimeout(typing);
  typing = setTimeout(choose, 400);
}

/** Returns the sentence about the keys for which the list is, with its fields. */
const fields = (data, wanted) => h("p", { class: "tools soft", key: "retention" },
  !data ? "Incidents for keys that are kept for " : data.incidents.length
    ? `${plural(data.incidents.length, "incident")} for keys that are kept for `
    : data.whole ? "No loss of data makes keys forgotten that are kept for "
      : "No loss has been seen so far that makes keys forgotten that are kept for ",
  h("input", { type: "number", name: "retention", class: "short", min: "1", max: MOST, step: "any",
    value: String(wanted.retention_ms / HOUR), "aria-label": "Hours for which keys are kept",
    oninput: (event) => {
      const hours = Number(event.target.value);
      if (hours > 0 && hours <= MOST) {
        later(() => wanted.choose({ retention_ms: Math.round(hours * HOUR) }));
      }
    } }), "hours", [" in the namespace",
    h("input", { type: "text", name: "namespace", placeholder: "all that are read",
      "aria-label": "Namespace whose decisions are read", value: wanted.namespace,
      oninput: (event) => {
        const namespace = event.target.value;
        later(() => wanted.choose({ namespace }));
      } })], `.${
    data && (data.unread || []).length ? ` Not read: ${data.unread.map(({ node, why }) =>
      `${node} (${why})`).join(", ")}.` : ""}`);

/** Returns the number of an incident's latest loss; `loss` has the numbers of all, with commas. */
const latest = (incident) => incident.loss.split(",").pop();

/** Returns the fields that choose the incidents, and a card for each incident. */
export function incidentCards(app, resource, wanted) {
  const decide = (incident, space, which) => {
    const { fields: change, ...texts } = DECISIONS[which];
    ask({
      ...texts, action: "decide", name: latest(incident), what: "number of the latest loss",
      body: { namespace: space.namespace, loss: incident.loss, retention_ms: wanted.retention_ms,
        ...change },
      then: () => resource.load(),
      target: () => {
        const now = resource.data?.incidents.find(({ loss }) => loss === incident.loss);
        return { expect: now?.loss, facts: [
          ["Namespace", space.namespace],
          ["Losses", now && now.losses.map((loss) => h("div", null,
            `${loss.number}, ${loss.node}: ${loss.text}`))],
          ["Decided so far", STANDING[space.standing]?.[1]],
        ] };
      },
    });
  };
  const columns = (incident) => [
    { title: "Namespace", class: "name", cell: (space) => space.namespace },
    { title: "Decision", cell: (space) => is(...(STANDING[space.standing] || STANDING.unknown)) },
    { title: "By", class: "desk-only", cell: (space) => space.by || "–" },
    { title: "Reason", class: "wide desk-only",
      cell: (space) => space.error || space.reason || "–" },
    { title: "At", class: "desk-only", cell: (space) => at(space.at_ms) },
    { title: "", class: "end", cell: (space) => h("span", { class: "tools end" },
      space.may.map((which) => WORD[which] && button(app.session, WORD[which],
        () => decide(incident, space, which), { id: `decide-${which}` }))) },
  ];
  const data = resource.data;
  const cards = data ? data.incidents.map((incident) => {
    const [level, text] = standing(incident, data, wanted.namespace);
    return card(`Incident ${latest(incident)}`, {
      level: level === "error" ? "alarm" : "",
      right: h("span", { class: "soft" }, "matters for another ", countdown(incident.until_ms)),
      foot: incident.losses.length > 1 && h("span", null, `Lost on ${plural(incident.losses.length,
        "node")}: ${incident.losses.map((loss) => `${loss.node}, ${loss.text}`).join("; ")}.`),
    },
    h("p", { class: "lead" }, mark(level, level), incident.sentence, text && `. ${text}`),
    incident.namespaces.length > 0 && shortTable(`Decisions about ${latest(incident)}`,
      columns(incident), incident.namespaces, (space) => space.namespace));
  }) : [];
  return [
    fields(data, wanted),
    resource.error && h("div", { class: "cut", role: "alert", key: "incidents" },
      `The incidents could not be read: ${resource.error.message}`),
    cards,
  ];
}
