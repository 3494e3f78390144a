// What a verdict rests on: the ranges of the outputs, the certificate and its trees.
const ranges = async (image, found, mine) => {
  $("rangesSection").hidden = !data.methods.length || !found.x;
  if ($("rangesSection").hidden) return;
  if (!known) $("rangesNote").textContent = "computing…";
  let answer;
  try { answer = await rangesOf(image.i, state.eps); } catch (error) { $("rangesNote").textContent = error.message; return; }
  if (mine !== turn) return;
  const order = Object.keys(answer), methods = order.filter((m) => !hidden.has(m)), margins = state.view === "margins";
  if (!order.length) { $("rangesNote").textContent = "There are no bounds for this network."; return; }
  const reach = (k) => Math.max(...order.map((m) => (margins ? answer[m].margin[k] : answer[m].upper[k]) ?? Infinity));
  const others = answer[order[0]].lower.map((_, k) => k).filter((k) => k !== image.label).sort((a, b) => reach(b) - reach(a)).slice(0, 11);
  const rows = [image.label, ...others].sort((a, b) => a - b);
  const toggle = (text, pressed, change, tint) => {
    const button = make("button", { type: "button", "aria-pressed": String(pressed) }, text);
    if (tint) button.style.setProperty("--c", `var(${tint})`);
    button.addEventListener("click", () => { change(); remember(false); look(); });
    return button;
  };
  $("views").replaceChildren(
    ...["outputs", "margins"].map((view) => toggle(view, state.view === view, () => { state.view = view; })),
    ...order.map((m, at) => toggle(m, !hidden.has(m), () => { if (!hidden.delete(m) && methods.length > 1) hidden.add(m); }, METHOD_COLOURS[at])));
  $("ranges").replaceChildren(rangesChart({ ...answer, order }, methods, rows, found.values, image.label, name, margins, Math.max(300, $("look").clientWidth)));
  const proving = order.filter((m) => answer[m].proved), word = proving.length ? `proves it: ${proving.join(", ")}` : "none of these bounds alone is a proof";
  const what = margins ? "How far each class may lead the label, at most; a proof has every bar left of 0." : "The range of every output over the ball; the dot is its value at the image.";
  $("rangesNote").textContent = `${what} Within ${shown(state.eps)} ${word}.`;
};
const proof = async (image, verdict, mine) => {
  const there = verdict && verdict.certified;
  $("proofSection").hidden = !there && !(verdict && verdict.status === "robust");
  $("trees").replaceChildren();
  if (!there) {
    $("certificate").textContent = data.certificates ? "This verdict has no certificate." : "No certificates were written; surebound verify --certificates RUN/certificates writes them.";
    return;
  }
  if (!known) $("certificate").textContent = "checking…";
  let found;
  try { found = await certificateOf(image.i, verdict.eps); } catch (error) { $("certificate").textContent = error.message; return; }
  if (mine !== turn) return;
  const said = { valid: `confirmed by the checker; ${verdict.status === "robust" ? `its worst bound is ${number(found.worst)}` : "the counterexample holds"}`,
    rejected: `REJECTED by the checker: ${found.said}`, unchecked: `not checked: ${found.said}` }[found.state];
  $("certificate").textContent = `Certificate ${found.file} (${found.bytes.toLocaleString("en")} bytes, ${found.mode === "deployed" ? "every float32 execution" : "over the reals"}): ${said}.`;
  const BY = { interval: "interval bounds", "crown-ibp": "linear bounds over interval bounds", crown: "linear bounds", splits: "branch and bound on signs of ReLU inputs", boxes: "branch and bound on the input box" };
  const width = Math.max(300, $("look").clientWidth);
  for (const each of found.proofs) {
    const of = `${each.classes.map(name).join(", ")} cannot win`, how = BY[each.by] ?? each.by;
    if (each.leaves === undefined) { $("trees").append(make("p", { className: "meta" }, `${of}: ${how}`)); continue; }
    const boxes = each.by === "boxes", units = each.unstable === undefined ? "" : `, ${each.split} of ${each.unstable} ReLUs without a sign are split`;
    const box = make("details", { open: each.leaves > 1 }, make("summary", {}, `${of}: ${how}, ${each.leaves} ${each.leaves === 1 ? "leaf" : "leaves"}${units}`));
    if (each.leaves > 1) {
      if (each.tree) box.append(treeChart(each.tree, each.units, boxes, width)); else box.append(make("p", { className: "meta" }, "The tree is too large to draw."));
      const most = each.neurons.map((row) => boxes ? `input ${row[0]} (${row[1]}×)` : `${row[0] + 1}·${row[1]} (${row[2]}×)`).join(", ");
      box.append(make("p", { className: "meta" }, `${boxes ? "cut" : "split most, as layer·unit"}: ${most}`));
    }
    $("trees").append(box);
  }
};
