// What is known: the page's data, verdicts at any radius, what this machine is asked for, and the address that leads back.
const data = JSON.parse(document.getElementById("data").textContent);
const known = JSON.parse(document.getElementById("known").textContent);
const $ = (id) => document.getElementById(id);
const value = (text) => { const [a, b] = text.split("/"); return b === undefined ? Number(a) : a / b; };
const name = (k) => k === null || k === undefined ? "?" : data.classes[k] ?? String(k);
const shown = (eps) => data.shown[eps] ?? eps;
const VERDICT = ["radius", "status", "stage", "bound", "seconds", "readAs", "sound", "certified", "detail"];
for (const image of data.images) {
  image.verdicts = image.verdicts.map((row) => {
    const found = Object.fromEntries(VERDICT.map((key, at) => [key, row[at]]));
    return { ...found, eps: data.radii[found.radius], words: data.stages[found.stage] };
  });
}
const byNumber = new Map(data.images.map((image) => [image.i, image]));
const kind = (v) => v.status === "robust" ? "proved" : v.status !== "falsified" ? v.status : v.stage === "clean" ? "wrong" : "broken";
const colour = (k) => ({ proved: "proved", broken: "broken", wrong: "wrong" })[k] ?? "open";
const KINDS = { proved: "proved", broken: "counterexample", wrong: "wrong without change", unknown: "unknown", timeout: "out of time", error: "error" };

// What is known of an image at a radius: a proof holds at every smaller one, a counterexample at every larger one.
const verdictAt = (image, eps) => {
  const decided = (v) => v.status === "robust" || v.status === "falsified";
  const at = value(eps), same = image.verdicts.filter((v) => v.eps === eps), here = same.find(decided) ?? same[same.length - 1];
  if (here && decided(here)) return here;
  const sorted = [...image.verdicts].sort((a, b) => value(a.eps) - value(b.eps));
  return sorted.find((v) => v.status === "robust" && value(v.eps) > at)
    ?? sorted.find((v) => v.status === "falsified" && value(v.eps) < at) ?? here ?? null;
};

// -- what the page asks for: this machine, or what it carries ----------------------------------------------------
const kept = new Map();
const ask = async (path, query) => {
  const url = path + "?" + new URLSearchParams(query);
  if (!kept.has(url)) {
    kept.set(url, fetch(url).then(async (answer) => {
      const found = await answer.json();
      if (!answer.ok) throw new Error(found.error);
      return found;
    }));
    kept.get(url).catch(() => kept.delete(url));
  }
  return kept.get(url);
};
const imageOf = (i) => known ? Promise.resolve(known.images[i]) : ask("image", { i });
const rangesOf = (i, eps) => known ? Promise.resolve(known.ranges[i]?.[eps] ?? {}) : data.methods.length ? ask("ranges", { i, eps }) : Promise.resolve({});
const certificateOf = (i, eps) => known ? Promise.resolve(known.certificates[`${i} ${eps}`]) : ask("certificate", { i, eps });

// -- state and address -------------------------------------------------------------------------------------------
const state = { i: null, eps: data.radii[data.radii.length - 1], verdict: "", class: "", as: "", stage: "", radius: "", sort: "hardness", view: "outputs" };
const hidden = new Set();
const address = () => {
  const parts = Object.entries(state).filter(([key, v]) => v !== "" && v !== null && !(key === "sort" && v === "hardness") && !(key === "view" && v === "outputs"));
  return "#" + new URLSearchParams(parts).toString().replaceAll("%2F", "/");
};
const readAddress = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const key of ["verdict", "class", "as", "stage", "radius", "sort", "view"]) if (given.has(key)) state[key] = given.get(key);
  if (data.grid.includes(given.get("eps"))) state.eps = given.get("eps");
  if (byNumber.has(Number(given.get("i"))) && given.get("i")) state.i = Number(given.get("i"));
};
const remember = (fresh) => history[fresh ? "pushState" : "replaceState"](null, "", address());
