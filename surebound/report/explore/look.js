// One image: its verdict in words, its panels, and where the time went.
let turn = 0;  // an answer about an image that is no longer looked at is dropped
const choose = (i, fresh) => { state.i = i; remember(fresh); mark(); look(); };
const step = (by) => {
  const at = chosen.findIndex((image) => image.i === state.i), next = chosen[at < 0 ? 0 : at + by];
  if (!next) return;
  while (drawn < chosen.length && chosen.indexOf(next) >= drawn) extend();
  choose(next.i, true);
};
const slide = (eps) => { state.eps = eps; remember(false); look(); };
const sentence = (image, verdict) => {
  const label = name(image.label), eps = shown(state.eps);
  if (!verdict) return ["open", "not asked", `Nobody asked whether ${label} stays within ${eps}.`];
  if (verdict.status === "robust") return ["proved", "proved", `Whatever changes each pixel by at most ${eps}: the answer stays ${label}.`];
  if (verdict.stage === "clean") return ["wrong", "wrong", `The network reads this ${label} as ${name(verdict.readAs ?? image.prediction)}, without any change.`];
  if (verdict.status === "falsified") return ["broken", `${label} → ${name(verdict.readAs)}`, `A change of at most ${shown(verdict.eps)} makes the network read ${name(verdict.readAs)}.`];
  return ["open", KINDS[verdict.status], `Neither a proof nor a counterexample was found within ${eps}. It counts as attackable.`];
};
const tell = (image, verdict) => {
  const [tone, mark, text] = sentence(image, verdict);
  $("heading").textContent = `Image ${image.i}: ${name(image.label)}`;
  $("verdict").replaceChildren(make("b", { className: tone }, mark), text);
  if (!verdict) { $("how").textContent = ""; return; }
  const parts = [`${verdict.status === "robust" ? "proved" : verdict.status === "falsified" ? "found" : "last tried"} by ${verdict.words || "no stage"}`];
  if (verdict.eps !== state.eps) parts.push(`at ${shown(verdict.eps)}, which ${verdict.status === "robust" ? "contains" : "lies within"} this radius`);
  if (verdict.live) parts.push("just now, not kept");
  parts.push(seconds(verdict.seconds));
  if (verdict.status === "robust") parts.push(`no other class comes closer than ${number(-verdict.bound)}`);
  else if (verdict.bound !== null && verdict.status !== "falsified") parts.push(`some class may lead by ${number(verdict.bound)}`);
  if (verdict.status === "robust") parts.push(verdict.sound ? "for every float32 execution" : "rests on a solver's tolerance");
  if (verdict.detail) parts.push(verdict.detail);
  $("how").textContent = parts.join(" · ");
};
const panelsOf = (image, found, verdict) => {
  const x = floatsOf(found.x), witness = verdict && verdict.status === "falsified" ? floatsOf(verdict.witness ?? found.witnesses[verdict.eps]) : null;
  const panels = [];
  if (x) panels.push({ canvas: imageCanvas(x, found.shape), strong: name(image.label), say: `the image; read as ${name(image.prediction)}` });
  if (witness && verdict.stage !== "clean") {
    panels.push({ canvas: imageCanvas(witness, found.shape), strong: `${name(image.label)} → ${name(verdict.readAs)}`, say: "the counterexample" });
    if (x) {
      const size = x.reduce((most, v, at) => Math.max(most, Math.abs(witness[at] - v)), 0);
      panels.push({ canvas: changeCanvas(x, witness, found.shape, size), strong: `× ${Number((1 / (size || 1)).toPrecision(2))}`, say: "the change, magnified: red brighter, blue darker" });
    }
  }
  return { x, witness, panels };
};
const look = async () => {
  const mine = ++turn, image = byNumber.get(state.i);
  $("look").hidden = !image;
  if (!image) return;
  const verdict = verdictAt(image, state.eps), at = chosen.indexOf(image);
  $("previous").disabled = at <= 0;
  $("next").disabled = at < 0 || at >= chosen.length - 1;
  tell(image, verdict);
  $("eps").textContent = shown(state.eps);
  $("slider").value = data.grid.indexOf(state.eps);
  $("slider").setAttribute("aria-valuetext", shown(state.eps));
  ticks(image);
  const found = await imageOf(image.i);
  if (mine !== turn) return;
  const { x, witness, panels } = panelsOf(image, found, verdict);
  $("panels").replaceChildren(...panels.map((p) => make("figure", {}, p.canvas, make("figcaption", {}, make("b", {}, p.strong), " ", p.say))));
  downloads(image, verdict, found, x, witness, panels);
  stages(verdict && (verdict.stages ?? found.seconds[verdict.eps]));
  await Promise.all([ranges(image, found, mine), proof(image, verdict, mine)]);
};
const ticks = (image) => {
  const last = data.grid.length - 1;
  $("ticks").replaceChildren(...data.radii.map((eps) => {
    const verdict = image.verdicts.find((v) => v.eps === eps), tick = make("span", {}, shown(eps));
    tick.style.left = `${100 * data.grid.indexOf(eps) / last}%`;
    if (verdict) tick.style.setProperty("--c", `var(--${colour(kind(verdict))})`);
    return tick;
  }));
};
const stages = (spent) => {
  $("stagesSection").hidden = !spent || !spent.length;
  const most = Math.max(1e-9, ...(spent ?? []).map((pair) => pair[1]));
  $("stages").replaceChildren(...(spent ?? []).map(([stage, took]) => {
    const bar = make("i");
    bar.style.width = `${100 * took / most}%`;
    return make("div", {}, make("span", {}, data.stages[stage] ?? stage), bar, make("span", {}, seconds(took)));
  }));
};
