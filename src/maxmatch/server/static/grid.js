// The grid of pictures: lays out, loads when seen, moves with the arrow keys, and keeps its place.

import { el } from "./dom.js";
import { thumbnail } from "./api.js";
import { justified, neighbour, ratioOf } from "./layout.js";
import * as words from "./words.js";

const LINE = 27;

export class Grid {
  /** open(hit): a picture was chosen. address(hit): where its view is. mark(hit): what a tile has beside its link. */
  constructor(list, { open, address, leave, mark }) {
    Object.assign(this, { list, open, address, leave, mark, hits: [], tiles: [], boxes: [], last: true, active: 0 });
    this.width = 0;
    new ResizeObserver(() => this.resized()).observe(list);
    list.addEventListener("keydown", (event) => this.pressed(event));
    list.addEventListener("focusin", (event) => {
      const place = this.tiles.indexOf(event.target.closest("li"));
      if (place >= 0) this.activate(place);
    });
  }

  show(hits, last) {
    const had = this.list.contains(document.activeElement);
    this.hits = [];
    this.tiles = [];
    this.list.replaceChildren();
    this.active = 0;
    this.append(hits, last);
    if (had) this.focus(0);
  }

  append(hits, last) {
    const start = this.hits.length;
    this.hits.push(...hits);
    this.last = last;
    const tiles = hits.map((hit, place) => this.tile(hit, start + place));
    this.tiles.push(...tiles);
    this.place();
    this.list.append(...tiles);
  }

  tile(hit, place) {
    const { item } = hit;
    const image = el("img", { alt: "", loading: "lazy", decoding: "async", draggable: "false" });
    image.addEventListener("load", () => image.classList.add("there"));
    image.addEventListener("error", () => (image.dataset.failed = "1"));
    const more = hit.duplicates.length;
    const label = [
      item.name, item.folder, words.date(item.date),
      hit.score === null ? "" : `score ${words.score(hit.score)}`,
      more ? `and ${words.pictures(more)} almost the same` : "",
    ].filter(Boolean).join(", ");
    const link = el(
      "a",
      {
        href: this.address(hit), "aria-label": label, tabindex: place === 0 ? "0" : "-1", title: words.facts(item),
        onclick: (event) => {
          if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
          event.preventDefault();
          this.open(hit);
        },
      },
      el("span", { class: "frame" }, image),
      el("span", { class: "line" }, el("span", { class: "name" }, item.name), el("span", { class: "score" }, words.score(hit.score))),
      more ? el("span", { class: "same" }, `+${more}`) : null,
    );
    return el("li", { class: "tile", "data-key": item.key }, link, this.mark(hit));
  }

  /** Give every tile its place; those of a row that is not full yet wait for more. */
  place() {
    this.width = this.list.clientWidth;
    const narrow = this.width < 640;
    const target = narrow ? 130 : this.width < 1300 ? 190 : 220;
    const laid = justified(this.hits.map((hit) => ratioOf(hit.item)), this.width, {
      target, gap: narrow ? 8 : 14, line: LINE, last: this.last,
    });
    this.boxes = laid.boxes;
    this.list.style.height = `${laid.height}px`;
    this.tiles.forEach((tile, place) => {
      const box = laid.boxes[place];
      tile.hidden = !box;
      if (!box) return;
      for (const side of ["left", "top", "width", "height"]) tile.style[side] = `${box[side]}px`;
      const image = tile.querySelector("img");
      const address = thumbnail(this.hits[place].item, Math.max(box.width, box.height - LINE));
      if (image.dataset.address !== address) image.src = image.dataset.address = address;
    });
  }

  resized() {
    if (this.list.clientWidth === this.width || !this.hits.length) return;
    const first = this.firstVisible();
    const before = this.boxes[first]?.top ?? 0;
    this.place();
    window.scrollBy(0, (this.boxes[first]?.top ?? 0) - before);
  }

  firstVisible() {
    const top = -this.list.getBoundingClientRect().top;
    if (top <= 0) return 0;
    return Math.max(0, this.boxes.findIndex((box) => box.top + box.height > top));
  }

  /** Load again what could not be loaded while the server was away. */
  retry() {
    for (const image of this.list.querySelectorAll("img[data-failed]")) {
      delete image.dataset.failed;
      image.src = image.dataset.address;
    }
  }

  activate(place) {
    this.tiles[this.active]?.firstChild.setAttribute("tabindex", "-1");
    this.active = place;
    this.tiles[place]?.firstChild.setAttribute("tabindex", "0");
  }

  focus(place) {
    if (!this.boxes.length) return false;
    const chosen = Math.min(place, this.boxes.length - 1);
    this.activate(chosen);
    this.tiles[chosen].firstChild.focus({ preventScroll: true });
    this.tiles[chosen].scrollIntoView({ block: "nearest" });
    return true;
  }

  focusKey(key) {
    const place = this.hits.findIndex((hit) => hit.item.key === key);
    return place >= 0 && this.focus(place);
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const from = this.active;
    let to = null;
    if (event.key.startsWith("Arrow")) to = neighbour(this.boxes, from, event.key);
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = this.boxes.length - 1;
    else if (event.key === "Escape") return this.leave();
    else return;
    event.preventDefault();
    if (event.key === "ArrowUp" && to === from) this.leave();
    else this.focus(to);
  }
}
