// Long tables: only the rows in view are in the document, the next page is read when the end of
// what is there comes near, and a change reads only the pages in view again.

import { get, query } from "./api.js";
import { h } from "./dom.js";
import { isOlder, span } from "./time.js";
import { number } from "./ui.js";

const AHEAD = 12;
const PAGE = 500;
const NARROW = "(max-width: 900px)";
const ROW = 36;
const ROW_NARROW = 54;

const rowHeight = () => (window.matchMedia(NARROW).matches ? ROW_NARROW : ROW);

/** Rows of a list that is read page by page. A page is known by the cursor that begins it. */
export class Feed {
  constructor(path, field, keyOf, changed) {
    Object.assign(this, { path, field, keyOf, changed, params: {}, round: 0 });
    this.reset();
  }

  reset() {
    Object.assign(this, { pages: [], list: null, started: false, busy: false, error: null });
    Object.assign(this, { meta: {}, known: null, fresh: new Set() });
    this.round += 1;
  }

  close() {
    this.round += 1;
  }

  /** Begins again with other parameters; the old rows stay until the new ones are there. */
  async open(params) {
    this.params = params;
    this.round += 1;
    this.busy = true;
    const page = await this.read("", this.round);
    if (!page) return;
    this.reset();
    this.take(0, page);
  }

  get whole() {
    return this.started && (!this.pages.length || !this.pages.at(-1).next);
  }

  async more() {
    if (this.busy || !this.started || this.whole) return;
    this.busy = true;
    const n = this.pages.length;
    const page = await this.read(this.pages.at(-1).next, this.round);
    if (page) this.take(n, page);
  }

  /** Reads the pages again that `view` shows. `first` is the first page, if it came by itself. */
  async renew(view, first) {
    if (!this.started) return;
    if (this.busy) {
      this.again = view;
      return;
    }
    this.busy = true;
    const round = this.round;
    const top = Math.floor((view.scroll || 0) / rowHeight());
    let end = 0;
    for (let n = 0; n < this.pages.length; n += 1) {
      const begin = end;
      end += this.pages[n].rows.length;
      if (end < top || begin > top + 60) {
        if (begin > top + 60) break;
        continue;
      }
      const given = n === 0 && this.plain() && first && first[this.field] &&
        this.pages.length === 1 && !isOlder(first, this.meta) &&
        // An event has fewer rows than a page. What is seen must not jump because of that.
        (!first.next || first[this.field].length >= PAGE) && first;
      const page = given || await this.read(this.pages[n].cursor, round);
      if (!page) return;
      this.take(n, page, true);
    }
    this.busy = false;
    this.catchUp();
  }

  /** Makes up for a renewal that came while pages were read. */
  catchUp() {
    const { again, round } = this;
    if (!again) return;
    this.again = null;
    setTimeout(() => this.round === round && this.renew(again), 300);
  }

  plain() {
    return Object.values(this.params).every((value) => !value);
  }

  async read(cursor, round) {
    try {
      const page = await get(query(this.path, { limit: PAGE, ...this.params, cursor }));
      return round === this.round && page;
    } catch (why) {
      if (round === this.round) {
        Object.assign(this, { error: why, busy: false, started: true });
        this.changed();
      }
      return null;
    }
  }

  take(n, page, stays) {
    const cursor = n === 0 ? "" : this.pages[n]?.cursor ?? this.pages[n - 1].next;
    this.pages[n] = { cursor, next: page.next || null, rows: page[this.field] };
    if (this.pages[n + 1]) this.pages[n + 1].cursor = page.next || "";
    if (!page.next) this.pages.length = n + 1;
    Object.assign(this, { list: null, meta: page, started: true, error: null });
    if (!stays) {
      this.busy = false;
      this.catchUp();
    }
    this.note(stays);
    this.changed();
  }

  /** Notes which rows are new since the last time, for a moment. */
  note(compare) {
    const now = new Set(this.all().map(this.keyOf));
    if (compare && this.known) {
      for (const key of now) {
        if (this.known.has(key)) continue;
        this.fresh.add(key);
        setTimeout(() => this.fresh.delete(key), 1600);
      }
    }
    this.known = now;
  }

  all() {
    if (!this.list) {
      const rows = new Map();
      for (const page of this.pages) {
        for (const row of page.rows) if (!rows.has(this.keyOf(row))) rows.set(this.keyOf(row), row);
      }
      this.list = [...rows.values()];
    }
    return this.list;
  }
}

