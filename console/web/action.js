// The dialog of an action. Each asks for a reason and for the name, typed; the console asks again.

import { post } from "./api.js";
import { h, render } from "./dom.js";
import { pairs, sentence, toast } from "./ui.js";

const LEVELS = { done: "fine", unchanged: "info" };
const UNKNOWN = "It is unknown if it took effect. Look at the page and the audit before it is sent " +
  "again.";
const LOOK = 500; // ms between two looks at what the action is about

/**
 * Asks about an action and sends it. `does` is what it does in a sentence, `warns` what it may
 * break; `extra` are fields of its own: `{name, label, hint, value, read(text)}`. `target()`
 * returns what the page shows of the target now: `{expect, facts}`. The action is about the target
 * as it was when the dialog was opened, and the console refuses it about another one.
 */
export function ask(options) {
  const { action, title, does, warns, name, what, body, verb, grave, extra = [], then } = options;
  const target = options.target || (() => ({ facts: [] }));
  const { expect, facts } = target();
  const dialog = document.createElement("dialog");
  const state = { reason: "", confirm: "", busy: false, refused: "", changed: false, more: {} };
  for (const field of extra) state.more[field.name] = field.value || "";
  dialog.setAttribute("aria-labelledby", "action-title");

  const extras = () => {
    const read = {};
    for (const field of extra) read[field.name] = field.read(state.more[field.name]);
    return read;
  };
  /** Shows the end of the action in the dialog, or as a message if the dialog is gone. */
  const end = (level, text) => {
    state.busy = false;
    if (then) then();
    const isOver = level !== "error";
    if (isOver && dialog.isConnected) dialog.close();
    if (isOver) return toast(level, text);
    if (!dialog.isConnected) return toast(level, `${title}: ${text}`);
    state.refused = text;
    return draw();
  };
  const send = async (event) => {
    event.preventDefault();
    if (!ready() || state.busy) return undefined;
    let fields;
    try {
      fields = extras();
    } catch (why) {
      Object.assign(state, { refused: why.message });
      return draw();
    }
    Object.assign(state, { busy: true, refused: "" });
    draw();
    try {
      const { reason, confirm } = state;
      const done = await post("/actions", { action, ...body, ...fields, expect, reason, confirm });
      return end(LEVELS[done.result] || "error", done.result === "unknown"
        ? `${UNKNOWN} ${sentence(done.text)}` : done.text);
    } catch (why) {
      return end("error", why.code === "no_answer" ? `No answer came. ${UNKNOWN}` : why.message);
    }
  };
  const ready = () => !state.changed && state.reason.trim() && state.confirm === name &&
    extra.every((field) => state.more[field.name].trim());
  const typed = (field) => (event) => {
    state[field] = event.target.value;
    draw();
  };
  const input = (label, hint, props) => h("label", { class: "field" },
    h("span", null, label, hint && h("span", { class: "hint" }, ` ${hint}`)),
    h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...props }));

  function draw() {
    render(dialog, h("form", { method: "dialog", onsubmit: send },
      h("h2", { id: "action-title" }, title),
      h("p", null, does),
      warns && h("p", { class: "warn" }, warns),
      facts.length > 0 && pairs(facts),
      extra.map((field) => input(field.label, field.hint, { name: field.name,
        value: state.more[field.name],
        oninput: (event) => {
          state.more[field.name] = event.target.value;
          draw();
        } })),
      input("Reason", "It is kept in the audit.", { name: "reason", maxlength: "512",
        oninput: typed("reason") }),
      input([`Type the ${what} `, h("code", null, name)], "", { name: "confirm",
        oninput: typed("confirm") }),
      h("div", { role: "alert" },
        state.refused && h("p", { class: "refused" }, state.refused),
        state.changed && h("p", { class: "refused changed" }, "It has changed since this dialog " +
          "was opened. Close the dialog, and look at the page again.")),
      h("div", { class: "row" },
        h("button", { type: "button", disabled: state.busy, onclick: () => dialog.close() },
          "Cancel"),
        h("button", { type: "submit", class: grave ? "grave" : "main",
          disabled: !ready() || state.busy }, state.busy ? "Sending…" : verb))));
  }

  const looks = setInterval(() => {
    if (state.busy || target().expect === expect) return;
    clearInterval(looks);
    state.changed = true;
    draw();
  }, LOOK);
  // A browser closes a dialog at the second Escape whatever its page answers to `cancel`. The key
  // is pressed on the document if the button that had the focus is disabled by now.
  const hold = (event) => {
    if (state.busy && event.key === "Escape") event.preventDefault();
  };
  window.addEventListener("keydown", hold, true);
  dialog.oncancel = (event) => {
    if (state.busy) event.preventDefault();
  };
  dialog.onclose = () => {
    clearInterval(looks);
    window.removeEventListener("keydown", hold, true);
    dialog.remove();
  };
  draw();
  document.body.append(dialog);
  dialog.showModal();
  dialog.querySelector("input").focus();
}

const reasons = new Map();

/** Returns the id of an element with this reason, which is read out with a button and not drawn. */
function described(reason) {
  if (!reasons.has(reason)) {
    const one = document.createElement("p");
    Object.assign(one, { id: `why-${reasons.size}`, hidden: true, textContent: reason });
    document.body.append(one);
    reasons.set(reason, one.id);
  }
  return reasons.get(reason);
}

/**
 * Returns the button of an action. One that cannot be used now is there and can be reached by the
 * keyboard, so that its reason is read out; the reason is shown when it is pressed.
 */
export function button(session, label, open, { id, small = true, why } = {}) {
  const may = session && session.actions;
  const reason = may ? why : session?.why_no_actions || "read only";
  return h("button", { type: "button", class: small ? "small" : "", "data-action": id,
    "aria-disabled": reason ? "true" : undefined, title: reason || undefined,
    "aria-describedby": reason ? described(reason) : undefined,
    onclick: reason ? () => toast("info", sentence(reason)) : open }, label);
}
