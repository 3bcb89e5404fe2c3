// Facts in words.

const DATE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });

const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "short" });

function written(format, text) {
  const day = text ? new Date(text) : null;
  return day && !Number.isNaN(day.getTime()) ? format.format(day) : "";
}
const MONTHS = { long: new Intl.DateTimeFormat(undefined, { month: "long", year: "numeric" }), short: new Intl.DateTimeFormat(undefined, { month: "short" }) };

/** A month such as "2024-05" in words. */
export const monthName = (month, form = "long") => written(MONTHS[form], `${month}-01T00:00:00`);
export const date = (text) => written(DATE, text);
export const moment = (text) => written(MOMENT, text);

/** A place on the earth: 41.8902° N, 12.4922° E. */
export function position(latitude, longitude) {
  const side = (value, plus, minus) => `${Math.abs(value).toFixed(4)}° ${value < 0 ? minus : plus}`;
  return `${side(latitude, "N", "S")}, ${side(longitude, "E", "W")}`;
}

export const folderOf = (path) => path.replace(/[/\\][^/\\]*$/, "");

export function bytes(count) {
  if (!count) return "";
  const [value, unit] = count < 1e6 ? [count / 1e3, "kB"] : [count / 1e6, "MB"];
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

export const number = (count) => count.toLocaleString();
export const pictures = (count) => `${number(count)} ${count === 1 ? "picture" : "pictures"}`;
export const score = (value) => (value === null || value === undefined ? "" : value.toFixed(2).replace("-", "−"));

/** How many pictures there are, or fit a query: known once the last of them is there. */
export function count({ total, ended, more }, shown) {
  if (!ended) return more || shown ? pictures(total) : "No pictures";
  if (!shown) return `None of ${pictures(total)} seems to fit`;
  return `${more ? "More than " : ""}${number(shown)} of ${pictures(total)} ${shown === 1 ? "seems" : "seem"} to fit`;
}

/** What the model does not know of a query, and the language that it reads. */
export function unknown({ hits, unknown_words: words, any_word_known: any, left_out: parts }, language) {
  const told = named(hits, words, any, parts);
  return told && language ? `${told} · it reads ${language}` : told;
}

function named(hits, words, any, parts) {
  const others = words.filter((word) => !parts.some((part) => part.includes(word)));
  const rest = others.length ? [`the model does not know: ${others.join(", ")}`] : [];
  if (parts.length) return [`left out, since the model knows no word of it: ${parts.join(", ")}`, ...rest].join(" · ");
  if (any === false) return `the model knows none of these words${hits.length ? ": this is a guess" : ""}`;
  return rest.join("");
}

/** What is known of a picture, in one line. */
export function facts(item) {
  const size = item.width && item.height ? `${item.width} × ${item.height}` : "";
  const when = date(item.date) + (item.date_from === "file" ? " (file)" : "");
  return [item.folder, when, size, bytes(item.bytes)].filter(Boolean).join(" · ");
}
