// Short messages, and the clipboard.

import { el } from "./dom.js";

const SHOWN = 3500;
let region = null;

/** Say what was done, for a few seconds. It lies in the dialog that is open, since the rest of the page is not read then. */
export function toast(message) {
  const place = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;
  if (region?.parentElement !== place) {
    region?.remove();
    region = el("div", { class: "toast", "aria-live": "polite" });
    place.append(region);
  }
  const said = el("p", {}, message);
  requestAnimationFrame(() => region.replaceChildren(said));
  setTimeout(() => said.remove(), SHOWN);
}

/** Copy a text. Browsers have a clipboard for pages of this machine or with TLS; for others there is the old way. */
export async function copy(text, done) {
  try {
    await navigator.clipboard.writeText(text);
    return toast(done);
  } catch {
    const place = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;
    const area = el("textarea", { class: "unseen", "aria-hidden": "true", tabindex: "-1" });
    const before = document.activeElement;
    area.value = text;
    place.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    before?.focus({ preventScroll: true });
    toast(copied ? done : "The browser does not allow copying here.");
  }
}
