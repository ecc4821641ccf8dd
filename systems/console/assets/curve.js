// One curve component over uPlot: series over time, in the colours of the page.
import { html, useEffect, useRef, useState } from "./dom.js";
import uPlot from "./vendor/uplot.js";

const LINES = ["--line-1", "--line-2", "--line-3"];

// Grows with each change of the look, by the page's choice or the system's: a curve is drawn in the colours of its time.
function useLook() {
  const [look, set] = useState(0);
  useEffect(() => {
    const changed = () => set((was) => was + 1);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const chosen = new MutationObserver(changed);
    dark.addEventListener("change", changed);
    chosen.observe(document.documentElement, { attributeFilter: ["data-look"] });
    return () => { dark.removeEventListener("change", changed); chosen.disconnect(); };
  }, []);
  return look;
}

// `series`: [{label, values, show}], `times` in seconds since 1970.
export function Curve({ title, times, series, show }) {
  const place = useRef(null);
  const made = useRef(null);
  const look = useLook();
  const shape = series.map((each) => each.label).join("|");
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 } };
    made.current = new uPlot({
      width: place.current.clientWidth, height: 190,
      legend: { live: true },
      scales: { y: { range: (_, low, high) => [Math.min(0, low || 0), (high || 0) > 0 ? high * 1.1 : 1] } },
      axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map((each) => show(each)) }],
      series: [{ value: (_, at) => (at ? new Date(at * 1000).toLocaleTimeString() : "") },
        ...series.map((each, index) => ({ label: each.label, stroke: colour(LINES[index % LINES.length]), width: 1.7, dash: index ? [6, 3 + index] : undefined, spanGaps: true, value: (_, value) => (value === null ? "" : show(value)) }))],
    }, [times, ...series.map((each) => each.values)], place.current);
    const watch = new ResizeObserver(() => made.current && made.current.setSize({ width: place.current.clientWidth, height: 190 }));
    watch.observe(place.current);
    return () => { watch.disconnect(); made.current.destroy(); made.current = null; };
  }, [shape, look]);
  useEffect(() => { if (made.current) made.current.setData([times, ...series.map((each) => each.values)]); }, [times]);
  const last = series.map((each) => `${each.label} ${each.values.length ? show(each.values.at(-1)) : ""}`).join(", ");
  return html`<section><h2>${title}</h2><div class="chart" ref=${place} role="img" aria-label="${title}: ${last}"></div></section>`;
}
