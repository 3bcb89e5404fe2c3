// The page: the address is the state; a change of the state is a search.

import * as api from "./api.js";
import { Connection } from "./connection.js";
import { after, el, find } from "./dom.js";
import { Filters } from "./filters.js";
import { Grid } from "./grid.js";
import { watchPictures } from "./picture.js";
import { isFiltered, isSearch, newQuery, read, sameResults, withoutFilters, write } from "./state.js";
import { Why } from "./why.js";
import { count, pictures, unknown } from "./words.js";

const PAGE = 48;
const LONGEST = 200;
const TYPING = 130;
const NEAR = 1200;

let state = read(location.search);
let shown = null;
let more = false;
let asking = null;
let paging = false;
let typing = false;
const input = find("q");

const grid = new Grid(find("results"), {
  open: (hit) => go({ ...state, view: hit.item.key }),
  address: (hit) => write({ ...state, view: hit.item.key }),
  leave: () => input.focus(),
});
const connection = new Connection(find("notice"), () => {
  grid.retry();
  search({ keep: true });
  if (state.view) showWhy();
});
const filters = new Filters((change) => go(change(state)));
const why = new Why(find("why"), {
  close: () => (history.state?.opened ? history.back() : go({ ...state, view: "" })),
  similar: (key) => go(newQuery(state, { like: key })),
  only: (query) => go(newQuery(state, query)),
  gone: () => connection.lost(),
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
  chips();
  document.title = state.q.trim() ? `${state.q.trim()} – MaxMatch` : "MaxMatch";
  if (!shown || !sameResults(shown, state)) search({ restore });
  if (state.view) showWhy();
  else hideWhy();
}

async function search({ restore = null, keep = false } = {}) {
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  const wanted = state;
  find("results").setAttribute("aria-busy", "true");
  try {
    const count = Math.max(PAGE, restore?.count ?? (keep ? grid.hits.length : 0));
    const hits = [];
    let answer;
    do {
      answer = await api.search(wanted, hits.length, Math.min(LONGEST, count - hits.length), signal);
      hits.push(...answer.hits);
    } while (answer.more && hits.length < count);
    if (signal.aborted) return;
    const top = scrollY;
    shown = wanted;
    more = answer.more;
    connection.dismiss();
    grid.show(hits, !more);
    if (!keep) scrollTo(0, restore?.top ?? 0);
    else scrollTo(0, top);
    say(answer);
    if (state.view) showWhy();
    fillUp();
  } catch (error) {
    failed(error);
  } finally {
    if (!signal.aborted) find("results").setAttribute("aria-busy", "false");
  }
}

/** The next page, when its place comes into sight. */
async function pageOn() {
  if (!more || paging || !shown) return;
  paging = true;
  const [wanted, signal] = [shown, asking.signal];
  try {
    const answer = await api.search(wanted, grid.hits.length, PAGE, signal);
    if (signal.aborted || wanted !== shown) return;
    more = answer.more;
    grid.append(answer.hits, !more);
    say(answer);
    note();
  } catch (error) {
    failed(error);
  } finally {
    paging = false;
  }
  if (!connection.away) fillUp();
}

const fillUp = () => find("end").getBoundingClientRect().top < innerHeight + NEAR && pageOn();

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
  find("status").textContent = [counted, unknown(answer)].filter(Boolean).join(" · ");
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
      el("span", {}, state.like ? "Similar to this" : "Your picture"), drop("Stop searching with this picture", newQuery(state, {}))));
  }
  if (state.slot !== null) {
    made.push(el("span", { class: "chip" }, el("span", {}, `Slot ${state.slot + 1} only`), drop("Search with all slots", { ...state, slot: null })));
  }
  find("chips").replaceChildren(...made);
  input.placeholder = made.length ? "" : "Describe a picture";
}

async function showWhy() {
  const place = grid.hits.findIndex((hit) => hit.item.key === state.view);
  const hit = grid.hits[place];
  const key = `${state.view} ${write({ ...state, view: "" })}`;
  if (why.asked === key && why.shown) return;
  try {
    const item = hit?.item ?? (await api.item(state.view));
    if (item.key !== state.view) return;
    const step = (by) => {
      const next = place >= 0 ? grid.hits[place + by] : null;
      return next ? () => go({ ...state, view: next.item.key }, { replace: true }) : null;
    };
    why.asked = key;
    await why.show(item, state, { score: hit?.score ?? null, duplicates: hit?.duplicates ?? [], steps: [step(-1), step(1)] });
    if (why.answer === null) why.asked = null;
  } catch (error) {
    failed(error);
  }
}

function hideWhy() {
  if (!why.shown) return;
  const { key } = why.shown;
  why.asked = null;
  why.hide();
  grid.focusKey(key);
}

/** Where the user is, to come back to. */
const note = () => history.replaceState({ ...history.state, count: grid.hits.length, top: scrollY }, "");

async function takePicture(file) {
  try {
    find("results").setAttribute("aria-busy", "true");
    const answer = await api.searchByImage(file, state, 1);
    go(newQuery(state, { upload: answer.upload }));
  } catch (error) {
    find("results").setAttribute("aria-busy", "false");
    failed(error);
  }
}

const typed = after(TYPING, () => {
  if (input.value === state.q) return;
  go(newQuery(state, { q: input.value }), { replace: typing });
  typing = true;
});
input.addEventListener("input", typed);
input.addEventListener("blur", () => (typing = false));
input.addEventListener("keydown", (event) => {
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
  if (input.value !== state.q) go(newQuery(state, { q: input.value }));
  else grid.focus(0);
});
find("home").addEventListener("click", (event) => {
  event.preventDefault();
  go(read(""));
  input.focus();
});
addEventListener("keydown", (event) => {
  const busy = event.target.matches("input, select, textarea") || why.shown || event.ctrlKey || event.metaKey || event.altKey;
  if (event.key === "/" && !busy) {
    event.preventDefault();
    input.focus();
    input.select();
  }
});
addEventListener("popstate", (event) => {
  typed.cancel();
  typing = false;
  state = read(location.search);
  update({ restore: event.state });
});
addEventListener("scroll", after(150, note), { passive: true });
addEventListener("scroll", fillUp, { passive: true });
addEventListener("resize", fillUp);
watchPictures({ veil: find("drop"), button: find("pick"), input: find("file"), take: takePicture, refuse: (message) => connection.tell(message) });

history.scrollRestoration = "manual";
update({ restore: history.state });
api.gallery().then(
  (gallery) => {
    filters.offer(gallery);
    filters.show(state);
    find("pick").hidden = !gallery.reads_pictures;
  },
  failed,
);
