
(() => {
  const all = (selector, root) => [...root.querySelectorAll(selector)];
  const controls = "a, button, input, select, summary, [tabindex]";

  // What a person has done to the page: it is done again to what takes its place.
  const remember = (main) => ({
    open: all("details", main).map((part) => part.open),
    typed: all("input, select", main).map((input) => [input.value, input.checked]),
    sorted: all("table.sortable", main).map((table) => {
      const headings = all("thead th", table);
      const index = headings.findIndex((heading) => heading.hasAttribute("aria-sort"));
      return [index, index < 0 ? "" : headings[index].getAttribute("aria-sort")];
    }),
    scrolled: all(".scroll", main).map((part) => [part.scrollLeft, part.scrollTop]),
    focus: all(controls, main).indexOf(document.activeElement),
  });
  const restore = (main, known) => {
    all("details", main).forEach((part, i) => { part.open = known.open[i] ?? part.open; });
    all("table.sortable", main).forEach((table, i) => {
      const [index, direction] = known.sorted[i] ?? [-1, ""];
      const heading = all("thead th", table)[index];
      for (let clicks = 0; heading && clicks < 2 && heading.getAttribute("aria-sort") !== direction; clicks++) {
        heading.querySelector("button").click();
      }
    });
    all("input, select", main).forEach((input, i) => {
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
      // A text that is being selected stays; so does the place of what is on the screen.
      if (found.innerHTML !== shown && getSelection().isCollapsed) {
        const known = remember(main), place = scrollY;
        shown = found.innerHTML;
        main.replaceWith(found);
        dispatchEvent(new CustomEvent("renewed", { detail: found }));
        restore(found, known);
        scrollTo(scrollX, place);
        seconds = Number(found.dataset.seconds);
      }
    } catch {
      away.querySelector("time").textContent = answered.toLocaleTimeString();
      away.hidden = false;
    }
    setTimeout(renew, 1000 * seconds);
  };
  setTimeout(renew, 1000 * Number(document.querySelector("main").dataset.seconds));
})();
