// One small plot with its own legend: values under the cursor, the newest otherwise.

import { brief, onAxis } from "./words.js";

const SPAN_S = 300;
const SPAN_MIN_S = 60;
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Chart {
  /** `series`: [{label, color, value(state), dash, fill, unit}], colour as the name of a CSS variable. */
  constructor(parent, { id, title, unit, series, empty, floor }) {
    this.series = series;
    this.title = title;
    this.unit = unit;
    this.floor = floor;
    this.card = element("figure", "card chart", parent);
    this.card.style.margin = 0;
    this.card.id = id;
    element("h2", "", this.card).textContent = title;
    element("span", "note", this.card).textContent = unit;
    this.legend = element("ul", "legend", this.card);
    this.host = element("div", "plot", this.card);
    this.host.setAttribute("role", "img");
    this.nothing = element("p", "empty", this.card);
    this.nothing.textContent = empty;
    this.at = null;
    this.data = null;
    this.rows = series.map((one) => {
      const row = element("li", "", this.legend);
      const line = element("i", "", row);
      line.dataset.dash = one.dash ? "yes" : "no";
      line.style.borderTopColor = `var(${one.color})`;
      row.append(one.label, " ");
      return { row, value: element("b", "", row) };
    });
    new ResizeObserver(() => this.resize()).observe(this.card);
  }

  /** Colours are read when a plot is made, so another theme makes it anew. */
  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    if (this.data) this.update(this.times, this.states);
  }

  update(times, states) {
    this.times = times;
    this.states = states;
    const columns = this.series.map((one) => states.map((state) => number(state && one.value(state))));
    const used = columns.map((column) => column.some((value) => value != null));
    // A bound alone is nothing to look at.
    const any = this.series.some((one, index) => used[index] && !one.dash);
    this.nothing.hidden = any;
    this.host.hidden = !any;
    this.data = [times, ...columns];
    this.rows.forEach(({ row }, index) => (row.hidden = !used[index]));
    if (any) {
      if (!this.plot) this.build();
      const now = times.at(-1);
      this.plot.setData(this.data, false);
      const span = Math.min(SPAN_S, Math.max(SPAN_MIN_S, now - times[0]));
      this.plot.setScale("x", { min: now - span, max: now });
    }
    this.tell();
  }

  build() {
    const axis = { stroke: css("--muted"), font: "11px system-ui, sans-serif", ticks: { show: false } };
    const grid = { stroke: css("--grid"), width: 1 };
    this.plot = new uPlot(
      {
        ...this.size(),
        legend: { show: false },
        padding: [6, 8, 0, 0],
        cursor: { sync: { key: "twp" }, drag: { setScale: false, x: false, y: false }, points: { size: 6 } },
        scales: { x: { time: true, auto: false }, y: { range: (u, low, high) => this.range(high) } },
        axes: [
          { ...axis, grid, space: 90, size: 24, values: (u, splits) => splits.map((at) => clock.format(1000 * at)) },
          { ...axis, grid, size: 52, values: (u, splits) => splits.map(onAxis) },
        ],
        series: [
          {},
          ...this.series.map((one) => ({
            label: one.label,
            stroke: css(one.color),
            width: one.dash ? 1.5 : 2,
            dash: one.dash ? [5, 4] : undefined,
            fill: one.fill ? `${css(one.color)}22` : undefined,
            points: { show: false },
          })),
        ],
        hooks: {
          setCursor: [
            (u) => {
              this.at = u.cursor.idx ?? null;
              this.tell();
            },
          ],
        },
      },
      this.data,
      this.host,
    );
  }

  range(high) {
    return [0, Math.max(this.floor ?? 0, (high ?? 0) * 1.1) || 1];
  }

  tell() {
    const index = this.at ?? this.times.length - 1;
    const words = [];
    this.series.forEach((one, place) => {
      const value = this.data[place + 1][index];
      this.rows[place].value.textContent = brief(value);
      if (value != null) words.push(`${one.label} ${brief(value)}`);
    });
    this.host.setAttribute("aria-label", `${this.title}, ${this.unit}: ${words.join(", ") || "no values"}`);
  }

  size() {
    return { width: Math.max(80, this.host.clientWidth), height: this.host.clientHeight };
  }

  resize() {
    if (this.plot && this.host.clientWidth) this.plot.setSize(this.size());
  }
}

function number(value) {
  return Number.isFinite(value) ? value : null;
}

export function element(tag, className, parent) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  parent?.append(made);
  return made;
}
