// The list of images: filters, orders, thumbnails.
const considered = (image) => image.verdicts.filter((v) => !state.radius || v.eps === state.radius);
const matches = (image) => (!state.class || String(image.label) === state.class) && considered(image).some((v) =>
  (!state.verdict || kind(v) === state.verdict) && (!state.stage || v.stage === state.stage) && (!state.as || String(v.readAs) === state.as));
const least = (values) => values.length ? Math.min(...values) : Infinity;
const SORTS = {
  hardness: (image) => {
    const all = considered(image), open = all.some((v) => v.status !== "robust" && v.status !== "falsified");
    return [open ? 0 : 1, -Math.max(...all.map((v) => v.seconds)), least(all.filter((v) => v.bound !== null).map((v) => Math.abs(v.bound)))];
  },
  number: () => [],
  class: (image) => [image.label],
  "proved furthest": (image) => [-Math.max(-1, ...image.verdicts.filter((v) => v.status === "robust").map((v) => value(v.eps)))],
  "broken first": (image) => [least(image.verdicts.filter((v) => v.status === "falsified").map((v) => v.stage === "clean" ? -1 : value(v.eps)))],
};
let chosen = [], drawn = 0;
const PAGE = 60;
const refresh = () => {
  const keyed = data.images.filter(matches).map((image) => [[...SORTS[state.sort](image), image.i], image]);
  keyed.sort(([a], [b]) => { for (let k = 0; k < a.length; k++) if (a[k] !== b[k]) return a[k] < b[k] ? -1 : 1; return 0; });
  chosen = keyed.map((pair) => pair[1]);
  $("list").replaceChildren();
  drawn = 0;
  const cut = data.images.length < data.total ? ` (the ${data.images.length} hardest of ${data.total.toLocaleString("en")} are in this file)` : "";
  $("count").textContent = `${chosen.length.toLocaleString("en")} of ${data.images.length.toLocaleString("en")} images${cut}`;
  extend();
};
const extend = () => {
  const next = chosen.slice(drawn, drawn + PAGE);
  drawn += next.length;
  $("more").hidden = drawn >= chosen.length;
  const places = new Map();
  $("list").append(...next.map((image) => {
    const broken = considered(image).find((v) => v.status === "falsified" && (!state.as || String(v.readAs) === state.as));
    const dots = make("span", { className: "dots" }, ...image.verdicts.map((v) => make("i", { className: colour(kind(v)), title: `${shown(v.eps)}: ${KINDS[kind(v)]}` })));
    const text = make("span", {}, broken ? `${name(image.label)} → ${name(broken.readAs ?? image.prediction)}` : name(image.label), make("span", { className: "meta" }, `#${image.i}`));
    const picture = make("span");
    places.set(image.i, picture);
    const button = make("button", { type: "button" }, picture, text, dots);
    button.dataset.i = image.i;
    button.addEventListener("click", () => choose(image.i, true));
    return make("li", {}, button);
  }));
  thumbnails(places);
  mark();
};
const thumbnails = async (places) => {
  if (!places.size) return;
  if (known) {
    for (const [i, place] of places) {
      const found = known.images[i], values = floatsOf(found.x ?? Object.values(found.witnesses)[0]);
      place.replaceChildren(values ? imageCanvas(values, found.shape) : make("canvas"));
    }
    return;
  }
  const found = await ask("thumbnails", { i: [...places.keys()].join(",") });
  for (const [i, place] of places) place.replaceChildren(found[i] ? imageCanvas(bytesOf(found[i].bytes), found[i].shape, 255) : make("canvas"));
};
const mark = () => {
  for (const button of $("list").querySelectorAll("button")) {
    const here = Number(button.dataset.i) === state.i;
    button.setAttribute("aria-current", here);
    if (here) button.scrollIntoView({ block: "nearest", inline: "center" });
  }
};
const setFilters = () => {
  const all = data.images.flatMap((image) => image.verdicts);
  const unique = (values) => [...new Set(values)].filter((v) => v !== null && v !== undefined);
  const number = (a, b) => a - b;
  const choices = {
    verdict: ["verdict", Object.keys(KINDS).filter((k) => all.some((v) => kind(v) === k)).map((k) => [k, KINDS[k]])],
    class: ["class", unique(data.images.map((image) => image.label)).sort(number).map((k) => [k, name(k)])],
    as: ["read as", unique(all.map((v) => v.readAs)).sort(number).map((k) => [k, name(k)])],
    stage: ["stage", unique(all.map((v) => v.stage)).map((s) => [s, data.stages[s] || "none"])],
    radius: ["ε", data.radii.map((eps) => [eps, shown(eps)])],
    sort: ["sort by", Object.keys(SORTS).map((s) => [s, s])],
  };
  for (const [key, [label, options]] of Object.entries(choices)) {
    const select = make("select", { id: `filter-${key}` }, ...(key === "sort" ? [] : [new Option("all", "")]), ...options.map(([v, text]) => new Option(text, v)));
    select.addEventListener("change", () => {
      state[key] = select.value;
      if (key === "radius" && select.value) state.eps = select.value;
      refresh();
      if (chosen.length && !chosen.some((image) => image.i === state.i)) choose(chosen[0].i, false); else { remember(false); look(); }
    });
    $("filters").append(make("label", { htmlFor: select.id }, label), select);
  }
};
const showFilters = () => {
  for (const key of ["verdict", "class", "as", "stage", "radius", "sort"]) {
    $(`filter-${key}`).value = state[key];
    if ($(`filter-${key}`).selectedIndex < 0) { state[key] = key === "sort" ? "hardness" : ""; $(`filter-${key}`).value = state[key]; }
  }
};
