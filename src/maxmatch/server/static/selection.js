// Several pictures at once: marked one by one, as a range, or by keyboard; then copied, downloaded, put into an album.

import * as api from "./api.js";
import { el, icon } from "./dom.js";
import { copy, toast } from "./toast.js";
import { pictures } from "./words.js";

const MOST_ZIPPED = 500; // that the server puts into one file
const TICK = "m4.5 10.5 4 4 7-8";

export class Selection {
  /** bar: where its actions are. album(items): choose an album for them. remove(items): take them out of the album, or null. */
  constructor(bar, { album, removable, failed }) {
    Object.assign(this, { bar, album, removable, failed, items: new Map(), anchor: 0 });
    this.count = el("p", { class: "count", "aria-live": "polite" });
    this.acts = el("div", { class: "do" });
    bar.replaceChildren(this.count, this.acts);
  }

  /** Listen to the grid: before it, so that a click that selects opens nothing. */
  watch(grid) {
    this.grid = grid;
    grid.list.addEventListener("click", (event) => this.clicked(event), true);
    grid.list.addEventListener("keydown", (event) => this.pressed(event));
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.items.size && this.bar.contains(event.target)) this.clear();
    });
  }

  has = (key) => this.items.has(key);

  /** The mark on a tile. */
  mark(hit) {
    const { item } = hit;
    return el("button", {
      type: "button", class: "tick", role: "checkbox", tabindex: "-1", "aria-checked": String(this.has(item.key)), "aria-label": `Select ${item.name}`,
    }, icon(TICK));
  }

  place = (element) => {
    const key = element.closest("li")?.dataset.key;
    return key ? this.grid.hits.findIndex((hit) => hit.item.key === key) : -1;
  };

  clicked(event) {
    const place = this.place(event.target);
    const mark = event.target.closest(".tick");
    if (place < 0 || !(mark || event.shiftKey || (this.items.size && !event.ctrlKey && !event.metaKey))) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.shiftKey) this.range(place);
    else this.toggle(this.grid.hits[place].item, place);
  }

  pressed(event) {
    const place = this.place(event.target);
    if (place < 0) return;
    const letter = event.key.toLowerCase();
    if ((event.ctrlKey || event.metaKey) && letter === "a") {
      this.grid.hits.forEach((hit) => this.items.set(hit.item.key, hit.item));
      this.show();
    } else if (event.ctrlKey || event.metaKey || event.altKey) return;
    else if (event.shiftKey && event.key.startsWith("Arrow")) {
      if (!this.items.size) this.anchor = place;
      this.range(this.grid.active);
    } else if (event.key === " " || letter === "x") this.toggle(this.grid.hits[place].item, place);
    else return;
    event.preventDefault();
  }

  toggle(item, place = null) {
    if (!this.items.delete(item.key)) this.items.set(item.key, item);
    if (place !== null) this.anchor = place;
    this.show();
  }

  /** All from the last one that was marked to this one. */
  range(place) {
    const [from, to] = [Math.min(this.anchor, place), Math.max(this.anchor, place)];
    for (const hit of this.grid.hits.slice(from, to + 1)) this.items.set(hit.item.key, hit.item);
    this.show();
  }

  clear() {
    const inside = this.bar.contains(document.activeElement);
    this.items.clear();
    this.show();
    if (inside) this.grid.focus(this.grid.active);
  }

  show() {
    const { size } = this.items;
    for (const mark of this.grid.list.querySelectorAll(".tick")) mark.setAttribute("aria-checked", String(this.has(mark.closest("li").dataset.key)));
    this.grid.list.classList.toggle("selecting", size > 0);
    this.bar.hidden = size === 0;
    if (!size) return;
    const chosen = () => [...this.items.values()];
    const take = this.removable();
    const had = this.bar.contains(document.activeElement) ? document.activeElement.dataset.do : null;
    const act = (name, label, press, kind = "quiet") => el("button", { type: "button", class: kind, "data-do": name, onclick: press }, label);
    this.count.textContent = `${pictures(size)} selected`;
    this.acts.replaceChildren(...[
      act("album", "Add to album …", () => this.album(chosen()), "solid"),
      take ? act("remove", "Remove from album", () => take(chosen())) : null,
      act("zip", "Download", () => this.download(chosen())),
      act("paths", size === 1 ? "Copy path" : "Copy paths", () => copy(chosen().map((item) => item.path ?? item.id).join("\n"), `${size === 1 ? "Path" : `${size} paths`} copied.`)),
      act("clear", "Clear", () => this.clear()),
    ].filter(Boolean));
    if (had) this.bar.querySelector(`[data-do="${had}"]`)?.focus();
  }

  async download(items) {
    if (items.length > MOST_ZIPPED) return toast(`One download has at most ${pictures(MOST_ZIPPED)}. Select fewer.`);
    try {
      const one = items.length === 1;
      const href = one ? api.download(items[0].key) : api.zip((await api.prepareZip(items.map((item) => item.key))).key);
      const link = el("a", { href, download: one ? items[0].name : "photos.zip", hidden: true });
      document.body.append(link);
      link.click();
      link.remove();
      toast(one ? "Downloading …" : `Downloading ${pictures(items.length)} as one zip file …`);
    } catch (error) {
      this.failed(error);
    }
  }
}
