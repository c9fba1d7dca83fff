// Draws maps of a patch over the photograph, for each model of the page. Needs no network.
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const { colours } = page;
  // What all models share: the images, and the query as a point of the image, each from 0 to 1.
  const shared = { example: 0, other: page.images.length > 1 ? 1 : 0, pooled: false, pinned: false, x: 0.5, y: 0.5 };
  const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }; // (row, column)
  const MOST_LINES = 16; // from a query to its keys
  const pooledButton = document.getElementById("pooled");
  const range = (count) => Array.from({ length: count }, (_, index) => index);

  function shown(value) {
    if (!Number.isFinite(value)) return "none";
    const size = Math.abs(value);
    const text = size && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(3)));
    return text.replaceAll("-", "\u2212");
  }
  const percent = (share) => `${shown(100 * share)} %`;

  // ---- numbers -------------------------------------------------------------------------------

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const floats = (text) => new Float32Array(bytes(text).buffer);

  // Packed arrays by their first indices: `values(2, 0)` is the rest at [2][0], as numbers.
  function open(packed) {
    const raw = bytes(packed.data);
    const kinds = { 16: Uint16Array, 32: Float32Array };
    const levels = packed.bits === 8 ? raw : new kinds[packed.bits](raw.buffer);
    const [low, step] = packed.bits === 32 ? [] : [floats(packed.low), floats(packed.step)];
    const place = (axes, indices) => axes.reduce((at, size, axis) => at * size + (indices[axis] ?? 0), 0);
    return (...indices) => {
      const size = packed.shape.slice(indices.length).reduce((a, b) => a * b, 1);
      const start = place(packed.shape, indices);
      const part = levels.subarray(start, start + size);
      if (packed.bits === 32) return Float64Array.from(part);
      const scale = place(packed.shape.slice(0, packed.leading), indices);
      return Float64Array.from(part, (level) => low[scale] + step[scale] * level);
    };
  }

  const biggest = (values, except = -1) => values.reduce((most, value, index) => (index === except ? most : Math.max(most, value)), -Infinity);
  const smallest = (values, except = -1) => -biggest(Array.from(values, (value) => -value), except);
  const average = (values) => values.reduce((sum, one) => sum + one, 0) / values.length;
  const meanRow = (rows) => range(rows[0].length).map((key) => average(rows.map((one) => one[key])));

  // The fewest patches that hold a share of the attention: true where one of them is.
  function keptBy(shares, mass) {
    const order = range(shares.length).sort((a, b) => shares[b] - shares[a] || a - b);
    const kept = new Array(shares.length).fill(false);
    let before = 0;
    for (const patch of order) {
      kept[patch] = before < mass - 1e-6;
      before += shares[patch];
    }
    return kept;
  }

  // ---- pictures ------------------------------------------------------------------------------

  const paintable = colours.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));

  // One pixel of the canvas for each value, which the page enlarges.
  function draw(canvas, values, [rows, columns], colourOf) {
    canvas.width = columns;
    canvas.height = rows;
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    range(rows * columns).forEach((index) => image.data.set(colourOf(values[index], index), 4 * index));
    context.putImageData(image, 0, 0);
  }

  // Colour and opacity follow the value, so that the photograph stays clear where it is low.
  function scaled(low, high, curve = (share) => share, opaque = false) {
    return (value) => {
      const share = curve(high > low ? clamp((value - low) / (high - low), 0, 1) : 0);
      return [...paintable[Math.round(share * (paintable.length - 1))], opaque ? 255 : Math.round(255 * share)];
    };
  }
  const kept = (is) => (is ? [0, 0, 0, 0] : [0, 0, 0, 215]);

  // The frame of a cell of a grid, or of the part of each cell that is drawn on.
  function positionMark(mark, index, [rows, columns], [high, wide] = [1, 1]) {
    mark.hidden = index < 0;
    if (index < 0) return;
    const [y, x] = [Math.floor(index / columns), index % columns];
    Object.assign(mark.style, {
      left: `${(100 * x) / columns}%`, top: `${(100 * y) / rows}%`,
      width: `${(100 * wide) / columns}%`, height: `${(100 * high) / rows}%`,
    });
  }

  function scale(parent) {
    const box = element("div", "scale", parent);
    const low = element("span", "", box);
    const ramp = element("span", "ramp", box);
    ramp.style.background = `linear-gradient(to right, ${colours.filter((_, index) => index % 15 === 0).join(",")})`;
    const high = element("span", "", box);
    return (from, to, unit) => {
      low.textContent = shown(from);
      high.textContent = `${shown(to)} ${unit}`;
    };
  }

  // ---- one model -----------------------------------------------------------------------------

  function view(data, number) {
    const { grid, layers } = data;
    const state = { layer: 0, head: 0, similar: 0, patches: 0, stage: 0, class: 0, kept: 0.6 };
    const find = (name) => document.getElementById(number ? `${name}-${number + 1}` : name);
    const own = (selector) => document.querySelector(`[data-model="${number}"] ${selector}`);
    const examples = data.examples.map((one) => {
      const arrays = Object.entries(one).filter(([, value]) => value?.data);
      return { ...one, ...Object.fromEntries(arrays.map(([name, packed]) => [name, open(packed)])) };
    });
    const example = () => examples[shared.example];
    const classes = () => example().classes;
    const cells = grid ? grid.rows * grid.columns : 0;
    // The query tokens: those that the classification head uses, or the patch.
    const queries = () => (shared.pooled ? data.pooled : [grid.prefix + position()]);
    const looking = (patch) => (shared.pooled ? data.pooled_name : patch);
    // The prefix tokens but a lone query.
    const prefixNames = () => data.prefix_names.filter((_, token) => queries().length > 1 || token !== queries()[0]).join(", ");
    const row = () => clamp(Math.floor(shared.y * grid.rows), 0, grid.rows - 1);
    const column = () => clamp(Math.floor(shared.x * grid.columns), 0, grid.columns - 1);
    const position = () => row() * grid.columns + column();
    const heads = data.heads ?? 0;

    // Attention of a query over the patches, of a head or of the mean over all.
    function attention(layer, head, of = queries()) {
      const chosen = head === heads ? range(heads) : [head];
      return meanRow(chosen.flatMap((one) => of.map((token) => example().attention(layer, one, token))));
    }
    function mean(read, head) {
      const found = head === heads ? range(heads).map(read) : [read(head)];
      return average(found);
    }
    const patches = (tokens) => tokens.slice(grid.prefix);

    function stack(parent, tag = "div") {
      const box = element(tag, "stack", parent);
      box.style.aspectRatio = `${data.size[1]} / ${data.size[0]}`;
      const canvas = element("canvas", "", box);
      const mark = element("div", "mark", box);
      mark.hidden = true;
      return { box, canvas, mark };
    }

    const mains = {};
    for (const holder of document.querySelectorAll(`[data-model="${number}"] [data-map]`)) {
      const one = { ...stack(holder), name: holder.dataset.map };
      one.scale = ["picture", "patch-lens"].includes(one.name) ? () => {} : scale(holder);
      mains[one.name] = one;
      if (grid && one.name !== "correspondence") follow(one);
      else if (one.name === "correspondence") one.box.setAttribute("role", "img");
    }

    if (mains.attention) {
      mains.attention.lines = make("svg", { class: "lines", preserveAspectRatio: "none", "aria-hidden": "true" }, mains.attention.box);
      find("lines").addEventListener("change", () => paintPlaces());
    }

    function follow(one) {
      const { box } = one;
      box.tabIndex = 0;
      box.setAttribute("role", "application");
      box.setAttribute("aria-roledescription", "picture of patches");
      box.setAttribute("aria-label", "Arrow keys move from patch to patch");
      box.setAttribute("aria-describedby", "status");
      const pointed = (event) => {
        const { left, top, width, height } = box.getBoundingClientRect();
        const at = (share, count) => clamp(Math.floor(share * count), 0, count - 1);
        return at((event.clientY - top) / height, grid.rows) * grid.columns + at((event.clientX - left) / width, grid.columns);
      };
      box.addEventListener("pointermove", (event) => {
        const patch = pointed(event);
        if (!shared.pinned && event.pointerType !== "touch" && (patch !== position() || shared.pooled)) look(patch);
      });
      box.addEventListener("pointerleave", () => {
        if (!shared.pinned) release();
      });
      box.addEventListener("click", (event) => {
        const patch = pointed(event);
        if (shared.pinned && patch === position()) release();
        else pin(patch);
      });
      box.addEventListener("keydown", (event) => {
        const step = STEPS[event.key];
        if (!step) return;
        event.preventDefault();
        const to = [clamp(row() + step[0], 0, grid.rows - 1), clamp(column() + step[1], 0, grid.columns - 1)];
        pin(to[0] * grid.columns + to[1]);
      });
    }

    function pin(patch) {
      shared.pinned = true;
      look(patch);
    }

    function look(patch) {
      shared.x = ((patch % grid.columns) + 0.5) / grid.columns;
      shared.y = (Math.floor(patch / grid.columns) + 0.5) / grid.rows;
      setPooled(false);
      paintPlaces();
    }

    // Small pictures of one kind, made anew when their number changes.
    function multiples(name, names, paint, choose) {
      const holder = own(`[data-multiples="${name}"]`);
      if (holder.childElementCount !== names.length) {
        holder.replaceChildren();
        holder.made = names.map((_, index) => {
          const figure = element("figure", "", holder);
          const frame = choose ? element("button", "", figure) : figure;
          if (choose) {
            frame.type = "button";
            frame.addEventListener("click", () => choose(index));
          }
          return { frame, ...stack(frame, "span"), caption: element(choose ? "span" : "figcaption", "name", frame) };
        });
      }
      names.forEach((text, index) => {
        const one = holder.made[index];
        one.caption.textContent = text;
        paint(one, index);
      });
    }

    const short = (name) => name.replace(/\/attention\/weights$|\/(mlp|channel_mixing)\/sum$|\/sum$/, "");
    // Names without the ends of their paths that all have in common.
    function labels(names) {
      const parts = names.map((name) => name.split("/"));
      const common = (at) => parts.length > 1 && parts.every((one) => one.length > 1 && at(one) === at(parts[0]));
      while (common((one) => one[0])) parts.forEach((one) => one.shift());
      while (common((one) => one[one.length - 1])) parts.forEach((one) => one.pop());
      return parts.map((one) => short(one.join("/")));
    }
    const ofGrid = () => [grid.rows, grid.columns];
    const marked = () => (shared.pooled ? -1 : position());

    // The smallest and largest value that this model has to show, for a scale of all models.
    const spans = {
      attention: () => mains.attention && [0, biggest(patches(attention(state.layer, state.head)))],
      similarity: () => mains.similarity && span(example().similarity(state.similar, position(), shared.example), position()),
      removals: () => find("removals-table") && [0, Math.max(...Array.from(example().removals(state.class), (value) => Math.abs(value) || 0))],
    };
    const span = (values, except) => [smallest(values, except), biggest(values, except)];

    function paintMap(one, values, unit, except = -1, [low, high] = [0, biggest(values, except)]) {
      draw(one.canvas, values, ofGrid(), scaled(low, high));
      positionMark(one.mark, marked(), ofGrid());
      one.scale?.(low, high, unit);
    }

    // ---- what follows the patch ----------------------------------------------------------------

    function facts(list, entries) {
      list.replaceChildren();
      for (const [name, value] of entries) {
        element("dt", "", list, name);
        element("dd", "", list, value);
      }
    }

    function paintAttention() {
      const { layer, head } = state;
      const all = attention(layer, head);
      paintMap(mains.attention, patches(all), "", -1, spanOfAll("attention"));
      paintLines(patches(all));
      overview.endPreview();
      const far = mean((one) => average(queries().map((token) => example().distance(layer, one, token)[0])), head);
      const [prefix, itself, others] = range(3).map((part) => mean((one) => average(queries().map((token) => example().mass(layer, one, token)[part])), head));
      facts(find("attention-facts"), [
        ["query", looking(`patch in row ${row()}, column ${column()}`)],
        ["distance", Number.isFinite(far) ? `${shown(far)} pixels` : "not defined"],
        ...(prefixNames() ? [[`to ${prefixNames()}`, percent(prefix)]] : []),
        ["to itself", percent(itself)],
        ["to others", percent(others)],
      ]);
      paintOverview();
      return far;
    }

    // Lines from the selected patch to those that it attends to most.
    function paintLines(weights) {
      const svg = mains.attention.lines;
      svg.replaceChildren();
      if (shared.pooled || !find("lines").checked) return;
      svg.setAttribute("viewBox", `0 0 ${grid.columns} ${grid.rows}`);
      const most = biggest(weights) || 1;
      const order = range(cells).sort((a, b) => weights[b] - weights[a]).slice(0, MOST_LINES);
      for (const key of order) {
        const [x, y] = [key % grid.columns, Math.floor(key / grid.columns)];
        make("line", { x1: column() + 0.5, y1: row() + 0.5, x2: x + 0.5, y2: y + 0.5, "stroke-opacity": weights[key] / most }, svg);
      }
    }

    // Every head of every layer, each scaled to its own maximum, on one canvas with gaps of a pixel.
    const overview = find("overview") && makeOverview(find("overview"));

    function makeOverview(holder) {
      const [wide, high] = [grid.columns + 1, grid.rows + 1];
      element("span", "", holder, "head").style.textAlign = "right";
      const columns = element("div", "columns", holder);
      const every = Math.ceil(heads / 12);
      range(heads).forEach((one) => element("span", "", columns, one % every ? "" : String(one)));
      const rows = element("div", "rows", holder);
      const step = Math.ceil(layers.attention.length / 16);
      labels(layers.attention).forEach((name, index) => element("span", "", rows, index % step ? "" : name));
      const tiles = element("div", "tiles", holder);
      const canvas = element("canvas", "", tiles);
      const mark = element("div", "mark", tiles);
      tiles.style.aspectRatio = `${heads * wide} / ${layers.attention.length * high}`;
      const widest = ((page.models.length > 1 ? 20 : 30) * heads * wide) / (layers.attention.length * high); // at most so many rem high
      holder.style.gridTemplateColumns = `max-content minmax(0, ${widest}rem)`;
      tiles.tabIndex = 0;
      tiles.setAttribute("role", "application");
      tiles.setAttribute("aria-label", "Attention of all layers (rows) and heads (columns); arrow keys choose one");
      const choose = (layer, head) => {
        chooseHead(clamp(head, 0, heads - 1), false);
        chooseLayer(clamp(layer, 0, layers.attention.length - 1));
      };
      const tileAt = (event) => {
        const { left, top, width, height } = tiles.getBoundingClientRect();
        const at = (share, count) => clamp(Math.floor(share * count), 0, count - 1);
        return [at((event.clientY - top) / height, layers.attention.length), at((event.clientX - left) / width, heads)];
      };
      tiles.addEventListener("click", (event) => choose(...tileAt(event)));
      // The large map shows the head below the pointer until it leaves.
      const heading = own(".shown-head");
      let previewed = "";
      const preview = (layer, head, words) => {
        if (words === previewed) return;
        name(words);
        paintMap(mains.attention, patches(attention(layer, head)), "");
      };
      const name = (words) => {
        previewed = words;
        heading.textContent = words ? `Attention weights: ${words}` : "Attention weights";
      };
      tiles.addEventListener("pointermove", (event) => {
        const [layer, head] = tileAt(event);
        if (event.pointerType !== "touch") preview(layer, head, `${labels(layers.attention)[layer]}, head ${head}`);
      });
      tiles.addEventListener("pointerleave", () => preview(state.layer, state.head, ""));
      tiles.addEventListener("keydown", (event) => {
        const move = STEPS[event.key];
        if (!move) return;
        event.preventDefault();
        choose(state.layer + move[0], (state.head === heads ? 0 : state.head) + move[1]);
      });
      return { canvas, mark, wide, high, endPreview: () => name("") };
    }

    function paintOverview() {
      const { canvas, mark, wide, high } = overview;
      const count = layers.attention.length;
      const width = heads * wide;
      const values = new Float64Array(width * count * high).fill(NaN);
      range(count).forEach((layer) => range(heads).forEach((head) => {
        const own = patches(attention(layer, head));
        const most = biggest(own) || 1;
        own.forEach((value, index) => {
          const [y, x] = [Math.floor(index / grid.columns), index % grid.columns];
          values[(layer * high + y) * width + head * wide + x] = value / most;
        });
      }));
      const colour = scaled(0, 1, undefined, true);
      draw(canvas, values, [count * high, width], (value) => (Number.isNaN(value) ? [0, 0, 0, 0] : colour(value)));
      mark.hidden = state.head === heads;
      const part = [grid.rows / high, grid.columns / wide]; // without the gap between tiles
      positionMark(mark, mark.hidden ? -1 : state.layer * heads + state.head, [count, heads], part);
    }

    function paintSimilarity() {
      const within = example().similarity(state.similar, position(), shared.example);
      paintMap(mains.similarity, within, "cosine", position(), spanOfAll("similarity"));
      positionMark(mains.similarity.mark, position(), ofGrid());
      const there = mains.correspondence;
      if (!there) return;
      const across = example().similarity(state.similar, position(), shared.other);
      const best = across.indexOf(biggest(across));
      paintMap(there, across, "cosine", -1, span(across));
      positionMark(there.mark, best, ofGrid());
      there.mark.classList.add("ring");
      const [y, x] = [Math.floor(best / grid.columns), best % grid.columns];
      there.box.setAttribute("aria-label",
        `Most similar in ${page.images[shared.other]}: row ${y}, column ${x}, cosine ${shown(across[best])}`);
    }

    // Similarity in each layer, of which the chosen one is large.
    function paintNearest() {
      const within = (layer) => example().similarity(layer, position(), shared.example);
      paintMap(mains.nearest, within(state.similar), "cosine", position(), span(within(state.similar), position()));
      multiples("nearest", labels(layers.similarity), (one, index) => {
        const values = within(index);
        draw(one.canvas, values, ofGrid(), scaled(smallest(values), biggest(values, position())));
        one.frame.setAttribute("aria-pressed", String(index === state.similar));
      }, chooseSimilar);
    }

    function chooseSimilar(index) {
      state.similar = index;
      find("similarity-layer").value = index;
      paintPlaces();
    }

    function paintFields() {
      const [rows, columns] = data.field_grid;
      const at = Math.floor((row() * rows) / grid.rows) * columns + Math.floor((column() * columns) / grid.columns);
      multiples("fields", layers.maps, (one, index) => {
        const values = example().fields(index, at);
        draw(one.canvas, values, data.field_size, scaled(0, biggest(values), Math.sqrt));
        positionMark(one.mark, at, data.field_grid);
      });
    }

    // Six classes that are most frequent have a colour, others are grey.
    const HUES = [[230, 97, 1], [31, 120, 180], [51, 160, 44], [227, 26, 128], [255, 214, 0], [106, 61, 154]];
    const OTHER = [150, 150, 150];

    function paintPatchLens() {
      const { patch_top, patch_share, patch_classes } = example();
      const [top, share] = [patch_top[state.patches], patch_share(state.patches)];
      const counts = new Map();
      top.forEach((index) => counts.set(index, (counts.get(index) ?? 0) + 1));
      const order = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
      const hue = (index) => HUES[order.indexOf(index)] ?? OTHER;
      const main = mains["patch-lens"];
      draw(main.canvas, share, ofGrid(), (value, index) => [...hue(top[index]), Math.round(255 * value)]);
      const key = find("patch-key");
      key.replaceChildren();
      const listed = order.slice(0, HUES.length).map((index) => [data.patch_names[index], counts.get(index), hue(index)]);
      const rest = order.slice(HUES.length).reduce((sum, index) => sum + counts.get(index), 0);
      for (const [name, count, colour] of [...listed, ...(rest ? [["other classes", rest, OTHER]] : [])]) {
        const item = element("li", "", key);
        const swatch = element("span", "swatch", item);
        swatch.style.background = `rgb(${colour.join(",")})`;
        item.append(`${name}: ${count}`);
      }
      multiples("patch-lens", layers.patches.map(short), (one, index) => {
        const values = patch_classes(state.class).subarray(index * cells, (index + 1) * cells);
        const most = biggest(values);
        draw(one.canvas, values, ofGrid(), scaled(0, most));
        one.frame.setAttribute("aria-pressed", String(index === state.patches));
        one.caption.textContent = `${short(layers.patches[index])}: up to ${percent(most)}`;
      }, choosePatchLayer);
      placePatchLens();
    }

    function placePatchLens() {
      positionMark(mains["patch-lens"].mark, position(), ofGrid());
    }

    function choosePatchLayer(index) {
      state.patches = index;
      find("patch-layer").value = index;
      paintPatchLens();
      paintPlaces();
    }

    function paintComponents() {
      multiples("components", layers.tokens.map(short), (one, index) => {
        const values = example()[`components${index}`]();
        const size = data.token_sizes[index];
        draw(one.canvas, values, size, (_, at) => [0, 1, 2].map((part) => Math.round(255 * values[3 * at + part])).concat(255));
        one.canvas.classList.add("opaque");
        one.caption.textContent = `${short(layers.tokens[index])}: ${percent(data.explained[index])} of variance`;
      });
    }

    function paintTokenNorms() {
      multiples("token-norms", layers.tokens.map(short), (one, index) => {
        const values = example()[`token_norms${index}`]();
        const own = example().prefix_norms[index];
        const [low, high] = [smallest(values), biggest(values)];
        draw(one.canvas, values, data.token_sizes[index], scaled(low, high));
        const prefix = own.map((size, token) => `; ${data.prefix_names[token]} ${shown(size)}`).join("");
        one.caption.textContent = `${short(layers.tokens[index])}: ${shown(low)} to ${shown(high)}${prefix}`;
      });
    }

    function paintRemovals() {
      const table = find("removals-table");
      table.replaceChildren();
      const values = example().removals(state.class);
      const columns = data.removed.length;
      const most = Math.max(spanOfAll("removals")[1], 1e-9);
      const line = element("tr", "", element("thead", "", table));
      element("th", "", line, "without");
      data.removed.forEach((name) => (element("th", "", line, name).scope = "col"));
      const body = element("tbody", "", table);
      layers.removals.forEach((name, layer) => {
        const cellsOf = element("tr", "", body);
        element("th", "", cellsOf, name).scope = "row";
        range(columns).forEach((at) => {
          const value = values[layer * columns + at];
          const cell = element("td", "", cellsOf, Number.isFinite(value) ? points(value) : "");
          const share = Math.round((60 * Math.abs(value)) / most);
          if (share) cell.style.background = `color-mix(in srgb, var(${value < 0 ? "--second" : "--link"}) ${share}%, transparent)`;
        });
      });
    }
    // A change with its sign, which 0 has not.
    function points(value) {
      const size = Math.abs(value).toFixed(1);
      return Number(size) === 0 ? "0" : (value > 0 ? "+" : "\u2212") + size;
    }

    function paintPlace() {
      const words = [];
      if (grid) words.push(looking(`row ${row()}, column ${column()}`));
      if (grid) positionMark(mains.picture.mark, marked(), ofGrid());
      if (mains.attention) {
        const far = paintAttention();
        if (Number.isFinite(far)) words.push(`distance ${shown(far)} pixels`);
      }
      if (mains.rollout) {
        const tokens = meanRow(queries().map((token) => example().rollout(token)));
        paintMap(mains.rollout, patches(tokens), "of its content", marked());
      }
      if (mains.similarity) paintSimilarity();
      if (mains.nearest) paintNearest();
      if (data.field_grid) paintFields();
      if (own('[data-chart="norms"]')) paintNorms();
      if (mains["patch-lens"]) {
        placePatchLens();
        const { patch_top, patch_share } = example();
        if (!shared.pooled) words.push(`the head predicts ${data.patch_names[patch_top[state.patches][position()]]} (${percent(patch_share(state.patches)[position()])}) from it alone at ${short(layers.patches[state.patches])}`);
      }
      return words;
    }

    // ---- what follows the image, the layer and the class ------------------------------------------

    function paintMass() {
      find("kept-value").textContent = `${Math.round(100 * state.kept)} %`;
      multiples("mass", range(heads).map((one) => `head ${one}`), (one, index) => {
        const sums = patches(attention(state.layer, index, data.pooled));
        const total = sums.reduce((a, b) => a + b, 0);
        const held = keptBy(sums.map((value) => (total ? value / total : 0)), state.kept);
        draw(one.canvas, held, ofGrid(), kept);
        one.caption.textContent = `head ${index}: ${held.filter(Boolean).length} of ${cells}`;
      });
    }

    function paintEvidence() {
      const kinds = [];
      const one = example();
      if (one.relevance) kinds.push(["gradient-weighted attention", one.relevance(state.class), ofGrid(), false]);
      if (one.gradients) kinds.push(["input gradient, SmoothGrad", one.gradients(state.class), data.gradient_size, false]);
      if (one.cam) layers.maps.forEach((name, index) => kinds.push([`Grad-CAM of ${name}`, one.cam(state.class, index), data.cam_size, true]));
      if (mains.cam) paintStages();
      if (mains.explained) {
        const [values, size] = one.relevance ? [one.relevance(state.class), ofGrid()] : [one.gradients(state.class), data.gradient_size];
        paintWhole(mains.explained, values, size);
      }
      if (mains.gradients) paintWhole(mains.gradients, one.gradients(state.class), data.gradient_size);
      multiples("evidence", kinds.map(([name]) => name), (figure, index) => {
        const [name, values, size, smooth] = kinds[index];
        const most = biggest(values);
        draw(figure.canvas, values, size, scaled(0, most));
        figure.canvas.classList.toggle("smooth", smooth);
        figure.caption.textContent = most > 0 ? `${name}; brightest ${shown(most)}` : `${name}: no evidence for this class`;
      });
    }

    function paintWhole(main, values, size, smooth = false) {
      draw(main.canvas, values, size, scaled(0, biggest(values)));
      main.canvas.classList.toggle("smooth", smooth);
      main.scale(0, biggest(values), "");
    }

    // Grad-CAM of each stage, of which the chosen one is large.
    function paintStages() {
      const map = (index) => example().cam(state.class, index);
      paintWhole(mains.cam, map(state.stage), data.cam_size, true);
      multiples("stages", layers.maps, (one, index) => {
        draw(one.canvas, map(index), data.cam_size, scaled(0, biggest(map(index))));
        one.canvas.classList.add("smooth");
        one.frame.setAttribute("aria-pressed", String(index === state.stage));
        one.caption.textContent = layers.maps[index].split("/")[0];
      }, (index) => {
        state.stage = index;
        paintStages();
      });
    }

    // Lines through the depth: series of {name, values, second, faint}.
    function lines(holder, names, series, unit) {
      const [width, height, left, bottom] = [Math.max(280, holder.clientWidth), 230, 56, 26];
      holder.replaceChildren();
      if (names.length < 2) return;
      const high = Math.max(...series.flatMap((line) => line.values.filter(Number.isFinite)), 0) || 1;
      const x = (index) => left + ((width - left - 12) * index) / Math.max(1, names.length - 1);
      const y = (value) => height - bottom - ((height - bottom - 16) * value) / high;
      const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": series.map((line) =>
        `${line.name}: ${names.map((name, index) => `${name} ${shown(line.values[index])}`).join(", ")}`).join(". ") }, holder);
      for (const share of [0, 0.5, 1]) {
        make("path", { class: "axis", d: `M${left} ${y(share * high)}H${width - 12}` }, svg);
        make("text", { x: left - 8, y: y(share * high) + 4, "text-anchor": "end" }, svg, shown(share * high));
      }
      make("text", { x: left, y: 10 }, svg, unit);
      const firsts = names.map((name) => name.split("/")[0]);
      let free = left - 1; // where the last label ends
      firsts.forEach((name, index) => {
        const room = 7.2 * name.length;
        const start = clamp(x(index) - room / 2, left, width - room);
        if (start < free || (index && firsts[index - 1] === name)) return;
        make("text", { x: start, y: height - 8 }, svg, name);
        free = start + room + 8;
      });
      const key = element("ul", "key", holder);
      for (const { name, values, second, faint } of series) {
        const look = [second ? "b" : "", faint ? "faint" : ""].join(" ");
        const points = values.flatMap((value, index) => (Number.isFinite(value) ? [`${x(index)},${y(value)}`] : []));
        make("polyline", { class: look, points: points.join(" ") }, svg);
        const item = element("li", "", key);
        make("polyline", { class: look, points: "0,5 30,5" }, make("svg", { viewBox: "0 0 30 10", "aria-hidden": "true" }, item));
        item.append(name);
      }
    }

    function paintLens() {
      const { lens, top } = example();
      const values = layers.lens.map((_, index) => lens(index)[state.class]);
      const name = `probability of ${classes()[state.class]}`;
      lines(own('[data-chart="lens"]'), layers.lens.map(short), [{ name, values }], "probability");
      find("lens-table").querySelector("tbody").replaceChildren();
      top.forEach((best, index) => {
        const line = element("tr", "", find("lens-table").querySelector("tbody"));
        element("th", "", line, layers.lens[index]).scope = "row";
        for (const [what, share] of best) element("td", "", line, `${what}, ${percent(share)}`);
      });
    }

    function paintNorms() {
      const { skip, branch } = example();
      const whole = data.norm_tokens === (grid ? grid.prefix + cells : -1); // else one number a layer
      const placed = (tokens) => (whole ? average(patches([...tokens])) : tokens[0]);
      const series = [
        { name: "skip, mean over positions", values: layers.norms.map((_, index) => placed(skip(index))) },
        { name: "branch, mean over positions", values: layers.norms.map((_, index) => placed(branch(index))), second: true },
      ];
      if (whole) {
        const of = looking("this patch");
        const chosen = (tokens) => average(queries().map((token) => tokens[token]));
        series.push(
          { name: `skip, ${of}`, values: layers.norms.map((_, index) => chosen(skip(index))), faint: true },
          { name: `branch, ${of}`, values: layers.norms.map((_, index) => chosen(branch(index))), second: true, faint: true },
        );
      }
      lines(own('[data-chart="norms"]'), layers.norms, series, "Euclidean norm");
    }

    function paintPredictions() {
      const list = find("predictions");
      list.replaceChildren();
      for (const { name, share, explained } of example().predictions) {
        const button = element("button", "", element("li", "", list));
        button.type = "button";
        button.disabled = explained < 0;
        button.setAttribute("aria-pressed", String(explained === state.class));
        element("span", "bar-of", button).style.width = `${100 * share}%`;
        element("span", "", button, name);
        element("span", "", button, percent(share));
        button.addEventListener("click", () => views.forEach((one) => one.chooseClass(name)));
      }
    }

    // What follows the class that is explained.
    function paintClass() {
      document.querySelectorAll(`[data-model="${number}"] .of-class`).forEach((node) => (node.textContent = classes()[state.class]));
      if (own('[data-multiples="evidence"]')) paintEvidence();
      if (own('[data-chart="lens"]')) paintLens();
      if (mains["patch-lens"]) paintPatchLens();
      if (find("removals-table")) paintRemovals();
    }

    function paintAll() {
      for (const holder of document.querySelectorAll(`[data-model="${number}"]`)) {
        holder.style.setProperty("--picture", `url(${example().picture})`);
      }
      const seen = own(".seen img");
      seen.src = example().seen;
      mains.correspondence?.box.style.setProperty("--picture", `url(${examples[shared.other].picture})`);
      if (find("predictions")) paintPredictions();
      if (mains.attention) paintMass();
      if (own('[data-multiples="components"]')) paintComponents();
      if (own('[data-multiples="token-norms"]')) paintTokenNorms();
      if (classes().length) paintClass();
    }

    // The most probable class of the image among those that are explained.
    function chooseLikeliest() {
      state.class = example().predictions?.find(({ explained }) => explained >= 0)?.explained ?? 0;
    }

    // ---- choices -------------------------------------------------------------------------------

    function chooseLayer(index) {
      state.layer = index;
      find("layer").value = index;
      paintPlaces();
      paintMass();
    }
    function chooseHead(index, paint = true) {
      state.head = index;
      find("head").value = index;
      if (paint) paintPlaces();
    }
    // A class by its name, where it is explained for the image.
    function chooseClass(name) {
      const index = classes().indexOf(name);
      if (index < 0) return;
      state.class = index;
      paintPredictions();
      paintClass();
    }
    if (layers.attention) state.layer = layers.attention.length - 1;
    if (layers.similarity) state.similar = layers.similarity.length - 1;
    if (layers.patches) state.patches = layers.patches.length - 1;
    if (layers.maps) state.stage = layers.maps.length - 1;
    options(find("patch-layer"), layers.patches ?? [], state.patches, choosePatchLayer);
    options(find("other"), page.images, shared.other, (index) => {
      shared.other = index;
      document.querySelectorAll('select[id^="other"]').forEach((select) => (select.value = index));
      paintPage();
    });
    options(find("layer"), labels(layers.attention ?? []), state.layer, chooseLayer);
    options(find("head"), [...range(heads).map((one) => `head ${one}`), "mean over heads"], 0, chooseHead);
    options(find("similarity-layer"), layers.similarity ?? [], state.similar, chooseSimilar);
    find("kept")?.addEventListener("input", (event) => {
      state.kept = Number(event.target.value) / 100;
      paintMass();
    });
    return { paintPlace, paintAll, chooseClass, chooseLikeliest, spans };
  }

  // ---- all models ----------------------------------------------------------------------------

  function options(select, names, chosen, change) {
    if (!select) return;
    names.forEach((name, index) => (element("option", "", select, name).value = index));
    select.value = chosen;
    select.addEventListener("change", () => change(Number(select.value)));
  }

  function setPooled(pooled) {
    shared.pooled = pooled;
    document.body.classList.toggle("pinned", shared.pinned);
    pooledButton?.setAttribute("aria-pressed", String(pooled));
  }

  function paintPlaces() {
    const words = views.map((one) => one.paintPlace());
    const query = views.length > 1 ? words.map((one) => one.slice(0, 1)).slice(0, 1).flat() : words[0];
    document.getElementById("status").textContent = [...query, ...(shared.pinned ? ["pinned"] : [])].join("; ");
  }

  // Back to the query that is shown by default.
  function release() {
    shared.pinned = false;
    setPooled(Boolean(pooledButton));
    paintPlaces();
  }

  // The scale of all models on the page, of maps that show the same quantity.
  function spanOfAll(kind) {
    const found = views.map(({ spans }) => spans[kind]()).filter(Boolean);
    return [Math.min(...found.map(([low]) => low)), Math.max(...found.map(([, high]) => high))];
  }

  function paintPage() {
    views.forEach((one) => one.paintAll());
    paintPlaces();
  }

  const views = page.models.map(view);
  const strip = document.getElementById("strip");
  const select = document.getElementById("example");
  function chooseExample(index) {
    shared.example = index;
    if (select) select.value = index;
    strip?.childNodes.forEach((one, other) => one.setAttribute("aria-pressed", String(other === index)));
    views.forEach((one) => one.chooseLikeliest());
    paintPage();
  }
  options(select, page.images, 0, chooseExample);
  // All images, with what each model predicts; a click chooses one.
  const isWrong = (index) => page.models.some((model) => model.examples[index].correct === false);
  if (strip) page.images.forEach((name, index) => {
    const button = element("button", "", strip);
    button.type = "button";
    element("img", "", button).src = page.models[0].examples[index].picture;
    button.firstChild.alt = name;
    const predicted = page.models.map((model) => model.examples[index].predictions?.[0]?.name).filter(Boolean);
    element("span", "", button, [...new Set(predicted)].join(" or "));
    if (isWrong(index)) {
      button.classList.add("wrong");
      element("span", "", button, `label: ${page.models.find((model) => model.examples[index].label).examples[index].label}`);
    }
    button.setAttribute("aria-pressed", String(index === 0));
    button.addEventListener("click", () => chooseExample(index));
  });
  // Hides the images that every model classifies correctly.
  const filter = document.getElementById("wrong-only");
  const wrong = page.images.map((_, index) => index).filter(isWrong);
  if (filter && wrong.length) {
    filter.closest(".filter").hidden = false;
    filter.parentNode.append(` only wrong predictions (${wrong.length} of ${page.images.length})`);
    filter.addEventListener("change", () => {
      strip.childNodes.forEach((button, index) => { button.hidden = filter.checked && !isWrong(index); });
      if (filter.checked && !isWrong(shared.example)) chooseExample(wrong[0]);
    });
  }
  for (const part of document.querySelectorAll("section[id]")) {
    const heading = part.querySelector("h2[id]");
    if (!heading) continue;
    element("a", "", document.querySelector(".contents"), heading.textContent).href = `#${part.id}`;
  }
  pooledButton?.addEventListener("click", () => {
    shared.pinned = shared.pooled;
    setPooled(!shared.pooled);
    paintPlaces();
  });
  window.addEventListener("keydown", (event) => {
    if (event.key === "Escape") release();
  });
  document.getElementById("smooth").addEventListener("change", (event) => document.body.classList.toggle("smooth", event.target.checked));
  document.getElementById("opacity").addEventListener("input", (event) =>
    document.documentElement.style.setProperty("--opacity", event.target.value / 100));
  let seen = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === seen) return; // phones call it for a bar that comes and goes
    seen = window.innerWidth;
    paintPage();
  });
  document.querySelector("form.bar").addEventListener("submit", (event) => event.preventDefault());
  setPooled(Boolean(pooledButton));
  views.forEach((one) => one.chooseLikeliest());
  paintPage();
})();
