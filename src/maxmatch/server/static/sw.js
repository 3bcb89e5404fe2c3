// The page opens without the server, and says that it does not respond. Only the page's own files are kept: never an
// answer of the API, never a picture.

const SHELL = "maxmatch-shell";
const FILES = [
  "/static/api.js", "/static/app.js", "/static/browse.css", "/static/browse.js", "/static/connection.js", "/static/dom.js", "/static/filters.js",
  "/static/grid.js", "/static/heat.js", "/static/icon-192.png", "/static/icon.svg", "/static/layout.js",
  "/static/picture.js", "/static/plain.js", "/static/reasons.js", "/static/selection.js", "/static/shelf.js",
  "/static/state.js", "/static/style.css", "/static/suggest.js", "/static/toast.js", "/static/viewer.css", "/static/viewer.js",
  "/static/why.css", "/static/why.js", "/static/words.js", "/static/zoom.js",
  "/manifest.webmanifest",
];

const isShell = (request, url) =>
  request.method === "GET" && url.origin === location.origin &&
  (url.pathname === "/manifest.webmanifest" || url.pathname.startsWith("/static/") || (request.mode === "navigate" && url.pathname === "/"));

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(SHELL).then((cache) => cache.addAll(["/", ...FILES])).then(() => self.skipWaiting()));
});
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

// From the server while it responds, so that what is kept never ages.
async function answer(request, url) {
  const kept = await caches.open(SHELL);
  const name = url.pathname === "/" ? "/" : request;
  try {
    const fresh = await fetch(request);
    if (fresh.ok && !fresh.redirected && fresh.type === "basic") kept.put(name, fresh.clone()).catch(() => null); // a full disk
    return fresh;
  } catch (error) {
    const known = await kept.match(name);
    if (known) return known;
    throw error;
  }
}

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (isShell(event.request, url)) event.respondWith(answer(event.request, url));
});
