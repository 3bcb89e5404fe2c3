// The page: the address is the state; a change of the state is a search.

import * as api from "./api.js";
import { Browse } from "./browse.js";
import { Connection } from "./connection.js";
import { after, el, find } from "./dom.js";
import { Filters } from "./filters.js";
import { Grid } from "./grid.js";
import { watchPictures } from "./picture.js";
import { Selection } from "./selection.js";
import { Shelf } from "./shelf.js";
import { isFiltered, isSearch, newQuery, newWords, read, sameResults, withoutFilters, write } from "./state.js";
import { remember, Suggestions } from "./suggest.js";
import { toast } from "./toast.js";
import { Viewer } from "./viewer.js";
import { count, monthName, number, pictures, unknown } from "./words.js";

const PAGE = 48;
const LONGEST = 200;
const TYPING = 30;
const NEAR = 2400;
const REFRESHED = 1000;

let state = read(location.search);
let shown = null;
let asked = null; // what is shown, or will be when its answer has come
let more = false;
let total = 0;
let asking = null;
let paging = null; // while the next page is asked for
let resume = null; // where to scroll to when what is asked for has come
let uploads = 0;
let stale = false; // pictures came or went since it was asked for
let refusal = false; // the notice is about what was searched for last
let leaving = false;
let typing = false;
const input = find("q");

const selection = new Selection(find("selection"), {
  album: (items) => shelf.choose(items, () => selection.clear()),
  removable: () => (state.album ? (items) => removeFromAlbum(items) : null),
  failed,
});
const grid = new Grid(find("results"), {
  open: (hit) => {
    remember(state.q);
    go({ ...state, view: hit.item.key });
  },
  address: (hit) => write({ ...state, view: hit.item.key }),
  leave: () => (selection.items.size ? selection.clear() : input.focus()),
  mark: (hit) => selection.mark(hit),
});
selection.watch(grid);
const connection = new Connection(find("notice"), () => {
  grid.retry();
  viewer.retry();
  offer();
  search({ keep: true });
  if (state.view) view();
}, noticed);
const browse = new Browse(find("browse"), (change) => go(change(state)), failed);
const filters = new Filters((change) => go(change(state)));
const viewer = new Viewer(find("viewer"), {
  close: () => {
    if (leaving) return;
    leaving = history.state?.opened === true;
    if (leaving) history.back();
    else go({ ...state, view: "", why: false });
  },
  view: (key) => go({ ...state, view: key }, { replace: true }),
  tab: (why) => go({ ...state, why }, { replace: true }),
  similar: (key) => go(newQuery(state, { like: key })),
  only: (query) => go(newQuery(state, query)),
  album: (items) => shelf.choose(items, () => null),
  select: (item) => selection.toggle(item),
  isSelected: selection.has,
  gone: () => connection.lost(),
});
const shelf = new Shelf(find("shelf"), {
  go: (query) => go({ ...read(""), ...query }),
  suggestion,
  changed: (album, { deleted = false } = {}) => {
    if (album !== state.album) return;
    if (deleted) go({ ...state, album: "" });
    else search({ keep: true }).then(chips);
  },
  failed,
});

const suggestions = new Suggestions(input, find("suggestions"), (query, whole) => {
  typed.cancel();
  go(whole ? { ...read(""), ...query } : newWords(state, query.q));
});

/** Another state: a new entry in the history, unless the user is still typing. */
function go(next, { replace = false } = {}) {
  const before = state;
  const opened = Boolean(next.view) && (!before.view || history.state?.opened === true);
  state = next;
  const same = sameResults(before, next);
  const note = { opened, count: same ? grid.hits.length : PAGE, top: same ? scrollY : 0 };
  if (replace) history.replaceState(note, "", write(state));
  else history.pushState(note, "", write(state));
  update();
}

function update({ restore = null } = {}) {
  if (input.value !== state.q) input.value = state.q;
  filters.show(state);
  browse.show(state);
  find("unread").hidden = !notRead || isSearch(state);
  chips();
  document.title = state.q.trim() ? `${state.q.trim()} – MaxMatch` : "MaxMatch";
  if (!asked || !sameResults(asked, state)) search({ restore });
  else if (refusal) {
    refusal = false;
    connection.dismiss();
  }
  if (state.view) view();
  else hideView();
}

