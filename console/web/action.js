// The dialog of an action. Each asks for a reason and for the name, typed; the console asks again.

import { post } from "./api.js";
import { h, render } from "./dom.js";
import { toast } from "./ui.js";

const LEVELS = { done: "fine", unchanged: "info" };

/**
 * Asks about an action and sends it. `does` is what it does in a sentence, `warns` what it may
 * break; `extra` are fields of its own: `{name, label, hint, value, read(text)}`.
 */
export function ask(options) {
  const { action, title, does, warns, name, what, body, verb, grave, extra = [], then } = options;
  const dialog = document.createElement("dialog");
  const state = { reason: "", confirm: "", busy: false, refused: "", more: {} };
  for (const field of extra) state.more[field.name] = field.value || "";
  dialog.setAttribute("aria-labelledby", "action-title");

  const extras = () => {
    const read = {};
    for (const field of extra) read[field.name] = field.read(state.more[field.name]);
    return read;
  };
  const send = async (event) => {
    event.preventDefault();
    if (!ready() || state.busy) return;
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
      const done = await post("/actions", { action, ...body, ...fields, reason, confirm });
      if (done.result === "done" || done.result === "unchanged") {
        dialog.close();
        toast(LEVELS[done.result], done.text);
        if (then) then(done);
        return undefined;
      }
      state.refused = done.text;
    } catch (why) {
      state.refused = why.message;
    }
    state.busy = false;
    return draw();
  };
  const ready = () => state.reason.trim() && state.confirm === name &&
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
      h("div", { role: "alert" }, state.refused && h("p", { class: "refused" }, state.refused)),
      h("div", { class: "row" },
        h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
        h("button", { type: "submit", class: grave ? "grave" : "main",
          disabled: !ready() || state.busy }, state.busy ? "Sending…" : verb))));
  }

  dialog.onclose = () => dialog.remove();
  draw();
  document.body.append(dialog);
  dialog.showModal();
  dialog.querySelector("input").focus();
}

/** Returns the button of an action; without permission it is there, and cannot be pressed. */
export function button(session, label, open, { id, small = true } = {}) {
  const may = session && session.actions;
  return h("button", { type: "button", class: small ? "small" : "", "data-action": id,
    disabled: !may, title: may ? undefined : session?.why_no_actions || "read only",
    onclick: open }, label);
}
