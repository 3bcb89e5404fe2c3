// The address holds what is shown, so that reloading, going back and sharing the address keep it.

const EMPTY = {
  q: "", like: "", upload: "", slot: null,
  folder: "", from: "", to: "", orientation: "", camera: "", place: "", album: "", sort: "relevance", fold: true, all: false,
  view: "", why: false,
};
const VIEW = ["view", "why"];
const FILTERS = ["folder", "from", "to", "orientation", "camera", "place"];
const DAY = /^\d{4}-\d\d-\d\d$/;
const KEY = /^[0-9a-f]{32}$/;

export function read(text) {
  const given = new URLSearchParams(text);
  const state = { ...EMPTY };
  for (const name of ["q", "folder", "camera", "place"]) state[name] = (given.get(name) ?? "").slice(0, 1000);
  for (const name of ["like", "upload", "album", "view"]) if (KEY.test(given.get(name) ?? "")) state[name] = given.get(name);
  for (const name of ["from", "to"]) if (DAY.test(given.get(name) ?? "")) state[name] = given.get(name);
  if (/^\d{1,2}$/.test(given.get("slot") ?? "")) state.slot = Number(given.get("slot"));
  if (["landscape", "portrait", "square"].includes(given.get("orientation"))) state.orientation = given.get("orientation");
  if (given.get("sort") === "date") state.sort = "date";
  if (given.get("fold") === "0") state.fold = false;
  state.why = Boolean(state.view) && given.get("why") === "1";
  if (given.get("all") === "1") state.all = true;
  if (state.like) state.upload = "";
  return state;
}

export function write(state) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value === EMPTY[name]) continue;
    given.set(name, typeof value === "boolean" ? String(Number(value)) : String(value));
  }
  const text = given.toString();
  return text ? `/?${text}` : "/";
}

/** Whether two states show the same results. */
export const sameResults = (a, b) => Object.keys(EMPTY).every((name) => VIEW.includes(name) || a[name] === b[name]);
export const isFiltered = (state) => FILTERS.some((name) => state[name] !== EMPTY[name]);
export const isSearch = (state) => Boolean(state.q.trim() || state.like || state.upload);
export const withoutFilters = (state) => ({ ...state, ...Object.fromEntries(FILTERS.map((name) => [name, EMPTY[name]])) });
/** Other words, beside the picture that is searched with, if any. */
export const newWords = (state, q) => {
  const { like, upload, slot } = state;
  return newQuery(state, like || upload ? { q, like, upload, slot } : { q });
};
export const newQuery = (state, query) => ({ ...state, q: "", like: "", upload: "", slot: null, all: false, view: "", why: false, ...query });
