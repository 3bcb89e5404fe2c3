// The grid of pictures: lays out, moves with the arrow keys, and keeps its place. Of a long list only what is near the
// screen is on the page.

import { el } from "./dom.js";
import { thumbnail } from "./api.js";
import { firstBelow, justified, neighbour, nothing, ratioOf } from "./layout.js";
import * as words from "./words.js";

const LINE = 27;
const HEAD = 46;
const AROUND = 900;

export class Grid {
  /** open(hit): a picture was chosen. address(hit): where its view is. mark(hit): what a tile has beside its link. */
  constructor(list, { open, address, leave, mark }) {
    Object.assign(this, { list, open, address, leave, mark, hits: [], ratios: [], tiles: new Map(), heads: new Map(), laid: nothing() });
    Object.assign(this, { last: true, active: 0, width: 0, total: 0, titles: null });
    new ResizeObserver(() => this.resized()).observe(list);
    list.addEventListener("keydown", (event) => this.pressed(event));
    list.addEventListener("focusin", (event) => {
      const place = Number(event.target.closest("li.tile")?.dataset.place ?? -1);
      if (place >= 0) this.activate(place);
    });
    let waiting = false;
    const seen = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        this.render();
      });
    };
    addEventListener("scroll", seen, { passive: true });
    addEventListener("resize", seen);
  }

  get boxes() {
    return this.laid.boxes;
  }

  /**
   * titles(hit): the heading that a picture belongs under, or null without headings. total: how many there are in all.
   * keep: the keyboard stays at the picture where it is.
   */
  show(hits, last, { titles = null, total = -1, keep = false } = {}) {
    const had = this.list.contains(document.activeElement);
    const key = keep ? this.hits[this.active]?.item.key : null;
    const place = key ? hits.findIndex((hit) => hit.item.key === key) : 0;
    const active = place >= 0 ? place : Math.max(0, Math.min(this.active, hits.length - 1)); // or at the one after it, if it is gone
    Object.assign(this, { hits: [], ratios: [], titles, total, active });
    this.clear();
    this.append(hits, last);
    if (had) this.focus(active);
  }

  append(hits, last) {
    this.hits.push(...hits);
    this.ratios.push(...hits.map((hit) => ratioOf(hit.item)));
    this.last = last;
    this.place();
  }

  clear() {
    this.laid = nothing();
    this.tiles.clear();
    this.heads.clear();
    this.list.replaceChildren();
  }

  /** Give places to pictures that have none; those of a row that is not full yet wait for more. */
  place() {
    this.width = this.list.clientWidth;
    const narrow = this.width < 640;
    const title = (place) => this.titles?.(this.hits[place]) ?? null;
    justified(this.laid, this.ratios, this.width, {
      target: narrow ? 130 : this.width < 1300 ? 190 : 220, gap: narrow ? 8 : 14, line: LINE, head: HEAD, last: this.last,
      starts: (place) => title(place) !== null && (place === 0 || title(place) !== title(place - 1)),
    });
    this.list.style.height = `${this.laid.height}px`;
    this.render();
  }

  /** Put on the page what is near the screen, and the picture that the keyboard is at; take away the rest. */
  render() {
    const top = -this.list.getBoundingClientRect().top - AROUND;
    const bottom = top + innerHeight + 2 * AROUND;
    const wanted = [];
    for (let place = firstBelow(this.boxes, top); place < this.boxes.length && this.boxes[place].top < bottom; place++) wanted.push(place);
    if (this.active < this.boxes.length && (this.active < wanted[0] || !(this.active <= wanted.at(-1)))) wanted.push(this.active);
    wanted.sort((a, b) => a - b);
    this.keep(this.tiles, new Set(wanted));
    let next = null;
    for (const place of wanted.reverse()) {
      let tile = this.tiles.get(place);
      if (!tile) {
        tile = this.tile(this.hits[place], place);
        this.tiles.set(place, tile);
        this.list.insertBefore(tile, next);
      }
      next = tile;
    }
    const heads = this.laid.heads.filter((head) => head.top > top - HEAD && head.top < bottom);
    this.keep(this.heads, new Set(heads.map((head) => head.place)));
    for (const { place, top: at } of heads) {
      if (this.heads.has(place)) continue;
      const head = el("li", { class: "month" }, el("h2", {}, this.titles(this.hits[place])));
      head.style.top = `${at}px`;
      this.heads.set(place, head);
      this.list.insertBefore(head, this.tiles.get(place) ?? null);
    }
  }

  keep(nodes, wanted) {
    for (const [place, node] of nodes) {
      if (wanted.has(place)) continue;
      node.remove();
      nodes.delete(place);
    }
  }

  tile(hit, place) {
    const { item } = hit;
    const image = el("img", { alt: "", decoding: "async", draggable: "false" });
    image.addEventListener("load", () => image.classList.add("there"));
    image.addEventListener("error", () => (image.dataset.failed = "1"));
    const more = hit.duplicates.length;
    const label = [
      item.name, item.folder, words.date(item.date),
      hit.score === null ? "" : `score ${words.score(hit.score)}`,
      hit.name_match ? "found by its name" : "",
      more ? `and ${words.pictures(more)} almost the same` : "",
    ].filter(Boolean).join(", ");
    const link = el(
      "a",
      {
        href: this.address(hit), "aria-label": label, tabindex: place === this.active ? "0" : "-1", title: words.facts(item),
        onclick: (event) => {
          if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
          event.preventDefault();
          this.open(hit);
        },
      },
      el("span", { class: "frame" }, image),
      el("span", { class: "line" },
        el("span", { class: "name" }, item.name),
        hit.name_match ? el("span", { class: "named", title: "Its name has all words of the query" }, "name") : null,
        el("span", { class: "score" }, words.score(hit.score))),
      more ? el("span", { class: "same" }, `+${more}`) : null,
    );
    const tile = el("li", { class: "tile", "data-key": item.key, "data-place": place, "aria-posinset": place + 1, "aria-setsize": this.total }, link, this.mark(hit));
    const box = this.boxes[place];
    for (const side of ["left", "top", "width", "height"]) tile.style[side] = `${box[side]}px`;
    image.src = image.dataset.address = thumbnail(item, Math.max(box.width, box.height - LINE));
    return tile;
  }

  resized() {
    if (this.list.clientWidth === this.width || !this.hits.length) return;
    const first = this.firstVisible();
    const before = this.boxes[first]?.top ?? 0;
    const focused = this.list.contains(document.activeElement);
    this.clear();
    this.place();
    window.scrollBy(0, (this.boxes[first]?.top ?? 0) - before);
    this.render();
    if (focused) this.tiles.get(this.active)?.firstChild.focus({ preventScroll: true });
  }

  firstVisible() {
    const top = -this.list.getBoundingClientRect().top;
    return top <= 0 ? 0 : Math.min(firstBelow(this.boxes, top), Math.max(0, this.boxes.length - 1));
  }

  /** Load again what could not be loaded while the server was away. */
  retry() {
    for (const image of this.list.querySelectorAll("img[data-failed]")) {
      delete image.dataset.failed;
      image.src = image.dataset.address;
    }
  }

  activate(place) {
    this.tiles.get(this.active)?.firstChild.setAttribute("tabindex", "-1");
    this.active = place;
    this.tiles.get(place)?.firstChild.setAttribute("tabindex", "0");
  }

  focus(place) {
    if (!this.boxes.length) return false;
    const chosen = Math.min(place, this.boxes.length - 1);
    this.activate(chosen);
    this.render(); // which has it on the page
    const tile = this.tiles.get(chosen);
    tile.firstChild.focus({ preventScroll: true });
    tile.scrollIntoView({ block: "nearest" });
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
