// Incidents: losses of data by which keys are forgotten, each with its one decision.

import { ask, button } from "../action.js";
import { h } from "../dom.js";
import { shortTable } from "../table.js";
import { at, card, countdown, is, mark, plural } from "../ui.js";

const STANDING = {
  undecided: ["error", "undecided"], run: ["fine", "run"], park: ["warning", "park"],
  mixed: ["warning", "mixed"], unknown: ["unknown", "unknown"],
};
const RETENTION = 86_400_000;

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

/** Returns a card for each incident. */
export function incidentCards(app, resource) {
  const decide = (incident, space, which) => {
    const { fields, ...texts } = DECISIONS[which];
    ask({
      ...texts, action: "decide", name: incident.loss, what: "number of the loss",
      body: { namespace: space.namespace, loss: incident.loss, retention_ms: RETENTION, ...fields },
      then: () => resource.load(),
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
  if (!data) {
    return resource.error && h("div", { class: "cut", role: "alert", key: "incidents" },
      `The incidents could not be read: ${resource.error.message}`);
  }
  return data.incidents.map((incident) => {
    const open = incident.namespaces.filter((space) => space.standing === "undecided").length;
    return card(`Incident ${incident.loss}`, {
      level: open ? "alarm" : "",
      right: h("span", { class: "soft" }, "matters for another ", countdown(incident.until_ms)),
      foot: incident.losses.length > 1 && h("span", null, `Lost on ${plural(incident.losses.length,
        "node")}: ${incident.losses.map((loss) => `${loss.node}, ${loss.text}`).join("; ")}.`),
    },
    h("p", { class: "lead" }, mark(open ? "error" : "fine"), incident.sentence),
    incident.namespaces.length
      ? shortTable(`Decisions about ${incident.loss}`, columns(incident), incident.namespaces,
        (space) => space.namespace)
      : h("p", { class: "lead soft" }, "No namespace has a record of keys from then."));
  });
}
