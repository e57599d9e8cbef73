// A page without a browser: as much of its elements as the report's script asks for. Reads
// {script, page, steps} as JSON, the page as [tag, attributes, children]; writes what each step saw.
"use strict";
const vm = require("node:vm");

const camel = (name) => name.replace(/-(.)/g, (_, letter) => letter.toUpperCase());

class Text {
  constructor(text) { this.textContent = text; }
}

class Element {
  constructor(tag, attributes = {}, children = []) {
    this.tag = tag;
    this.attributes = new Map(Object.entries(attributes));
    this.childNodes = [];
    this.listeners = [];
    this.value = "";
    this.append(...children.map((child) => (Array.isArray(child) ? new Element(...child) : new Text(child))));
  }
  append(...nodes) {
    for (const node of nodes) {
      if (node.parent) node.parent.childNodes = node.parent.childNodes.filter((n) => n !== node);
      node.parent = this;
      this.childNodes.push(node);
    }
  }
  get children() { return this.childNodes.filter((node) => node instanceof Element); }
  get all() { return this.children.flatMap((child) => [child, ...child.all]); }
  get textContent() {
    return this.childNodes.map((node) => node.textContent).join("");
  }
  set textContent(text) { this.childNodes = [new Text(text)]; }
  getAttribute(name) { return this.attributes.has(name) ? this.attributes.get(name) : null; }
  setAttribute(name, value) { this.attributes.set(name, value); }
  removeAttribute(name) { this.attributes.delete(name); }
  get dataset() {
    const named = [...this.attributes].filter(([name]) => name.startsWith("data-"));
    return Object.fromEntries(named.map(([name, value]) => [camel(name.slice(5)), value]));
  }
  get tBodies() { return this.children.filter((child) => child.tag === "tbody"); }
  get rows() { return this.children.filter((child) => child.tag === "tr"); }
  get cells() { return this.children.filter((child) => child.tag === "td" || child.tag === "th"); }
  addEventListener(kind, act) { this.listeners.push([kind, act]); }
  tell(kind) { for (const [own, act] of this.listeners) if (own === kind) act(); }
  querySelectorAll(selector) {
    const parts = selector.split(" ");
    return this.all.filter((found) => {
      if (!found.fits(parts.at(-1))) return false;
      let left = parts.length - 2;
      for (let above = found.parent; above && left >= 0; above = above.parent) left -= above.fits(parts[left]);
      return left < 0;
    });
  }
  querySelector(selector) { return this.querySelectorAll(selector)[0] ?? null; }
  fits(selector) {
    const [, tag, rest] = /^([a-z0-9]*)(.*)$/.exec(selector);
    const marks = rest.match(/\.[\w-]+|\[[\w-]+\]|:not\(\[[\w-]+\]\)/g) ?? [];
    if (marks.join("") !== rest) throw new Error(`no selector for this page: ${selector}`);
    const classes = (this.getAttribute("class") ?? "").split(" ");
    return (!tag || tag === this.tag) && marks.every((mark) => {
      if (mark[0] === ".") return classes.includes(mark.slice(1));
      const name = /[\w-]+(?=\])/.exec(mark)[0];
      return this.attributes.has(name) === (mark[0] === "[");
    });
  }
}
for (const name of ["hidden", "open"]) {
  Object.defineProperty(Element.prototype, name, {
    get() { return this.attributes.has(name); },
    set(on) { on ? this.attributes.set(name, "") : this.attributes.delete(name); },
  });
}

const { script, page, steps } = JSON.parse(require("node:fs").readFileSync(0, "utf-8"));
const document = new Element(...page);
document.createElement = (tag) => new Element(tag);
document.getElementById = (id) => document.all.find((found) => found.getAttribute("id") === id);
const view = new Element("window");
vm.runInNewContext(script, { document, addEventListener: view.addEventListener.bind(view) });

const one = (selector, place) => document.querySelectorAll(selector)[place];
const acts = {
  click: (selector, place) => one(selector, place).tell("click"),
  type: (selector, place, text) => { one(selector, place).value = text; one(selector, place).tell("input"); },
  window: (kind) => view.tell(kind),
  texts: (selector) => document.querySelectorAll(selector).map((found) => found.textContent.trim()),
  shown: (selector) => document.querySelectorAll(selector).map((found) => !found.hidden),
  open: (selector) => document.querySelectorAll(selector).map((found) => found.open),
  read: (selector, name) => document.querySelectorAll(selector).map((found) => found.getAttribute(name)),
};
process.stdout.write(JSON.stringify(steps.map(([name, ...rest]) => acts[name](...rest) ?? null)));
