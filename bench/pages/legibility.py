"""What a page looks like to a reader, measured in a browser: what is off the screen, struck, faint.

Each is a script that returns the offending texts, so that a list that is empty means none.
"""

from __future__ import annotations

# The lines of a text as rectangles, for every text that is shown.
_LINES = """
const lines = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode());) {
  if (!node.data.trim() || node.parentElement.closest("script, style, title, #tip")) continue;
  const shown = node.parentElement.checkVisibility({visibilityProperty: true});
  if (!shown) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const box of range.getClientRects()) {
    if (box.width > 0) lines.push({node, box, words: node.data.trim().slice(0, 60)});
  }
}
"""

# Texts and elements that reach past the window's edges, and texts that a frame cuts off.
OFF_THE_SCREEN = (
    "(() => {"
    + _LINES
    + """
const edge = document.documentElement.clientWidth + 0.5;
const found = lines.filter(({box}) => box.right > edge || box.left < -0.5).map(each => each.words);
for (const each of document.querySelectorAll("body *")) {
  if (!each.checkVisibility()) continue;
  const box = each.getBoundingClientRect();
  if (box.width > 0 && box.right > edge) found.push(each.tagName);
  const hides = getComputedStyle(each).overflowX !== "visible";
  if (hides && each.scrollWidth > each.clientWidth + 1) found.push("scrolls: " + each.tagName);
}
return found;
})()"""
)

# Texts that a drawn line crosses, unless something that is filled lies between the two.
STRUCK_THROUGH = (
    "(() => {"
    + _LINES
    + """
const found = [];
for (const line of document.querySelectorAll("svg line, svg path.stair")) {
  if (!line.checkVisibility()) continue;
  const a = line.getBoundingClientRect();
  for (const {node, box: b, words} of lines) {
    const left = Math.max(a.left, b.left + 1), right = Math.min(a.right, b.right - 1);
    const top = Math.max(a.top, b.top + 2), bottom = Math.min(a.bottom, b.bottom - 2);
    if (left > right || top > bottom) continue;
    const stack = document.elementsFromPoint((left + right) / 2, (top + bottom) / 2);
    const covers = each => each.matches("circle, path, rect") && each !== line
      && getComputedStyle(each).fill !== "none";
    const cover = stack.findIndex(covers), at = stack.indexOf(line);
    if (cover < 0 || (at >= 0 && at < cover)) found.push(words);
  }
}
return found;
})()"""
)

# Texts whose contrast to what is behind them is under 4.5. Source: WCAG 2.2, criterion 1.4.3.
FAINT = (
    "(() => {"
    + _LINES
    + """
const parse = text => (text.match(/[0-9.]+/g) || [0, 0, 0, 0]).map(Number);
const light = rgb => rgb.slice(0, 3).map(each => each / 255)
  .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
  .reduce((sum, each, i) => sum + [0.2126, 0.7152, 0.0722][i] * each, 0);
const behind = element => {
  for (let each = element; each; each = each.parentElement) {
    const colour = parse(getComputedStyle(each).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const found = [];
for (const {node, words} of lines) {
  const element = node.parentElement;
  if (element.closest("svg")) continue;
  const ends = [light(parse(getComputedStyle(element).color)), light(behind(element))];
  const contrast = (Math.max(...ends) + 0.05) / (Math.min(...ends) + 0.05);
  if (contrast < 4.5) found.push(words + " " + contrast.toFixed(1));
}
return found;
})()"""
)

# Drawings and tables that a page of paper cuts in two: allowed to break, or taller than the paper.
TORN = """
(() => {
const paper = document.querySelectorAll("figure, tr, .tiles, .plane");
return Array.from(paper).filter(each => each.checkVisibility()).filter(each => {
  const tall = each.getBoundingClientRect().height > HEIGHT;
  return tall || getComputedStyle(each).breakInside !== "avoid";
}).map(each => each.tagName + " " + each.textContent.slice(0, 60));
})()"""
PAPER_PX = (695, 1036)  # A4 at 96 dpi within the page's margins: width, height


def torn(height_px: float = PAPER_PX[1]) -> str:
    """The script for paper of that height."""
    return TORN.replace("HEIGHT", repr(height_px))
