// The server's API: no request goes to any other host.

const API = "/api/v1";
const SIZES = [160, 320, 640, 1280, 2560];

/** The server is not responding. */
export class Gone extends Error {}

/** The server answered that it cannot do this, and why. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(`${API}${path}`, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Gone(error.message);
  }
  const body = await answer.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    if (!(error instanceof SyntaxError)) throw new Gone(error.message); // cut off
    return null;
  });
  if (answer.ok && body !== null) return body;
  if (answer.status === 503 && body?.error?.code !== "replaced") throw new Gone("busy");
  throw new Refused(answer.status, body?.error?.message ?? `The server answered ${answer.status}.`);
}

function parameters(values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
}

const paging = ({ folder, from, to, orientation, camera, place, album, sort, fold, all }) => ({ folder, from, to, orientation, camera, place, album, sort, fold, all });
const asked = ({ q, like, upload, slot }) => ({ q, like, upload, slot });

export const search = (state, offset, k, signal) =>
  ask(`/search?${parameters({ ...asked(state), ...paging(state), offset, k })}`, { signal });

export function searchByImage(file, state, k) {
  const form = new FormData();
  form.append("file", file, "picture");
  return ask(`/search/image?${parameters({ ...paging(state), k })}`, { method: "POST", body: form });
}

export const explain = (key, state, signal) =>
  ask(`/items/${key}/explain?${parameters(asked(state))}`, { signal });

const send = (method, path, body) =>
  ask(path, { method, headers: body && { "Content-Type": "application/json" }, body: body && JSON.stringify(body) });

export const details = (key, signal) => ask(`/items/${key}/details`, { signal });
export const reveal = (key) => send("POST", `/items/${key}/reveal`);
export const original = (key) => `${API}/items/${key}/original`;
export const download = (key) => `${API}/items/${key}/original?download=true`;
export const prepareZip = (keys) => send("POST", "/downloads", { keys });
export const zip = (key) => `${API}/downloads/${key}`;

export const albums = () => ask("/albums");
export const createAlbum = (name, keys) => send("POST", "/albums", { name, keys });
export const changeAlbum = (album, change) => send("POST", `/albums/${album}/photos`, change);
export const renameAlbum = (album, name) => send("PATCH", `/albums/${album}`, { name });
export const deleteAlbum = (album) => send("DELETE", `/albums/${album}`);
export const saveSearch = (name, search) => send("POST", "/searches", { name, ...search });
export const deleteSearch = (search) => send("DELETE", `/searches/${search}`);

export const item = (key) => ask(`/items/${key}`);
export const gallery = () => ask("/gallery");
export const timeline = ({ folder, orientation, camera, place }) => ask(`/timeline?${parameters({ folder, orientation, camera, place })}`);
export const notRead = () => ask("/not-read");
export const health = () => ask("/health", { cache: "no-store" });

/** The address of a small picture whose longest side is at least so many pixels of this screen. */
export function thumbnail(facts, pixels) {
  const wanted = pixels * Math.min(window.devicePixelRatio || 1, 2);
  const size = SIZES.find((known) => known >= wanted) ?? SIZES.at(-1);
  return `${API}/items/${facts.key}/thumbnail?size=${size}&v=${facts.version}`;
}

export const uploadThumbnail = (key, size = 160) => `${API}/uploads/${key}/thumbnail?size=${size}`;
