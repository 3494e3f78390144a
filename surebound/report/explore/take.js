// What a visitor takes away, picture and arrays, and asks for: another radius.
const stem = (image, verdict) => `image-${image.i}-eps-${(verdict ? verdict.eps : state.eps).replace("/", "-")}`;
let picture = null;
const downloads = (image, verdict, found, x, witness, panels) => {
  const button = (text, act) => { const made = make("button", { type: "button" }, text); made.addEventListener("click", act); return made; };
  const parts = [];
  picture = panels.length ? () => drawPicture(image, verdict, panels) : null;
  if (picture) parts.push(button("picture", picture));
  parts.push(button("npz", () => {
    const files = { "label.npy": npy(Int32Array.of(image.label), []), "eps.npy": npy(Float64Array.of(value(verdict ? verdict.eps : state.eps)), []) };
    if (x) files["image.npy"] = npy(x, found.shape);
    if (witness) { files["counterexample.npy"] = npy(witness, found.shape); files["read_as.npy"] = npy(Int32Array.of(verdict.readAs ?? image.prediction), []); }
    save(new Blob([zip(files)], { type: "application/octet-stream" }), `${stem(image, verdict)}.npz`);
  }));
  if (verdict && verdict.certified) {
    const here = known && known.certificates[`${image.i} ${verdict.eps}`];
    if (!known) parts.push(make("a", { className: "button", href: "certificate.cert?" + new URLSearchParams({ i: image.i, eps: verdict.eps }) }, "certificate"));
    else if (here && here.content) parts.push(button("certificate", () => save(new Blob([bytesOf(here.content)], { type: "application/octet-stream" }), here.file)));
  }
  const close = image.verdicts.filter((v) => v.status === "falsified" && v.stage !== "clean").sort((a, b) => value(a.eps) - value(b.eps))[0];
  if (close && !witness && data.grid.includes(close.eps)) parts.push(button(`closest counterexample: ${shown(close.eps)}`, () => slide(close.eps)));
  $("downloads").replaceChildren(...parts);
};
const drawPicture = (image, verdict, panels) => {
  const size = 240, gap = 16, canvas = make("canvas", { width: panels.length * (size + gap) + gap, height: size + 84 });
  const draw = canvas.getContext("2d");
  draw.fillStyle = "#fefefd"; draw.fillRect(0, 0, canvas.width, canvas.height);
  draw.imageSmoothingEnabled = false;
  panels.forEach((p, at) => {
    const scale = size / Math.max(p.canvas.width, p.canvas.height), left = gap + at * (size + gap);
    draw.drawImage(p.canvas, left, gap, p.canvas.width * scale, p.canvas.height * scale);
    draw.fillStyle = "#1d2328"; draw.font = "600 16px system-ui, sans-serif"; draw.fillText(p.strong, left, size + gap + 22, size);
    draw.fillStyle = "#69737c"; draw.font = "13px system-ui, sans-serif"; draw.fillText(p.say, left, size + gap + 42, size);
  });
  draw.fillStyle = "#69737c"; draw.font = "13px system-ui, sans-serif";
  draw.fillText(`${data.name}, image ${image.i}, ε = ${shown(verdict ? verdict.eps : state.eps)}${verdict ? `: ${sentence(image, verdict)[1]}` : ""}`, gap, size + 76);
  canvas.toBlob((blob) => save(blob, `${stem(image, verdict)}.png`));
};

// -- ask again ---------------------------------------------------------------------------------------------------
const askAgain = async () => {
  const image = byNumber.get(state.i), eps = $("liveEps").value.trim();
  if (!/^\d{1,9}(\/[1-9]\d{0,8}|\.\d{1,12})?$/.test(eps)) { $("liveState").textContent = "Give a radius like 1/10, 8/255 or 0.1."; return; }
  $("ask").disabled = true;
  $("liveState").textContent = `deciding image ${image.i} within ${eps}…`;
  try {
    const answer = await fetch("verify", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ i: image.i, eps, seconds: Number($("liveSeconds").value) }) });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    const at = value(found.eps);
    if (!data.grid.includes(found.eps)) {
      data.grid = [...data.grid, found.eps].sort((a, b) => value(a) - value(b));
      $("slider").max = data.grid.length - 1;
    }
    if (!(found.eps in data.shown)) data.shown[found.eps] = String(Number(at.toPrecision(4))) === eps ? eps : found.eps;
    image.verdicts = [...image.verdicts.filter((v) => v.eps !== found.eps || !v.live), { ...found, live: true }]
      .sort((a, b) => value(a.eps) - value(b.eps));
    const [, mark, text] = (state.eps = found.eps, sentence(image, found));
    $("liveState").textContent = `${mark}. ${text} (${found.words || "no stage"}, ${seconds(found.seconds)}; shown, not kept)`;
    if (state.i === image.i) { remember(false); look(); }
  } catch (error) { $("liveState").textContent = error.message; }
  $("ask").disabled = false;
};
