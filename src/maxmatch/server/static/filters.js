// Filters and order: they show the state, and change it.

import { el, find } from "./dom.js";
import { isFiltered, withoutFilters } from "./state.js";

const FIELDS = ["folder", "from", "to", "orientation", "sort"];

export class Filters {
  /** change(update): with a function from the state to the next one. */
  constructor(change) {
    for (const name of FIELDS) {
      find(name).addEventListener("change", () => change((state) => ({ ...state, [name]: find(name).value })));
    }
    find("fold").addEventListener("change", () => change((state) => ({ ...state, fold: find("fold").checked })));
    find("clear").addEventListener("click", () => change(withoutFilters));
    find("filters").addEventListener("submit", (event) => event.preventDefault());
    const more = find("more");
    more.addEventListener("click", () => {
      const open = find("filters").classList.toggle("open");
      more.setAttribute("aria-expanded", String(open));
    });
  }

  /** What there is to choose from. */
  offer(gallery) {
    const options = gallery.folders.map(({ folder, count }) => {
      const depth = folder.split("/").length - 1;
      return el("option", { value: folder }, `${"\u2003".repeat(depth)}${folder.split("/").at(-1)} (${count.toLocaleString()})`);
    });
    const chosen = find("folder").value;
    find("folder").replaceChildren(el("option", { value: "" }, "All folders"), ...options);
    find("folder").value = chosen;
    for (const name of ["from", "to"]) {
      find(name).min = gallery.earliest?.slice(0, 10) ?? "";
      find(name).max = gallery.latest?.slice(0, 10) ?? "";
    }
  }

  show(state) {
    for (const name of FIELDS) {
      const field = find(name);
      if (name === "folder" && state.folder && ![...field.options].some((option) => option.value === state.folder)) {
        field.append(el("option", { value: state.folder }, state.folder));
      }
      field.value = state[name];
      field.classList.toggle("set", name !== "sort" && Boolean(state[name]));
    }
    find("fold").checked = state.fold;
    find("clear").hidden = !isFiltered(state);
    find("more").textContent = isFiltered(state) ? "Filters on" : "Filters";
  }
}