/** keep: what is shown is asked for again, and stays where it is. */
async function search({ restore = null, keep = false } = {}) {
  const other = !shown || !sameResults(shown, state); // something else is on the page yet
  if (!keep) resume = restore;
  else if (other) [restore, keep] = [resume, false];
  stale = false;
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  const wanted = state;
  asked = wanted;
  find("results").setAttribute("aria-busy", "true");
  try {
    const count = Math.max(PAGE, restore?.count ?? (keep ? grid.hits.length : 0));
    const hits = [];
    let answer;
    do {
      answer = await api.search(wanted, hits.length, Math.min(LONGEST, count - hits.length), signal);
      hits.push(...answer.hits);
    } while (answer.more && answer.hits.length && hits.length < count);
    if (signal.aborted) return;
    const top = scrollY;
    shown = { ...wanted }; // of this answer alone, which pages after it belong to
    resume = null;
    refusal = false;
    more = answer.more;
    total = more ? answer.total : hits.length; // a search ends where pictures stop fitting
    connection.dismiss();
    const titles = isSearch(wanted) ? null : (hit) => (hit.item.date ? monthName(hit.item.date.slice(0, 7)) : "Without a date");
    grid.show(hits, !more, { titles, total, keep });
    if (!keep) scrollTo(0, restore?.top ?? 0);
    else scrollTo(0, top);
    say(answer);
    if (state.view) view();
    fillUp();
  } catch (error) {
    if (!signal.aborted) {
      asked = shown;
      refusal = error instanceof api.Refused;
    }
    failed(error);
  } finally {
    if (!signal.aborted) find("results").setAttribute("aria-busy", "false");
  }
}

/** The next page, when its place comes into sight. */
function pageOn() {
  if (!paging && more && shown) paging = askOn().finally(() => (paging = null));
  return paging ?? Promise.resolve();
}

async function askOn() {
  const [wanted, signal] = [shown, asking.signal];
  let refused = false;
  try {
    const answer = await api.search(wanted, grid.hits.length, grid.hits.length < LONGEST ? PAGE : LONGEST, signal);
    if (signal.aborted || wanted !== shown) return;
    more = answer.more && answer.hits.length > 0;
    if (!more) total = grid.total = grid.hits.length + answer.hits.length;
    grid.append(answer.hits, !more);
    say(answer);
    note();
  } catch (error) {
    refused = error.name !== "AbortError";
    failed(error);
  } finally {
    if (!refused) setTimeout(fillUp); // when this one counts as done
  }
}

const fillUp = () => find("end").getBoundingClientRect().top < innerHeight + NEAR && pageOn();

let known = null;
let language = null;
let notRead = 0;

/** The server told how many pictures there are: new ones appear, deleted ones go. */
function noticed({ items, left, not_read: bad }) {
  notRead = bad ?? 0;
  find("unread").hidden = !notRead || isSearch(state);
  find("unread").textContent = bad === 1 ? "One file was not read" : `${number(notRead)} files were not read`;
  find("reading").hidden = !left;
  find("reading").textContent = left ? `Reading ${left === 1 ? "one more picture" : `${number(left)} more pictures`} …` : "";
  const changed = known !== null && items !== undefined && items !== known;
  known = items ?? known;
  if (changed) offer();
  stale ||= changed;
  const busy = find("results").getAttribute("aria-busy") === "true" || document.querySelector("dialog[open]"); // then the next time
  if (stale && !busy && grid.hits.length <= REFRESHED) search({ keep: true });
}

/** What there is to choose from. */
const offer = () => api.gallery().then((gallery) => {
  known = gallery.total;
  filters.offer(gallery);
  suggestions.know({ known: gallery });
  language = gallery.language;
  find("language").hidden = !language;
  find("language").textContent = `Write in ${language}`;
  filters.show(state);
  browse.offer(gallery);
  find("pick").hidden = !gallery.reads_pictures;
}, failed);

