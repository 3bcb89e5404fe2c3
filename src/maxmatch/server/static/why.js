// Why this? A picture with its slots, in a dialog over the grid.

import { el, icon } from "./dom.js";
import * as api from "./api.js";
import { colour, overlay } from "./heat.js";
import { explained, slotsAlone } from "./reasons.js";
import * as words from "./words.js";

const CROSS = "M5 5l10 10M15 5 5 15";
const LEFT = "M12 4 6 10l6 6";
const RIGHT = "m8 4 6 6-6 6";

export class Why {
  /** close(), step(by), similar(key), only(query): what the page does when asked to. step: null where there is none. */
  constructor(dialog, actions) {
    Object.assign(this, { dialog, actions, shown: null, slot: null, part: 0, answer: null });
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      actions.close();
    });
    dialog.addEventListener("click", (event) => event.target === dialog && actions.close());
    dialog.addEventListener("keydown", (event) => this.pressed(event));
    this.room = new ResizeObserver(() => this.fit());
  }

  /** Show a picture: at once what is known, then what the model saw. */
  async show(item, state, { score = null, duplicates = [], steps = [null, null] } = {}) {
    this.shown = item;
    this.answer = null;
    this.slot = null;
    this.part = 0;
    this.stopped?.abort();
    this.stopped = new AbortController();
    this.build(item, score, duplicates, steps);
    if (!this.dialog.open) this.dialog.showModal();
    this.heading.focus();
    this.fit();
    const given = this.stopped.signal;
    try {
      const [answer] = await Promise.all([
        api.explain(item.key, state, given),
        this.image.decode().catch(() => null),
        state.like || state.upload ? this.load(state) : null,
      ]);
      if (given.aborted) return;
      this.answer = answer;
      this.state = state;
      this.fill();
      this.fit();
    } catch (error) {
      if (error.name === "AbortError" || given.aborted) return;
      const said = error instanceof api.Refused ? error.message : "The server is not responding.";
      this.reasons.replaceChildren(el("p", { role: "alert" }, said));
      if (error instanceof api.Gone) this.actions.gone();
    }
  }

  hide() {
    this.stopped?.abort();
    this.shown = null;
    if (this.dialog.open) this.dialog.close();
  }

  /** The picture that is searched with. */
  async load(state) {
    const image = new Image();
    image.src = state.like ? api.thumbnail({ key: state.like, version: "0" }, 160) : api.uploadThumbnail(state.upload, 320);
    this.queryImage = await image.decode().then(() => image, () => null);
  }

  build(item, score, duplicates, [before, next]) {
    this.heading = el("h2", { id: "why-name", tabindex: "-1" }, item.name);
    const line = [words.facts(item), score === null ? "" : `score ${words.score(score)}`].filter(Boolean).join(" · ");
    this.image = el("img", { alt: `The picture ${item.name}`, src: api.thumbnail(item, 1000), draggable: "false" });
    this.image.addEventListener("load", () => this.fit());
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.photo = el("div", { class: "photo" }, this.image, this.canvas);
    this.room.disconnect();
    this.room.observe(this.photo);
    this.chooser = el("div", { class: "slots", role: "radiogroup", "aria-label": "Where each slot looks" });
    this.reasons = el("section", { class: "reasons", "aria-label": "Why this picture", tabindex: "0" }, el("p", { class: "wait" }, "Loading …"));
    const strip = duplicates.length
      ? el("div", { class: "same-strip", "aria-label": "Almost the same" },
          ...duplicates.map((same) => el("img", { src: api.thumbnail(same, 120), alt: same.name, title: `${same.name} · ${words.facts(same)}` })))
      : null;
    const step = (path, label, act) =>
      el("button", { type: "button", class: "quiet icon wide", "aria-label": label, disabled: act === null, onclick: () => act?.() }, icon(path));
    this.before = before;
    this.next = next;
    this.dialog.replaceChildren(
      el("header", {},
        el("div", { class: "title" }, this.heading, el("p", { class: "facts" }, line)),
        step(LEFT, "Previous picture", before), step(RIGHT, "Next picture", next),
        el("button", { type: "button", class: "solid", id: "similar", onclick: () => this.actions.similar(item.key) }, "Similar"),
        el("button", { type: "button", class: "quiet icon", "aria-label": "Close", onclick: () => this.actions.close() }, icon(CROSS))),
      el("div", { class: "body" }, el("figure", { class: "stage" }, this.photo, this.chooser, strip), this.reasons),
    );
  }

  fill() {
    const { slots, parts } = this.answer;
    const context = {
      image: this.image, slots, queryImage: this.queryImage,
      choose: (slot) => this.choose(this.slot === slot ? null : slot),
      only: (side, slot) => this.actions.only(side === "item"
        ? { like: this.shown.key, slot }
        : { ...this.queryOf(parts[this.part]), slot }),
    };
    const bar = parts.length > 1
      ? el("div", { class: "partsbar", role: "group", "aria-label": "Parts of the query" },
          ...parts.map((part, place) =>
            el("button", { type: "button", "aria-pressed": String(place === this.part), onclick: () => { this.part = place; this.fill(); } },
              `${part.weight < 0 ? "− " : "+ "}${part.label}`)))
      : null;
    const body = parts.length ? explained(parts[this.part], context) : slotsAlone(context);
    this.reasons.replaceChildren(...[bar, ...body].filter(Boolean));
    this.chooser.replaceChildren(
      this.choice(null, "All"),
      ...slots.attention.map((_, slot) => this.choice(slot, `Slot ${slot + 1}`)),
      this.choice(-1, "Picture"),
    );
    this.choose(this.slot);
  }

  /** The query again, as the address says it, for one of its parts. */
  queryOf(part) {
    const { q, like, upload } = this.state;
    return like ? { like } : upload ? { upload } : { q: this.answer.parts.length > 1 ? part.label : q };
  }

  choice(slot, name) {
    const some = slot !== null && slot >= 0;
    return el("button", {
      type: "button", role: "radio", "data-slot": slot === null ? "all" : slot, "--slot": some ? colour(slot) : null,
      onclick: () => this.choose(slot),
    }, some ? el("span", { class: "dot", "aria-hidden": "true" }) : null, name);
  }

  choose(slot) {
    this.slot = slot;
    for (const button of this.chooser.children) {
      const own = button.dataset.slot === (slot === null ? "all" : String(slot));
      button.setAttribute("aria-checked", String(own));
      button.tabIndex = own ? 0 : -1;
    }
    for (const row of this.reasons.querySelectorAll(".pair")) row.classList.toggle("chosen", row.dataset.slot === String(slot));
    this.paint();
  }

  paint() {
    this.canvas.style.opacity = this.answer && this.slot !== -1 ? "1" : "0";
    if (this.answer && this.slot !== -1 && this.canvas.width) overlay(this.canvas, this.answer.slots, this.slot);
  }

  /** The picture as large as there is room, and the overlay exactly over it. */
  fit() {
    if (!this.shown || !this.photo) return;
    const ratio = this.image.naturalWidth
      ? this.image.naturalWidth / this.image.naturalHeight
      : (this.shown.width || 1) / (this.shown.height || 1);
    this.photo.style.setProperty("--ratio", ratio.toFixed(4));
    const { clientWidth: width, clientHeight: height } = this.photo;
    const wide = Math.min(width, height * ratio);
    const place = { left: (width - wide) / 2, top: (height - wide / ratio) / 2, width: wide, height: wide / ratio };
    for (const part of [this.image, this.canvas])
      for (const [side, value] of Object.entries(place)) part.style[side] = `${value}px`;
    this.canvas.width = Math.round(place.width);
    this.canvas.height = Math.round(place.height);
    this.paint();
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const chooser = this.chooser.contains(event.target);
    if (chooser && event.key.startsWith("Arrow")) {
      const buttons = [...this.chooser.children];
      const by = event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : -1;
      const next = buttons[(buttons.indexOf(event.target) + by + buttons.length) % buttons.length];
      next.click();
      next.focus();
      event.preventDefault();
    } else if (event.key === "ArrowLeft") this.before?.();
    else if (event.key === "ArrowRight") this.next?.();
    else if (event.key === "s") this.actions.similar(this.shown.key);
    else if (/^[0-9]$/.test(event.key) && this.answer) {
      const slot = Number(event.key) - 1;
      if (slot < this.answer.slots.attention.length) this.choose(slot < 0 ? null : slot);
    }
  }
}
