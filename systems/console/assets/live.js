// The newest summary of the nodes, from the console's event stream: one stream for the whole page.
import { useEffect, useState } from "./dom.js";
import { ask } from "./server.js";

const POINTS = 1000;

const readers = new Set();
let state = { sample: null, error: "", heard: 0, open: false };
let source = null;

function tell(change) {
  state = { ...state, ...change };
  for (const reader of readers) reader(state);
}

export function start(onEnd) {
  stop();
  source = new EventSource("api/v1/console/events");
  source.addEventListener("sample", (event) => {
    const sample = JSON.parse(event.data);
    tell({ sample, error: sample.error, heard: Date.now(), open: true });
  });
  source.addEventListener("away", (event) => tell({ error: JSON.parse(event.data).error, open: true }));
  source.addEventListener("goodbye", (event) => {
    if (["revoked", "expired"].includes(JSON.parse(event.data).reason)) onEnd();
  });
  source.onopen = () => tell({ open: true });
  source.onerror = () => {
    tell({ open: false });
    if (source && source.readyState === EventSource.CLOSED) setTimeout(() => source && onEnd(), 2000);
  };
}

export function stop() {
  if (source) source.close();
  source = null;
  state = { sample: null, error: "", heard: 0, open: false };
}

export function useLive() {
  const [now, set] = useState(state);
  useEffect(() => {
    readers.add(set);
    set(state);
    return () => readers.delete(set);
  }, []);
  return now;
}

// The sums of the last hour by columns, which grow with each reading; null before the second one.
export function usePast() {
  const { sample } = useLive();
  const [past, set] = useState(null);
  useEffect(() => { ask("GET", "api/v1/console/history").then(set, () => {}); }, []);
  useEffect(() => {
    if (!sample || !past || !past.at || sample.point.at <= past.at.at(-1)) return;
    set(Object.fromEntries(Object.entries(past).map(([name, values]) => [name, [...values, sample.point[name]].slice(-POINTS)])));
  }, [sample && sample.at]);
  return past && past.at ? past : null;
}
