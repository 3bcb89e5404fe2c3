// The right half of the explanation: what each slot reads, which slot it matches, how strongly.

import { el } from "./dom.js";
import { colour, mini } from "./heat.js";

const isMark = (word) => /^[<[].*[>\]]$/.test(word);
const signed = (value) => value.toFixed(2).replace("-", "−");
const strength = (cosine) => Math.max(0, Math.min(1, cosine));

/** The words of a query, as strong as a slot read each of them. */
function reading(part, row, slot) {
  const most = Math.max(...part.word_attention[row], 1e-9);
  const spans = part.words.map((word, place) =>
    el("span", {
      class: isMark(word) ? "word mark" : "word",
      "--a": (part.word_attention[row][place] / most).toFixed(3),
      title: `${(100 * part.word_attention[row][place]).toFixed(0)} %`,
    }, word.replace(/^##/, "")),
  );
  return el("div", { class: "words", "--slot": colour(slot) }, ...spans);
}

/** One pair of slots. choose(slot): show where the picture's slot looks. only(side, slot): search with it alone. */
function pairRow(part, pair, { image, slots, queryImage, choose, only }) {
  const row = part.query_slots.indexOf(pair.query_slot);
  const [query, found] = [pair.query_slot + 1, pair.item_slot + 1];
  const read = part.words
    ? reading(part, row, pair.item_slot)
    : queryImage && el("span", { class: "mini" }, mini(queryImage, part.picture, pair.query_slot));
  return el(
    "li",
    { class: "pair", "--slot": colour(pair.item_slot), "data-slots": pair.item_slot },
    el("div", { class: "read" }, el("div", { class: "who" }, `Query slot ${query} ${part.words ? "reads" : "looks at"}`), read),
    el("div", {},
      el("div", { class: "who" }, el("span", { class: "dot" }, String(found)), `Picture slot ${found}`),
      el("button", { class: "mini", type: "button", "aria-label": `Show where slot ${found} of the picture looks`, onclick: () => choose([pair.item_slot]) },
        mini(image, slots, pair.item_slot))),
    el("div", { class: "strength" },
      el("span", { class: "track", "aria-hidden": "true" }, el("i", { "--a": strength(pair.cosine).toFixed(3) })),
      el("span", {}, `cosine ${signed(pair.cosine)}`)),
    el("div", { class: "do" },
      el("button", { class: "link", type: "button", "data-only": "item", onclick: () => only("item", pair.item_slot) },
        `Search with picture slot ${found} only`),
      el("button", { class: "link", type: "button", "data-only": "query", onclick: () => only("query", pair.query_slot) },
        `Search with query slot ${query} only`)),
  );
}

/** Every slot of the query against every slot of the picture; the matched ones are framed. */
function heatmap(part) {
  const matched = new Set(part.pairs.map((pair) => `${pair.query_slot} ${pair.item_slot}`));
  const columns = part.cosines[0].map((_, slot) =>
    el("th", { scope: "col", "aria-label": `picture slot ${slot + 1}` }, el("span", { class: "dot", "--slot": colour(slot) }, String(slot + 1))));
  const all = part.cosines.flat();
  const [low, high] = [Math.min(0, ...all), Math.max(...all, 1e-9)];
  const rows = part.cosines.map((cosines, row) =>
    el("tr", {}, el("th", { scope: "row" }, `query ${part.query_slots[row] + 1}`),
      ...cosines.map((cosine, slot) => {
        const share = (cosine - low) / (high - low || 1);
        const chosen = matched.has(`${part.query_slots[row]} ${slot}`);
        return el("td", { class: `${chosen ? "matched" : ""} ${share > 0.55 ? "dark" : ""}`.trim() || null, "--a": share.toFixed(3),
          "aria-label": `${signed(cosine)}${chosen ? ", matched" : ""}` }, signed(cosine));
      })),
  );
  return el("table", { class: "heat" }, el("caption", {}, "Cosine of each slot of the query with each slot of the picture"),
    el("thead", {}, el("tr", {}, el("td", { class: "corner" }), ...columns)), el("tbody", {}, ...rows));
}

/** Without a query: the picture's slots, each to search with. */
export function slotsAlone({ image, slots, choose, only }) {
  const rows = slots.attention.map((_, slot) =>
    el("li", { class: "pair", "--slot": colour(slot), "data-slots": slot },
      el("div", { class: "read" },
        el("div", { class: "who" }, el("span", { class: "dot" }, String(slot + 1)), `Slot ${slot + 1}`),
        el("button", { class: "link", type: "button", "data-only": "item", onclick: () => only("item", slot) },
          `Search with slot ${slot + 1} only`)),
      el("button", { class: "mini", type: "button", "aria-label": `Show where slot ${slot + 1} looks`, onclick: () => choose([slot]) }, mini(image, slots, slot))),
  );
  return [
    el("h3", {}, "What its slots look at"),
    el("p", {}, "The model describes a picture by several vectors, its slots. Each looks at the picture in its own way."),
    el("ol", { class: "pairs" }, ...rows),
  ];
}

/** One part of the query against the picture. */
export function explained(part, context) {
  const rows = part.pairs.map((pair) => pairRow(part, pair, context));
  return [
    el("h3", {}, "What each slot sees"),
    el("p", {}, "Query and picture are sets of vectors. Each slot of the query is matched with one slot of the picture; the score is made of these pairs."),
    el("ol", { class: "pairs" }, ...rows),
    el("h3", {}, "Which slots match"),
    el("p", {}, `Rows: the query's slots; columns: the picture's. Framed: the best one-to-one matching, score ${signed(part.score)}.`),
    heatmap(part),
  ];
}
