"use strict";
(() => {
  // The number a cell begins with ("8/255" counts as a fraction), or its text.
  const value = (text) => {
    const clean = text.trim().replace(/,/g, "").replace(/−/g, "-");
    const fraction = /^(\d+)\/(\d+)$/.exec(clean);
    if (fraction) return fraction[1] / fraction[2];
    const number = parseFloat(clean);
    return Number.isNaN(number) ? clean.toLowerCase() : number;
  };
  const order = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b
    : typeof a === "number" ? -1 : typeof b === "number" ? 1 : a < b ? -1 : a > b ? 1 : 0;
  const toggle = (header) => {
    const down = header.getAttribute("aria-sort") === "ascending";
    for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    return down ? -1 : 1;
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((header, column) => {
      header.querySelector("button").addEventListener("click", () => {
        const sign = toggle(header), body = table.tBodies[0];
        const rows = [...body.rows].map((row) => [value(row.cells[column].textContent), row]);
        rows.sort((a, b) => sign * order(a[0], b[0]));
        body.append(...rows.map((pair) => pair[1]));
      });
    });
  }

  const dialog = document.querySelector("dialog");
  for (const tile of document.querySelectorAll(".tile")) {
    tile.addEventListener("click", () => {
      const panels = dialog.querySelector(".panels");
      panels.replaceChildren(...[...tile.querySelectorAll("img")].map((image) => {
        const figure = document.createElement("figure"), caption = document.createElement("figcaption");
        caption.textContent = image.alt;
        figure.append(image.cloneNode(), caption);
        return figure;
      }));
      dialog.querySelector("p").textContent = tile.querySelector("b").textContent + " · " + tile.querySelector(".say").textContent;
      dialog.showModal();
    });
  }
  if (dialog) dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const pre = button.parentNode.querySelector("pre");
      try {
        await navigator.clipboard.writeText(pre.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(pre);
      }
    });
  }

  const source = document.getElementById("records");
  if (!source) return;
  const { runs, rows } = JSON.parse(source.textContent), PAGE = 50;
  const table = document.getElementById("images"), body = table.tBodies[0];
  const more = document.querySelector(".more"), counter = document.getElementById("shown");
  const filters = [...document.querySelectorAll(".filters select")];
  const keys = [0, 2, 5];  // run, radius, status
  let chosen = rows, shown = 0;
  const cell = (row, column) => column === 0 ? runs[row[0]] : row[column];
  filters.forEach((select, i) => {
    const found = [...new Set(rows.map((row) => String(cell(row, keys[i]))))].sort((a, b) => order(value(a), value(b)));
    if (found.length < 2) { select.parentNode.hidden = true; return; }
    select.append(...found.map((name) => new Option(name, name)));
    select.addEventListener("change", refresh);
  });
  const extend = () => {
    const next = chosen.slice(shown, shown + PAGE);
    body.append(...next.map((row) => {
      const line = document.createElement("tr");
      row.forEach((_, column) => {
        if (column === 0 && runs.length < 2) return;
        const td = line.insertCell();
        const text = cell(row, column) ?? "–";
        if (Array.isArray(text)) {  // a certificate: its state and where it is
          const link = document.createElement("a");
          [link.textContent, link.href] = text;
          td.append(link);
        } else td.textContent = text;
        if ([1, 2, 3, 4, 7, 8, 9].includes(column)) td.className = "n";
      });
      return line;
    }));
    shown += next.length;
    more.hidden = shown >= chosen.length;
    counter.textContent = `${shown.toLocaleString("en")} of ${chosen.length.toLocaleString("en")}`;
  };
  function refresh() {
    chosen = rows.filter((row) => filters.every((s, i) => !s.value || String(cell(row, keys[i])) === s.value));
    resort(table.querySelector("th[aria-sort]"));
  }
  function resort(header) {
    if (header) {
      const column = Number(header.dataset.column), sign = header.getAttribute("aria-sort") === "ascending" ? 1 : -1;
      const parsed = new Map(chosen.map((row) => {
        const raw = cell(row, column);
        return [row, raw === null ? "" : typeof raw === "number" ? raw : value(String(raw))];
      }));
      chosen = [...chosen].sort((a, b) => sign * order(parsed.get(a), parsed.get(b)));
    }
    body.replaceChildren();
    shown = 0;
    extend();
  }
  for (const header of table.tHead.rows[0].cells) {
    if (runs.length < 2 && header.dataset.column === "0") { header.hidden = true; }
    header.querySelector("button").addEventListener("click", () => { toggle(header); resort(header); });
  }
  more.addEventListener("click", extend);
  resort(null);
})();