function failed(error) {
  if (error.name === "AbortError") return;
  if (error instanceof api.Gone) connection.lost();
  else if (error instanceof api.Refused) connection.tell(error.message);
  else throw error;
}

function say(answer) {
  const shownNow = grid.hits.length;
  const order = !isSearch(state) || state.sort === "date" ? "newest first" : "best first";
  const counted = shownNow ? `${count(answer, shownNow)}, ${order}` : count(answer, shownNow);
  find("status").textContent = [counted, unknown(answer, language)].filter(Boolean).join(" · ");
  const all = (label) => el("button", { type: "button", class: "quiet", onclick: () => go({ ...state, all: true }) }, label);
  const rest = find("rest");
  rest.hidden = !answer.ended || answer.more || !shownNow;
  rest.replaceChildren(el("span", {}, "The rest does not seem to fit."), all(`Show all ${pictures(answer.total)}`));
  const empty = find("empty");
  empty.hidden = shownNow > 0;
  if (empty.hidden) return;
  const filtered = isFiltered(state);
  const clear = () => el("button", { type: "button", class: "solid", onclick: () => go(withoutFilters(state)) }, "Clear filters");
  if (answer.ended) {
    const where = filtered ? "No picture that passes the filters" : "No picture here";
    empty.replaceChildren(el("p", {}, `${where} seems to fit “${state.q.trim()}”.`), all("Show the closest anyway"), filtered ? clear() : "");
  } else {
    empty.replaceChildren(el("p", {}, filtered ? "No pictures match these filters." : "There are no pictures here yet."), filtered ? clear() : "");
  }
}

/** What is searched with, beside the text: a picture, a slot. */
function chips() {
  const made = [];
  const drop = (label, next) => el("button", { type: "button", "aria-label": label, onclick: () => go(next) }, "×");
  if (state.like || state.upload) {
    const source = state.like ? api.thumbnail({ key: state.like, version: "0" }, 80) : api.uploadThumbnail(state.upload);
    made.push(el("span", { class: "chip" }, el("img", { src: source, alt: "" }),
      el("span", {}, state.like ? "Similar to this" : "Your picture"), drop("Stop searching with this picture", newQuery(state, { q: state.q }))));
  }
  if (state.slot !== null) {
    made.push(el("span", { class: "chip" }, el("span", {}, `Slot ${state.slot + 1} only`), drop("Search with all slots", { ...state, slot: null })));
  }
  if (state.album) {
    const name = el("span", {}, "Album");
    made.push(el("span", { class: "chip" }, name, drop("Leave the album", { ...state, album: "" })));
    shelf.nameOf(state.album).then((known) => (name.textContent = known), () => null);
  }
  for (const name of ["camera", "place"]) {
    if (state[name]) made.push(el("span", { class: "chip" }, el("span", {}, state[name]), drop(`Leave the ${name}`, { ...state, [name]: "" })));
  }
  find("chips").replaceChildren(...made);
  input.placeholder = state.like || state.upload ? "Add words" : state.slot !== null ? "" : state.album ? "Search this album" : "Describe a picture";
}

/** Show the picture that the address names. */
async function view() {
  const wanted = state.view;
  const place = grid.hits.findIndex((hit) => hit.item.key === wanted);
  const hit = grid.hits[place];
  try {
    const item = hit?.item ?? (viewer.shown?.key === wanted ? viewer.shown : await api.item(wanted));
    if (state.view !== wanted) return;
    const to = (key) => go({ ...state, view: key }, { replace: true });
    const step = (by) => {
      if (place < 0) return null;
      const next = grid.hits[place + by];
      if (next) return () => to(next.item.key);
      return by > 0 && more ? () => pageOn().then(() => state.view === wanted && grid.hits[place + 1] && to(grid.hits[place + 1].item.key)) : null;
    };
    viewer.show(item, state, {
      score: hit?.score ?? null, duplicates: hit?.duplicates ?? [], steps: [step(-1), step(1)], place: place < 0 ? "" : `${number(place + 1)} of ${number(Math.max(total, place + 1))}`,
    });
  } catch (error) {
    failed(error);
    if (error instanceof api.Refused && state.view === wanted) go({ ...state, view: "", why: false }, { replace: true });
  }
}

