// Elements as plain values, and the function that makes the document agree with them.
//
// Text reaches the document as text nodes alone, and attributes by setAttribute from names written
// in this project: no string is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "open", "hidden", "tabIndex"]);

/** Returns an element as a value. `false`, `null` and `undefined` among `kids` are left out. */
export function h(tag, props, ...kids) {
  return { tag, props: props || {}, key: props ? props.key : undefined, kids: flat(kids, []) };
}

function flat(kids, out) {
  for (const kid of kids) {
    if (Array.isArray(kid)) flat(kid, out);
    else if (kid === null || kid === undefined || kid === false || kid === "") continue;
    else out.push(typeof kid === "object" ? kid : { text: String(kid) });
  }
  return out;
}

/** Creates the node of a value. */
export function create(v, space) {
  if (v.text !== undefined) {
    const node = document.createTextNode(v.text);
    node.view = v;
    return node;
  }
  const inner = v.tag === "svg" ? SVG : space;
  const node = inner ? document.createElementNS(inner, v.tag) : document.createElement(v.tag);
  node.view = { tag: v.tag, props: {}, kids: [] };
  update(node, v, inner);
  return node;
}

/** Makes the children of `node` agree with `kids`. Nodes that stay keep focus and scroll. */
export function render(node, kids) {
  children(node, flat([kids], []), undefined);
}

function update(node, v, space) {
  const old = node.view.props;
  for (const name of Object.keys(old)) if (!(name in v.props)) set(node, name, undefined);
  const isChoice = v.tag === "select" && "value" in v.props;
  for (const [name, value] of Object.entries(v.props)) {
    if (old[name] !== value && !(isChoice && name === "value")) set(node, name, value);
  }
  node.view = v;
  if (!v.props.foreign) children(node, v.kids, v.tag === "foreignObject" ? undefined : space);
  // Only an option that is there can be chosen.
  if (isChoice) set(node, "value", String(v.props.value));
}

// An option has its text as its value until it has the attribute.
function set(node, name, value) {
  if (name === "key" || name === "foreign") return;
  if (name.startsWith("on")) node[name] = value || null;
  else if (name === "style") {
    for (const [rule, to] of Object.entries(value || {})) node.style.setProperty(rule, to);
  } else if (PROPERTIES.has(name) && node.tagName !== "OPTION") {
    const to = value ?? (name === "value" ? "" : false);
    if (node[name] !== to) node[name] = to;
  } else if (value === undefined || value === null || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : value);
}

const fits = (node, v) =>
  node.view && (v.text !== undefined
    ? node.view.text !== undefined
    : node.view.tag === v.tag && node.view.key === v.key);

function children(parent, kids, space) {
  const keyed = new Map();
  for (let node = parent.firstChild; node; node = node.nextSibling) {
    if (node.view && node.view.key !== undefined) keyed.set(node.view.key, node);
  }
  const wanted = new Set(kids.map((kid) => kid.key).filter((key) => key !== undefined));
  let at = parent.firstChild;
  for (const v of kids) {
    while (at && at.view && at.view.key !== undefined && !wanted.has(at.view.key)) {
      at = drop(parent, at);
    }
    let node = v.key === undefined ? at : keyed.get(v.key);
    if (!node || !fits(node, v)) {
      parent.insertBefore(create(v, space), at);
      continue;
    }
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
    if (v.text === undefined) update(node, v, space);
    else if (node.data !== v.text) {
      node.data = v.text;
      node.view = v;
    }
  }
  while (at) at = drop(parent, at);
}

function drop(parent, node) {
  const next = node.nextSibling;
  parent.removeChild(node);
  return next;
}
