// The parts that all pages are made of.

import { h } from "./dom.js";
import { age, iso, left, moment, now, whole } from "./time.js";

// Each level has a shape of its own, so that it is seen without colour.
const SHAPES = {
  fine: "M6 0a6 6 0 100 12A6 6 0 006 0zm-.9 9L2.3 6.3l1-1L5.1 7.1 8.7 3.4l1 1z",
  warning: "M6 .5L12 11.5H0zM5.3 4.5v3.5h1.4V4.5zm0 4.3v1.4h1.4V8.8z",
  error: "M3.5 0h5L12 3.5v5L8.5 12h-5L0 8.5v-5zM4 3L3 4l2 2-2 2 1 1 2-2 2 2 1-1-2-2 2-2-1-1-2 2z",
  unknown: "M6 0a6 6 0 100 12A6 6 0 006 0zm0 1.6a4.4 4.4 0 110 8.8 4.4 4.4 0 010-8.8z",
  info: "M6 0a6 6 0 100 12A6 6 0 006 0zm-.7 2.5h1.4v1.4H5.3zm0 2.3h1.4v4.7H5.3z",
  running: "M2 1l9 5-9 5z",
};

/** Returns the shape of a level: fine, warning, error, unknown, info, running. */
export const mark = (level, title) => h("svg", {
  class: `mark ${level}`, viewBox: "0 0 12 12",
  ...(title ? { role: "img", "aria-label": title } : { "aria-hidden": "true" }),
}, title && h("title", null, title),
h("path", { d: SHAPES[level] || SHAPES.unknown, "fill-rule": "evenodd" }));

/** Returns a state as shape and word. */
export const is = (level, word) => h("span", { class: `is ${level}` }, mark(level), word);

export const at = (ms) => (typeof ms === "number"
  ? h("time", { datetime: iso(ms), title: `${iso(ms)}` }, moment(ms))
  : h("span", { class: "soft" }, "–"));

/** Returns the age of a time. */
export const since = (ms) => (typeof ms === "number"
  ? h("time", { datetime: iso(ms), title: iso(ms) }, age(ms))
  : h("span", { class: "soft" }, "–"));

/** Returns what is left until a time. The page is drawn each second, so the number counts down. */
export function countdown(until, over = "over") {
  if (typeof until !== "number") return h("span", { class: "soft" }, "–");
  const rest = left(until);
  const title = `until ${moment(until)} UTC`;
  return h("time", { class: "countdown", datetime: iso(until), title },
    rest > 0 ? whole(rest) : over);
}

/** Returns a sentence about the whole, with its countdown. */
export function verdict(level, sentence, until, more) {
  const open = typeof until === "number" && until > now();
  return h("section", { class: `verdict ${level}`, "aria-label": "Verdict", key: "verdict" },
    mark(level, level),
    h("div", null, h("p", { class: "say" }, sentence), more && h("p", { class: "more" }, more)),
    open && h("p", { class: "until" }, h("b", null, countdown(until)), "until ", at(until)));
}

/** Returns a framed part of a page with a heading. */
export const card = (title, { right, foot, key, level } = {}, ...body) => h("section",
  { class: `card ${level || ""}`, key: key || title, "aria-label": title },
  h("div", { class: "head" }, h("h2", null, title), right && h("div", { class: "right" }, right)),
  body, foot && h("div", { class: "foot" }, foot));

export const empty = (...sentence) => h("div", { class: "empty" }, h("p", null, sentence));

export const head = (title, sentence, right) => h("div", { class: "page-head", key: "head" },
  h("h1", null, title), sentence && h("p", null, sentence),
  right && h("div", { class: "right tools" }, right));

/** Returns names and values side by side. Values that are missing are left out. */
export const pairs = (list, wide) => h("dl", { class: wide ? "pairs wide" : "pairs" },
  list.filter(([, value]) => value !== null && value !== undefined && value !== false)
    .map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));

/** Returns names and values in one row. */
export const facts = (list) => h("dl", { class: "facts-row" },
  list.filter(([, value]) => value !== null && value !== undefined && value !== false)
    .map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value))));

/** Returns what a page shows before its value is there, or in its place if it cannot be read. */
export function waiting(resource) {
  if (resource.error && !resource.data) {
    return h("div", { class: "cut", role: "alert", key: "wait" }, resource.error.message);
  }
  return resource.data ? null : h("p", { class: "soft", key: "wait" }, "Reading…");
}

/** Returns a command that mends something, with a button that copies it. */
export const command = (text) => h("div", { class: "command" }, h("code", null, text),
  navigator.clipboard && h("button", {
    type: "button", class: "small", "aria-label": `Copy: ${text}`,
    onclick: async (event) => {
      const button = event.currentTarget;
      await navigator.clipboard.writeText(text);
      toast("fine", "The command is in the clipboard.");
      button.focus();
    },
  }, "Copy"));

/** Shows a message for some seconds; screen readers read it out. */
export function toast(level, sentence) {
  const all = document.getElementById("toasts");
  const one = document.createElement("div");
  one.className = `toast ${level}`;
  one.textContent = sentence;
  all.append(one);
  setTimeout(() => one.remove(), level === "error" ? 12_000 : 6_000);
}

/** Returns a text of the console as a sentence of its own. */
export const sentence = (text) => text && `${text[0].toUpperCase()}${text.slice(1)}${
  /[.!?…]$/.test(text) ? "" : "."}`;

export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

/** Returns a number with thin groups, `12 345`. */
export const number = (n) => (typeof n === "number"
  ? String(n).replace(/\B(?=(\d{3})+$)/g, "\u202f") : "–");
