// Looking through pictures without a query: by time (years, months) and by folder.

import { thumbnail, timeline } from "./api.js";
import { el } from "./dom.js";
import { isSearch } from "./state.js";
import { monthName, number, pictures } from "./words.js";

const COVER = 72;
const lastDay = (month) => new Date(Date.UTC(Number(month.slice(0, 4)), Number(month.slice(5)), 0)).toISOString().slice(0, 10);

export class Browse {
  /** place: where it is shown. change(update): with a function from the state to the next one. */
  constructor(place, change, failed) {
    Object.assign(this, { place, change, failed, folders: [], months: [], of: null, state: null });
  }

  /** What there is in the gallery. */
  offer(gallery) {
    this.folders = gallery.folders;
    this.of = null;
    if (this.state) this.show(this.state);
  }

  async show(state) {
    this.state = state;
    this.place.hidden = isSearch(state) || Boolean(state.album);
    if (this.place.hidden) return;
    this.draw();
    const of = [state.folder, state.orientation, state.camera, state.place].join("\n");
    if (this.of === of) return;
    this.of = of;
    try {
      const { months } = await timeline(state);
      if (this.of !== of) return;
      this.months = months.filter(({ month }) => month);
      this.draw();
    } catch (error) {
      this.of = null;
      this.failed(error);
    }
  }

  draw() {
    const made = [this.times(), this.subfolders()].filter(Boolean);
    // What has not changed stays: a click that is under way would be lost with its button.
    if (made.map((part) => part.outerHTML).join("") === this.place.innerHTML) return;
    const had = this.place.contains(document.activeElement) ? document.activeElement.dataset.to : null;
    this.place.replaceChildren(...made);
    if (had) [...this.place.querySelectorAll("[data-to]")].find((one) => one.dataset.to === had)?.focus();
  }

  /** Years, and the months of the one that is shown. */
  times() {
    const counts = new Map();
    for (const { month, count } of this.months) counts.set(month.slice(0, 4), (counts.get(month.slice(0, 4)) ?? 0) + count);
    if (this.months.length < 2) return null;
    const { from, to } = this.state;
    const year = from && from.slice(0, 4) === to.slice(0, 4) ? from.slice(0, 4) : counts.size === 1 ? [...counts.keys()][0] : "";
    const period = (label, title, count, start, end) => {
      const on = start === from && end === to;
      const next = on ? ["", ""] : [start, end];
      return el("li", {}, el("button", {
        type: "button", class: "period", "aria-pressed": String(on), "data-to": start + end, title: `${title}: ${pictures(count)}`,
        onclick: () => this.change((state) => ({ ...state, from: next[0], to: next[1] })),
      }, label));
    };
    const years = [...counts].map(([of, count]) => period(of, of, count, `${of}-01-01`, `${of}-12-31`));
    const months = this.months.filter(({ month }) => year && month.startsWith(year))
      .map(({ month, count }) => period(`${monthName(month, "short")} ${number(count)}`, monthName(month), count, `${month}-01`, lastDay(month)));
    return el("section", { "aria-label": "By time" },
      counts.size > 1 ? el("ul", { class: "periods" }, ...years) : null,
      months.length ? el("ul", { class: "periods", "aria-label": `Months of ${year}` }, ...months) : null);
  }

  /** The way to the folder that is shown, and the folders in it. */
  subfolders() {
    const here = this.state.folder;
    const depth = here ? here.split("/").length : 0;
    const inside = this.folders.filter(({ folder }) => folder.split("/").length === depth + 1 && (!here || folder.startsWith(`${here}/`)));
    if (!here && inside.length < 1) return null;
    const go = (folder) => () => this.change((state) => ({ ...state, folder }));
    const names = here ? here.split("/") : [];
    const way = names.map((name, at) => el("li", {},
      at === names.length - 1 ? el("span", { "aria-current": "page" }, name)
        : el("button", { type: "button", class: "link", "data-to": names.slice(0, at + 1).join("/"), onclick: go(names.slice(0, at + 1).join("/")) }, name)));
    const cards = inside.map(({ folder, count, cover }) => el("li", {},
      el("button", { type: "button", class: "card", "data-to": folder, onclick: go(folder), "aria-label": `${folder.split("/").at(-1)}, ${pictures(count)}` },
        el("img", { src: thumbnail(cover, COVER), alt: "", loading: "lazy", width: COVER, height: COVER }),
        el("span", { class: "of" }, el("b", {}, folder.split("/").at(-1)), el("small", {}, number(count))))));
    return el("section", { "aria-label": "By folder" },
      here ? el("ol", { class: "way" }, el("li", {}, el("button", { type: "button", class: "link", "data-to": "all folders", onclick: go("") }, "All folders")), ...way) : null,
      cards.length ? el("ul", { class: "cards" }, ...cards) : null);
  }
}
