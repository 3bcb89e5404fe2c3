// An explanation in the words of a person: this part of the picture met these words.

import { el } from "./dom.js";
import { colour, mini } from "./heat.js";

const COUNTS = 0.35; // of what the most important word does

/** The words without which a slot of the query would fit less well, in the order of the query. */
export function wordsMet(part, row) {
  const effects = part.word_effects[row];
  const most = Math.max(...effects);
  if (most <= 0) return part.terms;
  return part.terms.filter((_, place) => effects[place] >= COUNTS * most);
}

const quoted = (list) => list.map((word) => el("strong", {}, word)).flatMap((word, place) =>
  place === 0 ? [word] : [place === list.length - 1 ? " and " : ", ", word]);

/** How well, beside the best one. */
const meter = (share) => el("span", { class: "track", "aria-hidden": "true" }, el("i", { "--a": share.toFixed(3) }));

/** Pairs that met the same words, or for a picture each alone; the strongest first. */
export function groups(part) {
  const found = new Map();
  for (const pair of [...part.pairs].sort((a, b) => b.cosine - a.cosine)) {
    const met = part.terms ? wordsMet(part, part.query_slots.indexOf(pair.query_slot)) : [];
    const name = part.terms ? met.join(" ") : String(pair.item_slot);
    const group = found.get(name) ?? { met, pairs: [], cosine: pair.cosine };
    group.pairs.push(pair);
    found.set(name, group);
  }
  return [...found.values()].map((group) => ({ ...group, slots: group.pairs.map((pair) => pair.item_slot).sort((a, b) => a - b) }));
}

/** What parts of the picture met. choose(slots): show where they look. */
export function inWords(part, { image, slots, queryImage, choose }) {
  if (!part) return [el("p", {}, "Nothing was searched for, so there is nothing to explain. Search for something, then ask why a picture was found.")];
  const told = groups(part);
  const best = Math.max(told[0].cosine, 1e-9);
  const rows = told.map(({ met, pairs, cosine, slots: own }, place) => {
    const what = part.terms
      ? ["This part of the picture met ", met.length === 1 ? "the word " : "the words ", ...quoted(met), "."]
      : ["This part of the picture is like this part of yours."];
    const name = met.length ? `Show the part of the picture that met ${met.join(", ")}` : "Show this part of the picture";
    return el("li", { class: "met", "--slot": colour(own[0]), "data-slots": own.join(" ") },
      el("span", { class: "minis" },
        el("button", { class: "mini", type: "button", "aria-pressed": "false", "aria-label": name, onclick: () => choose(own) }, mini(image, slots, own, 76)),
        !part.terms && queryImage ? mini(queryImage, part.picture, pairs[0].query_slot, 76) : null),
      el("p", {}, ...what, place === 0 && told.length > 1 ? el("span", { class: "note" }, " The strongest match.") : null),
      told.length > 1 ? meter(Math.max(0, cosine / best)) : null);
  });
  const against = part.weight < 0 ? el("p", {}, "You asked to avoid this: the better it meets the picture, the lower the picture ranks.") : null;
  return [against, el("ul", { class: "mets" }, ...rows)];
}