function hideView() {
  if (!viewer.shown) return;
  const { key } = viewer.shown;
  viewer.hide();
  grid.focusKey(key);
}

/** What is searched for now, to be saved; null where that is nothing, or a picture that the server forgets. */
function suggestion() {
  if (state.upload || !(isSearch(state) || isFiltered(state))) return null;
  const { q, like, folder, from, to, orientation, camera, place, album, sort, fold } = state;
  const days = from || to ? `${from || "…"} to ${to || "…"}` : "";
  const name = [q.trim() || (like ? "Similar pictures" : ""), folder, days, orientation, camera, place].filter(Boolean).join(", ");
  const given = Object.entries({ q, like, folder, from, to, orientation, camera, place, album, sort }).filter(([, value]) => value);
  return { name, search: { ...Object.fromEntries(given), fold } };
}

async function removeFromAlbum(items) {
  try {
    const album = await api.changeAlbum(state.album, { remove: items.map((item) => item.key) });
    selection.clear();
    toast(`${pictures(items.length)} removed from “${album.name}”.`);
    await search({ keep: true });
  } catch (error) {
    failed(error);
  }
}

/** Where the user is, to come back to. */
const note = () => history.replaceState({ ...history.state, count: grid.hits.length, top: scrollY }, "");

async function takePicture(file) {
  const [before, number] = [state, ++uploads];
  const left = () => number !== uploads || ["q", "like", "upload", "slot"].some((name) => state[name] !== before[name]);
  try {
    find("results").setAttribute("aria-busy", "true");
    const answer = await api.searchByImage(file, state, 1);
    if (left()) return;
    go(newQuery(state, { upload: answer.upload }));
  } catch (error) {
    if (left()) return;
    find("results").setAttribute("aria-busy", "false");
    failed(error);
  }
}

const typed = after(TYPING, () => {
  if (input.value === state.q) return;
  go(newWords(state, input.value), { replace: typing });
  typing = true;
});
input.addEventListener("input", typed);
input.addEventListener("blur", () => (typing = false));
input.addEventListener("keydown", (event) => {
  if (!event.isComposing && suggestions.pressed(event.key)) return event.preventDefault();
  if (event.key === "ArrowDown" && grid.focus(grid.active)) event.preventDefault();
  if (event.key === "Escape" && (input.value || isSearch(state))) {
    typed.cancel();
    input.value = "";
    go(newQuery(state, {}));
  }
  if (event.key === "Backspace" && !input.value && (state.like || state.upload)) go(newQuery(state, {}));
});
find("search").addEventListener("submit", (event) => {
  event.preventDefault();
  typed.cancel();
  typing = false;
  suggestions.close();
  remember(input.value);
  if (input.value !== state.q) go(newWords(state, input.value));
  else grid.focus(0);
});
find("home").addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go(read(""));
  input.focus();
});
addEventListener("keydown", (event) => {
  const busy = event.target.matches("input, select, textarea") || document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey;
  if (event.key === "/" && !busy) {
    event.preventDefault();
    input.focus();
    input.select();
  }
});
addEventListener("popstate", (event) => {
  leaving = false;
  typed.cancel();
  typing = false;
  state = read(location.search);
  update({ restore: event.state });
});
addEventListener("scroll", after(150, note), { passive: true });
addEventListener("scroll", fillUp, { passive: true });
addEventListener("resize", fillUp);
watchPictures({ veil: find("drop"), button: find("pick"), input: find("file"), take: takePicture, refuse: (message) => connection.tell(message) });

find("albums").addEventListener("click", () => shelf.open());
find("unread").addEventListener("click", () => shelf.notRead());
if ("serviceWorker" in navigator) navigator.serviceWorker.register("/sw.js").catch(() => null);

history.scrollRestoration = "manual";
update({ restore: history.state });
offer();
