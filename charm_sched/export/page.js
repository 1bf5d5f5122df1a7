"use strict";
(() => {
  const page = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 600px)");
  const options = { displaylogo: false, responsive: false, displayModeBar: false };
  const STREAMS = ["#4f7df0", "#9b6bdf", "#1aa5b8", "#e0a030", "#d1589a", "#6f9e3f", "#a0705a"];
  const KERNELS = { attend: "#2a9d78", merge: "#175c47" };
  let printing = false;

  const isPlain = (value) => value && typeof value === "object" && !Array.isArray(value);
  function merged(base, more) {
    const found = { ...base };
    for (const [key, value] of Object.entries(more)) {
      found[key] = isPlain(value) && isPlain(found[key]) ? merged(found[key], value) : value;
    }
    return found;
  }

  // Figures read a few tags in text as markup; names of a file must stay text.
  const label = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function theme(layout) {
    const ink = dark.matches && !printing
      ? { text: "#e4e9f1", soft: "#9aa6b8", grid: "#27313e", ground: "#182029", line: "#3a4656" }
      : { text: "#17202e", soft: "#5a6577", grid: "#e6eaf0", ground: "#ffffff", line: "#c9d0db" };
    const axis = { gridcolor: ink.grid, zerolinecolor: ink.grid, linecolor: ink.grid };
    return merged(layout, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink.text, size: narrow.matches ? 11 : 12, family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif" },
      hoverlabel: { bgcolor: ink.ground, bordercolor: ink.line, font: { color: ink.text, size: 12 }, align: "left", namelength: -1 },
      xaxis: axis, yaxis: axis, autosize: false,
    });
  }

  // On a phone devices are smaller, and where their numbers have no room they go.
  function fitted(id, figure) {
    if (!narrow.matches || printing || !id.startsWith("machine")) return figure;
    const data = figure.data.map((trace) => {
      if (trace.name !== "devices") return trace;
      const size = Math.max(trace.marker.size * 0.55, 5);
      return { ...trace, mode: size >= 14 ? trace.mode : "markers", marker: { ...trace.marker, size } };
    });
    return { ...figure, data };
  }

  function draw(id) {
    const place = document.getElementById(id);
    if (!place || !place.offsetParent) return;
    const figure = id.startsWith("timeline") ? timeline(id) : fitted(id, page.figures[id]);
    // A wide machine is scrolled on a screen that is too narrow for it; paper has one width.
    const least = printing ? 0 : (figure.layout.meta || {}).least || 0;
    const layout = theme({ ...figure.layout, width: Math.max(place.clientWidth, least) });
    Plotly.react(place, figure.data, layout, { ...options, scrollZoom: false });
  }

  function drawAll() {
    Object.keys(page.figures).forEach(draw);
    Object.keys(page.timelines).forEach(draw);
  }

  // --- the timeline of the ranks that are looked at -------------------------------------------

  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];
  function seconds(ns) {
    const [scale, unit] = UNITS.find(([s]) => Math.abs(ns) >= s) || UNITS[3];
    return `${Number((ns / scale).toPrecision(4))} ${unit}`;
  }
  function bytes(count) {
    const units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let at = 0;
    while (count >= 1000 && at < units.length - 1) { count /= 1000; at += 1; }
    return `${Number(count.toPrecision(3))} ${units[at]}`;
  }

  function words(data, row) {
    const c = data.columns;
    const kind = data.kinds[c.kind[row]];
    const many = c.ops[row] > 1 ? `${c.ops[row]} x ` : "";
    const lines = [];
    if (kind === "transfer") {
      const to = c.peer[row] >= 0 ? ` from rank ${c.rank[row]} to rank ${c.peer[row]}` : "";
      lines.push(`<b>${many}transfer</b>${to}, level ${c.level[row]} on ${label(data.streams[c.stream[row]])}`);
      const took = c.end[row] - c.start[row];
      const rate = took > 0 ? `, ${bytes(c.bytes[row] / took * 1e9)}/s` : "";
      lines.push(`${bytes(c.bytes[row])}${rate}`);
    } else {
      lines.push(`<b>${many}${kind}</b> on rank ${c.rank[row]}, ${label(data.streams[c.stream[row]])}`);
    }
    const what = data.what[c.what[row]];
    if (what) lines.push(label(what).replace(/(.{60}[^ ]*) /g, "$1<br>"));
    lines.push(`${seconds(c.start[row])} to ${seconds(c.end[row])} (${seconds(c.end[row] - c.start[row])})`);
    if (c.critical[row]) lines.push("on the critical path");
    return lines.join("<br>");
  }

  // Rows of one rank: its kernels, then one per stream of transfers; what overlaps shares a row.
  function rowsOf(data, ranks, end) {
    const c = data.columns;
    const shown = new Set(ranks);
    const lanes = new Map();
    for (let row = 0; row < c.rank.length; row += 1) {
      const kind = data.kinds[c.kind[row]];
      const rank = kind === "transfer" && end === "receives" && c.peer[row] >= 0 ? c.peer[row] : c.rank[row];
      if (!shown.has(rank)) continue;
      const key = `${rank}/${kind === "transfer" ? 1 : 0}/${c.stream[row]}`;
      if (!lanes.has(key)) lanes.set(key, { rank, transfer: kind === "transfer", stream: c.stream[row], rows: [] });
      lanes.get(key).rows.push(row);
    }
    const found = [...lanes.values()].sort((a, b) => a.rank - b.rank || a.transfer - b.transfer || a.stream - b.stream);
    for (const lane of found) {
      lane.rows.sort((a, b) => c.start[a] - c.start[b] || a - b);
      const free = [];
      lane.at = lane.rows.map((row) => {
        let at = free.findIndex((time) => time <= c.start[row]);
        if (at < 0) at = free.length;
        free[at] = c.end[row];
        return at;
      });
      lane.depth = free.length;
    }
    return found;
  }

  function timeline(id) {
    const data = page.timelines[id];
    const state = data.state;
    const c = data.columns;
    const unit = UNITS.find(([scale]) => data.total * 1e9 >= scale) || UNITS[3];
    const lanes = rowsOf(data, data.views[state.view].ranks, state.end);
    const traces = new Map();
    const ticks = [], names = [], notes = [];
    let y = 0, rank = null;
    for (const lane of lanes) {
      if (lane.rank !== rank) {
        rank = lane.rank;
        const name = data.ranks[rank] ? ` · ${label(data.ranks[rank])}` : "";
        notes.push({ xref: "paper", x: 0, y: y + 0.1, xanchor: "left", yanchor: "middle", showarrow: false, text: `<b>rank ${rank}</b>${name}`, font: { size: 11 } });
        y += 1;
      }
      const stream = data.streams[lane.stream];
      ticks.push(y);
      names.push(lane.transfer ? label(stream) : "kernels");
      lane.rows.forEach((row, index) => {
        const kind = data.kinds[c.kind[row]];
        const name = lane.transfer ? stream : kind;
        if (!traces.has(name)) traces.set(name, bars(lane, kind, label(name)));
        const trace = traces.get(name);
        const tall = 0.84 / lane.depth;
        trace.base.push(c.start[row] / unit[0]);
        trace.x.push((c.end[row] - c.start[row]) / unit[0]);
        trace.y.push(y - 0.42 + tall * (lane.at[index] + 0.5));
        trace.width.push(tall * 0.94);
        trace.hovertext.push(words(data, row));
        trace.marker.opacity.push(lane.transfer && c.level[row] % 2 ? 0.62 : 0.95);
        trace.marker.line.color.push(c.critical[row] ? "#d43d3d" : "rgba(255,255,255,.7)");
        trace.marker.line.width.push(c.critical[row] ? 1.4 : 0.5);
      });
      y += 1;
    }
    const layout = {
      height: 96 + Math.max(y, 4) * (narrow.matches ? 17 : 19), barmode: "overlay", dragmode: "zoom", hovermode: "closest",
      margin: { l: 8, r: 10, t: 44, b: 34 }, annotations: notes, bargap: 0,
      xaxis: { range: [0, data.total * 1e9 / unit[0]], ticksuffix: ` ${unit[1]}`, side: "top", nticks: narrow.matches ? 4 : 9 },
      yaxis: { tickvals: ticks, ticktext: names, range: [y, -0.7], automargin: true, fixedrange: true, zeroline: false, showgrid: false, tickfont: { size: 10 } },
      legend: { orientation: "h", x: 0, y: -0.01, yanchor: "top" }, uirevision: `${state.view}/${state.end}`,
    };
    return { data: [...traces.values()], layout };
  }

  function bars(lane, kind, name) {
    const colour = lane.transfer ? STREAMS[lane.stream % STREAMS.length] : KERNELS[kind];
    return {
      type: "bar", orientation: "h", name, base: [], x: [], y: [], width: [], hovertext: [],
      hovertemplate: "%{hovertext}<extra></extra>",
      marker: { color: colour, opacity: [], line: { color: [], width: [] } },
    };
  }

  function control(id) {
    const data = page.timelines[id];
    data.state = { view: 0, end: "sends" };
    const place = document.getElementById(`${id}-controls`);
    const choose = (title, values, change) => {
      const select = document.createElement("select");
      values.forEach(([value, text]) => select.add(new Option(text, value)));
      select.addEventListener("change", () => { change(select.value); draw(id); });
      const wrap = document.createElement("label");
      wrap.append(title, select);
      place.append(wrap);
    };
    choose("ranks", data.views.map((view, at) => [at, `${view.name} (${view.ranks.length})`]), (value) => { data.state.view = Number(value); });
    choose("transfers stand with who", [["sends", "sends"], ["receives", "receives"]], (value) => { data.state.end = value; });
    const hint = document.createElement("span");
    hint.textContent = "Drag to zoom, double-click to go back. Red outline: on the critical path.";
    place.append(hint);
  }

  // --- forward, backward ----------------------------------------------------------------------

  function show(direction) {
    document.body.classList.remove("only-forward", "only-backward");
    document.body.classList.add(`only-${direction}`);
    document.querySelectorAll(".tabs button").forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.direction === direction));
    });
    drawAll();
  }

  document.body.classList.add("scripted");
  Object.keys(page.timelines).forEach(control);
  document.querySelectorAll(".tabs button").forEach((button) => {
    button.addEventListener("click", () => show(button.dataset.direction));
  });
  const first = document.querySelector(".tabs button");
  if (first) show(first.dataset.direction); else drawAll();

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width || printing) return;
    width = innerWidth;
    requestAnimationFrame(drawAll);
  });
  dark.addEventListener("change", drawAll);
  // Paper is laid out with the sizes that figures have before it: they get the width of a page first.
  function print(now) {
    printing = now;
    document.body.classList.toggle("printing", now);
    drawAll();
  }
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  document.documentElement.dataset.ready = "yes";
})();