const spans = (parts) => parts.map((part) => h("span", null, part));

/** Returns the sentences below a list: how far it is read, and at which cost. */
export function progress(feed, noun, poll) {
  const [here, total] = [feed.all().length, feed.meta.total];
  const parts = [];
  if (!feed.started) parts.push("Reading…");
  else if (!feed.whole) {
    parts.push(`${number(here)} of ${number(total)} ${noun}; the next are read as you scroll.`);
  } else if (!feed.meta.whole) parts.push(`${number(here)} ${noun} seen so far.`);
  else if (feed.plain()) parts.push(`All ${number(here)} ${noun} are here.`);
  else parts.push(`All ${number(here)} ${noun} of this search are here.`);
  return [spans(parts), budget(feed.started ? feed.meta : { whole: true }, poll)];
}

/** Returns the sentences about names that are not in `page` yet, and about what finding costs. */
export function budget(page, poll) {
  const scan = poll && poll.scan;
  const parts = [];
  if (!page.whole) parts.push("There may be more: names are still being found.");
  if (page.left_out > 0) parts.push(`${number(page.left_out)} are left out: there are too many.`);
  if (scan) {
    const most = number(scan.keys_per_second);
    parts.push(`Names are found by SCAN, at most ${most} keys a second on each node.`);
    if (scan.round_ms) {
      parts.push(`The last round took ${span(scan.round_ms)}, so a name may be that old before it is ` +
        "here.");
    }
    const round = (scan.progress || []).filter(({ total: all }) => all > 0);
    if (round.length) {
      const [keys, all] = round.reduce(([a, b], one) => [a + one.keys, b + one.total], [0, 0]);
      const part = Math.round((keys / all) * 100);
      if (part > 0 && part < 100) parts.push(`This round: ${part} %.`);
    }
  }
  return spans(parts);
}

const titles = (columns) => h("thead", null, h("tr", null, columns.map((c) =>
  h("th", { scope: "col", class: c.class }, c.title || h("span", { class: "hide" }, "Actions")))));

/** Returns a table of which only the rows in view exist. The caller keeps `state`. */
export function longTable({ label, columns, feed, state, keyOf, redraw }) {
  const rows = feed.all();
  const height = rowHeight();
  const top = state.scroll || 0;
  const first = Math.min(Math.max(0, Math.floor(top / height) - AHEAD), rows.length);
  const last = Math.min(rows.length, Math.ceil((top + (state.height || 800)) / height) + AHEAD);
  if (last >= rows.length - AHEAD) queueMicrotask(() => feed.more());
  const space = (lines, key) => lines > 0 && h("tr", { class: "gap", "aria-hidden": "true", key },
    h("td", { colspan: columns.length, style: { height: `${lines * height}px` } }));
  const scrolled = (event) => {
    const box = event.currentTarget;
    state.height = box.clientHeight;
    if (Math.abs(box.scrollTop - (state.scroll || 0)) < height * (AHEAD / 3)) return;
    state.scroll = box.scrollTop;
    redraw();
  };
  const total = feed.whole ? rows.length : feed.meta.total || rows.length;
  return h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": label,
    key: "table", onscroll: scrolled },
  h("table", { class: "fixed", "aria-rowcount": total + 1 },
    h("colgroup", null, columns.map((c) => h("col", { class: c.class,
      style: c.width ? { width: `${c.width}px` } : {} }))),
    titles(columns),
    h("tbody", null, space(first, "before"),
      rows.slice(first, last).map((row, i) => h("tr", {
        key: `row ${keyOf(row)}`, "aria-rowindex": first + i + 2,
        class: feed.fresh.has(keyOf(row)) ? "new" : undefined,
      }, columns.map((c) => h("td", { class: c.class }, c.cell(row))))),
      space(rows.length - last, "after"))));
}

/** Returns a table of few rows. */
export const shortTable = (label, columns, rows, keyOf) => h("div", { class: "scroll", key: label,
  tabindex: "0", role: "region", "aria-label": label },
h("table", null, titles(columns),
  h("tbody", null, rows.map((row, i) => h("tr", { key: `row ${keyOf ? keyOf(row) : i}` },
    columns.map((c) => h("td", { class: c.class }, c.cell(row))))))));
