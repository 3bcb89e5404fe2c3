// Suggestions while typing: recent and saved searches, albums, cameras, places, words of file names, and words of the
// captions that the model learned from. What was searched for is kept in this browser alone.

import { albums } from "./api.js";
import { el } from "./dom.js";

const MOST = 6;
const KEPT = 30;
const OF_WORDS = 3;
const STORE = "maxmatch.recent";

/** What was searched for before, the latest first. */
export function recent() {
  try {
    const kept = JSON.parse(localStorage.getItem(STORE) ?? "[]");
    return Array.isArray(kept) ? kept.filter((text) => typeof text === "string") : [];
  } catch {
    return []; // a browser that keeps nothing
  }
}

export function remember(text) {
  const wanted = text.trim();
  if (!wanted) return;
  try {
    localStorage.setItem(STORE, JSON.stringify([wanted, ...recent().filter((other) => other !== wanted)].slice(0, KEPT)));
  } catch {
    return;
  }
}

/** At most six suggestions for what is typed: { kind, text, query }. */
export function offers(typed, { words = [], cameras = [], places = [], vocabulary = [] }, saved = { albums: [], searches: [] }, before = []) {
  const start = typed.trim().toLowerCase();
  if (!start) return [];
  const begins = (name) => {
    const low = name.toLowerCase();
    return low !== start && (low.startsWith(start) || low.includes(` ${start}`));
  };
  const found = [
    ...before.filter(begins).map((q) => ({ kind: "recent", text: q, query: { q } })),
    ...saved.searches.filter((one) => !one.missing && begins(one.name)).map((one) => ({ kind: "saved search", text: one.name, query: one.query, whole: true })),
    ...saved.albums.filter((one) => begins(one.name)).map((one) => ({ kind: "album", text: one.name, query: { album: one.key }, whole: true })),
    ...places.filter(begins).slice(0, OF_WORDS).map((place) => ({ kind: "place", text: place, query: { place }, whole: true })),
    ...cameras.filter(begins).slice(0, OF_WORDS).map((camera) => ({ kind: "camera", text: camera, query: { camera }, whole: true })),
  ].slice(0, MOST);
  const last = /[\p{L}\p{N}]{2,}$/u.exec(typed)?.[0] ?? "";
  const rest = typed.slice(0, typed.length - last.length);
  const known = new Set([typed.toLowerCase(), ...found.map(({ text }) => text.toLowerCase())]);
  for (const [kind, list] of [["in names", words], ["word", vocabulary]]) {
    const ended = last ? list.filter((word) => word.startsWith(last.toLowerCase()) && !known.has((rest + word).toLowerCase())) : [];
    for (const word of ended.slice(0, OF_WORDS)) {
      known.add((rest + word).toLowerCase());
      found.push({ kind, text: rest + word, query: { q: rest + word } });
    }
  }
  return found.slice(0, MOST);
}

/** A list below the search box, as of a combobox: arrows choose, Enter takes, Escape closes. */
export class Suggestions {
  /** choose(query, whole): search for it; whole: in place of everything. */
  constructor(input, list, choose) {
    Object.assign(this, { input, list, choose, known: {}, saved: undefined, shown: [], active: -1, typing: false });
    input.addEventListener("focus", () => this.ask());
    input.addEventListener("input", () => {
      this.typing = true;
      this.show();
    });
    input.addEventListener("blur", () => this.close());
    list.addEventListener("mousedown", (event) => event.preventDefault()); // the box keeps the focus
  }

  /** Albums and saved searches may have changed since. */
  ask() {
    albums().then((saved) => this.know({ saved }), () => null);
  }

  /** known: what there is in the gallery; saved: albums and searches. Who types faster than they arrive sees them then. */
  know(more) {
    Object.assign(this, more);
    if (this.typing && this.active < 0) this.show();
  }

  show() {
    this.shown = offers(this.input.value, this.known, this.saved, recent());
    this.list.replaceChildren(...this.shown.map(({ kind, text }, place) =>
      el("li", { role: "option", id: `suggestion-${place}`, "aria-selected": "false", onclick: () => this.take(place) }, el("span", {}, text), el("small", {}, kind))));
    this.list.hidden = !this.shown.length;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    this.activate(-1);
  }

  close() {
    this.typing = false;
    this.shown = [];
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.activate(-1);
  }

  activate(place) {
    this.active = place;
    [...this.list.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === place)));
    if (place < 0) this.input.removeAttribute("aria-activedescendant");
    else this.input.setAttribute("aria-activedescendant", `suggestion-${place}`);
  }

  take(place) {
    const { query, whole } = this.shown[place];
    this.close();
    this.choose(query, Boolean(whole));
  }

  /** Whether a key was meant for the list. After its last entry, the arrow leads on to the pictures. */
  pressed(key) {
    if (!this.shown.length) return false;
    if (key === "ArrowDown" && this.active + 1 < this.shown.length) this.activate(this.active + 1);
    else if (key === "ArrowUp" && this.active >= 0) this.activate(this.active - 1);
    else if (key === "Enter" && this.active >= 0) this.take(this.active);
    else if (key === "Escape") this.close();
    else return false;
    return true;
  }
}
