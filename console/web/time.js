// Times and spans as text. All times are the console's clock in UTC, as in the servers' logs.

const LATEST = 8.64e15; // no Date is later
const SLACK = 2_000; // answers and events may overtake one another by this much

let offset = 0;
let newest = 0;

/** Returns true if a number is a time that a Date can have. */
const isTime = (ms) => typeof ms === "number" && Math.abs(ms) <= LATEST;

/**
 * Sets the clock by a time that the console sent, and returns true if it sent it just now. A time
 * before the newest one is that of a message from the past, which does not set the clock back;
 * `anew` accepts it, at the beginning of a stream.
 */
export function setNow(ms, anew = false) {
  if (!isTime(ms)) return false;
  if (anew || ms >= newest) {
    newest = ms;
    offset = ms - Date.now();
  }
  return ms >= newest - SLACK;
}

/**
 * Returns true if a page is older than the one that is shown. One that is shown from after now does
 * not count: the console's clock was set back since.
 */
export const isOlder = (page, shown) => Boolean(shown) && page.now_ms < shown.now_ms &&
  shown.now_ms <= now() + SLACK;

/** Returns the console's time in ms since 1970. */
export const now = () => Date.now() + offset;

const two = (n) => String(n).padStart(2, "0");

/** Returns a time as `12:03:20`. */
export function clock(ms) {
  if (!isTime(ms)) return "–";
  const at = new Date(ms);
  return `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}:${two(at.getUTCSeconds())}`;
}

const DAY = 86_400_000;

/** Returns a time as `12:03:20`, with the date in front if it is not today. */
export function moment(ms) {
  if (!isTime(ms)) return "–";
  if (Math.floor(ms / DAY) === Math.floor(now() / DAY)) return clock(ms);
  return `${new Date(ms).toISOString().slice(5, 10)} ${clock(ms)}`;
}

/** Returns a time for `<time datetime>`. */
export const iso = (ms) => (isTime(ms) ? new Date(ms).toISOString() : "–");

/** Returns a span of ms in at most two units: `1.3 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`. */
export function span(ms) {
  if (typeof ms !== "number") return "–";
  if (ms < 1) return ms <= 0 ? "0 s" : `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  return whole(s);
}

/** Returns a span of seconds without fractions. */
export function whole(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  const pair = (n, unit, rest, small) => (rest ? `${n} ${unit} ${rest} ${small}` : `${n} ${unit}`);
  if (s < 3600) return pair(Math.floor(s / 60), "min", s % 60, "s");
  if (s < 86_400) return pair(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  return pair(Math.floor(s / 86_400), "d", Math.floor((s % 86_400) / 3600), "h");
}

/** Returns the age of a time, `4 min 10 s`. */
export const age = (ms) => (typeof ms === "number" ? whole((now() - ms) / 1000) : "–");

/** Returns the whole seconds until a time; 0 if it is over. */
export const left = (until) => Math.max(0, Math.ceil((until - now()) / 1000));
