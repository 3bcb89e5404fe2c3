// Rows of pictures that all end at the right edge. A place once given stays: only whole rows are given out.

/**
 * Where each picture goes: { boxes: [{ left, top, width, height }], placed, height }.
 * line: room under each picture for its name. last: whether no more pictures come, so that the last row may be short.
 */
export function justified(ratios, width, { target, gap, line, last }) {
  const boxes = [];
  let top = 0;
  let start = 0;
  while (start < ratios.length) {
    let sum = 0;
    let end = start;
    while (end < ratios.length && sum * target + gap * (end - start - 1) < width) sum += ratios[end++];
    const full = sum * target + gap * (end - start - 1) >= width;
    if (!full && !last) break;
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
  return { boxes, placed: boxes.length, height: Math.max(0, top - gap) };
}

/** Width by height; very long pictures are cut for the grid. */
export function ratioOf(facts) {
  const ratio = facts.width && facts.height ? facts.width / facts.height : 1;
  return Math.min(3, Math.max(0.5, ratio));
}

/** The box nearest to another one in a direction: for arrow keys. */
export function neighbour(boxes, from, key) {
  if (key === "ArrowLeft") return Math.max(0, from - 1);
  if (key === "ArrowRight") return Math.min(boxes.length - 1, from + 1);
  const box = boxes[from];
  const middle = box.left + box.width / 2;
  const others = boxes.map((other, place) => ({ place, other }));
  const beyond = others.filter(({ other }) => (key === "ArrowDown" ? other.top > box.top + 1 : other.top < box.top - 1));
  if (!beyond.length) return from;
  const tops = beyond.map(({ other }) => other.top);
  const row = key === "ArrowDown" ? Math.min(...tops) : Math.max(...tops);
  const distance = ({ other }) => Math.abs(other.left + other.width / 2 - middle);
  return beyond
    .filter(({ other }) => other.top === row)
    .reduce((best, one) => (distance(one) < distance(best) ? one : best)).place;
}
