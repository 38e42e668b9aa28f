// The stream of changes. It is live, lagging (the console left events out, so everything is read
// again), or cut since a time that the page shows; it is never silently old.

import { now, setNow } from "./time.js";

const PATIENCE = 7_000; // longer than three of the console's ticks
const LAG_SHOWN = 6_000;
const HIDDEN = 5_000; // a look at another page is often shorter

export class Live {
  /**
   * `heard(name, data)` receives each event, `changed()` each change of the state. `failed()` is
   * called when a stream could not be opened: the reason may be that nobody is signed in.
   */
  constructor(heard, changed, failed) {
    Object.assign(this, { heard, changed, failed, topics: [], state: "connecting", since: now() });
    Object.assign(this, { missed: 0, tries: 0, last: Date.now(), source: null });
    setInterval(() => this.watch(), 1000);
    document.addEventListener("visibilitychange", () => this.show());
  }

  /**
   * Ends the stream of a page that has been hidden for a while, and opens it when the page is seen
   * again. A browser has few connections to one host, and all its pages share them.
   */
  show() {
    clearTimeout(this.hiding);
    if (!document.hidden) {
      if (this.hidden) this.open();
      this.hidden = false;
      return;
    }
    this.hiding = setTimeout(() => {
      if (!this.source) return;
      this.hidden = true;
      clearTimeout(this.retry);
      this.source.close();
      this.become("cut");
    }, HIDDEN);
  }

  /** Follows other topics, by a new stream. */
  follow(topics) {
    if (topics.join() === this.topics.join() && this.source) return;
    this.topics = topics;
    if (!this.hidden) this.open();
  }

  open() {
    clearTimeout(this.retry);
    if (this.source) this.source.close();
    this.opened = Date.now();
    const source = new EventSource(`/api/v1/events?topics=${this.topics.join()}`);
    this.source = source;
    source.onopen = () => {
      this.last = Date.now();
    };
    source.onerror = () => {
      if (this.source !== source) return;
      this.become("cut");
      this.later();
      this.failed();
    };
    const names = ["hello", "happened", "tick", "lagged", "closing", ...this.topics];
    for (const name of names) {
      source.addEventListener(name, (event) => this.take(name, event.data));
    }
  }

  /** Ends the stream for good, when there is no permission to read. */
  close() {
    clearTimeout(this.retry);
    if (this.source) this.source.close();
    Object.assign(this, { source: null, topics: [], state: "connecting", hidden: false });
  }

  take(name, text) {
    try {
      this.accept(name, JSON.parse(text));
    } catch (why) {
      // The page does not show this event, so it is as old as if the stream were cut.
      console.error(why);
      this.become("cut");
      this.later();
    }
  }

  accept(name, data) {
    // A stream begins with the time of now. Its first pages may have been made before.
    const fresh = setNow(data.now_ms, name === "hello");
    if (fresh) this.last = Date.now();
    else if (name === "tick") return; // the stream is behind, and is cut if that goes on
    if (name === "tick") this.tries = 0;
    if (name === "lagged") {
      this.missed = data.missed || 0;
      this.become("lagged");
      clearTimeout(this.lag);
      this.lag = setTimeout(() => this.state === "lagged" && this.become("live"), LAG_SHOWN);
    } else if (name === "closing") this.become("cut");
    else if (fresh && this.state !== "lagged") this.become("live");
    this.heard(name, data);
  }

  watch() {
    const heard = Math.max(this.last, this.opened || 0);
    if (!this.source || this.state === "cut" || Date.now() - heard < PATIENCE) return;
    this.become("cut");
    this.later();
  }

  later() {
    if (!this.source) return; // closed in the meantime
    this.source.close();
    clearTimeout(this.retry);
    this.tries += 1;
    this.retry = setTimeout(() => this.open(), Math.min(5000, 250 * 2 ** this.tries));
  }

  become(state) {
    if (this.state !== state) {
      // A cut counts from the last event: what is shown is as old as that.
      this.since = state === "cut" ? now() - (Date.now() - this.last) : now();
      this.state = state;
    }
    this.changed();
  }
}
