(function () {
  "use strict";
  var tip = document.getElementById("tip");

  // Titles are for readers without this script.
  document.querySelectorAll("[data-tip] > title").forEach(function (title) { title.remove(); });

  function say(mark) {
    tip.textContent = mark.getAttribute("data-tip");
    tip.hidden = false;
    var box = mark.getBoundingClientRect();
    var left = Math.min(
      Math.max(box.left + box.width / 2 - tip.offsetWidth / 2, 8),
      document.documentElement.clientWidth - tip.offsetWidth - 8
    );
    var above = box.top - tip.offsetHeight - 8;
    tip.style.left = Math.max(left, 8) + "px";
    tip.style.top = (above > 4 ? above : box.bottom + 8) + "px";
  }

  function hush() {
    tip.hidden = true;
  }

  function markOf(event) {
    return event.target.closest ? event.target.closest("[data-tip]") : null;
  }

  ["pointerover", "focusin", "click"].forEach(function (name) {
    document.addEventListener(name, function (event) {
      var mark = markOf(event);
      if (mark) { say(mark); } else { hush(); }
    });
  });
  document.addEventListener("focusout", hush);
  document.addEventListener("scroll", function () {
    var held = document.activeElement;
    if (held && held.hasAttribute("data-tip")) { say(held); } else { hush(); }
  }, { passive: true });

  document.addEventListener("keydown", function (event) {
    if (event.key === "Escape") { hush(); return; }
    var mark = markOf(event);
    var step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!mark || !step) { return; }
    var marks = Array.from(mark.closest(".marks").querySelectorAll("[data-tip]"));
    marks.sort(function (a, b) {
      return a.getBoundingClientRect().left - b.getBoundingClientRect().left;
    });
    var next = marks[(marks.indexOf(mark) + step + marks.length) % marks.length];
    mark.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus({ preventScroll: true });
    event.preventDefault();
  });

  // What explains an answer in a drawing is open where there is room for it.
  if (window.matchMedia("(min-width: 54.01rem)").matches) {
    document.querySelectorAll("details.wide").forEach(function (each) { each.open = true; });
  }

  // For browsers whose styles cannot open a fold on paper.
  var opened = [];
  window.addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details.printed:not([open])"));
    opened.forEach(function (folded) { folded.open = true; });
  });
  window.addEventListener("afterprint", function () {
    opened.forEach(function (folded) { folded.open = false; });
  });

  function keyOf(row, column) {
    var cell = row.cells[column];
    var number = cell.getAttribute("data-sort");
    return number === null ? cell.textContent : parseFloat(number);
  }

  function sort(title) {
    var table = title.closest("table");
    var body = table.tBodies[0];
    var column = title.cellIndex;
    var down = title.getAttribute("aria-sort") === "ascending";
    var rows = Array.from(body.rows);
    rows.sort(function (a, b) {
      var x = keyOf(a, column);
      var y = keyOf(b, column);
      var order = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
      return down ? -order : order;
    });
    rows.forEach(function (row) { body.appendChild(row); });
    table.querySelectorAll("th[aria-sort]").forEach(function (other) {
      other.removeAttribute("aria-sort");
    });
    title.setAttribute("aria-sort", down ? "descending" : "ascending");
  }

  document.querySelectorAll("table.sortable th button").forEach(function (button) {
    button.addEventListener("click", function () { sort(button.parentNode); });
  });
})();
