// Requests to the console's own interface, and values that stay fresh.

import { isOlder, setNow } from "./time.js";

const BASE = "/api/v1";
const PATIENCE = 60_000; // an action ends within half of it
const LATE = 15_000; // a page is there within a third of it

/** Failure of a request: the status, and the console's sentence about it. */
export class ApiError extends Error {
  constructor(status, sentence, code) {
    super(sentence);
    Object.assign(this, { status, code });
  }
}

async function answer(response) {
  if (response.status === 204) return {};
  let body = null;
  try {
    body = await response.json();
  } catch {
    // A proxy gave up, or the request ended within the console: it may have taken effect.
    const code = response.status >= 500 || response.status === 408 ? "no_answer" : undefined;
    const text = `the console answered ${response.status} without JSON`;
    throw new ApiError(response.status, text, code);
  }
  setNow(body.now_ms);
  if (response.ok) return body;
  const { code, text = `the console answered ${response.status}` } = body.error || {};
  if (response.status === 401) window.dispatchEvent(new Event("signed-out"));
  throw new ApiError(response.status, text, code);
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(BASE + path, { cache: "no-store", ...options });
  } catch (why) {
    if (why.name === "AbortError") throw why;
    const sentence = "the console does not answer; is its process still there?";
    throw new ApiError(0, sentence, "no_answer");
  }
  return answer(response);
}

/** Returns `path` with those of `params` that have a value. */
export function query(path, params) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== "" &&
    value !== null && value !== false);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

/** Reads, for a limited time: an answer that is lost must not keep a page from being read again. */
export const get = (path, signal) => {
  const late = AbortSignal.timeout(LATE);
  return send(path, { signal: signal ? AbortSignal.any([signal, late]) : late });
};

/** Sends a change. No page of another site can send its header. */
export const post = (path, body, method = "POST") => send(path, {
  method,
  headers: { "content-type": "application/json", "x-palisade-console": "1" },
  body: JSON.stringify(body),
  signal: AbortSignal.timeout(PATIENCE),
});

/** A value of the interface, read again when it may have changed, at most every `pause` ms. */
export class Resource {
  constructor(path, changed, pause = 300) {
    Object.assign(this, { path, changed, pause, data: null, error: null, closed: false });
    this.again = this.busy = false;
    this.abort = new AbortController();
  }

  async load() {
    if (this.busy || this.closed) {
      this.again = true;
      return;
    }
    this.busy = true;
    this.again = false;
    try {
      this.take(await get(this.path, this.abort.signal));
      this.error = null;
    } catch (why) {
      if (this.closed) return;
      this.error = why;
    }
    this.changed();
    setTimeout(() => {
      this.busy = false;
      if (this.again) this.load();
    }, this.pause);
  }

  /** Takes a page that was read, or that the stream sent, if it is not older than the own one. */
  take(page) {
    if (!isOlder(page, this.data)) this.data = page;
  }

  close() {
    this.closed = true;
    this.abort.abort();
  }
}
