// Drawings: images and changes on canvases; ranges and trees as SVG. Text is always set as text, never as HTML.
const make = (tag, attributes = {}, ...inside) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in node && name !== "list") node[name] = value; else node.setAttribute(name, value);
  }
  node.append(...inside);
  return node;
};
const shape = (tag, attributes = {}, text = "") => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") node.style.cssText = value; else node.setAttribute(name, value);  // the page's policy forbids the attribute
  }
  if (text) node.textContent = text;
  return node;
};
const titled = (node, text) => { node.append(shape("title", {}, text)); return node; };

const sizes = (dims) => dims.length === 3 ? dims : [1, 1, dims.reduce((a, b) => a * b, 1)];
const canvasOf = (dims, colour) => {
  const [c, h, w] = sizes(dims), canvas = make("canvas", { width: w, height: h });
  const context = canvas.getContext("2d"), data = context.createImageData(w, h), plane = h * w;
  for (let p = 0; p < plane; p++) {
    const [r, g, b] = colour((k) => k * plane + p, c);
    data.data.set([r, g, b, 255], 4 * p);
  }
  context.putImageData(data, 0, 0);
  return canvas;
};
const mean = (values, at, c) => { let sum = 0; for (let k = 0; k < c; k++) sum += values[at(k)]; return sum / c; };
// values in [0, 1] (or `top` 255); one channel is grey, three are colours, others are shown by their mean
const imageCanvas = (values, dims, top = 1) => canvasOf(dims, (at, c) => {
  const level = (v) => Math.round(255 * Math.min(1, Math.max(0, v / top)));
  return c === 3 ? [0, 1, 2].map((k) => level(values[at(k)])) : Array(3).fill(level(mean(values, at, c)));
});
// a change scaled to +-size: red is brighter, blue is darker
const changeCanvas = (from, to, dims, size) => canvasOf(dims, (at, c) => {
  const s = Math.max(-1, Math.min(1, (mean(to, at, c) - mean(from, at, c)) / (size || 1)));
  const goal = s > 0 ? [178, 58, 38] : [38, 92, 158];
  return goal.map((v) => Math.round(255 + Math.abs(s) * (v - 255)));
});

const METHOD_COLOURS = ["--s0", "--s1", "--s2", "--s3"];
const number = (v) => v === null || v === undefined ? "∞" : Math.abs(v) >= 1000 || (v !== 0 && Math.abs(v) < 0.001)
  ? v.toExponential(2) : String(Number(v.toPrecision(4)));

const seconds = (s) => s < 0.001 ? "< 1 ms" : s < 1 ? `${Math.round(1000 * s)} ms` : `${Number(s.toPrecision(3))} s`;

