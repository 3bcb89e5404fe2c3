// Rows of pictures that all end at the right edge. A place once given stays: only whole rows are given out.

/** Where nothing has been placed yet. */
export const nothing = () => ({ boxes: [], heads: [], height: 0 });

/**
 * Where the pictures after those that are placed go. laid: { boxes: [{ left, top, width, height }], heads: [{ top, place }],
 * height }, which is extended. starts(place): whether a heading comes before this picture. line: room under each picture
 * for its name. head: room for a heading. last: whether no more pictures come, so that the last row may be short.
 */
export function justified(laid, ratios, width, { target, gap, line, head, last, starts }) {
  const { boxes, heads } = laid;
  let start = boxes.length;
  let top = start ? laid.height + gap : 0;
  while (start < ratios.length) {
    let sum = 0;
    let end = start;
    while (end < ratios.length && (end === start || !starts(end)) && sum * target + gap * (end - start - 1) < width) sum += ratios[end++];
    const full = sum * target + gap * (end - start - 1) >= width;
    const closed = last || (end < ratios.length && starts(end));
    if (!full && !closed) break;
    if (starts(start)) {
      heads.push({ top, place: start });
      top += head;
    }
    const fitting = (width - gap * (end - start - 1)) / sum;
    const height = full ? fitting : Math.min(target, fitting);
    let left = 0;
    for (let place = start; place < end; place++) {
      const wide = height * ratios[place];
      boxes.push({ left, top, width: wide, height: height + line });
      left += wide + gap;
    }
    top += height + line + gap;
    start = end;
  }
  laid.height = Math.max(0, top - gap);
  return laid;
}

/** Width by height; very long pictures are cut for the grid. */
export function ratioOf(facts) {
  const ratio = facts.width && facts.height ? facts.width / facts.height : 1;
  return Math.min(3, Math.max(0.5, ratio));
}

/** The first box that ends below a line: boxes of one row begin at one height, and rows come one below the other. */
export function firstBelow(boxes, line) {
  let [low, high] = [0, boxes.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (boxes[middle].top + boxes[middle].height > line) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The box nearest to another one in a direction: for arrow keys. */
export function neighbour(boxes, from, key) {
  if (key === "ArrowLeft") return Math.max(0, from - 1);
  if (key === "ArrowRight") return Math.min(boxes.length - 1, from + 1);
  const { left, top, width } = boxes[from];
  const step = key === "ArrowDown" ? 1 : -1;
  let place = from;
  while (boxes[place] && boxes[place].top === top) place += step;
  if (!boxes[place]) return from;
  const row = boxes[place].top;
  const distance = (other) => Math.abs(boxes[other].left + boxes[other].width / 2 - (left + width / 2));
  let best = place;
  for (; boxes[place] && boxes[place].top === row; place += step) if (distance(place) < distance(best)) best = place;
  return best;
}
