// Is the server there? Says so when it is not, and when it is back.

import { health } from "./api.js";
import { el } from "./dom.js";

const QUIET = 5000;
const AWAY = 1500;

export class Connection {
  /** back(): the server answers again. */
  constructor(notice, back) {
    Object.assign(this, { notice, back, away: false });
    this.later();
    addEventListener("online", () => this.look());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.look());
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), this.away ? AWAY : QUIET);
  }

  async look() {
    if (document.visibilityState === "visible" || this.away) {
      try {
        await health();
        this.found();
      } catch {
        this.lost();
      }
    }
    this.later();
  }

  /** To be called when a request got no answer. */
  lost() {
    if (this.away) return;
    this.away = true;
    this.notice.dataset.kind = "away";
    this.notice.replaceChildren(
      el("span", {}, "The server does not answer. It may have been stopped; trying again …"),
      el("button", { type: "button", class: "quiet", onclick: () => this.look() }, "Try now"),
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

  /** Something else to say, until the next search. */
  say(message) {
    if (this.away) return;
    this.notice.dataset.kind = "said";
    this.notice.replaceChildren(
      el("span", {}, message),
      el("button", { type: "button", class: "quiet", onclick: () => this.hush() }, "Dismiss"),
    );
    this.notice.hidden = false;
  }

  hush() {
    if (this.notice.dataset.kind === "said") this.notice.hidden = true;
  }
}
