// Shows a notice while the server does not respond.

import { health } from "./api.js";
import { el } from "./dom.js";

const QUIET = 5000;
const AWAY = 1500;

export class Connection {
  /** back(): the server answers again. seen(health): it does. */
  constructor(notice, back, seen) {
    Object.assign(this, { notice, back, seen, away: false });
    this.later();
    addEventListener("online", () => this.check());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.check());
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), this.away ? AWAY : QUIET);
  }

  async check() {
    if (document.visibilityState === "visible" || this.away) {
      try {
        const answer = await health();
        this.found();
        this.seen(answer);
      } catch {
        this.lost();
      }
    }
    this.later();
  }

  /** Call when a request got no response. */
  lost() {
    if (this.away) return;
    this.away = true;
    this.notice.dataset.kind = "away";
    this.notice.replaceChildren(
      el("span", {}, "The server is not responding. It may have been stopped. Trying again …"),
      el("button", { type: "button", class: "quiet", onclick: () => this.check() }, "Try now"),
    );
    this.notice.hidden = false;
    this.later();
  }

  found() {
    if (!this.away) return;
    this.away = false;
    this.notice.hidden = true;
    this.back();
  }

  /** Show another message, until the next search. */
  tell(message) {
    if (this.away) return;
    this.notice.dataset.kind = "message";
    this.notice.replaceChildren(
      el("span", {}, message),
      el("button", { type: "button", class: "quiet", onclick: () => this.dismiss() }, "Dismiss"),
    );
    this.notice.hidden = false;
  }

  dismiss() {
    if (this.notice.dataset.kind === "message") this.notice.hidden = true;
  }
}
