"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Sorting: cells with an empty order are last in both directions; equal cells keep their order.
  const compare = (numeric, sign) => (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    return sign * (numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true }));
  };
  const next = (heading) => {
    const first = heading.dataset.first || "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    return heading.getAttribute("aria-sort") === first ? other : first;
  };
  const sortBy = (table, heading, index, direction) => {
    for (const each of all("thead th", table)) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", direction);
    const order = compare(heading.dataset.kind === "number", direction === "ascending" ? 1 : -1);
    const body = table.tBodies[0];
    const keyed = [...body.rows].map((row) => [row.cells[index].dataset.order, row]);
    keyed.sort((a, b) => order(a[0], b[0]));
    body.append(...keyed.map((pair) => pair[1]));
  };

  // The URL stores how each table is sorted and filtered; the URL about:blank cannot be changed.
  const kept = (kind, name) => new URL(location).searchParams.get(`${kind}.${name}`) ?? "";
  const keep = (kind, name, value, served) => {
    if (location.protocol === "about:") return;
    const address = new URL(location);
    if (value) address.searchParams.set(`${kind}.${name}`, value);
    else address.searchParams.delete(`${kind}.${name}`);
    if (served) address.searchParams.delete("page");
    history.replaceState(history.state, "", address);
  };

  // Charts are drawn shortly before they become visible. The first one loads Vega.
  const views = new Map();
  let vega;
  const load = async () => {
    const held = document.getElementById("vega"), script = document.createElement("script");
    const loaded = new Promise((done, fail) => Object.assign(script, { onload: done, onerror: fail }));
    if (held.dataset.src) script.src = held.dataset.src;
    else {
      const bytes = Uint8Array.from(atob(held.textContent), (letter) => letter.charCodeAt(0));
      const text = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      script.textContent = await new Response(text).text();
    }
    document.head.append(script);
    if (script.src) await loaded;
  };
  const draw = async (place) => {
    near.unobserve(place);
    const held = place.querySelector("script");
    if (!held || place.dataset.begun) return;
    place.dataset.begun = "";
    if (!window.drawChart) await (vega ??= load());
    place.spec = held.textContent;
    const { view } = await drawChart(place, JSON.parse(place.spec));
    views.set(place, view);
    const group = place.closest("[data-linked]");
    if (!group || !("pick" in view.getState().signals)) return;
    view.addSignalListener("pick", (name, chosen) => {
      const value = Object.values(chosen).find(Array.isArray)?.[0] ?? null;
      for (const [other, each] of views) if (group.contains(other)) each.signal("picked", value).runAsync();
    });
  };
  const near = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) if (isIntersecting) draw(target);
  }, { rootMargin: "400px" });

  const enhance = (root) => {
    all("table.sortable", root).forEach((table, place) => {
      const name = table.caption?.id || place, headings = all("thead th", table);
      const served = table.closest("[data-served]");  // The server sorts and filters these tables, over all their pages.
      headings.forEach((heading, index) => {
        if (heading.textContent.trim() === "") return;
        const button = document.createElement("button");
        button.type = "button";
        button.append(...heading.childNodes);
        heading.append(button);
        button.addEventListener("click", () => {
          const direction = next(heading);
          sortBy(table, heading, index, direction);
          keep("sort", name, `${index}-${direction}`, served);
          if (served) location.reload();
        });
      });
      const [, index, direction] = /^(\d+)-(ascending|descending)$/.exec(kept("sort", name)) ?? [];
      if (index in headings) sortBy(table, headings[index], index, direction);
    });

    // Filtering: every word must occur.
    all("[data-filtered]", root).forEach((block, place) => {
      const input = block.querySelector(".controls input");
      if (!input) return;
      const name = block.querySelector("caption")?.id || place;
      const items = all("[data-item]", block);
      const output = block.querySelector("output"), served = block.closest("[data-served]");
      input.value = kept("filter", name);
      // Enter would submit the form around the table.
      input.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
      if (served) {
        output.textContent = served.dataset.served;
        let waiting;
        input.addEventListener("input", () => {
          if (input.value === kept("filter", name)) return;
          keep("filter", name, input.value, served);
          clearTimeout(waiting);
          waiting = setTimeout(renew, 300);
        });
        return;
      }
      const texts = new Map(items.map((item) => [item, item.textContent.toLowerCase()]));
      const filter = () => {
        const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
        for (const item of items) item.hidden = !words.every((word) => texts.get(item).includes(word));
        const shown = items.filter((item) => !item.hidden).length;
        output.textContent = words.length ? `${shown} of ${items.length}` : "";
        keep("filter", name, input.value);
      };
      input.addEventListener("input", filter);
      if (input.value) filter();
    });

    for (const button of all("[data-open]", root)) {
      button.addEventListener("click", () => {
        for (const part of all("details", document.getElementById(button.dataset.open))) part.open = true;
      });
    }
    for (const part of all(".controls", root)) part.hidden = false;
    for (const place of all(".drawing", root)) near.observe(place);
  };
  enhance(document);
  // Load Vega early: printing can draw the missing charts only if Vega is loaded.
  addEventListener("load", () => { if (document.querySelector(".drawing")) vega ??= load(); });
  addEventListener("renewed", (event) => {
    for (const [place, view] of views) if (!place.isConnected) views.delete(place) && view.finalize();
    enhance(event.detail);
  });

  // Open all closed parts while the page is printed.
  let closed = [];
  // After a key press, lay out all sections: browsers do not scroll to the focused element if its section is not laid out.
  addEventListener("keydown", () => { document.documentElement.dataset.typed = ""; }, { once: true });
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    for (const part of closed) part.open = true;
    for (const place of all(".drawing")) draw(place);
  });
  addEventListener("afterprint", () => {
    for (const part of closed) part.open = false;
  });

  // Served pages renew themselves and keep the user's inputs, focus and open parts.
  const inputs = "input, select, textarea", controls = `a, button, summary, [tabindex], ${inputs}`;

  const remember = (main) => ({
    open: all("details", main).map((part) => part.open),
    typed: all(inputs, main).map((input) => [input.value === input.defaultValue ? "" : input.value, input.checked]),
    scrolled: all(".scroll", main).map((part) => [part.scrollLeft, part.scrollTop]),
    focus: all(controls, main).indexOf(document.activeElement),
  });
  const restore = (main, known) => {
    all("details", main).forEach((part, i) => { part.open = known.open[i] ?? part.open; });
    all(inputs, main).forEach((input, i) => {
      const [value, checked] = known.typed[i] ?? [input.value, input.checked];
      if (input.type === "checkbox") input.checked = checked;
      else if (value) { input.value = value; input.dispatchEvent(new Event("input")); }
    });
    all(".scroll", main).forEach((part, i) => part.scrollTo(...(known.scrolled[i] ?? [0, 0])));
    if (known.focus >= 0) all(controls, main)[known.focus]?.focus({ preventScroll: true });
  };

  let shown = "", answered = new Date();
  const renew = async () => {
    const main = document.querySelector("main"), away = document.getElementById("away");
    let seconds = Number(main.dataset.seconds);
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      const found = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      if (!found) throw new Error("another program answers");
      answered = new Date();
      away.hidden = true;
      // Do not renew while the user selects or writes text. Keep the scroll position.
      const writes = document.activeElement?.tagName === "TEXTAREA";
      if (found.innerHTML !== shown && getSelection().isCollapsed && !writes) {
        const known = remember(main), place = scrollY;
        shown = found.innerHTML;
        main.replaceWith(found);
        // Keep a chart with unchanged data, so that it keeps its zoom.
        const same = new Map(all(".drawing", main).map((place) => [place.spec, place]));
        for (const place of all(".drawing", found)) {
          const text = place.querySelector("script").textContent;
          if (views.has(same.get(text))) place.replaceWith(same.get(text));
        }
        dispatchEvent(new CustomEvent("renewed", { detail: found }));
        restore(found, known);
        scrollTo(scrollX, place);
        seconds = Number(found.dataset.seconds);
      }
    } catch {
      away.querySelector("time").textContent = answered.toLocaleTimeString();
      away.hidden = false;
    }
    return 1000 * seconds;
  };
  const follow = async () => setTimeout(follow, await renew());
  const first = document.querySelector("main")?.dataset.seconds;
  if (first) setTimeout(follow, 1000 * Number(first));
})();
