// Albums and saved searches, in a dialog; the choice of an album to put pictures into; and what could not be read.

import * as api from "./api.js";
import { el, icon } from "./dom.js";
import { toast } from "./toast.js";
import { pictures } from "./words.js";

const MOST = 1000; // pictures that the server puts into an album at once
const CROSS = "M5 5l10 10M15 5 5 15";

export class Shelf {
  /** go(query): show an album, or search again. suggestion(): { name, search } of what is searched for now, or null. changed(): an album was. */
  constructor(dialog, { go, suggestion, changed, failed }) {
    Object.assign(this, { dialog, go, suggestion, changed, failed, names: new Map() });
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  }

  async open() {
    const known = await this.ask(() => api.albums());
    if (known) this.list(known);
  }

  /** Ask the server; null if it refused, which is then said. */
  async ask(request) {
    try {
      return await request();
    } catch (error) {
      if (error instanceof api.Refused && this.dialog.open) toast(error.message);
      else this.failed(error);
      return null;
    }
  }

  /** The name of an album, for the chip that stands for it. */
  async nameOf(key) {
    if (!this.names.has(key)) (await api.albums()).albums.forEach((album) => this.names.set(album.key, album.name));
    return this.names.get(key) ?? "Album";
  }

  fill(title, ...children) {
    this.dialog.replaceChildren(
      el("div", { class: "top" }, el("h2", { id: "shelf-name", tabindex: "-1" }, title),
        el("button", { type: "button", class: "quiet icon", "aria-label": "Close", onclick: () => this.dialog.close() }, icon(CROSS))),
      el("div", { class: "content" }, ...children.filter(Boolean)));
    if (!this.dialog.open) this.dialog.showModal();
    this.dialog.querySelector("h2").focus();
  }

  list({ albums, searches }) {
    for (const album of albums) this.names.set(album.key, album.name);
    const now = this.suggestion();
    this.fill("Albums and searches",
      el("h3", {}, "Albums"),
      albums.length
        ? el("ul", { class: "shelf-list" }, ...albums.map((album) => this.albumRow(album)))
        : el("p", {}, "No albums yet. Select pictures, then “Add to album”."),
      el("h3", {}, "Saved searches"),
      searches.length
        ? el("ul", { class: "shelf-list" }, ...searches.map((search) => this.searchRow(search)))
        : el("p", {}, now ? "None yet." : "None yet. Search for something, then come back to save it."),
      now ? this.form("Save this search as", now.name, "Save", async (name) => {
        if (!(await this.ask(() => api.saveSearch(name, now.search)))) return;
        await this.open();
        toast("Saved.");
      }) : null);
  }

  /** What could not be read, why, and what to do. */
  async notRead() {
    const known = await this.ask(() => api.notRead());
    if (!known) return;
    const others = known.count - known.reasons.length;
    this.fill("Not read",
      known.cure ? el("p", {}, known.cure) : null,
      known.reasons.length ? el("ul", { class: "faults" }, ...known.reasons.map((reason) => el("li", {}, reason))) : null,
      others && !known.cure ? el("p", {}, `… and ${others.toLocaleString()} more.`) : null);
  }

  albumRow(album) {
    const missing = album.missing ? `, ${album.missing.toLocaleString()} not in this folder` : "";
    const cover = album.cover ? el("img", { src: api.thumbnail(album.cover, 80), alt: "" }) : el("span", { class: "nothing" });
    return el("li", {},
      el("button", { type: "button", class: "choice", onclick: () => this.chosen({ album: album.key }) },
        cover, el("span", {}, el("strong", {}, album.name), el("small", {}, pictures(album.count) + missing))),
      el("button", { type: "button", class: "link", "aria-label": `Rename ${album.name}`, onclick: () => this.rename(album) }, "Rename"),
      el("button", { type: "button", class: "link", "aria-label": `Delete ${album.name}`, onclick: () => this.confirm(album) }, "Delete"));
  }

  searchRow(search) {
    return el("li", {},
      el("button", { type: "button", class: "choice", disabled: search.missing, onclick: () => this.chosen(search.query) },
        el("span", {}, el("strong", {}, search.name), search.missing ? el("small", {}, "its picture is not in this folder") : null)),
      el("button", {
        type: "button", class: "link", "aria-label": `Delete the search ${search.name}`,
        onclick: async () => (await this.ask(() => api.deleteSearch(search.key))) && this.open(),
      }, "Delete"));
  }

  chosen(query) {
    this.dialog.close();
    this.go(query);
  }

  rename(album) {
    this.fill(`Rename “${album.name}”`, this.form("Name", album.name, "Rename", async (name) => {
      if (!(await this.ask(() => api.renameAlbum(album.key, name)))) return;
      this.names.set(album.key, name);
      this.changed(album.key);
      await this.open();
    }));
    this.dialog.querySelector("input").select();
  }

  confirm(album) {
    this.fill(`Delete the album “${album.name}”?`,
      el("p", {}, "Its pictures stay where they are."),
      el("p", { class: "answers" },
        el("button", {
          type: "button", class: "solid", onclick: async () => {
            if (!(await this.ask(() => api.deleteAlbum(album.key)))) return;
            this.changed(album.key, { deleted: true });
            await this.open();
          },
        }, "Delete the album"),
        el("button", { type: "button", class: "quiet", onclick: () => this.open() }, "Keep it")));
  }

  /** Choose an album for pictures, or make one. done(): they are in it. */
  async choose(items, done) {
    if (items.length > MOST) return toast(`At most ${pictures(MOST)} can be added at once. Select fewer.`);
    const known = await this.ask(() => api.albums());
    if (!known) return;
    const keys = items.map((item) => item.key);
    const put = async (request) => {
      const album = await this.ask(request);
      if (!album) return;
      this.names.set(album.key, album.name);
      this.dialog.close();
      this.changed(album.key);
      toast(`${pictures(items.length)} added to “${album.name}”.`);
      done();
    };
    this.fill(`Add ${pictures(items.length)} to`,
      known.albums.length
        ? el("ul", { class: "shelf-list" }, ...known.albums.map((album) =>
            el("li", {}, el("button", { type: "button", class: "choice", onclick: () => put(() => api.changeAlbum(album.key, { add: keys })) },
              album.cover ? el("img", { src: api.thumbnail(album.cover, 80), alt: "" }) : el("span", { class: "nothing" }),
              el("span", {}, el("strong", {}, album.name), el("small", {}, pictures(album.count)))))))
        : null,
      this.form("A new album", "", "Create", (name) => put(() => api.createAlbum(name, keys))));
    if (!known.albums.length) this.dialog.querySelector("input").focus();
  }

  form(label, value, press, act) {
    const input = el("input", { type: "text", maxlength: "200", required: true, value, "aria-label": label, placeholder: label });
    let waits = false; // for the answer: Enter pressed twice asks once
    return el("form", {
      class: "naming", onsubmit: (event) => {
        event.preventDefault();
        if (waits || !input.value.trim()) return;
        waits = true;
        act(input.value.trim()).finally(() => (waits = false));
      },
    }, input, el("button", { type: "submit", class: "solid" }, press));
  }
}