// Bars per class and method: outputs from lower to upper, or margins from 0. `rows`: classes to show.
const rangesChart = (found, methods, rows, values, label, name, margins, width) => {
  const bar = 7, gap = 12, left = Math.min(110, 26 + 7 * Math.max(...rows.map((k) => name(k).length))), right = 14;
  const height = rows.length * (methods.length * bar + gap) + 30, svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", margins ? "Upper bounds of each class's lead over the label" : "Ranges of the outputs by method");
  const dot = (k) => values && (margins ? values[k] - values[label] : values[k]);
  const ends = rows.flatMap((k) => [dot(k), ...methods.flatMap((m) => margins ? [found[m].margin[k], 0] : [found[m].lower[k], found[m].upper[k]])])
    .filter((v) => v !== null && v !== undefined && Number.isFinite(v));
  let low = Math.min(...ends), high = Math.max(...ends);
  if (!(high > low)) { low -= 1; high += 1; }
  const x = (v) => left + (Math.min(high, Math.max(low, v)) - low) / (high - low) * (width - left - right);
  const bottom = height - 22;
  if (low <= 0 && high >= 0) svg.append(shape("line", { x1: x(0), x2: x(0), y1: 0, y2: bottom, class: "zero" }));
  rows.forEach((k, row) => {
    const top = row * (methods.length * bar + gap) + gap / 2, middle = top + methods.length * bar / 2;
    if (k === label) svg.append(shape("rect", { x: 0, y: top - gap / 2, width, height: methods.length * bar + gap, class: "own" }));
    svg.append(shape("text", { x: left - 8, y: middle + 4, "text-anchor": "end", class: k === label ? "strong" : "" }, name(k)));
    methods.forEach((m, at) => {
      const lower = margins ? Math.min(0, found[m].margin[k] ?? high) : found[m].lower[k] ?? low;
      const upper = margins ? Math.max(0, found[m].margin[k] ?? high) : found[m].upper[k] ?? high;
      if (margins && k === label) return;
      const text = margins ? `${name(k)} minus ${name(label)}, ${m}: at most ${number(found[m].margin[k])}`
        : `${name(k)}, ${m}: ${number(found[m].lower[k])} to ${number(found[m].upper[k])}`;
      svg.append(titled(shape("rect", { x: x(lower), y: top + at * bar, width: Math.max(1.5, x(upper) - x(lower)), height: bar - 1.5, rx: 1.5,
        style: `fill: var(${METHOD_COLOURS[found.order.indexOf(m)]})` }), text));
    });
    const v = dot(k);
    if (v !== null && v !== undefined) svg.append(titled(shape("circle", { cx: x(v), cy: middle, r: 3.2, class: "dot" }), `at the image: ${number(v)}`));
  });
  for (const v of [low, (low + high) / 2, high]) {
    svg.append(shape("text", { x: x(v), y: height - 6, "text-anchor": v === low ? "start" : v === high ? "end" : "middle", class: "tick" }, number(v)));
  }
  return svg;
};

// A tree as boxes below each other, as wide as they have leaves; `walk` is the tree with negative halves first, -1 a leaf.
const treeChart = (walk, units, boxes, width) => {
  let next = 0, deepest = 0;
  const read = (depth, sign) => {
    const unit = walk[next++], node = { unit, depth, sign, leaves: 1, inside: [] };
    deepest = Math.max(deepest, depth);
    if (unit >= 0) {
      node.inside = [read(depth + 1, "≤ 0"), read(depth + 1, "≥ 0")];
      node.leaves = node.inside[0].leaves + node.inside[1].leaves;
    }
    return node;
  };
  const root = read(0, ""), line = 22, svg = shape("svg", { viewBox: `0 0 ${width} ${(deepest + 1) * line}`, role: "img" });
  svg.setAttribute("aria-label", `A tree with ${root.leaves} leaves`);
  const label = (unit) => boxes ? `input ${units[unit][0]}` : `${units[unit][0] + 1}·${units[unit][1]}`;
  const place = (node, from, to) => {
    if (to - from < 0.7) return;
    const leaf = node.unit < 0, what = leaf ? "proved" : boxes ? `cut ${label(node.unit)}` : `split unit ${units[node.unit][1]} of ReLU layer ${units[node.unit][0] + 1}`;
    const colour = leaf ? "--proved" : METHOD_COLOURS[boxes ? 0 : units[node.unit][0] % 4];
    svg.append(titled(shape("rect", { x: from + 0.3, y: node.depth * line, width: Math.max(0.4, to - from - 0.6), height: line - 2, rx: 2,
      style: `fill: var(${colour})`, class: leaf ? "leaf" : "split" }), `${node.sign ? node.sign + ": " : ""}${what} (${node.leaves} ${node.leaves === 1 ? "leaf" : "leaves"})`));
    const text = leaf ? "✓" : label(node.unit);
    if (to - from > 8 * text.length + 6) svg.append(shape("text", { x: (from + to) / 2, y: node.depth * line + 14, "text-anchor": "middle", class: "in" }, text));
    let at = from;
    for (const half of node.inside) {
      const end = at + (to - from) * half.leaves / node.leaves;
      place(half, at, end);
      at = end;
    }
  };
  place(root, 0, width);
  return svg;
};
