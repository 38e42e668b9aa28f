// Bars on one axis of time, as SVG.

import { h } from "./dom.js";
import { clock, moment, now, span } from "./time.js";

const LANE = 34;
const BAR = 20;
const AXIS = 24;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600,
  43_200, 86_400, 172_800, 604_800];

/** Returns a class of colour for a name; the same name has the same one. */
export function colour(name) {
  let sum = 0;
  for (const c of String(name)) sum = (sum * 31 + c.codePointAt(0)) % 9973;
  return `c${(sum % 6) + 1}`;
}

/** Returns the instants at which the axis has a label. */
function marks(from, to, most) {
  const wide = (to - from) / 1000 / most;
  const step = (STEPS.find((s) => s >= wide) || STEPS.at(-1)) * 1000;
  const all = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) all.push(t);
  return [all, step];
}

/** Pattern of a gap: nobody leads, or nothing is granted. */
const hatch = () => h("defs", null, h("pattern", {
  id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
}, h("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 6 })));

/**
 * Returns lanes of bars. A lane is `{name, bars: [{from, to, text, title, class, gap}]}`; a bar
 * without `to` goes on now. `width` is that of the place in pixels, so that text is not stretched.
 */
export function timeline(label, lanes, { from, to = now(), width = 800, names = 150 } = {}) {
  const side = width < 520 ? 0 : names;
  const lane = side ? LANE : LANE + 18;
  const wide = Math.max(60, width - side - 4);
  const x = (t) => side + Math.max(0, Math.min(1, (t - from) / Math.max(1, to - from))) * wide;
  const high = lanes.length * lane + AXIS;
  const [ticks, step] = marks(from, to, Math.max(2, Math.floor(wide / 110)));
  const bar = (b, i, y) => {
    const end = b.to ?? to;
    if (end < from) return null;
    const [left, right] = [x(b.from), x(end)];
    const fits = b.text && b.text.length * 6.6 < right - left - 12;
    const beside = b.beside && b.beside.length * 6.6;
    const after = right + 6 + beside < width;
    const title = b.title || `${b.text}: ${moment(b.from)} to ${b.to ? moment(b.to) : "now"} (${
      span(end - b.from)})`;
    return h("g", { key: `${b.from} ${i}` },
      h("rect", { class: b.gap ? "gap-bar" : b.class, x: left.toFixed(1), y, rx: 3, height: BAR,
        width: Math.max(2, right - left).toFixed(1) }, h("title", null, title)),
      fits && h("text", { class: b.gap ? "tick" : "on-bar", x: (left + 6).toFixed(1), y: y + 14 },
        b.text),
      b.beside && h("text", { class: "tick", "text-anchor": after ? "start" : "end", y: y + 14,
        x: (after ? right + 6 : left - 6).toFixed(1) }, b.beside));
  };
  return h("svg", { class: "timeline", role: "img", "aria-label": label, width, height: high,
    viewBox: `0 0 ${width} ${high}`, key: label },
  hatch(),
  ticks.map((t) => h("g", { key: `t${t}` },
    h("line", { class: "axis", x1: x(t).toFixed(1), x2: x(t).toFixed(1), y1: 0, y2: high - AXIS }),
    h("text", { class: "tick", x: x(t).toFixed(1), y: high - 7, "text-anchor": "middle" },
      x(t) > side + 28 && x(t) < width - 28 &&
        (step < 60_000 ? clock(t) : step >= 86_400_000 ? moment(t).slice(0, 5)
          : clock(t).slice(0, 5))))),
  lanes.map((one, n) => {
    const y = n * lane + (side ? (LANE - BAR) / 2 : 18);
    return h("g", { key: `lane ${one.name}` },
      h("text", { x: 0, y: side ? y + 14 : y - 5 }, cut(one.name, side ? side - 12 : width)),
      h("rect", { class: "lane", x: side, y, width: wide, height: BAR, rx: 3 }),
      one.bars.map((b, i) => bar(b, i, y)));
  }));
}

const cut = (text, room) => {
  const most = Math.floor(room / 7);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
};

/** Returns a line of numbers without an axis; its words are beside it. */
export function spark(label, numbers) {
  const list = numbers.filter((n) => typeof n === "number");
  if (list.length < 8) return null;
  const top = Math.max(...list, 0.001);
  const points = list.map((n, i) => `${((i / (list.length - 1)) * 100).toFixed(1)} ${(
    26 - (n / top) * 24).toFixed(1)}`);
  return h("svg", { class: "spark", viewBox: "0 0 100 28", preserveAspectRatio: "none", role: "img",
    "aria-label": label }, h("path", { d: `M${points.join("L")}` }));
}

/** Returns the width that `place` has for a timeline. */
export function roomOf() {
  const main = document.getElementById("main");
  const style = getComputedStyle(main);
  return Math.max(280, main.clientWidth - parseFloat(style.paddingLeft) -
    parseFloat(style.paddingRight) - 30);
}
