// Checks the report page that this script was added to, and posts what is wrong to the frame around the page.
addEventListener("error", event => problems.errors.push(event.message));
const problems = { overflowing: [], overlapping: [], unreachable: [], faint: [], errors: [] };

function visible(element) {
  const box = element.getBoundingClientRect();
  return box.width > 0 && box.height > 0 && getComputedStyle(element).visibility !== "hidden";
}
function named(element) {
  const text = element.textContent.trim().slice(0, 40);
  return element.tagName.toLowerCase() + (element.id ? "#" + element.id : "") + (text ? ": " + text : "");
}

// The page is as wide as the window, and nothing outside a scrolling region reaches over its edge.
function overflow() {
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) problems.overflowing.push(`the page is ${wide} px wide`);
  document.querySelectorAll("body *").forEach(element => {
    if (element.closest(".scroll, nav, svg, .skip") || !visible(element)) return;
    if (element.getBoundingClientRect().right > innerWidth + 1) problems.overflowing.push(named(element));
  });
}

// Boxes of text and controls that do not contain each other do not touch each other.
function overlap() {
  const all = [...document.querySelectorAll(
    "h1, h2, p, li, figcaption, summary, .scroll, button, select, input, label, pre, dt, dd, figure svg"
  )].filter(element => visible(element) && !element.closest("nav, table, .skip, [hidden]"));
  const boxes = all.map(element => ({ element, box: element.getBoundingClientRect() }));
  boxes.sort((a, b) => a.box.top - b.box.top);
  boxes.forEach(({ element, box }, at) => {
    for (let next = at + 1; next < boxes.length && boxes[next].box.top < box.bottom - 1; next += 1) {
      const other = boxes[next];
      if (element.contains(other.element) || other.element.contains(element)) continue;
      const wide = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left);
      const high = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
      if (wide > 1 && high > 1) problems.overlapping.push(named(element) + " | " + named(other.element));
    }
  });
  return boxes.length;
}

// Everything that reacts to a click can take the focus, and so can scrolling regions.
function keyboard() {
  const all = [...document.querySelectorAll("a[href], button, select, input, summary, .scroll")].filter(visible);
  all.forEach(element => {
    element.focus({ preventScroll: true });
    if (document.activeElement !== element || element.tabIndex < 0) problems.unreachable.push(named(element));
    const name = element.getAttribute("aria-label") || element.textContent.trim() || (element.labels && element.labels.length);
    if (!name) problems.unreachable.push("no name: " + named(element));
  });
  document.activeElement.blur();
  return all.length;
}

function rgb(text) {
  const parts = text.match(/[\d.]+/g).map(Number);
  return { colour: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1 };
}
function luminance(colour) {
  const [r, g, b] = colour.map(part => part / 255).map(part => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
}
function contrast(a, b) {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + .05) / (low + .05);
}
function background(element) {
  for (let at = element; at; at = at.parentElement) {
    const { colour, alpha } = rgb(getComputedStyle(at).backgroundColor);
    if (alpha === 1) return colour;
  }
  return [255, 255, 255];
}
// Text has a contrast of 4.5 or more, the colours of curves one of 3 or more (WCAG 2.1, AA).
function legible() {
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || element.closest("script, style, title, [hidden]") || !visible(element)) continue;
    const style = getComputedStyle(element);
    const colour = rgb(element.namespaceURI.endsWith("svg") ? style.fill : style.color).colour;
    const ratio = contrast(colour, background(element));
    texts += 1;
    if (ratio < 4.5) problems.faint.push(`${ratio.toFixed(2)} ${named(element)}`);
  }
  document.querySelectorAll(".legend li").forEach(entry => {
    const probe = entry.appendChild(document.createElement("b"));
    probe.style.color = entry.style.getPropertyValue("--key");
    const ratio = contrast(rgb(getComputedStyle(probe).color).colour, background(entry));
    probe.remove();
    if (ratio < 3) problems.faint.push(`${ratio.toFixed(2)} ${named(entry)}`);
  });
  return texts;
}

// The elements of a legend's entry in both drawings of its plot.
function shapes(entry) {
  return [...entry.closest("figure").querySelectorAll(`svg [data-series="${entry.dataset.series}"]`)];
}
// An entry of a legend hides the elements of its series and no others, in all plots of its group, and shows them again.
function series() {
  const all = [...document.querySelectorAll(".legend li")];
  const entries = all.filter(entry => entry.querySelector("button"));
  all.filter(entry => !entries.includes(entry) && shapes(entry).length > 0)
    .forEach(entry => problems.errors.push("no button: " + named(entry)));
  const hidden = entry => shapes(entry).every(shape => getComputedStyle(shape).display === "none");
  const pressed = entry => entry.querySelector("button").getAttribute("aria-pressed");
  entries.forEach(entry => {
    const wrong = what => problems.errors.push(`${what}: ${named(entry)} of ${named(entry.closest("figure"))}`);
    const plots = entry.closest(".choices") || entry.closest("figure");
    const same = other => plots.contains(other) && other.textContent === entry.textContent && other.className === entry.className;
    if (shapes(entry).length < 2) wrong("no elements");
    entry.querySelector("button").click();
    entries.forEach(other => {
      if (same(other) ? !hidden(other) || pressed(other) !== "false" : shapes(other).some(shape => shape.hasAttribute("display"))) {
        wrong("not the series of this entry alone is hidden");
      }
    });
    entry.querySelector("button").click();
    if (hidden(entry) || pressed(entry) !== "true") wrong("a series stays hidden");
  });
  return entries.length;
}

