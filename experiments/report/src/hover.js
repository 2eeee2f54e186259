// Shows the text of the point under the pointer or finger, and sets columns of numbers to the right.
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
// The tooltip stands in for the plain one that works without a script.
document.querySelectorAll(".tip > title").forEach(title => title.remove());
document.querySelectorAll("table").forEach(table => {
  const rows = [...table.tBodies[0].rows];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const cells = rows.map(row => row.cells[column]).filter(cell => cell && cell.textContent !== "");
    if (cells.length && cells.every(cell => /^[-+]?[\d.,]+( ?(%|x))?$/.test(cell.textContent))) {
      [head, ...cells].forEach(cell => cell.classList.add("n"));
    }
  });
});
