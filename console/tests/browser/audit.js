// Returns what is wrong with the page for people who see little, hear it, or use no mouse.
(() => {
  const wrong = [];
  const name = (node) => `${node.tagName.toLowerCase()}${node.id ? `#${node.id}` : ""}${
    node.className && node.className.baseVal === undefined ? `.${node.className}` : ""} "${
    (node.textContent || "").trim().slice(0, 30)}"`;
  const shown = (node) => node.getBoundingClientRect().width > 1 &&
    node.checkVisibility({ opacityProperty: true, visibilityProperty: true });

  // Contrast of each text with what is behind it.
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const luminance = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((c) => {
      const s = c / 255;
      return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.a === 1) return colour;
    }
    return { r: 255, g: 255, b: 255 };
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !shown(node)) continue;
    if (node.closest("svg, .hide, noscript, :disabled")) continue;
    const style = getComputedStyle(node);
    const [front, back] = [luminance(parse(style.color)), luminance(behind(node))];
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    seen += 1;
    if (ratio < (large ? 3 : 4.5)) wrong.push(`contrast ${ratio.toFixed(2)}: ${name(node)}`);
  }
  if (seen < 10) wrong.push(`only ${seen} texts were examined`);

  // Text on the bars of an axis: the bar is behind it.
  for (const text of document.querySelectorAll("svg .on-bar")) {
    const [front, back] = [text, text.previousElementSibling].map((node) =>
      luminance(parse(getComputedStyle(node).fill)));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)} on a bar: ${name(text)}`);
  }

  // Landmarks and headings.
  const one = (selector) => {
    const n = document.querySelectorAll(selector).length;
    if (n !== 1) wrong.push(`${n} of ${selector}`);
  };
  ["main", "body > header", "nav[aria-label]", "main h1"].forEach(one);
  if (!document.documentElement.lang) wrong.push("no language");
  let level = 0;
  for (const heading of document.querySelectorAll("main h1, main h2, main h3, main h4")) {
    const own = Number(heading.tagName[1]);
    if (own > level + 1) wrong.push(`a level is left out before ${name(heading)}`);
    level = own;
  }

  // Names of what can be used or is a place.
  const named = (node) => (node.getAttribute("aria-label") || node.textContent.trim() ||
    (node.labels && node.labels.length && node.labels[0].textContent.trim()) ||
    (node.getAttribute("aria-labelledby") &&
      document.getElementById(node.getAttribute("aria-labelledby"))) || "");
  const used = "a, button, input, select, dialog, section, [tabindex='0'], [role=img], " +
    "[role=region]";
  for (const node of document.querySelectorAll(used)) {
    const own = node.matches("input, select")
      ? node.getAttribute("aria-label") || (node.labels.length && node.labels[0].textContent.trim())
      : node.matches("section, [role=region], [role=img], dialog")
        ? node.getAttribute("aria-label") || node.getAttribute("aria-labelledby") : named(node);
    if (!own) wrong.push(`without a name: ${name(node)}`);
  }
  for (const image of document.images) {
    if (!image.hasAttribute("alt")) wrong.push(`without a text: ${image.src}`);
  }
  for (const cell of document.querySelectorAll("th")) {
    if (!cell.scope || !cell.textContent.trim()) wrong.push(`a bad head: ${name(cell)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  ids.filter((id, n) => ids.indexOf(id) !== n && id !== "hatch").forEach((id) =>
    wrong.push(`twice: #${id}`));

  // Nothing is wider than the window, and no button's text is cut.
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) wrong.push(`the page is ${wide} wide, the window ${innerWidth}`);
  for (const node of document.querySelectorAll("button, .is, h1, h2")) {
    if (shown(node) && node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 0) {
      wrong.push(`cut: ${name(node)}`);
    }
  }
  // A state is never a colour alone.
  for (const node of document.querySelectorAll("main .is")) {
    if (!node.querySelector(".mark") && !/\d/.test(node.textContent)) {
      wrong.push(`a colour alone: ${name(node)}`);
    }
  }
  return wrong;
})()
