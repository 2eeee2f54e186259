// The parts of the page that need a script: tooltips of points, selectors of plots, series that are hidden and shown, sorting and
// filtering of tables, copies and downloads.
const tip = document.getElementById("tip");
function show(event) {
  const text = event.target.dataset && event.target.dataset.tip;
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - width - 6);
  const above = event.clientY - height - 14;
  tip.style.left = Math.max(6, left) + "px";
  tip.style.top = (above > 4 ? above : event.clientY + 18) + "px";
}
addEventListener("pointermove", show);
addEventListener("pointerdown", show);
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
// The tooltip replaces a point's title element, which the browser shows when no script runs.
document.querySelectorAll(".tip > title").forEach(title => title.remove());

function element(name, text, properties) {
  return Object.assign(document.createElement(name), { textContent: text }, properties);
}
function button(text, label, click) {
  const made = element("button", text, { type: "button" });
  made.setAttribute("aria-label", label);
  made.addEventListener("click", () => click(made));
  return made;
}
function download(name, type, text) {
  const link = element("a", "", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
function file(text) {
  return text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60);
}

// Selectors: of the plots with the same names of choices, one is shown.
document.querySelectorAll(".choices").forEach(group => {
  const names = JSON.parse(group.dataset.names);
  const plots = [...group.querySelectorAll("figure")].map(figure => ({ figure, values: JSON.parse(figure.dataset.values) }));
  let chosen = plots[0].values;
  const bar = element("p", "", { className: "selectors" });
  const selects = names.map((name, at) => {
    const values = [...new Set(plots.map(plot => plot.values[at]))];
    const label = element("label", name + " ");
    const select = element("select", "");
    values.forEach(value => select.append(element("option", value, { value })));
    label.append(select);
    if (values.length > 1) bar.append(label);
    select.addEventListener("change", () => choose(at, select.value));
    return select;
  });
  function choose(at, value) {
    const shared = plot => plot.values.filter((other, place) => other === chosen[place]).length;
    const fitting = plots.filter(plot => plot.values[at] === value).sort((a, b) => shared(b) - shared(a));
    chosen = fitting[0].values;
    draw();
  }
  function draw() {
    plots.forEach(plot => { plot.figure.hidden = plot.values !== chosen; });
    selects.forEach((select, at) => {
      select.value = chosen[at];
      // `*` marks a value that no plot combines with the other choices: selecting it changes those choices too.
      [...select.options].forEach(option => {
        const exists = plots.some(plot => plot.values.every((value, place) => value === (place === at ? option.value : chosen[place])));
        option.textContent = option.value + (exists ? "" : " *");
      });
    });
  }
  if (plots.length > 1) group.prepend(bar);
  draw();
});

// Entries of a legend hide and show their series: in every plot of a group, the entries of the same name and marker. An entry of
// which the plot draws nothing has no button.
function shapesOf(entry) {
  return entry.closest("figure").querySelectorAll(`svg [data-series="${entry.dataset.series}"]`);
}
function toggle(entry, shown) {
  entry.querySelector("button").setAttribute("aria-pressed", String(shown));
  shapesOf(entry).forEach(shape => {
    if (shown) shape.removeAttribute("display");
    else shape.setAttribute("display", "none");
  });
}
document.querySelectorAll(".legend li").forEach(entry => {
  if (shapesOf(entry).length === 0) return;
  const made = element("button", "", { type: "button", title: "Hide or show this series" });
  made.append(...entry.childNodes);
  made.setAttribute("aria-pressed", "true");
  made.addEventListener("click", () => {
    const shown = made.getAttribute("aria-pressed") !== "true";
    const plots = entry.closest(".choices") || entry.closest("figure");
    const same = other => other.textContent === entry.textContent && other.className === entry.className;
    [...plots.querySelectorAll(".legend li:has(button)")].filter(same).forEach(other => toggle(other, shown));
  });
  entry.append(made);
});

// A figure as a file: the wide drawing with its colours written out.
document.querySelectorAll("figure").forEach(figure => {
  const caption = figure.querySelector("figcaption").textContent;
  figure.append(button("Save SVG", "Save this plot as an SVG file: " + caption, () => {
    const drawn = figure.querySelector("svg.wide").cloneNode(true);
    drawn.setAttribute("xmlns", ["http:", "", "www.w3.org", "2000", "svg"].join("/"));
    drawn.setAttribute("style", "font-family: sans-serif; background: " + colour("--card"));
    const text = drawn.outerHTML.replace(/var\((--[a-z0-9]+)\)/g, (_, name) => colour(name));
    download(file(caption) + ".svg", "image/svg+xml", text.replace(/class="tip"/g, 'fill="none"'));
  }));
});
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Numbers with units compare as numbers: 1 GiB, 12.5k, 98 %.
const scale = { k: 1e3, M: 1e6, G: 1e9, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, B: 1, us: 1, ms: 1e3, s: 1e6, "%": 1, x: 1, "": 1 };
function number(text) {
  const parts = /^([-+]?[\d.,]+(?:e[-+]?\d+)?) ?([A-Za-z%]*)$/.exec(text.trim());
  return parts && parts[2] in scale ? parseFloat(parts[1].replace(/,/g, "")) * scale[parts[2]] : NaN;
}
document.querySelectorAll("table").forEach(table => {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const region = table.closest(".scroll"), caption = region.getAttribute("aria-label");
  heads.forEach((head, column) => {
    const cells = rows.map(row => row.cells[column]).filter(cell => cell && cell.textContent !== "");
    const numeric = cells.length > 0 && cells.every(cell => !Number.isNaN(number(cell.textContent)));
    if (numeric) [head, ...cells].forEach(cell => cell.classList.add("n"));
    const name = head.textContent;
    head.textContent = "";
    head.append(button(name, "Sort by " + name, () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => row.cells[column] ? row.cells[column].textContent : "";
      const order = (a, b) => numeric ? (number(key(a)) || 0) - (number(key(b)) || 0) : key(a).localeCompare(key(b));
      rows.sort(order);
      if (down) rows.reverse();
      body.append(...rows);
    }));
  });
  const tools = element("p", "", { className: "tools" });
  if (rows.length > 12) {
    const filter = element("input", "", { type: "search", placeholder: "filter rows" });
    filter.setAttribute("aria-label", "Show only the rows with this text: " + caption);
    filter.addEventListener("input", () => rows.forEach(row => {
      row.hidden = !row.textContent.toLowerCase().includes(filter.value.toLowerCase());
    }));
    tools.append(filter);
  }
  tools.append(button("Save CSV", "Save this table as a CSV file: " + caption, () => {
    const quoted = cell => '"' + cell.textContent.replace(/"/g, '""') + '"';
    const lines = [heads, ...rows.map(row => [...row.cells])].map(cells => cells.map(quoted).join(","));
    download(file(caption) + ".csv", "text/csv", lines.join("\r\n") + "\r\n");
  }));
  region.before(tools);
});

// Commands with a button that copies them.
document.querySelectorAll("pre code").forEach(code => {
  const command = code.textContent;
  code.append(button("Copy", "Copy the command " + command, async made => {
    try {
      await navigator.clipboard.writeText(command);
    } catch (refused) {
      const area = element("textarea", command, { value: command });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    made.textContent = "Copied";
    setTimeout(() => { made.textContent = "Copy"; }, 1500);
  }));
});

// The link of the section on screen is marked in the contents.
const links = new Map([...document.querySelectorAll("nav.contents a")].map(link => [link.getAttribute("href").slice(1), link]));
const seen = new IntersectionObserver(entries => entries.forEach(entry => {
  if (!entry.isIntersecting) return;
  links.forEach(link => link.removeAttribute("aria-current"));
  const link = links.get(entry.target.id);
  if (link) link.setAttribute("aria-current", "true");
}), { rootMargin: "0px 0px -70% 0px" });
document.querySelectorAll("section[id]").forEach(section => seen.observe(section));
// A link to a folded part opens it.
function unfold() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const folded = target && target.querySelector(":scope > details.part");
  if (folded) folded.open = true;
}
addEventListener("hashchange", unfold);
unfold();
