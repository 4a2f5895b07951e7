// The tokens of `to` that are not in a longest common subsequence with `from`. `differing` also counts tokens that `to` lacks.
export function diff(from: string[], to: string[]): {changed: Set<number>; differing: number} {
  let begin = 0;
  while (begin < from.length && begin < to.length && from[begin] === to[begin]) ++begin;
  let end = 0;
  while (end < from.length - begin && end < to.length - begin && from.at(-1 - end) === to.at(-1 - end)) ++end;
  const a = from.slice(begin, from.length - end);
  const b = to.slice(begin, to.length - end);
  const changed = new Set(b.map((_, i) => begin + i));
  const MOST = 4_000_000; // cells; beyond it, everything between the common ends counts as different
  if (a.length * b.length > MOST) return {changed, differing: Math.max(a.length, b.length)};
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; --i) {
    for (let j = b.length - 1; j >= 0; --j) {
      longest[i * width + j] =
        a[i] === b[j] ? longest[(i + 1) * width + j + 1]! + 1 : Math.max(longest[(i + 1) * width + j]!, longest[i * width + j + 1]!);
    }
  }
  let i = 0;
  let j = 0;
  let kept = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      changed.delete(begin + j);
      ++kept, ++i, ++j;
    } else if (longest[(i + 1) * width + j]! >= longest[i * width + j + 1]!) ++i;
    else ++j;
  }
  return {changed, differing: Math.max(a.length, b.length) - kept};
}
