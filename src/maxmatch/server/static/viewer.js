// One picture, large, with what is known of it and what can be done with it. Why it was found is a tab of its own.

import * as api from "./api.js";
import { el, icon } from "./dom.js";
import { copy, toast } from "./toast.js";
import { Why } from "./why.js";
import * as words from "./words.js";
import { Zoom } from "./zoom.js";

const CROSS = "M5 5l10 10M15 5 5 15";
const LEFT = "M12 4 6 10l6 6";
const RIGHT = "m8 4 6 6-6 6";
const STEP = 1.6;

export class Viewer {
  /**
   * What the page does when asked to: close(), tab(why), similar(key), only(query), album(items), select(item),
   * isSelected(key), gone().
   */
  constructor(dialog, actions) {
    Object.assign(this, { dialog, actions, shown: null, known: null });
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      if (this.zoom.scale > 1 && event.cancelable) this.zoom.reset(); // else it closes whatever is done here
      else actions.close();
    });
    dialog.addEventListener("keydown", (event) => this.pressed(event));
    this.build();
    this.why = new Why({ panel: this.reasons, image: () => this.image, repaint: () => this.paint(), only: actions.only, gone: actions.gone });
    this.zoom = new Zoom(this.photo, this.pane, { swiped: (by) => this.step(by), changed: (scale) => this.zoomed(scale) });
    new ResizeObserver(() => this.fit()).observe(this.photo);
  }

  /** What does not change with the picture. */
  build() {
    const button = (label, path, act, more = "") =>
      el("button", { type: "button", class: `quiet icon ${more}`, "aria-label": label, title: label, onclick: act }, icon(path));
    this.heading = el("h2", { id: "view-name", tabindex: "-1" });
    this.count = el("p", { class: "facts" });
    this.tabs = [["Photo", false], ["Why?", true]].map(([name, why]) =>
      el("button", {
        type: "button", role: "tab", id: why ? "tab-why" : "tab-photo", "aria-controls": why ? "panel-why" : "panel-photo",
        onclick: () => this.actions.tab(why),
      }, name));
    this.before = button("Previous picture", LEFT, () => this.step(-1), "step back");
    this.next = button("Next picture", RIGHT, () => this.step(1), "step on");
    this.pane = el("div", { class: "pane" });
    this.level = el("span", { class: "level", "aria-live": "polite" });
    this.zoomer = el("div", { class: "zoomer", role: "group", "aria-label": "Zoom" },
      button("Zoom out", "M5 10h10", () => this.zoom.by(1 / STEP)), this.level, button("Zoom in", "M5 10h10M10 5v10", () => this.zoom.by(STEP)));
    this.photo = el("div", { class: "photo" }, this.pane);
    this.panel = el("section", { class: "panel", role: "tabpanel", id: "panel-photo", "aria-labelledby": "tab-photo", tabindex: "0" });
    this.reasons = el("section", { class: "panel reasons", role: "tabpanel", id: "panel-why", "aria-labelledby": "tab-why", tabindex: "0" });
    this.dialog.replaceChildren(
      el("div", { class: "top" },
        el("div", { class: "title" }, this.heading, this.count),
        el("div", { class: "tabs", role: "tablist", "aria-label": "What to see", onkeydown: (event) => this.tabKey(event) }, ...this.tabs),
        button("Close", CROSS, () => this.actions.close(), "close")),
      el("div", { class: "body" },
        el("div", { class: "stage" }, this.photo, this.before, this.next, this.zoomer),
        this.panel, this.reasons),
    );
  }

  /** Show a picture of the results. steps: to the previous and the next one, or null. */
  show(item, state, { score = null, duplicates = [], steps = [null, null], place = "" } = {}) {
    const other = this.shown?.key !== item.key;
    Object.assign(this, { shown: item, state, score, steps, duplicates: other ? duplicates : this.duplicates });
    this.dialog.classList.toggle("explains", state.why);
    if (other) this.take(item, duplicates);
    this.count.textContent = place;
    [this.before.disabled, this.next.disabled] = steps.map((act) => act === null);
    this.tabs.forEach((tab, at) => {
      const own = Boolean(at) === state.why;
      tab.setAttribute("aria-selected", String(own));
      tab.tabIndex = own ? 0 : -1;
    });
    this.panel.hidden = state.why;
    this.reasons.hidden = !state.why;
    this.zoom.enabled = !state.why;
    this.zoomer.hidden = state.why;
    this.zoom.reset();
    if (!this.dialog.open) {
      this.dialog.showModal();
      this.heading.focus();
    }
    this.fit();
    if (state.why) this.why.show(item, state, score);
  }

  hide() {
    this.stopped?.abort();
    this.why.stop();
    this.shown = null;
    if (this.dialog.open) this.dialog.close();
  }

  /** Load again what could not be loaded while the server was away. */
  retry() {
    if (!this.shown || (this.known && !this.photo.classList.contains("broken"))) return;
    this.take(this.shown, this.duplicates);
    this.fit();
  }

  take(item, duplicates) {
    this.stopped?.abort();
    this.stopped = new AbortController();
    this.known = null;
    this.why.stop();
    const focused = this.dialog.contains(document.activeElement) && this.panel.contains(document.activeElement);
    this.heading.textContent = item.name;
    this.image = el("img", { alt: item.name, src: api.thumbnail(item, 640), draggable: "false", decoding: "async" });
    this.image.addEventListener("load", () => this.fit());
    this.image.addEventListener("error", () => this.photo.classList.add("broken"));
    this.photo.classList.remove("broken");
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.pane.replaceChildren(this.image, this.canvas);
    this.finest = 0;
    this.describe(item, duplicates);
    this.panel.scrollTop = 0;
    if (focused) this.heading.focus();
    api.details(item.key, this.stopped.signal).then(
      (known) => {
        this.known = known;
        this.describe(item, duplicates);
      },
      (error) => error instanceof api.Gone && this.actions.gone(),
    );
  }

  describe(item, duplicates) {
    const known = this.known;
    const had = this.panel.contains(document.activeElement) ? document.activeElement.dataset.do : null;
    const line = (name, ...values) => {
      const said = values.filter(Boolean);
      return said.length ? el("div", {}, el("dt", {}, name), ...said.map((value) => el("dd", {}, value))) : null;
    };
    const place = known?.latitude == null ? "" : words.position(known.latitude, known.longitude);
    const size = item.width && item.height ? `${words.number(item.width)} × ${words.number(item.height)}` : "";
    const act = (name, label, press, more = {}) => el("button", { type: "button", class: "act", "data-do": name, onclick: press, ...more }, label);
    const link = (name, label, href, more) => el("a", { class: "act", "data-do": name, href, ...more }, label);
    const selected = this.actions.isSelected(item.key);
    this.panel.replaceChildren(...[
      el("dl", {},
        line(item.date_from === "file" ? "File changed" : "Taken", words.moment(item.date)),
        line("Place", known?.place, place),
        line("Camera", known?.camera, known?.lens, known?.settings),
        line("File", item.name, [size, words.bytes(item.bytes)].filter(Boolean).join(" · ")),
        line("Folder", item.folder || words.folderOf(known?.path ?? item.path ?? ""))),
      el("div", { class: "acts", role: "group", "aria-label": "This picture" },
        link("open", "Open original", api.original(item.key), { target: "_blank", rel: "noopener", "aria-keyshortcuts": "o" }),
        link("download", "Download", api.download(item.key), { download: item.name, "aria-keyshortcuts": "d" }),
        act("copy", "Copy path", () => copy(known?.path ?? item.path ?? item.id, "Path copied."), { "aria-keyshortcuts": "c" }),
        known?.can_reveal ? act("reveal", "Show in folder", () => this.reveal(item)) : null,
        act("similar", "Similar pictures", () => this.actions.similar(item.key), { "aria-keyshortcuts": "s" }),
        act("album", "Add to album …", () => this.actions.album([item]), { "aria-keyshortcuts": "a" }),
        act("select", selected ? "Selected" : "Select", () => { this.actions.select(item); this.describe(item, duplicates); },
          { "aria-pressed": String(selected), "aria-keyshortcuts": "x" })),
      duplicates.length ? this.strip(duplicates) : null,
    ].filter(Boolean));
    if (had) this.panel.querySelector(`[data-do="${had}"]`)?.focus();
  }

  strip(duplicates) {
    return el("div", { class: "same-strip", role: "group", "aria-label": "Almost the same" },
      el("h3", {}, "Almost the same"),
      ...duplicates.map((same) =>
        el("button", { type: "button", "aria-label": `Show ${same.name}`, title: words.facts(same), onclick: () => this.actions.view(same.key) },
          el("img", { src: api.thumbnail(same, 120), alt: same.name }))));
  }

  async reveal(item) {
    try {
      await api.reveal(item.key);
      toast("Shown in the file manager.");
    } catch (error) {
      toast(error instanceof api.Refused ? error.message : "The server is not responding.");
    }
  }

  step(by) {
    this.steps[by < 0 ? 0 : 1]?.();
  }

  zoomed(scale) {
    this.level.textContent = scale > 1.01 ? `${Math.round(100 * scale)} %` : "";
    if (scale > 1.01) this.sharpen(scale);
  }

  /** A finer picture where the one that is shown is too coarse: at last the original, if browsers can show it. */
  sharpen(scale = 1) {
    const item = this.shown;
    const longest = Math.max(this.image.clientWidth, this.image.clientHeight) * scale;
    const pixels = longest * Math.min(window.devicePixelRatio || 1, 2);
    const finest = scale > 1.01 && pixels > 2560 && this.known?.shown;
    const size = finest ? 1e9 : pixels > 1280 ? 2560 : 1280;
    if (!item || !longest || size <= this.finest) return;
    this.finest = size;
    const [before, finer] = [this.image, new Image()];
    finer.src = finest ? api.original(item.key) : api.thumbnail(item, size / Math.min(window.devicePixelRatio || 1, 2));
    finer.decode().then(() => this.image === before && this.finest === size && (before.src = finer.src), () => null);
  }

  /** The picture as large as there is room, and the overlay exactly over it. */
  fit() {
    if (!this.shown || !this.image) return;
    const ratio = this.image.naturalWidth
      ? this.image.naturalWidth / this.image.naturalHeight
      : (this.shown.width || 1) / (this.shown.height || 1);
    this.photo.style.setProperty("--ratio", ratio.toFixed(4));
    const { clientWidth: width, clientHeight: height } = this.photo;
    const own = 2 * Math.max(this.shown.width || 0, this.image.naturalWidth, 160);
    const wide = Math.min(width, height * ratio, own);
    const place = { left: (width - wide) / 2, top: (height - wide / ratio) / 2, width: wide, height: wide / ratio };
    for (const part of [this.image, this.canvas])
      for (const [side, value] of Object.entries(place)) part.style[side] = `${value}px`;
    this.canvas.width = Math.round(place.width);
    this.canvas.height = Math.round(place.height);
    this.paint();
    this.sharpen(this.zoom.scale);
  }

  paint() {
    const shown = this.state?.why && this.why.paint(this.canvas);
    this.canvas.style.opacity = shown ? "1" : "0";
  }

  tabKey(event) {
    const to = { ArrowLeft: false, ArrowRight: true, Home: false, End: true }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.actions.tab(to);
    this.tabs[Number(to)].focus();
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    if (this.state.why && this.why.pressed(event)) return;
    const press = (name) => this.panel.querySelector(`[data-do="${name}"]`)?.click();
    const keys = {
      ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1),
      "+": () => this.zoom.by(STEP), "=": () => this.zoom.by(STEP), "-": () => this.zoom.by(1 / STEP), 0: () => this.zoom.reset(),
      w: () => this.actions.tab(!this.state.why),
      o: () => press("open"), d: () => press("download"), c: () => press("copy"), s: () => press("similar"), a: () => press("album"), x: () => press("select"),
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }
}
