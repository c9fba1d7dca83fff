// Interactive plots in place of the pictures, links into folded parts, and the buttons. Works offline.
(() => {
  const GREY = "#d9d9d9";

  const shown = (value) =>
    value === null ? "no value" : Number(value.toPrecision(3)).toString().replace("-", "\u2212");

  // Runs of consecutive layers whose names share their first part: each gets one label.
  function groups(names) {
    const runs = [];
    names.forEach((name, index) => {
      const head = name.split("/")[0];
      const last = runs.at(-1);
      if (last && last.name === head) last.stop = index + 1;
      else runs.push({ name: head, start: index, stop: index + 1 });
    });
    return runs;
  }

  // Labels that would overlap another are omitted, those of small groups first.
  function apart(runs, place, gap) {
    const kept = [];
    for (const run of [...runs].sort((a, b) => b.stop - b.start - (a.stop - a.start))) {
      const at = place((run.start + run.stop) / 2);
      if (kept.every((other) => Math.abs(other.at - at) >= gap)) kept.push({ ...run, at });
    }
    return kept;
  }

  function picture(columns, rows, colourOf) {
    const canvas = document.createElement("canvas");
    const scale = 8;
    canvas.width = columns * scale;
    canvas.height = rows * scale;
    const context = canvas.getContext("2d");
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++) {
        context.fillStyle = colourOf(column, row);
        context.fillRect(column * scale, row * scale, scale, scale);
      }
    return canvas.toDataURL();
  }

  function colourScale({ low, high, colours }) {
    return (value) => {
      if (value === null) return GREY;
      const share = clamp((value - low) / (high - low), 0, 1);
      return colours[Math.min(colours.length - 1, Math.floor(share * colours.length))];
    };
  }

  function drawHeatmap(data, plot, width) {
    const [columns, rows] = [data.x.length, data.y.length];
    const colour = colourScale(data);
    const runs = { x: groups(data.x), y: groups(data.y) };
    const letters = Math.max(...runs.y.map((run) => run.name.length));
    const left = 30 + 6.3 * Math.min(letters, 14);
    const right = 54;
    const side = Math.min(width - left - right, 560);
    const tall = data.x.join() === data.y.join() ? side : side * clamp(rows / columns, 0.55, 1.1);
    const [cellX, cellY] = [side / columns, tall / rows];
    const top = 6;
    const x = (column) => left + column * cellX;
    const y = (row) => top + tall - row * cellY;
    const flat = runs.x.every((run) => run.stop - run.start < 3 ||
      run.name.length * 6.3 + 6 < (run.stop - run.start) * cellX);
    const longest = Math.max(...runs.x.map((run) => run.name.length));
    const bottom = flat ? 44 : 34 + 6.3 * Math.min(longest, 14);
    const svg = make("svg", { width, height: top + tall + bottom, "aria-hidden": "true" }, plot);
    const cells = picture(columns, rows, (i, j) => colour(data.values[rows - 1 - j][i]));
    make("image", { href: cells, x: left, y: top, width: side, height: tall,
      preserveAspectRatio: "none", class: "cells" }, svg);
    make("rect", { x: left, y: top, width: side, height: tall, class: "frame" }, svg);

    for (const run of runs.x.slice(1))
      make("path", { d: `M${x(run.start)} ${top + tall}v6`, class: "axis" }, svg);
    for (const run of runs.y.slice(1))
      make("path", { d: `M${left} ${y(run.start)}h-6`, class: "axis" }, svg);
    for (const run of apart(runs.x, x, flat ? 6.3 * longest : 12)) {
      const at = flat ? { x: run.at, y: top + tall + 17, "text-anchor": "middle" }
        : { transform: `translate(${run.at + 4} ${top + tall + 10}) rotate(-90)`, "text-anchor": "end" };
      make("text", at, svg, run.name);
    }
    for (const run of apart(runs.y, y, 12))
      make("text", { x: left - 9, y: run.at + 4, "text-anchor": "end" }, svg, run.name);
    make("text", { x: left + side / 2, y: top + tall + bottom - 6, class: "label" }, svg, data.x_label);
    make("text", { transform: `translate(12 ${top + tall / 2}) rotate(-90)`, class: "label" }, svg, data.y_label);

    const bar = left + side + 14;
    const ramp = picture(1, 128, (_, j) => colour(data.high + (data.low - data.high) * (j / 127)));
    make("image", { href: ramp, x: bar, y: top, width: 11, height: tall, preserveAspectRatio: "none" }, svg);
    for (const share of [0, 0.5, 1])
      make("text", { x: bar + 15, y: top + (1 - share) * tall + (share === 1 ? 9 : share === 0 ? 0 : 4) },
        svg, shown(data.low + share * (data.high - data.low)));
    make("text", { transform: `translate(${bar + 34} ${top + tall * 0.25}) rotate(-90)`, class: "label" }, svg, data.value_label);

    const marks = make("g", { class: "marks" }, svg);
    for (const name of ["under", "over"]) make("rect", { width: cellX, height: cellY, class: name }, marks);
    const needle = make("path", { d: "M-2 0h15", class: "needle" }, marks);
    return {
      first: [0, 0],
      at(px, py) {
        const cell = [Math.floor((px - left) / cellX), Math.floor((top + tall - py) / cellY)];
        return cell[0] >= 0 && cell[0] < columns && cell[1] >= 0 && cell[1] < rows ? cell : null;
      },
      move: ([i, j], dx, dy) => [clamp(i + dx, 0, columns - 1), clamp(j + dy, 0, rows - 1)],
      mark([i, j]) {
        const value = data.values[j][i];
        const error = data.errors?.[j][i] ?? null;
        for (const rect of marks.querySelectorAll("rect")) {
          rect.setAttribute("x", x(i));
          rect.setAttribute("y", y(j + 1));
        }
        const share = clamp(((value ?? data.low) - data.low) / (data.high - data.low), 0, 1);
        needle.setAttribute("transform", `translate(${bar} ${top + (1 - share) * tall})`);
        const about = value === null || error === null ? "" : ` \u00b1 ${Number(error.toPrecision(1))}`;
        return {
          x: x(i + 0.5),
          y: y(j + 0.5),
          lines: [`${data.value_label} ${shown(value)}${about}`, `\u2194 ${data.x[i]}`, `\u2195 ${data.y[j]}`],
        };
      },
      marks,
    };
  }

  function drawLines(data, plot, width, [lowest, highest]) {
    const most = Math.max(...data.series.map((line) => line.values.length));
    const [left, right, top] = [46, 12, data.title ? 26 : 8];
    const [wide, tall] = [width - left - right, clamp(width * 0.62, 180, 300)];
    const svg = make("svg", { width, height: top + tall + 46, "aria-hidden": "true" }, plot);
    const x = (index) => left + (most > 1 ? (index / (most - 1)) * (wide - 16) + 8 : wide / 2);
    const rough = (highest - lowest) / 4;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
    const margin = (highest - lowest) * 0.05;
    const [bottom, range] = [lowest - margin, highest - lowest + 2 * margin];
    const y = (value) => top + tall - ((value - bottom) / range) * tall;
    if (data.title) make("text", { x: left, y: 13, class: "title" }, svg, data.title);
    make("path", { d: `M${left} ${top + tall}h${wide}`, class: "axis" }, svg);
    for (let tick = Math.ceil(bottom / step) * step; tick <= bottom + range; tick += step) {
      make("path", { d: `M${left} ${y(tick)}h${wide}`, class: "grid" }, svg);
      make("text", { x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, svg, shown(tick));
    }
    const every = Math.ceil(most / Math.max(1, Math.floor(wide / 26)));
    for (let index = 0; index < most; index += every)
      make("text", { x: x(index), y: top + tall + 16, "text-anchor": "middle" }, svg, index + 1);
    make("text", { x: left + wide / 2, y: top + tall + 38, class: "label" }, svg, data.x_label);
    make("text", { transform: `translate(11 ${top + tall / 2}) rotate(-90)`, class: "label" }, svg, data.y_label);
    const drawn = data.series.map((line) => {
      const group = make("g", { class: "series", stroke: line.colour, fill: line.colour }, svg);
      const points = line.values.flatMap((value, index) => (value === null ? [] : [[x(index), y(value)]]));
      make("path", { d: `M${points.map((point) => point.join(" ")).join("L")}`, fill: "none" }, group);
      for (const [cx, cy] of points) make("circle", { cx, cy, r: 2.6 }, group);
      return group;
    });
    const marks = make("g", { class: "marks" }, svg);
    const ring = make("circle", { r: 6, class: "ring" }, marks);
    const legend = element("ul", "legend", plot);
    const entries = data.series.map((line) => {
      const entry = element("li", "", legend, line.short);
      entry.style.setProperty("--colour", line.colour);
      return entry;
    });
    const clear = () => [...drawn, ...entries].forEach((node) => node.classList.remove("dim"));
    return {
      first: [0, 0],
      at(px, py) {
        let [best, nearest] = [null, 40 ** 2];
        data.series.forEach((line, j) => line.values.forEach((value, i) => {
          if (value === null) return;
          const distance = (x(i) - px) ** 2 + (y(value) - py) ** 2;
          if (distance < nearest) [best, nearest] = [[i, j], distance];
        }));
        return best;
      },
      move: ([i, j], dx, dy) => {
        const line = clamp(j + dy, 0, data.series.length - 1);
        return [clamp(i + dx, 0, data.series[line].values.length - 1), line];
      },
      mark([i, j]) {
        const line = data.series[j];
        ring.setAttribute("cx", x(i));
        ring.setAttribute("cy", y(line.values[i] ?? lowest));
        [drawn, entries].forEach((nodes) => nodes.forEach((node, k) => node.classList.toggle("dim", k !== j)));
        return {
          x: x(i),
          y: y(line.values[i] ?? lowest),
          lines: [`${shown(line.values[i])} ${data.value_label}`, line.name, line.labels[i]],
        };
      },
      clear,
      marks,
    };
  }

  function attach(data, panels, heading, limits) {
    const live = element("div", `live ${data.kind}`, panels);
    const plot = element("div", "plot", live);
    const tip = element("div", "tip", live);
    plot.tabIndex = 0;
    plot.setAttribute("role", "application");
    plot.setAttribute("aria-label", `${heading}${data.title ? `, ${data.title}` : ""}. Arrow keys move from value to value.`);
    tip.setAttribute("role", "status");
    let [view, current, width] = [null, null, 0];

    function hide() {
      current = null;
      live.classList.remove("on");
      view.clear?.();
      tip.textContent = "";
    }
    function show(cell) {
      if (current && cell[0] === current[0] && cell[1] === current[1]) return;
      current = cell;
      live.classList.add("on");
      const { x, y, lines } = view.mark(cell);
      tip.replaceChildren();
      lines.forEach((line, index) => element(index ? "span" : "strong", "", tip, line));
      const [w, h] = [tip.offsetWidth, tip.offsetHeight];
      tip.style.left = `${clamp(x - w / 2, 0, Math.max(0, live.clientWidth - w))}px`;
      tip.style.top = `${y - h - 16 >= 0 ? y - h - 16 : y + 20}px`;
    }
    function draw() {
      if (live.clientWidth === width || !live.clientWidth) return;
      width = live.clientWidth;
      plot.replaceChildren();
      view = data.kind === "heatmap" ? drawHeatmap(data, plot, width) : drawLines(data, plot, width, limits);
      if (current) hide();
    }
    function point(event) {
      const box = plot.getBoundingClientRect();
      const cell = view.at(event.clientX - box.left, event.clientY - box.top);
      if (cell) show(cell);
      else if (current) hide();
    }
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && current && hide());
    document.addEventListener("pointerdown", (event) => current && !live.contains(event.target) && hide());
    plot.addEventListener("focus", () => plot.matches(":focus-visible") && show(current ?? view.first));
    plot.addEventListener("blur", () => current && hide());
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (event.key === "Escape" && current) hide();
      if (!step) return;
      event.preventDefault();
      show(current ? view.move(current, ...step) : view.first);
    });
    draw();
    new ResizeObserver(draw).observe(live);
  }

  for (const source of document.querySelectorAll("script[type='application/json']")) {
    const figure = source.closest("figure");
    const payloads = JSON.parse(source.textContent);
    const panels = document.createElement("div");
    panels.className = "panels";
    source.before(panels);
    const values = payloads.flatMap((data) => (data.series ?? []).flatMap((line) => line.values));
    const known = values.filter((value) => value !== null);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const limits = high > low ? [low, high] : [low - 0.5, low + 0.5];
    const heading = figure.querySelector("h3").textContent.trim();
    figure.classList.add("drawn"); // shows the panels, whose width is needed
    try {
      for (const data of payloads) attach(data, panels, heading, limits);
    } catch (error) {
      figure.classList.remove("drawn"); // the picture is still there
      throw error;
    }
  }

  // Folded figures show a thumbnail of their first picture: the same image, not another copy.
  const folds = [...document.querySelectorAll("main figure > details")];
  for (const fold of folds) {
    const image = fold.querySelector(".pictures img");
    if (!image) continue;
    const thumb = element("img", "thumb");
    thumb.alt = "";
    thumb.src = image.src;
    fold.querySelector("summary").prepend(thumb);
  }
  const all = document.querySelector(".open-all");
  if (all) {
    all.parentElement.hidden = false;
    const isClosed = () => folds.some((fold) => !fold.open);
    const name = () => (all.textContent = isClosed() ? "Open all figures" : "Close all figures");
    all.addEventListener("click", () => {
      const open = isClosed();
      for (const fold of folds) fold.open = open;
    });
    for (const fold of folds) fold.addEventListener("toggle", name);
    name();
  }

  // A link to a folded part unfolds it.
  function unfold() {
    const id = decodeURIComponent(location.hash.slice(1));
    const target = id && document.getElementById(id);
    if (!target) return;
    for (let node = target.closest("details"); node; node = node.parentElement.closest("details"))
      node.open = true;
    if (target.matches("figure")) target.querySelector("details").open = true;
    if (target.matches("summary")) target.parentElement.open = true;
    target.scrollIntoView();
  }
  addEventListener("hashchange", unfold);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.hash === location.hash) unfold();
  });
  unfold();

  async function copied(text, code) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      return document.execCommand("copy");
    }
    return true;
  }
  for (const button of document.querySelectorAll("button.copy")) {
    const code = button.closest("figcaption").querySelector(".code code");
    button.addEventListener("click", async () => {
      button.textContent = (await copied(code.textContent, code)) ? "Copied" : "Press Ctrl+C";
      setTimeout(() => (button.textContent = "Copy code"), 2000);
    });
  }

  // The contents mark the part that is in view.
  const entries = [...document.querySelectorAll("nav a")];
  const parts = entries.map((link) => document.getElementById(link.hash.slice(1)));
  let waiting = false;
  function mark() {
    waiting = false;
    const passed = parts.filter((part) => part.getBoundingClientRect().top < innerHeight / 3);
    const current = Math.max(0, passed.length - 1);
    entries.forEach((link, index) => {
      if (index === current) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
  }
  addEventListener("scroll", () => {
    if (!waiting) requestAnimationFrame(mark);
    waiting = true;
  });
  mark();
})();
