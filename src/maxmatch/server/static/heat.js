// Where slots look, painted over a picture.

const COLOURS = ["#2b74b1", "#b8521c", "#167a5b", "#a34a8a", "#8a6710", "#6259c2", "#2c7486", "#75672f"];
const VEIL = [12, 14, 13];

export const colour = (slot) => COLOURS[slot % COLOURS.length];

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** From 0 to 1, so that a slot's least and most show whatever their sum. */
function stretched(grid) {
  const all = grid.flat();
  const low = Math.min(...all);
  const span = Math.max(...all) - low || 1;
  return grid.map((row) => row.map((value) => ((value - low) / span) ** 0.8));
}

/** A tiny canvas with one pixel for each cell: the browser's own smoothing makes it large. */
function cells(rows, columns, pixel) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const data = context.createImageData(columns, rows);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) data.data.set(pixel(row, column), 4 * (row * columns + column));
  context.putImageData(data, 0, 0);
  return canvas;
}

/** One slot: what it did not look at lies in the dark. */
function spotlight(grid) {
  const share = stretched(grid);
  return cells(grid.length, grid[0].length, (row, column) => [...VEIL, Math.round(170 * (1 - share[row][column]))]);
}

/** All slots: each cell in the colour of the slot that took most of it, the stronger the more it did. */
function territories(slots) {
  const shares = slots.map(stretched);
  return cells(slots[0].length, slots[0][0].length, (row, column) => {
    const values = shares.map((share) => share[row][column]);
    const best = values.indexOf(Math.max(...values));
    return [...channels(colour(best)), Math.round(30 + 110 * values[best])];
  });
}

/** Where some slots look together. */
const together = (attention, some) =>
  attention[0].map((row, at) => row.map((_, column) => some.reduce((sum, slot) => sum + attention[slot][at][column], 0)));

/** Paint over a canvas that covers the picture. slot: one, or several; null: all, each in its colour. What the model never saw is dark. */
export function overlay(canvas, slots, slot) {
  const { attention, box } = slots;
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.clearRect(0, 0, width, height);
  const [left, top, right, bottom] = [box[0] * width, box[1] * height, box[2] * width, box[3] * height];
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.fillStyle = `rgb(${VEIL.join(" ")} / 55%)`;
  context.fillRect(0, 0, width, height);
  context.clearRect(left, top, right - left, bottom - top);
  const small = slot === null ? territories(attention) : spotlight(together(attention, [slot].flat()));
  context.drawImage(small, left, top, right - left, bottom - top);
}

/** A small picture, all of it, with one slot's spotlight; at most so high and twice as wide. */
export function mini(image, slots, slot, height = 68) {
  const ratio = image.naturalWidth / image.naturalHeight || 1;
  const wide = Math.min(2 * height, height * ratio);
  const scale = Math.min(window.devicePixelRatio || 1, 2);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(wide * scale));
  canvas.height = Math.max(1, Math.round((wide / ratio) * scale));
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${wide / ratio}px`;
  const veil = document.createElement("canvas");
  veil.width = canvas.width;
  veil.height = canvas.height;
  overlay(veil, slots, slot);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  context.drawImage(veil, 0, 0);
  return canvas;
}