// The buttons of commands, tables and plots copy the text that the page shows, also if a series is hidden.
function handed() {
  const given = { copied: null, name: null, text: null };
  Object.defineProperty(navigator, "clipboard", {
    configurable: true,
    value: { writeText: text => { given.copied = text; return Promise.resolve(); } },
  });
  Object.assign(window, { Blob: class { constructor(parts) { given.text = parts.join(""); } } });
  URL.createObjectURL = () => "#";
  URL.revokeObjectURL = () => {};
  HTMLAnchorElement.prototype.click = function () { given.name = this.download; };
  const equal = (what, found, expected) => {
    if (found !== expected) problems.errors.push(`${what}: ${String(found).slice(0, 200)}, not ${String(expected).slice(0, 200)}`);
  };
  const find = (root, text) => [...root.querySelectorAll("button")].find(made => made.textContent === text);

  const code = document.querySelector("pre code");
  find(code, "Copy").click();
  equal("copied", given.copied, code.firstChild.textContent);

  const table = document.querySelector("table");
  find(table.closest("details"), "Save CSV").click();
  const row = cells => [...cells].map(cell => '"' + cell.textContent.replaceAll('"', '""') + '"').join(",") + "\r\n";
  equal("CSV", given.text, [...table.rows].map(line => row(line.cells)).join(""));
  equal("end of the CSV file's name", given.name.slice(-4), ".csv");

  const figure = [...document.querySelectorAll("figure")].find(plot => plot.querySelector(".legend button"));
  const entry = figure.querySelector(".legend li"), drawn = figure.querySelector("svg.wide");
  entry.querySelector("button").click();
  find(figure, "Save SVG").click();
  const saved = new DOMParser().parseFromString(given.text, "image/svg+xml").documentElement;
  equal("SVG", saved.localName + " " + saved.namespaceURI, "svg " + drawn.namespaceURI);
  equal("texts of the SVG file", saved.textContent, drawn.textContent);
  const count = root => root.querySelectorAll("*").length + ", hidden: " + root.querySelectorAll('[display="none"]').length;
  equal("elements of the SVG file", count(saved), count(drawn));
  equal("colours of the page's style", given.text.includes("var("), false);
  equal("end of the SVG file's name", given.name.slice(-4), ".svg");
  entry.querySelector("button").click();
  return 3;
}

// The controls do what they say: a sorted column is in order, a selector changes the plot, a filter hides rows, an entry of a
// legend hides a series, and the buttons hand over what is shown.
function controls() {
  const counts = { sorted: 0, selected: 0, filtered: 0, series: series(), handed: handed() };
  document.querySelectorAll("table").forEach(table => {
    const head = [...table.tHead.rows[0].cells].find(cell => cell.classList.contains("n"));
    if (!head || table.tBodies[0].rows.length < 3) return;
    const values = () => [...table.tBodies[0].rows].map(row => number(row.cells[head.cellIndex].textContent) || 0);
    head.querySelector("button").click();
    const rising = values().every((value, at, all) => at === 0 || all[at - 1] <= value);
    head.querySelector("button").click();
    const falling = values().every((value, at, all) => at === 0 || all[at - 1] >= value);
    if (!rising || !falling) problems.errors.push("not sorted: " + named(table));
    counts.sorted += 1;
  });
  document.querySelectorAll(".selectors select").forEach(select => {
    const shown = () => [...select.closest(".choices").querySelectorAll("figure:not([hidden])")];
    [...select.options].forEach(option => {
      select.value = option.value;
      select.dispatchEvent(new Event("change"));
      const now = shown();
      if (now.length !== 1 || !now[0].dataset.values.includes(JSON.stringify(option.value).slice(1, -1))) {
        problems.errors.push(`${option.value} shows ${now.length} plots`);
      }
    });
    counts.selected += 1;
  });
  document.querySelectorAll("input[type=search]").forEach(filter => {
    const rows = [...filter.closest("details").querySelectorAll("tbody tr")];
    filter.value = rows[0].cells[0].textContent;
    filter.dispatchEvent(new Event("input"));
    if (rows[0].hidden) problems.errors.push("a row that fits is hidden");
    filter.value = "no row has this text";
    filter.dispatchEvent(new Event("input"));
    if (rows.some(row => !row.hidden)) problems.errors.push("a row that does not fit is shown");
    filter.value = "";
    filter.dispatchEvent(new Event("input"));
    counts.filtered += 1;
  });
  return counts;
}

addEventListener("load", () => {
  try {
    document.querySelectorAll("details").forEach(details => { details.open = true; });
    const counts = controls();
    overflow();
    const boxes = overlap(), focusable = keyboard(), texts = legible();
    const scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const first = kind => { problems[kind] = problems[kind].slice(0, 10); };
    Object.keys(problems).forEach(first);
    parent.postMessage(JSON.stringify({ width: innerWidth, scheme, boxes, focusable, texts, ...counts, ...problems }), "*");
  } catch (error) {
    parent.postMessage(JSON.stringify({ failed: String(error.stack) }), "*");
  }
});
