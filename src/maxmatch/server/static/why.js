// Why this picture? In plain words first; slots, cosines and the matching behind "Details".

import * as api from "./api.js";
import { el } from "./dom.js";
import { colour, overlay } from "./heat.js";
import { groups, inWords } from "./plain.js";
import { explained, slotsAlone } from "./reasons.js";
import * as words from "./words.js";

export class Why {
  /** panel: where it is told. image(): the picture. repaint(): what lies over it has changed. only(query): search with it. */
  constructor({ panel, image, repaint, only, gone }) {
    Object.assign(this, { panel, image, repaint, only, gone, asked: "", answer: null, looks: null, part: 0, open: false });
  }

  stop() {
    this.stopped?.abort();
    Object.assign(this, { asked: "", answer: null });
  }

  async show(item, state, score) {
    const asked = [item.key, state.q, state.like, state.upload, state.slot].join(" ");
    if (this.asked === asked) return;
    this.stop();
    this.stopped = new AbortController();
    const { signal } = this.stopped;
    Object.assign(this, { asked, item, state, score, part: 0, looks: null });
    this.panel.replaceChildren(el("p", { class: "wait" }, "Looking …"));
    this.repaint();
    try {
      const [answer] = await Promise.all([
        api.explain(item.key, state, signal),
        this.image().decode().catch(() => null),
        state.like || state.upload ? this.load(state) : null,
      ]);
      if (signal.aborted) return;
      this.answer = answer;
      this.fill();
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      this.asked = "";
      const said = error instanceof api.Refused ? error.message : "The server is not responding.";
      this.panel.replaceChildren(el("p", { role: "alert" }, said));
      if (error instanceof api.Gone) this.gone();
    }
  }

  /** The picture that is searched with. */
  async load(state) {
    const image = new Image();
    image.src = state.like ? api.thumbnail({ key: state.like, version: "0" }, 160) : api.uploadThumbnail(state.upload, 320);
    this.queryImage = await image.decode().then(() => image, () => null);
  }

  fill() {
    const { slots, parts } = this.answer;
    const context = {
      image: this.image(), slots, queryImage: this.queryImage,
      choose: (slots) => this.choose(String(this.looks) === String(slots) ? [] : slots),
      only: (side, slot) => this.only(side === "item"
        ? { like: this.item.key, slot }
        : { ...this.queryOf(parts[this.part]), slot }),
    };
    const bar = parts.length > 1
      ? el("div", { class: "partsbar", role: "group", "aria-label": "Parts of the query" },
          ...parts.map((part, place) =>
            el("button", { type: "button", "aria-pressed": String(place === this.part), onclick: () => { this.part = place; this.fill(); } },
              `${part.weight < 0 ? "− " : "+ "}${part.label}`)))
      : null;
    this.chooser = el("div", { class: "slots", role: "radiogroup", "aria-label": "Where each slot looks" },
      this.choice(null, "All"), ...slots.attention.map((_, slot) => this.choice([slot], `Slot ${slot + 1}`)), this.choice([], "Picture"));
    const research = parts.length ? explained(parts[this.part], context) : slotsAlone(context);
    const total = this.score === null ? null : el("p", {}, `Score ${words.score(this.score)}.`);
    this.details = el("details", { class: "research", open: this.open }, el("summary", {}, "Details"), total, this.chooser, ...research);
    this.details.addEventListener("toggle", () => {
      this.open = this.details.open;
      this.choose(this.looks);
    });
    this.panel.replaceChildren(...[bar, ...inWords(parts[this.part] ?? null, context), this.details].filter(Boolean));
    this.choose(parts.length ? groups(parts[this.part])[0].slots : []);
  }

  /** The query again, as the address says it, for one of its parts. */
  queryOf(part) {
    const { q, like, upload } = this.state;
    return like ? { like } : upload ? { upload } : { q: this.answer.parts.length > 1 ? part.label : q };
  }

  choice(slots, name) {
    const own = slots?.length ? colour(slots[0]) : null;
    return el("button", { type: "button", role: "radio", "data-slots": slots === null ? "all" : slots.join(" "), "--slot": own, onclick: () => this.choose(slots) },
      own ? el("span", { class: "dot", "aria-hidden": "true" }) : null, name);
  }

  /** Show where some slots look; null: all, each in its colour; none of them: the picture alone. */
  choose(slots) {
    this.looks = slots;
    const chosen = slots === null ? "all" : slots.join(" ");
    const buttons = [...this.chooser.children];
    const own = buttons.find((button) => button.dataset.slots === chosen);
    for (const button of buttons) {
      button.setAttribute("aria-checked", String(button === own));
      button.tabIndex = button === (own ?? buttons[0]) ? 0 : -1;
    }
    for (const row of this.panel.querySelectorAll(".pair, .met")) row.classList.toggle("chosen", row.dataset.slots === chosen);
    for (const button of this.panel.querySelectorAll(".met .mini")) button.setAttribute("aria-pressed", String(button.closest(".met").dataset.slots === chosen));
    this.repaint();
  }

  /** Paint over the picture; whether there is anything to paint. */
  paint(canvas) {
    if (!this.answer || this.looks?.length === 0 || !canvas.width) return false;
    overlay(canvas, this.answer.slots, this.looks);
    return true;
  }

  /** Whether the key was meant for this tab. */
  pressed(event) {
    if (!this.answer) return false;
    if (this.chooser.contains(event.target) && event.key.startsWith("Arrow")) {
      const buttons = [...this.chooser.children];
      const by = event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : -1;
      const next = buttons[(buttons.indexOf(event.target) + by + buttons.length) % buttons.length];
      next.click();
      next.focus();
    } else if (/^[0-9]$/.test(event.key)) {
      const slot = Number(event.key) - 1;
      if (slot < this.answer.slots.attention.length) this.choose(slot < 0 ? null : [slot]);
    } else return false;
    event.preventDefault();
    return true;
  }
}
