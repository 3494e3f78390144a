// Buttons, keys and the first look.
document.querySelector("h1").textContent = data.name;
const totals = data.radii.map((eps) => {
  const all = data.images.flatMap((image) => image.verdicts.filter((v) => v.eps === eps)), proved = all.filter((v) => v.status === "robust").length;
  return `ε ${shown(eps)}: ${proved.toLocaleString("en")} of ${all.length.toLocaleString("en")} proved`;
});
$("summary").textContent = totals.length > 6 ? `${data.images.length.toLocaleString("en")} images, ${totals.length} radii` : totals.join(" · ");
$("notes").textContent = data.notes.join(" ");
$("slider").max = data.grid.length - 1;
$("slider").addEventListener("input", () => slide(data.grid[$("slider").value]));
$("previous").addEventListener("click", () => step(-1));
$("next").addEventListener("click", () => step(1));
$("more").addEventListener("click", extend);
$("help").addEventListener("click", () => $("keys").showModal());
$("liveSection").hidden = !data.live;
$("ask").addEventListener("click", askAgain);
$("liveEps").value = data.radii[data.radii.length - 1];
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  const field = event.target.closest("input, select, textarea");
  if (field && field.id !== "slider") { if (event.key === "Enter" && field.id.startsWith("live")) askAgain(); return; }
  const at = data.grid.indexOf(state.eps), move = (by) => { const eps = data.grid[at + by]; if (eps !== undefined) slide(eps); };
  const arrows = field ? {} : { ArrowRight: () => step(1), ArrowLeft: () => step(-1) };
  const act = { ...arrows, j: () => step(1), k: () => step(-1), "+": () => move(1), "=": () => move(1), "-": () => move(-1),
    v: () => { state.view = state.view === "outputs" ? "margins" : "outputs"; remember(false); look(); },
    d: () => picture && picture(), "?": () => $("keys").showModal() }[event.key]
    ?? (/^[1-9]$/.test(event.key) && data.radii[event.key - 1] ? () => slide(data.radii[event.key - 1]) : null);
  if (act) { event.preventDefault(); act(); }
});
addEventListener("popstate", () => { readAddress(); showFilters(); refresh(); look(); });
let resized;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(look, 150); });
setFilters();
readAddress();
showFilters();
refresh();
if (state.i === null && chosen.length) {
  state.i = chosen[0].i;
  if (!/[#&]eps=/.test(location.hash)) state.eps = chosen[0].verdicts.at(-1).eps;  // the largest that was asked about it
}
remember(false);
mark();
look();
