// Facts in words.

const DATE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });

export function date(text) {
  const day = text ? new Date(text) : null;
  return day && !Number.isNaN(day.getTime()) ? DATE.format(day) : "";
}

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

/** What the model does not know of a query. */
export function unknown({ hits, unknown_words: words, any_word_known: any }) {
  if (any === false) return `the model knows none of these words${hits.length ? ": this is a guess" : ""}`;
  return words.length ? `the model does not know: ${words.join(", ")}` : "";
}

/** What is known of a picture, in one line. */
export function facts(item) {
  const size = item.width && item.height ? `${item.width} × ${item.height}` : "";
  const when = date(item.date) + (item.date_from === "file" ? " (file)" : "");
  return [item.folder, when, size, bytes(item.bytes)].filter(Boolean).join(" · ");
}
